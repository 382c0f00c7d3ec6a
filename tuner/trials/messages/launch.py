"""The messages between the driver host and the worker groups: plain data and two interfaces, without Ray and torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tuner.domain.experiment import CheckpointPolicy, Limits, Mode, Scaling
from tuner.domain.logs import LogChunk
from tuner.domain.segments import CheckpointInfo, Report, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRef:
    """The training function, by name (`entrypoint`) or by value (`blob`).

    `hash` identifies the content of the function, so that a function is sent only to worker groups that do not have it.
    `blob` is the function pickled by cloudpickle, or a Ray object reference to the pickle.
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
    drawn_as: int | None = None  # the number by which functions of `sample_from` draw; None: trial_number
    segment: int = 1  # the number of the segment within its trial, from 1
    params: Mapping[str, Any] = field(default_factory=dict)  # a flat dict: "optimizer/lr" -> JSON value
    seed: int = 0
    start_iteration: int = 0
    checkpoint: CheckpointInfo | None = None  # the checkpoint to start from
    code: CodeRef
    space: Mapping[str, Any] | None = None  # the search space as JSON; if None, slashes in `params` nest the config
    space_blob: bytes | None = None  # the pickled choices of the space that JSON cannot express
    scaling: Scaling = field(default_factory=Scaling)  # with the number of ranks of this segment
    base_workers: int | None = None  # for an elastic trial: the number of ranks for which its code is written
    placed_before: bool = False  # whether a trial of this experiment has run before, so that the cluster can hold one
    limits: Limits = field(default_factory=Limits)
    checkpoint_policy: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    storage: str  # path or URI under which this experiment's checkpoints are stored
    has_saved: bool = False  # whether earlier segments on this machine have saved checkpoints in the folder `storage`
    durable: bool = False  # whether checkpoints on a disk must survive a power failure
    log_dir: str  # ranks write {log_dir}/{segment_id}/rank{rank}.log
    first_milestone: int | None = 1  # report_no of the first milestone; None if there is none
    checkpoint_every: int | None = None  # the number of reports from one checkpoint to the next
    milestone_checkpoints: bool = False  # whether to save a checkpoint at every milestone
    metric: str | None = None  # the metric of the objective
    modes: tuple[Mode, ...] = ()  # "min" or "max" for each objective; empty on an agent
    env: Mapping[str, str] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend:
    """The driver's answer to a batch of reports if earlier reports are missing.

    The driver has not accepted the batch. The sender must send all reports after report `after` again.
    """

    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The node, the process and the GPUs of one rank."""

    rank: int
    node: str  # Ray's id of the node
    host: str  # the node's host name
    ip: str
    pid: int
    gpus: tuple[str, ...] = ()


class Inbox(Protocol):
    """An object that is told when segments start. Its methods are called in the host's event loop, and must not block."""

    def waiting(self, segment_id: str, reason: str) -> None:
        """Handle the message that a segment is waiting for resources. It is sent again when the reason changes."""

    def started(
        self, segment_id: str, placement: Mapping[str, Any], startup_s: float, warm: bool, held_s: float
    ) -> None:
        """Handle the message that all ranks of a segment are about to call the training function.

        Args:
            segment_id: the segment.
            placement: the node, process and GPUs of each rank.
            startup_s: seconds since the segment was launched.
            warm: whether an existing group was reused.
            held_s: seconds since the group got its resources, or was given to this segment.
        """


class Driver(Protocol):
    """The requests that ranks send to the driver host, which is a Ray actor or listens on a socket.

    If an answer is lost, a rank repeats its request with the same arguments. The repeated request has no effect.
    """

    async def report(self, segment_id: str, reports: list[Report]) -> Verdict | Resend | None:
        """Commit a batch of reports. Return a Resend if earlier reports are missing, else the verdict or None.

        There is a verdict if the ranks wait for one, that is, if `waits` is set in the last report of the batch. If the
        answer to such a report is None, the driver no longer knows the segment, and the ranks end it.
        """

    async def checkpoint(self, segment_id: str, info: CheckpointInfo) -> None:
        """Record that a checkpoint is committed or, if `info.ready` is False, that it is being saved.

        A rank calls this only after the driver has acknowledged the report to which the checkpoint belongs.
        """

    async def take_logs(self, segment_id: str, chunks: Sequence[LogChunk]) -> None:
        """Store chunks of a rank's log, and return once they are stored."""
