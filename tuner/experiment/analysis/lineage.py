"""Trace where a trial's weights come from: the chain of segments that led to the weights, with their configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tuner.domain.keys import trial_id
from tuner.store import ExperimentRecord, Store
from tuner.store.records import SegmentRecord

Segments = Callable[[int], Sequence[SegmentRecord]]
"""A function that takes the number of a trial and returns the trial's segments in order."""


@dataclass(frozen=True, slots=True)
class Link:
    """One segment of a lineage. The next segment started from the checkpoint that this one saved at `end_iteration`.

    changes: parameter -> (value in the previous segment, value in this segment). None: the parameter did not exist.
    """

    trial: int
    segment: SegmentRecord
    end_iteration: int
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """A point in a trial's training: an iteration of the trial's segment `ordinal`."""

    trial: int
    ordinal: int
    iteration: int


def lineage(place: Place, segments: Segments) -> list[Link]:
    """Return the segments that led to the weights at `place`, oldest first.

    Each segment started from a checkpoint of the previous segment in the list. After a retry or a resume, the previous segment
    belongs to the same trial; after an exploit, to the donor. The first segment in the list started without a checkpoint, or
    from the checkpoint of an experiment that has been deleted.
    """
    backwards: list[Link] = []
    trial, ordinal, end = place.trial, place.ordinal, place.iteration
    while True:
        segment = segments(trial)[ordinal - 1]
        backwards.append(Link(trial, segment, end))
        if segment.source_trial is None or segment.source_ordinal is None:
            break
        trial, ordinal, end = segment.source_trial, segment.source_ordinal, segment.start_iteration
    links = backwards[::-1]
    changed = [Link(b.trial, b.segment, b.end_iteration, _changes(a.segment, b.segment)) for a, b in pairwise(links)]
    return [links[0], *changed]


def schedule(links: Sequence[Link]) -> list[dict[str, Any]]:
    """Return the configurations of a lineage as JSON, oldest first, as a replay of PBT reads them.

    Each item is ``{"iteration": ..., "params": {...}, "trial": ...}``. The params apply after this iteration, and `trial` is
    the number of the trial that used them. To repeat the schedule that the search found, change to these params at these
    iterations.
    """
    held = [link for link in links[:-1] if link.segment.start_iteration < link.end_iteration]
    found: list[dict[str, Any]] = []
    for link in [*held, *links[-1:]]:
        params = dict(link.segment.params)
        if not found or found[-1]["params"] != params:
            found.append({"iteration": link.segment.start_iteration, "params": params, "trial": link.trial})
    return found


def newest(store: Store, public_id: str) -> Place | None:
    """Return the newest place in a trial's training, or None before its first segment. Raise NotFound if there is no trial."""
    trial = store.trials.get(public_id)
    return Place(trial.number, len(trial.segments), trial.iteration) if trial.segments else None


def best_of_trial(store: Store, public_id: str) -> Place | None:
    """Return the place where a trial reported its best value, or the newest place if there is none.

    If several segments with the configuration of the best value trained this iteration, it is the newest of them.
    """
    trial = store.trials.get(public_id)
    if (iteration := trial.best_iteration) is not None:
        experiment = store.experiments.get(trial.experiment)
        curves = store.metrics.curves(experiment.id, experiment.spec.objective.metric, points=2, trials=[trial.number])
        reached = {part.ordinal: part.last_iteration for curve in curves.curves for part in curve.segments}
        for segment in reversed(trial.segments):
            trained = range(segment.start_iteration + 1, reached.get(segment.ordinal, 0) + 1)
            if iteration in trained and segment.params == trial.best_params:
                return Place(trial.number, segment.ordinal, iteration)
    return newest(store, public_id)


def best(store: Store, experiment: ExperimentRecord) -> Place | None:
    """Return the place in a trial's training where the best checkpoint was saved.

    If there is no such checkpoint, return where the best value was reported. Return None if there is no best trial.
    """
    if not experiment.best:
        return None
    if saved := experiment.best.get("checkpoint_id"):
        found = store.trials.checkpoint(saved)
        return Place(found.trial, found.segment, found.step)
    if ordinal := experiment.best.get("segment"):
        return Place(experiment.best["trial_number"], ordinal, experiment.best["iteration"])
    return newest(store, trial_id(experiment.public_id, experiment.best["trial_number"]))


def stored(store: Store, experiment: str) -> Segments:
    """Return a function that maps a trial's number to the trial's segments, and reads each trial from the database only once."""
    known: dict[int, Sequence[SegmentRecord]] = {}

    def of(number: int) -> Sequence[SegmentRecord]:
        if number not in known:
            known[number] = store.trials.get(trial_id(experiment, number)).segments
        return known[number]

    return of


def _changes(before: SegmentRecord, after: SegmentRecord) -> dict[str, tuple[Any, Any]]:
    names = [*before.params, *(name for name in after.params if name not in before.params)]
    pairs = {name: (before.params.get(name), after.params.get(name)) for name in names}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}
