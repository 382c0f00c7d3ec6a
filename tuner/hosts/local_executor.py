"""Run trials in processes of this machine, without Ray. Each trial is one process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from tuner.domain.experiment import Scaling
from tuner.domain.segments import CheckpointInfo
from tuner.errors import TunerError
from tuner.hosts.executor import GroupOptions, Joining
from tuner.trials.checkpoints import checkpoints
from tuner.trials.groups.pools.cpus import cpus_here
from tuner.trials.groups.pools.local_pool import LocalPool
from tuner.trials.groups.pools.local_ranks import RankServer
from tuner.trials.groups.segments.manager import GroupManager


class LocalExecutor:
    """An `Executor` that runs trials in processes of this machine.

    Args:
        server: the server that starts the processes of trials. It may have started some already.
        cpus: the number of CPUs that all trials together may hold.
    """

    name: Literal["ray", "local", "agents"] = "local"
    own_process = False
    node: str | None = None

    def __init__(self, server: RankServer, cpus: float) -> None:
        self._server, self.cpus = server, cpus
        self._pool: LocalPool | None = None

    def listen_at(self) -> str:
        """Return the loopback address, at which trial processes reach the host."""
        return "127.0.0.1"

    def groups(self, options: GroupOptions) -> GroupManager:
        """Return the worker groups of the host, each of which is one process of this machine."""
        if options.report_address is None:
            raise TunerError(
                "the driver cannot be reached at 127.0.0.1, to which trials without Ray send their reports; check that the "
                "loopback interface is up (`ip link show lo`)"
            )
        self._pool = LocalPool(
            self.cpus,
            options.report_address,
            self._server,
            log_limit=options.log_limit,
            entitlement=options.entitlement,
        )
        return GroupManager(self._pool, logs=options.logs)

    def clean_up(self) -> None:
        """Do nothing, because trial processes exit together with the host that started them."""

    def capacity(self, scaling: Scaling) -> int | None:
        """Return how many trials this machine has CPUs for at once, at least one; None if a trial needs no CPU."""
        each = scaling.bundle().get("CPU", 0.0)
        return max(1, int((self.cpus + 1e-9) // each)) if each else None

    def workers(self, scaling: Scaling) -> int | None:
        """Return None, because the trials of this executor are not elastic."""
        return None

    async def nodes(self) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, float]]:
        """Return this machine as the only node, in the form of `ray.nodes`, and its free resources."""
        held = sum(one.bundle.get("CPU", 0.0) for one in self._pool.held()) if self._pool is not None else 0.0
        name = socket.gethostname()
        node = {"NodeID": name, "NodeManagerHostname": name, "NodeManagerAddress": "127.0.0.1", "Alive": True}
        return [{**node, "Resources": {"CPU": self.cpus}, "Labels": {}}], {"CPU": self.cpus - held}

    async def joining(self, nodes: Sequence[Mapping[str, Any]]) -> Sequence[Joining]:
        """Return nothing, because this machine is the only node."""
        return ()

    async def on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function in a thread of this process, because this machine is the only node."""
        return await asyncio.to_thread(function, *args)

    def share(self, value: Any) -> Any:
        """Return the value itself, which is sent to each trial process once."""
        return value

    def offload(self, sys_path: Sequence[str], function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        """Call the function in a helper process of this machine."""
        assert self._pool is not None
        return self._pool.offload(sys_path, function, *args)

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        """Delete a checkpoint's files from this machine or from remote storage, but not from another node's disk."""
        if info.node is None or await asyncio.to_thread(checkpoints.is_here, info.uri):
            await asyncio.to_thread(checkpoints.delete, info.uri)


def beside() -> LocalExecutor:
    """Return a local executor for a host that already has one on Ray. Trial processes start when they are needed."""
    return LocalExecutor(RankServer(), cpus_here())
