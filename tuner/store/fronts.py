"""Sort trials with several objectives into fronts."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def fronts(values: Floats, modes: Sequence[str]) -> Floats:
    """Return the front of each row, from 1 for the Pareto front; NaN for a row with a value that is not finite.

    The second front is the Pareto front of the rows that are left without the first one, and so on. Equal rows are on the same
    front.

    Args:
        values: (rows, objectives).
        modes: "min" or "max" for each objective.
    """
    costs = values * np.array([1.0 if mode == "min" else -1.0 for mode in modes])
    found = np.full(len(costs), math.nan)
    finite = np.isfinite(costs).all(axis=1)
    if not finite.any():
        return found
    # Sorted, so that a row can be dominated only by rows before it, whose first cost is not higher.
    rows, inverse = np.unique(costs[finite], axis=0, return_inverse=True)
    place = _placed_by_two if costs.shape[1] == 2 else _placed
    found[finite] = np.array(place(rows[:, 1:]))[inverse.reshape(-1)]
    return found


def _placed_by_two(rest: Floats) -> list[int]:
    """Return the front of each row of two costs. The rows are sorted, and only their second costs are given.

    A front dominates a row if the lowest second cost of the front is not higher than that of the row.
    """
    lowest: list[float] = []  # the lowest second cost of each front, ascending
    found: list[int] = []
    for [cost] in rest.tolist():
        at = bisect_right(lowest, cost)
        lowest[at : at + 1] = [cost]
        found.append(at + 1)
    return found


def _placed(rest: Floats) -> list[int]:
    """Return the front of each sorted row, given all its costs but the first one: the first front that does not dominate it.

    If a front dominates a row, so do all better fronts, so the search can be binary. This is ENS-BS of Zhang et al. (2015).
    """
    kept: list[Floats] = []  # (costs, rows) of each front, with room for more rows
    sizes: list[int] = []
    found: list[int] = []
    for row in rest:
        low, high = 0, len(kept)
        while low < high:
            middle = (low + high) // 2
            no_worse = np.ones(sizes[middle], np.bool_)
            for costs, cost in zip(kept[middle], row, strict=True):
                no_worse &= costs[: sizes[middle]] <= cost
            if no_worse.any():
                low = middle + 1
            else:
                high = middle
        if low == len(kept):
            kept.append(np.empty((len(row), 8)))
            sizes.append(0)
        elif sizes[low] == kept[low].shape[1]:
            kept[low] = np.concatenate([kept[low], np.empty_like(kept[low])], axis=1)
        kept[low][:, sizes[low]] = row
        sizes[low] += 1
        found.append(low + 1)
    return found
