"""Compare points that have several scores (higher is better): fronts, an order within a front, hypervolume."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.domain import fronts as sorting

Point = Sequence[float]


def dominates(a: Point, b: Point) -> bool:
    """Return True if a is at least as good as b in every score, and better in at least one."""
    return all(x >= y for x, y in zip(a, b, strict=True)) and any(x > y for x, y in zip(a, b, strict=True))


def fronts(points: Sequence[Point]) -> list[list[int]]:
    """Return the indices of the points by non-dominated front, the best front first. A score of -inf is the worst of all.

    This is the sorting of NSGA-II (Deb et al., 2002).
    """
    if not points:
        return []
    values = np.maximum(np.array(points, float), -sys.float_info.max)
    place = sorting.fronts(values, ["max"] * values.shape[1]).astype(int).tolist()
    found: list[list[int]] = [[] for _ in range(max(place))]
    for i, front in enumerate(place):
        found[front - 1].append(i)
    return found


def epsilon_net(points: Sequence[Point]) -> list[int]:
    """Return the indices of the points, ordered so that each point is as far as possible from all earlier ones.

    The first point is the point with the best first score. Scores are divided by their range. A score that is not finite
    counts as the worst.
    """
    if not points:
        return []
    scores = _scaled(points)
    chosen = max(range(len(points)), key=lambda i: (*scores[:, i].tolist(), -i))
    order = [chosen]
    # The square of the distance to the nearest point in `order`; -inf for the points in it.
    nearest = np.full(len(points), math.inf)
    while len(order) < len(points):
        nearest = np.minimum(nearest, ((scores - scores[:, [chosen]]) ** 2).sum(axis=0))
        nearest[chosen] = -math.inf
        chosen = int(nearest.argmax())
        order.append(chosen)
    return order


def _scaled(points: Sequence[Point]) -> NDArray[np.float64]:
    """Return the scores, one row for each score, scaled so that the lowest becomes 0 and the highest becomes 1."""
    columns = []
    for column in zip(*points, strict=True):
        known = [value for value in column if math.isfinite(value)] or [0.0]
        low, high = min(known), max(known)
        width = (high - low) or 1.0
        columns.append([(value - low) / width if math.isfinite(value) else 0.0 for value in column])
    return np.array(columns)


def hypervolume(points: Sequence[Point], reference: Point) -> float:
    """Return the volume that the points dominate above a reference point."""
    inside = [tuple(p) for p in points if all(x > r for x, r in zip(p, reference, strict=True))]
    if not inside:
        return 0.0
    if len(reference) == 1:
        return float(max(p[0] for p in inside) - reference[0])
    volume, below = 0.0, reference[-1]
    inside.sort(key=lambda p: p[-1])
    # sum slices along the last score, from low to high; only the points that are still left dominate a slice
    for at, point in enumerate(inside):
        if point[-1] > below:
            volume += (point[-1] - below) * hypervolume([p[:-1] for p in inside[at:]], reference[:-1])
            below = point[-1]
    return volume
