"""Measure how long a driver takes to read and fold a long log: 100 trials under ASHA, 10^6 reports with two metrics, in SQLite.

This is what a restart costs, and why there are no snapshots of the folded state.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from tuner.domain import events as e
from tuner.domain.batch import Batch, Entry
from tuner.domain.experiment import Limits, Objective, Spec
from tuner.driver.assemble import assemble
from tuner.driver.core import Core
from tuner.space import Space
from tuner.store import Store

TRIALS = 100
BATCH = 10_000


def a_spec(reports: int) -> Spec:
    return Spec(
        name="fold",
        space={"lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1}},
        objectives=(Objective("loss", "min"),),
        entrypoint="module:train",
        num_samples=TRIALS,
        search={"type": "random"},
        scheduler={"type": "asha", "max_t": reports // TRIALS + 1},
        limits=Limits(max_concurrent_trials=TRIALS),
    )


def new_core(spec: Spec) -> Core:
    return assemble(spec, Space.from_json(spec.space))


def write(store: Store, spec: Spec, reports: int) -> int:
    """Store an experiment whose trials run and have made this many reports in all. Return its id."""
    made = store.experiments.create(spec, now=0.0)
    epoch = store.drivers.claim(made.id, "benchmark", 1e9, 0.0)
    core = new_core(spec)
    log = core.handle(e.DriverStarted(time=0.0, epoch=epoch)).log
    for number in range(TRIALS):
        log += core.handle(e.SegmentStarted(time=0.0, trial=number, segment=1)).log
    store.drivers.commit(made.id, epoch, Batch(log=log, trials=list(core.trials), state=core.state), 0.0)
    rows: list[Entry] = []
    for index in range(reports):
        number, count = index % TRIALS, index // TRIALS + 1
        metrics = {"loss": 1.0 / count + number, "accuracy": 1.0 - 1.0 / count}
        rows.append(
            (
                len(log) + 1 + index,
                e.Reported(
                    time=float(count), trial=number, segment=1, report_no=count, iteration=count, metrics=metrics
                ),
            )
        )
        if len(rows) == BATCH:
            store.drivers.commit(made.id, epoch, Batch(log=rows), float(count))
            rows = []
    return made.id


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", type=int, nargs="?", default=1_000_000)
    reports = parser.parse_args().reports
    spec = a_spec(reports)
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{Path(folder) / 'tuner.db'}") as store:
        store.migrate()
        experiment = write(store, spec, reports)
        core, entries = new_core(spec), 0
        begin = time.perf_counter()
        for seq, entry in store.drivers.load(experiment):
            core.fold(seq, entry)
            entries += 1
        seconds = time.perf_counter() - begin
        assert sum(trial.reports for trial in core.trials) == reports // BATCH * BATCH
    found = {"benchmark": "fold", "reports": reports, "events": entries}
    print(json.dumps({**found, "seconds": round(seconds, 2), "events_per_second": round(entries / seconds)}))


if __name__ == "__main__":
    main()
