"""A worker group, and what two launches must have in common to use the same one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tuner.domain.experiment import Scaling
from tuner.trials.messages.launch import Launch, Placed
from tuner.trials.messages.protocol import RankAssignment, WorkerMetadata

Key = tuple[Any, ...]
"""The kind of a group, see `group_key`."""


@dataclass(slots=True, eq=False)
class Group:
    """The processes of one placement group. Once the group is built they are in the order of their ranks."""

    key: Key
    placement: Any  # Ray's placement group; None without Ray
    actors: list[Any] = field(default_factory=list)
    workers: list[WorkerMetadata] = field(default_factory=list)
    assignments: list[RankAssignment] = field(default_factory=list)
    assigned: bool = False  # whether its ranks know their assignments
    codes: set[str] = field(default_factory=set)  # hashes of the functions that its ranks have
    runs: int = 0
    expiry: asyncio.TimerHandle | None = None  # while it is idle
    experiment: str = ""  # the experiment that has it, or had it last
    turn_began: float = 0.0  # when that experiment got it
    held_since: float = 0.0  # when it got its room, or was given to its present segment

    def nodes(self) -> tuple[str, ...]:
        """Return the node of each rank."""
        return tuple(worker.node for worker in self.workers)

    def placed(self) -> list[Placed]:
        """Return where each rank runs."""
        return [
            Placed(
                rank=assignment.rank, node=worker.node, host=worker.host, ip=worker.ip, pid=worker.pid, gpus=worker.gpus
            )
            for assignment, worker in zip(self.assignments, self.workers, strict=True)
        ]


def group_key(launch: Launch) -> Key:
    """Return what two launches must have in common to run in the same processes."""
    code = launch.code
    return (
        *scaling_key(launch.scaling),
        code.entrypoint,  # functions by value have no entrypoint: they come from one script, and may change without new processes
        code.sys_path,
        code.working_dir,
        repr(sorted(launch.runtime_env.items())),
        tuple(sorted(launch.env.items())),
    )


def scaling_key(scaling: Scaling) -> Key:
    """Return the part of a group's key that says how many workers it has, and with which resources."""
    return *room_key(scaling), scaling.backend


def room_key(scaling: Scaling) -> Key:
    """Return the part of a group's key that says what room it needs: (workers, bundle, strategy)."""
    bundle = tuple(sorted(scaling.bundle().items()))
    return scaling.num_workers, bundle, scaling.placement_strategy


def demand(launch: Launch) -> str:
    """Return in words what room the launch needs."""
    bundle = ", ".join(f"{amount:g} {name}" for name, amount in launch.scaling.bundle().items())
    workers = launch.scaling.num_workers
    return f"{workers} workers with {bundle} each" if workers > 1 else f"a worker with {bundle}"
