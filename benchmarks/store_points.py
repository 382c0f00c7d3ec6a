"""Measure the store: a durable commit of one report, points per second, and reading a log back. Prints one JSON line.

    python -m benchmarks.store_points [--url URL] [--seconds 3]

The floor is measured in the same run: a commit of one row into one table, with sqlite3 alone.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

from tuner.domain.batch import Batch
from tuner.domain.decisions import Start
from tuner.domain.events import Reported
from tuner.domain.experiment import Objective, Spec
from tuner.domain.states import TrialState
from tuner.domain.trial import Segment, Trial
from tuner.store import Store

TRIALS = 8
METRICS = {"loss": 0.3, "accuracy": 0.9, "lr": 0.01, "grad_norm": 1.5}


class Load:
    """An experiment with `TRIALS` trials that report in turn."""

    def __init__(self, store: Store) -> None:
        self.store = store
        spec = Spec(name="benchmark", space={}, objectives=(Objective("accuracy", "max"),), entrypoint="module:train")
        self.experiment = store.experiments.create(spec).id
        self.epoch = store.drivers.claim(self.experiment, "benchmark", 3600, time.time())
        self.trials = [Trial(number, {"lr": 0.1}, TrialState.RUNNING) for number in range(TRIALS)]
        for trial in self.trials:
            trial.segments.append(Segment(1, "start", trial.params, 0, None))
        starts = [
            (1 + trial.number, Start(reason="the limit on concurrent trials allows one more", number=trial.number))
            for trial in self.trials
        ]
        store.drivers.commit(self.experiment, self.epoch, Batch(log=starts, trials=self.trials), time.time())
        self.seq = TRIALS

    def commit(self, reports_each: int, trials: int = TRIALS) -> None:
        """Commit one transaction with this many reports of each of this many trials."""
        log = []
        for trial in self.trials[:trials]:
            for _ in range(reports_each):
                self.seq += 1
                trial.iteration += 1
                trial.last = dict(METRICS)
                log.append((self.seq, self._report(trial)))
        self.store.drivers.commit(self.experiment, self.epoch, Batch(log=log, trials=self.trials[:trials]), time.time())

    def _report(self, trial: Trial) -> Reported:
        number = trial.iteration
        return Reported(
            time=time.time(), trial=trial.number, segment=1, report_no=number, iteration=number, metrics=METRICS
        )


def one_report(load: Load, seconds: float) -> dict[str, float]:
    """Return the milliseconds of a commit with one report."""
    costs = []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        load.commit(1, trials=1)
        costs.append((time.perf_counter() - begin) * 1e3)
    return {"report_ms_p50": statistics.median(costs), "report_ms_p99": statistics.quantiles(costs, n=100)[98]}


def points_per_second(load: Load, seconds: float, reports_each: int) -> tuple[float, float]:
    """Return (points per second, points per second of this process's CPU time, which depends less on other processes)."""
    begin, cpu, points = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - begin < seconds:
        load.commit(reports_each)
        points += TRIALS * reports_each * len(METRICS)
    return points / (time.perf_counter() - begin), points / (time.process_time() - cpu)


def read_back(load: Load) -> float:
    """Return the number of reports per second that a restarted driver reads."""
    begin = time.perf_counter()
    entries = sum(1 for _ in load.store.drivers.load(load.experiment))
    return entries / (time.perf_counter() - begin)


def floor_ms(directory: str, seconds: float) -> float:
    connection = sqlite3.connect(Path(directory) / "floor.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("CREATE TABLE report (id INTEGER PRIMARY KEY, time REAL, metrics TEXT)")
    text, costs = json.dumps(METRICS), []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO report (time, metrics) VALUES (?, ?)", (begin, text))
        connection.execute("COMMIT")
        costs.append((time.perf_counter() - begin) * 1e3)
    connection.close()
    return statistics.median(costs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--url", help="a database for this benchmark; by default an SQLite file in a temporary directory"
    )
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        Store.open(options.url or f"sqlite:///{directory}/tuner.db") as store,
    ):
        store.migrate()
        single, batched = Load(store), Load(store)
        result: dict[str, object] = {
            "benchmark": "store_points",
            "database": store.backend,
            "trials": TRIALS,
            "metrics": len(METRICS),
        }
        result |= one_report(single, options.seconds)
        result["floor_ms_p50"] = floor_ms(directory, options.seconds / 3)
        result["points_per_s_8_reports_a_batch"], _ = points_per_second(Load(store), options.seconds, 1)
        result["points_per_s"], result["points_per_cpu_s"] = points_per_second(batched, options.seconds, 32)
        result["entries_read_per_s"] = read_back(batched)
    print(json.dumps({name: round(value, 3) if isinstance(value, float) else value for name, value in result.items()}))


if __name__ == "__main__":
    main()
