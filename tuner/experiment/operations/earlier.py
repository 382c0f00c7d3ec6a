"""Find the earlier experiments that a new experiment learns from, when it is created."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, cast

from tuner.domain.experiment import Spec
from tuner.domain.thinned import why_thinned
from tuner.driver.earlier import FEWEST, EarlierExperiment, learn, may_fit
from tuner.driver.recording import recording, within
from tuner.errors import Conflict, NotFound, SpecError
from tuner.names import did_you_mean
from tuner.search import constraints
from tuner.space import Space
from tuner.space.revisions import Revisions
from tuner.store import ExperimentRecord, ProjectSettings, Store

MOST = 10
"""The maximum number of experiments that "auto" learns from. The newest experiments that fit are used."""

LOOKED_AT = 200
"""The number of experiments, newest first, that "auto" considers."""

HINTED_AT = 20
"""The number of experiments, newest first, that are read to find the hint about "auto". Every creation waits for this."""

MOST_REPORTS = 500_000
"""The maximum total number of reports to read. All of them are kept in memory."""

Found = list[tuple[ExperimentRecord, Space]]


class ProjectFacts:
    """Holds what new experiments need to know about their projects: the settings, and the newest experiments for the hint.

    Each is read only once for all experiments that are created together. Use this object in one thread, and only for requests
    that arrived before the object was created.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._settings: dict[str, ProjectSettings] = {}
        self._newest: dict[str, Iterator[ExperimentRecord]] = {}

    def settings(self, project: str) -> ProjectSettings:
        if project not in self._settings:
            self._settings[project] = self._store.projects.settings(project)
        return self._settings[project]

    def newest(self, project: str) -> Iterator[ExperimentRecord]:
        """Yield the experiments that have a best trial, newest first. Only the `HINTED_AT` newest experiments are considered."""
        if project not in self._newest:
            self._newest[project] = self._store.experiments.with_a_best(project, HINTED_AT)
        mine, self._newest[project] = itertools.tee(self._newest[project])
        return mine


def with_earlier(
    store: Store,
    spec: Spec,
    inherited: Collection[str] = (),
    default: Literal["auto"] | None = None,
    facts: ProjectFacts | None = None,
) -> Spec:
    """Add to the spec what can be learned from its `warm_start`. Without one, add a note if "auto" would find experiments.

    inherited: names in `warm_start` that a fork has inherited from its original. If nothing can be learned from one of them any
        more, for instance because it was deleted, a note says so.
    default: the `warm_start` that the spec's project has for specs without one. A note says where it came from.
    facts: what was already read for experiments that are created with this one.

    Raises:
        SpecError: `warm_start` names another experiment that does not exist, or from which nothing can be learned.
    """
    if default is not None and spec.warm_start is None:
        return _with_default(store, spec, default)
    if len(spec.objectives) > 1:
        if spec.warm_start:
            raise SpecError(
                "an experiment with several objectives cannot learn from earlier experiments yet", "/warm_start"
            )
        return spec
    if spec.warm_start is None:
        fitting = _fitting(spec, (facts or ProjectFacts(store)).newest(spec.project), 1)
        return replace(spec, earlier={"notes": [_hint(fitting)]}) if fitting else spec
    space = Space.from_json(spec.space, opaque=True)
    if spec.warm_start == "auto":
        newest = store.experiments.with_a_best(spec.project, LOOKED_AT)
        return replace(spec, earlier=_learned(store, space, _fitting(spec, newest, MOST)))
    named: Found = []
    notes = []
    for at, called in enumerate(spec.warm_start):
        try:
            with _pointing_at(f"/warm_start/{at}"):
                named.append(_fits(store, space, called))
        except SpecError as error:
            if called not in inherited:
                raise
            notes += [f"did not learn from {called}: {message}" for _, message in error.errors]
    return replace(spec, earlier=_learned(store, space, named, notes))


def _with_default(store: Store, spec: Spec, default: Literal["auto"]) -> Spec:
    """Return the spec with the `warm_start` of its project, and with the lessons from those experiments."""
    words = f"warm_start={json.dumps(default)}, the default of the project {spec.project!r}"
    if len(spec.objectives) > 1:
        note = f"did not take {words}: an experiment with several objectives cannot learn from earlier experiments yet"
        return replace(spec, earlier={"notes": [note]})
    found = with_earlier(store, replace(spec, warm_start=default))
    notes = [f"takes {words}", *cast("list[str]", found.earlier["notes"])]
    return replace(found, earlier={**found.earlier, "notes": notes, "of_project": True})


def _fits(store: Store, space: Space, called: str) -> tuple[ExperimentRecord, Space]:
    """Return the experiment with this name or id, and its space. Raise an error if nothing can be learned from it."""
    record = _named(store, called)
    if record.incomplete:
        raise SpecError(f"cannot learn from {called!r}: {record.error or 'its import is not complete'}")
    if record.thinned_at is not None:
        raise SpecError(f"cannot learn from {called!r}: {why_thinned(record.thinned_at, 'a warm start')}")
    try:
        theirs = Space.from_json(record.spec.space, opaque=True)
    except SpecError as error:
        raise SpecError(f"cannot learn from {called!r}, whose spec this version does not accept: {error}") from error
    if not len(space):
        raise SpecError(
            f"cannot learn from {called!r} without a space, since the parameters are not known yet: declare them, such as "
            'tuner.run(objective, {"lr": tuner.loguniform(1e-5, 1e-1)}, warm_start=...); an Optuna trial suggests these values'
        )
    if not may_fit(space, theirs):
        missing = [p.path for p in space.parameters if p.condition is None and p.path not in theirs]
        why = f"it does not have {', '.join(missing)}" if missing else "a parameter has a different type"
        raise SpecError(f"the space of {called!r} does not fit: {why}")
    return record, theirs


def _hint(fitting: Found) -> str:
    names = fitting[0][0].name
    return (
        f'warm_start="auto" would learn from earlier experiments with the same parameters and metric, such as {names}'
    )


def _learned(store: Store, space: Space, found: Found, said: Sequence[str] = ()) -> dict[str, object]:
    """Return what can be learned from the experiments found. said: notes about experiments that were not found."""
    experiments, notes, left = [], [], MOST_REPORTS
    for record, theirs in found:
        if (reports := store.log.count_reports(record.id)) > left:
            notes.append(
                f"did not learn from {record.name}: with its {reports:,} reports, the total would exceed "
                f"{MOST_REPORTS:,}"
            )
            continue
        left -= reports
        try:
            recorded, _ = within(recording(store.drivers.load(record.id)), Revisions.of(record.spec))
        except SpecError as error:
            notes.append(f"did not learn from {record.name}: {error}")
            continue
        label = (
            record.name if sum(r.name == record.name for r, _ in found) == 1 else f"{record.name} ({record.public_id})"
        )
        limits = constraints.read(record.spec.resolved.get("constraints"))
        experiments.append(EarlierExperiment(label, record.spec.objective, theirs, recorded, limits))
    learned = learn(space, experiments)
    notes = [*said, *learned["notes"], *notes]
    if not learned["experiments"]:
        why = "nothing was learned from any of them" if notes else "there is no earlier experiment to learn from"
        notes.append(f"{why}, so warm_start has no effect")
    return {**learned, "notes": notes}


def _fitting(spec: Spec, newest: Iterable[ExperimentRecord], count: int) -> Found:
    """Return the newest experiments with the same metric and mode, a space that fits, enough trials, and a complete log."""
    space: Space | None = None
    found: Found = []
    for record in newest:
        if record.spec.objectives != spec.objectives or sum(record.counts.values()) < FEWEST or record.incomplete:
            continue
        if space is None:
            space = Space.from_json(spec.space, opaque=True)
            if space.has_grid:
                break
        try:
            theirs = Space.from_json(record.spec.space, opaque=True)
        except SpecError:
            continue  # an earlier version has accepted this space
        if may_fit(space, theirs):
            found.append((record, theirs))
        if len(found) == count:
            break
    return found


def _named(store: Store, called: str) -> ExperimentRecord:
    found = store.experiments.named(called)
    if called.startswith("exp_"):
        try:
            return store.experiments.get(called)
        except NotFound:
            if not found:
                raise
    if not found:
        names = store.experiments.newest_names(1000)
        raise NotFound(f"no experiment {called!r}{did_you_mean(called, names, chr(39))}")
    if len(found) > 1:
        raise Conflict(
            f"{len(found)} experiments have the name {called!r}; use an id; the newest one is {found[0].public_id}"
        )
    return found[0]


@contextlib.contextmanager
def _pointing_at(pointer: str) -> Iterator[None]:
    try:
        yield
    except (NotFound, Conflict, SpecError) as error:
        raise SpecError(str(error), pointer) from error
