"""Measure how long the next trial waits if the last checkpoint of a trial takes seconds to upload. Prints one JSON line.

    python -m benchmarks.uploads [--delay 4] [--trials 4]

Trials of one process run one after the other, without Ray. Each saves one checkpoint, whose upload takes `delay` seconds.
`gap_s` is the time from a trial's last report to the first line of the next trial's function. The same search runs a second
time with segments that wait for their uploads, which is how tuner worked before (`waiting`). `search_s` is the time from the
first line of the first trial until `tuner.run` returns: it waits for the last upload in both cases.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.slow_storage import SlowStorage


def train(config: dict[str, Any]) -> None:
    entered = time.time()
    import tuner
    from tests import slow_storage
    from tuner.trials.runtime.sending import uploads

    slow_storage.install()
    if config["waiting"]:
        uploads.LATE_AFTER_S = None  # type: ignore[assignment]
    at = time.time()
    save = lambda folder: Path(folder, "weights").write_bytes(b"w" * 1000)  # noqa: E731
    tuner.report({"loss": config["x"], "entered": entered, "at": at}, checkpoint=save)


def measure(slow: SlowStorage, trials: int, waiting: bool) -> dict[str, float]:
    import tuner

    result = tuner.run(
        train,
        {"x": tuner.uniform(0, 1), "waiting": waiting},
        metric="loss",
        mode="min",
        num_samples=trials + 1,
        scheduler="fifo",
        search_alg="random",
        max_concurrent_trials=1,
        executor="local",
        storage=slow.uri,
        verbose=0,
    )
    ended = time.time()
    assert result.state == "completed", result.error
    assert result.best_checkpoint is not None
    rows = [trial.history[-1] for trial in result.trials]
    warm = rows[1:]  # the first one begins with a cold process
    gaps = [after["entered"] - before["at"] for before, after in pairwise(warm)]
    return {
        "gap_s": round(statistics.median(gaps), 3),
        "max_gap_s": round(max(gaps), 3),
        "search_s": round(ended - rows[0]["entered"], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay", type=float, default=4.0)
    parser.add_argument("--trials", type=int, default=4)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    os.environ.setdefault("TUNER_HOME", str(folder / "home"))
    slow = SlowStorage(folder / "slow")
    slow.delay(arguments.delay)
    row = {
        "benchmark": "uploads",
        "delay_s": arguments.delay,
        "trials": arguments.trials,
        "load": round(os.getloadavg()[0], 1),
        "late": measure(slow, arguments.trials, waiting=False),
        "waiting": measure(slow, arguments.trials, waiting=True),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
