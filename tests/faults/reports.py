"""Make very many reports, and count them in the database.

python -m tests.faults.reports [--reports 1000000] [--trials 20]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cloudpickle

import tuner
from tests import invariants
from tuner.domain.events import Reported
from tuner.settings import Settings
from tuner.store import Store

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks would import this module, with all that it imports


def value(x: float, step: int) -> float:
    return x + 1.0 / step


def train(config: dict[str, Any]) -> None:
    """Report many times, and write to a file how many reports were accepted."""
    for step in range(1, config["steps"] + 1):
        tuner.report({"loss": value(config["x"], step)})
    Path(config["folder"], str(tuner.get_context().trial_number)).write_text(str(step))


def count(reports: int, trials: int, folder: str) -> int:
    """Run a search that makes this many reports. Check each of them in the database, and return their number."""
    space = {"x": tuner.uniform(0, 1), "steps": reports // trials, "folder": folder}
    options: dict[str, Any] = {
        "metric": "loss",
        "mode": "min",
        "num_samples": trials,
        "scheduler": "fifo",
        "search_alg": "random",
        "verbose": 0,
    }
    result = tuner.run(train, space, executor="local", **options)
    assert result.state == "completed", result.error
    made = {int(path.name): int(path.read_text()) for path in Path(folder).iterdir() if path.name.isdigit()}
    assert made == dict.fromkeys(range(trials), reports // trials)
    found = dict.fromkeys(range(trials), 0)
    with Store.open(Settings.from_env().database_url) as store:
        record = store.experiments.get(result.experiment_id)
        params = {trial.number: trial.params["x"] for trial in store.trials.newest(record.id, trials)}
        for _, entry in store.drivers.load(record.id):
            if isinstance(entry, Reported):
                found[entry.trial] += 1
                assert entry.iteration == found[entry.trial], "in order, and each once"
                assert entry.metrics == {"loss": value(params[entry.trial], entry.iteration)}
        assert found == made
        assert list(invariants.broken(store, record)) == []
    return sum(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reports", type=int, default=1_000_000)
    parser.add_argument("--trials", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tuner-reports-") as folder:
        os.environ["TUNER_HOME"] = os.path.join(folder, "home")
        begun = time.monotonic()
        found = count(options.reports, options.trials, folder)
        print(
            f"{found:,} reports accepted, and as many in the database, in {time.monotonic() - begun:,.0f} s", flush=True
        )
        tuner.shutdown()


if __name__ == "__main__":
    main()
