"""Find a process for each segment on this machine, without Ray.

The process is a warm one that has run an earlier trial, one that was started in advance, or a new one. This module replaces
`tuner.trials.groups.pools.pool` for the local executor. Here, a group is a single process. A segment waits if it needs more
CPUs than are free, but nothing keeps a process from using more CPUs than it requested.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.domain.experiment import Scaling, Spec
from tuner.domain.logs import LogLimit
from tuner.errors import PlacementError
from tuner.trials.groups.pools.admission import Entitlement, HeldGroup, WaitingGroup, ordinary
from tuner.trials.groups.pools.group import Group, Key, demand, group_key
from tuner.trials.groups.pools.local_ranks import LocalRank, RankServer
from tuner.trials.messages.launch import Launch
from tuner.trials.messages.lost import LostAtStart, NoRoom, RankLost
from tuner.trials.messages.protocol import RankAssignment, WorkerMetadata
from tuner.trials.messages.report_socket import Address
from tuner.trials.runtime.measures.process_stats import memory_used
from tuner.usercode.pickling import dumps

log = logging.getLogger(__name__)

_PATIENCE_S = 0.5  # seconds after which a segment without a process is reported as waiting
_AGAIN_S = 1.0  # seconds from one attempt to start a process to the next
_HELPERS = 2  # the number of processes that fit models and run slow searchers
MEMORY = 0.95
"""The newest trial is killed if more than this fraction of the machine's or the container's memory is in use, as in Ray."""
_LOOK_S = 0.25  # seconds between two checks of memory usage
_EPSILON = 1e-9


@dataclass(slots=True, eq=False)
class _WaitingSegment:
    launch: Launch
    key: Key
    since: float
    turn: asyncio.Future[Group | None]  # resolves to a warm group, or None if the segment may start a process

    @property
    def cpus(self) -> float:
        return self.launch.scaling.bundle().get("CPU", 0.0)


@dataclass(slots=True)
class _Idle:
    group: Group
    expiry: asyncio.TimerHandle


@dataclass(slots=True)
class _Helper:
    """A process in which the driver runs functions."""

    rank: LocalRank
    busy: bool = field(default=False)


class LocalPool:
    """Manages groups on this machine, each of one process. All calls must come from the same event loop.

    Args:
        cpus: the number of CPUs that all groups together can hold.
        address: the address at which the driver listens for reports and all other requests from ranks.
        server: the server that forks processes, and may have forked some in advance. If it has exited, a new server is
            started.
        log_limit: how much of each log the ranks send to the driver; None if they send nothing.
        idle_timeout_s: how long a warm process is kept for another trial.
        entitlement: a function that returns an experiment's priority and weight.
        memory: a function that returns the fraction of memory that is in use.
    """

    def __init__(
        self,
        cpus: float,
        address: Address,
        server: RankServer,
        *,
        log_limit: LogLimit | None = None,
        idle_timeout_s: float = 60.0,
        entitlement: Callable[[str], Entitlement] = ordinary,
        memory: Callable[[], float] = memory_used,
    ) -> None:
        self._memory = memory
        self._watching: asyncio.Task[None] | None = None
        self.cpus, self._free = cpus, cpus
        self._address, self._log_limit = address, log_limit
        self._idle_timeout_s, self._entitlement = idle_timeout_s, entitlement
        self._server = server
        self._waiting: list[_WaitingSegment] = []
        self._held: dict[Group, Launch] = {}
        self._idle: list[_Idle] = []  # the longest idle first
        self._fresh: list[LocalRank] = []  # processes that have run nothing yet
        self._helpers: list[_Helper] = []
        self._helper_free = asyncio.Condition()
        self._background: set[asyncio.Future[Any]] = set()
        self._closed = False
        for rank in server.adopt():
            self._fresh.append(self._begun(rank))

    @property
    def idle(self) -> int:
        """Return how many warm groups are kept."""
        return len(self._idle)

    # -- a group for a segment

    async def acquire(self, launch: Launch, waiting: Callable[[str], None]) -> tuple[Group, bool]:
        """Wait for a group for the launch. Return it, and whether it is warm. The call can be cancelled.

        waiting: called with the reason, in words, if the launch has to wait.

        Raises:
            NoRoom: no process could be started in time, because there were too many processes or open files.
            LostAtStart: the process died while it was being started.
            PlacementError: this machine can never run such a trial.
        """
        if reason := too_large(launch.scaling, self.cpus):
            raise PlacementError(f"this machine can never run {demand(launch)}: {reason}")
        segment = _WaitingSegment(
            launch, group_key(launch), time.monotonic(), asyncio.get_running_loop().create_future()
        )
        self._waiting.append(segment)
        self._dispatch()
        taken = False
        try:
            await asyncio.wait({segment.turn}, timeout=_PATIENCE_S)
            if not segment.turn.done():
                waiting(f"waits for {segment.cpus:g} CPU: {self._free:g} of {self.cpus:g} are free")
            group = await segment.turn
            warm = group is not None
            if group is None:
                group = await self._start(segment, waiting)
            group.experiment, group.held_since = launch.experiment_id, time.monotonic()
            self._held[group] = launch
            taken = True
            if self._watching is None or self._watching.done():
                self._watching = asyncio.create_task(self._watch_memory())
            return group, warm
        finally:
            if not taken:
                self._give_up(segment)

    def _give_up(self, segment: _WaitingSegment) -> None:
        if segment in self._waiting:
            self._waiting.remove(segment)
        else:
            self._free += segment.cpus
            if segment.turn.done() and not segment.turn.cancelled() and (group := segment.turn.result()) is not None:
                self._keep(group)
        self._dispatch()  # a smaller segment may have waited behind this one

    def _dispatch(self) -> None:
        """Give each segment whose turn it is a warm group, or permission to start a process."""
        while self._waiting and not self._closed:
            segment = min(self._waiting, key=self._rank_of)
            if segment.cpus > self._free + _EPSILON:
                return
            self._waiting.remove(segment)
            if segment.turn.cancelled():
                continue
            self._free -= segment.cpus
            segment.turn.set_result(self._warm(segment))

    def _rank_of(self, segment: _WaitingSegment) -> tuple[float, float, float]:
        """Return a segment's sort key: its priority, its experiment's share, and its arrival time. The smallest key is next."""
        experiment = segment.launch.experiment_id
        entitlement = self._entitlement(experiment)
        held = sum(_cpus(launch) for launch in self._held.values() if launch.experiment_id == experiment)
        return -entitlement.priority, held / entitlement.weight, segment.since

    def _warm(self, segment: _WaitingSegment) -> Group | None:
        if segment.launch.scaling.reuse_workers:
            for idle in self._idle[::-1]:
                if idle.group.actors[0].ended.done():  # the process was killed while idle
                    self._dispose(self._no_longer_idle(idle))
                elif idle.group.key == segment.key:
                    return self._no_longer_idle(idle)
        return None

    async def _start(self, segment: _WaitingSegment, waiting: Callable[[str], None]) -> Group:
        for idle in self._idle[: max(0, len(self._idle) + len(self._held) + 1 - max(1, int(self.cpus)))]:
            self._dispose(self._no_longer_idle(idle))  # an idle process that this segment cannot use still holds memory
        rank, worker = await self._started(segment, waiting)
        assignment = RankAssignment(
            rank=0,
            world_size=1,
            local_rank=0,
            local_world_size=1,
            node_rank=0,
            nodes=1,
            gpus=(),
            devices=(),
            channel_address=None,
            token=b"",
            backend="gloo" if segment.launch.scaling.backend == "auto" else segment.launch.scaling.backend,
        )
        return Group(segment.key, None, actors=[rank], workers=[worker], assignments=[assignment])

    async def _started(
        self, segment: _WaitingSegment, waiting: Callable[[str], None]
    ) -> tuple[LocalRank, WorkerMetadata]:
        """Return a process that runs, and what it says of itself.

        While there are too many processes, open files or requests to start one, try again for `limits.placement_timeout_s`.
        """
        timeout_s, said = segment.launch.limits.placement_timeout_s, ""
        until = time.monotonic() + timeout_s
        while True:
            rank: LocalRank | None = None
            try:
                rank = self._process()
                return rank, await rank.call("hello", (False,))
            except (OSError, RankLost) as error:
                if isinstance(error, RankLost) and not (rank is not None and rank.refused):
                    raise LostAtStart(f"the worker process was lost during start-up: {error}") from error
                why = f"no worker process can be started: {error}"
                if time.monotonic() >= until:
                    raise NoRoom(f"{why}; this was tried for {timeout_s:g} s") from error
            except BaseException:
                if rank is not None:
                    rank.kill()
                raise
            if why != said:
                waiting(said := why)
            await asyncio.sleep(_AGAIN_S)

    def _process(self) -> LocalRank:
        """Return a process that has run nothing yet.

        Raise RankLost if the server has just exited, or OSError if this process has too many open files, or if the server has
        too many requests to read.
        """
        while self._fresh:
            rank = self._fresh.pop()
            if not rank.ended.done():
                return rank
        if self._server.over:
            self._server.kill()
            self._server = RankServer(gpus=self._server.gpus)
            self._server.adopt()
        return self._begun(self._server.fork())

    def _begun(self, rank: LocalRank) -> LocalRank:
        rank.begin(self._address, self._log_limit)
        return rank

    async def _watch_memory(self) -> None:
        """Kill the newest trial when memory runs out, before the kernel picks a process to kill. Return when no trial runs."""
        while self._held and not self._closed:
            await asyncio.sleep(_LOOK_S)
            if self._held and self._memory() >= MEMORY:
                rank = list(self._held)[-1].actors[0]
                rank.kill("memory")
                await asyncio.shield(rank.ended)

    def release(self, group: Group, reusable: bool) -> asyncio.Future[None] | None:
        """Keep the group for another segment if it is reusable, else shut it down.

        Return None if the group is kept, else a future that is done once its process has exited.
        """
        launch = self._held.pop(group)
        if not reusable or self._closed:
            ended = self._dispose(group)
            ended.add_done_callback(lambda done: self._freed(_cpus(launch)))
            if not self._closed and not self._fresh:
                with contextlib.suppress(OSError, RankLost):
                    self._fresh.append(self._process())  # so that the next trial does not wait for a new process
            return ended
        group.actors[0].reset.remote()
        self._keep(group)
        self._freed(_cpus(launch))
        return None

    def _freed(self, cpus: float) -> None:
        self._free += cpus
        self._dispatch()

    def _keep(self, group: Group) -> None:
        timer = asyncio.get_running_loop().call_later(self._idle_timeout_s, self._expire, group)
        self._idle.append(_Idle(group, timer))

    def _expire(self, group: Group) -> None:
        for idle in self._idle:
            if idle.group is group:
                self._dispose(self._no_longer_idle(idle))
                return

    def _no_longer_idle(self, idle: _Idle) -> Group:
        self._idle.remove(idle)
        idle.expiry.cancel()
        return idle.group

    def _dispose(self, group: Group) -> asyncio.Future[None]:
        ending = asyncio.ensure_future(_end(group))
        self._background.add(ending)
        ending.add_done_callback(self._background.discard)
        return ending

    # -- functions that the driver runs in helper processes

    async def offload(self, sys_path: Sequence[str], function: Callable[..., Any], *args: Any) -> Any:
        """Return the value of a pure function, computed in a helper process. If that process dies, retry in another."""
        work = list(sys_path), dumps((function, args))
        for last in (False, False, True):
            helper = await self._helper()
            try:
                return await helper.rank.call("run", work)
            except RankLost:
                if last:
                    raise
            except asyncio.CancelledError:
                helper.rank.kill()
                raise
            finally:
                helper.busy = False
                async with self._helper_free:
                    self._helper_free.notify()
        raise AssertionError("not reached")

    async def _helper(self) -> _Helper:
        async with self._helper_free:
            while True:
                self._helpers = [helper for helper in self._helpers if not helper.rank.ended.done()]
                free = next((helper for helper in self._helpers if not helper.busy), None)
                if free is None and len(self._helpers) < _HELPERS:
                    free = _Helper(self._process())
                    self._helpers.append(free)
                if free is not None:
                    free.busy = True
                    return free
                await self._helper_free.wait()

    # -- for the manager

    async def on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function, such as those in the module `nodes`, on this machine, and return its value."""
        return await asyncio.to_thread(function, *args)

    def trim(self, scaling: Scaling, count: int | None) -> None:
        """Do nothing: the local pool keeps so few idle processes that none has to be stopped early."""

    def granted(self, experiment: str, bundle: Mapping[str, float]) -> int | None:
        """Return None, because trials of this pool have one worker."""
        return None

    def cut(self, rank: bytes, silent: bool) -> None:
        """Do nothing, because all processes are on this machine."""

    def held(self) -> list[HeldGroup]:
        """Return the groups that hold resources, oldest first."""
        return [
            HeldGroup(
                experiment=launch.experiment_id,
                trial=launch.trial_id,
                segment_id=launch.segment_id,
                nodes=tuple(worker.node for worker in group.workers),
                bundle=launch.scaling.bundle(),
                since=group.held_since,
            )
            for group, launch in self._held.items()
        ]

    def waiting(self) -> list[WaitingGroup]:
        """Return the waiting segments, in the order of the queue."""
        return [
            WaitingGroup(
                experiment=segment.launch.experiment_id,
                trial=segment.launch.trial_id,
                segment_id=segment.launch.segment_id,
                workers=1,
                bundle=segment.launch.scaling.bundle(),
                since=segment.since,
                priority=self._entitlement(segment.launch.experiment_id).priority,
                reserved=False,
                reason=f"waits for {segment.cpus:g} CPU",
            )
            for segment in sorted(self._waiting, key=self._rank_of)
        ]

    def share(self, experiment: str) -> float:
        """Return the fraction of the CPUs that the experiment holds."""
        held = sum(_cpus(launch) for launch in self._held.values() if launch.experiment_id == experiment)
        return held / self.cpus if self.cpus else 0.0

    def make_room(self, may_end: Callable[[str], bool]) -> list[tuple[str, str, int]]:
        """Return an empty list: without Ray, no segment has to make room for another experiment."""
        return []

    async def leaving(self) -> Mapping[str, str]:
        """Return an empty dict: without Ray, nobody announces that this machine will be taken away."""
        return {}

    def forget(self, experiment: str) -> None:
        """Do nothing: the local pool does not remember the past usage of experiments."""

    async def rest(self, keep: bool) -> None:
        """Stop the helper processes and, unless `keep` is true, the idle processes. Wait until they have exited."""
        helpers, self._helpers = self._helpers, []
        ending: list[asyncio.Future[None]] = [asyncio.ensure_future(_gone([one.rank for one in helpers]))]
        if not keep:
            ending += [self._dispose(self._no_longer_idle(idle)) for idle in list(self._idle)]
        await asyncio.gather(*ending)

    async def settle(self) -> None:
        """Wait until every group that is shutting down has exited."""
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)

    async def close(self) -> None:
        """Stop all processes, and wait until they have exited."""
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
        await self.rest(keep=False)
        await _gone(self._fresh)
        await self.settle()
        await asyncio.to_thread(self._server.kill)


async def _end(group: Group) -> None:
    await group.uploaded()
    await _gone(group.actors)


async def _gone(ranks: Sequence[LocalRank]) -> None:
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        await asyncio.shield(rank.ended)


def _cpus(launch: Launch) -> float:
    return launch.scaling.bundle().get("CPU", 0.0)


def unfit(spec: Spec, cpus: float) -> str | None:
    """Return why the local executor can never run an experiment's trials; None if it can."""
    if not spec.runtime_env:
        return too_large(spec.scaling, cpus)
    if set(spec.runtime_env) == {"py_modules"}:
        # A service adds py_modules for a bundle, so the user may not have set them.
        return "modules are sent with it, as a bundle or as py_modules, which needs Ray"
    return "there is a runtime_env, which needs Ray"


def too_large(scaling: Scaling, cpus: float) -> str | None:
    """Return why the local executor can never run a trial with this scaling; None if it can."""
    bundle: Mapping[str, float] = scaling.bundle()
    if scaling.elastic:
        return f"without Ray, a trial is a single process, but max_workers is {scaling.max_workers}"
    if scaling.num_workers > 1:
        return f"without Ray, a trial is a single process, but num_workers is {scaling.num_workers}"
    if others := [name for name in bundle if name != "CPU"]:
        return f"without Ray, trials get only CPUs, but {others[0]} is requested"
    if bundle.get("CPU", 0.0) > cpus + _EPSILON:
        return f"{bundle['CPU']:g} CPU are requested, but this machine has {cpus:g}"
    return None
