"""Compare the default search with widely used ones, on recorded learning curves in virtual time.

    python -m benchmarks.quality [--runs 3] [--families lcbench mlp] [--methods default asha] [--results FILE]
    python -m benchmarks.quality --methods default "plain:novelty.CROWDED=1e-9;curve_model.LINEAR=0.0" --baseline default

Regret is that of the best value so far: 1 for the median random configuration after a full training, 0 for the best
known value. Budgets are worker time in units of a full training. Each run of a problem has its own seed, which is the
same for every method. The interval is the 95 % interval of the mean over problems and runs. The second table has the
differences from the baseline, run by run.

The problems are those of this repository (`benchmarks/curves`) and, if they exist, those of LCBench and TaskSet in --curves,
which defaults to the environment variable CURVES, or else to `../shared/curves` beside the repository.

With --results, each run is appended to a file when it ends, and runs that the file already has are skipped. Begin a new file when
the search has changed.

Methods: `default` is `tuner.simulate` with only metric, mode and max_t given; `asha` our stopping form over random
configurations; `hyperband` and `bohb` our HyperBand over random configurations and over those of BOHB's model; `ray-asha` Ray's
AsyncHyperBandScheduler driven directly; `optuna-tpe` its TPESampler without early stopping and `optuna-hyperband` with its
HyperbandPruner; `prototype` the first freeze-thaw search, from the folder of the curves; `halving-...` those of
`benchmarks/halving.py`, which are run only if they are named.
NAME:module.CONSTANT=value;... is the default with constants of `tuner.schedulers.freeze_thaw` changed, to find out what each is
worth. NAME:option.thaw=0.2;... is the default with options of the scheduler changed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from benchmarks import contenders, learning_curves  # noqa: E402 (after the number of threads is set)
from benchmarks.contenders import Setting  # noqa: E402
from benchmarks.intervals import interval  # noqa: E402
from benchmarks.learning_curves import SHARED, Problem, seed_of  # noqa: E402
from benchmarks.methods import HALVING, METHODS, names, play  # noqa: E402

STUCK = 0.3  # a regret above which a run counts as stuck
ALL = "all"  # the row of all problems together
Row = dict[str, Any]


def main() -> None:
    args = arguments()
    known = learning_curves.problems(args.curves)
    if not learning_curves.shared(args.curves):
        print(f"no LCBench and TaskSet: there is no curves.py in {args.curves}; name its folder with --curves")
    halved = learning_curves.half([p.name for p in known], args.half)
    chosen = [name for name in halved if not args.families or name.startswith(tuple(args.families))]
    if not chosen:
        raise SystemExit(f"no problem begins with {args.families}; there are {', '.join(p.name for p in known)}")
    methods = args.methods or names(args.curves)
    wanted = [
        row_key(*t, args) for t in itertools.product(range(args.first_run, args.first_run + args.runs), chosen, methods)
    ]
    rows = read(args.results)
    if not args.stored:
        run_missing([key for key in wanted if key not in rows], rows, args)

    mine = complete(wanted, rows, len(methods))
    families = list(dict.fromkeys(key[0].split("/")[0] for key in mine))
    table = {family: summary(family, methods, mine, args) for family in families}
    if len(families) > 1:
        table[ALL] = summary(ALL, methods, mine, args)
    show(table, args)
    if args.by_problem:
        show({name: summary(name, methods, mine, args) for name in dict.fromkeys(key[0] for key in mine)}, args)
    print(json.dumps({"budgets": args.budgets, "workers": args.workers, "startup": args.startup, "families": table}))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, default=SHARED)
    parser.add_argument("--families", nargs="+", default=[], help="problems whose names begin with one of these words")
    parser.add_argument("--half", choices=learning_curves.HALVES, default="both", help="every other problem")
    parser.add_argument("--methods", nargs="+", default=[], help=f"of {', '.join(METHODS)}, and variants")
    parser.add_argument(
        "--baseline", default="", help="a method, or the name of a variant; the first method if not given"
    )
    parser.add_argument("--budgets", nargs="+", type=float, default=[2.5, 5, 10, 20, 40])
    parser.add_argument("--runs", type=int, default=3, help="of each problem")
    parser.add_argument(
        "--first-run", type=int, default=0, help="the number of the first run; another one gives other seeds"
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--startup", type=float, default=0.0, help="cost of a start, as a share of a training")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--results", type=Path, help="a file of JSON lines, to which new runs are added")
    parser.add_argument(
        "--stored", action="store_true", help="run nothing, but print the tables of the runs in --results"
    )
    parser.add_argument("--by-problem", action="store_true", help="a table for each problem, too")
    args = parser.parse_args()
    for method in args.methods:
        if ":" not in method and not method.startswith(HALVING) and method not in names(args.curves):
            parser.error(f"no such method: {method}; there are {', '.join(names(args.curves))}")
    if args.baseline:
        named = [method for method in args.methods or names(args.curves) if args.baseline in (method, label(method))]
        if not named:
            parser.error(f"the baseline {args.baseline} is not one of the methods")
        args.baseline = named[0]
    return args


# -- runs ----------------------------------------------------------------------------------------------------------------

Key = tuple[str, int, str, int, float, tuple[float, ...]]
"""(problem, run, method, workers, startup, budgets)"""


def row_key(run: int, problem: str, method: str, args: argparse.Namespace) -> Key:
    return problem, run, method, args.workers, args.startup, tuple(map(float, args.budgets))


def read(file: Path | None) -> dict[Key, Row]:
    """Return the rows of a file; none if it does not exist. Leave out incomplete lines."""
    rows: dict[Key, Row] = {}
    for line in file.read_text().splitlines() if file is not None and file.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        key = (row["problem"], row["run"], row["method"], row["workers"], row["startup"], tuple(row["budgets"]))
        rows[key] = row
    return rows


def complete(wanted: list[Key], rows: dict[Key, Row], methods: int) -> dict[Key, Row]:
    """Return the wanted rows of the runs that every method has, so that all means are over the same runs."""
    there = [key for key in wanted if key in rows]
    count = Counter(key[:2] for key in there)
    return {key: rows[key] for key in there if count[key[:2]] == methods}


def run_missing(missing: list[Key], rows: dict[Key, Row], args: argparse.Namespace) -> None:
    begin = time.monotonic()
    with ProcessPoolExecutor(args.jobs) as pool:
        pending = {pool.submit(one, key, args.curves): key for key in missing}
        try:
            for done, future in enumerate(as_completed(pending), 1):
                row = rows[pending[future]] = future.result()
                if args.results is not None:
                    with args.results.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                if done % 50 == 0:
                    print(
                        f"{done} of {len(pending)} runs, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True
                    )
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@cache
def _problems(curves: Path) -> dict[str, Problem]:
    return {p.name: p for p in learning_curves.problems(curves)}


def one(key: Key, curves: Path) -> Row:
    name, run, method, workers, startup, budgets = key
    problem, setting = _problems(curves)[name], Setting(workers, startup, max(budgets), curves)
    begin = time.process_time()
    history = play(method, problem, seed_of(name, run), setting)
    return {
        "problem": name,
        "run": run,
        "method": method,
        "workers": workers,
        "startup": startup,
        "budgets": budgets,
        "regret": [round(r, 5) for r in regrets(problem, history, workers, budgets)],
        "cpu_s": round(time.process_time() - begin, 2),
    }


def regrets(problem: Problem, history: contenders.History, workers: int, budgets: tuple[float, ...]) -> list[float]:
    best = max if problem.mode == "max" else min
    out = []
    for budget in budgets:
        seen = [value for t, value in history if t <= budget * problem.full_seconds / workers]
        out.append(float(problem.regret(best(seen))) if seen else 1.0)
    return out


# -- tables --------------------------------------------------------------------------------------------------------------


def summary(prefix: str, methods: Sequence[str], rows: dict[Key, Row], args: argparse.Namespace) -> dict[str, Row]:
    """Return each method's means, and its differences from the baseline on the same runs."""
    baseline = args.baseline or methods[0]
    found = {m: {k[:2]: r for k, r in rows.items() if k[2] == m and in_family(k[0], prefix)} for m in methods}
    out: dict[str, Row] = {}
    for method, mine in found.items():
        columns = list(zip(*(row["regret"] for row in mine.values()), strict=True))
        out[label(method)] = {
            "runs": len(mine),
            "mean": [round(statistics.mean(c), 4) for c in columns],
            "interval": [interval(c) for c in columns],
            "stuck": sum(v > STUCK for v in columns[-1]),
            "cpu_s": round(statistics.mean(row["cpu_s"] for row in mine.values()), 2),
        }
        if method != baseline and baseline in found:
            pairs = [(row["regret"], found[baseline][k]["regret"]) for k, row in mine.items() if k in found[baseline]]
            by_budget = [[a[i] - b[i] for a, b in pairs] for i in range(len(columns))]
            out[label(method)]["difference"] = [round(statistics.mean(d), 4) for d in by_budget]
            out[label(method)]["difference_interval"] = [interval(d) for d in by_budget]
    return out


def in_family(name: str, prefix: str) -> bool:
    return prefix in (ALL, name) or name.startswith(f"{prefix}/")


def label(method: str) -> str:
    return method.split(":")[0]


def show(table: dict[str, dict[str, Row]], args: argparse.Namespace) -> None:
    wide = max(24, *(len(f"{family} {method}") + 2 for family, rows in table.items() for method in rows))
    head = f"{'full trainings':{wide}s}" + "".join(f"{budget:>16g}" for budget in args.budgets)
    print(f"\nmean regret ± 95 %, {args.workers} workers, a start costs {args.startup:.0%} of a training")
    print(f"{head}    runs  above {STUCK}   cpu s a run")
    for family, rows in table.items():
        for method, row in rows.items():
            more = f"{row['runs']:>8d}{row['stuck']:>11d}{row['cpu_s']:>14.1f}"
            print(f"{f'{family} {method}':{wide}s}{cells(row['mean'], row['interval'], '8.3f')}{more}")
    compared = [(f"{f} {m}", row) for f, rows in table.items() for m, row in rows.items() if "difference" in row]
    if compared:
        print(
            f"\ndifference to {label(args.baseline or next(iter(next(iter(table.values())))))}, the same runs\n{head}"
        )
        for name, row in compared:
            print(f"{name:{wide}s}{cells(row['difference'], row['difference_interval'], '+8.3f')}")


def cells(means: list[float], intervals: list[float | None], form: str) -> str:
    shown = ["-" if i is None else f"{i:.3f}" for i in intervals]
    return "".join(f"  {m:{form}} ± {i:5s}"[-16:] for m, i in zip(means, shown, strict=True))


if __name__ == "__main__":
    main()
