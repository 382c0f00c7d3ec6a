"""`tuner serve` in a process of its own, for tests and benchmarks that post to it, kill parts of it and watch."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

from tuner.hosts.ray import head

ROOT = Path(__file__).parent.parent
DEADLINE_S = 150.0

SPEC: dict[str, Any] = {
    "name": "digits",
    "entrypoint": "tuner.examples.digits:train",
    "space": {
        "lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1},
        "width": {"type": "choice", "categories": [8, 12, 16]},
    },
    "metric": "accuracy",
    "mode": "max",
    "num_samples": 6,
    "seed": 1,
    "search": {"type": "random"},
    "scheduler": {"type": "asha", "max_t": 9, "grace_period": 1, "reduction_factor": 3},
    "scaling": {"num_workers": 2, "use_gpu": False, "resources_per_worker": {"CPU": 0.5}},
    "limits": {"max_concurrent_trials": 1, "time_budget_s": 600},
}
SLOW: dict[str, Any] = {
    "name": "slow",
    "entrypoint": "tests.jobs:slow",
    "space": {"x": {"type": "uniform", "lower": 0.1, "upper": 1.0}},
    "metric": "loss",
    "mode": "min",
    "num_samples": 2,
    "search": {"type": "random"},
    "scheduler": {"type": "fifo"},
    "scaling": {"num_workers": 2, "resources_per_worker": {"CPU": 0.5}, "backend": "none"},  # no rank imports torch
    "limits": {"max_concurrent_trials": 2},
    "checkpoint": {"frequency": 1},
}


NO_MILESTONES = {"interval_s": None, "keep_best": 0}
"""A checkpoint policy under which a FIFO search has no report that waits for a verdict."""


def until(what: str, happened: Callable[[], Any], seconds: float = DEADLINE_S) -> Any:
    end = time.monotonic() + seconds
    found: Any = None
    while time.monotonic() < end:
        with contextlib.suppress(httpx.HTTPError, psutil.Error):
            if found := happened():
                return found
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds:g} s: {what}")


def kill_postgres(server: Any) -> None:
    """Kill a PostgreSQL server without closing its connections; `server.start()` starts it again."""
    process = psutil.Process(server.get_pid())
    process.send_signal(signal.SIGQUIT)
    process.wait(timeout=60)


def host_of(home: Path) -> psutil.Process:
    """Return the process of the driver host of this home's service."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TUNER_HOME") == str(home) and "ray::Host" in " ".join(process.cmdline()):
                return process
    raise AssertionError("there is no driver host")


class Service:
    """`tuner serve` in a process of its own, with its own home and Ray."""

    def __init__(self, home: Path, database_url: str, **environment: str) -> None:
        self.home, self.database_url, self.more = home, database_url, environment
        self.output = ""
        self.lines: list[tuple[float, str]] = []  # of the output, with the time at which each was read
        self.client = httpx.Client(timeout=60)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", "from tuner.cli import main; main()", "serve", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        # `tuner serve` refuses to run if an address is given, and a test may have set that of this service.
        return {
            **{name: value for name, value in os.environ.items() if name != "TUNER_ADDRESS"},
            "TUNER_HOME": str(self.home),
            "TUNER_DATABASE_URL": self.database_url,
            "PYTHONUNBUFFERED": "1",
            **self.more,
        }

    def start(self) -> None:
        self.output = ""
        self.process = subprocess.Popen(
            self.command("--port", "0"),
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        where = until("the address", lambda: re.findall(r"tuner is at (http://\S+)", self.output))[-1]
        self.client.base_url = httpx.URL(where)
        until("readiness", lambda: self.client.get("/readyz").status_code == 200)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.lines.append((time.time(), line))
                self.output += line

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=30)

    def stop(self) -> str:
        done = subprocess.run(self.command("--stop"), cwd=ROOT, env=self.environment, capture_output=True, text=True)
        return done.stdout.strip()

    def processes(self) -> list[psutil.Process]:
        """Return the processes that were started with this home, without the service itself."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TUNER_HOME") == str(self.home) and process.pid != self.process.pid:
                    found.append(process)
        return found

    def get(self, path: str) -> Any:
        answer = self.client.get(f"/api/v1{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, spec: dict[str, Any]) -> Any:
        answer = self.client.post("/api/v1/experiments", json=spec)
        assert answer.status_code == 201, answer.text
        assert answer.headers["location"].endswith(answer.json()["id"])
        return answer.json()

    def ended(self, experiment: str) -> Any:
        return until("the end", lambda: (e := self.get(f"/experiments/{experiment}"))["ended_at"] and e)

    def clean_up(self) -> None:
        """End the service and everything that was started with its home."""
        with contextlib.suppress(Exception):
            self.end()
        while left := self.processes():  # a process may have started another one meanwhile
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=1)
        shutil.rmtree(head._scratch(self.home), ignore_errors=True)
