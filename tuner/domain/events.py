"""Define events: facts that a driver commits, and that the next driver folds after a restart.

An event is immutable and can be converted to JSON and back (`to_json`, `from_json`). A `Reported` is stored as metric points.
Every other event is a row of the event table, with `KIND` in its column `kind`.

`Event` is the union of all events. Add a new event to it; mypy then names every `match` that does not handle the event.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from tuner.domain.segments import CheckpointInfo as CheckpointInfo
from tuner.domain.segments import Failure as Failure
from tuner.domain.segments import FailureKind as FailureKind
from tuner.domain.segments import Report, SegmentRef
from tuner.errors import unreadable

ExperimentCommand = Literal["pause", "resume", "cancel", "kill", "continue"]
TrialCommand = Literal["stop", "kill", "retry"]
Command = Literal[ExperimentCommand, TrialCommand]


class _AsJson:
    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the event as JSON; `from_json` is the inverse."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]


class _OfSegment:
    __slots__ = ()
    trial: int
    segment: int  # ordinal

    @property
    def ref(self) -> SegmentRef:
        """Return the segment that the event is about."""
        return SegmentRef(self.trial, self.segment)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event(_AsJson):
    KIND: ClassVar[str] = "event"
    time: float  # seconds since the epoch; virtual seconds in a simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class _SegmentEvent(_Event, _OfSegment):
    trial: int
    segment: int  # ordinal


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStarted(_Event):
    """A driver has taken over the experiment. All segments that ran under the previous driver have ended."""

    KIND = "driver_started"
    epoch: int
    slots: int | None = None  # how many trials the cluster can run at once; used if the spec sets no limit
    executor: str = ""  # where trials run and why, in words; may be empty
    workers: int | None = None  # how many ranks the cluster holds, for elastic trials; None: unknown
    uploaded: tuple[CheckpointInfo, ...] = ()  # checkpoints whose upload was complete, although no event had said so


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(_SegmentEvent):
    """A segment is waiting for resources; `reason` names them."""

    KIND = "waiting"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentStarted(_SegmentEvent):
    """All ranks have entered the training function."""

    KIND = "segment_started"
    placement: Mapping[str, Any] = field(default_factory=dict)
    startup_s: float = 0.0
    warm: bool = False
    held_s: float = 0.0  # the part of startup_s during which its group already had resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported(Report, _AsJson, _OfSegment):
    """A report that the driver has received.

    `iteration` is the training_iteration: the starting checkpoint's training_iteration plus `report_no`. `waits`, `last`,
    `offer` and `age` are not stored, because they matter only while the ranks are alive.
    """

    KIND: ClassVar[str] = "reported"
    trial: int
    segment: int  # ordinal
    iteration: int
    waits: bool = field(default=True, compare=False)

    @classmethod
    def of(cls, report: Report, ref: SegmentRef, start_iteration: int, time: float) -> Reported:
        """Return the event for a report. `time` is the time at which the report was made, by the driver's clock."""
        return cls(
            time=time,
            trial=ref.trial,
            segment=ref.ordinal,
            iteration=start_iteration + report.report_no,
            **{name: getattr(report, name) for name in _COPIED},
        )


_COPIED = tuple(f.name for f in dataclasses.fields(Report) if f.name != "time")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopJudged(_SegmentEvent):
    """A user's stop function, called with the trial's next report, has raised an error or wants to stop the trial.

    This event comes directly before the report. There is none if every stop function lets the trial continue.
    answers: one for each stop function, {"stop": bool} or {"error": type, "args", "text", "traceback"}.
    """

    KIND = "stop_judged"
    iteration: int
    answers: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(_SegmentEvent):
    """A checkpoint became ready after its report, because it was saved on demand or its upload took time."""

    KIND = "checkpoint_saved"
    checkpoint: CheckpointInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDeleted(_Event):
    KIND = "checkpoint_deleted"
    trial: int
    checkpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadFailed(_SegmentEvent):
    """The upload of a checkpoint has failed after its segment had ended, so the checkpoint will never be ready."""

    KIND = "upload_failed"
    checkpoint: CheckpointInfo
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEnded(_SegmentEvent):
    """A segment has ended and its worker group is free; see `tuner.domain.segments.Outcome`.

    Each checkpoint of `uploading` is followed by a CheckpointSaved or an UploadFailed, unless the driver dies first.
    """

    KIND = "segment_ended"
    outcome: Literal["returned", "left", "failed"]
    failure: Failure | None = None
    warning: str = ""
    uploading: Sequence[CheckpointInfo] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggested(_Event):
    """A searcher that runs in another process has proposed the configuration of trial `number`."""

    KIND = "suggested"
    number: int
    params: Mapping[str, Any] | None  # None: the searcher has no more configurations
    state: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    outdated: bool = False  # whether a user has changed the spec since the searcher was asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn(_SegmentEvent):
    """A running trial has requested a new parameter and received this value (define-by-run)."""

    KIND = "drawn"
    name: str
    value: Any  # the value as JSON
    state: Mapping[str, Any] = field(default_factory=dict)  # state of the searcher, stored with the trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted(_SegmentEvent):
    """The training code has set user attributes of its trial, for people to read."""

    KIND = "noted"
    notes: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFitted(_Event):
    """A model fit that the scheduler requested has ended. The payload is the result, and is empty if the fit failed."""

    KIND = "model_fitted"
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commanded(_Event):
    """A user has given a command to one trial, or to the whole experiment if `trial` is None.

    for_trials: True for a `continue` that came with a request for trials. It lets an experiment that has ended or is ending
        run again, and changes no limit of a search that is going on.
    """

    KIND = "commanded"
    command: Command
    trial: int | None = None
    reason: str = ""
    for_trials: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Amended(_Event):
    """A user has changed the spec of the experiment; see `Spec.amended`."""

    KIND = "amended"
    # {"num_samples": 40, "limits": {"max_concurrent_trials": 2}}; a new space with "former_spaces"
    changes: Mapping[str, Any]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued(_Event):
    """A user has enqueued trials. They start before those that the searcher proposes, and do not count towards num_samples.

    points: dicts with "params" (flat params; missing ones are drawn at random), "checkpoint" (id of the checkpoint to start
        from, or ""), "parent" (number of the trial that saved the checkpoint, or None) and "space_revision" (the revision of
        the space that the params are from, or None for the present revision).
    """

    KIND = "enqueued"
    points: Sequence[Mapping[str, Any]]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned(_Event):
    """A user has pinned a checkpoint, which protects it from deletion, or has unpinned it."""

    KIND = "pinned"
    checkpoint: str
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomWanted(_SegmentEvent):
    """A running segment must make room for another experiment. Its trial continues later from its checkpoint."""

    KIND = "room_wanted"
    reason: str  # "to make room for experiment exp_... (priority 10)"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpent(_Event):
    """The running time that `limits.time_budget_s` allows is used up."""

    KIND = "budget_spent"
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHoursSpent(_Event):
    """The GPU hours that `limits.gpu_hours` allows are used up."""

    KIND = "gpu_hours_spent"
    gpu_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsChanged(_Event):
    """The number of trials that can run at once has changed. `slots` has the same meaning as in `DriverStarted`."""

    KIND = "slots_changed"
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersChanged(_Event):
    """The total number of ranks of all elastic trials has a new limit, because other work on the cluster has begun or ended."""

    KIND = "workers_changed"
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockJumped(_Event):
    """The clock of the driver has jumped, or its machine or process was suspended. Neither counts as training.

    start: what the clock showed when it jumped.
    seconds: by how much it jumped; negative if it was put back.
    """

    KIND = "clock_jumped"
    start: float
    seconds: float


Event = (
    DriverStarted
    | Waiting
    | SegmentStarted
    | Reported
    | StopJudged
    | CheckpointSaved
    | CheckpointDeleted
    | UploadFailed
    | SegmentEnded
    | Suggested
    | Drawn
    | Noted
    | ModelFitted
    | Commanded
    | Amended
    | Enqueued
    | Pinned
    | RoomWanted
    | BudgetSpent
    | GpuHoursSpent
    | SlotsChanged
    | WorkersChanged
    | ClockJumped
)
"""The union of all events, for `isinstance` and for `match` statements, each of which ends in `assert_never`."""

_KINDS: dict[str, type[Event]] = {cls.KIND: cls for cls in get_args(Event)}


def from_json(kind: str, data: Mapping[str, Any]) -> Event:
    """Return the event of this kind from its JSON form, which `to_json` makes.

    Raise NewerLog if a newer version of tuner has written it, and this one cannot read it.
    """
    parts = dict(data)
    try:
        if parts.get("failure"):
            parts["failure"] = Failure(**parts["failure"])
        if parts.get("checkpoint") and isinstance(parts["checkpoint"], Mapping):
            parts["checkpoint"] = CheckpointInfo(**parts["checkpoint"])
        for name in ("uploading", "uploaded"):
            if name in parts:
                parts[name] = tuple(CheckpointInfo(**info) for info in parts[name])
        return _KINDS[kind](**parts)
    except (KeyError, TypeError) as error:
        raise unreadable("event", kind) from error
