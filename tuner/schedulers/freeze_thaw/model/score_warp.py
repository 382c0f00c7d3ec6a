"""Map scores to the values to which the curve model is fitted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Floats = NDArray[np.float64]

WORST_Z = -3.0


@dataclass(frozen=True, slots=True)
class Warp:
    """A map from scores to z, the values to which the model is fitted.

    The map is linear above the median. Below the median, z is the normal quantile of the score's rank, so that failures and
    diverged runs do not set the scale on which good configurations are compared.

    Attributes:
        z: the values (n,) of the scores from which the map was made. Their mean is 0.
        centre: the score at z = 0, if that lies above the median.
        scale: the score difference that corresponds to a difference of 1 in z, above the median.
        knots: known (z, score) pairs, both increasing, for the inverse map below the median.
    """

    z: Floats
    centre: float
    scale: float
    knots: tuple[Floats, Floats]

    @classmethod
    def of(cls, scores: Floats) -> Warp:
        """Return the map for `scores` (n,), n >= 1. Higher is better; a trial that crashed or diverged has -inf."""
        finite = np.isfinite(scores)
        scores = np.where(finite, np.clip(scores, -1e300, 1e300), -np.inf)
        if not finite.any():
            return cls(np.zeros(len(scores)), 0.0, 1.0, (np.zeros(1), np.zeros(1)))
        # If most trials crashed, the median is -inf. Use the worst finite score instead.
        median = max(float(np.median(np.where(finite, scores, -np.inf))), float(scores[finite].min()))
        upper = scores >= median
        above = scores[upper] - median
        farthest = float(above.max())
        scale = 1.0
        if farthest > 1e-12 * (1.0 + abs(median)):
            scale = farthest * math.sqrt(float(np.mean((above / farthest) ** 2)))
        z = np.where(upper, (np.where(upper, scores, median) - median) / scale, 0.0)
        z[~upper] = np.maximum(ndtri((_average_ranks(scores)[~upper] + 0.5) / len(scores)), WORST_Z)
        shift = float(z.mean())
        z -= shift
        order = np.argsort(scores[finite], kind="stable")
        return cls(z, median + shift * scale, scale, (z[finite][order], scores[finite][order]))

    def forward(self, score: float) -> float:
        """Return z of a score at or above the median."""
        return (score - self.centre) / self.scale

    def back(self, z: float) -> float:
        """Return the score at z, for messages. Below the median, the score is interpolated between known scores."""
        zs, scores = self.knots
        linear = self.centre + z * self.scale
        if z >= zs[-1]:
            return max(linear, float(scores[-1]))
        return float(np.interp(z, zs, scores))


def _average_ranks(values: Floats) -> Floats:
    """Return 0-based ranks. Equal values get the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    mean_rank: Floats = ends - (counts + 1) / 2
    return mean_rank[inverse]
