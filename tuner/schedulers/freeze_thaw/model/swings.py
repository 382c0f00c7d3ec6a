"""Judge how widely trials' reports fluctuate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner.schedulers.freeze_thaw.model.score_warp import Warp

KEPT = 200  # this many of the latest swings are judged
LARGE = 0.12  # swings are large if their mean is at least this, on the model's scale
USUAL, USUAL_WEIGHT = 0.025, 20  # the prior mean swing, and how many reports it counts as

Swing = tuple[float, float]
"""The two scores between which a trial moved up and down; equal if its last two changes had the same direction."""


def swing(before: float, middle: float, after: float) -> Swing:
    """Return the ends of the smaller of two opposite changes: from `before` to `middle`, and from there to `after`."""
    if (middle - before) * (after - middle) >= 0:
        return middle, middle
    return middle, before if abs(middle - before) < abs(after - middle) else after


def are_large(swings: Sequence[Swing], scores: Sequence[float]) -> bool:
    """Return True if swings are large, compared with the differences between `scores` (n,), n >= 1."""
    if not swings:
        return False
    zs, known = Warp.of(np.array(scores)).knots
    ends = np.interp(np.array(swings), known, zs)
    total = float(np.abs(ends[:, 0] - ends[:, 1]).sum())
    return total + USUAL * USUAL_WEIGHT >= LARGE * (len(swings) + USUAL_WEIGHT)
