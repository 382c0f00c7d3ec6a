"""How much less a new configuration is worth because it is close to one that has been tried.

It may be a near copy (`log_apart`), or an exact repeat, as far as the repeats so far tell (`log_new`). Where code rounds a
parameter, or looks up the nearest of a list, the space falls into cells within which all configurations are the same. How
large they are is not known, but every new trial shows whether it repeats the one nearest to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tuner.schedulers.curve_model import Floats, squared_distances

DISTANCES: Floats = np.geomspace(1e-4, 10.0, 60)  # at which the chance of a repeat is told
BANDWIDTH = 0.25  # of the logarithm of a distance
DOUBT = 1.0  # that there are no repeats, as if so many trials had shown it at every distance
MOST = 0.99
MOST_KNOWN = 1000  # trials that a new configuration is compared with, the newest
CROWDED = 0.05  # the distance within which a new configuration is crowded by one that has been tried


class Novelty:
    """Grows with the results; the same results give the same answers."""

    def __init__(self) -> None:
        self._points: dict[int, Floats] = {}  # trial -> features
        self._first: list[tuple[int, float | None]] = []
        self._distance: list[float] = []  # of every trial but the first, to the nearest earlier one,
        self._same: list[bool] = []  # and whether its first result is the same
        self._chance: Floats | None = None
        self._count = 0

    def follow(self, results: Sequence[tuple[int, int, float | None]], features: Callable[[int], Floats]) -> None:
        """Take in what is new in a list of (trial, level, score) that only grows; `features` of a trial are (q,)."""
        for trial, level, score in results[self._count :]:
            if trial in self._points:
                continue
            x = features(trial)
            if self._points:
                squared = ((np.array(list(self._points.values())) - x) ** 2).sum(1)
                nearest = int(squared.argmin())
                self._distance.append(float(np.sqrt(squared[nearest])))
                self._same.append(score is not None and self._first[nearest] == (level, score))
            self._points[trial] = x
            self._first.append((level, score))
            self._chance = None
        self._count = len(results)

    def chance(self) -> Floats | None:
        """How likely a configuration is to repeat the nearest one, at DISTANCES, falling; None while none did."""
        if self._chance is None and any(self._same):
            at = np.log(np.maximum(self._distance, DISTANCES[0]))
            weight = np.exp(-0.5 * ((np.log(DISTANCES)[:, None] - at) / BANDWIDTH) ** 2)
            share = weight @ np.array(self._same, dtype=float) / (weight.sum(1) + DOUBT)
            self._chance = np.minimum(np.maximum.accumulate(share[::-1])[::-1], MOST)
        return self._chance


def distance_to_nearest(x: Floats, known: Floats) -> Floats:
    """Return how far (m,) features x (m, q) are from the nearest of `known` (k, q)."""
    out: Floats = np.sqrt(squared_distances(x, known[-MOST_KNOWN:]).min(1))
    return out


def log_new(chance: Floats, nearest: Floats) -> Floats:
    """Return ln of the probability (m,) that configurations at these distances from the nearest tried one do not repeat it."""
    at = np.log(np.maximum(nearest, DISTANCES[0]))
    out: Floats = np.log1p(-np.interp(at, np.log(DISTANCES), chance))
    return out


def log_apart(nearest: Floats) -> Floats:
    """Return ln of what a configuration is worth (m,) at these distances from the nearest tried one: near copies count for less.

    A small goal gives every near copy of a good configuration a fair chance of passing it. Without this, copies take a large
    part of the training, though they can improve on the best score by very little.
    """
    out: Floats = np.log1p(-MOST * np.exp(-0.5 * (nearest / CROWDED) ** 2))
    return out
