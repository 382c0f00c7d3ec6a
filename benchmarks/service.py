"""Measure the start of a service, its lists and its POST, with many experiments in its database.

    python -m benchmarks.service [--experiments 10000] [--starts 5] [--clients 50] [--posts 1000]
        [--only start|list|post] [--keep DIR]

Makes the experiments through the store, in an SQLite file that --keep DIR keeps for another run. Prints one JSON line for
each part:

- start: the seconds from the start of the process of `tuner serve` until it first answers `/healthz`, and `/readyz`, with 200.
  The first start is without Ray (`ray: false`), so the service starts it; the others find the Ray and the driver host of the
  first. `healthz_cpu_s` and `readyz_cpu_s` are the CPU time of the service's process by then, without Ray and the driver host.
- list: the milliseconds of a page of 100 experiments, for several queries, in sequence over one connection.
- post: the milliseconds of `POST /experiments`, with all clients at once. Each client has one connection, and sends its next
  request as soon as it has its response. `cpu_ms` is the CPU time of the service for one request. The clients are tasks of this
  process that write prepared bytes. It is measured without a driver, first beside all those experiments and then in a new
  database (`experiments: 0`), and at last with `tuner serve`, whose driver runs the posted experiments on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks import page_data, page_scale
from tests.services import SLOW
from tests.services import Service as Serve
from tuner.domain.batch import Batch
from tuner.domain.experiment import Objective, Spec
from tuner.domain.states import ExperimentState
from tuner.store import Store
from tuner.store.backups.backup import backup

SPACE = {"lr": {"type": "loguniform", "lower": 1e-5, "upper": 1.0}}
QUERIES: tuple[dict[str, Any], ...] = (
    {},
    {"state": "completed"},
    {"name": "77"},
    {"project": "vision"},
    {"archived": "all"},
)


LOOK_S = 0.05
"""Seconds between two requests for the readiness of a service that starts. Each takes some milliseconds of its CPU time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=10_000)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--posts", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--only", choices=("start", "list", "post"))
    parser.add_argument("--keep", metavar="DIR")
    options = parser.parse_args()
    compile_imports()
    with contextlib.ExitStack() as stack:
        home = options.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="tuner-service-"))
        url = f"sqlite:///{home}/tuner.db"
        make(url, options.experiments)
        parts = (options.only,) if options.only else ("start", "list", "post")
        if "list" in parts:
            lists(url, home, options.experiments, options.repeats)
        if "start" in parts:
            starts(url, home, options.experiments, options.starts)
        if "post" in parts:
            posts(url, home, options.experiments, options.clients, options.posts)


def compile_imports() -> None:
    """Import what a service imports, so that also the first measured process finds it compiled, as in an installation of pip."""
    modules = "tuner.cli.commands, tuner.api.app, tuner.hosts.host, tuner.hosts.on_ray.start, ray.scripts.scripts"
    subprocess.run([sys.executable, "-c", f"import {modules}"], check=True)


def make(url: str, count: int) -> None:
    """Make experiments that have ended, in two projects, unless an earlier run has made them."""
    with Store.open(url) as store:
        store.migrate()
        newest = store.experiments.page(page_size=1).items
        there = int(newest[0].name.split()[-1]) + 1 if newest else 0
        for number in range(there, count):
            spec = Spec(
                name=f"experiment {number}",
                space=SPACE,
                objectives=(Objective("loss", "min"),),
                entrypoint="module:train",
                project="vision" if number % 2 else "speech",
            )
            record = store.experiments.create(spec)
            epoch = store.drivers.claim(record.id, "benchmark", 60.0, time.time())
            for state in (ExperimentState.RUNNING, ExperimentState.COMPLETED):
                store.drivers.commit(record.id, epoch, Batch(log=[], state=state), time.time())
            store.drivers.release(record.id, epoch)


def show(part: str, **row: Any) -> None:
    shown = {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}
    print(json.dumps({"benchmark": f"service {part}", **shown, "load": psutil.getloadavg()[0]}), flush=True)


def p(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


# Start


def starts(url: str, home: str, experiments: int, count: int) -> None:
    service = Serve(Path(home), url)
    try:
        for number in range(count + 1):
            show("start", experiments=experiments, ray=number > 0, **started(service))
            service.end()
    finally:
        service.stop()


def started(service: Serve) -> dict[str, float]:
    """Start the service. Return the seconds until `/healthz` and `/readyz` answer 200, and its CPU time by then."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    begun = time.perf_counter()
    service.process = subprocess.Popen(
        service.command("--port", str(port)),
        env=service.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    found: dict[str, float] = {}
    process = psutil.Process(service.process.pid)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        for path in ("/healthz", "/readyz"):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if client.get(path).status_code == 200:
                        break
                if service.process.poll() is not None:
                    raise RuntimeError("the service has ended")
                time.sleep(LOOK_S)
            found[f"{path[1:]}_s"] = time.perf_counter() - begun
            found[f"{path[1:]}_cpu_s"] = sum(process.cpu_times()[:2])
    return found


# Lists


def lists(url: str, home: str, experiments: int, repeats: int) -> None:
    service = page_data.Service(url, home)
    try:
        for query in QUERIES:
            params = {"page_size": 100, **query}
            found = page_scale.timed(
                service,
                lambda params=params: service.client.get("/api/v1/experiments", params=params),  # type: ignore[misc]
                repeats,
            )
            show("list", experiments=experiments, query=query, **found)
    finally:
        service.close()


# POST


def posts(made: str, home: str, experiments: int, clients: int, count: int) -> None:
    """Measure POST. `made` is the URL of the SQLite file with the experiments, which is copied."""
    folder = Path(home, f"posts-{time.time()}")
    folder.mkdir()
    if experiments:
        backup(made, folder / "many.db")
        alone_posts(f"sqlite:///{folder}/many.db", folder, experiments, clients, count)
    url = f"sqlite:///{folder}/tuner.db"
    with Store.open(url) as store:
        store.migrate()
    alone_posts(url, folder, 0, clients, count)
    service = Serve(folder, url)
    try:
        service.start()
        process = psutil.Process(service.process.pid)
        found = posted(str(service.client.base_url), process, clients, count)
        show("post", driver=True, experiments=0, **found)
    finally:
        service.clean_up()


def alone_posts(url: str, folder: Path, experiments: int, clients: int, count: int) -> None:
    """Measure POST without a driver."""
    alone = page_data.Service(url, str(folder))
    try:
        show("post", driver=False, experiments=experiments, **posted(alone.url, alone.process, clients, count))
    finally:
        alone.close()


def posted(url: str, process: psutil.Process, clients: int, count: int) -> dict[str, Any]:
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    for _ in range(3):  # the first import of the entrypoint, in the service's helper process, is not measured
        httpx.post(f"{url}/api/v1/experiments", json=SLOW, timeout=60).raise_for_status()
    cpu, begun = sum(process.cpu_times()[:2]), time.perf_counter()
    took = asyncio.run(_all_clients(host, int(port), clients, count))
    wall = time.perf_counter() - begun
    return {
        "clients": clients,
        "posts": len(took),
        "p50_ms": statistics.median(took),
        "p95_ms": p(took, 0.95),
        "p99_ms": p(took, 0.99),
        "max_ms": max(took),
        "a_second": len(took) / wall,
        "cpu_ms": (sum(process.cpu_times()[:2]) - cpu) / len(took) * 1e3,
    }


async def _all_clients(host: str, port: int, clients: int, count: int) -> list[float]:
    numbers = iter(range(count))
    took: list[float] = []
    await asyncio.gather(*(_client(host, port, numbers, took) for _ in range(clients)))
    return took


async def _client(host: str, port: int, numbers: Any, took: list[float]) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    for number in numbers:
        body = json.dumps({**SLOW, "name": f"posted {number}"}).encode()
        head = (
            f"POST /api/v1/experiments HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        begun = time.perf_counter()
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 201 " not in answer.split(b"\r\n", 1)[0]:
            raise RuntimeError(answer.decode())
        length = next(
            int(line.split(b":")[1]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        await reader.readexactly(length)
        took.append((time.perf_counter() - begun) * 1e3)
    writer.close()


if __name__ == "__main__":
    main()
