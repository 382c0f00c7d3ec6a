"""Rank the results of a search with constraints by Deb's rules, as one number per result.

A result that satisfies the constraints comes before all that violate them. Among the former, the better score comes first; among
the latter, the smaller violation does. Deb: "An efficient constraint handling method for genetic algorithms", 2000.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tuner.schedulers.base import SchedulerContext

VIOLATING = -1e300
"""A number below all scores. The standings of results that violate the constraints are computed from it."""


def standing(score: float, metrics: Mapping[str, float], context: SchedulerContext) -> float:
    """Return the score, or a number below all scores if `metrics` violate the constraints, lower for a larger violation."""
    excess = sum(max(0.0, c.excess(metrics)) for c in context.constraints)
    if excess <= 0:
        return score
    return VIOLATING * (1 + (1.0 if math.isinf(excess) else excess / (1 + excess)))


def violates(standing: float) -> bool:
    """Return whether this is the standing of a result that violates the constraints."""
    return standing <= VIOLATING
