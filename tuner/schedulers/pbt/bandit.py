"""Implement the bandit of PB2: maximize the upper confidence bound of a Gaussian process over time and configuration.

The process predicts how much the score rises per unit of time in the next interval. It uses the time and the score at
the beginning of the interval, and the configuration during the interval:

    k = v exp(-|z - z'|² / l) (1 - ε)^(|t - t'| / 2) + σ² 1{same row}

z is the score and the configuration, and t is the time, all scaled to [0, 1]. The second factor gives old observations
less weight (Bogunovic, Scarlett and Cevher, "Time-Varying Gaussian Process Bandit Optimization", AISTATS 2016).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FIXED = 2  # the first columns of an observation are the time and the score at which its interval begins
C1, C2 = 0.2, 0.4  # β = C1 + ln(C2 n), as in the paper
START = (1.0, 1.0, 0.1, 0.01)  # v, l, ε, σ² before the first fit
BOUNDS = ((0.05, 20.0), (0.01, 100.0), (1e-5, 0.5), (1e-4, 1.0))
SCATTERED, CLIMBS, TRIES = 500, 5, 20
STEPS = (0.2, 0.1, 0.05, 0.02, 0.01)


@dataclass(frozen=True, slots=True)
class Observations:
    """The data of the bandit: time, score and configuration (n, 2 + p), and the standardized rises (n,)."""

    x: Floats
    y: Floats

    @classmethod
    def of(cls, rows: Floats, rises: Floats) -> Observations:
        """Scale the time and the score of `rows` to [0, 1], and standardize `rises`, clipped at two standard deviations."""
        x = rows.copy()
        if len(x):
            x[:, :FIXED] = scaled(rows[:, :FIXED], rows[:, :FIXED])
            rises = np.clip((rises - rises.mean()) / (rises.std() + 1e-8), -2, 2)
        return cls(x, rises)


def scaled(values: Floats, by: Floats) -> Floats:
    """Scale values (m, 2) so that, in each column, the lowest value of `by` (n, 2) becomes 0 and the highest becomes 1."""
    low, high = by.min(0), by.max(0)
    out: Floats = (values - low) / (high - low + 1e-8)
    return out


def distances(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return the squared distances of score and configuration, and the times (m, n) between a (m, 2 + p) and b (n, 2 + p)."""
    return ((a[:, None, 1:] - b[None, :, 1:]) ** 2).sum(2), np.abs(a[:, None, 0] - b[None, :, 0])


def covariances(apart: Floats, waited: Floats, variance: float, length: float, forgetting: float) -> Floats:
    """Return the covariances (m, n) between the rises of observations at these distances, without noise."""
    out: Floats = variance * np.exp(-apart / length) * (1 - forgetting) ** (waited / 2)
    return out


def fit(x: Floats, y: Floats) -> list[float]:
    """Return the logarithms of v, l, ε and σ² that make the observations most likely."""
    from scipy.linalg import cho_solve, cholesky  # imported here because SciPy takes half a second to load
    from scipy.optimize import minimize

    apart, waited = distances(x, x)

    def loss(theta: Floats) -> tuple[float, Floats]:
        """Return the negative log likelihood of the observations, without its constant, and its gradient (4,)."""
        variance, length, forgetting, noise = np.exp(theta)
        k = covariances(apart, waited, variance, length, forgetting)
        factor = cholesky(k + noise * np.eye(len(k)), lower=True)
        inverse = cho_solve((factor, True), np.eye(len(k)))
        alpha = inverse @ y
        by_k = 0.5 * (inverse - np.outer(alpha, alpha))
        slope = [k, k * apart / length, k * waited * (-0.5 * forgetting / (1 - forgetting))]
        gradient = np.array([*((by_k * each).sum() for each in slope), noise * by_k.trace()])
        return float(0.5 * y @ alpha + np.log(np.diag(factor)).sum()), gradient

    bounds = [(math.log(low), math.log(high)) for low, high in BOUNDS]
    found = minimize(loss, np.log(START), jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 30})
    return [float(v) for v in found.x]


class Bandit:
    """Predicts how much the score improves, and how uncertain that is, from observations and from configurations in training.

    A configuration in training is treated as an observation whose improvement is not known yet. It lowers the confidence bound
    near this configuration, so that members changed at the same time explore different ones (Desautels, Krause and Burdick, JMLR
    15, 2014).
    """

    def __init__(self, theta: list[float], seen: Observations, pending: Floats) -> None:
        from scipy.linalg import cho_solve, cholesky

        self._variance, self._length, self._forgetting, self._noise = (math.exp(v) for v in theta)
        self._seen = seen
        self._all = np.concatenate([seen.x, pending])
        k = self._kernel(self._all, self._all)
        k[np.diag_indices_from(k)] += self._noise
        self._factor = cholesky(k, lower=True)
        n = len(seen.y)
        self._alpha = cho_solve((self._factor[:n, :n], True), seen.y)

    def predict(self, at: Floats) -> tuple[Floats, Floats]:
        """Return the mean and the standard deviation (m,) of the rises at (m, 2 + p)."""
        from scipy.linalg import solve_triangular

        k = self._kernel(at, self._all)
        mean: Floats = k[:, : len(self._seen.y)] @ self._alpha
        v = solve_triangular(self._factor, k.T, lower=True)
        return mean, np.sqrt(np.maximum(self._variance - (v * v).sum(0), 1e-12))

    def bound(self, at: Floats) -> Floats:
        """Return the upper confidence bound (m,) of the rises at (m, 2 + p): mean + sqrt(β) sd."""
        mean, sd = self.predict(at)
        return mean + math.sqrt(C1 + max(0.0, math.log(C2 * max(len(self._seen.y), 1)))) * sd

    def best(self, fixed: Floats, dims: int, generator: np.random.Generator) -> Floats:
        """Return the configuration (dims,) with the highest upper confidence bound. `fixed` (2,) is its time and score."""

        def bound(points: Floats) -> Floats:
            return self.bound(np.concatenate([np.repeat(fixed[None], len(points), 0), points], axis=1))

        points = generator.random((SCATTERED, dims))
        values = bound(points)
        k = np.argsort(-values, kind="stable")[:CLIMBS]
        points, values = points[k], values[k]
        for step in STEPS:
            tries = np.clip(points[:, None] + generator.normal(0, step, (len(points), TRIES, dims)), 0, 1)
            found = bound(tries.reshape(-1, dims)).reshape(len(points), TRIES)
            best = found.argmax(1)
            row = np.arange(len(points))
            better = found[row, best] > values
            points[better], values[better] = tries[row, best][better], found[row, best][better]
        out: Floats = points[int(values.argmax())]
        return out

    def _kernel(self, a: Floats, b: Floats) -> Floats:
        return covariances(*distances(a, b), self._variance, self._length, self._forgetting)
