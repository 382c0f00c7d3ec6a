"""The importance of each parameter, by PED-ANOVA."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.domain.experiment import Mode
from tuner.domain.trial import Trial
from tuner.space import Space
from tuner.space.parameter import Parameter

MIN_RECORDS = 10
"""The minimum number of results. With fewer results, the shares would be noise."""

TOP_SHARE, TOP_RECORDS = 0.1, 5
"""The best results that are compared with all: this share of them, but at least this number, as Optuna's documentation says."""

CELLS = 50
"""The number of cells into which the range of a number is divided."""

Floats = NDArray[np.float64]


def importance(space: Space, mode: Mode, records: Iterable[tuple[Mapping[str, Any], float]]) -> dict[str, float]:
    """Return a dict from path to share of the importance, the most important first. The shares add up to 1.

    The method is PED-ANOVA (Watanabe, Bansal and Hutter, IJCAI 2023, https://arxiv.org/abs/2304.10255). For each parameter, it
    measures how much the distribution of the best tenth of the results (at least five) differs from that of all results.
    Conditional parameters are treated as in Optuna, whose evaluator returns the same shares.

    Args:
        space: the search space.
        mode: "min" or "max".
        records: (flat params, value) of each result. A result is left out if its value is not finite, or if a param lies
            outside its domain in the space, which a user may have changed.

    Returns:
        path -> share; {} if there are fewer than `MIN_RECORDS` results. The shares are equal if the results do not distinguish
        the parameters.
    """
    finite = [(params, value) for params, value in records if math.isfinite(value) and _lies_in(space, params)]
    if len(finite) < MIN_RECORDS or not len(space):
        return {}
    losses = np.array([value if mode == "min" else -value for _, value in finite])
    share = max(TOP_SHARE, TOP_RECORDS / len(finite))
    last = math.ceil(share * len(losses)) - 1
    is_top = losses <= np.partition(losses, last)[last]
    points = [params for params, _ in finite]
    found = {p.path: _divergence(p, points, is_top) for p in space.parameters}
    total = sum(found.values())
    if not math.isfinite(total) or total <= 0:
        return {path: 1 / len(found) for path in found}
    return {path: share / total for path, share in sorted(found.items(), key=lambda item: -item[1])}


def records_of(trials: Iterable[Trial], scope: str = "all") -> Sequence[tuple[Mapping[str, Any], float]]:
    """Return the results of ended trials, for `importance`, including the values that early stopped trials reached."""
    found = []
    for trial in trials:
        value = trial.best_value if scope == "all" else trial.last_value
        if trial.state.ended and value is not None:
            found.append((trial.params, value))
    return found


def _lies_in(space: Space, params: Mapping[str, Any]) -> bool:
    return all(space[path].contains(value) for path, value in params.items() if path in space)


def _divergence(parameter: Parameter, points: Sequence[Mapping[str, Any]], is_top: NDArray[np.bool_]) -> float:
    """Return how much the values of the best points differ from those of all points (the Pearson divergence of their densities).

    Points without the parameter count as in Algorithm 1 of https://arxiv.org/abs/2601.20800.
    """
    has = np.array([parameter.path in point for point in points])
    top = is_top & has
    if has.sum() < 2 or not top.any():
        return 0.0
    values = [point[parameter.path] for point in points if parameter.path in point]
    if parameter.kind == "choice" and not parameter.ordered:
        cells, count, densities = np.array([parameter.index(v) for v in values]), len(parameter.categories), _of_choice
    else:
        units = np.array([parameter.unit(v) for v in values])
        cells = np.clip(np.ceil(units / (1 / (CELLS - 1)) - 0.5).astype(int), 0, CELLS - 1)  # rounded as in Optuna
        count, densities = CELLS, _of_number
    everywhere = densities(np.bincount(cells, minlength=count)) + 1e-12
    among_top = densities(np.bincount(cells[top[has]], minlength=count)) + 1e-12
    weight = (top.sum() / is_top.sum()) ** 2 / (has.sum() / len(points))
    return float(weight * (everywhere @ (among_top / everywhere - 1) ** 2))


def _of_choice(counts: NDArray[np.intp]) -> Floats:
    """Return the density of each category: a kernel for each category that occurs, and a uniform prior of weight 1."""
    occur = np.flatnonzero(counts)
    kernels = np.full((len(occur) + 1, len(counts)), 1 / (len(occur) + 1))
    kernels[np.arange(len(occur)), occur] += 1
    return _mixed(kernels / kernels.sum(axis=1, keepdims=True), counts[occur])


def _of_number(counts: NDArray[np.intp]) -> Floats:
    """Return the density of each cell: a normal kernel for each cell that occurs, and a wide prior of weight 1.

    The bandwidth follows Scott's rule (1992). The kernels are cut off at the ends of the range.
    """
    occur = np.flatnonzero(counts)
    weights = counts[occur].astype(float)
    total, running = weights.sum(), np.cumsum(weights)
    mean = occur @ weights / total
    deviation = math.sqrt((occur - mean) ** 2 @ weights / max(1.0, total - 1))
    first, third = (
        np.searchsorted(running, total // 4, side="left"),
        np.searchsorted(running, total * 3 // 4, side="right"),
    )
    quartiles = occur[min(len(occur) - 1, third)] - occur[first]
    width = max(
        1.059 * min(quartiles / 1.34, deviation) * total**-0.2, 0.5 / 1.64
    )  # 90 % of a kernel fit into its cell
    centres = np.append(occur, (len(counts) - 1) / 2)
    widths = np.append(np.full(len(occur), width), len(counts))
    edges = (np.arange(len(counts) + 1) - 0.5 - centres[:, None]) / widths[:, None] / math.sqrt(2)
    below = np.array([math.erf(edge) for edge in edges.flat]).reshape(edges.shape)
    inside = np.diff(below, axis=1)
    return _mixed(inside / inside.sum(axis=1, keepdims=True), counts[occur])


def _mixed(kernels: Floats, counts: NDArray[np.intp]) -> Floats:
    """Return the mean of the kernels, with these weights; the last kernel is the prior, whose weight is 1."""
    weights = np.append(counts, 1.0)
    found: Floats = weights / weights.sum() @ kernels
    return found
