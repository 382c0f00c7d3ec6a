"""Find trials whose results equal those of another trial, to the last bit.

If the user's code rounds parameters or ignores some of them, and training is reproducible, two configurations may give
identical results. Training the second configuration further would show nothing new.
"""

from __future__ import annotations

from collections.abc import Sequence

Curve = tuple[tuple[int, float | None], ...]


class Repeats:
    """An index of learning curves. A curve is a tuple of (level index, score) pairs."""

    def __init__(self) -> None:
        self._curves: dict[int, Curve] = {}
        self._trials: dict[Curve, list[int]] = {}  # the beginning of a curve -> the trials that have it, oldest first
        self._count = 0

    def follow(self, results: Sequence[tuple[int, int, float | None]]) -> None:
        """Process the new items of a list of (trial, level index, score) that only grows."""
        for trial, level, score in results[self._count :]:
            curve = (*self._curves.get(trial, ()), (level, score))
            self._curves[trial] = curve
            self._trials.setdefault(curve, []).append(trial)
        self._count = len(results)

    def original(self, trial: int) -> int | None:
        """Return another trial that got the same results earlier, or got them and trained further; None if there is none.

        At least two different results must agree, because a single result may agree by chance, and flat curves often do.
        """
        curve = self._curves.get(trial, ())
        alike = self._trials.get(curve, [])
        if len(alike) < 2 or len({score for _, score in curve}) < 2:
            return None
        if alike[0] != trial:
            return alike[0]
        return next((other for other in alike if len(self._curves[other]) > len(curve)), None)

    def begins_like_another(self, trial: int) -> bool:
        """Return True if an earlier trial had the same first result."""
        curve = self._curves.get(trial, ())
        return bool(curve) and self._trials[curve[:1]][0] != trial
