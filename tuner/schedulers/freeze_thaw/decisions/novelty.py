"""Reduce the value of a new configuration that is close to an earlier one.

The new configuration may be a near copy of the earlier one (see `log_apart`) or behave identically to it (see `log_new`). If
training code rounds a parameter, or takes the nearest value from a list, the space is divided into cells, and all
configurations within a cell behave identically. The size of the cells is unknown, but every new trial shows whether it repeats
the nearest earlier trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tuner.schedulers.freeze_thaw.model.curve_model import Floats, squared_distances

DISTANCES: Floats = np.geomspace(1e-4, 10.0, 60)  # the distances at which the probability of a repeat is estimated
BANDWIDTH = 0.25  # the width of the kernel over logarithms of distances
DOUBT = 1.0  # weight of the prior at every distance: it counts as this many trials that are not repeats
MOST = 0.99
MOST_KNOWN = 1000  # a new configuration is compared with this many of the newest trials
CROWDED = 0.05  # the distance within which a new configuration counts as a near copy of an earlier one


class Novelty:
    """Estimates the probability of an exact repeat. The estimate depends only on the results so far."""

    def __init__(self) -> None:
        self._points: dict[int, Floats] = {}  # trial -> features
        self._first: list[tuple[int, float | None]] = []
        self._distance: list[float] = []  # distance from each trial but the first to the nearest earlier trial
        # for each trial but the first, True if it has the same first result as the nearest earlier trial
        self._same: list[bool] = []
        self._chance: Floats | None = None
        self._count = 0

    def follow(self, results: Sequence[tuple[int, int, float | None]], features: Callable[[int], Floats]) -> None:
        """Process the new items of a list of (trial, level index, score) that only grows.

        `features` gives the features (q,) of a trial.
        """
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
        """Return the probability that a configuration repeats the nearest earlier one, for each distance in DISTANCES.

        The probability never increases with the distance. Return None if no trial has repeated another trial yet.
        """
        if self._chance is None and any(self._same):
            at = np.log(np.maximum(self._distance, DISTANCES[0]))
            weight = np.exp(-0.5 * ((np.log(DISTANCES)[:, None] - at) / BANDWIDTH) ** 2)
            share = weight @ np.array(self._same, dtype=float) / (weight.sum(1) + DOUBT)
            self._chance = np.minimum(np.maximum.accumulate(share[::-1])[::-1], MOST)
        return self._chance


def distance_to_nearest(x: Floats, known: Floats) -> Floats:
    """Return the distances (m,) from the features x (m, q) to the nearest of `known` (k, q)."""
    out: Floats = np.sqrt(squared_distances(x, known[-MOST_KNOWN:]).min(1))
    return out


def log_new(chance: Floats, nearest: Floats) -> Floats:
    """Return ln of the probability (m,) that configurations at these distances do not repeat the nearest earlier one."""
    at = np.log(np.maximum(nearest, DISTANCES[0]))
    out: Floats = np.log1p(-np.interp(at, np.log(DISTANCES), chance))
    return out


def log_apart(nearest: Floats) -> Floats:
    """Return ln of the weight (m,) of configurations at these distances from the nearest earlier one.

    If the goal is close to the best score, every near copy of a good configuration has a fair chance of passing it.
    Without this weight, copies would take a large part of the training, although they can hardly improve the best
    score.
    """
    out: Floats = np.log1p(-MOST * np.exp(-0.5 * (nearest / CROWDED) ** 2))
    return out
