"""Define the driver host, which drives many experiments as asyncio tasks in one event loop.

On Ray, a host is an actor that reserves no CPU. For the local executor, it is a thread of the script. Ranks belong to
their host: if it dies, so do they, and the next host continues every experiment from the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tuner import __version__
from tuner.domain.events import SlotsChanged
from tuner.domain.logs import LogChunk, LogLimit
from tuner.domain.segments import CheckpointInfo, Report, Verdict
from tuner.errors import Conflict, Retryable
from tuner.experiment.logs import driver_log
from tuner.experiment.operations.usecases import next_step
from tuner.hosts.agents.groups import AgentGroups
from tuner.hosts.driven import Running
from tuner.hosts.driving import LOGS_S, Driving
from tuner.hosts.executor import Executor, GroupOptions
from tuner.hosts.executors import Executors
from tuner.hosts.helpers.proposals import Proposals
from tuner.hosts.measures.driver_log import DriverLogs
from tuner.hosts.measures.logs import LogKeeper
from tuner.hosts.measures.metrics import HostMetrics
from tuner.hosts.measures.profiles import Profiles
from tuner.hosts.measures.usage import Place, UsageKeeper
from tuner.hosts.overview import Held, overview, with_local
from tuner.hosts.owners import ATTENDED_S, owner_name
from tuner.hosts.upkeep.candidates import Candidates
from tuner.hosts.upkeep.garbage import ShortCollections
from tuner.hosts.upkeep.leftovers import sweep_objects
from tuner.hosts.upkeep.room import Room
from tuner.hosts.writer import Writer
from tuner.settings import Settings
from tuner.store import Store
from tuner.telemetry import log_format, tracing
from tuner.trials.checkpoints.objects import Stored
from tuner.trials.groups.pools.admission import Entitlement
from tuner.trials.messages.call_lines import CallLines
from tuner.trials.messages.launch import Resend
from tuner.trials.messages.report_socket import Address, ReportServer

log = logging.getLogger(__name__)

POLL_S = 0.5

_QUESTIONS = ("report", "take_logs", "checkpoint", "draw", "note", "end")
"""The methods of a host that ranks may call over a socket."""

REACHED_S = 3.0
"""Seconds without a call from the service after which a host assumes that agents cannot reach it, and lets no lease expire.

The service normally calls the host every second.
"""


class Host:
    """Drives experiments in one event loop, and writes to the database in one thread. Other processes call its public methods.

    Args:
        settings: the settings of the process that starts the host.
        name: the host's name; on Ray, the name of the actor.
        executor: where trials run. None: on Ray, and the host is an actor.
    """

    def __init__(self, settings: Settings, name: str, executor: Executor | None = None) -> None:
        self.settings, self.name = settings, name
        self.executor: Executor = executor if executor is not None else _on_ray(settings)
        self.executors = Executors(self.executor, self._group_options, self._lend)
        if settings.log_format == "json":
            log_format.configure(settings.log_level, "json")
        tracing.configure(settings.traces, "driver", __version__)
        self.store = Store.open(settings.database_url, synchronous=settings.durability)
        self.owner = owner_name()
        # The fingerprint of its code (see `tuner.hosts.ray.head.sources`), if a service has started it.
        self.sources = ""
        self.segments: dict[str, Running] = {}
        self._background: list[asyncio.Task[None]] = []
        self._poked: asyncio.Event | None = None
        self._serving = self._adopting = False
        self._attended_at = float("-inf")  # time of the last call from a service
        self._news: list[str] = []  # lines for the log of the service
        self._candidates = Candidates(self.store, self.owner, self.settings.lease_s)
        self.driving = Driving(self, self._candidates)
        self.room = Room(self.executor, self.executors, self.driving.named, self.segments)
        self._reading = True  # whether the last read of the database succeeded
        self._starting = asyncio.Lock()  # the service calls `start` again if the first call takes a long time
        self._read_failed_at = float("-inf")
        self.logs: LogKeeper | None = None
        if settings.log_bytes:
            self.logs = LogKeeper(self.store.logs, LogLimit.of(settings.log_bytes), self._on_node)
        self.driver_logs = DriverLogs(settings.home, settings.log_bytes, self.executor.own_process)
        self._lines = CallLines()
        self._report_server = ReportServer(self.report, self.take_logs, self._called, self._cut, self._lines)
        self._report_address: Address | None = None
        self.proposals = Proposals()
        self._collections = ShortCollections()
        self._metrics = HostMetrics()
        self._profiles = Profiles(self.executors)
        self.writer = Writer(self._metrics.writes)

    @property
    def node(self) -> str | None:
        """Return the id of the node that the host runs on; None without Ray."""
        return self.executor.node

    def _group_options(self) -> GroupOptions:
        return GroupOptions(
            name=self.name,
            report_address=self._report_address,
            lines=self._lines,
            reserve_after_s=self.settings.reserve_after_s,
            logs=self.logs,
            log_limit=LogLimit.of(self.settings.log_bytes) if self.logs is not None else None,
            entitlement=self._entitlement,
            quotas=_quotas(self.settings),
            preempt_after_s=self.settings.preempt_after_s,
        )

    def _lend(self) -> AgentGroups:
        return AgentGroups(self._make_slots, self._is_reachable, self.logs, self.take_logs, self._entitlement)

    def _make_slots(self, experiment: str, slots: int) -> None:
        """Let up to `slots` trials of an experiment run at once, unless the experiment's spec sets the limit."""
        driven = self.driving.named.get(experiment)
        if driven is not None and driven.core.experiment.room != slots:
            driven.loop.put(SlotsChanged(time=time.time(), slots=slots))

    def _is_reachable(self) -> bool:
        """Return whether agents can reach this host: its service has called recently, or it has never had a service."""
        return self._attended_at == float("-inf") or time.monotonic() < self._attended_at + REACHED_S

    def _entitlement(self, experiment: str) -> Entitlement:
        """Return the current priority and weight of an experiment, and its project."""
        if (driven := self.driving.named.get(experiment)) is None:
            return Entitlement()
        spec = driven.core.spec
        return Entitlement(spec.priority, spec.weight, spec.project)

    async def _on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        return await self.executor.on_node(node, function, *args)

    # -- methods for other processes ---------------------------------------------------------------------------------------

    async def start(self, serve: bool = False, adopt: bool = False, gone: Sequence[str] = ()) -> str:
        """Start renewing leases and looking for commands. Return the name under which the host holds leases.

        serve: True to also look for experiments that need a driver.
        adopt: True to also drive experiments whose script has ended. Those created through the API are always driven.
        gone: the owner names of hosts that the caller knows to be dead. Their experiments are taken over before their
            leases expire.
        """
        self._candidates.add_dead(gone)
        self._serving = self._serving or serve
        if serve:
            self._adopting = adopt
        async with self._starting:
            if not self._background:
                await self._begin_background()
        return self.owner

    async def _begin_background(self) -> None:
        await asyncio.to_thread(self.executor.clean_up)
        if self._report_address is None:
            # This machine does not have the address, for instance behind NAT: reports are sent as Ray calls.
            with contextlib.suppress(OSError):
                self._report_address = await self._report_server.open(self.executor.listen_at())
            if self.executor.own_process:
                self._collections.begin()
        self._poked = asyncio.Event()
        self._poked.set()  # look for the first time immediately
        self._background = [asyncio.create_task(self.driving.keep_leases()), asyncio.create_task(self._watch())]
        self._background.append(
            asyncio.create_task(sweep_objects(self.store, self.settings.storage, self.settings.database_url))
        )
        self._background.append(asyncio.create_task(self.room.keep()))
        if self.settings.usage_every_s > 0:
            keeper = UsageKeeper(self.executors, self.store.ranks, self._places)
            self._background.append(asyncio.create_task(keeper.keep(self.settings.usage_every_s)))

    async def drive(self, public_id: str, executor: str = "") -> str:
        """Drive this experiment until it has ended or is paused, and return its state.

        executor: a sentence on where the trials run and why, for the experiment's log.

        Raises:
            Conflict: another live driver has the experiment.
            LostLease: another driver has taken the experiment over.
        """
        await self.start()
        while True:
            record = await asyncio.to_thread(self.store.experiments.get, public_id)
            if record.id not in self.driving.tasks:
                if record.state.ended and not await self.driving.is_to_continue(record.id, record.state):
                    return str(record.state)
                self.driving.begin(record, executor)
            state = await asyncio.shield(self.driving.tasks[record.id])
            if not await self.driving.is_to_continue(record.id, state):
                return str(state)

    async def news(self) -> list[str]:
        """Return lines for the service's log about the experiments that were found since the last call.

        These are experiments that are driven here and experiments whose script has ended. If the script has ended, the line
        says how users can continue the experiment.
        """
        self._attended_at = time.monotonic()
        told, self._news = self._news, []
        return told

    async def live(self) -> None:
        """Wait forever, so that a caller that awaits the result notices immediately when this process dies."""
        await asyncio.Event().wait()

    async def poke(self) -> None:
        """Look for new commands and experiments now."""
        if self._poked is not None:
            self._poked.set()

    async def report(self, segment_id: str, reports: list[Report]) -> Verdict | Resend | None:
        """Commit reports from rank 0 of a segment, and return the verdict if the ranks wait; see `RankInbound.report`."""
        found = self.segments.get(segment_id)
        if found is None:
            return None
        self.executors.reported(segment_id)
        begun = time.perf_counter()
        what = "verdict" if reports and reports[-1].waits else "report"
        with tracing.span(what, segment=segment_id, trial=found.ref.trial, reports=len(reports)):
            answer = await found.inbound.report(found.ref, found.start_iteration, reports)
        self.executors.reported(segment_id)
        took = time.perf_counter() - begun
        self._metrics.reports.add(took)
        if reports and reports[-1].waits:
            self._metrics.verdicts.add(took)
        return answer

    async def checkpoint(self, segment_id: str, info: CheckpointInfo) -> None:
        """Commit an event: a checkpoint of a segment was written, or its upload is complete."""
        found = self.segments.get(segment_id)
        if found is not None:
            await found.inbound.checkpoint(found.ref, info)

    async def take_logs(self, segment_id: str, chunks: Sequence[LogChunk]) -> None:
        """Store chunks of a rank's log."""
        if self.logs is not None:
            await self.logs.take(segment_id, chunks)

    async def draw(self, segment_id: str, name: str, distribution: str) -> Any:
        """Return the value of a parameter that a rank's training code asks for. All ranks get the same value."""
        found = self._segment(segment_id)
        return await found.inbound.draw(found.ref, name, distribution)

    async def note(self, segment_id: str, notes: dict[str, Any]) -> None:
        """Store user attributes, which rank 0 sends, with the trial."""
        found = self._segment(segment_id)
        await found.inbound.note(found.ref, notes)

    async def end(self, segment_id: str, reason: str) -> None:
        """Stop the trial of a segment at the request of its rank 0."""
        found = self._segment(segment_id)
        await found.inbound.end(found.ref.trial, reason)

    async def object(self, segment_id: str, stored: Stored) -> list[Any]:
        """Return a reference to an object that was stored with the training code, as the only item of a list."""
        return [await self._segment(segment_id).inbound.object(stored)]

    async def _called(self, question: str, arguments: Sequence[Any]) -> Any:
        """Answer a request that a rank sent over a socket instead of calling the Ray actor."""
        if question not in _QUESTIONS:
            raise NotImplementedError(question)
        return await getattr(self, question)(*arguments)

    def _cut(self, rank: bytes, why: str, silent: bool) -> None:
        """End the segment of a rank that cannot be reached or cannot reach rank 0. See `GroupManager.cut`."""
        if (groups := self.executors.groups_in_use) is not None:
            groups.cut(rank, why, silent)

    def _segment(self, segment_id: str) -> Running:
        found = self.segments.get(segment_id)
        if found is None:
            raise Conflict(f"{segment_id} has ended")
        return found

    async def agent(self, question: str, experiment: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request from an agent; see `AgentGroups.answer`."""
        begun = time.perf_counter()
        with tracing.span("agent", question=question, experiment=experiment):
            answer = await self.executors.agents.answer(question, experiment, arguments)
        if question == "report":
            self._metrics.reports.add(time.perf_counter() - begun)
        return answer

    async def look(self, segment_id: str) -> dict[str, dict[str, Any]]:
        """Return the Python stack ("stack") and the resource usage (`process_stats.usage`) of each rank of a segment."""
        return await self.executors.look(segment_id)

    async def profile(self, segment_id: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Profile a rank of a segment. Return {"found": the profile, or None if the segment does not run here}.

        An error becomes {"error": ...}, see `raised`.

        arguments: "id", "rank", and the fields of a `ProfileRequest`; or only "stop", the id of a profile to abort because
            nobody is waiting for it any more.
        """
        return await self._profiles.profile(segment_id, arguments)

    async def driver_log(self, experiment: str, tail: int, search: str | None = None) -> dict[str, Any]:
        """Return {"found": the log of this host about an experiment, or None if this host's machine has none}."""
        found = await asyncio.to_thread(driver_log, self.settings.home, experiment, tail, search)
        return {"found": None if found is None else asdict(found)}

    async def cluster(self) -> dict[str, Any]:
        """Return a description of the cluster as JSON; see `tuner.hosts.overview`."""
        nodes, available = await self.executor.nodes()
        joining = await self.executor.joining(nodes)
        groups, local = self.executors.groups, self.executors.local
        held: Sequence[Held] = groups.held()
        waiting, pools = groups.waiting(), [groups]
        if local is not None:
            executor, beside = local
            [machine], _ = await executor.nodes()
            nodes, available, held = with_local(nodes, available, held, machine, beside.held())
            waiting, pools = [*waiting, *beside.waiting()], [groups, beside]
        agents = self.executors.agents_in_use
        if agents is not None:
            held = [*held, *agents.held()]
            waiting = [*waiting, *agents.waiting()]
        entitlements = {name: self._entitlement(name) for name in self.driving.named}
        return overview(
            nodes,
            available,
            held,
            waiting,
            entitlements,
            {name: max(pool.share(name) for pool in pools) for name in entitlements},
            joining,
            agents.agents() if agents is not None else (),
            began=time.time() - time.monotonic(),
        )

    def _places(self) -> dict[str, Place]:
        return {name: Place(running.experiment, *running.ref) for name, running in self.segments.items()}

    async def status(self) -> dict[str, Any]:
        """Return what this host is doing, for readiness checks and benchmarks."""
        return {
            "owner": self.owner,
            "sources": self.sources,
            "attended": time.monotonic() < self._attended_at + ATTENDED_S,
            "pid": os.getpid(),
            "experiments": [d.record.public_id for d in self.driving.driven.values()],
            "segments": len(self.segments),
            "groups": self.executors.stats(),
        }

    async def metrics(self) -> dict[str, Any]:
        """Return this host's part of `GET /metrics`.

        Call this regularly: each call adds the GPU seconds and rank seconds since the previous call to the totals.
        """
        training = self.executors.training()
        running = [self.segments[name] for name in training if name in self.segments]
        found = [
            (
                self.driving.driven[one.experiment].record.spec.scaling,
                self.driving.driven[one.experiment].workers(one.ref),
            )
            for one in running
            if one.experiment in self.driving.driven
        ]
        gpus = sum(workers * scaling.bundle().get("GPU", 0.0) for scaling, workers in found)
        self._metrics.count_use(gpus, sum(workers for _, workers in found), time.monotonic())
        return {
            **self._metrics.shown(),
            "experiments": len(self.driving.driven),
            "groups": self.executors.stats(),
            "writer_queue": self.writer.queue,
        }

    async def rest(self, keep_groups: bool) -> None:
        """Release the database and idle worker groups until the next `start`. Do nothing if any experiment is being driven.

        keep_groups: True to keep idle groups without GPUs until their idle timeout.
        """
        async with self._starting:  # a start that is under way would continue with a closed database
            if self.driving.tasks:
                return
            await self._end_tasks(self._background)
            await self.executors.rest(keep_groups)
            if self.logs is not None:
                await self.logs.flush(timeout=LOGS_S)
            await self.proposals.close()
            self.store.close()

    async def close(self) -> None:
        """Stop everything that the host runs. Experiments keep their state, and another host can take them over immediately."""
        async with self._starting:
            await self._end_tasks([*self._background, *self.driving.tasks.values()])
            await self.executors.close()
            if self.logs is not None:
                await self.logs.close(timeout=LOGS_S)
            await self.proposals.close()
            await self._report_server.close()
            self._collections.end()
            self.writer.close()
            self.store.close()

    async def _end_tasks(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._background.clear()

    # -- background ------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        assert self._poked is not None
        while True:
            # `wait_for` is not used, because in Python 3.11 it ignores a cancellation that comes together with a poke.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._poked.wait()
            self._poked.clear()
            try:
                await self.driving.take_commands()
                if self._serving:
                    await self._take_experiments()
                self._reading = True
            except Exception as error:
                if self._reading:  # log an outage only once, since it may last
                    log.warning("the database could not be read: %s", error, exc_info=not isinstance(error, Retryable))
                self._reading = False
                self._read_failed_at = time.monotonic()

    async def _take_experiments(self) -> None:
        """Start to drive the experiments that have no live driver and that this host should drive."""
        now = time.time()
        # If reads or writes have failed, leases of live holders may have expired. The holders need a moment to renew them.
        outage = time.monotonic() < max(self._read_failed_at, self.writer.failed_at) + self.settings.lease_s / 2
        found = await asyncio.to_thread(
            self._candidates.find, now, busy=self.driving.busy(), outage=outage, adopt=self._adopting
        )
        for record, why, adopted in found.to_drive:
            if record.id in self.driving.tasks or await self.driving.leaves(record):
                continue
            if adopted:
                await self.writer.write(self.store.drivers.adopt, record.id)
            self._news.append(f"{record.public_id} ({record.name}) is driven here: {why}")
            self.driving.begin(record)
        self._news += [next_step(record) for record in found.to_offer]


def _quotas(settings: Settings) -> dict[str, dict[str, float]]:
    """Return the quotas of the settings by project and resource."""
    found: dict[str, dict[str, float]] = {}
    for quota in settings.quotas:
        found.setdefault(quota.project, {})[quota.resource] = quota.amount
    return found


def _on_ray(settings: Settings) -> Executor:
    from tuner.hosts.ray_executor import RayExecutor

    return RayExecutor(settings.node_types)
