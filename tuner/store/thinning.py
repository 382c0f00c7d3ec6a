"""Curves at the resolution of a screen: deterministic, with every spike."""

from __future__ import annotations

from collections.abc import Sequence


def thin(x: Sequence[float], y: Sequence[float | None], max_points: int) -> tuple[list[float], list[float | None]]:
    """At most `max_points` of the points (but never fewer than four), in order.

    The points between the first and the last are cut into buckets of equal size; of each, the lowest and the highest
    stay, so no spike is lost, and no value is made up. A gap (None) stays where a bucket has nothing else.
    """
    size = len(x)
    if size <= max(max_points, 4):
        return list(x), list(y)
    buckets = max((max_points - 2) // 2, 1)
    keep = [0]
    inner = size - 2
    for bucket in range(buckets):
        begin, end = 1 + bucket * inner // buckets, 1 + (bucket + 1) * inner // buckets
        lowest = highest = begin
        for at in range(begin, end):
            value = y[at]
            if value is None:
                continue
            low, high = y[lowest], y[highest]
            if low is None or value < low:
                lowest = at
            if high is None or value > high:
                highest = at
        keep.extend(sorted({lowest, highest}))
    keep.append(size - 1)
    return [x[at] for at in keep], [y[at] for at in keep]
