"""Measure what one report costs the driver's core under ASHA, and how that grows with the number of trials.

    python benchmarks/asha_cost.py [--trials 100000]

Runs one search with random configurations through the real core, event by event, without storing anything. It times
`Core.handle` for every report: this folds the report, ranks it at its rung, decides, and creates the log entries. Prints
one line of JSON. Times are CPU time in microseconds. Each is the median over the blocks of a hundred reports that were made when
about the given number of trials existed.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections import deque
from collections.abc import Sequence

from tuner.domain import events as e
from tuner.domain.experiment import Limits, Objective, Spec
from tuner.domain.segments import SegmentRef
from tuner.driver.assemble import assemble
from tuner.driver.core import Core
from tuner.driver.core.actions import RunSegment
from tuner.space import Space, loguniform, uniform

BLOCK = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--small", type=int, default=1_000)
    trials, small = (args := parser.parse_args()).trials, args.small
    if small < (least := 2 * BLOCK) or trials < small:
        parser.error(f"expected at least {least} --small trials and as many --trials, got {small} and {trials}")
    blocks = measure(trials)
    at_small, at_large = near(blocks, small), near(blocks, trials)
    print(
        json.dumps(
            {
                "what": "core cost per report, ASHA",
                "trials": trials,
                f"us_at_{small}": round(at_small, 2),
                f"us_at_{trials}": round(at_large, 2),
                "ratio": round(at_large / at_small, 3),
                "bar": {"us": 50, "ratio": 1.5},
                "stretch": {"us": 20},
                "ok": at_large <= 50 and at_large <= 1.5 * at_small,
            }
        )
    )


def near(blocks: list[tuple[int, float]], trials: int) -> float:
    """Return the median over the blocks that ended with about this many trials, within a tenth."""
    return statistics.median(us for count, us in blocks if 0.9 * trials <= count <= 1.1 * trials)


def measure(trials: int) -> list[tuple[int, float]]:
    """Return (trials that exist, microseconds per report) for each block of reports."""
    space = Space({"lr": loguniform(1e-5, 1e-1), "momentum": uniform(0.0, 0.99)})
    spec = Spec(
        name="cost",
        space=space.to_json(),
        objectives=(Objective("accuracy", "max"),),
        num_samples=trials,
        max_t=27,
        scheduler={"type": "asha", "reduction_factor": 3},
        search={"type": "random"},
        limits=Limits(max_concurrent_trials=16),
    )
    core = assemble(spec, space)
    rng = random.Random(0)
    running: deque[tuple[int, int]] = deque()
    blocks: list[tuple[int, float]] = []
    spent, count, now = 0.0, 0, 0.0
    start(core, core.handle(e.DriverStarted(time=now, epoch=1)).actions, running, now)
    gc.disable()
    while running and not core.ended:
        trial, segment = running.popleft()
        now += 1.0
        made = core.trials[trial].segments[-1].report_no + 1
        event = e.Reported(
            time=now, trial=trial, segment=segment, report_no=made, iteration=made, metrics={"accuracy": rng.random()}
        )
        began = time.thread_time()
        core.handle(event)
        verdict = core.verdict(SegmentRef(trial, segment))
        spent += time.thread_time() - began
        count += 1
        if count == BLOCK:
            blocks.append((len(core.trials), spent / BLOCK * 1e6))
            spent, count = 0.0, 0
        if verdict.action == "continue":
            running.append((trial, segment))
        else:
            out = core.handle(e.SegmentEnded(time=now, trial=trial, segment=segment, outcome="left"))
            start(core, out.actions, running, now)
    gc.enable()
    return blocks


def start(core: Core, actions: Sequence[object], running: deque[tuple[int, int]], now: float) -> None:
    for action in actions:
        if isinstance(action, RunSegment):
            core.first_milestone(action.segment)
            core.handle(e.SegmentStarted(time=now, trial=action.segment.trial, segment=action.segment.ordinal))
            running.append(action.segment)


if __name__ == "__main__":
    main()
