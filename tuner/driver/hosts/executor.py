"""The executor of a driver host, which runs trials: on Ray, or in processes of this machine.

`tuner.driver.hosts.ray_executor` and `tuner.driver.hosts.local_executor` implement this.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tuner.domain.experiment import Scaling
from tuner.domain.logs import LogLimit
from tuner.domain.segments import CheckpointInfo
from tuner.trials.groups.admission import PREEMPT_AFTER_S, RESERVE_AFTER_S, Standing, ordinary
from tuner.trials.groups.manager import GroupManager, Logs
from tuner.trials.messages.report_socket import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Options of a host that an executor needs to make worker groups.

    Attributes:
        name: the host's name.
        report_address: the address at which it listens for reports; None if ranks can reach it only through Ray.
        logs: stores the logs of ranks.
        log_limit: how much of each log the ranks send; None if they send nothing.
        standing: returns the priority and the weight of an experiment.
        reserve_after_s: seconds that a group waits before free resources are reserved for it.
        preempt_after_s: minimum seconds that a group runs before it has to make room for another experiment.
    """

    name: str = ""
    report_address: Address | None = None
    logs: Logs | None = None
    log_limit: LogLimit | None = None
    standing: Callable[[str], Standing] = ordinary
    reserve_after_s: float = RESERVE_AFTER_S
    preempt_after_s: float = PREEMPT_AFTER_S


class Executor(Protocol):
    """Runs trials for a driver host. Call its methods in the host's event loop, unless they say otherwise."""

    name: Literal["ray", "local"]
    own_process: bool
    """True if the host has its own process."""

    @property
    def node(self) -> str | None:
        """Return the id of the node that the host runs on; None if there is only this machine."""

    def listen_at(self) -> str:
        """Return the address of this machine at which ranks reach the host."""

    def groups(self, options: GroupOptions) -> GroupManager:
        """Create the worker groups of the host. Called once."""

    def clean_up(self) -> None:
        """Remove what killed hosts have left behind. May block; called in a thread."""

    def capacity(self, scaling: Scaling) -> int | None:
        """Return how many groups of this kind can run at once, at least one; None if they need no resources."""

    async def nodes(self) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, float]]:
        """Return the nodes in the form of `ray.nodes`, and the free resources."""

    async def on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function on a node. If the node is unknown, run it here, since this machine may have been that node earlier."""

    def share(self, value: Any) -> Any:
        """Return a reference from which ranks get the value, or the value itself. May block; called in a thread."""

    def offload(self, sys_path: Sequence[str], function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        """Call a function in another process that has these entries in `sys.path`, and return its value."""

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        """Delete the content of a checkpoint, on whichever node it is."""
