"""Measure the memory growth of a service that runs short two-rank trials. Prints one JSON line.

    python -m benchmarks.endurance [--trials 2000] [--experiments 10] [--from 200]

It starts a home, a Ray and a service. The experiments run one after another, and their trials share one warm group. Every few
trials it counts the memory that only one process has written (private dirty pages), descriptors, threads and processes, by kind
of process. The slope is that of a straight line through the counts from the 200th trial on, per 1,000 trials.
`database_mib_per_1000` is the growth of the SQLite file; `torch_alone` is the growth of two plain processes that only
create and destroy gloo groups.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks import peers

ROOT = Path(__file__).resolve().parents[1]
_MIB = 2**20
_KINDS = (
    ("ray::Host", "host"),
    ("ray::RayRank", "rank"),
    ("ray::", "other worker"),
    ("raylet/raylet", "raylet"),
    ("gcs_server", "gcs"),
)


def trial(config: dict[str, Any]) -> None:
    """Run a few collectives and make three reports, printing a line for each."""
    import torch
    import torch.distributed as dist

    import tuner

    for step in range(3):
        one = torch.ones(1)
        dist.all_reduce(one)
        print(f"step {step}")
        tuner.report({"loss": config["x"] ** 2 / (step + 1), "world": one.item()})


@dataclass(slots=True)
class Count:
    """All processes of one kind, at one moment."""

    own_mib: float = 0.0
    descriptors: int = 0
    threads: int = 0
    processes: int = 0


@dataclass(slots=True)
class Service:
    """`tuner serve` in a separate process."""

    home: str
    api: int = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[httpx.Client]:
        output = Path(self.home, "serve.log")
        with output.open("w") as file:  # a pipe that nobody empties would stop the service
            serve = subprocess.Popen(
                self._command("--port", "0"), cwd=ROOT, env=self._environment(), stdout=file, stderr=subprocess.STDOUT
            )
        self.api = serve.pid
        try:
            while not (where := re.search(r"tuner is at (http://\S+)", output.read_text())):
                if serve.poll() is not None:
                    raise RuntimeError(f"the service did not start:\n{output.read_text()[-2000:]}")
                time.sleep(0.1)
            with httpx.Client(base_url=f"{where[1]}/api/v1", timeout=60) as client:
                yield client
        finally:
            serve.terminate()
            try:
                serve.wait(30)
            except subprocess.TimeoutExpired:
                serve.kill()
            subprocess.run(
                self._command("--stop"), cwd=ROOT, env=self._environment(), stdout=subprocess.DEVNULL, check=True
            )

    def count(self) -> dict[str, Count]:
        """Return the processes that were started with this home, by kind."""
        found: dict[str, Count] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("TUNER_HOME") != self.home:
                    continue
                count = found.setdefault(self._kind(process), Count())
                with process.oneshot():
                    count.own_mib += peers.own_bytes(process.pid) / _MIB
                    count.descriptors += process.num_fds()
                    count.threads += process.num_threads()
                    count.processes += 1
        return found

    def _kind(self, process: psutil.Process) -> str:
        if process.pid == self.api:
            return "api"
        line = " ".join(process.cmdline())
        return next((kind for sign, kind in _KINDS if sign in line), "other")

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", "from tuner.cli import main; main()", "serve", *arguments]

    def _environment(self) -> dict[str, str]:
        environment = {**os.environ, "TUNER_HOME": self.home}
        for name in ("TUNER_DATABASE_URL", "RAY_ADDRESS"):
            environment.pop(name, None)
        return environment


def experiment(client: httpx.Client, trials: int) -> str:
    """Post an experiment with this many trials and return its id."""
    answer = client.post(
        "/experiments",
        json={
            "name": "endurance",
            "entrypoint": "benchmarks.endurance:trial",
            "space": {"x": {"type": "uniform", "lower": 0.0, "upper": 1.0}},
            "metric": "loss",
            "mode": "min",
            "num_samples": trials,
            "search": {"type": "random"},
            "scheduler": {"type": "fifo"},
            "scaling": {"num_workers": 2, "resources_per_worker": {"CPU": 0.5}},
            "limits": {"max_concurrent_trials": 1},
        },
    )
    answer.raise_for_status()
    return str(answer.json()["id"])


def look(client: httpx.Client, found: str) -> dict[str, Any]:
    """Make the requests of the experiment's page, and return the experiment."""
    client.get(f"/experiments/{found}/trials").raise_for_status()
    client.get(f"/experiments/{found}/curves").raise_for_status()
    answer: dict[str, Any] = client.get(f"/experiments/{found}").json()
    return answer


def slope(at: list[float], values: list[float]) -> float:
    """Return the growth per 1,000 trials."""
    return statistics.linear_regression(at, values).slope * 1000 if len(at) > 1 else 0.0


def rows(counts: list[tuple[int, dict[str, Count]]]) -> dict[str, dict[str, float]]:
    """Return kind -> its first and last counts, and its growth per 1,000 trials."""
    found: dict[str, dict[str, float]] = {}
    for kind in sorted({kind for _, count in counts for kind in count}):
        at = [float(trials) for trials, count in counts if kind in count]
        here = [count[kind] for _, count in counts if kind in count]
        found[kind] = {"processes_first": here[0].processes, "processes_last": here[-1].processes}
        for name in ("own_mib", "descriptors", "threads"):
            values = [float(getattr(count, name)) for count in here]
            found[kind] |= {
                f"{name}_first": values[0],
                f"{name}_last": values[-1],
                f"{name}_per_1000": slope(at, values),
            }
        found[kind] = {name: round(value, 2) for name, value in found[kind].items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--experiments", type=int, default=10)
    parser.add_argument("--from", type=int, default=200, dest="begin")
    parser.add_argument("--every", type=int, default=50)
    arguments = parser.parse_args()
    each = arguments.trials // arguments.experiments
    counts: list[tuple[int, dict[str, Count]]] = []
    database: list[float] = []
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        service = Service(home)
        with service.running() as client:
            for number in range(arguments.experiments):
                name = experiment(client, each)
                while True:
                    now = look(client, name)
                    done = number * each + sum(now["counts"].get(state, 0) for state in ("completed", "stopped"))
                    if done >= arguments.begin and (not counts or done >= counts[-1][0] + arguments.every):
                        counts.append((done, service.count()))
                        database.append(Path(home, "tuner.db").stat().st_size / _MIB)
                        print(done, {k: round(c.own_mib, 1) for k, c in counts[-1][1].items()}, file=sys.stderr)
                    if now["ended_at"]:
                        break
                    time.sleep(0.2)
                assert now["counts"].get("completed") == each, now["counts"]
    row = {
        "benchmark": "endurance",
        "trials": arguments.trials,
        "experiments": arguments.experiments,
        "seconds": round(time.monotonic() - begun),
        "counts": len(counts),
        "kinds": rows(counts),
        "database_mib_per_1000": round(slope([float(done) for done, _ in counts], database), 2),
        "torch_alone": peers.gloo_growth(repeats=1000),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
