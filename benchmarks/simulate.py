"""Measure the time of the core for many short trials in virtual time. Prints one JSON line.

python -m benchmarks.simulate [--trials 10000] [--scheduler asha]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import tuner


def curve(config: dict[str, Any], checkpoint: Any) -> Iterator[tuner.Step]:
    """Yield 27 reports that fall towards x."""
    for step in range((checkpoint or 0) + 1, 28):
        yield tuner.Step({"loss": config["x"] + 1 / step}, 1.0, step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--scheduler", default="asha")
    arguments = parser.parse_args()
    row: dict[str, Any] = {"benchmark": "simulate", "trials": arguments.trials}
    for name in dict.fromkeys(["fifo", arguments.scheduler]):
        begun = time.process_time()
        result = tuner.simulate(
            curve,
            {"x": tuner.uniform(0, 1), "lr": tuner.loguniform(1e-4, 1)},
            metric="loss",
            mode="min",
            num_samples=arguments.trials,
            max_t=27,
            scheduler=name,
            search_alg="random",
        )
        seconds = time.process_time() - begun
        reports = len(result.history)
        row[name] = {"cpu_s": round(seconds, 2), "reports": reports, "us_per_report": round(seconds / reports * 1e6, 1)}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
