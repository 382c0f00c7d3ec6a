"""Measure what one decision of the freeze-thaw scheduler costs, without refits. Prints one JSON line.

    python benchmarks/freeze_thaw_decisions.py [--trials 500] [--parameters 8] [--decisions 100]

A decision is a report at a level with all that follows: the choice of the trial that trains next and, if it is another one, of
the trial that gets the free worker. Milliseconds of CPU time, so that other processes on the machine do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import time

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 (after the number of threads is set)

from tuner.domain.decisions import Pause, Start  # noqa: E402
from tuner.domain.experiment import Objective  # noqa: E402
from tuner.domain.states import TrialState  # noqa: E402
from tuner.domain.trial import Population, Trial  # noqa: E402
from tuner.schedulers.base import SchedulerContext, TrialReported, TrialStarted  # noqa: E402
from tuner.schedulers.freeze_thaw.scheduler import FreezeThawScheduler  # noqa: E402
from tuner.space import Space, uniform  # noqa: E402

WORKERS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--parameters", type=int, default=8)
    parser.add_argument("--decisions", type=int, default=100)
    args = parser.parse_args()

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
            trial=trial.number, iteration=trial.iteration, t=trial.t, score=score, metrics={}, time=0.0
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


if __name__ == "__main__":
    main()
