"""Compare the default search with and without six earlier experiments, which are on other problems of the same family.

    python -m benchmarks.warm_start [--family lcbench] [--runs 1] [--budgets 2.5 5 10 20 40] [--results FILE]

The six are drawn anew for each run; each is the default search over 20 full trainings. Two controls should do no worse than
`default`: `unrelated` learns from experiments with permuted parameters, half of them mirrored, and `shuffled` learns from
experiments whose configurations were permuted at random.
Regret and intervals are as in `benchmarks.quality`, with the same seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from benchmarks import contenders, learning_curves, quality  # noqa: E402 (after the number of threads is set)
from benchmarks.contenders import Setting  # noqa: E402
from benchmarks.intervals import interval  # noqa: E402
from benchmarks.learning_curves import SHARED, Problem  # noqa: E402
from tuner.domain.experiment import Objective  # noqa: E402
from tuner.driver.earlier import EarlierExperiment  # noqa: E402
from tuner.driver.recording import Recording, recording  # noqa: E402

METHODS = ("default", "warm", "unrelated", "shuffled")
EARLIER, TRAININGS = 6, 20.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, default=SHARED)
    parser.add_argument("--family", default="lcbench")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--budgets", nargs="+", type=float, default=[2.5, 5, 10, 20, 40])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--variant", default="", help="constants of freeze-thaw to change, as in benchmarks.quality")
    parser.add_argument("--results", type=Path, help="a file of JSON lines, to which new runs are added")
    args = parser.parse_args()
    problems = [p for p in learning_curves.problems(args.curves) if p.family == args.family]
    if len(problems) <= EARLIER:
        raise SystemExit(f"{args.family} has {len(problems)} problems; more than {EARLIER} are needed")
    setting = Setting(args.workers, 0.0, max(args.budgets), args.curves)
    done = (
        [json.loads(line) for line in args.results.read_text().splitlines()]
        if args.results and args.results.exists()
        else []
    )
    known = {(row["problem"], row["run"], row["method"]): row for row in done}
    for run in range(args.runs):
        for problem in problems:
            for method in args.methods:
                key = (problem.name, run, method + args.variant * (method != "default"))
                if key in known:
                    continue
                regret = played(method, problem, problems, run, setting, tuple(args.budgets), args.variant)
                known[key] = {"problem": key[0], "run": key[1], "method": key[2], "regret": regret}
                print(json.dumps(known[key]), file=sys.stderr, flush=True)
                if args.results:
                    with args.results.open("a") as file:
                        file.write(json.dumps(known[key]) + "\n")
    names = [method + args.variant * (method != "default") for method in args.methods]
    show(names, known, args)


def played(
    method: str,
    problem: Problem,
    problems: Sequence[Problem],
    run: int,
    setting: Setting,
    budgets: tuple[float, ...],
    variant: str,
) -> list[float]:
    seed = learning_curves.seed_of(problem.name, run)
    options = {}
    if method != "default":
        draw = random.Random(f"{problem.name} {run}")
        others = draw.sample([p for p in problems if p.name != problem.name], EARLIER)
        options["warm_start"] = [before(p, setting.curves, run, method) for p in others]
    with contenders.changed(variant if method != "default" else ""):
        history = contenders.simulated(problem, seed, setting, **options)
    return [round(r, 5) for r in quality.regrets(problem, history, setting.workers, budgets)]


def before(problem: Problem, curves: Path, run: int, method: str) -> EarlierExperiment:
    record, space, rng = recorded(problem.name, curves, run), problem.space, random.Random(problem.name)
    changed = {}
    if method == "shuffled":
        order = sorted(record.trials)
        rng.shuffle(order)
        changed = {n: record.trials[m].params for n, m in zip(record.trials, order, strict=True)}
    if method == "unrelated":
        mirrored = [rng.random() < 0.5 for _ in range(len(space))]
        for n, trial in record.trials.items():
            unit = space.to_unit(trial.params)
            moved = [1 - u if m else u for u, m in zip(unit[1:] + unit[:1], mirrored, strict=True)]
            changed[n] = space.from_unit(moved)
    trials = {n: replace(trial, params=changed.get(n, trial.params)) for n, trial in record.trials.items()}
    return EarlierExperiment(problem.name, Objective("value", problem.mode), space, replace(record, trials=trials))


@cache
def recorded(name: str, curves: Path, run: int) -> Recording:
    """Return the record of the default search on a problem, as an earlier experiment."""
    kept = (
        Path(os.environ.get("TMPDIR", "/tmp"))
        / f"tuner-earlier-{os.getuid()}"
        / f"{name.replace('/', '_')}-{run}.pickle"
    )
    if kept.exists():
        found: Recording = pickle.loads(kept.read_bytes())
        return found
    problem = next(p for p in learning_curves.problems(curves) if p.name == name)
    search = contenders.simulation(
        problem, learning_curves.seed_of(f"{name} earlier", run), Setting(4, 0.0, TRAININGS, curves)
    )
    found = recording(search.log)
    kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept.write_bytes(pickle.dumps(found))
    return found


def show(names: Sequence[str], rows: dict[tuple[str, int, str], dict[str, Any]], args: argparse.Namespace) -> None:
    shared = [(p, r) for p, r, m in rows if m == names[0] and all((p, r, n) in rows for n in names)]
    print(f"{args.family}, {len(shared)} runs, {args.workers} workers; mean regret ± 95 %")
    print(f"{'full trainings':28}" + "".join(f"{budget:>16g}" for budget in args.budgets))
    for name in names:
        columns = list(zip(*(rows[(p, r, name)]["regret"] for p, r in shared), strict=True))
        print(f"{name[:27]:28}" + _cells(columns, "8.3f"))
        if name != names[0]:
            first = list(zip(*(rows[(p, r, names[0])]["regret"] for p, r in shared), strict=True))
            less = [[a - b for a, b in zip(mine, base, strict=True)] for mine, base in zip(columns, first, strict=True)]
            print(f"{f'  less {names[0]}':28}" + _cells(less, "+8.3f"))


def _cells(columns: Sequence[Sequence[float]], form: str) -> str:
    return quality.cells([sum(c) / len(c) for c in columns], [interval(c) for c in columns], form)


if __name__ == "__main__":
    main()
