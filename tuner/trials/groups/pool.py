"""Find the worker group for a segment: a warm one if there is one, else a new one as soon as there is room.

Before it asks Ray for a placement group, a segment waits for its turn: `fair_share` decides which experiment is next.
Only groups that fit, as far as the pool knows, are asked for, so they do not hold back each other in Ray. If others use
the cluster too, a placement group may still have to wait in Ray; such a group is *pending*, and what it needs is not
kept from others until it has waited for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tuner.domain.experiment import Scaling
from tuner.domain.logs import LogLimit
from tuner.errors import PlacementError
from tuner.trials.groups import nodes
from tuner.trials.groups.fair_share import EQUAL_AFTER_S, Claim, Gang, Running, Shares
from tuner.trials.groups.placement import assign_ranks, lacking
from tuner.trials.messages.launch import Launch, Placed
from tuner.trials.messages.protocol import RankAssignment, WorkerMetadata
from tuner.trials.messages.report_socket import Address
from tuner.trials.messages.tasks import on_node
from tuner.trials.runtime.worker import Rank

log = logging.getLogger(__name__)

Key = tuple[Any, ...]

RESERVE_AFTER_S = 30.0
"""How long a group waits for room before what is free on its nodes is kept for it."""
SLICE_S = 5.0
"""How long an experiment may use a warm group before other experiments get its room, because new processes take seconds."""
PREEMPT_AFTER_S = 20.0
"""How long a group runs at least before it has to make room for another experiment."""
_ASK_AGAIN_S = 0.25  # how long a warm group is kept within that time for its experiment to ask again
_LOOK_S = 0.5  # how often waiting groups are looked at, besides whenever a group becomes free
_PATIENCE_S = 0.5  # a placement that takes no longer is not reported as waiting
_YIELD_AGAIN_S = 5.0  # how long it takes at most until a group that was asked to make room is seen to be ending
_PENDING_S = 2.0  # a group that Ray has not placed for so long is pending: others use the cluster


@dataclass(frozen=True, slots=True)
class Standing:
    """What an experiment is entitled to, see `fair_share`."""

    priority: int = 0
    weight: float = 1.0


def ordinary(experiment: str) -> Standing:
    """Return the standing of an experiment about which nothing is said."""
    return Standing()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGroup:
    """A group that has room now. segment_id: the segment that it is for. nodes: one for each worker."""

    experiment: str
    trial: str
    segment_id: str
    nodes: tuple[str, ...]
    bundle: Mapping[str, float]
    since: float  # monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingGroup:
    """A group that waits. They are listed in the order in which they will be served; `reason` says for what it waits."""

    experiment: str
    trial: str
    segment_id: str
    workers: int
    bundle: Mapping[str, float]
    since: float  # monotonic
    priority: int
    reserved: bool  # what is free on its nodes is kept for it
    reason: str


@dataclass(slots=True, eq=False)
class Group:
    """The processes of one placement group. Once the group is formed they are in the order of their ranks."""

    key: Key
    placement: PlacementGroup
    actors: list[Any] = field(default_factory=list)
    workers: list[WorkerMetadata] = field(default_factory=list)
    assignments: list[RankAssignment] = field(default_factory=list)
    assigned: bool = False  # whether its ranks know their assignments
    codes: set[str] = field(default_factory=set)  # hashes of the functions that its ranks have
    runs: int = 0
    expiry: asyncio.TimerHandle | None = None  # while it is idle
    experiment: str = ""  # which has it, or had it last
    turn_began: float = 0.0  # when that experiment got it
    held_since: float = 0.0  # when it got its room, or was given to its present segment

    def placed_on(self) -> tuple[str, ...]:
        """Return the node of each rank."""
        return tuple(worker.node for worker in self.workers)

    def placed(self) -> list[Placed]:
        return [
            Placed(
                rank=assignment.rank, node=worker.node, host=worker.host, ip=worker.ip, pid=worker.pid, gpus=worker.gpus
            )
            for assignment, worker in zip(self.assignments, self.workers, strict=True)
        ]


@dataclass(slots=True, eq=False)
class _Waiter:
    key: Key
    gang: Gang
    launch: Launch
    since: float
    turn: asyncio.Future[Group | None]  # a warm group, or None: it may ask Ray for a new one
    warm: asyncio.Future[Group]  # a warm group that became free while the new one is being formed
    granted_at: float | None = None
    at: tuple[str, ...] = ()  # the nodes where it should find room
    placed: asyncio.Event = field(default_factory=asyncio.Event)  # set once its placement group is ready

    @property
    def experiment(self) -> str:
        return self.launch.experiment_id

    @property
    def reuses(self) -> bool:
        """Whether it may use the processes of an earlier trial."""
        return self.launch.scaling.reuse_workers

    def pending(self, now: float) -> bool:
        """Return whether Ray has found no room for it although there should be some."""
        return self.granted_at is not None and not self.placed.is_set() and now - self.granted_at >= _PENDING_S


class NoRoom(PlacementError):
    """The cluster could hold the group, but was occupied for too long. Another attempt may find room."""


class LostAtStart(PlacementError):
    """Workers, or their node, died while they were being started. Another attempt may succeed."""


class Pool:
    def __init__(
        self,
        driver: Any,
        *,
        name: str,
        autoscaling: bool,
        idle_timeout_s: float,
        report_address: Address | None = None,
        reserve_after_s: float = RESERVE_AFTER_S,
        log_limit: LogLimit | None = None,
        standing: Callable[[str], Standing] = ordinary,
        preempt_after_s: float = PREEMPT_AFTER_S,
    ) -> None:
        self._standing, self._preempt_after_s = standing, preempt_after_s
        self._log_limit = log_limit
        self._reserve_after_s = reserve_after_s
        self._driver, self._report_address = driver, report_address
        self._name = name  # placement groups are named {name}/{number}, which shows who owns them
        self._numbers = itertools.count(1)
        self._autoscaling = autoscaling
        self._idle_timeout_s = idle_timeout_s
        # Otherwise Ray's head node keeps a record of each call: a megabyte for every forty trials.
        self._rank = ray.remote(concurrency_groups={"control": 2}, enable_task_events=False)(Rank)
        self._node = ray.get_runtime_context().get_node_id()
        self._idle: list[Group] = []  # the longest idle first
        self._kept: dict[Group, asyncio.TimerHandle] = {}  # for a moment, for the experiment that has just used them
        self._held: set[Key] = set()  # the kinds of groups that have been placed before: (workers, bundle, strategy)
        self._queues: dict[str, deque[_Waiter]] = {}  # experiment -> those that wait for their turn, oldest first
        self._forming: dict[_Waiter, None] = {}  # those that have had their turn, and wait for their processes
        self._launches: dict[Group, Launch] = {}  # what each group is used for
        self._yielding: dict[Group, float] = {}  # those that have been asked to make room, and when
        self._shares = Shares()
        self._nodes_read_at = float("-inf")
        self._reading: asyncio.Future[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._background: set[asyncio.Future[Any]] = set()
        self._ending = 0  # groups whose resources Ray may still count as used
        self._spares: dict[
            asyncio.Future[Group], tuple[Key, asyncio.Event]
        ] = {}  # groups being formed that nobody waits for
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="tuner-pool")
        self._closed = False

    @property
    def idle(self) -> int:
        return len(self._idle)

    def forget(self, experiment: str) -> None:
        """Forget what an experiment has used, because it has ended."""
        self._shares.forget(experiment)

    async def acquire(self, launch: Launch, waiting: Callable[[str], None]) -> tuple[Group, bool]:
        """Return a group of the kind that the launch needs, and whether it is warm. May be cancelled.

        Raises:
            NoRoom: it was this group's turn, and others left no room for `limits.placement_timeout_s`.
            LostAtStart: there was room, but the workers died.
            PlacementError: the cluster can never hold the group, or its workers cannot be started.
        """
        key = group_key(launch)
        if launch.scaling.reuse_workers and (kept := self._take_kept(launch.experiment_id, key)) is not None:
            self._launches[kept], kept.held_since = launch, time.monotonic()
            return kept, True
        await self._read_nodes()
        known = key[:3] in self._held  # if so, a missing node may come back
        if not known and (reason := await self._lacking(launch)):
            raise PlacementError(f"this cluster can never run {demand(launch)}: {reason}")
        loop = asyncio.get_running_loop()
        waiter = _Waiter(
            key, Gang.of(launch.scaling), launch, time.monotonic(), loop.create_future(), loop.create_future()
        )
        self._queues.setdefault(launch.experiment_id, deque()).append(waiter)
        group: Group | None = None
        try:
            group, warm = await self._served(waiter, waiting)
            return group, warm
        finally:
            self._leave_queue(waiter)
            self._forming.pop(waiter, None)
            self._shares.release(waiter, time.monotonic())
            if group is not None and group not in self._launches:
                placed_at = group.held_since
                self._give(group, waiter)
                group.held_since = placed_at or group.held_since
            for given in (waiter.turn, waiter.warm):
                if given.done() and (found := given.result()) not in (None, group):
                    self.release(found, launch.scaling.reuse_workers)
            self._dispatch()

    async def _served(self, waiter: _Waiter, waiting: Callable[[str], None]) -> tuple[Group, bool]:
        """Wait for the waiter's turn, and then for a warm group or its new one."""
        self._dispatch()
        if not waiter.turn.done():
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())
            await asyncio.wait({waiter.turn}, timeout=_PATIENCE_S)
            if not waiter.turn.done():
                waiting(self._why(waiter))
                await asyncio.wait({waiter.turn})
        group = waiter.turn.result()
        return (group, True) if group is not None else await self._formed(waiter, waiting)

    async def _formed(self, waiter: _Waiter, waiting: Callable[[str], None]) -> tuple[Group, bool]:
        """Form a new group; or take a warm one that becomes free meanwhile, as that is faster."""
        reuse = waiter.launch.scaling.reuse_workers
        forming, waiter.placed = self._claim(waiter.key) or self._begin(waiter.launch, waiter.key, waiting)
        taken = False
        try:
            await asyncio.wait({forming, waiter.warm}, return_when=asyncio.FIRST_COMPLETED)
            taken = True
            return (waiter.warm.result(), True) if waiter.warm.done() else (forming.result(), False)
        finally:
            if not forming.done():
                if taken and waiter.placed.is_set() and reuse and not self._closed:
                    self._spare(forming, waiter.placed, waiter.key)
                else:
                    forming.cancel()  # it ends what it has started
                    self._track(forming)
            elif (not taken or waiter.warm.done()) and not forming.cancelled() and forming.exception() is None:
                self.release(forming.result(), reuse)

    # Turns

    def _dispatch(self) -> None:
        """Give every group whose turn it is a warm group, or leave to ask Ray for a new one."""
        if self._closed:
            return
        now = time.monotonic()
        while (found := self._next(now)) is not None:
            waiter, at = found
            if waiter.granted_at is not None:  # Ray has not placed it; now there is a warm group for it
                idle = self._idle_for(waiter, at)
                assert idle is not None
                self._no_longer_idle(idle)
                self._give(idle, waiter)
                waiter.warm.set_result(idle)
                continue
            self._leave_queue(waiter)
            waiter.granted_at, waiter.at = now, at
            if (group := self._idle_for(waiter, at)) is not None:
                self._no_longer_idle(group)
                self._give(group, waiter)
                waiter.turn.set_result(group)
            else:
                self._shares.hold(waiter, waiter.experiment, waiter.gang, at, now)
                self._forming[waiter] = None
                waiter.turn.set_result(None)

    def _next(self, now: float) -> tuple[_Waiter, tuple[str, ...]] | None:
        """Return who is next, and on which nodes it gets its room."""
        heads = {queue[0].experiment: queue[0] for queue in self._queues.values()}
        for waiter in heads.values():
            if self._autoscaling or not self._shares.room.holds(waiter.gang):  # a node is missing, and may come
                return waiter, ()
        stuck = [waiter for waiter in self._forming if waiter.pending(now) and not waiter.warm.done()]
        for waiter in stuck:  # it holds nothing yet
            self._shares.release(waiter, now)
        for waiter in self._forming:
            if waiter.placed.is_set() and waiter not in self._shares.holdings:  # it holds something after all
                self._shares.hold(waiter, waiter.experiment, waiter.gang, waiter.at, now)
        claims = [*(self._claim_of(waiter) for waiter in heads.values()), *(self._claim_of(w, True) for w in stuck)]
        first = {waiter.experiment: waiter for waiter in reversed(stuck)}
        warm = {
            name: [g.placed_on() for g in reversed(self._idle) if g.key == head.key and head.reuses]
            for name, head in (heads | first).items()
        }
        found = self._shares.next_grant(claims, now, reserve_after_s=self._reserve_after_s, warm=warm)
        if found is None:
            return None
        claim, at = found
        return (first if claim.pending else heads)[claim.experiment], at

    def _claim_of(self, waiter: _Waiter, pending: bool = False) -> Claim:
        standing = self._standing(waiter.experiment)
        return Claim(
            experiment=waiter.experiment,
            gang=waiter.gang,
            since=waiter.since,
            priority=standing.priority,
            weight=standing.weight,
            pending=pending,
        )

    def _idle_for(self, waiter: _Waiter, at: Sequence[str]) -> Group | None:
        """Return an idle group that the waiter can use, on these nodes if there is one, the newest first."""
        if not waiter.reuses:
            return None
        usable = [group for group in reversed(self._idle) if group.key == waiter.key]
        return next((group for group in usable if group.placed_on() == tuple(at)), usable[0] if usable else None)

    def _give(self, group: Group, waiter: _Waiter) -> None:
        """Note that the waiter's experiment holds the group from now on."""
        now = time.monotonic()
        if group.experiment != waiter.experiment:
            group.experiment, group.turn_began = waiter.experiment, now
        self._shares.release(waiter, now)
        self._shares.hold(group, waiter.experiment, waiter.gang, group.placed_on(), now)
        self._launches[group], group.held_since = waiter.launch, now

    def _leave_queue(self, waiter: _Waiter) -> None:
        queue = self._queues.get(waiter.experiment)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._queues[waiter.experiment]

    def _why(self, waiter: _Waiter) -> str:
        """Say what a group waits for."""
        if (reserving := self._reserving(waiter)) is not None:
            return f"waits until {demand(reserving.launch)}, asked for earlier, has found room"
        holders = {holding.experiment for holding in self._shares.holdings.values()}
        others = len((holders | self._queues.keys()) - {waiter.experiment})
        what = f"waits for room for {demand(waiter.launch)}"
        if not others:
            return what
        return f"{what}, which {others} other experiment{'s share' if others > 1 else ' shares'}"

    def _in_order(self, now: float) -> list[Claim]:
        return self._shares.in_order([self._claim_of(queue[0]) for queue in self._queues.values()], now)

    def _reserving(self, waiter: _Waiter) -> _Waiter | None:
        """Return the group for which room is kept that this one could use, if there is one."""
        if self._shares.room.place(waiter.gang) is None:
            return None
        now = time.monotonic()
        heads = [*(queue[0] for queue in self._queues.values()), *(w for w in self._forming if w.pending(now))]
        return next((w for w in heads if w is not waiter and now - w.since >= self._reserve_after_s), None)

    async def _look(self) -> None:
        """Look at what waits every `_LOOK_S`, as long as anything does: nodes come and go, and time earns reservations."""
        while self._queues and not self._closed:
            await asyncio.sleep(_LOOK_S)
            with contextlib.suppress(Exception):  # Ray does not answer for a moment
                await self._read_nodes()
            try:
                self._dispatch()
            except Exception:  # nobody else would look again for those that wait
                log.exception("the groups that wait could not be looked at")

    async def _read_nodes(self) -> None:
        """Read what the nodes have, and what others use of it, unless that was done a moment ago."""
        if time.monotonic() - self._nodes_read_at >= _LOOK_S and (self._reading is None or self._reading.done()):
            self._nodes_read_at = time.monotonic()
            self._reading = asyncio.ensure_future(self._set_nodes())
            self._track(self._reading)
        if self._reading is not None and (not self._shares.room.total or self._looking is asyncio.current_task()):
            await asyncio.shield(self._reading)

    async def _set_nodes(self) -> None:
        found = await self.blocking(read_nodes)
        elsewhere: dict[str, float] = {}
        now = time.monotonic()
        if any(waiter.pending(now) for waiter in self._forming) and not self._ending:
            elsewhere = await self._used_elsewhere(found)
        self._shares.set_nodes(found, elsewhere)

    async def _used_elsewhere(self, found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Return what is used on the cluster by others than this pool."""
        free = await self.blocking(ray.available_resources)
        ours: dict[str, float] = {}
        for workers, bundle, strategy, *_ in self._keys_with_room():
            for name, amount in Gang(bundle, workers, strategy).total().items():
                ours[name] = ours.get(name, 0.0) + amount
        total: dict[str, float] = {}
        for resources in found.values():
            for name, amount in resources.items():
                total[name] = total.get(name, 0.0) + amount
        used = {name: amount - free.get(name, 0.0) - ours.get(name, 0.0) for name, amount in total.items()}
        return {name: amount for name, amount in used.items() if amount > 1e-6 and name in ("CPU", "GPU")}

    def _keys_with_room(self) -> Iterator[Key]:
        """Yield the key of every group of this pool that has room: used, idle, kept for a moment, or still starting."""
        yield from (group.key for group in (*self._launches, *self._idle, *self._kept))
        yield from (waiter.key for waiter in self._forming if waiter.placed.is_set())
        yield from (key for key, placed in self._spares.values() if placed.is_set())

    def make_room(self, may_end: Callable[[str], bool]) -> list[tuple[str, str, int]]:
        """Return the segments that should end, each with the experiment that gets their room, and its priority.

        may_end: returns whether a segment can end without losing work, and is not ending yet. A segment that is returned counts
        as ending from then on. It may go on nevertheless, for example because a user has resumed its experiment in between. If
        it could be ended once more after `_YIELD_AGAIN_S`, it is asked once more.
        """
        now = time.monotonic()
        heads = [queue[0] for queue in self._queues.values() if now - queue[0].since >= _PENDING_S]
        if not heads:
            return []
        running = []
        for group, launch in self._launches.items():
            holding = self._shares.holdings.get(group)
            asked_at = self._yielding.get(group)
            if asked_at is not None and now - asked_at >= _YIELD_AGAIN_S and may_end(launch.segment_id):
                del self._yielding[group]
            ending = group in self._yielding
            if holding is None or not (
                ending or (now - holding.since >= self._preempt_after_s and may_end(launch.segment_id))
            ):
                continue
            standing = self._standing(launch.experiment_id)
            running.append(
                Running(
                    launch.segment_id,
                    launch.experiment_id,
                    holding.gang,
                    holding.nodes,
                    holding.since,
                    standing.priority,
                    standing.weight,
                    ending,
                )
            )
        found = self._shares.make_room((self._claim_of(head) for head in heads), running, now, after_s=EQUAL_AFTER_S)
        if found is None:
            return []
        claim, chosen = found
        names = {one.name for one in chosen}
        self._yielding |= {group: now for group, launch in self._launches.items() if launch.segment_id in names}
        return [(one.name, claim.experiment, claim.priority) for one in chosen]

    # What is known

    def share(self, experiment: str) -> float:
        """Return the dominant share that the experiment holds."""
        return self._shares.share(experiment)

    def held(self) -> list[HeldGroup]:
        """Return the groups that are used now, the oldest first."""
        holdings = ((group, launch, self._shares.holdings.get(group)) for group, launch in self._launches.items())
        found = [
            HeldGroup(
                experiment=launch.experiment_id,
                trial=launch.trial_id,
                segment_id=launch.segment_id,
                nodes=holding.nodes,
                bundle=dict(holding.gang.bundle),
                since=holding.since,
            )
            for group, launch, holding in holdings
            if holding is not None and group not in self._kept
        ]
        return sorted(found, key=lambda one: one.since)

    def waiting(self) -> list[WaitingGroup]:
        """Return the groups that wait: those that Ray has to place first, then the others in the order of their turns."""
        now = time.monotonic()
        order = [claim.experiment for claim in self._in_order(now)]
        rounds = [list(self._queues[name]) for name in order]
        queued = [queue[at] for at in range(max(map(len, rounds), default=0)) for queue in rounds if at < len(queue)]
        return [self._shown(waiter, now) for waiter in (*self._forming, *queued)]

    def _shown(self, waiter: _Waiter, now: float) -> WaitingGroup:
        if waiter.granted_at is None:
            reason = self._why(waiter)
        elif waiter.placed.is_set():
            reason = "its processes are being started"
        else:
            reason = f"waits for Ray to place {demand(waiter.launch)}"
        return WaitingGroup(
            experiment=waiter.experiment,
            trial=waiter.launch.trial_id,
            segment_id=waiter.launch.segment_id,
            workers=waiter.gang.workers,
            bundle=dict(waiter.gang.bundle),
            since=waiter.since,
            priority=self._standing(waiter.experiment).priority,
            reserved=now - waiter.since >= self._reserve_after_s and not waiter.placed.is_set(),
            reason=reason,
        )

    # Spares

    def _begin(
        self, launch: Launch, key: Key, waiting: Callable[[str], None]
    ) -> tuple[asyncio.Future[Group], asyncio.Event]:
        placed = asyncio.Event()
        return asyncio.ensure_future(self._form(launch, key, waiting, placed)), placed

    def _spare(self, forming: asyncio.Future[Group], placed: asyncio.Event, key: Key) -> None:
        """Keep a group that is being formed for the next trial: this one has got a warm group in the meantime."""

        def formed(done: asyncio.Future[Group]) -> None:
            unclaimed = self._spares.pop(done, None) is not None
            if unclaimed and not done.cancelled() and done.exception() is None:
                self.release(done.result(), reusable=True)

        self._spares[forming] = key, placed
        self._track(forming)
        forming.add_done_callback(formed)

    def _claim(self, key: Key) -> tuple[asyncio.Future[Group], asyncio.Event] | None:
        for forming, (kind, placed) in self._spares.items():
            if kind == key and not forming.done():
                del self._spares[forming]
                return forming, placed
        return None

    def release(self, group: Group, reusable: bool) -> asyncio.Future[None] | None:
        """Give the group to whoever's turn it is, keep it for a while, or end it.

        If it is being ended, return a future that is done once its processes are gone; else None.
        """
        self._launches.pop(group, None)
        self._yielding.pop(group, None)
        if not reusable or self._closed:
            ended = self._spawn(self._dispose(group))
            self._shares.release(group, time.monotonic())
            self._dispatch()
            return ended
        if group.runs:
            for actor in group.actors:
                actor.reset.remote()
        if self._keeps_turn(group):
            self._kept[group] = asyncio.get_running_loop().call_later(_ASK_AGAIN_S, self._end_turn, group)
            return None
        return self._hand_on(group)

    def _keeps_turn(self, group: Group) -> bool:
        """Return whether the experiment that has just used the group may have it once more, if it asks soon.

        It may if all others that wait are of lower priority. It may for `SLICE_S` if none is of higher priority, and their
        processes would have to be started anew.
        """
        heads = [queue[0] for queue in self._queues.values()]
        if not group.experiment or not heads or any(head.experiment == group.experiment for head in heads):
            return False
        own = self._standing(group.experiment).priority
        highest = max(self._standing(head.experiment).priority for head in heads)
        if highest != own:
            return highest < own
        return time.monotonic() - group.turn_began < SLICE_S and all(head.key != group.key for head in heads)

    def _take_kept(self, experiment: str, key: Key) -> Group | None:
        for group, timer in self._kept.items():
            if group.key == key and group.experiment == experiment:
                timer.cancel()
                del self._kept[group]
                return group
        return None

    def _end_turn(self, group: Group) -> None:
        if self._kept.pop(group, None) is not None:
            self._hand_on(group)

    def _hand_on(self, group: Group) -> asyncio.Future[None] | None:
        """Let the next in turn have the room of a group that is free."""
        self._shares.release(group, time.monotonic())
        self._idle.append(group)
        group.expiry = asyncio.get_running_loop().call_later(self._idle_timeout_s, self._expire, group)
        self._dispatch()
        if group not in self._idle:
            return None
        forming = [waiter for waiter in self._forming if not waiter.warm.done()]
        for waiter in forming:
            if waiter.key == group.key and waiter.reuses:
                self._no_longer_idle(group)
                self._give(group, waiter)
                waiter.warm.set_result(group)
                return None
        if any(not waiter.placed.is_set() for waiter in forming):
            return self._spawn(self._dispose(self._no_longer_idle(group)))
        return None

    async def rest(self, keep: bool) -> None:
        """End the idle groups, and return once they are gone. With `keep` end only those that have GPUs."""
        for forming in self._spares:
            forming.cancel()
        for group in list(self._kept):
            self._end_turn(group)
        for group in list(self._idle):
            if not keep or any(worker.gpus for worker in group.workers):
                self._spawn(self._dispose(self._no_longer_idle(group)))
        await self.settle()

    def trim(self, scaling: Scaling, count: int | None) -> None:
        """End idle groups that the only search here cannot use: groups of other kinds, and those above `count`.

        Otherwise what users run beside the search, such as Ray Data, would have to wait for their resources.
        """
        kind = _kind(scaling)
        matching = [group for group in self._idle if group.key[: len(kind)] == kind]
        useful = matching if count is None else matching[-count:]
        for group in list(self._idle):
            if group not in useful:
                self._spawn(self._dispose(self._no_longer_idle(group)))

    async def close(self) -> None:
        """End all groups and wait until they are gone."""
        self._closed = True
        for forming in self._spares:
            forming.cancel()
        for group in list(self._kept):
            self._end_turn(group)
        if self._looking is not None:
            self._looking.cancel()
        while self._idle:
            self._spawn(self._dispose(self._no_longer_idle(self._idle[-1])))
        await self.settle()
        self._threads.shutdown(wait=False)

    async def settle(self) -> None:
        """Wait until the groups that are being ended are gone."""
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)

    async def blocking(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a blocking function in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run one of the functions of `nodes` on a node of the cluster."""
        if node == self._node:
            return await self.blocking(function, *args)
        return await on_node(node, function, *args)

    # Forming

    async def _lacking(self, launch: Launch) -> str | None:
        """Return why the cluster could not hold this group even if it were empty; None if it could, or may grow."""
        found: str | None = None if self._autoscaling else await self.blocking(lacking, launch.scaling)
        return found

    async def _form(self, launch: Launch, key: Key, waiting: Callable[[str], None], placed: asyncio.Event) -> Group:
        """Form a new group. `placed` is set once it has its room and only its processes have to start."""
        scaling, bundle = launch.scaling, launch.scaling.bundle()
        others = {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU", "memory")}
        wants_torch = scaling.backend != "none" and (scaling.num_workers > 1 or bundle.get("GPU", 0) > 0)
        title = f"{self._name}/{next(self._numbers)}" if self._name else ""
        group = await self._reserve(key, [bundle] * scaling.num_workers, scaling.placement_strategy, title)
        hellos: asyncio.Future[list[Any]] | None = None
        try:
            # The actors are created before the placement group is ready, which saves waiting for an answer in between.
            for index in range(scaling.num_workers):
                group.actors.append(
                    self._rank.options(
                        num_cpus=bundle.get("CPU", 0),
                        num_gpus=bundle.get("GPU", 0),
                        memory=bundle.get("memory"),
                        resources=others or None,
                        runtime_env=dict(launch.runtime_env) or None,
                        scheduling_strategy=PlacementGroupSchedulingStrategy(group.placement, index),
                    ).remote(self._driver, wants_torch, self._report_address, self._log_limit)
                )
            hellos = asyncio.gather(*(_get(actor.hello.remote(scaling.num_workers > 1)) for actor in group.actors))
            await self._placed(launch, group, hellos, waiting)
            placed.set()
            group.held_since = time.monotonic()
            try:
                workers = await hellos
            except ray.exceptions.RayError as error:
                raise start_error(error) from error
            self._held.add(key[:3])
            order, group.assignments = assign_ranks(workers, scaling)
            group.workers = [workers[index] for index in order]
            group.actors = [group.actors[index] for index in order]
            return group
        except BaseException:
            if hellos is not None:  # its actors are about to be ended: ignore their errors
                hellos.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._spawn(self._dispose(group))
            raise

    async def _reserve(self, key: Key, bundles: list[dict[str, float]], strategy: str, title: str) -> Group:
        """Ask for a placement group. If this is cancelled, a placement group already asked for is returned."""
        asked = asyncio.ensure_future(self.blocking(placement_group, bundles, strategy, title))
        try:
            return Group(key, await asyncio.shield(asked))
        except asyncio.CancelledError:
            self._spawn(self._give_back(key, asked))
            raise

    async def _give_back(self, key: Key, asked: asyncio.Future[PlacementGroup]) -> None:
        with contextlib.suppress(Exception):  # then nothing was reserved
            await self._dispose(Group(key, await asked))

    async def _placed(
        self, launch: Launch, group: Group, hellos: asyncio.Future[Any], waiting: Callable[[str], None]
    ) -> None:
        """Wait until the placement group is ready, and end idle groups to make room for it.

        Raise NoRoom if that takes too long.
        """
        limit = launch.limits.placement_timeout_s
        begun = time.monotonic()
        deadline = begun + limit
        pause, told = 0.05, False
        while not hellos.done():
            await asyncio.wait({hellos}, timeout=pause)
            if hellos.done() or await self.blocking(group.placement.wait, 0):
                return
            if self._idle:
                await self._dispose(self._no_longer_idle(self._idle[0]))
                pause = 0.05
                continue
            if not told and time.monotonic() >= begun + min(_PATIENCE_S, limit):
                told = True
                reason = await self._lacking(launch)
                waiting(f"waits for room for {demand(launch)}" + (f": {reason}" if reason else ""))
            if time.monotonic() >= deadline:
                if reason := await self._lacking(launch):
                    raise PlacementError(
                        f"this cluster can no longer run {demand(launch)}: {reason}, for {limit:g} s now"
                    )
                raise NoRoom(f"there was no room for {demand(launch)} within {limit:g} s")
            pause = min(0.5, pause * 1.5, max(0.01, deadline - time.monotonic()))

    # Ending

    def _no_longer_idle(self, group: Group) -> Group:
        self._idle.remove(group)
        if group.expiry is not None:  # otherwise each of many short trials would leave a timer
            group.expiry.cancel()
        return group

    def _expire(self, group: Group) -> None:
        if group in self._idle:
            self._spawn(self._dispose(self._no_longer_idle(group)))

    async def _dispose(self, group: Group) -> None:
        """Kill the processes, return the placement group, and make sure that nothing is left of them."""
        self._ending += 1
        try:
            await self._end(group)
        finally:
            self._ending -= 1

    async def _end(self, group: Group) -> None:
        for actor in group.actors:
            with contextlib.suppress(Exception):
                ray.kill(actor, no_restart=True)
        with contextlib.suppress(Exception):
            await self.blocking(remove_placement_group, group.placement)
        by_node: dict[str, list[int]] = {}
        for worker in group.workers:
            by_node.setdefault(worker.node, []).append(worker.pid)
        for node, pids in by_node.items():
            try:
                left = await asyncio.wait_for(self.on_node(node, nodes.reap, pids), 60.0)
            except Exception as error:
                log.info("node %s does not answer; its ranks are gone with it: %s", node[:8], error)
                continue
            if left:
                log.warning("processes %s on node %s could not be ended", left, node[:8])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        task = asyncio.ensure_future(work)
        self._track(task)
        return task

    def _track(self, task: asyncio.Future[Any]) -> None:
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def read_nodes() -> dict[str, dict[str, float]]:
    """Return the resources of every living node."""
    return {node["NodeID"]: dict(node["Resources"]) for node in ray.nodes() if node["Alive"]}


def group_key(launch: Launch) -> Key:
    """Return what two launches must have in common to run in the same processes."""
    code = launch.code
    return (
        *_kind(launch.scaling),
        code.entrypoint,  # functions by value have no entrypoint: they come from one script, and may change without new processes
        code.sys_path,
        code.working_dir,
        repr(sorted(launch.runtime_env.items())),
        tuple(sorted(launch.env.items())),
    )


def _kind(scaling: Scaling) -> Key:
    bundle = tuple(sorted(scaling.bundle().items()))
    return scaling.num_workers, bundle, scaling.placement_strategy, scaling.backend


def demand(launch: Launch) -> str:
    bundle = ", ".join(f"{amount:g} {name}" for name, amount in launch.scaling.bundle().items())
    workers = launch.scaling.num_workers
    return f"{workers} workers with {bundle} each" if workers > 1 else f"a worker with {bundle}"


def start_error(error: ray.exceptions.RayError) -> PlacementError:
    """Return why workers did not start.

    If a runtime_env or a constructor failed, it would fail again. After the loss of a process or a node, another attempt
    may succeed.
    """
    raised = isinstance(error, ray.exceptions.RayTaskError) or getattr(error, "actor_init_failed", False)
    if raised or isinstance(error, ray.exceptions.RuntimeEnvSetupError):
        return PlacementError(f"the workers could not be started: {_last_line(error)}")
    return LostAtStart(f"the workers were lost while they were started: {_last_line(error)}")


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


async def _get(ref: Any) -> Any:
    return await ref
