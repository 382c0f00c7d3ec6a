"""The types that a segment and its driver exchange: its name, its reports, the verdicts, and its outcome.

These types go unchanged from the training session to the row. `tuner.domain.trial.Segment` is what the core knows of a segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tuner import errors

FailureKind = Literal["user", "system", "placement", "spec"]
VerdictAction = Literal["continue", "stop", "pause", "exploit"]
Leave = Literal["stop", "pause", "exploit"]
Interruption = Leave | Literal["kill"]
"""The verdicts that end a segment."""


class SegmentRef(NamedTuple):
    """The name of a segment within its experiment."""

    trial: int  # the trial's number
    ordinal: int  # 1-based within the trial

    def __str__(self) -> str:
        return f"trial {self.trial}, segment {self.ordinal}"


CAUSES = frozenset(
    [
        "exception",
        "no_report",
        "exit",
        "signal",
        "oom",
        "hang",
        "stop_ignored",
        "checkpoint",
        "node_lost",
        "preempted",
        "lost_at_start",
        "placement_timeout",
        "checkpoint_lost",
        "disk_lost",
        "checkpoint_unreachable",
        "driver_lost",
        "actor_unavailable",
        "killed",
        "agent_lost",
    ]
)
"""Causes of failures that the troubleshooting page has a section about."""


def what_to_do(cause: str | None) -> str:
    """Return a line that names the section of the docs about a cause of failures."""
    return errors.what_to_do(cause if cause in CAUSES else "failures")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The reason why a segment failed, in terms that a person can act on.

    kind: "user" counts against max_failures. "system" (a node was lost, preempted, or its host was lost) does not. "spec" is
    final for the trial, "placement" for the experiment, because every trial asks for the same workers.
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
        """Return one line that says which trial and rank failed, where, and why."""
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
    node: str | None = None  # Ray's id of the node whose disk has it; None if it is at a URI
    took_s: float = field(default=0.0, compare=False)  # how long training waited until the content was taken over
    age_s: float = field(default=0.0, compare=False)  # how long ago that was


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report of a segment's ranks: the same object from the training session to the driver, where it becomes `Reported`.

    time: when it was made, by the monotonic clock of its rank. waits: the ranks wait for the verdict at this report, so the
    trial can be paused or stopped here. offer: the report_no of the next report with which the code will offer a checkpoint;
    None if that is not known. age: seconds between making and sending. The clocks of two machines need not agree, so the driver
    dates the report by its own clock and the age.
    """

    report_no: int  # 1-based within the segment
    metrics: Mapping[str, float]
    time: float
    step: int | None = None  # the training code's own count
    checkpoint: CheckpointInfo | None = None
    waits: bool = field(default=False, compare=False)
    offer: int | None = field(default=None, compare=False)
    age: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The instruction to the ranks of a segment after a report at which they waited."""

    action: VerdictAction = "continue"
    next_milestone: int | None = None  # report_no within the segment at which they wait next; None: never again
    save_checkpoint: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a segment.

    kind: "returned" (the function came to its end), "left" (it followed a verdict) or "failed". warning: a likely
    mistake in the training code although nothing failed; empty if there is none.
    """

    kind: Literal["returned", "left", "failed"]
    failure: Failure | None = None
    reports: int = 0
    warning: str = ""
