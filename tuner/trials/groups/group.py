"""A worker group, and the keys that tell which launches can share a group."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tuner.domain.experiment import Scaling
from tuner.trials.messages.launch import Launch, Placed
from tuner.trials.messages.protocol import RankAssignment, WorkerMetadata

Key = tuple[Any, ...]
"""The kind of a group; see `group_key`."""


@dataclass(slots=True, eq=False)
class Group:
    """The processes of one placement group. Once the group is built, they are ordered by rank."""

    key: Key
    placement: Any  # Ray's placement group; None without Ray
    actors: list[Any] = field(default_factory=list)
    workers: list[WorkerMetadata] = field(default_factory=list)
    assignments: list[RankAssignment] = field(default_factory=list)
    assigned: bool = False  # whether its ranks know their assignments
    codes: set[str] = field(default_factory=set)  # hashes of the functions that its ranks have
    runs: int = 0
    expiry: asyncio.TimerHandle | None = None  # while it is idle
    experiment: str = ""  # the experiment that uses it, or used it last
    turn_began: float = 0.0  # when that experiment got it
    held_since: float = 0.0  # when it got its resources, or was given to its current segment

    def nodes(self) -> tuple[str, ...]:
        """Return the node of each rank."""
        return tuple(worker.node for worker in self.workers)

    def placed(self) -> list[Placed]:
        """Return the node and process of each rank."""
        return [
            Placed(
                rank=assignment.rank, node=worker.node, host=worker.host, ip=worker.ip, pid=worker.pid, gpus=worker.gpus
            )
            for assignment, worker in zip(self.assignments, self.workers, strict=True)
        ]


def group_key(launch: Launch) -> Key:
    """Return a key that is equal for launches that can run in the same processes."""
    code = launch.code
    return (
        *scaling_key(launch.scaling),
        # A function by value has no entrypoint. If the function has changed, the same processes can still run it.
        code.entrypoint,
        code.sys_path,
        code.working_dir,
        repr(sorted(launch.runtime_env.items())),
        tuple(sorted(launch.env.items())),
    )


def scaling_key(scaling: Scaling) -> Key:
    """Return the part of a group's key with the number of workers and their resources."""
    return *room_key(scaling), scaling.backend


def room_key(scaling: Scaling) -> Key:
    """Return the part of a group's key that determines its placement: (workers, bundle, strategy)."""
    bundle = tuple(sorted(scaling.bundle().items()))
    return scaling.num_workers, bundle, scaling.placement_strategy


def demand(launch: Launch) -> str:
    """Return the resources of a launch, in words."""
    bundle = ", ".join(f"{amount:g} {name}" for name, amount in launch.scaling.bundle().items())
    workers = launch.scaling.num_workers
    return f"{workers} workers with {bundle} each" if workers > 1 else f"a worker with {bundle}"
