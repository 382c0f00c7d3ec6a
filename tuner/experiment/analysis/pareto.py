"""The Pareto front of an experiment with several objectives, and how it grew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.domain.experiment import Objective
from tuner.domain.fronts import fronts

MOST_SLICES = 20_000
"""The maximum number of slices that the hypervolumes of one response are made of: a third of a second of computing."""
MOST_POINTS = 200
"""The maximum number of points of the hypervolume over time."""
_AT_ONCE = 256
"""The number of rows that are compared with a front at once."""


def front(values: NDArray[np.float64], objectives: tuple[Objective, ...]) -> list[int]:
    """Return the indices of the rows that are on the Pareto front, in order.

    A row is not on the front if another row is at least as good in all objectives and better in at least one. If equal rows are
    on the front, all of them are. A row with a value that is not finite is never on the front.

    Args:
        values: (rows, objectives).
        objectives: the objective of each column, with its direction.
    """
    first = fronts(values, [objective.mode for objective in objectives]) == 1
    return [int(row) for row in np.flatnonzero(first)]


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
    first, the last, and others evenly between them. Return an empty list if even one hypervolume would take too long, as it can
    with more than three objectives.

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
    known = sorted((time, row) for row, time in enumerate(ended) if time is not None and finite[row])
    ordered = good[np.array([row for _, row in known], np.intp)]
    improving, largest = _improving(ordered)
    if not improving:
        return []
    count = min(len(improving), MOST_POINTS, MOST_SLICES // largest ** max(len(objectives) - 2, 0))
    last = len(improving) - 1
    chosen = [last] if count == 1 else np.linspace(0, last, count).round().astype(int).tolist()
    found: list[tuple[float, float]] = []
    kept, done = ordered[:0], 0
    for at in chosen:
        kept, done = _merged(kept, ordered[improving[done : at + 1]]), at + 1
        (time, _), volume = known[improving[at]], hypervolume(kept)
        # A point on the edge of the box adds nothing.
        if volume > (found[-1][1] if found else 0.0):
            found.append((time, volume))
    return found


def _improving(rows: NDArray[np.float64]) -> tuple[list[int], int]:
    """Return the rows that no earlier row equals or surpasses in all objectives, and the size of the largest front.

    rows: (rows, objectives), in the order in which they arrived; higher is better.
    """
    kept = rows[:0]
    found: list[int] = []
    largest = 0
    for begin in range(0, len(rows), _AT_ONCE):
        part = rows[begin : begin + _AT_ONCE]
        new: list[int] = []
        for at in np.flatnonzero(~_dominated(part, kept)).tolist():
            if not _dominated(part[at : at + 1], part[new])[0]:
                new.append(at)
        kept = _merged(kept, part[new])
        largest = max(largest, len(kept))
        found += [begin + at for at in new]
    return found, largest


def _merged(front: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the front of all points of `front` and `rows`. No row is equaled or surpassed by an earlier row or by `front`."""
    rows = rows[[at for at in range(len(rows)) if not _dominated(rows[at : at + 1], rows[at + 1 :])[0]]]
    return np.vstack([front[~_dominated(front, rows)], rows])


def _dominated(rows: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return for each row whether one of `others` equals or surpasses it in all objectives."""
    found = np.zeros(len(rows), np.bool_)
    for begin in range(0, len(rows), _AT_ONCE):
        part = rows[begin : begin + _AT_ONCE]
        by = np.ones((len(part), len(others)), np.bool_)
        for objective in range(rows.shape[1]):  # a comparison along the short axis would take ten times as long
            by &= others[:, objective] >= part[:, objective, None]
        found[begin : begin + _AT_ONCE] = by.any(axis=1)
    return found
