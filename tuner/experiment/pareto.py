"""The trials of an experiment with several objectives that no other trial beats in all of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tuner.domain.experiment import Objective


def front(values: NDArray[np.float64], objectives: tuple[Objective, ...]) -> list[int]:
    """Return the rows that are on the Pareto front, in order.

    A row is beaten if another one is at least as good in all objectives and better in one. Of equal rows all are on the front.
    Rows that are not finite are never on it.

    Args:
        values: (rows, objectives).
        objectives: what the columns are, and which way they improve.
    """
    costs = values * np.array([1.0 if objective.mode == "min" else -1.0 for objective in objectives])
    finite = np.isfinite(costs).all(axis=1)
    order = np.flatnonzero(finite)[np.lexsort(costs[finite].T[::-1])]  # what beats a row comes before it
    kept: list[int] = []
    best = np.empty((0, costs.shape[1]))
    for row in order:
        cost = costs[row]
        no_worse = (best <= cost).all(axis=1)
        if not (no_worse & (best < cost).any(axis=1)).any():
            kept.append(int(row))
            best = np.vstack([best, cost])
    return sorted(kept)
