"""Learn how long a unit of training takes, by configuration, so that slow configurations count for less.

Large networks and small batches take several times as long as others. The first report of a trial often takes longer than
later ones, too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tuner.schedulers.freeze_thaw.model.curve_model import Floats, Ints, centred, distances, matern52
from tuner.schedulers.freeze_thaw.model.unit_cube import Cube

PACE = 0.0  # the exponent of the seconds per unit of training by which chances are divided
SLOW = 0.0  # the same for the seconds beyond twice the median
FIRST_X = 0.0  # the same for the seconds of a first report, among new configurations
CHEAP = 0.0  # 1 to choose the faster of two scattered configurations
FIRST = 0.0  # 1 to charge new trials for a first report that takes longer than later ones, else 0
MOST = 100  # the model is fitted to this many trials
NOISES = (0.02, 0.1, 0.5, 2.0, 8.0)
SMOOTH = 1.5  # the length scale

Pace = tuple[float, float, float, float]
"""The units of time_attr and the seconds of a trial's first report, and those of all its later reports."""


def exponent() -> float:
    """Return the exponent of the seconds per unit."""
    return PACE


def charged(logs: Floats) -> Floats:
    """Return ln of the factors (m,) by which chances are divided, given ln of the relative seconds per unit."""
    out: Floats = PACE * logs + SLOW * np.maximum(logs - math.log(2), 0)
    return out


def used() -> bool:
    """Return whether costs matter."""
    return bool(PACE or FIRST or SLOW or FIRST_X or CHEAP)


@dataclass(frozen=True, slots=True)
class Costs:
    """How long trials train, compared with the median trial.

    Attributes:
        own: trial -> ln of its seconds per unit of training, relative to the median.
        first: the additional training that a first report takes, in units of time_attr.
        predict: maps encoded configurations (m, q) to the expected ln of their relative seconds per unit (m,).
        predict_first: the same for the seconds per unit of the first report, relative to the same median.
    """

    own: Mapping[int, float]
    first: float
    predict: Callable[[Floats], Floats]
    predict_first: Callable[[Floats], Floats]
    usual: float

    def toll(self, x: Floats, start_cost: float, level: float) -> Floats:
        """Return ln of what it costs to start configurations x (m, q) and to train them to the first level (m,)."""
        power = exponent()
        if FIRST and power:
            c = self.predict_first(x)
            return power * np.logaddexp(c, math.log(max(start_cost, 1e-12) / level))
        if FIRST:
            return np.full(len(x), math.log1p((start_cost + self.first) / level))
        out: Floats = math.log1p(start_cost / level) + charged(self.predict(x))
        if FIRST_X:
            out = out + FIRST_X * (self.predict_first(x) - self.usual)
        return out

    def of_trials(self, numbers: Ints) -> Floats:
        """Return ln of the relative seconds per unit of these trials (m,); 0 for trials of which nothing is known."""
        return np.array([self.own.get(int(n), 0.0) for n in numbers])


class CostModel:
    """A Gaussian process over ln of the seconds per unit of training, with the most likely of a few levels of noise."""

    def of(self, paces: Mapping[int, Pace], cube: Cube, point: Callable[[int], Floats]) -> Costs | None:
        """Return what these trials say. A trial with only one report is judged by it, with the usual ratio of later ones."""
        both = [(p[3] / p[2]) / (p[1] / p[0]) for p in paces.values() if p[2] > 0 and p[3] > 0]
        later = statistics.median(both) if both else 1.0
        logs = {
            n: math.log(p[3] / p[2] if p[2] > 0 and p[3] > 0 else later * p[1] / p[0]) for n, p in sorted(paces.items())
        }
        if not logs:
            return None
        middle = statistics.median(logs.values())
        own = {n: value - middle for n, value in logs.items()}
        unit = statistics.median(p[0] for p in paces.values())
        extra = max(0.0, 1 / later - 1) * unit
        numbers = list(own)[-MOST:]
        x = cube.features(np.array([point(n) for n in numbers]))
        y = np.array([own[n] for n in numbers])
        z = np.array([math.log(paces[n][1] / paces[n][0]) - middle for n in numbers])
        usual = float(np.median(z))
        basis = np.linalg.eigh(_kernel(x, x, cube.group))
        noise, alpha = _fitted(y, basis)
        noise, beta = _fitted(z - usual, basis)

        def predict(new: Floats) -> Floats:
            found: Floats = _kernel(new, x, cube.group) @ alpha
            return found

        def predict_first(new: Floats) -> Floats:
            found: Floats = usual + _kernel(new, x, cube.group) @ beta
            return found

        return Costs(own, extra, predict, predict_first, usual)


def _kernel(a: Floats, b: Floats, group: Ints) -> Floats:
    out = matern52(distances(a, b) / SMOOTH)
    out += centred(a, group) @ centred(b, group).T
    return out


def _fitted(y: Floats, basis: tuple[Floats, Floats]) -> tuple[float, Floats]:
    """Return the most likely level of noise, and the weights (n,) of the predictions."""
    values, vectors = basis
    projected = vectors.T @ y
    best, likely = NOISES[-1], -math.inf
    for noise in NOISES:
        spread = np.maximum(values, 0) + noise
        amplitude = max(float((projected**2 / spread).mean()), 1e-9)
        found = -0.5 * len(y) * math.log(amplitude) - 0.5 * float(np.log(spread).sum())
        if found > likely:
            best, likely = noise, found
    weights: Floats = vectors @ (projected / (np.maximum(values, 0) + best))
    return best, weights
