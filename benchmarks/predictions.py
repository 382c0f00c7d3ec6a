"""Judge the predictions of the freeze-thaw model without a search. This costs a hundredth of what searches would cost.

    python -m benchmarks.predictions [--trials 24 90] [--variants "linear1:curve_model.LINEAR=1.0"] [--families lcbench]

For each problem and number of trials, scattered configurations are trained to random levels, the best fifth longer. The model
is fitted to their results and predicts the final values of 300 other configurations. The output has means over the problems:

rho     the rank correlation of predicted and true final values
lpd     the log density of the true final values of the better half, on the scale of the model
top10   the regret of the best of the ten configurations with the greatest predicted values

The same three follow for the trials themselves, whose true final values are those that training them to the end would give:
`own_rho`, `own_lpd` of the fifth that ends best, and `own_top5`.

A variant is NAME:module.CONSTANT=value;..., as in `benchmarks.quality`. Its rows have the differences from the unchanged model,
problem by problem, with the 95 % interval of their mean.
"""

from __future__ import annotations

import argparse
import json
import os
import zlib
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 (after the number of threads is set)
from scipy.stats import norm, spearmanr  # noqa: E402

from benchmarks import learning_curves  # noqa: E402
from benchmarks.contenders import changed  # noqa: E402
from benchmarks.intervals import interval  # noqa: E402
from benchmarks.learning_curves import SHARED, Problem  # noqa: E402
from benchmarks.quality import in_family  # noqa: E402
from tuner.schedulers.freeze_thaw import scheduler  # noqa: E402
from tuner.schedulers.freeze_thaw.model.curve_model import Evidence, Floats, Posterior, Rows  # noqa: E402
from tuner.schedulers.freeze_thaw.model.levels import levels, tau  # noqa: E402
from tuner.schedulers.freeze_thaw.model.results import MAX_ROWS  # noqa: E402
from tuner.schedulers.freeze_thaw.model.score_warp import Warp  # noqa: E402
from tuner.schedulers.freeze_thaw.model.unit_cube import Cube  # noqa: E402

TESTED = 300
MEASURES = ("rho", "lpd", "top10", "own_rho", "own_lpd", "own_top5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, default=SHARED)
    parser.add_argument("--families", nargs="+", default=[])
    parser.add_argument("--trials", nargs="+", type=int, default=[24, 90])
    parser.add_argument("--variants", nargs="+", default=[])
    args = parser.parse_args()
    chosen = [
        p
        for p in learning_curves.problems(args.curves)
        if not args.families or any(in_family(p.name, family) for family in args.families)
    ]
    if not chosen:
        raise SystemExit(
            f"no problem of {args.families or 'any family'}; --curves names the folder of LCBench's and TaskSet's"
        )
    variants = {"now": "", **dict(variant.split(":", 1) for variant in args.variants)}
    for family in dict.fromkeys(p.family for p in chosen):
        for trials in args.trials:
            mine = [judged(p, trials, variants) for p in chosen if p.family == family]
            show(family, trials, mine)


def judged(problem: Problem, trials: int, variants: dict[str, str]) -> dict[str, list[float]]:
    """Return the measures of each variant, all on the same results and the same tested configurations."""
    rng = np.random.default_rng([trials, zlib.crc32(problem.name.encode())])
    cube, grid = Cube(problem.space), np.array(levels(1.0, float(problem.max_t)))
    sign = 1 if problem.mode == "max" else -1

    def curve(point: Floats) -> Floats:
        return sign * problem.curve(problem.space.config(cube.params(point)))[0]

    points, tested = cube.scatter(trials, rng), cube.scatter(TESTED, rng)
    curves = np.array([curve(point) for point in points])[:, np.round(grid).astype(int) - 1]
    reached = np.minimum(rng.geometric(0.35, trials) - 1, len(grid) - 1)
    best = np.argsort(np.argsort(curves[:, 0])) >= 0.8 * trials
    reached = np.where(best, np.minimum(reached + 4, len(grid) - 1), reached)
    trial, level = np.nonzero(np.arange(len(grid)) <= reached[:, None])
    shown = np.sort(rng.permutation(len(trial))[:MAX_ROWS])
    trial, level = trial[shown], level[shown]
    known, row = np.unique(trial, return_inverse=True)
    final = np.array([curve(point)[-1] for point in tested])
    better = final >= np.median(final)
    out = {}
    for name, change in variants.items():
        with changed(change):
            warp, prior = Warp.of(curves[trial, level]), scheduler.PRIOR
            rows = Rows(cube.features(points[known]), row, tau(grid, grid[level]))
            theta = Evidence(rows, warp.z, cube.group, prior).fit([(prior.mean(cube.dims), 30)])
            posterior = Posterior(theta, cube.group, rows, warp.z, np.array([], dtype=np.int64))
            mean, sd = posterior.of_new(cube.features(tested), 1.0)
            own_mean, own_sd = posterior.of_trials(np.arange(len(known)), np.ones(len(known)))
        ends = curves[known, -1]
        ahead = (ends - warp.centre) / warp.scale
        good = ends >= np.quantile(ends, 0.8)
        five = np.argsort(-own_mean)[:5]
        ten = np.argsort(-mean)[:10]
        out[name] = [
            float(spearmanr(mean, final)[0]),
            float(norm.logpdf((final[better] - warp.centre) / warp.scale, mean[better], sd[better]).mean()),
            problem.regret(sign * float(final[ten].max())),
            float(spearmanr(own_mean, ends)[0]),
            float(norm.logpdf(ahead[good], own_mean[good], own_sd[good]).mean()),
            problem.regret(sign * float(ends[five].max())),
        ]
    return out


def show(family: str, trials: int, mine: list[dict[str, list[float]]]) -> None:
    for name in mine[0]:
        values = np.array([each[name] for each in mine]) - (0 if name == "now" else np.array([e["now"] for e in mine]))
        row = {
            measure: [round(float(values[:, k].mean()), 3), interval(values[:, k].tolist())]
            for k, measure in enumerate(MEASURES)
        }
        print(
            json.dumps({"family": family, "problems": len(mine), "trials": trials, "variant": name, **row}), flush=True
        )


if __name__ == "__main__":
    main()
