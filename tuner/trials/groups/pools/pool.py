"""The pool of worker groups, which finds a warm or new group for each segment.

`admission` decides which segment gets the next group, `warm` keeps idle groups, and `builder` builds groups and shuts them down.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tuner.domain.experiment import Scaling
from tuner.domain.logs import LogLimit
from tuner.trials.groups.cluster.growth import NodeType, may_join
from tuner.trials.groups.pools.admission import (
    PREEMPT_AFTER_S,
    RESERVE_AFTER_S,
    Admission,
    Entitlement,
    HeldGroup,
    Quotas,
    WaitingGroup,
    WaitingSegment,
    ordinary,
    used_elsewhere,
)
from tuner.trials.groups.pools.builder import PATIENCE_S, GroupBuilder, ignore
from tuner.trials.groups.pools.group import Group, Key, group_key
from tuner.trials.groups.pools.warm import WarmGroups
from tuner.trials.messages.call_lines import CallLines
from tuner.trials.messages.launch import Launch
from tuner.trials.messages.report_socket import Address

log = logging.getLogger(__name__)

_CUT_FROM_PEER_S = 60.0  # seconds for which no group is placed on a node that cannot reach another node
_LOOK_S = 0.5  # seconds between two checks whether a waiting group fits; a freed group also triggers a check
_READ_S = 5.0  # seconds that such a check waits for Ray before it uses what was read last

_Building = tuple[asyncio.Future[Group], asyncio.Event]
"""A group that is being built, and an event that is set once the group has its resources."""


class Pool:
    """All worker groups of a driver host on Ray.

    Args:
        driver: the actor to which ranks report; see `launch.Driver`.
        name: a prefix for the names of placement groups.
        node_types: a function that returns the node types that an autoscaler may add to the cluster. It may block.
        idle_timeout_s: how long a warm group is kept for another trial.
        report_address: the address at which the driver listens for reports; None if they can only be sent through Ray.
        lines: the connections over which the driver calls ranks; None if all calls go through Ray.
        reserve_after_s: seconds that a group waits before free resources are reserved for it.
        log_limit: how much of each log the ranks send to the driver; None if they send nothing.
        entitlement: a function that returns an experiment's priority, weight and project.
        quotas: how much of each resource a project's experiments may hold together.
        preempt_after_s: the minimum number of seconds that a group runs before it has to make room for another
            experiment.
        builder: creates the object that builds groups and knows the cluster; called with the arguments of `GroupBuilder`.
    """

    def __init__(
        self,
        driver: Any,
        *,
        name: str = "",
        node_types: Callable[[], Sequence[NodeType]] = tuple,
        idle_timeout_s: float = 60.0,
        report_address: Address | None = None,
        lines: CallLines | None = None,
        reserve_after_s: float = RESERVE_AFTER_S,
        log_limit: LogLimit | None = None,
        entitlement: Callable[[str], Entitlement] = ordinary,
        quotas: Quotas | None = None,
        preempt_after_s: float = PREEMPT_AFTER_S,
        builder: Callable[..., GroupBuilder] = GroupBuilder,
    ) -> None:
        self._admission = Admission(
            reserve_after_s=reserve_after_s,
            preempt_after_s=preempt_after_s,
            entitlement=entitlement,
            quotas=quotas,
        )
        self._builder: GroupBuilder = builder(
            driver,
            name=name,
            node_types=node_types,
            report_address=report_address,
            lines=lines,
            log_limit=log_limit,
            idle=self._take_idle,
            uploading=lambda: bool(self._builder.uploading) or any(group.uploads for group in self._warm.idle),
        )
        self._warm: WarmGroups = WarmGroups(idle_timeout_s, self._builder.end_soon)
        # Groups that are being built although no segment is waiting for them.
        self._spares: dict[asyncio.Future[Group], tuple[Key, asyncio.Event]] = {}
        self._nodes_read_at = float("-inf")
        self._reading: asyncio.Future[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        # nodes that are about to be taken away; see `ray_nodes.leaving_nodes`
        self._leaving: Mapping[str, float | None] = {}
        self._closed = False

    @property
    def idle(self) -> int:
        """Return how many groups are idle."""
        return len(self._warm.idle)

    async def acquire(self, launch: Launch, waiting: Callable[[str], None]) -> tuple[Group, bool]:
        """Wait for a group of the kind that the launch needs. Return it, and whether it is warm. The call can be cancelled.

        waiting: called with the reason, in words, if the launch has to wait.

        Raises:
            NoRoom: the group was next, but other work held the resources for `limits.placement_timeout_s`.
            LostAtStart: the group was placed, but its workers died.
            PlacementError: the cluster can never hold the group, or its workers cannot be started.
        """
        reuse = launch.scaling.reuse_workers
        if reuse and (kept := self._warm.take_kept(launch.experiment_id, group_key(launch))) is not None:
            self._admission.give_again(kept, launch)
            return kept, True
        await self._read_nodes()
        await self._builder.check(launch)
        loop = asyncio.get_running_loop()
        segment = WaitingSegment(launch, time.monotonic(), loop.create_future(), loop.create_future())
        self._admission.enqueue(segment)
        group: Group | None = None
        try:
            group, warm = await self._served(segment, waiting)
            return group, warm
        finally:
            self._admission.remove(segment)
            if group is not None and group not in self._admission.launches:
                placed_at = group.held_since
                self._admission.give(group, segment)
                if placed_at:  # the group may have been placed for another segment, before this one was admitted
                    group.held_since = max(placed_at, segment.admitted_at or segment.since)
            for given in (segment.turn, segment.warm):
                if given.done() and (found := given.result()) not in (None, group):
                    self.release(found, reuse)
            self._dispatch()

    def release(self, group: Group, reusable: bool) -> asyncio.Future[None] | None:
        """Give the group to the next segment that can use it, keep it for a while, or shut it down.

        Return a future that is done once the group's processes have exited, or None if the group is not shut down.
        """
        self._admission.finish(group)
        leaves = self._on_leaving_node(group)
        if not reusable or self._closed or leaves:
            ended = self._builder.end_soon(group, hand_on=group.sound and not (self._closed or leaves))
            if group.uploads:  # until they have finished, nobody else can have the group's resources
                ended.add_done_callback(lambda _: self._free(group))
            else:
                self._free(group)
            return ended
        if group.runs:
            for actor in group.actors:
                actor.reset.remote()
        if self._admission.keeps_turn(group):
            self._warm.keep(group, self._end_turn)
            return None
        return self._hand_on(group)

    def _free(self, group: Group) -> None:
        self._admission.free(group)
        self._dispatch()

    def make_room(self, may_end: Callable[[str], bool]) -> list[tuple[str, str, int]]:
        """Return the segments that should end to make room for other experiments; see `Admission.make_room`."""
        return self._admission.make_room(may_end)

    async def leaving(self) -> dict[str, str]:
        """Return the segments that have a rank on a node that is about to be taken away, each with the reason in words.

        Idle groups on such nodes are shut down, and no new groups are placed there.
        """
        self._leaving = await self._builder.leaving_nodes()
        if not self._leaving:
            return {}
        for group in list(self._warm.idle):
            if self._on_leaving_node(group):
                self._builder.end_soon(self._warm.take(group))
        found: dict[str, str] = {}
        for group, launch in self._admission.launches.items():
            there = next((worker for worker in group.workers if worker.node in self._leaving), None)
            if there is not None:
                gone_at = self._leaving[there.node]
                when = "" if gone_at is None else f", in {max(0.0, gone_at - time.time()):.0f} s"
                found[launch.segment_id] = f"because its node {there.host} ({there.ip}) is about to be taken away{when}"
        return found

    def _on_leaving_node(self, group: Group) -> bool:
        return bool(self._leaving) and any(node in self._leaving for node in group.nodes())

    def forget(self, experiment: str) -> None:
        """Forget the past usage of an experiment that has ended."""
        self._admission.forget(experiment)

    def share(self, experiment: str) -> float:
        """Return the experiment's dominant share, which is the largest fraction of any resource that it holds."""
        return self._admission.share(experiment)

    def granted(self, experiment: str, bundle: Mapping[str, float]) -> int | None:
        """Return how many workers an experiment's elastic trials may have; None if the cluster is not known yet."""
        return self._admission.granted(experiment, bundle) if self._admission.knows_nodes else None

    def held(self) -> list[HeldGroup]:
        """Return the groups that are in use, oldest first."""
        return self._admission.held()

    def waiting(self) -> list[WaitingGroup]:
        """Return the waiting groups: first the admitted ones, then the queued ones in the order of their turns."""
        return self._admission.waiting()

    async def rest(self, keep: bool) -> None:
        """Shut down the idle groups, and wait until they have exited. If `keep` is true, keep idle groups without GPUs."""
        self._release_kept()
        for group in list(self._warm.idle):
            if not keep or any(worker.gpus for worker in group.workers):
                self._builder.end_soon(self._warm.take(group))
        await self._builder.settle()

    def trim(self, scaling: Scaling, count: int | None) -> None:
        """Shut down all idle groups except the newest `count` with this scaling. A `count` of None keeps all of these.

        The others are of no use to the only search on this host, and would keep their resources from the user's other
        work, such as Ray Data.
        """
        for group in self._warm.useless(scaling, count):
            self._builder.end_soon(self._warm.take(group))

    async def close(self) -> None:
        """Shut down all groups, and wait until they have exited."""
        self._closed = True
        self._release_kept()
        for task in (self._looking, self._reading):
            if task is not None:
                task.cancel()
        while self._warm.idle:
            self._builder.end_soon(self._warm.take(self._warm.idle[-1]))
        await self._builder.close()

    async def settle(self) -> None:
        """Wait until every group that is shutting down has exited."""
        await self._builder.settle()

    async def on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function, such as those in the module `nodes`, on a node of the cluster, and return its value."""
        return await self._builder.on_node(node, function, *args)

    def is_cut(self, node: str) -> bool:
        """Return whether a node cannot be reached, although Ray counts it as alive."""
        return node in self._builder.cut

    def cut(self, rank: bytes, silent: bool) -> None:
        """Place no groups on a rank's node while the node cannot be reached. If `silent` is False, place none for some time.

        rank: the token of the rank's process.
        """
        idle = (*self._warm.idle, *self._warm.kept)
        workers = [worker for group in (*self._admission.launches, *idle) for worker in group.workers]
        node = next((worker.node for worker in workers if worker.token == rank), None)
        if node is None:
            return
        self._builder.cut.add(node, 0.0 if silent else _CUT_FROM_PEER_S)
        self._release_kept()
        for group in list(self._warm.idle):
            if node in group.nodes():
                self._builder.end_soon(self._warm.take(group))

    def _take_idle(self) -> Group | None:
        """Remove and return the longest-idle group that can be shut down now; None if there is none."""
        found = next((group for group in self._warm.idle if not group.uploads), None)
        return self._warm.take(found) if found is not None else None

    # One segment's group

    async def _served(self, segment: WaitingSegment, waiting: Callable[[str], None]) -> tuple[Group, bool]:
        """Wait for the segment's turn, then for a warm or a new group. Return the group, and whether it is warm."""
        self._dispatch()
        if (not segment.turn.done() or segment.awaits_node) and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look(), context=contextvars.Context())  # for all experiments
        if not segment.turn.done():
            await asyncio.wait({segment.turn}, timeout=PATIENCE_S)
            if not segment.turn.done():
                waiting(self._admission.why(segment))
                await asyncio.wait({segment.turn})
        group = segment.turn.result()
        return (group, True) if group is not None else await self._built(segment, waiting)

    async def _built(self, segment: WaitingSegment, waiting: Callable[[str], None]) -> tuple[Group, bool]:
        """Build a new group, or take a warm group that becomes free in the meantime. Return it, and whether it is warm."""
        building, segment.placed = self._claim_spare(segment.key) or self._begin(segment, waiting)
        taken = False
        try:
            await asyncio.wait({building, segment.warm}, return_when=asyncio.FIRST_COMPLETED)
            taken = True
            return (segment.warm.result(), True) if segment.warm.done() else (building.result(), False)
        finally:
            if not building.done():
                if taken and segment.placed.is_set() and segment.reuses and not self._closed:
                    self._spare(building, segment.placed, segment.key)
                else:
                    building.cancel()  # when `build` is cancelled, it stops the processes that it has started
                    self._builder.track(building)
            elif (not taken or segment.warm.done()) and not building.cancelled() and building.exception() is None:
                self.release(building.result(), segment.reuses)

    def _begin(self, segment: WaitingSegment, waiting: Callable[[str], None]) -> _Building:
        """Begin to build a new group for a segment."""
        placed = asyncio.Event()

        def told(reason: str) -> None:
            waiting(segment.joining if segment.awaits_node else reason)

        return asyncio.ensure_future(self._builder.build(segment.launch, segment.key, told, placed)), placed

    def _spare(self, building: asyncio.Future[Group], placed: asyncio.Event, key: Key) -> None:
        """Finish building a group for a later trial, since the trial that needed it has been given a warm group."""

        def built(done: asyncio.Future[Group]) -> None:
            unclaimed = self._spares.pop(done, None) is not None
            if unclaimed and not done.cancelled() and done.exception() is None:
                self.release(done.result(), reusable=True)

        self._spares[building] = key, placed
        self._builder.track(building)
        building.add_done_callback(built)

    def _claim_spare(self, key: Key) -> _Building | None:
        """Return a group of this kind that is being built and that no trial is waiting for; None if there is none."""
        for building, (kind, placed) in self._spares.items():
            if kind == key and not building.done():
                del self._spares[building]
                return building, placed
        return None

    # Turns

    def _dispatch(self) -> None:
        """Give each segment whose turn has come a warm group, or let it request a new group from Ray."""
        if self._closed:
            return
        now = time.monotonic()
        while (found := self._admission.next(now, self._warm.idle[::-1])) is not None:
            segment, at = found
            idle = self._warm.usable(segment, at)
            if segment.admitted_at is not None:  # Ray has not placed the segment's group, but a warm group is free now
                assert idle is not None
                self._use_idle(idle, segment)
                segment.warm.set_result(idle)
                continue
            self._admission.admit(segment, at, now)
            if idle is not None:
                self._use_idle(idle, segment)
            else:
                self._admission.ask_ray(segment, now)
            segment.turn.set_result(idle)

    def _use_idle(self, group: Group, segment: WaitingSegment) -> None:
        self._warm.take(group)
        self._admission.give(group, segment)

    def _hand_on(self, group: Group) -> asyncio.Future[None] | None:
        """Make a free group available to the next segment: keep it idle for reuse, or shut it down to release its resources.

        Return a future that is done once the group has exited, or None if it is kept.
        """
        self._admission.free(group)
        self._warm.add(group)
        self._dispatch()
        if group not in self._warm.idle:
            return None
        building = [segment for segment in self._admission.admitted if not segment.warm.done()]
        for segment in building:
            if segment.key == group.key and segment.reuses:
                self._use_idle(group, segment)
                segment.warm.set_result(group)
                return None
        if any(not segment.placed.is_set() for segment in building):
            return self._builder.end_soon(self._warm.take(group))
        return None

    def _end_turn(self, group: Group) -> None:
        """Stop keeping a group for the experiment that last used it, so that other segments may use it."""
        if self._warm.drop_kept(group):
            self._hand_on(group)

    def _release_kept(self) -> None:
        """Cancel the building of spare groups, and let any segment use the groups that are kept for an experiment."""
        for building in self._spares:
            building.cancel()
        for group in self._warm.kept:
            self._end_turn(group)

    # The cluster

    async def _look(self) -> None:
        """Check every `_LOOK_S` seconds whether a waiting segment can be served, because nodes may join or leave."""
        while (self._admission.queued or self._admission.awaits_nodes) and not self._closed:
            await asyncio.sleep(_LOOK_S)
            with contextlib.suppress(Exception):  # Ray may fail briefly, or not respond for a long time
                await asyncio.wait_for(self._read_nodes(), _READ_S)
            try:
                self._dispatch()
            except Exception:  # an error must not end this loop, or waiting segments would never be checked again
                log.exception("checking the waiting groups failed")

    async def _read_nodes(self) -> None:
        """Read the nodes' resources, and how much of them other programs use, unless both were just read."""
        if time.monotonic() - self._nodes_read_at >= _LOOK_S and (self._reading is None or self._reading.done()):
            self._nodes_read_at = time.monotonic()
            self._reading = asyncio.ensure_future(self._set_nodes())
            self._reading.add_done_callback(ignore)
        if self._reading is not None and (not self._admission.knows_nodes or self._looking is asyncio.current_task()):
            await asyncio.shield(self._reading)

    async def _set_nodes(self) -> None:
        nodes = await self._builder.nodes()
        types = await self._builder.node_types()
        there = {node: resources for node, resources in nodes.items() if node not in self._leaving}
        elsewhere: dict[str, float] = {}
        if self._admission.any_pending(time.monotonic()) and not self._builder.ending:
            free = await self._builder.free_resources()
            elsewhere = used_elsewhere(nodes, free, self._keys_with_room())
        self._admission.set_nodes(there | may_join(types, there), elsewhere)

    def _keys_with_room(self) -> Iterator[Key]:
        """Yield the keys of this pool's groups that hold resources: in use, idle, briefly kept, uploading, or starting."""
        idle = (*self._warm.idle, *self._warm.kept, *self._builder.uploading)
        yield from (group.key for group in (*self._admission.launches, *idle))
        yield from (segment.key for segment in self._admission.admitted if segment.placed.is_set())
        yield from (key for key, placed in self._spares.values() if placed.is_set())
