"""The Pareto front of an experiment with several objectives, and how it grew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.domain.experiment import Objective

MOST_SLICES = 20_000
"""The maximum number of slices that the hypervolumes of one response are made of: a third of a second of computing."""
MOST_POINTS = 200
"""The maximum number of points of the hypervolume over time."""


def front(values: NDArray[np.float64], objectives: tuple[Objective, ...]) -> list[int]:
    """Return the indices of the rows that are on the Pareto front, in order.

    A row is not on the front if another row is at least as good in all objectives and better in at least one. If equal rows are
    on the front, all of them are. A row with a value that is not finite is never on the front.

    Args:
        values: (rows, objectives).
        objectives: the objective of each column, with its direction.
    """
    costs = values * np.array([1.0 if objective.mode == "min" else -1.0 for objective in objectives])
    finite = np.isfinite(costs).all(axis=1)
    # sorted so that a row can only be dominated by an earlier row
    order = np.flatnonzero(finite)[np.lexsort(costs[finite].T[::-1])]
    kept: list[int] = []
    best = np.empty((0, costs.shape[1]))
    for row in order:
        cost = costs[row]
        no_worse = (best <= cost).all(axis=1)
        if not (no_worse & (best < cost).any(axis=1)).any():
            kept.append(int(row))
            best = np.vstack([best, cost])
    return sorted(kept)


def hypervolume(points: NDArray[np.float64]) -> float:
    """Return the volume of the part of the unit cube that the points dominate, if higher is better. It is 0 without points."""
    dimensions = points.shape[1]
    if not len(points):
        return 0.0
    if dimensions == 1:
        return float(points.max())
    # Slices along the last axis, from its best value down. The points that reach a slice cover it.
    points = points[np.argsort(-points[:, -1], kind="stable")]
    heights = points[:, -1] - np.append(points[1:, -1], 0.0)
    if dimensions == 2:
        return float((heights * np.maximum.accumulate(points[:, 0])).sum())
    reached = np.flatnonzero(heights > 0)
    return float(sum(heights[at] * hypervolume(points[: at + 1, :-1]) for at in reached))


def growth(
    values: NDArray[np.float64], ended: Sequence[float | None], objectives: tuple[Objective, ...]
) -> list[tuple[float, float]]:
    """Return how the front grew, as (time, hypervolume) pairs, one for each ended trial that increased the hypervolume.

    The hypervolume is a share of the box between the worst and the best value of each objective. The box is that of all rows, so
    the shares of a running search can change when it finds new extremes. If there are too many points, return some of them: the
    first, the last, and others evenly between them. Return none if even one hypervolume would take too long, as it can with more
    than three objectives.

    Args:
        values: (rows, objectives). Rows with a value that is not finite do not count.
        ended: when the trial of each row ended; None if it has not ended.
        objectives: the objective of each column, with its direction.
    """
    finite = np.logical_and.reduce(np.isfinite(values), axis=1)
    if not finite.any():
        return []
    low, high = values[finite].min(axis=0), values[finite].max(axis=0)
    wide = high > low
    shares = np.where(wide, (values - low) / np.where(wide, high - low, 1.0), 1.0)
    lower_is_better = np.array([objective.mode == "min" for objective in objectives])
    good = np.where(lower_is_better & wide, 1.0 - shares, shares)
    known = ((time, row) for row, time in enumerate(ended) if time is not None and finite[row])
    fronts: list[tuple[float, NDArray[np.float64]]] = []
    kept = np.empty((0, len(objectives)))
    for time, row in sorted(known):
        one = good[row]
        if np.all(kept >= one, axis=1).any():
            continue
        kept = np.vstack([kept[~np.all(kept <= one, axis=1)], one])
        fronts.append((time, kept))
    if not fronts:
        return []
    slices = max(len(front) for _, front in fronts) ** max(len(objectives) - 2, 0)
    count = min(len(fronts), MOST_POINTS, MOST_SLICES // slices)
    chosen = [len(fronts) - 1] if count == 1 else np.linspace(0, len(fronts) - 1, count).round().astype(int).tolist()
    found: list[tuple[float, float]] = []
    for time, kept in (fronts[at] for at in chosen):
        volume = hypervolume(kept)
        # A point on the edge of the box adds nothing.
        if volume > (found[-1][1] if found else 0.0):
            found.append((time, volume))
    return found
