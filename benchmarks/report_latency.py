"""Measure what tuner.report costs the training thread, at milestones and between them. Prints one JSON line.

    python -m benchmarks.report_latency [--reports 20000] [--milestones 1000]

Between milestones it fills a buffer. At a milestone it waits until the report is in the database and the scheduler has
answered. There are three floors, measured in the same run:

- `floor_p50_ms`: a call to a Ray actor that commits one row to SQLite
- `raw_p50_ms`: a round trip over a raw socket, plus a commit of one row. The target is a verdict within twice this
- `raw_transaction_p50_ms`: a round trip over a raw socket, plus the transaction with which the driver stores such a report,
  carried out in bare sqlite3 (`benchmarks.verdict_floor`)
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile

from benchmarks import peers
from benchmarks.report_trial import MILESTONES, search, trial
from benchmarks.verdict_floor import transaction_s


def run(reports: int, milestones: bool) -> dict[str, float]:
    scheduler = MILESTONES if milestones else "fifo"
    result = search(trial, {"reports": reports, "work_s": 0.0005}, "ray", scheduler)
    assert result.best_trial is not None
    last = result.best_trial.metrics
    return {name: last[name] for name in ("p50", "p99", "p999")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--reports", type=int, default=20_000)
    parser.add_argument("--milestones", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["TUNER_HOME"] = home
        between = run(arguments.reports, milestones=False)
        at = run(arguments.milestones, milestones=True)
    floor = peers.measure("durable_reports", repeats=arguments.milestones)["report_s"]
    raw = peers.measure("socket_reports", repeats=arguments.milestones)
    transaction = transaction_s(arguments.milestones)
    row = {
        "benchmark": "report_latency",
        "between_p50_us": between["p50"] * 1e6,
        "between_p99_us": between["p99"] * 1e6,
        "between_p999_us": between["p999"] * 1e6,
        "verdict_p50_ms": at["p50"] * 1e3,
        "verdict_p99_ms": at["p99"] * 1e3,
        "floor_p50_ms": floor * 1e3,
        "verdict_over_floor": at["p50"] / floor,
        "raw_round_trip_p50_ms": raw["round_trip_s"] * 1e3,
        "raw_commit_p50_ms": raw["commit_s"] * 1e3,
        "raw_p50_ms": sum(raw.values()) * 1e3,
        "verdict_over_raw": at["p50"] / sum(raw.values()),
        "transaction_p50_ms": transaction * 1e3,
        "raw_transaction_p50_ms": (raw["round_trip_s"] + transaction) * 1e3,
        "verdict_over_raw_transaction": at["p50"] / (raw["round_trip_s"] + transaction),
    }
    print(json.dumps({name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}))


if __name__ == "__main__":
    main()
