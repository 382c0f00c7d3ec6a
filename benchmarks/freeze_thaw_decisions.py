"""Measure what one decision of the freeze-thaw scheduler costs, without refits. Prints one JSON line.

    python benchmarks/freeze_thaw_decisions.py [--trials 500] [--parameters 8] [--decisions 100]

A decision is the handling of a report at a level: the choice of the trial that trains next and, if it is another one, of the
trial that gets the free worker. The unit is milliseconds of CPU time, so that other processes on the machine do not count.

    python benchmarks/freeze_thaw_decisions.py --report-ms 1 [--reports 400]

compares the CPU seconds of the scheduler in a whole search, including fits, with those of the training. The search runs in
virtual time, and each report takes the given time.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 (after the number of threads is set)

import tuner  # noqa: E402
from tuner.domain.decisions import Pause, Start  # noqa: E402
from tuner.domain.experiment import Objective  # noqa: E402
from tuner.domain.states import TrialState  # noqa: E402
from tuner.domain.trial import Population, Trial  # noqa: E402
from tuner.schedulers.base import SchedulerContext, TrialReported, TrialStarted  # noqa: E402
from tuner.schedulers.freeze_thaw.scheduler import FreezeThawScheduler  # noqa: E402
from tuner.space import Space, uniform  # noqa: E402

WORKERS = 4
MAX_T = 9  # of a whole search
UNIT_S = 60.0  # seconds in a unit of time_attr: with short trials, the model would not make all decisions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--parameters", type=int, default=8)
    parser.add_argument("--decisions", type=int, default=100)
    parser.add_argument("--report-ms", type=float, help="measure a whole search whose reports take this long")
    parser.add_argument("--reports", type=int, default=400, help="of that search")
    args = parser.parse_args()
    if args.report_ms is not None:
        print(json.dumps(whole_search(args.report_ms / 1000, args.reports)))
        return

    space = Space.from_python({f"p{i}": uniform(0, 1) for i in range(args.parameters)})
    scheduler, trials, g = FreezeThawScheduler(), Population(), np.random.default_rng(0)
    scheduler.setup(SchedulerContext(Objective("m", "max"), "training_iteration", 51, None, 0, space))
    quality = g.random(args.parameters)

    def start() -> Trial:
        number = len(trials)
        params = {f"p{i}": float(g.random()) for i in range(args.parameters)}
        trials.add(Trial(number, params, state=TrialState.RUNNING))
        scheduler.record(TrialStarted(trial=number), trials)
        return trials[number]

    def report(trial: Trial) -> TrialReported:
        level = scheduler.milestone(trial, trials)
        trial.t, trial.iteration = float(level or 51), int(level or 51)
        far = sum(q * (p - 0.3) ** 2 for q, p in zip(quality, trial.params.values(), strict=True))
        score = (1 - far) * (1 - 1 / (1 + trial.t)) + 0.02 * float(g.normal())
        fact = TrialReported(
            trial=trial.number, iteration=trial.iteration, t=trial.t, score=score, metrics={}, time=UNIT_S * trial.t
        )
        scheduler.record(fact, trials)
        return fact

    def pause(trial: Trial) -> None:
        trials.move(trial.number, TrialState.PAUSED)
        scheduler.enacted(Pause(trial=trial.number, reason=""), trials)

    for _ in range(args.trials - WORKERS):
        trial = start()
        for _ in range(int(g.geometric(0.5))):
            if scheduler.milestone(trial, trials) is not None:
                report(trial)
        pause(trial)
    running = [start() for _ in range(WORKERS)]
    took = []
    for k in range(args.decisions):
        trial = running[k % WORKERS]
        begin = time.process_time()
        decided = scheduler.decide(report(trial), trials)
        if decided:
            pause(trial)
            scheduler.choose(trials, True)
        took.append(1000 * (time.process_time() - begin))
        if decided:
            scheduler.enacted(Start(reason=""), trials)
            running[k % WORKERS] = start()
    print(
        json.dumps(
            {
                "trials": args.trials,
                "results": len(scheduler.state.results),
                "median_ms": round(float(np.median(took)), 2),
                "p95_ms": round(float(np.quantile(took, 0.95)), 2),
            }
        )
    )


def whole_search(seconds: float, reports: int) -> dict[str, float]:
    """Return the training of a search and the CPU that its scheduler takes, in seconds."""
    spent = dict.fromkeys(("milestone", "record", "enacted", "decide", "choose", "finished", "fit_request", "fit"), 0.0)

    def timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            begin = time.process_time()
            try:
                return method(*args, **more)
            finally:
                spent[name] += time.process_time() - begin

        return call

    def evaluate(config: dict[str, Any], done: int | None) -> Iterator[tuner.Step]:
        far = sum((config[f"p{i}"] - 0.3) ** 2 for i in range(4))
        for t in range((done or 0) + 1, MAX_T + 1):
            yield tuner.Step(metrics={"loss": far + 1 / t}, seconds=seconds, checkpoint=t)

    scheduler = FreezeThawScheduler(budget=reports / MAX_T)
    for name in spent:
        setattr(scheduler, name, timed(name, getattr(scheduler, name)))
    space = {f"p{i}": tuner.uniform(0, 1) for i in range(4)}
    tuner.simulate(evaluate, space, metric="loss", mode="min", max_t=MAX_T, num_samples=reports, scheduler=scheduler)
    return {
        "reports": reports,
        "report_ms": 1000 * seconds,
        "training_s": round(reports * seconds, 3),
        "scheduler_s": round(sum(spent.values()), 3),
        **{f"{name}_s": round(took, 3) for name, took in spent.items() if took > 0.01},
    }


if __name__ == "__main__":
    main()
