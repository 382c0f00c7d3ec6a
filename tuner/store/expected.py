"""Compute the expected value of each trial's configuration after repeats.

The driver stores a model of a few numbers in the experiment's row. A new result of any trial changes the values of all trials, so
the values themselves are not stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Expected:
    """The model of `best.runs`, which the page has too (`web/src/curves/expected.ts`).

    middle: the expected value of a configuration without a run.
    weight: how much a single run counts, from 0 to 1.
    several: trial -> the expected value of its configuration, for the configurations with several runs.
    dropped: the first runs of the configurations that do not lead, because a repeat failed, diverged or violated the constraints.
    """

    middle: float
    weight: float
    several: Mapping[int, float]
    dropped: Sequence[int]

    @classmethod
    def of(cls, best: Mapping[str, Any] | None) -> Expected | None:
        """Return the model in the column `best` of an experiment; None before the first repeat, or if it has none."""
        runs = (best or {}).get("runs") or {}
        single = runs.get("single") or {}
        middle, weight = single.get("middle"), single.get("weight")
        if middle is None or not math.isfinite(middle):
            return None
        several = {
            number: math.nan if one["expected"] is None else float(one["expected"])
            for one in runs.get("repeated", ())
            for number in one["trials"]
        }
        return cls(float(middle), 1.0 if weight is None else float(weight), several, tuple(runs.get("dropped", ())))

    def values(self, numbers: NDArray[np.int64], best: Floats, repeat_of: Floats) -> Floats:
        """Return the expected value of each trial; NaN for trials without a result, and for repeats that do not count.

        Args:
            numbers: the numbers of the trials.
            best: their best values; NaN for trials without one.
            repeat_of: the trials that they repeat; NaN for trials that are not repeats.
        """
        found = np.where(np.isnan(repeat_of), self.middle + self.weight * (best - self.middle), math.nan)
        listed = np.isin(numbers, list(self.several))
        found[listed] = [self.several[number] for number in numbers[listed].tolist()]
        found[~np.isfinite(found)] = math.nan
        return found

    def is_dropped(self, numbers: NDArray[np.int64], repeat_of: Floats) -> NDArray[np.bool_]:
        """Return a mask of the trials whose configuration does not lead."""
        return np.isin(np.where(np.isnan(repeat_of), numbers, repeat_of), self.dropped)
