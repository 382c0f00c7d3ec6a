"""What the group manager and the ranks say to each other: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What a fresh rank process says about itself."""

    node: str  # Ray's id
    host: str
    ip: str
    pid: int
    gpus: tuple[str, ...]
    hub: tuple[str, int] | None  # where it listens, should it become rank 0
    token: bytes
    oom_kills: int  # of its node so far, to tell later whether the kernel killed for memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A rank's place in its group; given once, when the group is formed."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    nodes: int
    gpus: tuple[str, ...]  # of all ranks of this node
    devices: tuple[int, ...]  # of this rank, as indices into `gpus`
    hub: tuple[str, int] | None
    token: bytes
    backend: str  # of torch.distributed; "none": is not set up


@dataclass(frozen=True, slots=True, kw_only=True)
class RankError:
    """An error of one rank, as text: exceptions of user code need not be importable elsewhere."""

    type: str
    message: str
    traceback: str = ""
    log_tail: str = ""
    cause: str = "exception"  # see domain.events.Failure
    communication: bool = False  # most likely the echo of what happened to another rank


@dataclass(frozen=True, slots=True)
class Recycle:
    """The process cannot be used again, and why; nothing of the segment has run."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    kind: Literal["returned", "left", "failed"]
    reports: int = 0
    error: RankError | None = None
    as_value: bool = False  # its only report is what the function returned
    warning: str = ""  # what looks like a mistake although nothing failed of it


@dataclass(frozen=True, slots=True)
class Progress:
    reports: int
    idle_s: float  # since the latest report or verdict began or ended
    waiting: bool  # for the driver, which may take any time: not to be taken for a hang
    saving: bool = False  # it leaves, or has left the function, and its checkpoints are not committed yet
