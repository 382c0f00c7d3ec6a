"""Intervals of means."""

from __future__ import annotations

import math
import statistics
from typing import Any


def interval(values: Any) -> float | None:
    """Return half the width of the 95 % interval of the mean, or None for a single value, since JSON has no NaN."""
    return round(1.96 * statistics.stdev(values) / math.sqrt(len(values)), 4) if len(values) > 1 else None
