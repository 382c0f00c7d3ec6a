"""Trials that repeat others to the last bit.

User code rounds parameters, or does not look at some of them; a reproducible training then gives the very same results for
two configurations. Training the second one on shows nothing that the first will not show.
"""

from __future__ import annotations

from collections.abc import Sequence

Curve = tuple[tuple[int, float | None], ...]


class Repeats:
    """An index of curves, (level, score) by (level, score), that grows with the results."""

    def __init__(self) -> None:
        self._curves: dict[int, Curve] = {}
        self._trials: dict[
            Curve, list[int]
        ] = {}  # a beginning -> the trials that have it, in the order in which they came
        self._count = 0

    def follow(self, results: Sequence[tuple[int, int, float | None]]) -> None:
        """Take in what is new in a list of (trial, level, score) that only grows."""
        for trial, level, score in results[self._count :]:
            curve = (*self._curves.get(trial, ()), (level, score))
            self._curves[trial] = curve
            self._trials.setdefault(curve, []).append(trial)
        self._count = len(results)

    def original(self, trial: int) -> int | None:
        """A trial with the same results that is further on, or was as far earlier; None where there is none.

        Two different results at least must agree: one alone may do so by chance, and a flat curve says nothing.
        """
        curve = self._curves.get(trial, ())
        alike = self._trials.get(curve, [])
        if len(alike) < 2 or len({score for _, score in curve}) < 2:
            return None
        if alike[0] != trial:
            return alike[0]
        return next((other for other in alike if len(self._curves[other]) > len(curve)), None)

    def begins_like_another(self, trial: int) -> bool:
        """Whether an earlier trial had the same first result."""
        curve = self._curves.get(trial, ())
        return bool(curve) and self._trials[curve[:1]][0] != trial
