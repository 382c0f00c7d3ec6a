"""Search a box of the unit cube for a new configuration: a trust region that shrinks, grows and restarts.

After TuRBO (Eriksson et al., "Scalable Global Optimization via Local Bayesian Optimization", 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.schedulers.freeze_thaw.curve_model import Floats
from tuner.schedulers.freeze_thaw.results import Results
from tuner.schedulers.freeze_thaw.unit_cube import Cube

SIDE, LARGEST, SMALLEST = 0.8, 1.6, 0.1
SUCCESSES, FAILURES = 3, 5
APART = 0.4
POINTS, STEPS, CLIMBERS, TRIES = 200, (0.3, 0.1), 4, 8


@dataclass(frozen=True, slots=True)
class Region:
    centre: Floats
    half: Floats

    def searched(
        self, cube: Cube, value: Callable[[Floats], Floats], generator: np.random.Generator
    ) -> tuple[Floats, Floats]:
        points = self._drawn(np.repeat(self.centre[None], POINTS, 0), 1.0, cube, generator)
        values = value(points)
        k = np.argsort(-values, kind="stable")[:CLIMBERS]
        points, values = points[k], values[k]
        for step in STEPS:
            tries = self._drawn(np.repeat(points, TRIES, 0), step, cube, generator)
            all_points = np.concatenate([points, tries])
            all_values = np.concatenate([values, value(tries)])
            k = np.argsort(-all_values, kind="stable")[:CLIMBERS]
            points, values = all_points[k], all_values[k]
        return points, values

    def _drawn(self, points: Floats, share: float, cube: Cube, generator: np.random.Generator) -> Floats:
        moved = points + generator.uniform(-1, 1, points.shape) * self.half * share
        low, high = np.maximum(self.centre - self.half, 0), np.minimum(self.centre + self.half, 1)
        out = np.clip(moved, low, high)
        if cube.choice.any():
            anew = (generator.random(points.shape) < np.minimum(self.half * share, 0.5)) & cube.choice
            out = np.where(cube.choice, np.where(anew, generator.random(points.shape), points), out)
        return cube.realise(out)


def around(centre: Floats, half: float, cube: Cube) -> Region:
    return Region(centre, np.full(cube.dims, half))


def trust_region(results: Results, mine: NDArray[np.bool_], theta: Floats, cube: Cube) -> Region:
    """Return the region after the results so far. `mine` (k,) says which trials were proposed in a region."""
    side, won, lost = SIDE, 0, 0
    centres: list[int] = []
    x = cube.features(results.points)
    centre = -1  # -1: the best trial of all
    value = -math.inf
    for slot in range(len(results.best)):
        score = float(results.best[slot])
        if centre < 0 and not mine[slot]:
            value = max(value, score)
        if not mine[slot]:
            continue
        if score > value:
            value, won, lost = score, won + 1, 0
            if centre >= 0:
                centre = slot
        else:
            won, lost = 0, lost + 1
        if won == SUCCESSES:
            side, won = min(2 * side, LARGEST), 0
        if lost == FAILURES:
            side, lost = side / 2, 0
        if side < SMALLEST:
            known = np.where(~results.repeat[: slot + 1], results.best[: slot + 1], -np.inf)
            centres.append(int(known.argmax()) if centre < 0 else centre)
            far = np.sqrt(((x[: slot + 1, None] - x[centres]) ** 2).sum(2)).min(1) > APART
            if not far.any():
                centres, far = centres[-1:], known > -np.inf
            centre = int(np.where(far, known, -np.inf).argmax())
            value, side, won, lost = float(results.best[centre]), SIDE, 0, 0
    if centre < 0:
        centre = int(results.top(1)[0])
    lengths = np.exp(theta[: cube.dims])
    half = side / 2 * np.clip(lengths / np.exp(np.log(lengths).mean()), 0.25, 4.0)
    return Region(results.points[centre], half)
