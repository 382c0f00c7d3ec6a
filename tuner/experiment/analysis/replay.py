"""Replay a stored experiment under another scheduler or searcher, for `tuner.replay`, the command and the route."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tuner import schedulers, search
from tuner.domain.experiment import Spec
from tuner.domain.thinned import why_thinned
from tuner.driver.assemble import Parts, assemble
from tuner.driver.parts import names_code
from tuner.driver.recording import recording, within
from tuner.driver.replay import Replay
from tuner.driver.replay import replay as run_again
from tuner.errors import ErrorCollector, SpecError
from tuner.schedulers.base import Scheduler
from tuner.search.base import Searcher
from tuner.space import Space
from tuner.space.revisions import Revisions
from tuner.store import ExperimentRecord, Store

AUTO = ("auto", {"type": "auto"})


def replay(
    store: Store,
    record: ExperimentRecord,
    *,
    scheduler: Any = None,
    search_alg: Any = None,
    max_concurrent_trials: int | None = None,
    most_reports: int | None = None,
    check: Callable[[], None] | None = None,
) -> Replay:
    """Return what another scheduler or searcher would have done with the trials that an experiment recorded.

    Args:
        store: the database.
        record: the experiment. If it is still running, its recording so far is replayed.
        scheduler: a scheduler, its name or its JSON form. None: the scheduler of the experiment.
        search_alg: a searcher, its name or its JSON form. None: the recorded configurations, in their original order.
        max_concurrent_trials: the maximum number of trials that train at once. None: as many as in the experiment.
        most_reports: refuse an experiment that has more reports than this. None: no limit.
        check: called before every step of the replay; may raise an error to give up.

    Raises:
        SpecError: the arguments do not fit the experiment, or the experiment cannot be replayed. The message says why.
    """
    if record.why_incomplete is not None:
        raise SpecError(f"{record.public_id} cannot be replayed: {record.why_incomplete}")
    spec = record.spec
    if len(spec.objectives) > 1:
        raise SpecError("an experiment with several objectives cannot be replayed yet")
    if record.thinned_at is not None:
        raise SpecError(f"{record.public_id} cannot be replayed: {why_thinned(record.thinned_at, 'a replay')}")
    space = Space.from_json(spec.space, opaque=True)
    mistakes = ErrorCollector()
    parts: dict[str, Any] = {}
    with mistakes:
        parts["scheduler"] = _scheduler(spec, space, scheduler)
    with mistakes:
        parts["searcher"] = _searcher(search_alg)
    mistakes.check()
    notes: list[str] = []
    own: Mapping[str, Any] = spec.resolved.get("scheduler") or spec.scheduler
    if (
        spec.max_t is None
        and isinstance(max_t := own.get("max_t"), int)
        and getattr(parts["scheduler"], "max_t", None) is None
    ):
        spec = replace(spec, max_t=max_t)  # the length of the trials was given only as an option of their scheduler
    if spec.stop and (names_code(spec.stop) or spec.stop.get("type") == "python"):
        spec = replace(spec, stop={})
        notes.append("the experiment's own stop functions are not called in a replay")
    if most_reports is not None and (reports := store.log.count_reports(record.id)) > most_reports:
        raise SpecError(
            f"the experiment has {reports:,} reports; at most {most_reports:,} are replayed here. "
            "tuner.replay in Python has no limit"
        )
    recorded, outside = within(recording(store.drivers.load(record.id)), Revisions.of(spec))
    if recorded.forks:
        many = f"{recorded.forks} trials are left out: they"
        what = "1 trial is left out: it" if recorded.forks == 1 else many
        notes.append(f"{what} continued from a checkpoint of another trial")
    if outside:
        many = f"{outside} trials are left out: their configurations do"
        what = "1 trial is left out: its configuration does" if outside == 1 else many
        notes.append(f"{what} not lie in the current search space")
    found = run_again(spec, space, recorded, Parts(**parts), max_concurrent_trials=max_concurrent_trials, check=check)
    return replace(found, notes=(*found.notes, *notes))


def _scheduler(spec: Spec, space: Space, wanted: Any) -> Scheduler:
    if wanted in AUTO:
        asked = replace(spec, scheduler={"type": "auto"}, search={"type": "auto"}, stop={}, points_to_evaluate=())
        return schedulers.from_json(assemble(asked, space).scheduler.to_json())
    if isinstance(wanted, Mapping) and names_code(wanted):
        raise SpecError("functions of the user's code are not called in a replay", "/scheduler")
    if wanted is not None:
        return schedulers.from_argument(wanted)
    own: Mapping[str, Any] = spec.resolved.get("scheduler") or spec.scheduler
    if own.get("type") in ("auto", "python") or names_code(own):
        raise SpecError(
            "the experiment's own scheduler cannot be built here; pass a scheduler to replay it with", "/scheduler"
        )
    return schedulers.from_json(own)


def _searcher(wanted: Any) -> Searcher | None:
    if wanted is None:
        return None
    if wanted in AUTO:
        raise SpecError('expected a searcher by name, such as "random" or "tpe"', "/search")
    if isinstance(wanted, Mapping) and names_code(wanted):
        raise SpecError("functions of the user's code are not called in a replay", "/search")
    return search.from_argument(wanted)
