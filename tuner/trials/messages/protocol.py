"""The messages between the group manager and the ranks: plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tuner.domain.logs import LogChunk
from tuner.domain.segments import CheckpointInfo
from tuner.trials.messages.peer_lines import Peer


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMetadata:
    """Information about a new rank process."""

    node: str  # Ray's id
    host: str
    ip: str
    pid: int
    gpus: tuple[str, ...]
    channel_address: tuple[str, int] | None  # where this process listens for the other ranks, if it becomes rank 0
    token: bytes
    oom_kills: int  # OOM kills on its node so far


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAssignment:
    """The rank of a process in its worker group, with its devices. It is assigned once, when the group is formed."""

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
    peers: tuple[Peer, ...] = ()  # the ranks of other nodes whose machines this rank watches
    watchers: int = 0  # the number of ranks that watch this rank's machine

    def environment(self) -> dict[str, str]:
        """Return the environment variables of this rank: those that torchrun sets, and its node's GPUs."""
        variables: dict[str, object] = {
            "RANK": self.rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_world_size,
            "NODE_RANK": self.node_rank,
            "GROUP_RANK": self.node_rank,
            "GROUP_WORLD_SIZE": self.nodes,
            "ROLE_RANK": self.rank,
            "ROLE_WORLD_SIZE": self.world_size,
            "ROLE_NAME": "default",
        }
        if self.gpus:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus)
        return {name: str(value) for name, value in variables.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankError:
    """An error of one rank, as text, because other processes may be unable to import the class of the exception."""

    type: str
    message: str
    traceback: str = ""
    log_tail: str = ""
    cause: str = "exception"  # see domain.events.Failure
    communication: bool = False  # whether the error is most likely a consequence of another rank's failure


@dataclass(frozen=True, slots=True)
class NotReusable:
    """The answer of a warm process that cannot be reused. It has not started the segment."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    kind: Literal["returned", "left", "failed"]
    reports: int = 0
    error: RankError | None = None
    as_value: bool = False  # whether the only report is the return value of the function
    warning: str = ""  # a message about a likely mistake that caused no failure
    uploading: Sequence[CheckpointInfo] = ()  # checkpoints that rank 0 is still saving; see `Rank.upload_end`
    log: Sequence[LogChunk] = ()  # the unsent chunks of the rank's log and its end mark; empty if sent separately


@dataclass(frozen=True, slots=True)
class Progress:
    reports: int
    idle_s: float  # seconds since a report or a verdict last began or ended
    waiting: bool  # whether the rank waits for the driver, which may take arbitrarily long and is not a hang
    saving: bool = False  # whether the rank is leaving or has left the function, and still has checkpoints to commit
