"""Post many equal experiments to a service at once, and measure how evenly they share its cluster, and what that costs.

    python -m benchmarks.fairness [--experiments 200] [--trials 4] [--steps 2]

Prints one JSON line. Each trial makes `--steps` reports, a tenth of a second apart, each with a checkpoint. `jain` is Jain's
index of the number of ended trials of each experiment, at the moment when half of all trials have ended: 1 if the numbers are
equal, 1/n if one experiment has had all trials. `jain_hours` is the index of the CPU hours that each experiment has held by
then. For trials of 0.2 s it means little, because a trial that starts a new process holds it ten times as long; `--steps 20`
makes trials of two seconds. `first_trials_s` is the time from the first post until every experiment has had a trial,
`driver_cpu` the CPU time of the driver host in cores over the whole run, and `driver_mb` the most memory that it used.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.services import SLOW, Service, host_of

LOOK_S = 1.0
DEADLINE_S = 1500.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", type=int, default=200)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tuner-fair-") as folder:
        service = Service(Path(folder), f"sqlite:///{folder}/tuner.db")
        try:
            service.start()
            print(json.dumps(measure(service, options.experiments, options.trials, options.steps)), flush=True)
        finally:
            service.clean_up()


def measure(service: Service, experiments: int, trials: int, steps: int) -> dict[str, Any]:
    spec = {
        **SLOW,
        "num_samples": trials,
        "space": {**SLOW["space"], "steps": {"type": "const", "value": steps}},
        "scaling": {"resources_per_worker": {"CPU": 0.5}},
        "limits": {},
    }
    host = host_of(service.home)
    cpu, began = _cpu(host), time.monotonic()
    for number in range(experiments):
        service.post({**spec, "name": f"equal {number}", "seed": number})
    posted_s = time.monotonic() - began
    first_s: float | None = None
    shares: list[float] = []
    hours: list[float] = []
    memory = 0.0
    while time.monotonic() < began + DEADLINE_S:
        found = service.get("/experiments?page_size=1000")["items"]
        memory = max(memory, host.memory_info().rss / 2**20)
        if first_s is None and all(one["counts"]["completed"] for one in found):
            first_s = time.monotonic() - began
        ended = sum(one["counts"]["completed"] for one in found)
        if not shares and ended >= experiments * trials / 2:
            shares = [float(one["counts"]["completed"]) for one in found]
            hours = [float(one["cpu_hours"]) for one in found]
        if all(one["ended_at"] for one in found):
            break
        time.sleep(LOOK_S)
    wall = time.monotonic() - began
    return {
        "what": "fairness",
        "experiments": experiments,
        "trials": experiments * trials,
        "ended": ended,
        "steps": steps,
        "jain": round(jain(shares), 4),
        "jain_hours": round(jain(hours), 4),
        "first_trials_s": None if first_s is None else round(first_s, 1),
        "posted_s": round(posted_s, 1),
        "wall_s": round(wall, 1),
        "driver_cpu": round((_cpu(host) - cpu) / wall, 3),
        "driver_mb": round(memory, 1),
    }


def jain(values: Sequence[float]) -> float:
    """Return Jain's fairness index: the square of the sum over n times the sum of the squares."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
