"""Define the interface of a driver host's executor, which runs trials on Ray, in processes of this machine, or on agents.

`tuner.hosts.ray_executor`, `tuner.hosts.local_executor` and `tuner.hosts.agents` implement it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tuner.domain.experiment import Scaling
from tuner.domain.logs import LogLimit
from tuner.domain.segments import CheckpointInfo, Outcome, Report, SegmentRef, Verdict
from tuner.trials.groups.pools.admission import PREEMPT_AFTER_S, RESERVE_AFTER_S, Entitlement, Quotas, ordinary
from tuner.trials.groups.segments.manager import Logs
from tuner.trials.messages.call_lines import CallLines
from tuner.trials.messages.launch import Inbox, Launch, Resend
from tuner.trials.messages.profiling import ProfileRequest
from tuner.trials.messages.report_socket import Address

Joining = tuple[Mapping[str, float], int]
"""The resources of a node that an autoscaler may add, and the number of such nodes that may still join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """The options of a host that an executor needs in order to create worker groups.

    Attributes:
        name: the host's name.
        report_address: the address at which the host listens for reports; None if ranks can reach it only through Ray.
        lines: the connections over which the host calls ranks that have opened one.
        logs: stores the logs of ranks; None if logs are not stored.
        log_limit: how much of each log the ranks send; None if they send nothing.
        entitlement: a function that returns the priority, the weight and the project of an experiment.
        quotas: how much of each resource the experiments of a project may hold together.
        reserve_after_s: how long a group waits, in seconds, before free resources are reserved for it.
        preempt_after_s: how long a group may run, in seconds, before it has to make room for another experiment.
    """

    name: str = ""
    report_address: Address | None = None
    lines: CallLines = field(default_factory=CallLines)
    logs: Logs | None = None
    log_limit: LogLimit | None = None
    entitlement: Callable[[str], Entitlement] = ordinary
    quotas: Quotas = field(default_factory=dict)
    reserve_after_s: float = RESERVE_AFTER_S
    preempt_after_s: float = PREEMPT_AFTER_S


class SegmentInbox(Inbox, Protocol):
    """Receives the messages of segments. `tuner.hosts.driven.RankInbound` implements this interface."""

    async def report(
        self, segment: SegmentRef, start_iteration: int, reports: Sequence[Report]
    ) -> Verdict | Resend | None:
        """Commit reports. Return the verdict if the ranks wait, or a Resend if earlier reports are missing."""

    async def checkpoint(self, segment: SegmentRef, info: CheckpointInfo) -> None:
        """Commit an event: a checkpoint was written, or its upload is complete."""

    def unusable(
        self, segment: SegmentRef, metrics: Mapping[str, float], last: bool, before: Collection[str] = ()
    ) -> str | None:
        """Return why a report of these metrics would fail the trial; None if it would not.

        last: True if the trial ends with this report.
        before: the metrics of the reports that come before it and are not committed yet.
        """

    async def settled(self, segment: SegmentRef) -> None:
        """Wait until the event that ends the segment is committed. Raise RuntimeError if the loop stops before that."""


class SegmentGroups(Protocol):
    """Runs segments: `GroupManager` on worker groups of the host, `AgentGroups` on agents.

    Call all methods in the host's event loop.
    """

    async def run(self, launch: Launch, *, inbox: SegmentInbox) -> Outcome:
        """Run one segment until it has ended, and return its outcome. `inbox` gets the messages of its ranks."""

    async def interrupt(self, segment_id: str, action: str) -> None:
        """Make the ranks of a segment wait for a verdict soon. The action "kill" ends the segment immediately."""

    async def kill(self, segment_id: str, reason: str) -> None:
        """End a segment at once, as failed for this reason."""

    async def upload_end(self, segment_id: str, checkpoint: str) -> CheckpointInfo | str:
        """Wait until an upload that `Outcome.uploading` names has ended. Return the checkpoint, or the reason why it is lost."""

    def abandon(self, experiment: str, reason: str) -> None:
        """Abort an experiment's uploads that have outlived their segments, because the driver is shutting down."""

    async def rest(self, keep: bool) -> None:
        """Shut down idle worker groups. If `keep` is true, shut down only groups with GPUs."""

    async def close(self) -> None:
        """End all segments, and shut down all worker groups."""

    def forget(self, experiment: str) -> None:
        """Release the data about an experiment that has ended."""

    def stats(self) -> dict[str, int]:
        """Return the number of segments that run ("running") or wait ("waiting"), and of worker groups kept idle ("idle")."""

    def training(self) -> list[str]:
        """Return the ids of the segments that are training."""

    async def stacks(self, segment_id: str) -> dict[str, str]:
        """Return, for each rank of a segment, its current Python stacks, or the reason why there are none."""

    async def data_sets(self, segment_id: str) -> list[dict[str, Any]]:
        """Return the state of the Ray Data data sets that a segment's rank 0 reads; see `Shards.look`."""

    async def profile(self, segment_id: str, rank: int, request: ProfileRequest) -> dict[str, Any] | None:
        """Profile a rank of a segment. Return None if the segment does not run here.

        Raises:
            Conflict: the rank cannot be profiled now.
            SpecError: there is no such rank.
        """

    async def usage(self, segment_id: str) -> dict[str, dict[str, float]]:
        """Return the current resource usage of a segment's ranks. Leave out ranks that do not answer."""

    async def measure(self, segment_ids: Iterable[str]) -> dict[str, dict[int, dict[str, float]]]:
        """Return the current resource usage of each rank that answers, by segment. Leave out segments that do not run here."""


class Executor(Protocol):
    """Runs trials for a driver host. Call the methods in the host's event loop, unless their docstrings say otherwise."""

    name: Literal["ray", "local", "agents"]
    own_process: bool
    """True if the driver host has a process of its own, False if it is a thread of a script."""

    @property
    def node(self) -> str | None:
        """Return the id of the node that the host runs on; None if there is only this machine."""

    def listen_at(self) -> str:
        """Return the address of this machine at which ranks can reach the driver host."""

    def groups(self, options: GroupOptions) -> SegmentGroups:
        """Create the host's worker groups and return the object that runs segments on them. This is called once per host."""

    def clean_up(self) -> None:
        """Release resources that driver hosts held when they were killed. This may block, so call it in a thread."""

    def capacity(self, scaling: Scaling) -> int | None:
        """Return how many worker groups of this kind can run at once, at least one; None if they need no resources."""

    def workers(self, scaling: Scaling) -> int | None:
        """Return how many ranks of elastic trials can run at once; None if that is unknown or trials cannot be elastic."""

    async def nodes(self) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, float]]:
        """Return the nodes in the form of `ray.nodes`, and the free resources of all nodes together."""

    async def joining(self, nodes: Sequence[Mapping[str, Any]]) -> Sequence[Joining]:
        """Return the nodes that an autoscaler may add. `nodes` is what the method `nodes` has returned."""

    async def on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function on a node.

        If the node is unknown, call the function on this machine, because this machine may have had that id earlier.
        """

    def share(self, value: Any) -> Any:
        """Return a reference from which ranks get the value, or the value itself. This may block, so call it in a thread."""

    def offload(self, sys_path: Sequence[str], function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        """Call a function in another process with these entries in `sys.path`. Return an awaitable of the function's value."""

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        """Delete the files of a checkpoint, on whichever node they are."""
