"""Measure what one TPE ask costs at 1,000 finished trials over 10 parameters. Prints one JSON line.

    python benchmarks/tpe_ask.py [--trials 1000] [--parameters 10] [--asks 60]

Each ask follows one more finished trial, as in a search. `rebuild_ms` is the first ask of a new process, which copies every
trial into Optuna's study again. `cpu_median_ms` is CPU time, which other processes on the machine do not affect. `optuna_ms` is
the time of Optuna itself, with one sampler for all asks. The two take turns.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time

import optuna

from tuner.domain.experiment import Objective
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.search import from_json
from tuner.search.base import SearcherContext
from tuner.search.optuna_samplers.study import distribution, to_optuna
from tuner.space import Space, choice, loguniform, randint, uniform


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--parameters", type=int, default=10)
    parser.add_argument("--asks", type=int, default=60)
    args = parser.parse_args()

    kinds = [uniform(0, 1), loguniform(1e-5, 1), randint(1, 100), choice(["a", "b", "c"])]
    space = Space.from_python({f"p{i}": kinds[i % len(kinds)] for i in range(args.parameters)})
    task = SearcherContext(space, (Objective("loss", "min"),), seed=1)
    searcher = from_json({"type": "tpe"})
    searcher.setup(task)
    trials, rng = Population(), random.Random(0)
    for number in range(args.trials):
        finish(trials, number, space.sample(rng), space)

    started = time.perf_counter()
    searcher.suggest(args.trials, trials)
    rebuild = time.perf_counter() - started
    study = plain_study(trials, space)
    seconds, cpu, plain = [], [], []
    for number in range(args.trials, args.trials + args.asks):
        started, cpu_started = time.perf_counter(), time.process_time()
        suggestion = searcher.suggest(number, trials)
        seconds.append(time.perf_counter() - started)
        cpu.append(time.process_time() - cpu_started)
        assert suggestion is not None
        started = time.perf_counter()
        asked = study.ask(fixed_distributions={p.path: distribution(p) for p in space.parameters})
        plain.append(time.perf_counter() - started)
        study.tell(asked, sum((float(u) - 0.3) ** 2 for u in asked.params.values() if isinstance(u, float)))
        finish(trials, number, suggestion.params, space)
    print(
        json.dumps(
            {
                "benchmark": "tpe_ask",
                "trials": args.trials,
                "parameters": args.parameters,
                "median_ms": round(1e3 * statistics.median(seconds), 2),
                "cpu_median_ms": round(1e3 * statistics.median(cpu), 2),
                "optuna_ms": round(1e3 * statistics.median(plain), 2),
                "p95_ms": round(1e3 * statistics.quantiles(seconds, n=20)[-1], 2),
                "rebuild_ms": round(1e3 * rebuild, 1),
            }
        )
    )


def plain_study(trials: Population, space: Space) -> optuna.Study:
    """Return the same trials in a study as Optuna's users create it."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
    distributions = {p.path: distribution(p) for p in space.parameters}
    for trial in trials:
        params = {path: to_optuna(space[path], value) for path, value in trial.params.items()}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=trial.best_value))
    return study


def finish(trials: Population, number: int, params: dict[str, object], space: Space) -> None:
    value = sum((u - 0.3) ** 2 for u in space.to_unit(params))
    trials.add(Trial(number, params, iteration=1, reports=1, best_value=value, last_value=value, last={"loss": value}))
    trials.move(number, TrialState.RUNNING)
    trials.move(number, TrialState.COMPLETED)


if __name__ == "__main__":
    main()
