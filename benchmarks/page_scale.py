"""Measure the page and its requests to the API with large experiments. Prints one JSON line for each part.

    python -m benchmarks.page_scale [--trials 1000] [--reports 10000] [--many 100000] [--repeats 20] [--clients 100]
        [--mute 1000] [--backlog 20000] [--only curves|trials|stream|mute|page] [--pages many,few,long,live] [--rounds 3]
        [--browser PATH] [--peer PYTHON] [--keep DIR]

Makes the data through the store, as a driver commits it, in an SQLite file that --keep DIR keeps for another run. A
separate process serves it. Measures over HTTP: the curves of all trials (all points and a part of them, in the page's
binary form and as JSON), a page of the many trials by several columns, the importance of their parameters, and a GET on
a kept-alive connection. Also measures how long it takes from the commit of a report until all --clients of the event
stream have seen it. `memory_mb` is the growth of the API's process; `cpu` is in cores.

The part `mute` adds clients that ask for the event streams and read nothing, while reports arrive. It prints
the latency of a GET and of ten clients that do read, without such clients and with them. It also prints the memory of
the service, and the memory that the kernel holds for the streams (`socket_mb`: `mem` in /proc/net/sockstat, for all TCP
connections of the machine). It then measures the same with clients that ask for --backlog earlier reports each.

The part `page` opens the pages in Chromium (`page_chromium.py`): `many` trials, trials with 1/50 of the reports (`few`) and
with all of them (`long`), and a search that runs (`live`). It measures the time until the table and the curves are drawn, the
memory of the renderer, the length of frames while the mouse moves, axes are brushed and 100 reports a second arrive, and the
time until a report is drawn. `cpu_s` is the CPU time of the browser and the service until everything is drawn. With --peer, it
also opens optuna-dashboard on the same curves (`optuna_page.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import resource
import selectors
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from benchmarks import page_chromium
from benchmarks.page_data import Service, Writer, make, show
from tuner.api.schemas import COLUMNS
from tuner.domain.decisions import Start
from tuner.domain.events import SegmentStarted
from tuner.domain.states import ExperimentState
from tuner.store import ExperimentRecord, Store


def timed(service: Service, call: Callable[[], httpx.Response], repeats: int) -> dict[str, float]:
    """Return the milliseconds of the first call and of the others, and the service's CPU time for one."""
    took, size, cpu = [], 0, service.cpu_s()
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        response = call()
        took.append((time.perf_counter() - begin) * 1e3)
        response.raise_for_status()
        size = int(response.headers.get("content-length", len(response.content)))
    rest = sorted(took[1:])
    return {
        "first_ms": took[0],
        "p50_ms": statistics.median(rest),
        "p95_ms": rest[max(math.ceil(0.95 * len(rest)) - 1, 0)],
        "cpu_ms": (service.cpu_s() - cpu) / len(took) * 1e3,
        "kb": size / 1024,
    }


def curves(service: Service, record: ExperimentRecord, trials: int, reports: int, repeats: int) -> None:
    path = f"/api/v1/experiments/{record.public_id}/curves"
    before = service.memory_mb()
    size = {"trials": trials, "reports": reports}
    part = {"points": 400, "from": reports // 2, "to": reports // 2 + reports // 20}
    for form, accept in (("numbers", COLUMNS), ("json", "application/json")):
        headers = {"Accept": accept}
        for what, params in (("curves", {"points": 400}), ("part of the curves", part)):
            took = timed(service, lambda: service.client.get(path, params=params, headers=headers), repeats)  # noqa: B023
            show(what, **size, form=form, **took, memory_mb=service.memory_mb() - before)


def tables(service: Service, record: ExperimentRecord, trials: int, repeats: int) -> None:
    path = f"/api/v1/experiments/{record.public_id}/trials"
    before = service.memory_mb()
    choices: list[dict[str, Any]] = [
        {},
        {"state": "completed"},
        {"sort": "-best_value"},
        {"sort": "-params.lr"},
        {"sort": "last.accuracy", "where": "params.optimizer=adam"},
        {"sort": "-iteration", "where": ["best_value>0.5", "params.width<100"]},
    ]
    for query in choices:
        found = timed(service, lambda query=query: service.client.get(path, params=query), repeats)  # type: ignore[misc]
        show("trials", trials=trials, query=query, **found)
    show("trials", trials=trials, memory_mb=service.memory_mb() - before)
    cpu = service.cpu_s()
    found = timed(service, lambda: service.client.get(f"/api/v1/experiments/{record.public_id}/importance"), 5)
    show("importance", trials=trials, **found, cpu_s=service.cpu_s() - cpu)
    some = path.replace("trials", "curves")
    found = timed(service, lambda: service.client.get(some, params={"points": 400}), repeats)
    show("curves of the best of many", trials=trials, **found)


def alive(service: Service) -> None:
    show("kept-alive GET", **timed(service, lambda: service.client.get("/healthz"), 200))


def stream(service: Service, store: Store, form: str, clients: int, seconds: float, rate: float) -> None:
    """Let one thread of this process read for all clients. Its CPU time is not counted."""
    writer = Writer(store, f"live {time.time()}")
    trial = writer.start(0)
    started = SegmentStarted(time=time.time(), trial=0, segment=1)
    writer.commit([Start(reason="the limit on concurrent trials allows one more", number=0), started], [trial])
    path = f"/api/v1/experiments/{writer.record.public_id}/{form}?after={writer.seq}"
    committed: dict[int, float] = {}
    with Listeners(service.url, path, clients) as listeners:
        listeners.greeted.wait(120)
        cpu, begin = service.cpu_s(), time.perf_counter()
        for number in range(int(seconds * rate)):
            time.sleep(max(0.0, begin + number / rate - time.perf_counter()))
            writer.commit(writer.reports(trial, 1), [trial])
            committed[writer.seq] = time.perf_counter()
        used, took = service.cpu_s() - cpu, time.perf_counter() - begin
        time.sleep(1.0)
    late = sorted((at - committed[seq]) * 1e3 for seq, at in listeners.seen if seq in committed)
    writer.commit([], [], ExperimentState.COMPLETED)
    show(
        f"stream of {form}", clients=clients, reports_per_s=rate, seen=len(late), committed=len(committed),
        p50_ms=statistics.median(late), p95_ms=late[int(0.95 * len(late))], cpu=used / took,
    )  # fmt: skip


def mute(
    service: Service, store: Store, form: str, clients: int, seconds: float, commits_s: float, backlog: int = 0
) -> None:
    """Commit reports of a hundred trials, first without clients that read nothing, and then with `clients` of them.

    backlog: the number of earlier reports that these clients ask for; 0: they ask only for what is new.
    """
    rows = 100
    writer = Writer(store, f"mute {time.time()}")
    trials = [writer.start(number) for number in range(rows)]
    log: list[Any] = []
    for trial in trials:
        log.append(Start(reason="a worker group is free", number=trial.number))
        log.append(SegmentStarted(time=time.time(), trial=trial.number, segment=1))
    writer.commit(log, trials, running=rows)
    for _ in range(backlog // rows):
        writer.commit([report for trial in trials for report in writer.reports(trial, 1)], trials)
    for count in (0, clients):
        path = f"/api/v1/experiments/{writer.record.public_id}/{form}?after="
        oldest = 0 if backlog else writer.seq
        with contextlib.ExitStack() as stack:
            before, kernel = service.memory_mb(), _socket_mb()
            connections = [stack.enter_context(_silent(service.url, f"{path}{oldest}")) for _ in range(count)]
            listeners = stack.enter_context(Listeners(service.url, f"{path}{writer.seq}", 10))
            listeners.greeted.wait(120)
            del listeners.seen[:]
            committed: dict[int, float] = {}
            gets: list[float] = []
            cpu, begin, peak = service.cpu_s(), time.perf_counter(), 0.0
            for number in range(int(seconds * commits_s)):
                time.sleep(max(0.0, begin + number / commits_s - time.perf_counter()))
                writer.commit([report for trial in trials for report in writer.reports(trial, 1)], trials)
                committed[writer.seq] = time.perf_counter()
                if number % 10 == 0:
                    asked = time.perf_counter()
                    service.client.get("/api/v1/experiments", params={"page_size": 10}).raise_for_status()
                    gets.append((time.perf_counter() - asked) * 1e3)
                    peak = max(peak, service.memory_mb())
            used, took = service.cpu_s() - cpu, time.perf_counter() - begin
            time.sleep(1.0)
            late = sorted((at - committed[seq]) * 1e3 for seq, at in listeners.seen if seq in committed)
            gets.sort()
            seen, rate = len(late), int(rows * len(committed) / took)
            late = late or [math.nan]
            show(
                f"mute clients of {form}", clients=count, backlog=backlog, reports_per_s=rate, seen=seen,
                committed=10 * len(committed),
                p50_ms=statistics.median(late), p95_ms=late[int(0.95 * len(late))],
                get_p95_ms=gets[int(0.95 * len(gets))], cpu=used / took, memory_mb=peak - before,
                socket_mb=_socket_mb() - kernel, connected=len(connections),
            )  # fmt: skip
    writer.commit([], [], ExperimentState.COMPLETED)


@contextlib.contextmanager
def _silent(url: str, path: str) -> Iterator[socket.socket]:
    """Ask for a stream, and never read it."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: text/event-stream\r\n\r\n"
        connection.sendall(request.encode())
        yield connection


def _socket_mb() -> float:
    """Return the memory that the kernel holds for TCP connections, in MiB."""
    found = re.search(r"^TCP:.* mem (\d+)", Path("/proc/net/sockstat").read_text(), re.MULTILINE)
    return int(found[1]) * resource.getpagesize() / 2**20 if found else math.nan


class Listeners:
    """Clients of an event stream, which one thread reads as cheaply as it can, so that it hardly slows down the service.

    seen: the id of each message, and when it arrived, for each client.
    greeted: set once every client has had a message.
    """

    def __init__(self, url: str, path: str, clients: int) -> None:
        self.seen: list[tuple[int, float]] = []
        self.greeted = threading.Event()
        self._done = False
        self._selector = selectors.DefaultSelector()
        host, port = url.removeprefix("http://").split(":")
        request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: text/event-stream\r\n\r\n".encode()
        self._waiting = set()
        for _ in range(clients):
            connection = socket.create_connection((host, int(port)), timeout=60)
            connection.sendall(request)
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ)
            self._waiting.add(connection)
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Listeners:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done = True
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _read(self) -> None:
        while not self._done:
            for key, _ in self._selector.select(0.2):
                content = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                if not content:
                    raise ConnectionError("the service has closed a stream")
                now = time.perf_counter()
                ids = [int(found) for found in re.findall(rb"^id: (\d+)", content, re.MULTILINE)]
                if ids and not self.greeted.is_set():
                    self._waiting.discard(key.fileobj)
                    if not self._waiting:
                        self.greeted.set()
                self.seen += [(found, now) for found in ids]


@contextlib.contextmanager
def folder(keep: str | None) -> Iterator[str]:
    if keep is not None:
        Path(keep).mkdir(parents=True, exist_ok=True)
        yield keep
    else:
        with tempfile.TemporaryDirectory() as made:
            yield made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--reports", type=int, default=10_000)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument(
        "--mute", type=int, default=1000, help="the number of clients that read nothing, in the part `mute`"
    )
    parser.add_argument(
        "--backlog", type=int, default=20_000, help="earlier reports that the second half of `mute` asks for"
    )
    parser.add_argument("--keep", help="a folder for the data, which are reused if they are there")
    parser.add_argument("--only", choices=["curves", "trials", "stream", "mute", "page"], help="this part alone")
    parser.add_argument("--pages", default="many,few,long,live", help="which pages the part `page` opens")
    parser.add_argument("--rounds", type=int, default=3, help="how often each page is opened")
    parser.add_argument("--browser", help="the browser for the pages; default: Chromium's headless shell, or Chromium")
    parser.add_argument("--peer", help="the Python of an environment that has optuna-dashboard")
    parser.add_argument("--peer-s", type=float, default=300.0, help="how many seconds the peer's page may take")
    options = parser.parse_args()
    with folder(options.keep) as home, Store.open(f"sqlite:///{home}/tuner.db") as store:
        store.migrate()
        sizes = (
            sorted({options.reports, options.reports // 10, options.reports // 50})
            if options.only in (None, "curves")
            else []
        )
        large = {n: make(store, f"{options.trials} trials of {n}", options.trials, n) for n in sizes if n}
        wanted = options.only in (None, "trials")
        many = make(store, f"{options.many} trials", options.many, 1) if wanted else None
        service = Service(f"sqlite:///{home}/tuner.db", home)
        try:
            for reports, record in large.items():
                curves(service, record, options.trials, reports, options.repeats)
            if many is not None:
                tables(service, many, options.many, options.repeats)
            if options.only in (None, "stream"):
                alive(service)
                for form in ("events", "changes"):
                    stream(service, store, form, options.clients, 10.0, 10.0)
            if options.only in (None, "mute"):
                for form in ("events", "changes"):
                    for backlog in (0, options.backlog):
                        mute(service, store, form, options.mute, 20.0, 10.0, backlog)
            if options.only in (None, "page"):
                page_chromium.measure(service, store, home, options)
        finally:
            service.close()


if __name__ == "__main__":
    main()
