"""Compare checkpoint.interval_s "auto" with fixed intervals: the time that failures and checkpoints cost, in virtual time.

    python -m benchmarks.checkpoint_interval [--trials 4] [--hours 12] [--seeds 3] [--report 10] [--restart 60]

The core of the driver runs, with its decisions about checkpoints and retries; only the ranks are simulated. Each of the trials
needs --hours of training and reports every --report seconds. Worker groups fail at random. The mean time between
failures and the cost of a checkpoint differ from row to row. "lost" is the share of the groups' time that checkpoints
and repeated training took; restarts do not count. "bound" is the share that the best fixed interval would lose, which
is known only afterwards. Prints one JSON line for each row.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import random
import statistics
from typing import Any, Literal

import tuner
from tuner.domain import events as e
from tuner.domain.experiment import CheckpointPolicy, Limits, Objective, Spec
from tuner.domain.segments import CheckpointInfo, Failure, SegmentRef
from tuner.driver.assemble import assemble
from tuner.driver.core.actions import RunSegment
from tuner.driver.core.state.saving import best_interval
from tuner.space import Space

COSTS_S = (0.5, 10.0, 60.0)
MTBF_H = (0.5, 4.0, 48.0)
FIXED = (60.0, 600.0, 3600.0)
LOST = Failure(kind="system", cause="node_lost", message="its node was lost")

Interval = float | Literal["auto"]


class Simulated:
    """A search whose worker groups fail, in virtual time."""

    def __init__(
        self, interval: Interval, cost_s: float, mtbf_s: float, seed: int, arguments: argparse.Namespace
    ) -> None:
        space = Space.from_python({"x": tuner.uniform(0, 1)})
        reports = int(arguments.hours * 3600 / arguments.report)
        spec = Spec(
            name="interval",
            space=space.to_json(),
            objectives=(Objective("loss", "min"),),
            num_samples=arguments.trials,
            max_t=reports,
            search={"type": "random"},
            scheduler={"type": "fifo"},
            limits=Limits(max_concurrent_trials=arguments.trials, max_system_failures=10**6),
            checkpoint=CheckpointPolicy(interval_s=interval, keep_best=0, at_end=False),
        )
        self.core = assemble(spec, space)
        self.cost_s, self.mtbf_s = cost_s, mtbf_s
        self.report_s, self.restart_s = arguments.report, arguments.restart
        self.rng = random.Random(f"{seed} {cost_s} {mtbf_s}")
        self.order = itertools.count()
        self.due: list[tuple[float, int, str, SegmentRef]] = []
        self.fails_at: dict[SegmentRef, float] = {}
        self.saving: dict[SegmentRef, CheckpointInfo] = {}
        self.trained_s = 0.0  # the groups' time after their starts
        self.useful_s = arguments.trials * reports * self.report_s

    def lost(self) -> float:
        """Run the search, and return the share of the groups' time that was lost."""
        self.feed(e.DriverStarted(time=0.0, epoch=1, slots=1))
        while self.due:
            now, _, what, ref = heapq.heappop(self.due)
            if what == "start":
                self.core.first_milestone(ref)
                self.feed(e.SegmentStarted(time=now, trial=ref.trial, segment=ref.ordinal))
                self.fails_at[ref] = now + self.rng.expovariate(1 / self.mtbf_s)
                self.next(ref, now)
            elif what == "saved":
                info = self.saving.pop(ref)
                self.feed(e.CheckpointSaved(time=now, trial=ref.trial, segment=ref.ordinal, checkpoint=info))
                self.next(ref, now)
            elif what == "fail":
                self.feed(
                    e.SegmentEnded(time=now, trial=ref.trial, segment=ref.ordinal, outcome="failed", failure=LOST)
                )
            else:
                self.report(ref, now)
        assert str(self.core.state) == "completed", self.core.state
        return 1.0 - self.useful_s / self.trained_s

    def report(self, ref: SegmentRef, now: float) -> None:
        segment = self.core.trials[ref.trial].segments[-1]
        count, milestone = segment.report_no + 1, segment.milestone
        iteration = segment.start_iteration + count
        waits = milestone is not None and count >= milestone
        self.feed(
            e.Reported(
                time=now, trial=ref.trial, segment=ref.ordinal, report_no=count, iteration=iteration,
                metrics={"loss": 1.0}, waits=waits,
            )
        )  # fmt: skip
        if waits:
            verdict = self.core.verdict(ref)
            if verdict.action == "stop":
                self.feed(e.SegmentEnded(time=now, trial=ref.trial, segment=ref.ordinal, outcome="left"))
                return
            if verdict.save_checkpoint:
                self.saving[ref] = CheckpointInfo(
                    id=f"{ref} {iteration}", uri="memory:", step=iteration, took_s=self.cost_s
                )
                self.next(ref, now, "saved", self.cost_s)
                return
        self.next(ref, now)

    def next(self, ref: SegmentRef, now: float, what: str = "report", takes_s: float | None = None) -> None:
        """Let the group train until its next report, or save a checkpoint, or fail before that."""
        whole = now + (self.report_s if takes_s is None else takes_s)
        until = min(whole, self.fails_at[ref])
        self.trained_s += until - now
        self.push(until, what if until == whole else "fail", ref)

    def push(self, at: float, what: str, ref: SegmentRef) -> None:
        heapq.heappush(self.due, (at, next(self.order), what, ref))

    def feed(self, event: e.Event) -> None:
        for action in self.core.handle(event).actions:
            if isinstance(action, RunSegment):
                self.push(event.time + self.restart_s, "start", action.segment)


def bound(cost_s: float, mtbf_s: float) -> float:
    """Return the share that the best fixed interval loses, by the exact expectation for exponential failures."""
    interval = best_interval(cost_s, mtbf_s)
    return 1.0 - interval / (mtbf_s * math.expm1((interval + cost_s) / mtbf_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--hours", type=float, default=12.0, help="training of one trial")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--report", type=float, default=10.0, help="seconds from report to report")
    parser.add_argument("--restart", type=float, default=60.0, help="seconds of a start")
    arguments = parser.parse_args()
    for cost_s, hours in itertools.product(COSTS_S, MTBF_H):
        row: dict[str, Any] = {"benchmark": "checkpoint_interval", "cost_s": cost_s, "mtbf_h": hours}
        for interval in (*FIXED, "auto"):
            name = f"lost_{interval if interval == 'auto' else f'{interval:g}_s'}"
            runs = [
                Simulated(interval, cost_s, hours * 3600, seed, arguments).lost() for seed in range(arguments.seeds)
            ]
            row[name] = round(statistics.fmean(runs), 4)
        print(json.dumps({**row, "bound": round(bound(cost_s, hours * 3600), 4)}), flush=True)


if __name__ == "__main__":
    main()
