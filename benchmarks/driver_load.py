"""Measure the driver's cost at 100 reports a second, and count the processes of a trial that are not ranks.

Prints one JSON line.

    python -m benchmarks.driver_load [--trials 8] [--rate 100] [--seconds 20] [--no-peer]

One-rank trials report five metrics each, at an even pace. Together they make `--rate` reports a second. They run twice:
under a scheduler that decides at each report (a milestone, at which the rank waits for its verdict), and under one that
decides at none. `cpu_percent` is the CPU time of the driver host's process, as a percentage of the time in which all
trials report; 100 is one core. Everything is committed to SQLite. The peer is the process in which Ray Tune's loop
runs, at the same rate, with its default loggers. `helpers` is the number of processes per trial that are neither the
driver, nor ranks, nor idle workers of Ray; for the peer, it is that of a Ray Train trial.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import tempfile
import threading
import time
from typing import Any

import psutil

from benchmarks import peers

OURS = ("HostActor", "RayRank")
"""The names of the actors that are not helpers: the driver host and the ranks."""


def trial(config: dict[str, Any]) -> None:
    """Report at an even pace, however long a report takes."""
    import tuner

    begun = time.monotonic()
    for number in range(config["reports"]):
        time.sleep(max(0.0, begun + number * config["pace_s"] - time.monotonic()))
        tuner.report({"loss": 1.0 / (number + 1), "accuracy": 0.5, "lr": 0.1, "norm": 2.0, "epoch": number})


class Watch(threading.Thread):
    """Measures the host while all trials report."""

    def __init__(self, home: str, trials: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self.home, self.trials, self.seconds = home, trials, seconds
        self.found: dict[str, float] = {}

    def run(self) -> None:
        database = os.path.join(self.home, "tuner.db")
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as db:
            newest = db.execute("select max(id) from experiment").fetchone()[0]
            while self._reporting(db, newest)[0] < self.trials:
                time.sleep(0.2)
            time.sleep(1.0)
            host = self._host()
            helpers = len([1 for name in peers.workers(self.home) if name not in OURS])
            cpu, count, at = sum(host.cpu_times()[:2]), self._reporting(db, newest)[1], time.monotonic()
            time.sleep(self.seconds)
            used, took = sum(host.cpu_times()[:2]) - cpu, time.monotonic() - at
            self.found = {
                "cpu_percent": 100 * used / took,
                "reports_per_s": (self._reporting(db, newest)[1] - count) / took,
                "helpers": helpers / self.trials,
            }

    @staticmethod
    def _reporting(db: sqlite3.Connection, experiment: int) -> tuple[int, int]:
        """Return (number of trials that have reported, number of reports)."""
        query = "select count(distinct trial_number), count(*) from event where experiment_id = ? and kind = 'reported'"
        trials, reports = db.execute(query, (experiment,)).fetchone()
        return trials, reports

    def _host(self) -> psutil.Process:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if "ray::Host" in "".join(process.cmdline()) and process.environ().get("TUNER_HOME") == self.home:
                    return process
        raise RuntimeError("there is no driver host")


def ours(trials: int, rate: float, seconds: float, milestones: bool) -> dict[str, float]:
    import tuner

    # It requires so many samples that it decides at each report but never stops a trial.
    scheduler = {"type": "median", "grace_period": 1, "min_samples_required": 1000} if milestones else "fifo"
    with tempfile.TemporaryDirectory() as home:
        os.environ["TUNER_HOME"] = home
        pace = trials / rate
        watch: list[Watch] = []

        def begin() -> None:
            watch.append(Watch(home, trials, seconds))
            watch[0].start()

        timer = threading.Timer(5.0, begin)
        timer.start()
        result = tuner.run(
            trial,
            {"reports": int((seconds + 20) / pace), "pace_s": pace},
            metric="loss",
            mode="min",
            num_samples=trials,
            resources_per_worker={"CPU": 1 / trials},
            scheduler=scheduler,
            search_alg="random",
            executor="ray",
            verbose=0,
        )
        assert result.state == "completed", result.error
        watch[0].join()
    return watch[0].found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--no-peer", action="store_true")
    arguments = parser.parse_args()
    load = (arguments.trials, arguments.rate, arguments.seconds)
    at, between = ours(*load, milestones=True), ours(*load, milestones=False)
    row: dict[str, Any] = {
        "benchmark": "driver_load",
        "trials": arguments.trials,
        "milestones_cpu_percent": at["cpu_percent"],
        "milestones_reports_per_s": at["reports_per_s"],
        "between_cpu_percent": between["cpu_percent"],
        "between_reports_per_s": between["reports_per_s"],
        "helpers": max(at["helpers"], between["helpers"]),
    }
    if not arguments.no_peer:
        peer = peers.measure("tune_load", trials=load[0], rate=int(load[1]), seconds=int(load[2]))
        row |= {f"ray_tune_{name}": value for name, value in peer.items()}
        row["ray_train_helpers"] = peers.measure("train_helpers")["helpers"]
    print(json.dumps({name: round(value, 2) if isinstance(value, float) else value for name, value in row.items()}))


if __name__ == "__main__":
    main()
