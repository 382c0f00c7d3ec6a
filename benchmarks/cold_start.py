"""Measure the time from `tuner.run` to the first report of a trial on a machine without Ray. Prints one JSON line.

    python -m benchmarks.cold_start [--ranks 2] [--rounds 5]

The peer is bare Ray: `ray.init`, a placement group, and actors that import torch and form a process group. Both run alternately,
each in a fresh process. Both clocks start before Ray is imported, ours after `import tuner`.

`phases` are the seconds that each phase of tuner takes, in order, up to the first report. `cpu_s` is the CPU time of the script
and all processes that it has started, up to the first report. `after_failure_s` is the time from the error of a trial to the
first report of the next one, whose processes are new.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks import peers

PHASES = (
    "create the experiment",
    "import Ray",
    "start GCS and raylet",
    "connect, first workers",
    "driver host",
    "drive",
    "group",
    "first report",
)


def trial(config: dict[str, Any]) -> None:
    """Report the sum over all ranks, the time and the CPU seconds so far. Every second trial fails."""
    import tuner
    from benchmarks import peers

    context = tuner.get_context()
    if context.trial_number % 2 == 1:
        raise RuntimeError("a bug")
    world = 1.0
    if context.world_size > 1:
        import torch
        import torch.distributed as dist

        one = torch.ones(1)
        dist.all_reduce(one)
        world = one.item()
    now = time.time()
    cpu_s = (
        peers.cpu_of_home(os.environ["TUNER_HOME"]) if context.trial_number == 0 and context.world_rank == 0 else 0.0
    )
    tuner.report({"loss": 1.0, "world": world, "at": now, "cpu_s": cpu_s})


def ours(ranks: int, trials: int = 5) -> dict[str, Any]:
    """Return the seconds of each phase, in this process, which must not have used Ray."""
    import tuner

    run = tuner.run
    marks: dict[str, float] = {}
    from tuner.sdk import driving
    from tuner.sdk import run as module

    def mark(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def marked(*args: Any, **options: Any) -> Any:
            found = function(*args, **options)
            marks.setdefault(name, time.time())
            return found

        return marked

    drive_on_ray = driving.drive_on_ray

    def driven(*args: Any, **options: Any) -> None:
        from ray._private.node import Node

        from tuner.hosts.scripts import kept

        marks["import Ray"] = time.time()
        Node.__init__ = mark("start GCS and raylet", Node.__init__)
        kept.connect = mark("connect, first workers", kept.connect)  # type: ignore[attr-defined]
        drive_on_ray(*args, **options)

    driving.drive_on_ray = driven
    create = module.create_from_python  # type: ignore[attr-defined]
    module.create_from_python = mark("create the experiment", create)  # type: ignore[attr-defined]
    driving._wait_for_start = mark("driver host", driving._wait_for_start)
    begun = time.time()
    result = run(
        trial,
        {"x": tuner.uniform(0, 1)},
        metric="loss",
        mode="min",
        num_samples=trials,
        num_workers=ranks,
        scheduler="fifo",
        search_alg="random",
        executor="ray",
        max_concurrent_trials=1,
        verbose=0,
    )
    with sqlite3.connect(os.path.join(os.environ["TUNER_HOME"], "tuner.db")) as db:
        segments = list(db.execute("select created_at, started_at, ended_at, outcome from segment order by id"))
    first = result.trials[0].metrics
    marks |= {"drive": segments[0][0], "group": segments[0][1], "first report": first["at"]}
    phases, since = {}, begun
    for phase in PHASES:
        phases[phase], since = marks[phase] - since, marks[phase]
    reports = {found.number: found.metrics["at"] for found in result.trials if found.number % 2 == 0}
    after = [reports[number + 1] - segments[number][2] for number in range(1, trials - 1, 2)]
    return {
        "first_report_s": first["at"] - begun,
        "cpu_s": first["cpu_s"],
        "group_s": phases["group"],
        "after_failure_s": statistics.median(after),
        "phases": phases,
    }


def fresh(ranks: int) -> dict[str, Any]:
    """Measure ours in a fresh process with an empty home."""
    with tempfile.TemporaryDirectory() as home:
        code = f"import json; from benchmarks import cold_start; print(json.dumps(cold_start.ours({ranks})))"
        environment = {**os.environ, "TUNER_HOME": home}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
        )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def bare(ranks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as home:
        os.environ["TUNER_HOME"] = home  # by which the processes are recognized
        return peers.measure("bare_cold", ranks=ranks)


def median(rows: list[dict[str, Any]], name: str) -> float:
    return round(statistics.median(row[name] for row in rows), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    for number in range(arguments.rounds):
        turns: list[Callable[[], None]] = [
            lambda: rows.append(fresh(arguments.ranks)),
            lambda: theirs.append(bare(arguments.ranks)),
        ]
        for turn in reversed(turns) if number % 2 else turns:
            turn()
    found: dict[str, Any] = {
        "benchmark": "cold_start",
        "ranks": arguments.ranks,
        "rounds": arguments.rounds,
        "load": round(os.getloadavg()[0], 1),
        **{name: median(rows, name) for name in ("first_report_s", "cpu_s", "group_s", "after_failure_s")},
        **{f"bare_{name}": median(theirs, name) for name in ("first_report_s", "cpu_s", "group_s")},
    }
    for name in ("first_report_s", "cpu_s", "group_s"):
        ratios = [row[name] / peer[name] for row, peer in zip(rows, theirs, strict=True)]
        found[f"{name.removesuffix('_s')}_over_bare"] = round(statistics.median(ratios), 2)
    found["phases"] = {phase: median([row["phases"] for row in rows], phase) for phase in PHASES}
    found["bare_phases"] = {phase: median([row["phases"] for row in theirs], phase) for phase in theirs[0]["phases"]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
