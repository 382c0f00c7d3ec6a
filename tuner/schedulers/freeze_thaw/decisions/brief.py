"""Decide about very short trials: choose the share of decisions that the model makes, and make the others by a simple rule.

A model decision takes several milliseconds. If the training between two decisions takes less time than that, the model
would cost more than the training that it steers. In that case, the model makes only as many decisions as the training
pays for.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from collections.abc import Collection, Sequence

import numpy as np

from tuner.schedulers.freeze_thaw.model.curve_model import Floats
from tuner.schedulers.freeze_thaw.model.results import Result
from tuner.schedulers.freeze_thaw.model.unit_cube import Cube, key

DECISION_S, DECISION_S_PER_TRIAL = 0.008, 2e-5  # seconds that a model decision takes on a busy machine
KEEP = 3  # without the model, one in this many trials continues at each level
BEST = 5  # half of the new configurations are near one of this many of the best trials
STEP = 0.1  # the standard deviation of their distance from it, in each parameter that differs


def share_of_model(between_s: float, trials: int) -> float:
    """Return the share of decisions that the model makes. `between_s` is the training between two decisions, in seconds."""
    return min(1.0, between_s / (DECISION_S + DECISION_S_PER_TRIAL * trials))


def continues(rank: int, entries: int) -> bool:
    """Return True if a trial with this rank is the best one, or among the best third of the entries."""
    return rank <= max(1, entries // KEEP)


class LevelRanks:
    """Holds the sorted scores of each level and the best score of each trial, from a list of results that only grows."""

    def __init__(self) -> None:
        self._levels: dict[int, list[float]] = {}
        self._newest: dict[int, tuple[int, float]] = {}
        self._best: dict[int, float] = {}
        self._count = 0

    def follow(self, results: Sequence[Result]) -> LevelRanks:
        """Process the new items of a list of (trial, level index, score) that only grows. Return self."""
        for trial, level, score in results[self._count :]:
            score = -math.inf if score is None else score
            insort(self._levels.setdefault(level, []), score)
            self._newest[trial] = level, score
            self._best[trial] = max(score, self._best.get(trial, -math.inf))
        self._count = len(results)
        return self

    def rank(self, trial: int) -> tuple[int, int]:
        """Return the rank of a trial's newest result among all results at the same level, and the number of these results."""
        level, score = self._newest[trial]
        scores = self._levels[level]
        return 1 + len(scores) - bisect_right(scores, score), len(scores)

    def best(self, count: int) -> list[int]:
        """Return the trials with the best scores, best first."""
        return heapq.nlargest(count, self._best, key=lambda trial: (self._best[trial], -trial))


def near(point: Floats, cube: Cube, tried: Collection[bytes], generator: np.random.Generator) -> Floats | None:
    """Return an untried point near `point`, or None if every point that was drawn has been tried."""
    for _ in range(10):
        (found,) = cube.perturb(point[None], STEP, generator)
        if key(found) not in tried and key(found) != key(point):
            out: Floats = found
            return out
    return None
