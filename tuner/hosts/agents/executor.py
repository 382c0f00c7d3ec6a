"""The `Executor` of experiments whose trials run on agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from tuner.domain.experiment import Scaling
from tuner.domain.segments import (
    CheckpointInfo,
)
from tuner.hosts.agents.groups import AgentGroups
from tuner.hosts.executor import Executor, GroupOptions, Joining, SegmentGroups


class AgentExecutor:
    """The `Executor` of experiments whose trials run on agents.

    Args:
        own: the host's own executor, which does everything except running trials.
        groups: lends the segments to agents.
        own_groups: returns the worker groups of the host's own executor, and makes them if there are none yet.
    """

    name: Literal["ray", "local", "agents"] = "agents"
    own_process = False

    def __init__(self, own: Executor, groups: AgentGroups, own_groups: Callable[[], SegmentGroups]) -> None:
        self._own, self._groups, self._own_groups = own, groups, own_groups

    @property
    def node(self) -> str | None:
        """Return the id of the node that the host runs on."""
        return self._own.node

    def listen_at(self) -> str:
        """Return the address at which ranks of the host's own executor reach the host. Agents do not use it."""
        return self._own.listen_at()

    def groups(self, options: GroupOptions) -> SegmentGroups:
        """Return the groups that lend segments to agents."""
        return self._groups

    def clean_up(self) -> None:
        """Do nothing, because the host does not control the agents."""

    def capacity(self, scaling: Scaling) -> int | None:
        """Return 1, because one trial runs at a time until more agents ask for trials."""
        return 1

    def workers(self, scaling: Scaling) -> int | None:
        """Return None, because the trials of this executor are not elastic."""
        return None

    async def nodes(self) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, float]]:
        """Return the nodes of the host's own executor."""
        return await self._own.nodes()

    async def joining(self, nodes: Sequence[Mapping[str, Any]]) -> Sequence[Joining]:
        """Return the nodes that may join the cluster of the host's own executor."""
        return await self._own.joining(nodes)

    async def on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function on a node of the host's own executor."""
        return await self._own.on_node(node, function, *args)

    def share(self, value: Any) -> Any:
        """Return the value unchanged, because agents bring their own code."""
        return value

    def offload(self, sys_path: Sequence[str], function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        """Call the function with the host's own executor."""
        if self._own.name == "local":
            self._own_groups()  # they have the helper processes
        return self._own.offload(sys_path, function, *args)

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        """Delete a checkpoint. The driver requests this only for checkpoints in the storage of their experiment."""
        await self._own.delete_checkpoint(info)
