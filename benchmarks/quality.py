"""How good the default search is, on recorded learning curves in virtual time, beside what most people run today.

    python benchmarks/quality.py [--curves DIR] [--family lcbench|taskset] [--seeds 3] [--workers 4] [--startup 0.05]

DIR holds `curves.py`, whose `problems()` gives what is to be tuned; without --curves it is taken from the environment
variable CURVES, else `../shared/curves` beside the repository. Regret is that of the best value seen so far: 1 is the median
random configuration fully trained, 0 the best known value. Budgets are in full trainings' worth of worker time. Every method
meets the same problems with the same seeds; the interval is that of the mean over problems and seeds (95 %).

Methods: `default` is `tuner.simulate` with nothing said but metric, mode and max_t; `asha` our stopping form over random
configurations; `ray-asha` Ray's AsyncHyperBandScheduler driven directly over the same random configurations as `random`;
`optuna` its TPESampler with its HyperbandPruner. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import heapq
import importlib.util
import json
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 (after the number of threads is set)

import tuner  # noqa: E402

ETA = 3
Report = Callable[[int, float], bool]
"""(report count, value) -> whether the trial goes on."""


def load(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("curves", folder / "curves.py")
    if spec is None or spec.loader is None or not (folder / "curves.py").exists():
        raise SystemExit(f"no curves.py in {folder}: give its folder with --curves")
    module = importlib.util.module_from_spec(spec)
    sys.modules["curves"] = module
    spec.loader.exec_module(module)
    return module


# -- ours --------------------------------------------------------------------------------------------------------------


def simulated(problem: Any, seed: int, args: argparse.Namespace, **options: Any) -> list[tuple[float, float]]:
    known: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def evaluate(config: dict[str, Any], done: int | None) -> Iterator[tuner.Step]:
        key = tuple(config.values())
        if key not in known:
            known[key] = problem.curve(config)
        values, seconds = known[key]
        steps = np.diff(seconds, prepend=0.0)
        for r in range(done or 0, len(values)):
            yield tuner.Step(metrics={"value": float(values[r])}, seconds=float(steps[r]), checkpoint=r + 1)

    space: dict[str, Any] = {}
    for name, (kind, low, high, log) in problem.space.items():
        if kind == "int":
            space[name] = (tuner.lograndint if log else tuner.randint)(int(low), int(high) + 1)
        else:
            space[name] = (tuner.loguniform if log else tuner.uniform)(low, high)
    result = tuner.simulate(
        evaluate,
        space,
        metric="value",
        mode=problem.mode,
        max_t=problem.max_t,
        max_concurrent_trials=args.workers,
        startup_s=args.startup * problem.full_seconds,
        time_budget_s=max(args.budgets) * problem.full_seconds / args.workers,
        seed=seed,
        **options,
    )
    return [(t, metrics["value"]) for t, _, _, metrics in result.history]


# -- theirs, which start and stop trials and no more -------------------------------------------------------------------


class RayASHA:
    """Ray's scheduler, over configurations drawn at random."""

    def __init__(self, problem: Any, seed: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from ray.tune.schedulers import AsyncHyperBandScheduler

        self.problem, self.rng = problem, np.random.default_rng([seed, 1])
        self.scheduler = AsyncHyperBandScheduler(max_t=problem.max_t, grace_period=1, reduction_factor=ETA)
        self.scheduler.set_search_properties("value", problem.mode)
        self.count = 0

    def start(self) -> tuple[dict[str, Any], Report]:
        config = self.problem.sample(self.rng)
        trial = type("Trial", (), {"trial_id": str(self.count)})()
        self.count += 1
        self.scheduler.on_trial_add(None, trial)

        def report(r: int, value: float) -> bool:
            result = {"value": value, "training_iteration": r}
            return bool(self.scheduler.on_trial_result(None, trial, result) == self.scheduler.CONTINUE)

        return config, report


class Random:
    """The same configurations, all trained to the end."""

    def __init__(self, problem: Any, seed: int) -> None:
        self.problem, self.rng = problem, np.random.default_rng([seed, 1])

    def start(self) -> tuple[dict[str, Any], Report]:
        return self.problem.sample(self.rng), lambda r, value: True


class OptunaHyperband:
    def __init__(self, problem: Any, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.problem, self.optuna = problem, optuna
        self.study = optuna.create_study(
            direction="maximize" if problem.mode == "max" else "minimize",
            sampler=optuna.samplers.TPESampler(seed=seed),
            pruner=optuna.pruners.HyperbandPruner(1, problem.max_t, ETA),
        )

    def start(self) -> tuple[dict[str, Any], Report]:
        trial = self.study.ask()
        config: dict[str, Any] = {}
        for name, (kind, low, high, log) in self.problem.space.items():
            suggest = trial.suggest_int if kind == "int" else trial.suggest_float
            config[name] = suggest(
                name, int(low) if kind == "int" else low, int(high) if kind == "int" else high, log=log
            )

        def report(r: int, value: float) -> bool:
            trial.report(value, r)
            if r >= self.problem.max_t:
                self.study.tell(trial, value)
                return False
            if trial.should_prune():
                self.study.tell(trial, state=self.optuna.trial.TrialState.PRUNED)
                return False
            return True

        return config, report


def stopped(problem: Any, method: Any, args: argparse.Namespace) -> list[tuple[float, float]]:
    """Workers that train what a method starts until it says stop."""
    end = max(args.budgets) * problem.full_seconds / args.workers
    order, history = 0, []
    heap: list[tuple[float, int, int, Any]] = []

    def start(now: float) -> None:
        nonlocal order
        config, report = method.start()
        values, seconds = problem.curve(config)
        begin = now + args.startup * problem.full_seconds
        order += 1
        heapq.heappush(heap, (begin + seconds[0], order, 0, (values, seconds, begin, report)))

    for _ in range(args.workers):
        start(0.0)
    while heap and heap[0][0] <= end:
        now, _, r, run = heapq.heappop(heap)
        values, seconds, begin, report = run
        history.append((now, float(values[r])))
        goes_on = report(r + 1, float(values[r]))
        if goes_on and r + 1 < len(values):
            order += 1
            heapq.heappush(heap, (begin + seconds[r + 1], order, r + 1, run))
        else:
            start(now)
    return history


METHODS: dict[str, Callable[[Any, int, argparse.Namespace], list[tuple[float, float]]]] = {
    "default": lambda problem, seed, args: simulated(problem, seed, args),
    "asha": lambda problem, seed, args: simulated(
        problem, seed, args, scheduler={"type": "asha", "reduction_factor": ETA}, search_alg="random"
    ),
    "random": lambda problem, seed, args: stopped(problem, Random(problem, seed), args),
    "ray-asha": lambda problem, seed, args: stopped(problem, RayASHA(problem, seed), args),
    "optuna": lambda problem, seed, args: stopped(problem, OptunaHyperband(problem, seed), args),
}


# -- the whole ---------------------------------------------------------------------------------------------------------


def regrets(problem: Any, history: list[tuple[float, float]], args: argparse.Namespace) -> list[float]:
    best = max if problem.mode == "max" else min
    out = []
    for budget in args.budgets:
        seen = [value for t, value in history if t <= budget * problem.full_seconds / args.workers]
        out.append(float(problem.regret(best(seen))) if seen else 1.0)
    return out


def one(task: tuple[str, int, str, argparse.Namespace]) -> tuple[list[float], float]:
    name, seed, method, args = task
    problem = next(p for p in load(args.curves).problems() if p.name == name)
    begin = time.process_time()
    found = regrets(problem, METHODS[method](problem, seed, args), args)
    return found, time.process_time() - begin


def main() -> None:
    beside = Path(__file__).resolve().parents[2] / "shared" / "curves"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, default=Path(os.environ.get("CURVES", beside)))
    parser.add_argument("--family", default="", help="problems whose names begin so")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--budgets", nargs="+", type=float, default=[2.5, 5, 10, 20, 40])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--startup", type=float, default=0.0, help="cost of a start or resume, as a share of a training"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    args = parser.parse_args()
    names = [p.name for p in load(args.curves).problems() if p.name.startswith(args.family)]
    if not names:
        raise SystemExit(f"no problem's name begins with {args.family!r}")
    tasks = [(name, seed, method, args) for method in args.methods for name in names for seed in range(args.seeds)]
    with ProcessPoolExecutor(args.jobs) as pool:
        results = list(pool.map(one, tasks))

    table: dict[str, dict[str, Any]] = {}
    for method in args.methods:
        for family in sorted({name.split("/")[0] for name in names}):
            mine = [r for (n, _, m, _), r in zip(tasks, results, strict=True) if m == method and n.startswith(family)]
            columns = list(zip(*(found for found, _ in mine), strict=True))
            table[f"{family} {method}"] = {
                "mean": [round(statistics.mean(c), 4) for c in columns],
                "interval": [round(interval(c), 4) for c in columns],
                "cpu_s": round(statistics.mean(cpu for _, cpu in mine), 2),
            }
    show(table, args)
    print(
        json.dumps(
            {"budgets": args.budgets, "workers": args.workers, "startup": args.startup, "seeds": args.seeds, **table}
        )
    )


def interval(values: tuple[float, ...]) -> float:
    return 1.96 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def show(table: dict[str, dict[str, Any]], args: argparse.Namespace) -> None:
    print(
        f"mean regret ± 95 %, {args.workers} workers, {args.seeds} seeds, a start costs {args.startup:.0%} of a training"
    )
    print(f"{'full trainings':22s}" + "".join(f"{budget:>15g}" for budget in args.budgets) + "    cpu s a search")
    for name, row in table.items():
        cells = "".join(f"{m:>8.3f} ± {i:.3f}" for m, i in zip(row["mean"], row["interval"], strict=True))
        print(f"{name:22s}{cells}{row['cpu_s']:>12.1f}")


if __name__ == "__main__":
    main()
