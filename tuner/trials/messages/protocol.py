"""The messages between the group manager and the ranks: plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tuner.domain.logs import LogChunk


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMetadata:
    """Information about a new rank process."""

    node: str  # Ray's id
    host: str
    ip: str
    pid: int
    gpus: tuple[str, ...]
    channel_address: tuple[str, int] | None  # the address at which it listens for the other ranks if it becomes rank 0
    token: bytes
    oom_kills: int  # OOM kills on its node so far; a higher count later means that the kernel has killed a process


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAssignment:
    """The rank of a process in its group. It is assigned once, when the group is formed."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    nodes: int
    gpus: tuple[str, ...]  # the GPUs of all ranks of this node
    devices: tuple[int, ...]  # the devices of this rank, as indices into `gpus`
    channel_address: tuple[str, int] | None
    token: bytes
    backend: str  # the backend of torch.distributed, or "none" if there is no process group


@dataclass(frozen=True, slots=True, kw_only=True)
class RankError:
    """An error of one rank, as text, because the class of the exception may not be importable elsewhere."""

    type: str
    message: str
    traceback: str = ""
    log_tail: str = ""
    cause: str = "exception"  # see domain.events.Failure
    communication: bool = False  # whether another rank's end has most likely caused it


@dataclass(frozen=True, slots=True)
class NotReusable:
    """The answer of a process that cannot be reused. The segment has not begun."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    kind: Literal["returned", "left", "failed"]
    reports: int = 0
    error: RankError | None = None
    as_value: bool = False  # whether its only report is the return value of the function
    warning: str = ""  # a likely mistake that caused no failure
    log: Sequence[LogChunk] = ()  # the unsent chunks of its log with the end mark; empty if they are sent separately


@dataclass(frozen=True, slots=True)
class Progress:
    reports: int
    idle_s: float  # seconds since the latest report or verdict began or ended
    waiting: bool  # whether it waits for the driver; this may take arbitrarily long and is not a hang
    saving: bool = False  # whether it is leaving or has left the function and still has checkpoints to commit
