"""Build worker groups and shut them down. A group is a Ray placement group with a process in each of its bundles."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tuner.domain.logs import LogLimit
from tuner.errors import PlacementError
from tuner.trials.groups.cluster import nodes
from tuner.trials.groups.cluster.cut_nodes import CutNodes, selector, unreachable
from tuner.trials.groups.cluster.growth import NodeType
from tuner.trials.groups.cluster.node_names import node_names
from tuner.trials.groups.cluster.ray_nodes import leaving_nodes, live_nodes
from tuner.trials.groups.pools.group import Group, Key, demand, room_key
from tuner.trials.groups.pools.placement import assign_ranks, lacking
from tuner.trials.groups.pools.rank_handle import RankHandle, repeated
from tuner.trials.groups.pools.removal import LOOK_S, Removal
from tuner.trials.messages.call_lines import CallLines
from tuner.trials.messages.launch import Launch
from tuner.trials.messages.lost import LostAtStart, NoRoom
from tuner.trials.messages.protocol import WorkerMetadata
from tuner.trials.messages.report_socket import Address
from tuner.trials.messages.tasks import on_node
from tuner.trials.runtime.ray_rank import GROUPS, RayRank

log = logging.getLogger(__name__)

PATIENCE_S = 0.5
"""Seconds after which a group that has not been placed is reported as waiting."""
_WATCH_AFTER_S = 1.0
"""Seconds after which the nodes of a placed group are watched if its processes have not started yet."""
_HANDED_ON_S = 0.25
"""Seconds for which the placement group of a group that is shutting down is kept for the next group of the same size.

After the removal of a placement group, Ray takes most of a second to place another one. The offer also helps if a trial is given
a warm group while Ray is still placing the trial's new group: the next trial takes over that placement group. If it requested
another one, and trials take less than a second, Ray would never finish placing one.
"""


class GroupBuilder:
    """Builds groups, shuts them down, and runs functions on their nodes.

    Args:
        driver: the actor to which ranks report.
        name: the owner's name. Placement groups are named {name}/{number}.
        node_types: a function that returns the node types that an autoscaler may add. It may block.
        report_address: the address at which the driver listens for reports; None if they can only be sent through Ray.
        lines: the connections over which the driver calls ranks; None if all calls go through Ray.
        log_limit: how much of each log the ranks send to the driver; None if they send nothing.
        idle: a function that returns an idle group to shut down to make room for a new group, or None.
        uploading: a function that returns whether any groups without a trial hold resources because they are still uploading.
    """

    def __init__(
        self,
        driver: Any,
        *,
        name: str,
        node_types: Callable[[], Sequence[NodeType]],
        report_address: Address | None,
        lines: CallLines | None,
        log_limit: LogLimit | None,
        idle: Callable[[], Group | None],
        uploading: Callable[[], bool],
    ) -> None:
        self._driver, self._name, self._node_types = driver, name, node_types
        self._report_address, self._log_limit = report_address, log_limit
        self._take_idle, self._uploading = idle, uploading
        self._lines = lines if lines is not None else CallLines()
        self._numbers = itertools.count(1)
        # With task events, Ray's head node keeps a record of each call: a megabyte for every forty trials.
        self._rank = ray.remote(concurrency_groups=GROUPS, enable_task_events=False)(RayRank)
        self._node = ray.get_runtime_context().get_node_id()
        self._placed_before: set[Key] = set()  # `room_key` of the groups that have been placed
        # The placement groups of groups whose processes are being killed.
        self._free_placements: dict[asyncio.Future[None], Group] = {}
        self._background: set[asyncio.Future[Any]] = set()
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="tuner-pool")
        # These threads are separate, because waiting for killed processes to exit may take half a minute.
        self._here = ThreadPoolExecutor(max_workers=16, thread_name_prefix="tuner-node")
        self.ending = 0
        """The number of groups that are shutting down, whose resources Ray may still count as used."""
        self.names: Mapping[str, str] = {}
        """The name of each node, by node id, for messages."""
        self.cut = CutNodes(self.blocking, self._reap_left)
        """The nodes on which groups must not be placed, because they cannot be reached."""
        # the processes to kill on unreachable nodes when these come back
        self._left: dict[str, list[int]] = {}
        self.uploading: set[Group] = set()
        """The groups that will be shut down once their uploads have finished."""

    async def build(self, launch: Launch, key: Key, waiting: Callable[[str], None], placed: asyncio.Event) -> Group:
        """Build a new group. If that fails or is cancelled, stop everything that was started.

        Args:
            launch: the launch that needs the group.
            key: the kind of the group.
            waiting: called with the reason, in words, if the group is not placed within about `PATIENCE_S` seconds.
            placed: an event that this method sets once the group has its resources and only its processes have to start.
        """
        while (group := await self._try(launch, key, waiting, placed)) is None:
            pass
        return group

    async def _try(
        self, launch: Launch, key: Key, waiting: Callable[[str], None], placed: asyncio.Event
    ) -> Group | None:
        """Build a new group.

        Return None if another attempt is needed: a node was cut or came back before the group had started.
        """
        avoided = self.cut.ids()
        group = await self._reserve(launch, key, avoided)
        hellos: asyncio.Future[list[Any]] | None = None
        try:
            # The actors are created before the placement group is ready. This saves one wait for an answer from Ray.
            self._create_actors(launch, group)
            several = launch.scaling.num_workers > 1
            asked = [functools.partial(actor.hello.remote, several) for actor in group.actors]
            hellos = asyncio.gather(*map(repeated, asked))
            if not await self._until_placed(launch, group, hellos, waiting, avoided):
                hellos.add_done_callback(ignore)
                self.end_soon(group)
                return None
            placed.set()
            group.held_since = time.monotonic()
            if (cut := await self._cut_while_starting(group, hellos)) is not None:
                placed.clear()  # the next attempt waits for its resources again
                self.cut.add(cut)
                hellos.add_done_callback(ignore)
                self.end_soon(group)
                return None
            try:
                workers = await hellos
            except ray.exceptions.RayError as error:
                raise start_error(error) from error
            if any(worker.node not in self.names for worker in workers):  # a node has just joined
                await self._read_names()
            self._placed_before.add(room_key(launch.scaling))
            order, group.assignments = assign_ranks(workers, launch.scaling)
            group.workers = [self._named(workers[index]) for index in order]
            group.actors = [RankHandle(group.actors[i], workers[i].token, self._lines) for i in order]
            return group
        except BaseException as error:
            if hellos is not None:  # the actors are about to be killed: ignore their errors
                hellos.add_done_callback(ignore)
            self.end_soon(group, hand_on=isinstance(error, asyncio.CancelledError))
            raise

    async def check(self, launch: Launch) -> None:
        """Check that the group of a launch would fit if nothing else ran on the cluster.

        The check is skipped if a group with the same resources, or a group of the same experiment, was placed before,
        even by an earlier driver. Its node may have been lost and may come back: after the head node dies, the nodes
        rejoin one after another.

        Raises:
            PlacementError: the cluster can never hold the group.
        """
        known = launch.placed_before or room_key(launch.scaling) in self._placed_before
        if not known and (reason := await self._lacking(launch)):
            raise PlacementError(f"this cluster can never run {demand(launch)}: {reason}")

    def end_soon(self, group: Group, hand_on: bool = False) -> asyncio.Future[None]:
        """Shut down a group in the background. Return a future that is done once its processes are gone.

        hand_on: whether a new group may take over the placement group.
        """
        task = asyncio.ensure_future(self._end(group, hand_on))
        self.track(task)
        return task

    def track(self, task: asyncio.Future[Any]) -> None:
        """Keep a task that runs in the background, so that `settle` waits for it."""
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def settle(self) -> None:
        """Wait until every group that is shutting down has exited."""
        while self._background:
            self._withdraw_placements()
            await asyncio.gather(*self._background, return_exceptions=True)

    async def close(self) -> None:
        """Wait until every group that is shutting down has exited, and shut down the builder's threads."""
        await self.settle()
        self.cut.close()
        for threads in (self._threads, self._here):
            threads.shutdown(wait=False)

    async def blocking(self, function: Callable[..., Any], *args: Any) -> Any:
        """Use a thread pool to run a function that blocks on Ray, and return its value."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def nodes(self) -> dict[str, dict[str, float]]:
        """Return the resources of every live node that can be reached, by node id."""
        found: dict[str, dict[str, float]] = await self.blocking(live_nodes)
        if found.keys() - self.names.keys():  # nodes have joined
            await self._read_names()
        return {node: resources for node, resources in found.items() if node not in self.cut}

    async def _read_names(self) -> None:
        self.names = node_names([node for node in await self.blocking(ray.nodes) if node["Alive"]])

    async def node_types(self) -> Sequence[NodeType]:
        """Return the node types that an autoscaler may add."""
        return await self.blocking(self._node_types)  # type: ignore[no-any-return]

    async def leaving_nodes(self) -> Mapping[str, float | None]:
        """Return the nodes that are about to be taken away, each with the time at which it will be gone, or None if unknown."""
        return await self.blocking(leaving_nodes)  # type: ignore[no-any-return]

    async def free_resources(self) -> dict[str, float]:
        """Return the free resources of all nodes together."""
        found: dict[str, float] = await self.blocking(ray.available_resources)
        return found

    async def on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function, such as those in the module `nodes`, on a node of the cluster, and return its value."""
        if node == self._node:
            return await asyncio.get_running_loop().run_in_executor(self._here, function, *args)
        if node in self.cut:
            raise ConnectionError(f"node {node[:8]} cannot be reached")
        return await on_node(node, function, *args)

    # Building

    async def _lacking(self, launch: Launch) -> str | None:
        """Return why the group would not fit on the empty cluster, even with the nodes that may join; None if it would fit."""
        return await self.blocking(lacking, launch.scaling, self._node_types)  # type: ignore[no-any-return]

    def _named(self, worker: WorkerMetadata) -> WorkerMetadata:
        return dataclasses.replace(worker, host=self.names.get(worker.node, worker.host))

    def _create_actors(self, launch: Launch, group: Group) -> None:
        """Create an actor in each bundle of the group's placement group."""
        scaling, bundle = launch.scaling, launch.scaling.bundle()
        others = {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU", "memory")}
        wants_torch = scaling.backend != "none" and (scaling.num_workers > 1 or bundle.get("GPU", 0) > 0)
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

    async def _reserve(self, launch: Launch, key: Key, avoided: frozenset[str]) -> Group:
        """Request a placement group, and return a group that has it. If this call is cancelled, release the placement group.

        If a group of the same size is shutting down and is on none of the nodes `avoided`, its placement group is
        reused.
        """
        scaling = launch.scaling
        size = room_key(scaling)
        # The placement groups that Ray has already placed come first.
        offers = sorted(self._free_placements.items(), key=lambda offer: not offer[1].workers)
        for taken, ended in offers:
            same_nodes = avoided.isdisjoint(ended.nodes()) if ended.workers else avoided == ended.avoided
            if ended.key[: len(size)] == size and same_nodes:
                del self._free_placements[taken]
                taken.cancel()
                return Group(key, ended.placement, avoided=avoided)
        self._withdraw_placements()  # the new group may need the resources of these placement groups
        title = f"{self._name}/{next(self._numbers)}" if self._name else ""
        bundles = [scaling.bundle()] * scaling.num_workers
        make = functools.partial(placement_group, bundle_label_selector=selector(avoided, len(bundles)))
        asked = asyncio.ensure_future(self.blocking(make, bundles, scaling.placement_strategy, title))
        try:
            return Group(key, await asyncio.shield(asked), avoided=avoided)
        except asyncio.CancelledError:
            self.track(asyncio.ensure_future(self._give_back(key, asked)))
            raise

    async def _give_back(self, key: Key, asked: asyncio.Future[PlacementGroup]) -> None:
        with contextlib.suppress(Exception):  # if the request failed, nothing was reserved
            await self._end(Group(key, await asked))

    async def _until_placed(
        self,
        launch: Launch,
        group: Group,
        hellos: asyncio.Future[Any],
        waiting: Callable[[str], None],
        avoided: frozenset[str],
    ) -> bool:
        """Wait until the placement group is ready, and shut down idle groups to make room for it.

        Return False if the nodes to avoid are no longer `avoided`, else True.

        Raise NoRoom if it is not ready within the launch's `placement_timeout_s`, or PlacementError if the cluster has
        become too small for it. Time during which idle groups are still uploading checkpoints does not count.
        """
        limit = launch.limits.placement_timeout_s
        begun = time.monotonic()
        deadline = begun + limit
        pause, told = 0.05, False
        while not hellos.done():
            looked_at = time.monotonic()
            await asyncio.wait({hellos}, timeout=pause)
            if self._uploading():
                deadline += time.monotonic() - looked_at
            if hellos.done() or await self.blocking(group.placement.wait, 0):
                return True
            if self.cut.ids() != avoided:
                return False
            if (idle := self._take_idle()) is not None:
                # Shielded: if this build is cancelled, the idle group must still be removed, or its resources would be lost.
                await asyncio.shield(self.end_soon(idle))
                pause = 0.05
                continue
            if not told and time.monotonic() >= begun + min(PATIENCE_S, limit):
                told = True
                reason = await self._lacking(launch)
                waiting(f"waits for {demand(launch)}" + (f": {reason}" if reason else ""))
            if time.monotonic() >= deadline:
                if reason := await self._lacking(launch):
                    raise PlacementError(
                        f"this cluster can no longer run {demand(launch)}: {reason}, for {limit:g} s now"
                    )
                raise NoRoom(f"no resources became free for {demand(launch)} within {limit:g} s")
            pause = min(0.5, pause * 1.5, max(0.01, deadline - time.monotonic()))
        return True

    async def _cut_while_starting(self, group: Group, hellos: asyncio.Future[Any]) -> str | None:
        """Wait until the processes of a placed group have started. If a node becomes unreachable first, return its id.

        A rank has its own connection to the driver only after it has started.
        """
        await asyncio.wait({hellos}, timeout=_WATCH_AFTER_S)
        addresses = {} if hellos.done() else await self.blocking(_addresses, group.placement, self._node)
        if not addresses:
            await asyncio.wait({hellos})
            return None
        watching = asyncio.ensure_future(unreachable(addresses))
        try:
            await asyncio.wait({hellos, watching}, return_when=asyncio.FIRST_COMPLETED)
            return None if hellos.done() else watching.result()
        finally:
            watching.cancel()

    # Ending

    async def _end(self, group: Group, hand_on: bool = False) -> None:
        """Kill a group's processes, remove its placement group, and wait until the processes have exited.

        The group's uploads that have outlived their segments are finished first; `Uploads` limits how long that takes.

        hand_on: whether a new group may take over the placement group.
        """
        self.uploading.add(group)
        try:
            await group.uploaded()
        finally:
            self.uploading.discard(group)
        self.ending += 1
        try:
            for actor in group.actors:
                with contextlib.suppress(Exception):
                    ray.kill(getattr(actor, "actor", actor), no_restart=True)
            if not (hand_on and await self._handed_on(group)):
                with contextlib.suppress(Exception):
                    await self._remove(group)
            await self._reap(group)
        finally:
            self.ending -= 1

    async def _remove(self, group: Group) -> None:
        """Remove a group's placement group as `removal.remove` does, but without blocking a thread."""
        if group.held_since:
            await self.blocking(remove_placement_group, group.placement)
            return
        removal = Removal(group.placement)
        while not await self.blocking(removal.step):
            await asyncio.sleep(LOOK_S)

    async def _handed_on(self, group: Group) -> bool:
        """Offer the group's placement group to new groups for `_HANDED_ON_S` seconds. Return whether one has taken it."""
        offer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._free_placements[offer] = group
        await asyncio.wait({offer}, timeout=_HANDED_ON_S)
        self._free_placements.pop(offer, None)
        return offer.cancelled()

    def _withdraw_placements(self) -> None:
        """Stop offering placement groups to new groups, so that they are removed."""
        while self._free_placements:
            offer, _ = self._free_placements.popitem()
            offer.set_result(None)

    async def _reap(self, group: Group) -> None:
        """Kill the processes of a group that are still running, on each of its nodes."""
        by_node: dict[str, list[int]] = {}
        for worker in group.workers:
            by_node.setdefault(worker.node, []).append(worker.pid)
        for node, pids in by_node.items():
            if node in self.cut:
                self._left.setdefault(node, []).extend(pids)
                continue
            try:
                left = await asyncio.wait_for(self.on_node(node, nodes.reap, pids), 60.0)
            except Exception as error:
                log.info("node %s does not respond; its ranks are gone with it: %s", node[:8], error)
                continue
            if left:
                log.warning("processes %s on node %s could not be killed", left, node[:8])

    def _reap_left(self, node: str) -> None:
        """Kill the processes that groups have left on a node that could not be reached until now."""
        pids = self._left.pop(node, [])
        self.track(asyncio.ensure_future(self._end_left(node, pids)))

    async def _end_left(self, node: str, pids: list[int]) -> None:
        with contextlib.suppress(Exception):  # if the node is lost again, Ray kills its processes
            await asyncio.wait_for(self.on_node(node, nodes.reap, pids), 60.0)


def start_error(error: ray.exceptions.RayError) -> PlacementError:
    """Return the PlacementError for workers that did not start. It is a LostAtStart if another attempt may succeed.

    Another attempt may succeed if a process or a node was lost. A `runtime_env` or a constructor that failed would fail
    again.
    """
    raised = isinstance(error, ray.exceptions.RayTaskError) or getattr(error, "actor_init_failed", False)
    if raised or isinstance(error, ray.exceptions.RuntimeEnvSetupError):
        return PlacementError(f"the workers could not be started: {_last_line(error)}")
    return LostAtStart(f"the workers were lost during start-up: {_last_line(error)}")


def _addresses(placement: PlacementGroup, but: str) -> dict[str, tuple[str, int]]:
    """Return the address of the raylet on each node of a placement group, except the node `but`. This blocks."""
    ids = set(placement_group_table(placement)["bundles_to_node_id"].values()) - {but}
    return {
        node["NodeID"]: (node["NodeManagerAddress"], node["NodeManagerPort"])
        for node in ray.nodes()
        if node["NodeID"] in ids
    }


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def ignore(done: asyncio.Future[Any]) -> None:
    """Ignore the error of a future whose result is no longer needed."""
    if not done.cancelled():
        done.exception()
