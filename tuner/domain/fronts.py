"""Sort trials with several objectives into fronts."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.intp]

MANY = 3
"""`Fronts` moves single rows if there are at least this many objectives; with fewer, sorting all rows again is quicker."""

FEW = 200
"""Sort all rows again if more than one row in `FEW` has changed, since moving one costs as much as sorting a hundred."""

MOST_COMPARED = 2**20
"""The maximum number of pairs of rows that are compared at once. Each takes two bytes of memory."""


def fronts(values: Floats, modes: Sequence[str]) -> Floats:
    """Return the front of each row, from 1 for the Pareto front; NaN for a row with a value that is not finite.

    The second front is the Pareto front of the rows that are left without the first one, and so on. Equal rows are on the same
    front.

    Args:
        values: (rows, objectives).
        modes: "min" or "max" for each objective.
    """
    return _sorted(_costs(values, modes))


class Fronts:
    """Computes the same fronts as `fronts`, and is quicker if only a few rows have changed since the last call.

    From three objectives on, a change moves rows between the fronts, as in ENLU of Li et al. (2017), instead of sorting all rows
    again. With two objectives, sorting is quicker.
    """

    def __init__(self) -> None:
        self._costs = np.empty((0, 0))
        self._found = np.empty(0)
        self._members: list[Places] | None = None  # the places of the rows of each front; None: not known yet

    def of(self, values: Floats, modes: Sequence[str]) -> Floats:
        """Return the front of each row, as `fronts` does. Do not change the result: later calls may return it again."""
        costs = _costs(values, modes)
        changed = self._changed(costs)
        if changed is None or len(changed) * FEW > len(costs) or (len(changed) and costs.shape[1] < MANY):
            self._costs, self._found, self._members = costs, _sorted(costs), None
        elif len(changed):
            self._change(changed, costs)
        return self._found

    def _changed(self, costs: Floats) -> Places | None:
        """Return the places of the rows that are new or have changed, or None if rows were removed."""
        before = len(self._costs)
        if before > len(costs) or self._costs.shape[1] != costs.shape[1]:
            return None
        same = (self._costs == costs[:before]) | (np.isnan(self._costs) & np.isnan(costs[:before]))
        return np.append(np.flatnonzero(~same.all(axis=1)), np.arange(before, len(costs)))

    def _change(self, changed: Places, costs: Floats) -> None:
        """Move the rows that have changed to their fronts, and the others out of their way."""
        if self._members is None:
            self._members = [
                np.flatnonzero(self._found == 1 + at) for at in range(int(np.nanmax(self._found, initial=0)))
            ]
        self._found = np.append(self._found, np.full(len(costs) - len(self._found), math.nan))
        for place in changed[np.isfinite(self._found[changed])]:
            self._remove(place, self._members)
        self._costs = costs
        for place in changed[np.isfinite(costs[changed]).all(axis=1)]:
            self._insert(place, self._members)

    def _remove(self, place: np.intp, members: list[Places]) -> None:
        """Remove a row. A row rises to the front above its own if all rows there that dominated it have left."""
        at, gone = int(self._found[place]) - 1, np.array([place])
        self._found[place] = math.nan
        members[at] = members[at][members[at] != place]
        while at + 1 < len(members):
            below = members[at + 1]
            free = _dominated(self._costs[below], self._costs[gone])
            free[free] = ~_dominated(self._costs[below[free]], self._costs[members[at]])
            if not free.any():
                break
            gone, members[at + 1] = below[free], below[~free]
            members[at] = np.append(members[at], gone)
            self._found[gone] = at + 1
            at += 1
        if not len(members[-1]):
            members.pop()

    def _insert(self, place: np.intp, members: list[Places]) -> None:
        """Insert a row into the first front that does not dominate it. Rows that it dominates sink to the next front."""
        row, at, high = self._costs[[place]], 0, len(members)
        while at < high:
            middle = (at + high) // 2
            if _dominated(row, self._costs[members[middle]])[0]:
                at = middle + 1
            else:
                high = middle
        sinking = np.array([place])
        while len(sinking):
            if at == len(members):
                members.append(sinking[:0])
            pushed = _dominated(self._costs[members[at]], self._costs[sinking])
            self._found[sinking] = at + 1
            sinking, members[at] = members[at][pushed], np.append(members[at][~pushed], sinking)
            at += 1


def _costs(values: Floats, modes: Sequence[str]) -> Floats:
    """Return the values with the sign that makes lower ones better."""
    signs: Floats = np.array([1.0 if mode == "min" else -1.0 for mode in modes])
    return np.multiply(values, signs)


def _dominated(rows: Floats, by: Floats) -> NDArray[np.bool_]:
    """Return for each row whether one of the rows `by` is at least as good in all costs and better in one."""
    found = np.zeros(len(rows), np.bool_)
    at_once = max(1, MOST_COMPARED // max(1, len(rows)))
    for begin in range(0, len(by), at_once):
        no_worse = no_better = np.True_
        for cost, others in zip(rows.T, by[begin : begin + at_once].T, strict=True):
            no_worse = no_worse & (others[:, None] <= cost)
            no_better = no_better & (others[:, None] >= cost)
        found |= (no_worse & ~no_better).any(axis=0)
    return found


def _sorted(costs: Floats) -> Floats:
    found = np.full(len(costs), math.nan)
    finite = np.isfinite(costs).all(axis=1)
    if not finite.any():
        return found
    # Sorted, so that a row can be dominated only by rows before it, whose first cost is not higher.
    rows, inverse = np.unique(costs[finite], axis=0, return_inverse=True)
    if costs.shape[1] == 1:  # each distinct cost is a front of its own
        found[finite] = inverse.reshape(-1) + 1
        return found
    place = {2: _placed_by_two, 3: _placed_by_three}.get(costs.shape[1], _placed)
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


def _placed_by_three(rest: Floats) -> list[int]:
    """Return the front of each sorted row of three costs, given the second and third ones.

    Each front keeps a staircase of the rows that matter for later ones: second costs ascending, third costs descending. A front
    dominates the row if the last step whose second cost is not higher has a third cost that is not higher either.
    """
    stairs: list[tuple[list[float], list[float]]] = []
    found: list[int] = []
    for second, third in rest.tolist():
        low, high = 0, len(stairs)
        while low < high:
            middle = (low + high) // 2
            seconds, thirds = stairs[middle]
            at = bisect_right(seconds, second)
            if at and thirds[at - 1] <= third:
                low = middle + 1
            else:
                high = middle
        if low == len(stairs):
            stairs.append(([], []))
        seconds, thirds = stairs[low]
        first = end = bisect_left(seconds, second)
        while end < len(thirds) and thirds[end] >= third:  # the row covers these steps
            end += 1
        seconds[first:end], thirds[first:end] = [second], [third]
        found.append(low + 1)
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
