"""Compare searches with and without repeats of the leading configurations, at equal total cost.

    python -m benchmarks.repeats [--methods fifo asha freeze_thaw] [--noise 0.03 0.1 0.3] [--runs 40] [--trainings 20]

The problems are recorded learning curves. Noise is added to them: the same amount to all reports of a run, so that runs of the
same configuration differ, and a third of it to each report. Its standard deviation is given as a share of the distance from the
best known to the median value.

Both searches of a pair train the same number of reports in all. The first has `--trainings` full trainings and then
`repeats="auto"`. The second has as much training for more configurations instead, and chooses the one with the best report.

The table has the regret of the chosen configuration, by its curve without noise: 0 is the best known value, 1 that of the
median configuration. "Alone" is the first search before its repeats, "more instead" the second one.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import multiprocessing
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import tuner
from benchmarks.intervals import interval
from benchmarks.learning_curves import RECORDED, Problem, load, seed_of
from tuner.driver.virtual import Simulation

JITTER = 1 / 3
"""The noise of each report, as a share of the noise of a run."""
WORKERS = 4
METHODS: dict[str, dict[str, Any]] = {
    "fifo": {"scheduler": "fifo", "search_alg": "random"},
    "tpe": {"scheduler": "fifo", "search_alg": "tpe"},
    "asha": {"scheduler": "asha", "search_alg": "random", "samples": 5},
    "freeze_thaw": {"scheduler": "freeze_thaw"},
}
PROBLEMS = ("mlp/digits", "policy/cartpole", "qlearning/cliff")


class Task(NamedTuple):
    problem: str
    method: str
    noise: float
    run: int
    trainings: float


class Outcome(NamedTuple):
    """The regrets of a pair of searches, and how many repeats the first one made.

    without: the regret of the second search. alone: that of the first one before its repeats.
    """

    task: Task
    without: float
    alone: float
    with_repeats: float
    repeats: int


def pair(task: Task) -> Outcome:
    problem = _problem(task.problem)
    repeated = search(problem, task, task.trainings, "auto")
    reports = len(repeated.history)
    counts = METHODS[task.method]["scheduler"] == "freeze_thaw"
    longer = search(problem, task, (1 if counts else 1.5) * reports / problem.max_t, 0)  # the rest is cut off below
    made = sum(trial.repeat_of is not None for trial in repeated.trials)
    best = max if problem.mode == "max" else min
    _, number = best((metrics["value"], trial) for _, trial, _, metrics in longer.history[:reports])
    searched = [trial for trial in repeated.trials if trial.repeat_of is None and trial.best_value is not None]
    _, first = best((trial.best_value, trial.number) for trial in searched)
    chosen = (longer.configs[number], repeated.configs[first], repeated.best_config)
    without, alone, with_repeats = (regret(problem, config) for config in chosen)
    return Outcome(task, without, alone, with_repeats, made)


@functools.cache
def _problem(name: str) -> Problem:
    return load(RECORDED / f"{name.replace('/', '_')}.npz")


def search(problem: Problem, task: Task, trainings: float, repeats: Any) -> Simulation:
    luck = np.random.default_rng(seed_of(problem.name, task.run))
    noise = task.noise * abs(problem.best - problem.median)

    def evaluate(config: dict[str, Any], checkpoint: tuple[int, float] | None) -> Iterator[tuner.Step]:
        done, of_run = checkpoint or (0, noise * luck.normal())
        values, seconds = problem.curve(config)
        steps = np.diff(seconds, prepend=0.0)
        for r in range(done, len(values)):
            value = values[r] + of_run + JITTER * noise * luck.normal()
            yield tuner.Step(metrics={"value": float(value)}, seconds=float(steps[r]), checkpoint=(r + 1, of_run))

    method = METHODS[task.method]
    counts = method["scheduler"] == "freeze_thaw"
    return tuner.simulate(
        evaluate,
        problem.space,
        metric="value",
        mode=problem.mode,
        max_t=problem.max_t,
        max_concurrent_trials=WORKERS,
        num_samples=200 if counts else math.ceil(trainings * method.get("samples", 1)) + WORKERS,
        budget=trainings if counts else None,
        seed=seed_of(problem.name, task.run),
        repeats=repeats,
        **{name: value for name, value in method.items() if name != "samples"},
    )


def regret(problem: Problem, config: dict[str, Any] | None) -> float:
    """Return the regret of a configuration, by the best value of its whole curve without noise."""
    if config is None:
        return 1.0
    values, _ = problem.curve(config)
    return problem.regret(float(values.max() if problem.mode == "max" else values.min()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["fifo", "asha", "freeze_thaw"], choices=list(METHODS))
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS))
    parser.add_argument("--noise", nargs="+", type=float, default=[0.03, 0.1, 0.3])
    parser.add_argument("--runs", type=int, default=40, help="pairs for each problem")
    parser.add_argument("--trainings", type=float, default=20, help="the cost of a search, in full trainings")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    args = parser.parse_args()
    print(
        f"regret of the chosen configuration after {args.trainings:g} full trainings, {args.runs} pairs for each problem"
    )
    print("| search | noise | alone | more instead | with repeats | difference to alone | to more | repeats made |")
    print("|---|---|---|---|---|---|---|---|")
    with multiprocessing.Pool(args.jobs) as pool:
        for method in args.methods:
            for noise in args.noise:
                pairs = itertools.product(args.problems, range(args.runs))
                tasks = [Task(problem, method, noise, run, args.trainings) for problem, run in pairs]
                show(method, noise, pool.map(pair, tasks, chunksize=1))


def show(method: str, noise: float, outcomes: Sequence[Outcome]) -> None:
    after = [one.with_repeats for one in outcomes]
    columns = [[one.alone for one in outcomes], [one.without for one in outcomes]]
    means = " | ".join(f"{statistics.fmean(values):.3f}" for values in (*columns, after))
    changes = [[b - a for a, b in zip(values, after, strict=True)] for values in columns]
    said = " | ".join(f"{statistics.fmean(change):+.3f} ± {interval(change):.3f}" for change in changes)
    print(
        f"| {method} | {noise:g} | {means} | {said} | {statistics.fmean(one.repeats for one in outcomes):.1f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
