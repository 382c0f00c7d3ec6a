"""Compare points that have several scores (higher is better): fronts, an order within a front, hypervolume."""

from __future__ import annotations

import math
from collections.abc import Sequence

Point = Sequence[float]


def dominates(a: Point, b: Point) -> bool:
    """Return True if a is at least as good as b in every score, and better in at least one."""
    return all(x >= y for x, y in zip(a, b, strict=True)) and any(x > y for x, y in zip(a, b, strict=True))


def fronts(points: Sequence[Point]) -> list[list[int]]:
    """Return the indices of the points by non-dominated front, the best front first.

    This is the sorting of NSGA-II (Deb et al., 2002).
    """
    beats: list[list[int]] = [[] for _ in points]
    beaten = [0] * len(points)
    for i, a in enumerate(points):
        for j in range(i + 1, len(points)):
            if dominates(a, points[j]):
                beats[i].append(j)
                beaten[j] += 1
            elif dominates(points[j], a):
                beats[j].append(i)
                beaten[i] += 1
    found: list[list[int]] = []
    front = [i for i, count in enumerate(beaten) if not count]
    while front:
        found.append(front)
        following = []
        for i in front:
            for j in beats[i]:
                beaten[j] -= 1
                if not beaten[j]:
                    following.append(j)
        front = sorted(following)
    return found


def epsilon_net(points: Sequence[Point]) -> list[int]:
    """Return the indices of the points, ordered so that each point is as far as possible from all earlier ones.

    The first point is the point with the best first score. Scores are divided by their range. A score that is not finite
    counts as the worst.
    """
    if not points:
        return []
    scaled = _scaled(points)
    order = [max(range(len(points)), key=lambda i: (scaled[i], -i))]
    nearest = [math.dist(scaled[order[0]], each) for each in scaled]
    left = set(range(len(points))) - set(order)
    while left:
        chosen = max(left, key=lambda i: (nearest[i], -i))
        order.append(chosen)
        left.remove(chosen)
        nearest = [min(known, math.dist(scaled[chosen], each)) for known, each in zip(nearest, scaled, strict=True)]
    return order


def _scaled(points: Sequence[Point]) -> list[list[float]]:
    columns = []
    for column in zip(*points, strict=True):
        known = [value for value in column if math.isfinite(value)] or [0.0]
        low, high = min(known), max(known)
        width = (high - low) or 1.0
        columns.append([(value - low) / width if math.isfinite(value) else 0.0 for value in column])
    return [list(row) for row in zip(*columns, strict=True)]


def order(points: Sequence[Point]) -> list[int]:
    """Return the indices of the points, best first: by front, and within a front by `epsilon_net`."""
    found: list[int] = []
    for front in fronts(points):
        found += [front[i] for i in epsilon_net([points[i] for i in front])]
    return found


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
