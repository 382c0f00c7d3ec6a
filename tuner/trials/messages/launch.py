"""The messages between the driver host and the worker groups: plain data and two interfaces, without Ray and torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tuner.domain.experiment import CheckpointPolicy, Limits, Scaling
from tuner.domain.logs import LogChunk
from tuner.domain.segments import CheckpointInfo, Report, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRef:
    """The user's function, by name or by value.

    `hash` identifies its content, so that a worker group gets only code that it does not have yet. `blob` is the
    function's cloudpickle, or a Ray object reference to it.
    """

    hash: str
    entrypoint: str | None = None  # "module:name"
    blob: Any = None
    sys_path: tuple[str, ...] = ()
    working_dir: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything that a worker group needs to know to run one segment."""

    experiment_id: str
    trial_id: str
    segment_id: str
    trial_number: int
    segment: int = 1  # ordinal within the trial
    params: Mapping[str, Any] = field(default_factory=dict)  # flat: "optimizer/lr" -> JSON value
    seed: int = 0
    start_iteration: int = 0
    checkpoint: CheckpointInfo | None = None  # the checkpoint to start from
    code: CodeRef
    space: Mapping[str, Any] | None = None  # JSON form; None: params are nested by their slashes
    space_blob: bytes | None = None  # choices that JSON cannot express
    scaling: Scaling = field(default_factory=Scaling)
    limits: Limits = field(default_factory=Limits)
    checkpoint_policy: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    storage: str  # path or URI under which this experiment's checkpoints are stored
    durable: bool = False  # whether checkpoints on a disk survive a power failure
    log_dir: str  # ranks write {log_dir}/{segment_id}/rank{rank}.log
    first_milestone: int | None = 1  # report_no at which ranks wait first; None: never
    checkpoint_every: int | None = None  # save a checkpoint every n reports
    milestone_checkpoints: bool = False  # whether to save a checkpoint at every milestone
    metric: str | None = None  # the objective
    env: Mapping[str, str] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend:
    """The answer to a batch if earlier reports are missing. Nothing was accepted: send all reports after `after` again."""

    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The node and process of one rank."""

    rank: int
    node: str  # Ray's id of the node
    host: str  # its name
    ip: str
    pid: int
    gpus: tuple[str, ...] = ()


class Inbox(Protocol):
    """Receives a segment's messages about its start. Its methods are called in the host's event loop and must not block."""

    def waiting(self, segment_id: str, reason: str) -> None:
        """Handle the message that the segment waits for resources. Called again when the reason changes."""

    def started(
        self, segment_id: str, placement: Mapping[str, Any], startup_s: float, warm: bool, held_s: float
    ) -> None:
        """Handle the message that all ranks are about to call the training function.

        held_s: seconds since their group got its resources.
        """


class Driver(Protocol):
    """The Ray actor to which ranks report.

    After a lost answer, a method may be called again with the same arguments. The second call has no effect.
    """

    async def report(self, segment_id: str, reports: list[Report]) -> Verdict | Resend | None:
        """Commit a batch. Return the verdict if its last report has `waits`, or a Resend if earlier reports are missing.

        If the answer to a milestone is None, the driver does not know this segment, and the ranks leave.
        """

    async def checkpoint(self, segment_id: str, info: CheckpointInfo) -> None:
        """Handle the message that a checkpoint is committed or, if its `ready` is False, that it is being saved.

        By then the driver has acknowledged the checkpoint's report.
        """

    async def take_logs(self, segment_id: str, chunks: Sequence[LogChunk]) -> None:
        """Store chunks of a rank's log, and return once they are stored."""
