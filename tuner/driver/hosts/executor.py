"""Define the executor of a driver host, which runs trials on Ray or in processes of this machine.

`tuner.driver.hosts.ray_executor` and `tuner.driver.hosts.local_executor` implement this interface.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tuner.domain.experiment import Scaling
from tuner.domain.logs import LogLimit
from tuner.domain.segments import CheckpointInfo, Outcome, Report, SegmentRef, Verdict
from tuner.trials.groups.admission import PREEMPT_AFTER_S, RESERVE_AFTER_S, Standing, ordinary
from tuner.trials.groups.manager import Logs
from tuner.trials.messages.launch import Inbox, Launch, Resend
from tuner.trials.messages.profiling import ProfileRequest
from tuner.trials.messages.report_socket import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Options of a host that an executor needs to make worker groups.

    Attributes:
        name: the host's name.
        report_address: the address at which the host listens for reports; None if ranks can reach it only through Ray.
        logs: stores the logs of ranks.
        log_limit: how much of each log the ranks send; None if they send nothing.
        standing: returns the priority and the weight of an experiment.
        reserve_after_s: after a group has waited for this many seconds, free resources are reserved for it.
        preempt_after_s: a group runs for at least this many seconds before it has to make room for another experiment.
    """

    name: str = ""
    report_address: Address | None = None
    logs: Logs | None = None
    log_limit: LogLimit | None = None
    standing: Callable[[str], Standing] = ordinary
    reserve_after_s: float = RESERVE_AFTER_S
    preempt_after_s: float = PREEMPT_AFTER_S


class SegmentInbox(Inbox, Protocol):
    """Receives a segment's messages. `tuner.driver.hosts.driven.RankInbound` implements it."""

    async def report(
        self, segment: SegmentRef, start_iteration: int, reports: Sequence[Report]
    ) -> Verdict | Resend | None:
        """Commit reports, and return the verdict."""

    async def checkpoint(self, segment: SegmentRef, info: CheckpointInfo) -> None:
        """Commit that a checkpoint was written."""

    def unusable(self, segment: SegmentRef, metrics: Mapping[str, float], last: bool) -> str | None:
        """Return why a report of these metrics would fail the trial, or None. last: True if the trial ends with the report."""

    async def settled(self, segment: SegmentRef) -> None:
        """Wait until the end of a segment is committed."""


class SegmentGroups(Protocol):
    """Runs segments: `GroupManager` runs them on our own worker groups, `AgentGroups` on programs elsewhere.

    All methods belong to the host's event loop.
    """

    async def run(self, launch: Launch, *, inbox: SegmentInbox) -> Outcome:
        """Run one segment to its end."""

    async def interrupt(self, segment_id: str, action: str) -> None:
        """Make a segment wait for a verdict soon. "kill" ends the segment immediately."""

    async def kill(self, segment_id: str, reason: str) -> None:
        """End a segment now, as failed."""

    async def rest(self, keep: bool) -> None:
        """End idle worker groups. With `keep`, end only those that hold GPUs."""

    async def close(self) -> None:
        """End everything."""

    def forget(self, experiment: str) -> None:
        """Forget an experiment that has ended."""

    def stats(self) -> dict[str, int]:
        """Return how many segments run and wait, and how many idle groups are kept."""

    def training(self) -> list[str]:
        """Return the ids of the segments that train now."""

    async def stacks(self, segment_id: str) -> dict[str, str]:
        """Return rank -> its current Python stacks, or the reason why there are none."""

    async def profile(self, segment_id: str, rank: int, request: ProfileRequest) -> dict[str, Any] | None:
        """Profile a rank of a segment. Return None if the segment does not run here.

        Raises:
            Conflict: the rank cannot be profiled now.
            SpecError: there is no such rank.
        """

    async def usage(self, segment_id: str) -> dict[str, dict[str, float]]:
        """Return rank -> its current resource use, for the ranks that answer."""

    async def measure(self, segment_ids: Iterable[str]) -> dict[str, dict[int, dict[str, float]]]:
        """Return segment -> rank -> its current resource use, for the segments that run here."""


class Executor(Protocol):
    """Runs trials for a driver host. Call its methods in the host's event loop, unless their docstrings say otherwise."""

    name: Literal["ray", "local", "agents"]
    own_process: bool
    """True if the host has its own process."""

    @property
    def node(self) -> str | None:
        """Return the id of the node that the host runs on; None if there is only this machine."""

    def listen_at(self) -> str:
        """Return the address of this machine at which ranks reach the host."""

    def groups(self, options: GroupOptions) -> SegmentGroups:
        """Create the worker groups of the host. Called once."""

    def clean_up(self) -> None:
        """Remove what killed hosts have left behind. This may block, so it is called in a thread."""

    def capacity(self, scaling: Scaling) -> int | None:
        """Return how many groups of this kind can run at once, at least one; None if they need no resources."""

    async def nodes(self) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, float]]:
        """Return the nodes in the form of `ray.nodes`, and the free resources."""

    async def on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function on a node. If the node is unknown, run it here, because this machine may have been that node before."""

    def share(self, value: Any) -> Any:
        """Return a reference from which ranks get the value, or the value itself. This may block, so it is called in a thread."""

    def offload(self, sys_path: Sequence[str], function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        """Call a function in another process that has these entries in `sys.path`, and return its value."""

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        """Delete the content of a checkpoint, on whichever node has it."""
