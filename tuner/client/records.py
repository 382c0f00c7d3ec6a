"""Convert the API's answers to the store's records, so that `Result` and `Progress` work with either."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, TypeVar

from tuner.api import schemas
from tuner.api.schemas.forms import shown_fields
from tuner.client.protocol import Event
from tuner.domain.events import CheckpointInfo
from tuner.domain.experiment import Objective, Spec
from tuner.experiment.analysis.lineage import Place
from tuner.sdk.decision_result import DecisionResult
from tuner.sdk.result import Found
from tuner.sdk.trial_result import history_row
from tuner.space import Space
from tuner.space.revisions import Revisions
from tuner.store.records import ExperimentRecord, SegmentRecord, StreamItem, TrialRecord

_Record = TypeVar("_Record", ExperimentRecord, TrialRecord, SegmentRecord)


class Log:
    """The parts of an experiment's log that a `Result` needs: reports, checkpoints, decisions, notes and drawn parameters."""

    def __init__(self) -> None:
        self.seq = 0
        self.histories: dict[int, list[dict[str, float]]] = {}
        self.saved: dict[str, tuple[Place, CheckpointInfo]] = {}
        self.decisions: list[DecisionResult] = []
        self.draws: dict[int, Mapping[str, Any]] = {}
        self.tags: dict[int, dict[str, Any]] = {}  # trial -> the tags with which it was started, and its notes

    def add(self, event: Event) -> None:
        """Add an event from the stream of the experiment's log."""
        self.seq = max(self.seq, int(event.id or 0))
        data = event.data
        if event.name == "decision":
            self.decisions.append(
                DecisionResult(
                    seq=data["seq"],
                    time=_time(data["time"]),
                    kind=data["kind"],
                    trial=data["trial_number"],
                    reason=data["reason"],
                    payload=data["payload"],
                )
            )
            if data["kind"] == "start":
                self.tags[data["payload"]["number"]] = dict(data["payload"].get("tags", {}))
        if event.name in ("reported", "checkpoint_saved") and (saved := data.get("checkpoint")):
            info = CheckpointInfo(**saved)
            self.saved[info.id] = Place(data["trial_number"], data["segment"], info.step), info
        if event.name == "noted":
            self.tags[data["trial_number"]].setdefault("notes", {}).update(data["notes"])
        if event.name == "drawn":
            self.draws[data["trial_number"]] = data["state"]
        # If the experiment's points were deleted, most reports have no metrics.
        if event.name == "reported" and data["metrics"]:
            row = history_row(
                data["iteration"], data["segment"], _time(data["time"]), _numbers(data["metrics"]), data.get("step")
            )
            self.histories.setdefault(data["trial_number"], []).append(row)

    def add_checkpoint(self, saved: schemas.CheckpointItem) -> None:
        """Add a checkpoint that was read without the log."""
        info = CheckpointInfo(id=saved.id, uri=saved.uri, step=saved.step, bytes=saved.bytes, node=saved.node)
        self.saved[info.id] = Place(saved.trial_number, saved.segment, saved.step), info


def found_of(
    experiment: schemas.Experiment,
    trials: Sequence[schemas.Trial],
    segments: Sequence[schemas.SegmentItem],
    log: Log,
    space: Space | None,
) -> Found:
    """Return the data from which a `Result` is made.

    Args:
        experiment: the experiment.
        trials: all its trials.
        segments: the segments of these trials.
        log: the experiment's log.
        space: the experiment's first search space, with its Python objects. None: use the space that the service returned.
    """
    by_trial: dict[int, list[SegmentRecord]] = {}
    for item in segments:
        by_trial.setdefault(item.trial_number, []).append(segment_record(item))
    best = experiment.best
    place, checkpoint = log.saved.get(best.checkpoint_id or "", (None, None)) if best is not None else (None, None)
    if place is None and best is not None:
        place = _place(best, by_trial.get(best.trial_number, []))
    return Found(
        record=experiment_record(experiment),
        revisions=_revisions(experiment, space),
        trials=[replace(trial_record(trial), tags=log.tags.get(trial.number, {})) for trial in trials],
        segments=by_trial,
        histories=log.histories,
        decisions=log.decisions,
        best_place=place,
        best_checkpoint=checkpoint,
        draws=list(log.draws.values()),
    )


def _revisions(experiment: schemas.Experiment, space: Space | None) -> Revisions:
    """Return the search spaces that the experiment has had.

    Pass `space` if the first search space is available with its Python objects. It then replaces the service's copy.
    """
    read = [Space.from_json(each, opaque=True) for each in (*experiment.former_spaces, experiment.space)]
    return Revisions([*([read[0]] if space is None else [space]), *read[1:]], experiment.assumed)


def experiment_record(shown: schemas.Experiment) -> ExperimentRecord:
    """Return the record of an experiment. Parts that the API does not show have empty values."""
    spec = Spec(
        name=shown.name,
        space=shown.space,
        former_spaces=tuple(shown.former_spaces),
        assumed=shown.assumed,
        objectives=tuple(Objective(one.metric, one.mode) for one in shown.objectives),
        entrypoint=shown.entrypoint,
        num_samples=shown.num_samples,
        seed=shown.seed,
        priority=shown.priority,
        weight=shown.weight,
        max_t=shown.max_t,
        time_attr=shown.time_attr,
        search=shown.search,
        scheduler=shown.scheduler,
        stop=shown.stop,
        scaling=shown.scaling,
        executor=shown.executor,
        limits=shown.limits,
        project=shown.project,
        notes=shown.notes,
        tags=shown.tags,
        resolved=shown.resolved.model_dump(exclude_none=True) if shown.resolved is not None else {},
    )
    return _record(
        ExperimentRecord,
        shown,
        id=0,
        spec=spec,
        code_hash=None,
        driver_epoch=0,
        driver_owner=None,
        lease_until=None,
        best=_best(shown.best),
        counts=shown.counts.model_dump(),
        first_spec=spec,
        changes={},
        pauses=None if shown.paused_since is None else [(_time(shown.paused_since), None)],
    )


def trial_record(shown: Any) -> TrialRecord:
    """Return the record of a trial, without its segments."""
    return _record(
        TrialRecord,
        shown,
        id=0,
        experiment_id=0,
        searcher={},
        tags={},
        last=_numbers(shown.last),
        reports=0,
        system_failures=0,
        segments=(),
        failure=shown.error.model_dump() if shown.error is not None else None,
        checkpoint=shown.checkpoint.model_dump() if shown.checkpoint is not None else None,
    )


def segment_record(shown: Any) -> SegmentRecord:
    """Return the record of a segment, without its placement."""
    return _record(
        SegmentRecord,
        shown,
        id=0,
        public_id="",
        source_checkpoint=None,
        placement={},
    )


def _record(kind: type[_Record], shown: Any, **own: Any) -> _Record:
    """Return a record with `own` values, and with the other columns that the API shows, under the API's names."""
    record: type = kind
    names = {column.name: column.name for column in fields(kind)}
    names |= {name: mark.name for name, _, mark in shown_fields(record) if mark.name is not None}
    read = [(name, called) for name, called in names.items() if name not in own and hasattr(shown, called)]
    return kind(**own, **{name: _value(name, getattr(shown, called)) for name, called in read})


def _value(name: str, shown: Any) -> Any:
    return _time(shown) if name.endswith("_at") and shown is not None else shown


def _best(shown: schemas.Best | None) -> dict[str, Any] | None:
    if shown is None:
        return None
    return {**shown.model_dump(), "value": _number(shown.value)}


def _place(best: schemas.Best, segments: Sequence[SegmentRecord]) -> Place | None:
    """Return the place of the best report: the newest segment that has its configuration and started before its iteration.

    Return None if there is no such segment.
    """
    at = best.iteration or 0
    fitting = [one for one in segments if one.start_iteration < at and dict(one.params) == dict(best.params)]
    return Place(best.trial_number, fitting[-1].ordinal, at) if fitting else None


def _numbers(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: _number(value) for name, value in metrics.items()}


def _number(value: float | None) -> float:
    """Return the number that the API shows as `value`, or NaN if it is null. The API shows NaN and infinities as null."""
    return math.nan if value is None else value


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def stream_item(data: Mapping[str, Any]) -> StreamItem:
    """Return an entry of the log that a service sent, in the form in which the store returns entries."""
    rest = {name: value for name, value in data.items() if name not in ("seq", "time", "trial_number", "trial_id")}
    if "metrics" in rest:
        rest["metrics"] = _numbers(rest["metrics"])
    decided = "payload" in rest  # only decisions have a payload
    return StreamItem(
        seq=data["seq"],
        event="decision" if decided else rest.pop("kind"),
        time=_time(data["time"]),
        trial=data.get("trial_number"),
        data=rest,
    )
