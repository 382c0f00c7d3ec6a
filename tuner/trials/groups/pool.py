"""Find the worker group for a segment: a warm one if there is one, else a new one as soon as there is room.

Groups wait first come, first served. A group that becomes free goes to the oldest waiter if it fits, and is returned
to the cluster if the oldest waiter needs another kind. Ray places whatever fits, so small groups could take each bit
of free room and a large group would wait for ever. A group that has waited for long therefore gets a reservation:
groups that were asked for later and need what it lacks wait until it has been placed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
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
from tuner.trials.groups.placement import assign_ranks, lacking
from tuner.trials.messages.launch import Launch, Placed
from tuner.trials.messages.protocol import RankAssignment, WorkerMetadata
from tuner.trials.messages.report_socket import Address
from tuner.trials.messages.tasks import on_node
from tuner.trials.runtime.worker import Rank

log = logging.getLogger(__name__)

Key = tuple[Any, ...]

RESERVE_AFTER_S = 30.0
"""How long a group waits for room before groups that ask later must wait for it."""
_LOOK_S = 0.5  # how often they check whether they still have to wait for it
_PATIENCE_S = 0.5  # a placement that takes no longer is not reported as waiting


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
    group: asyncio.Future[Group]
    launch: Launch
    since: float
    placed: asyncio.Event | None = None  # set once its placement group is ready
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # set once it no longer waits

    @property
    def waits(self) -> bool:
        return not (self.gone.is_set() or self.group.done() or (self.placed is not None and self.placed.is_set()))


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
    ) -> None:
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
        self._held: set[Key] = set()  # the kinds of groups that have been placed before: (workers, bundle, strategy)
        self._waiters: deque[_Waiter] = deque()
        self._background: set[asyncio.Future[Any]] = set()
        self._spares: dict[
            asyncio.Future[Group], tuple[Key, asyncio.Event]
        ] = {}  # groups being formed that nobody waits for
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="tuner-pool")
        self._closed = False

    @property
    def idle(self) -> int:
        return len(self._idle)

    async def acquire(self, launch: Launch, waiting: Callable[[str], None]) -> tuple[Group, bool]:
        """Return a group of the kind that the launch needs, and whether it is warm. May be cancelled.

        Raises:
            NoRoom: there was no room within `limits.placement_timeout_s`.
            LostAtStart: there was room, but the workers died.
            PlacementError: the cluster can never hold the group, or its workers cannot be started.
        """
        key, since = group_key(launch), time.monotonic()
        await self._after_older(launch, since, waiting)
        if launch.scaling.reuse_workers:
            for group in reversed(self._idle):
                if group.key == key:
                    return self._no_longer_idle(group), True
        known = key[:3] in self._held  # if so, a missing node may come back
        if not known and (reason := await self._lacking(launch)):
            raise PlacementError(f"this cluster can never run {demand(launch)}: {reason}")
        waiter = _Waiter(key, asyncio.get_running_loop().create_future(), launch, since)
        self._waiters.append(waiter)
        forming, placed = self._claim(key) or self._begin(launch, key, waiting)
        waiter.placed = placed
        taken = False
        try:
            await asyncio.wait({forming, waiter.group}, return_when=asyncio.FIRST_COMPLETED)
            taken = True
            return (waiter.group.result(), True) if waiter.group.done() else (forming.result(), False)
        finally:
            self._waiters.remove(waiter)
            waiter.gone.set()
            if not forming.done():
                if taken and placed.is_set() and launch.scaling.reuse_workers and not self._closed:
                    self._spare(forming, placed, key)
                else:
                    forming.cancel()  # it ends what it has started
                    self._track(forming)
            elif (not taken or waiter.group.done()) and not forming.cancelled() and forming.exception() is None:
                self.release(forming.result(), launch.scaling.reuse_workers)
            if waiter.group.done() and not taken:
                self.release(waiter.group.result(), launch.scaling.reuse_workers)

    async def _after_older(self, launch: Launch, since: float, waiting: Callable[[str], None]) -> None:
        """Wait while an older group that has waited for long needs something that this group would take."""
        told = False
        while (older := self._reserving(since)) is not None and await self._would_take(launch, older):
            if not told:
                told = True
                waiting(f"waits until {demand(older.launch)}, asked for earlier, has found room")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(older.gone.wait(), _LOOK_S)

    def _reserving(self, since: float) -> _Waiter | None:
        """Return the oldest group asked for before `since` that has waited long enough for a reservation."""
        if self._autoscaling or self._closed:
            return None
        until = min(since, time.monotonic() - self._reserve_after_s)
        return next((waiter for waiter in self._waiters if waiter.waits and waiter.since < until), None)

    async def _would_take(self, launch: Launch, older: _Waiter) -> bool:
        """Return whether this launch needs anything that keeps the older group waiting.

        It does not if the older group cannot be placed at all.
        """
        if await self._lacking(older.launch):
            return False
        free = await self.blocking(ray.available_resources)
        scaling = older.launch.scaling
        wanted = {name: amount * scaling.num_workers for name, amount in scaling.bundle().items() if amount}
        scarce = {name for name, amount in wanted.items() if free.get(name, 0.0) + 1e-9 < amount}
        asked = {name for name, amount in launch.scaling.bundle().items() if amount}
        if not scarce:  # there is enough of everything, but not on the right nodes
            scarce = set(wanted)
        return bool(asked & scarce)

    def _begin(
        self, launch: Launch, key: Key, waiting: Callable[[str], None]
    ) -> tuple[asyncio.Future[Group], asyncio.Event]:
        placed = asyncio.Event()
        return asyncio.ensure_future(self._form(launch, key, waiting, placed)), placed

    def _spare(self, forming: asyncio.Future[Group], placed: asyncio.Event, key: Key) -> None:
        """Keep a group that is being formed, and has its room, for the next trial: a warm group was faster."""

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
        """Give the group to a waiter, keep it for a while, or end it.

        If it is being ended, return a future that is done once its processes are gone; else None.
        """
        if not reusable or self._closed:
            return self._spawn(self._dispose(group))
        if group.runs:
            for actor in group.actors:
                actor.reset.remote()
        for waiter in self._waiters:
            if waiter.group.done():
                continue
            if waiter.key == group.key:
                waiter.group.set_result(group)
                return None
            return self._spawn(self._dispose(group))
        self._idle.append(group)
        group.expiry = asyncio.get_running_loop().call_later(self._idle_timeout_s, self._expire, group)
        return None

    async def rest(self, keep: bool) -> None:
        """End the idle groups, and return once they are gone. With `keep` end only those that have GPUs."""
        for forming in self._spares:
            forming.cancel()
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


def group_key(launch: Launch) -> Key:
    """Return what two launches must have in common to run in the same processes."""
    code = launch.code
    return (
        *_kind(launch.scaling),
        code.entrypoint,  # functions by value come from one script: after a change it can use the same processes
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

    If a runtime_env or a constructor failed, it would fail again. A process or a node that was lost need not be lost
    again.
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
