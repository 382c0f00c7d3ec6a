"""What happened: the facts that the driver commits and that a restart folds again.

An event is immutable and turns into JSON and back (`to_json`, `from_json`). A `Reported` is stored as its metric points; all
others are rows of the event table, `KIND` being the value of its column `kind`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

FailureKind = Literal["user", "system", "placement", "spec"]
Command = Literal["pause", "resume", "cancel", "stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a segment broke, in terms that a person can act on.

    kind: "user" counts against max_failures; "system" (node lost, preempted, host lost) does not; "spec" is final for its
    trial, "placement" for the experiment, as every trial asks for the same workers.
    """

    kind: FailureKind
    message: str  # one line: what went wrong
    cause: str = (
        "error"  # exception | signal | exit | oom | hang | stop_ignored | node_lost | host_lost | no_report | ...
    )
    rank: int | None = None
    node: str | None = None
    pid: int | None = None
    traceback: str = ""
    log_tail: str = ""  # the last lines of that rank
    stacks: Mapping[str, str] = field(default_factory=dict)  # rank -> Python stack, for a hang

    def headline(self, trial: int | None = None) -> str:
        where = [f"trial {trial}"] if trial is not None else []
        if self.rank is not None:
            where.append(f"rank {self.rank}" + (f" on {self.node}" if self.node else ""))
        return ": ".join([", ".join(where), self.message] if where else [self.message])


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """A committed checkpoint. `step` is the training_iteration of the report that it belongs to."""

    id: str
    uri: str
    step: int
    bytes: int = 0
    ready: bool = True  # False while its upload is under way
    node: str | None = None  # Ray's id of the node whose disk has it; None where it lies at a URI


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    KIND: ClassVar[str] = "event"
    time: float  # seconds since the epoch; virtual seconds in a simulation

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStarted(Event):
    """A driver has taken the experiment over: whatever ran before is gone."""

    KIND = "driver_started"
    epoch: int
    slots: int | None = None  # how many trials the cluster holds at once, where the spec does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Event):
    """A segment waits for resources; `reason` says for what."""

    KIND = "waiting"
    trial: int
    segment: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentStarted(Event):
    """All ranks have entered the training function."""

    KIND = "segment_started"
    trial: int
    segment: int
    placement: Mapping[str, Any] = field(default_factory=dict)
    startup_s: float = 0.0
    warm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported(Event):
    """One report of the whole group. `iteration` = the segment's start + report_no.

    waits: the ranks wait for the verdict at this report, so that the trial can be paused or stopped here. It is not stored.
    """

    KIND = "reported"
    trial: int
    segment: int
    report_no: int  # 1-based within the segment
    iteration: int
    metrics: Mapping[str, float]
    checkpoint: CheckpointInfo | None = None
    waits: bool = field(default=True, compare=False)
    step: int | None = None  # the training code's own count


@dataclass(frozen=True, slots=True, kw_only=True)
class StopJudged(Event):
    """The user's stop functions have looked at a report that is about to come; left out if all of them let the trial go on.

    answers: one for each function, {"stop": bool} or {"error": type, "args", "text", "traceback"}.
    """

    KIND = "stop_judged"
    trial: int
    segment: int
    iteration: int
    answers: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint came after its report: written on demand, or uploaded by now."""

    KIND = "checkpoint_saved"
    trial: int
    segment: int
    checkpoint: CheckpointInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDeleted(Event):
    KIND = "checkpoint_deleted"
    trial: int
    checkpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEnded(Event):
    """The group is free again. `outcome`: returned (the function came to its end), left (it followed a verdict), failed.

    warning: what looks like a mistake in the training code although nothing failed of it; empty where there is nothing.
    """

    KIND = "segment_ended"
    trial: int
    segment: int
    outcome: Literal["returned", "left", "failed"]
    failure: Failure | None = None
    warning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggested(Event):
    """A searcher that runs beside the driver has proposed the configuration of trial `number`."""

    KIND = "suggested"
    number: int
    params: Mapping[str, Any] | None  # None: it has nothing more to propose
    state: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn(Event):
    """A running trial has come to a parameter that nobody knew of before, and was given this value (define-by-run)."""

    KIND = "drawn"
    trial: int
    segment: int
    name: str
    value: Any  # as JSON
    state: Mapping[str, Any] = field(default_factory=dict)  # the searcher's; goes over what it has with the trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted(Event):
    """The training code has left a note with its trial, for people to read: user attributes."""

    KIND = "noted"
    trial: int
    segment: int
    notes: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFitted(Event):
    """A fit that a scheduler had asked for has come back; the payload is the scheduler's own."""

    KIND = "model_fitted"
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commanded(Event):
    """A user wants something. `trial` is None where the whole experiment is meant."""

    KIND = "commanded"
    command: Command
    trial: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpent(Event):
    """`limits.time_budget_s` of running time is used up."""

    KIND = "budget_spent"
    seconds: float


_KINDS: dict[str, type[Event]] = {
    cls.KIND: cls
    for cls in (
        DriverStarted,
        Waiting,
        SegmentStarted,
        Reported,
        StopJudged,
        CheckpointSaved,
        CheckpointDeleted,
        SegmentEnded,
        Suggested,
        Drawn,
        Noted,
        ModelFitted,
        Commanded,
        BudgetSpent,
    )
}


def from_json(kind: str, data: Mapping[str, Any]) -> Event:
    """Return the event that `to_json` wrote under this kind."""
    parts = dict(data)
    if parts.get("failure"):
        parts["failure"] = Failure(**parts["failure"])
    if parts.get("checkpoint") and isinstance(parts["checkpoint"], Mapping):
        parts["checkpoint"] = CheckpointInfo(**parts["checkpoint"])
    return _KINDS[kind](**parts)
