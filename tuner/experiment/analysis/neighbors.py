"""The neighbors of a trial: the trials with the most similar configurations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.space import Parameter, Space
from tuner.space.revisions import Revisions
from tuner.store import ExperimentRecord, Store, TrialRecord

MAX_COMPARED = 10_000
"""The maximum number of trials that are compared.

If there are more trials, half of the compared trials are the best ones. The other half is spread evenly over the remaining
trials.
"""


@dataclass(frozen=True, slots=True)
class Neighbor:
    """A trial with a similar configuration.

    distance: 0 for an equal configuration, 1 for opposite corners of the unit cube.
    changes: parameter -> (value of the original trial, value of this neighbor), with the largest difference first. A value is
    None if that trial does not have the parameter.
    """

    trial: TrialRecord
    distance: float
    changes: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Neighbors:
    """The neighbors of a trial, nearest first. left_out: how many trials were not compared, because of MAX_COMPARED."""

    items: Sequence[Neighbor]
    left_out: int


def neighbors(store: Store, record: ExperimentRecord, trial: TrialRecord, count: int) -> Neighbors:
    """Return the `count` trials of the experiment whose configurations are nearest to that of `trial`.

    The distance is the Euclidean distance in the unit cube of the space, divided by the cube's diagonal. Along one axis, two
    different categories of an unordered choice have the maximum distance, and so do a value and a missing value.
    Configurations of earlier spaces of the experiment are converted to the current space, see `Revisions.carried`.
    """
    revisions = Revisions.of(record.spec)
    space = revisions.present
    total = sum(record.counts.values())
    numbers = store.trials.sample_numbers(record.id, record.spec.objectives, MAX_COMPARED)
    found_params = [one for one in store.trials.configurations(record.id, numbers) if one[0] != trial.number]
    others = [(number, revisions.carried(params, rev, clip=True).params) for number, params, rev in found_params]
    if not others or not len(space):
        return Neighbors([], 0)
    own = revisions.carried(trial.params, trial.space_revision, clip=True).params
    gaps = np.stack([_gaps(parameter, own, [params for _, params in others]) for parameter in space.parameters])
    distances = np.sqrt((gaps**2).sum(axis=0) / len(space))
    nearest = np.argsort(distances, kind="stable")[:count].tolist()
    found = {one.number: one for one in store.trials.numbered(record.id, [others[at][0] for at in nearest])}
    paths = [parameter.path for parameter in space.parameters]
    items = [
        Neighbor(
            found[others[at][0]],
            float(distances[at]),
            _changes(
                _unclipped(space, own, trial.params),
                _unclipped(space, others[at][1], found_params[at][1]),
                [paths[k] for k in np.argsort(-gaps[:, at], kind="stable")],
            ),
        )
        for at in nearest
        if others[at][0] in found
    ]
    return Neighbors(items, max(total - len(others) - 1, 0))


def _unclipped(space: Space, carried: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the numbers that `Revisions.carried` clipped to the current space by the trial's original ones."""
    numbers = {parameter.path for parameter in space.parameters if parameter.kind != "choice"}
    return {path: params.get(path, value) if path in numbers else value for path, value in carried.items()}


def _gaps(parameter: Parameter, own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """Return the distance along one axis from the value `own` to each of the other values, from 0 to 1."""
    here = _place(parameter, own)
    there = np.array([_place(parameter, params) for params in others])
    if parameter.kind == "choice" and not parameter.ordered:
        gaps = (there != here).astype(np.float64)
    else:
        gaps = np.abs(there - here)
    absent = np.isnan(there)
    return np.where(absent, 0.0, 1.0) if math.isnan(here) else np.where(absent, 1.0, gaps)


def _place(parameter: Parameter, params: Mapping[str, Any]) -> float:
    """Return the coordinate of a configuration along one axis, or NaN if its value is missing or outside the domain."""
    if parameter.path not in params:
        return math.nan
    value = params[parameter.path]
    return parameter.unit(value) if parameter.contains(value) else math.nan


def _changes(own: Mapping[str, Any], other: Mapping[str, Any], order: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    rest = [path for path in {**own, **other} if path not in order]
    return {path: (own.get(path), other.get(path)) for path in (*order, *rest) if own.get(path) != other.get(path)}
