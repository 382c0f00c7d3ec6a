"""Hold the results of trials at the levels (see `levels`), and select those to which the curve model is fitted."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.schedulers.freeze_thaw.model.curve_model import Floats, Ints

MAX_ROWS = 320  # the maximum number of results in the model, whose cost grows with the cube of this number
TOP_TRIALS = 40  # this many of the best trials are preferred to other trials
TOP_RESULTS = 180  # this many earlier results of the best trials are preferred

Result = tuple[int, int, float | None]
"""(trial, level index, score), where the score of a crash is None."""


def within(results: Sequence[Result], excess: Mapping[tuple[int, int], float]) -> Sequence[Result]:
    """Return the results, with lower scores for those that violate the constraints.

    A result that violates the constraints is ranked below 90 % of the results within them, and lower if the violation is
    larger. Its score stays on the scale of the other scores, so that the model can learn where the constraints hold. If no
    result satisfies the constraints, only the violations are compared.

    Args:
        results: the results.
        excess: (trial, level index) -> size of the violation. Results that are not in it satisfy the constraints.
    """
    if not excess:
        return results
    inside = [s for trial, level, s in results if s is not None and (trial, level) not in excess]
    beyond = sorted(excess.values())
    top, low = (max(inside), float(np.quantile(inside, 0.1))) if inside else (1.0, 0.0)
    width = (top - low) or 1.0

    def score(result: Result) -> float | None:
        trial, level, value = result
        own = excess.get((trial, level))
        # Compare by rank, because metrics have different units, and a missing metric counts as a very large violation.
        return value if value is None or own is None else low - width * bisect.bisect_right(beyond, own) / len(beyond)

    return [(result[0], result[1], score(result)) for result in results]


@dataclass(frozen=True, slots=True)
class Results:
    """All results at levels, in the order in which they arrived.

    A trial's slot is its position among all trials with results, ordered by number. There are n results, and k trials
    with results.

    Attributes:
        slot: the slot of each result's trial (n,).
        level: the level index of each result (n,).
        score: the score of each result (n,); -inf for a crash.
        number: the trial number of each slot (k,).
        best: the best score of each slot (k,).
        newest: the index of the newest result of each slot (k,).
        points: the realized point of each slot (k, p).
        repeat: True for each slot whose trial is known to repeat another trial (k,). The model does not see such results.
    """

    slot: Ints
    level: Ints
    score: Floats
    number: Ints
    best: Floats
    newest: Ints
    points: Floats
    repeat: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        results: Sequence[Result],
        point: Callable[[int], Floats],
        repeats: Callable[[int], bool] = lambda number: False,
    ) -> Results:
        """Build the object from a non-empty list of (trial, level index, score). The score of a crash is None.

        `point` gives the realized point of a trial, and `repeats` says whether the trial repeats another trial.
        """
        numbers, slot = np.unique(np.array([r[0] for r in results], dtype=np.int64), return_inverse=True)
        score = np.array([-np.inf if r[2] is None else r[2] for r in results])
        best = np.full(len(numbers), -np.inf)
        np.maximum.at(best, slot, score)
        newest: Ints = np.zeros(len(numbers), dtype=np.int64)
        newest[slot] = np.arange(len(slot))
        level: Ints = np.array([r[1] for r in results], dtype=np.int64)
        points = np.array([point(int(n)) for n in numbers])
        repeat = np.array([repeats(int(n)) for n in numbers], dtype=bool)
        return cls(slot, level, score, numbers, best, newest, points, repeat)

    def thinned(self, generator: np.random.Generator, always: int | None = None, most: int = MAX_ROWS) -> Ints:
        """Return the indices of at most `most` results for the model, in ascending order.

        Results of repeats are left out, because they add no information and would suggest that neighbors are more similar
        than they are. The newest results of the best trials are taken first. Next come the earlier results of the best
        trials, which show how curves continue, then the newest results of the other trials, and then all other results. If
        not all results of one kind fit, some are chosen at random. The newest result of slot `always` is always included.
        """
        own = np.flatnonzero(~self.repeat[self.slot])
        if len(own) <= most:
            return own
        place = np.full(len(self.best), TOP_TRIALS)
        top = self.top(TOP_TRIALS)
        place[top] = np.arange(len(top))
        place = place[self.slot[own]]
        best, last = place < TOP_TRIALS, np.isin(own, self.newest)
        kind = np.where(best, np.where(last, 0, 3), np.where(last, 2, 3))
        earlier = np.flatnonzero(best & ~last)
        kind[earlier[np.argsort(place[earlier], kind="stable")[: TOP_RESULTS * most // MAX_ROWS]]] = 1
        if always is not None:
            kind[own == self.newest[always]] = 0
        return np.sort(own[np.argsort(kind + generator.random(len(own)), kind="stable")[:most]])

    def top(self, count: int) -> Ints:
        """Return the slots of the best trials, best first. Trials that repeat another trial are left out."""
        order: Ints = np.lexsort((-self.best, self.repeat))
        return order[: min(count, int((~self.repeat).sum()))]
