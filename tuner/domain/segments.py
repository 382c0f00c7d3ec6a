"""Define the types that a segment and its driver exchange: SegmentRef, Report, Verdict, Outcome.

Every part from the training session to the store uses these types. The core's own state of a segment is
`tuner.domain.trial.Segment`.
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
"""The ways in which the driver can end a running segment: a verdict to stop, pause or exploit, or killing the ranks."""


class SegmentRef(NamedTuple):
    """Identifies a segment within its experiment."""

    trial: int  # the trial's number
    ordinal: int  # 1-based within the trial

    def __str__(self) -> str:
        return f"trial {self.trial}, segment {self.ordinal}"


CAUSES = frozenset(
    [
        "exception",
        "script",
        "script_signal",
        "no_report",
        "exit",
        "signal",
        "oom",
        "hang",
        "stop_ignored",
        "checkpoint",
        "disk_full",
        "storage",
        "node_lost",
        "node_unreachable",
        "peer_lost",
        "preempted",
        "lost_at_start",
        "placement_timeout",
        "checkpoint_lost",
        "disk_lost",
        "checkpoint_unreachable",
        "driver",
        "driver_lost",
        "actor_unavailable",
        "killed",
        "agent_lost",
        "metric",
        "stop",
        "placement",
    ]
)
"""The causes of failures. Each has a section on the troubleshooting page."""


NO_SPACE = "No space left on device"
"""The words by which errors of the operating system say that a disk is full, in libraries of any language."""

UNWRITABLE = "checkpoints cannot be written to"
"""The words by which the error of a rank says that its storage refuses checkpoints, so that other trials would fail, too."""

NOT_MOUNTED = "is a disk or a share not mounted?"
"""The words by which the error of a rank says that all checkpoints of its storage are gone."""

IN_SAVE = "raised by the function that was passed as checkpoint to tuner.report"
"""The note that is added to an exception from the function that saves a checkpoint, so that the driver knows its origin."""


def what_to_do(cause: str | None) -> str:
    """Return a line that names the section of the documentation about failures with this cause."""
    return errors.what_to_do(cause if cause in CAUSES else "failures")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The reason why a segment failed, in words that help the user to fix it.

    kind: a "user" failure counts towards max_failures. A "system" failure does not: a node was lost or preempted, or the
        driver host was lost. A "spec" failure ends the trial immediately. A "placement" failure ends the experiment,
        because every trial asks for the same workers.
    """

    kind: FailureKind
    message: str  # one line: what went wrong
    cause: str = "error"  # one of `CAUSES`
    rank: int | None = None
    node: str | None = None
    pid: int | None = None
    traceback: str = ""
    log_tail: str = ""  # the last lines of the rank's log
    stacks: Mapping[str, str] = field(default_factory=dict)  # rank -> Python stack, for a hang

    @property
    def in_save(self) -> bool:
        """Return whether a checkpoint could not be saved."""
        return self.cause in ("checkpoint", "disk_full", "storage") or IN_SAVE in self.traceback

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
    took_s: float = field(default=0.0, compare=False)  # seconds for which training waited until the content was copied
    age_s: float = field(default=0.0, compare=False)  # seconds since the content was copied


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report of a segment's ranks. The training session makes it; the driver turns it into a `Reported` event.

    time: when the report was made, by the rank's monotonic clock.
    waits: True if the ranks wait for the verdict at this report, so that the trial can be paused or stopped here.
    last: True if the training has ended with this report, such as the return value of the training function, or a report with
        "done" in a class. The trial is then not paused or stopped early: it would repeat a training that has ended.
    offer: the report_no of the next report at which the training code can save a checkpoint; None if unknown.
    age: the seconds between making and sending the report. The clocks of two machines may differ, so the driver computes
        the time of the report from its own clock and `age`.
    """

    report_no: int  # 1-based within the segment
    metrics: Mapping[str, float]
    time: float
    step: int | None = None  # the step count of the training code
    checkpoint: CheckpointInfo | None = None
    waits: bool = field(default=False, compare=False)
    last: bool = field(default=False, compare=False)
    offer: int | None = field(default=None, compare=False)
    age: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The driver's answer to the ranks of a segment, which wait for it at a milestone."""

    action: VerdictAction = "continue"
    # report_no within the segment at which the ranks wait next; None: they never wait again
    next_milestone: int | None = None
    save_checkpoint: bool = False
    reason: str = ""
    completed: bool = False  # with "stop": the trial has reached max_t or a stop criterion, so it is not pruned


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a segment.

    kind: "returned" (the training function returned), "left" (the driver ended the segment) or "failed".
    warning: a likely mistake in the training code, although the segment did not fail; may be empty.
    uploading: checkpoints of the segment whose upload continues in the worker group. They are not ready yet.
    """

    kind: Literal["returned", "left", "failed"]
    failure: Failure | None = None
    reports: int = 0
    warning: str = ""
    uploading: tuple[CheckpointInfo, ...] = ()
