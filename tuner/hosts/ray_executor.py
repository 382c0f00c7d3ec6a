"""Run trials on Ray, where each worker group has a placement group and the driver host is an actor."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import ray

from tuner.domain.experiment import Scaling
from tuner.domain.segments import CheckpointInfo
from tuner.hosts.executor import GroupOptions, Joining
from tuner.hosts.ray.cluster import capacity, living_nodes, remove_orphans, workers
from tuner.trials.checkpoints import checkpoints, transfer
from tuner.trials.groups.cluster.growth import NodeType, count_joining
from tuner.trials.groups.cluster.ray_nodes import known_types
from tuner.trials.groups.pools.pool import Pool
from tuner.trials.groups.segments.manager import GroupManager
from tuner.trials.messages.tasks import as_task, on_node

TYPES_S = 60.0
"""Seconds between two requests to Ray for the types of nodes that an autoscaler may add."""


class RayExecutor:
    """An `Executor` that runs trials on the Ray cluster to which the driver host belongs.

    node_types: the types of nodes that an autoscaler may add, if the operator has named them.
    """

    name: Literal["ray", "local", "agents"] = "ray"
    own_process = True

    def __init__(self, node_types: Sequence[NodeType] = ()) -> None:
        self._types = node_types
        # when to ask Ray for the types, as a monotonic time
        self._ask_again = -math.inf if not node_types else math.inf
        self._pool: Pool | None = None
        self._deletions = transfer.Deletions()

    @property
    def node(self) -> str:
        """Return Ray's id of the node on which the host runs."""
        node: str = ray.get_runtime_context().get_node_id()
        return node

    def listen_at(self) -> str:
        """Return the IP address of the node on which the host runs."""
        ip: str = ray.util.get_node_ip_address()
        return ip

    def groups(self, options: GroupOptions) -> GroupManager:
        """Return the worker groups of the host, whose ranks report to the host's actor."""
        self._pool = Pool(
            ray.get_runtime_context().current_actor,
            name=options.name,
            node_types=self._node_types,
            report_address=options.report_address,
            lines=options.lines,
            reserve_after_s=options.reserve_after_s,
            log_limit=options.log_limit,
            entitlement=options.entitlement,
            quotas=options.quotas,
            preempt_after_s=options.preempt_after_s,
        )
        return GroupManager(self._pool, logs=options.logs)

    def clean_up(self) -> None:
        """Remove the placement groups of driver hosts that have died."""
        remove_orphans()

    def capacity(self, scaling: Scaling) -> int | None:
        """Return how many worker groups of this kind the cluster holds, at least one; None if they need no resources."""
        return capacity(scaling, self._node_types())

    def workers(self, scaling: Scaling) -> int | None:
        """Return how many ranks the cluster holds; None if they need no resources."""
        return workers(scaling, self._node_types())

    def _node_types(self) -> Sequence[NodeType]:
        """Return the types of nodes that may join: the types that the operator has named, or else the types that Ray knows."""
        if time.monotonic() >= self._ask_again:  # Ray may learn of more types after the start of this process
            self._types, self._ask_again = known_types(), time.monotonic() + TYPES_S
        return self._types

    async def nodes(self) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, float]]:
        """Return the nodes of the cluster, and the free resources of all nodes together."""
        nodes, available = await asyncio.gather(
            asyncio.to_thread(ray.nodes), asyncio.to_thread(ray.available_resources)
        )
        return nodes, available

    async def joining(self, nodes: Sequence[Mapping[str, Any]]) -> Sequence[Joining]:
        """Return the nodes that an autoscaler may add. `nodes` is what the method `nodes` has returned."""
        there = {node["NodeID"]: node["Resources"] for node in nodes if node["Alive"]}
        return count_joining(await asyncio.to_thread(self._node_types), there)

    async def on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in a Ray task on another node, or in a thread here if `node` is this node or cannot be reached."""
        is_cut = self._pool is not None and self._pool.is_cut(node)
        if node != self.node and not is_cut and node in await asyncio.to_thread(living_nodes):
            return await on_node(node, function, *args)
        return await asyncio.to_thread(function, *args)

    def share(self, value: Any) -> Any:
        """Put the value into Ray's object store, and return the reference to it. A reference of the user's is returned itself."""
        return value if isinstance(value, ray.ObjectRef) else ray.put(value)

    def offload(self, sys_path: Sequence[str], function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        """Call the function in a Ray task that needs no CPU. `sys_path` is not used: Ray's workers have the script's own."""
        result: Awaitable[Any] = as_task(function).remote(*args)
        return result

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        """Delete the files of a checkpoint, here or on the node whose disk has them."""
        if info.node in (None, self.node) or await asyncio.to_thread(checkpoints.is_here, info.uri):
            await asyncio.to_thread(checkpoints.delete, info.uri)
        else:
            await self._deletions.delete(info.uri, info.node)
