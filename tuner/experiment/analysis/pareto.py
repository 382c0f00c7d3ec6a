"""The Pareto front of an experiment with several objectives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tuner.domain.experiment import Objective


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
