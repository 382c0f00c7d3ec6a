"""Compute the levels, and their positions on the time axis of the curve model.

A level is a value of time_attr, such as 9 epochs. Freeze-thaw decides about a trial whenever the trial reaches a level.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEVEL_RATIO = 1.5


def levels(grace: float, end: float) -> list[float]:
    """Return the levels from `grace` to `end`, each about 1.5 times the previous level.

    The levels are whole numbers if `grace` and `end` are. The last level is `end`, and no other level is just below it.
    """
    whole = grace.is_integer() and end.is_integer()
    found = []
    level = grace
    while level * 1.2 < end:
        found.append(level)
        level = max(level + 1, math.floor(level * LEVEL_RATIO + 0.5)) if whole else level * LEVEL_RATIO
    return [*found, end]


def tau(levels: Floats, t: Floats) -> Floats:
    """Return ln(t / first) / ln(last / first): 0 at the first level, 1 at the last."""
    if len(levels) == 1:
        return np.ones(np.shape(t))
    out: Floats = np.log(np.maximum(t, levels[0]) / levels[0]) / math.log(levels[-1] / levels[0])
    return out
