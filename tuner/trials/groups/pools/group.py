"""A worker group, and the keys that determine which launches can share a group."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from tuner.domain.experiment import Scaling
from tuner.domain.segments import CheckpointInfo
from tuner.trials.messages.launch import Launch, Placed
from tuner.trials.messages.protocol import RankAssignment, WorkerMetadata

Key = tuple[Any, ...]
"""The kind of a group; see `group_key`."""


@dataclass(slots=True, eq=False)
class Group:
    """The processes of one placement group. Once the group is built, the processes are in the order of their ranks."""

    key: Key
    placement: Any  # Ray's placement group; None without Ray
    _: KW_ONLY
    avoided: frozenset[str] = frozenset()  # the nodes on which Ray must not place it
    actors: list[Any] = field(default_factory=list)
    workers: list[WorkerMetadata] = field(default_factory=list)
    assignments: list[RankAssignment] = field(default_factory=list)
    placement_shown: Mapping[str, Any] = field(default_factory=dict)  # the placement of its ranks, as shown in events
    assigned: bool = False  # whether its processes have been told their rank assignments
    codes: set[str] = field(default_factory=set)  # hashes of the training functions that its processes have
    runs: int = 0
    sound: bool = True  # whether its processes were still running when its last segment ended
    expiry: asyncio.TimerHandle | None = None  # while the group is idle, the timer that shuts it down
    experiment: str = ""  # the experiment that uses the group, or used it last
    turn_began: float = 0.0  # when that experiment got the group
    held_since: float = 0.0  # when the group got its resources, or was given to its current segment
    # uploads of earlier segments that continue in its processes; each future is done once its upload has finished
    uploads: set[asyncio.Future[CheckpointInfo | str]] = field(default_factory=set)

    def nodes(self) -> tuple[str, ...]:
        """Return the node of each rank."""
        return tuple(worker.node for worker in self.workers)

    async def uploaded(self) -> None:
        """Wait until all uploads of earlier segments in this group's processes have finished."""
        while self.uploads:
            await asyncio.wait(self.uploads)

    def placed(self) -> list[Placed]:
        """Return the node, the process and the GPUs of each rank."""
        return [
            Placed(
                rank=assignment.rank, node=worker.node, host=worker.host, ip=worker.ip, pid=worker.pid, gpus=worker.gpus
            )
            for assignment, worker in zip(self.assignments, self.workers, strict=True)
        ]


def group_key(launch: Launch) -> Key:
    """Return a key for a launch. Launches with equal keys can run in the same processes."""
    code = launch.code
    return (
        *scaling_key(launch.scaling),
        # A function that is sent by value has no entrypoint: the same processes can run it even if it has changed.
        code.entrypoint,
        code.sys_path,
        code.working_dir,
        repr(sorted(launch.runtime_env.items())),
        tuple(sorted(launch.env.items())),
    )


def scaling_key(scaling: Scaling) -> Key:
    """Return the part of a group's key that depends only on the scaling: (workers, bundle, strategy, backend)."""
    return *room_key(scaling), scaling.backend


def room_key(scaling: Scaling) -> Key:
    """Return the part of a group's key that determines its placement: (workers, bundle, strategy)."""
    bundle = tuple(sorted(scaling.bundle().items()))
    return scaling.num_workers, bundle, scaling.placement_strategy


def demand(launch: Launch) -> str:
    """Return the resources that a launch needs, in words."""
    bundle = ", ".join(f"{amount:g} {name}" for name, amount in launch.scaling.bundle().items())
    workers = launch.scaling.num_workers
    return f"{workers} workers with {bundle} each" if workers > 1 else f"a worker with {bundle}"
