"""Screen several changes of the default search at once, in a fractional factorial experiment on recorded learning curves.

    python -m benchmarks.factorial --factors "apart:novelty.CROWDED=0.1" "thaw:option.thaw=0.15" --blocks 30 --results FILE

There are four to eight factors. A factor is NAME:changes, with the changes that `benchmarks.quality` accepts for a variant. Each
run has every factor either on or off. A block is four runs on the same problem and seed; in each block, every factor is on in two
of the four runs. The four kinds of blocks together have sixteen different combinations. No effect of a single factor is
confounded with the interaction of two others.

The effect of a factor is the mean difference in regret between the runs with it and those without it in the same blocks, with
its 95 % interval. Below 0 is better. Many effects are estimated at once, so the best of them looks better than it is: confirm
it in pairs, with `benchmarks.quality`, on the other half of the problems (`--half second`).

The halves are every other problem of `benchmarks.quality`. Runs that --results already has are skipped. With --until HH:MM, no
run begins after that time.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 (after the number of threads is set)

from benchmarks import contenders, learning_curves, quality  # noqa: E402
from benchmarks.learning_curves import SHARED, Floats  # noqa: E402
from tuner.schedulers.freeze_thaw.scheduler import FreezeThawScheduler  # noqa: E402

BLOCK = 4  # runs of a block
FEWEST = 4  # with fewer factors, some runs of a block would be the same
# The columns of the design, as products of the first four. Those of the first eight are products of an odd number.
COLUMNS = ((0,), (1,), (2,), (3,), (0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3))


def main() -> None:
    args = arguments()
    factors = args.factors
    known = [p.name for p in learning_curves.problems(args.curves)]
    problems = learning_curves.half(known, args.half)
    rows = quality.read(args.results)
    wanted = [
        quality.row_key(run, name, method(factors, on), args)
        for run, name, on in runs(problems, len(factors), args.blocks)
    ]
    begun = time.strftime("%H:%M")
    for key in wanted:
        if key in rows:
            continue
        if args.until and not begun <= time.strftime("%H:%M") < args.until:
            break
        row = rows[key] = quality.one(key, args.curves)
        if args.results is not None:
            with args.results.open("a") as file:
                file.write(json.dumps(row) + "\n")

    there = [key for key in wanted if key in rows]
    if not there:
        print("There are no results yet, and no run could begin before --until.")
        return
    families = list(dict.fromkeys(key[0].split("/")[0] for key in there))
    for family in [quality.ALL, *(families if len(families) > 1 else [])]:
        show(family, [rows[key] for key in there if quality.in_family(key[0], family)], args)


def show(family: str, rows: list[quality.Row], args: argparse.Namespace) -> None:
    """Print the effects in these runs, as a table and as JSON."""
    names = [factor.split(":")[0] for factor in args.factors]
    on = np.array([[name in quality.label(row["method"]).split("+") for name in names] for row in rows], dtype=float)
    block = [(row["problem"], row["run"]) for row in rows]
    regret = np.array([row["regret"] for row in rows])
    found = {budget: effects(on, block, regret[:, k]) for k, budget in enumerate(args.budgets)}
    print(f"\n{family}: effects on regret ± 95 %, {len(rows)} runs in {len(set(block))} blocks")
    known = {budget: each for budget, each in found.items() if each is not None}
    if not known:
        print("These runs cannot tell the factors apart yet.")
    else:
        wide = max(16, *(len(name) + 2 for name in names))
        print(f"{'full trainings':{wide}s}" + "".join(f"{budget:>18g}" for budget in known))
        for i, name in enumerate(names):
            print(f"{name:{wide}s}" + "".join(f"  {mean[i]:+8.3f} ± {width[i]:.3f}" for mean, width in known.values()))
    both = {
        b: {"mean": mean.round(4).tolist(), "interval": width.round(4).tolist()} for b, (mean, width) in known.items()
    }
    print(json.dumps({"family": family, "runs": len(rows), "factors": names, "effects": both or None}))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--factors", nargs="+", required=True, metavar="NAME:CHANGES", help=f"{FEWEST} to {len(COLUMNS)}"
    )
    parser.add_argument("--half", choices=learning_curves.HALVES, default="first", help="of the problems")
    parser.add_argument("--blocks", type=int, default=28)
    parser.add_argument("--budgets", nargs="+", type=float, default=[5, 10, 20])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--startup", type=float, default=0.0, help="cost of a start, as a share of a training")
    parser.add_argument("--curves", type=Path, default=SHARED)
    parser.add_argument("--results", type=Path, help="a file of JSON lines, to which new runs are added")
    parser.add_argument("--until", default="", metavar="HH:MM", help="begin no run after this time of the same day")
    args = parser.parse_args()
    if not FEWEST <= len(args.factors) <= len(COLUMNS):
        parser.error(
            f"expected {FEWEST} to {len(COLUMNS)} factors, got {len(args.factors)}; use benchmarks.quality for fewer"
        )
    for factor in args.factors:
        if ":" not in factor or "+" in factor.split(":")[0]:
            parser.error(f"expected NAME:module.CONSTANT=value;..., got {factor}")
        with contenders.changed(factor.split(":", 1)[1]):
            pass  # a misspelled constant is found before the first run
        unknown = (
            contenders.options_in(factor.split(":", 1)[1]).keys() - inspect.signature(FreezeThawScheduler).parameters
        )
        if unknown:
            parser.error(f"FreezeThawScheduler has no option {', '.join(sorted(unknown))}, in {factor}")
    return args


def design(factors: int) -> Floats:
    """Return the sixteen combinations (4, BLOCK, factors), by kind of block: 1 if a factor is on, else 0.

    Each factor is on in half of the runs of each block. Only interactions of two factors differ between kinds of blocks.
    """
    base = np.array([[1 if run >> bit & 1 else -1 for bit in range(4)] for run in range(16)])
    signs = np.column_stack([base[:, list(column)].prod(1) for column in COLUMNS[:factors]])
    kind = (base[:, 0] * base[:, 1] > 0) * 2 + (base[:, 0] * base[:, 2] > 0)
    ordered = signs[np.argsort(kind, kind="stable")]
    return (ordered.reshape(4, BLOCK, factors) + 1) / 2


def runs(problems: Sequence[str], factors: int, blocks: int) -> list[tuple[int, str, Floats]]:
    """Return (run, problem, which factors are on) of all runs, in an order in which every prefix is balanced."""
    kinds = design(factors)
    out = []
    for block in range(blocks):
        turn, place = divmod(block, len(problems))
        # Each problem gets a different kind of block in each turn.
        out += [(turn, problems[place], on) for on in kinds[(place + turn) % 4]]
    return out


def method(factors: Sequence[str], on: Floats) -> str:
    """Return the variant of the default with the factors that are on, as `benchmarks.quality` names it."""
    chosen = [factor.split(":", 1) for factor, is_on in zip(factors, on, strict=True) if is_on]
    if not chosen:
        return "default"
    return "+".join(name for name, _ in chosen) + ":" + ";".join(changes for _, changes in chosen)


def effects(on: Floats, block: Sequence[object], regret: Floats) -> tuple[Floats, Floats] | None:
    """Return the effect of each factor (f,) and half the width of its 95 % interval, by least squares within blocks.

    Return None if these runs cannot tell the factors apart. Within one kind of block, two factors are the same column up to
    their sign, so it takes blocks of several kinds.

    Args:
        on: 1 where a factor is on, else 0 (n, f).
        block: the block of each run (n,).
        regret: the regret of each run (n,).
    """
    number = {b: i for i, b in enumerate(dict.fromkeys(block))}
    inside = np.zeros((len(block), len(number)))
    inside[np.arange(len(block)), [number[b] for b in block]] = 1.0
    x = np.concatenate([on, inside], axis=1)
    found, _, rank, _ = np.linalg.lstsq(x, regret, rcond=None)
    if rank < x.shape[1] or len(regret) <= rank:
        return None
    rest = regret - x @ found
    variance = float(rest @ rest) / (len(regret) - int(rank))
    spread = np.sqrt(variance * np.diag(np.linalg.pinv(x.T @ x)))[: on.shape[1]]
    return found[: on.shape[1]], 1.96 * spread


if __name__ == "__main__":
    main()
