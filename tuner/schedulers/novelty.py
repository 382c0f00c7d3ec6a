"""How likely a new configuration is to repeat one that has been tried, as far as the repeats so far tell.

Where code rounds a parameter, or looks up the nearest of a list, the space falls into cells within which all configurations are
the same. How large they are is not known, but every new trial shows whether it repeats the one nearest to it.
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


def log_new(chance: Floats, x: Floats, known: Floats) -> Floats:
    """ln of the probability (m,) that features x (m, q) do not repeat any of `known` (k, q)."""
    nearest = np.sqrt(squared_distances(x, known[-MOST_KNOWN:]).min(1))
    at = np.log(np.maximum(nearest, DISTANCES[0]))
    out: Floats = np.log1p(-np.interp(at, np.log(DISTANCES), chance))
    return out
