"""Decide which segment gets a worker group next, and which running segments should make room for other segments.

The rule is in `fair_share`. This module applies it to waiting segments and to groups that hold resources. It does not
call Ray, wait or start anything: the pool carries out the decisions.

A segment first waits in its experiment's queue. Once the segment is *admitted*, it may use a warm group or ask Ray
for a new group. A segment is admitted only if its group seems to fit, so that groups do not block each other in Ray. If
other programs use the cluster too, Ray may still be unable to place the group. Such a group is *pending*. Resources are
reserved for a pending group only after it has waited for a long time.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.trials.groups.cluster.growth import all_there
from tuner.trials.groups.pools.fair_share import EQUAL_AFTER_S, Claim, Gang, Running, Shares
from tuner.trials.groups.pools.group import Group, Key, demand, group_key
from tuner.trials.messages.launch import Launch

RESERVE_AFTER_S = 30.0
"""Seconds that a group waits before free resources are reserved for it."""
SLICE_S = 5.0
"""Seconds for which an experiment may reuse a warm group while other experiments wait, since processes start slowly."""
PREEMPT_AFTER_S = 20.0
"""The minimum number of seconds that a group runs before it has to make room for another experiment."""
_YIELD_AGAIN_S = 5.0  # seconds after which a group that was told to make room, but has not begun to end, is told again
_PENDING_S = 2.0  # seconds after which a group that Ray has not placed counts as pending


@dataclass(frozen=True, slots=True)
class Entitlement:
    """The priority, the weight and the project of an experiment; see `fair_share`."""

    priority: int = 0
    weight: float = 1.0
    project: str = ""


Quotas = Mapping[str, Mapping[str, float]]
"""By project, how much of each resource its experiments may hold together. "*" stands for every other project."""


def ordinary(experiment: str) -> Entitlement:
    """Return the same default entitlement for every experiment."""
    return Entitlement()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGroup:
    """A group that holds resources. segment_id: the segment it runs. nodes: the node of each worker."""

    experiment: str
    trial: str
    segment_id: str
    nodes: tuple[str, ...]
    bundle: Mapping[str, float]
    since: float  # monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingGroup:
    """A group that is waiting for resources, or whose processes are starting.

    Attributes:
        reason: why it waits, in words.
        nodes: its expected nodes, one for each rank; empty until Ray has placed it.
    """

    experiment: str
    trial: str
    segment_id: str
    workers: int
    bundle: Mapping[str, float]
    since: float  # monotonic
    priority: int
    reserved: bool  # whether free resources on the nodes that it will use are reserved for it
    reason: str
    nodes: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class WaitingSegment:
    """A segment that waits for a worker group."""

    launch: Launch
    since: float
    turn: asyncio.Future[Group | None]  # resolves to a warm group, or None if the segment may ask Ray for a new one
    warm: asyncio.Future[Group]  # resolves to a warm group that becomes free while a new one is being built
    key: Key = field(init=False)
    gang: Gang = field(init=False)
    admitted_at: float | None = None
    at: tuple[str, ...] = ()  # the nodes on which the group should fit
    placed: asyncio.Event = field(default_factory=asyncio.Event)  # set once the group's placement group is ready

    def __post_init__(self) -> None:
        self.key, self.gang = group_key(self.launch), Gang.of(self.launch.scaling)

    @property
    def experiment(self) -> str:
        """Return the segment's experiment."""
        return self.launch.experiment_id

    @property
    def reuses(self) -> bool:
        """Return whether the segment may run in the processes of an earlier trial."""
        return self.launch.scaling.reuse_workers

    @property
    def awaits_node(self) -> bool:
        """Return whether the segment was admitted, and its group will be placed on a node that has not joined yet."""
        return self.admitted_at is not None and not self.placed.is_set() and not all_there(self.at)

    @property
    def joining(self) -> str:
        """Return a phrase that says that the segment waits for nodes to join."""
        return f"waits for nodes that can hold {demand(self.launch)} to join the cluster"

    def pending(self, now: float) -> bool:
        """Return whether the admitted group is overdue: all its nodes have joined, but Ray has not placed it in time."""
        waits = self.admitted_at is not None and not self.placed.is_set() and now - self.admitted_at >= _PENDING_S
        return waits and not self.awaits_node


class Admission:
    """The segments that wait for a group, the groups that hold resources, and each experiment's share.

    Args:
        reserve_after_s: seconds that a group waits before free resources are reserved for it.
        preempt_after_s: the minimum number of seconds that a group runs before it has to make room for another
            experiment.
        entitlement: a function that returns an experiment's priority, weight and project.
        quotas: the quotas of projects.
    """

    def __init__(
        self,
        *,
        reserve_after_s: float = RESERVE_AFTER_S,
        preempt_after_s: float = PREEMPT_AFTER_S,
        entitlement: Callable[[str], Entitlement] = ordinary,
        quotas: Quotas | None = None,
    ) -> None:
        self._quotas = quotas or {}
        self._reserve_after_s, self._preempt_after_s = reserve_after_s, preempt_after_s
        self._entitlement = entitlement
        # experiment -> segments that wait for their turn, oldest first
        self._queues: dict[str, deque[WaitingSegment]] = {}
        # segments that asked Ray for a group, and wait for its processes
        self.admitted: dict[WaitingSegment, None] = {}
        self.launches: dict[Group, Launch] = {}  # the launch that uses each group
        self._yielding: dict[Group, float] = {}  # groups that were asked to make room -> when
        self._shares = Shares()

    # Waiting segments

    @property
    def queued(self) -> bool:
        """Return whether any segment is in a queue."""
        return bool(self._queues)

    @property
    def awaits_nodes(self) -> bool:
        """Return whether there is an admitted segment whose group will be placed on a node that has not joined yet."""
        return any(segment.awaits_node for segment in self.admitted)

    def enqueue(self, segment: WaitingSegment) -> None:
        """Add a segment to its experiment's queue."""
        self._queues.setdefault(segment.experiment, deque()).append(segment)

    def remove(self, segment: WaitingSegment) -> None:
        """Remove a segment that no longer waits, because it has a group or was cancelled."""
        self._leave_queue(segment)
        self.admitted.pop(segment, None)
        self._shares.release(segment, time.monotonic())

    def next(self, now: float, idle: Sequence[Group]) -> tuple[WaitingSegment, tuple[str, ...]] | None:
        """Return the segment whose turn it is, and the nodes for its group; None if no segment can be served now.

        The segment comes from a queue, or it was already admitted and its group is pending. If its group is pending, there
        is an idle group that it can use.

        idle: idle groups, newest first.
        """
        heads = {head.experiment: head for head in self._heads(now)}
        for segment in heads.values():
            if not self._shares.room.holds(segment.gang):  # a node that is large enough may join
                return segment, ()
        stuck = [segment for segment in self.admitted if segment.pending(now) and not segment.warm.done()]
        for segment in stuck:  # a pending group holds nothing yet
            self._shares.release(segment, now)
        for segment in self.admitted:
            # Ray has placed the group after all, so it holds resources.
            if segment.placed.is_set() and segment not in self._shares.holdings:
                self._shares.hold(segment, segment.experiment, segment.gang, segment.at, now)
        claims = [*(self._claim(segment) for segment in heads.values()), *(self._claim(w, True) for w in stuck)]
        first = {segment.experiment: segment for segment in reversed(stuck)}
        warm = {
            name: [g.nodes() for g in idle if g.key == head.key and head.reuses]
            for name, head in (heads | first).items()
        }
        found = self._shares.next_grant(claims, now, reserve_after_s=self._reserve_after_s, warm=warm)
        if found is None:
            return None
        claim, at = found
        return (first if claim.pending else heads)[claim.experiment], at

    def admit(self, segment: WaitingSegment, at: tuple[str, ...], now: float) -> None:
        """Record that a segment has been admitted. at: the nodes on which its group should fit."""
        self._leave_queue(segment)
        segment.admitted_at, segment.at = now, at

    def ask_ray(self, segment: WaitingSegment, now: float) -> None:
        """Record that an admitted segment found no warm group, and asks Ray for a new one."""
        self._shares.hold(segment, segment.experiment, segment.gang, segment.at, now)
        self.admitted[segment] = None

    def any_pending(self, now: float) -> bool:
        """Return whether any admitted segment has been waiting for some time because Ray has not placed its group."""
        return any(segment.pending(now) for segment in self.admitted)

    def why(self, segment: WaitingSegment) -> str:
        """Return what a segment waits for, in words."""
        if (quota := self._spent_quota(segment, self._held_by_projects())) is not None:
            return quota
        if (reserving := self._reserving(segment)) is not None:
            return f"waits until an earlier request for {demand(reserving.launch)} is placed"
        holders = {holding.experiment for holding in self._shares.holdings.values()}
        others = len((holders | self._queues.keys()) - {segment.experiment})
        what = f"waits for {demand(segment.launch)}"
        if not others:
            return what
        return f"{what}; {others} other experiment{'s share' if others > 1 else ' shares'} the cluster"

    def _heads(self, now: float) -> list[WaitingSegment]:
        """Return the first segment in each experiment's queue, without those that would exceed their project's quota.

        Once a segment has waited long for its project's quota, later segments of that project may not overtake it.
        """
        heads = [queue[0] for queue in self._queues.values()]
        if not self._quotas:
            return heads
        held = self._held_by_projects()
        over = [head for head in heads if self._spent_quota(head, held) is not None]
        first: dict[str, float] = {}  # project -> since when its quota is being saved for a segment
        for head in over:
            project = self._entitlement(head.experiment).project
            if now - head.since >= self._reserve_after_s and self._spent_quota(head, {}) is None:
                first[project] = min(first.get(project, now), head.since)
        return [
            head
            for head in heads
            if head not in over and head.since <= first.get(self._entitlement(head.experiment).project, now)
        ]

    def _held_by_projects(self) -> dict[str, dict[str, float]]:
        """Return how much of each resource each project holds, including groups that Ray has not placed yet."""
        found: dict[str, dict[str, float]] = {}
        for experiment, gang in self._gangs() if self._quotas else ():
            held = found.setdefault(self._entitlement(experiment).project, {})
            for name, amount in gang.total().items():
                held[name] = held.get(name, 0.0) + amount
        return found

    def _gangs(self) -> Iterator[tuple[str, Gang]]:
        """Yield (experiment, gang) for each group that holds resources, and for each that Ray may still place."""
        yield from ((one.experiment, one.gang) for one in self._shares.holdings.values())
        yield from ((one.experiment, one.gang) for one in self.admitted if one not in self._shares.holdings)

    def _spent_quota(self, segment: WaitingSegment, held: Mapping[str, Mapping[str, float]]) -> str | None:
        """Return how a segment would exceed its project's quota, in words; None if it would not.

        held: what the projects hold.
        """
        project = self._entitlement(segment.experiment).project
        quota = self._quotas.get(project, self._quotas.get("*", {}))
        for name, wanted in segment.gang.total().items():
            if name not in quota or not wanted:
                continue
            used = held.get(project, {}).get(name, 0.0)
            if used + wanted > quota[name] + 1e-9:
                what = f"the quota of the project {project!r} is {quota[name]:g} {name}"
                if wanted > quota[name]:
                    return f"cannot start: it needs {wanted:g} {name}, and {what}"
                return f"waits for {demand(segment.launch)}: {what}, of which {used:g} {'is' if used == 1 else 'are'} in use"
        return None

    def _leave_queue(self, segment: WaitingSegment) -> None:
        queue = self._queues.get(segment.experiment)
        if queue is not None and segment in queue:
            queue.remove(segment)
            if not queue:
                del self._queues[segment.experiment]

    def _claim(self, segment: WaitingSegment, pending: bool = False) -> Claim:
        entitlement = self._entitlement(segment.experiment)
        return Claim(
            experiment=segment.experiment,
            gang=segment.gang,
            since=segment.since,
            priority=entitlement.priority,
            weight=entitlement.weight,
            pending=pending,
        )

    def _reserving(self, segment: WaitingSegment) -> WaitingSegment | None:
        """Return the segment whose reservation keeps `segment` from using free resources; None if there is none."""
        if self._shares.room.place(segment.gang) is None:
            return None
        now = time.monotonic()
        heads = [*self._heads(now), *(w for w in self.admitted if w.pending(now))]
        return next((w for w in heads if w is not segment and now - w.since >= self._reserve_after_s), None)

    # Groups in use

    def give(self, group: Group, segment: WaitingSegment) -> None:
        """Record that a waiting segment has been given this group."""
        now = time.monotonic()
        if group.experiment != segment.experiment:
            group.experiment, group.turn_began = segment.experiment, now
        self._shares.release(segment, now)
        self._shares.hold(group, segment.experiment, segment.gang, group.nodes(), now)
        self.launches[group], group.held_since = segment.launch, now

    def give_again(self, group: Group, launch: Launch) -> None:
        """Record that the group has been given to another segment of the same experiment."""
        self.launches[group], group.held_since = launch, time.monotonic()

    def finish(self, group: Group) -> None:
        """Record that a group's segment has ended. Its experiment still holds the group's resources until `free` is called."""
        self.launches.pop(group, None)
        self._yielding.pop(group, None)

    def free(self, group: Group) -> None:
        """Record that a group's resources are no longer held by its experiment."""
        self._shares.release(group, time.monotonic())

    def keeps_turn(self, group: Group) -> bool:
        """Return whether a group should be kept for the experiment that has just used it.

        It should be kept if all waiting experiments have a lower priority. If the highest priority among them equals
        the experiment's own, it should be kept only until `SLICE_S` seconds after the experiment first got it, and only
        if all waiting experiments need groups of another kind.
        """
        heads = self._heads(time.monotonic())
        if not group.experiment or not heads or any(head.experiment == group.experiment for head in heads):
            return False
        own = self._entitlement(group.experiment).priority
        highest = max(self._entitlement(head.experiment).priority for head in heads)
        if highest != own:
            return highest < own
        return time.monotonic() - group.turn_began < SLICE_S and all(head.key != group.key for head in heads)

    def make_room(self, may_end: Callable[[str], bool]) -> list[tuple[str, str, int]]:
        """Return the segments that should end: (segment, the experiment that gets the resources, its priority).

        A returned segment counts as ending. It may continue anyway, for example because a user has resumed its
        experiment. If it is still running after `_YIELD_AGAIN_S` seconds and can end, a later call may return it again.

        may_end: a function that returns whether a segment can end without losing work, and is not ending yet.
        """
        now = time.monotonic()
        heads = [head for head in self._heads(now) if now - head.since >= _PENDING_S]
        if not heads:
            return []
        running = list(self._could_end(may_end, now))
        found = self._shares.make_room((self._claim(head) for head in heads), running, now, after_s=EQUAL_AFTER_S)
        if found is None:
            return []
        claim, chosen = found
        names = {one.name for one in chosen}
        self._yielding |= {group: now for group, launch in self.launches.items() if launch.segment_id in names}
        return [(one.name, claim.experiment, claim.priority) for one in chosen]

    def _could_end(self, may_end: Callable[[str], bool], now: float) -> Iterator[Running]:
        """Yield groups that have run long enough and can end without losing work, and groups that are already ending."""
        for group, launch in self.launches.items():
            holding = self._shares.holdings.get(group)
            asked_at = self._yielding.get(group)
            if asked_at is not None and now - asked_at >= _YIELD_AGAIN_S and may_end(launch.segment_id):
                del self._yielding[group]
            ending = group in self._yielding
            if holding is None or not (
                ending or (now - holding.since >= self._preempt_after_s and may_end(launch.segment_id))
            ):
                continue
            entitlement = self._entitlement(launch.experiment_id)
            yield Running(
                launch.segment_id,
                launch.experiment_id,
                holding.gang,
                holding.nodes,
                holding.since,
                entitlement.priority,
                entitlement.weight,
                ending,
            )

    # The cluster and the shares

    @property
    def knows_nodes(self) -> bool:
        """Return whether `set_nodes` has named any node."""
        return bool(self._shares.room.total)

    def set_nodes(self, nodes: Mapping[str, Mapping[str, float]], elsewhere: Mapping[str, float]) -> None:
        """Set the resources of each node, and the amounts that other programs use in the whole cluster.

        Groups that are waiting for a node to join are assigned to nodes again, because that node may have joined.

        nodes: the nodes that have joined, and those that may join; see `growth`.
        """
        now = time.monotonic()
        anew = [segment for segment in self.admitted if segment in self._shares.holdings and not all_there(segment.at)]
        self._shares.set_nodes(nodes, elsewhere)
        self._shares.place_anew(anew)
        for segment in anew:
            segment.at = self._shares.holdings[segment].nodes
            if all_there(segment.at):
                segment.admitted_at = now

    def forget(self, experiment: str) -> None:
        """Forget the past usage of an experiment that has ended."""
        self._shares.forget(experiment)

    def share(self, experiment: str) -> float:
        """Return an experiment's dominant share."""
        return self._shares.share(experiment)

    def granted(self, experiment: str, bundle: Mapping[str, float]) -> int:
        """Return how many workers with these resources the elastic trials of an experiment may have together.

        This is the number that the experiment holds plus the number that would fit in addition, limited by its
        project's quota. It is 0 while another experiment of the same or a higher priority waits for a group that could
        start: trials then give back all workers that they have gained by growing.
        """
        now, own = time.monotonic(), self._entitlement(experiment).priority
        for head in self._heads(now):
            other = head.experiment != experiment and now - head.since >= _PENDING_S
            if other and self._entitlement(head.experiment).priority >= own and self._shares.room.holds(head.gang):
                return 0
        held = sum(one.gang.workers for one in self._shares.holdings.values() if one.experiment == experiment)
        return min(held + self._shares.room.count(bundle), self._allowed(experiment, bundle))

    def _allowed(self, experiment: str, bundle: Mapping[str, float]) -> int:
        """Return how many workers with these resources the project's quota leaves to the experiment."""
        project = self._entitlement(experiment).project
        quota = self._quotas.get(project, self._quotas.get("*", {}))
        allowed = sys.maxsize
        for name, amount in bundle.items():
            if name in quota and amount:
                others = sum(
                    gang.total().get(name, 0.0)
                    for other, gang in self._gangs()
                    if other != experiment and self._entitlement(other).project == project
                )
                allowed = min(allowed, max(0, int((quota[name] - others + 1e-9) // amount)))
        return allowed

    # Views for users

    def held(self) -> list[HeldGroup]:
        """Return the groups in use, oldest first."""
        holdings = ((launch, self._shares.holdings.get(group)) for group, launch in self.launches.items())
        found = [
            HeldGroup(
                experiment=launch.experiment_id,
                trial=launch.trial_id,
                segment_id=launch.segment_id,
                nodes=holding.nodes,
                bundle=dict(holding.gang.bundle),
                since=holding.since,
            )
            for launch, holding in holdings
            if holding is not None
        ]
        return sorted(found, key=lambda one: one.since)

    def waiting(self) -> list[WaitingGroup]:
        """Return the waiting groups: first the admitted ones, then the queued ones in the order of their turns."""
        now = time.monotonic()
        claims = self._shares.in_order([self._claim(queue[0]) for queue in self._queues.values()], now)
        rounds = [list(self._queues[claim.experiment]) for claim in claims]
        queued = [queue[at] for at in range(max(map(len, rounds), default=0)) for queue in rounds if at < len(queue)]
        return [self._shown(segment, now) for segment in (*self.admitted, *queued)]

    def _shown(self, segment: WaitingSegment, now: float) -> WaitingGroup:
        if segment.admitted_at is None:
            reason = self.why(segment)
        elif segment.placed.is_set():
            reason = "its processes are being started"
        elif segment.awaits_node:
            reason = segment.joining
        else:
            reason = f"waits for Ray to place {demand(segment.launch)}"
        return WaitingGroup(
            experiment=segment.experiment,
            trial=segment.launch.trial_id,
            segment_id=segment.launch.segment_id,
            workers=segment.gang.workers,
            bundle=dict(segment.gang.bundle),
            since=segment.since,
            priority=self._entitlement(segment.experiment).priority,
            reserved=now - segment.since >= self._reserve_after_s and not segment.placed.is_set(),
            reason=reason,
            nodes=segment.at if segment.admitted_at is not None and segment.placed.is_set() else (),
        )


def used_elsewhere(
    nodes: Mapping[str, Mapping[str, float]], free: Mapping[str, float], ours: Iterable[Key]
) -> dict[str, float]:
    """Return the numbers of CPUs and GPUs that programs other than `tuner` use.

    Args:
        nodes: the resources of each node.
        free: the free resources of all nodes together.
        ours: the keys of `tuner`'s groups that hold resources.
    """
    used: dict[str, float] = {}
    for resources in nodes.values():
        for name, amount in resources.items():
            used[name] = used.get(name, -free.get(name, 0.0)) + amount
    for workers, bundle, strategy, *_ in ours:
        for name, amount in Gang(bundle, workers, strategy).total().items():
            used[name] = used.get(name, 0.0) - amount
    return {name: amount for name, amount in used.items() if amount > 1e-6 and name in ("CPU", "GPU")}
