"""Define the driver host, which drives many experiments as asyncio tasks of one event loop.

On Ray, a host is an actor that reserves no CPU. For the local executor, it is a thread of the script. Ranks belong to
their host: if it dies, they end, and the next host continues every experiment from the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, TypeVar

from tuner import __version__, log_format, tracing
from tuner.domain.batch import Batch
from tuner.domain.events import SlotsChanged
from tuner.domain.logs import LogChunk, LogLimit
from tuner.domain.segments import CheckpointInfo, Report, Verdict
from tuner.domain.states import ExperimentState
from tuner.driver.commands import as_event
from tuner.driver.hosts.agents.groups import AgentGroups
from tuner.driver.hosts.driven import Driven, Running
from tuner.driver.hosts.executor import Executor, GroupOptions
from tuner.driver.hosts.executors import Executors
from tuner.driver.hosts.helpers.proposals import Proposals
from tuner.driver.hosts.measures.driver_log import DriverLogs
from tuner.driver.hosts.measures.figures import Figures
from tuner.driver.hosts.measures.logs import LogKeeper
from tuner.driver.hosts.measures.profiles import Profiles
from tuner.driver.hosts.measures.usage import Place, UsageKeeper
from tuner.driver.hosts.overview import overview
from tuner.driver.hosts.owners import owner_name
from tuner.driver.hosts.upkeep.candidates import Candidates
from tuner.driver.hosts.upkeep.garbage import ShortCollections
from tuner.driver.hosts.upkeep.leftovers import ended_uploads, find_logs, sweep_checkpoints, sweep_objects
from tuner.driver.hosts.upkeep.room import Room
from tuner.errors import Conflict, LostLease, Retryable, StoreError, TunerError
from tuner.experiment.logs import driver_log
from tuner.experiment.operations.usecases import how_to_go_on
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.records import CommandRecord, ExperimentRecord
from tuner.trials.checkpoints.objects import Stored
from tuner.trials.groups.pools.admission import Standing
from tuner.trials.messages.launch import Resend
from tuner.trials.messages.report_socket import Address, ReportServer

log = logging.getLogger(__name__)

T = TypeVar("T")

POLL_S = 0.5
AGAIN_S = 5.0
"""Seconds to wait, after an experiment's driver has crashed, before the experiment is driven again."""
LOGS_S = 10.0
"""Seconds that the host waits at the end of an experiment for the logs of its ranks. Later logs are still written."""
CRASHES, PROGRESS = 3, 20
"""An experiment fails if its driver crashes CRASHES times, with at most PROGRESS log entries between two crashes."""

_QUESTIONS = ("report", "take_logs", "checkpoint", "draw", "note", "end")
"""The methods of a host that ranks may call over a socket."""
ATTENDED_S = 10.0
"""Seconds without a call from its own service after which a host may be ended by a service of an older version."""

REACHED_S = 3.0
"""Seconds without a call from the service after which a host assumes that agents cannot reach it, and lets no lease expire.

The service normally calls the host every second.
"""

CommandKey = tuple[int, int, float]
"""The id, the experiment and the time of a command. The id alone may occur twice after a backup was restored."""


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
        self.segments: dict[str, Running] = {}
        self.driven: dict[int, Driven] = {}
        self._named: dict[str, Driven] = {}  # the values of `driven`, by public id
        self.tasks: dict[int, asyncio.Task[ExperimentState]] = {}
        self._claimed: dict[int, int] = {}  # experiment -> our epoch, from the claim to the release
        self._seen: set[CommandKey] = set()
        self._crashes: dict[str, tuple[int, int]] = {}  # public id -> (event_seq reached, crashes since)
        self._not_before: dict[int, float] = {}
        self._background: list[asyncio.Task[None]] = []
        self._poked: asyncio.Event | None = None
        self._serving = self._adopting = False
        self._attended_at = float("-inf")  # time of the last call of a service
        self._news: list[str] = []  # lines for the log of the service
        self.room = Room(self.executor, self.executors, self._named, self.segments)
        self._candidates = Candidates(self.store, self.owner)
        self._reading = True  # whether the last read of the database succeeded
        self._starting = asyncio.Lock()  # the service calls `start` again if the first call takes long
        self._failed_at = float("-inf")  # when a read or a write last failed because the database was unreachable
        self.logs: LogKeeper | None = None
        if settings.log_bytes:
            self.logs = LogKeeper(self.store.logs, LogLimit.of(settings.log_bytes), self._on_node)
        self.driver_logs = DriverLogs(settings.home, settings.log_bytes, self.executor.own_process)
        self._report_server = ReportServer(self.report, self.take_logs, self._called, self._cut)
        self._report_address: Address | None = None
        self.proposals = Proposals()
        self._collections = ShortCollections()
        self._figures = Figures()
        self._profiles = Profiles(self.executors)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tuner-writer")

    async def write(self, function: Callable[..., T], *args: Any) -> T:
        """Write to the database in the writer thread, so that a slow or locked database never blocks the event loop.

        Writes are done in the order of the calls. A caller that is cancelled still waits for a write that has begun, so that
        the caller's next write, such as the release of a lease, comes later.

        The time of the latest temporary error is recorded. It may be the only sign of an outage, because reads still work if
        the disk is full or the server has become a standby.
        """
        context = contextvars.copy_context()  # so that the thread's log lines name the experiment, too
        done = asyncio.get_running_loop().run_in_executor(self._writer, context.run, self._timed, function, *args)
        try:
            return await asyncio.shield(done)
        except Retryable:
            self._failed_at = time.monotonic()
            raise
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await asyncio.wait({done})
            raise

    def _timed(self, function: Callable[..., T], *args: Any) -> T:
        begun = time.perf_counter()
        try:
            return function(*args)
        finally:
            self._figures.writes.add(time.perf_counter() - begun)

    @property
    def node(self) -> str | None:
        """Return the id of the node that the host runs on; None without Ray."""
        return self.executor.node

    def _group_options(self) -> GroupOptions:
        return GroupOptions(
            name=self.name,
            report_address=self._report_address,
            reserve_after_s=self.settings.reserve_after_s,
            logs=self.logs,
            log_limit=LogLimit.of(self.settings.log_bytes) if self.logs is not None else None,
            standing=self._standing,
            quotas=_quotas(self.settings),
            preempt_after_s=self.settings.preempt_after_s,
        )

    def _lend(self) -> AgentGroups:
        return AgentGroups(self._make_slots, self._is_reachable, self.logs, self.take_logs)

    def _make_slots(self, experiment: str, slots: int) -> None:
        """Let up to `slots` trials of an experiment run at once, unless the experiment's spec sets the limit."""
        driven = self._named.get(experiment)
        if driven is not None and driven.core.experiment.room != slots:
            driven.loop.put(SlotsChanged(time=time.time(), slots=slots))

    def _is_reachable(self) -> bool:
        """Return whether agents can reach this host: its service has called recently, or it has never had a service."""
        return self._attended_at == float("-inf") or time.monotonic() < self._attended_at + REACHED_S

    def _standing(self, experiment: str) -> Standing:
        """Return the current priority and weight of an experiment, and its project."""
        if (driven := self._named.get(experiment)) is None:
            return Standing()
        spec = driven.core.spec
        return Standing(spec.priority, spec.weight, spec.project)

    async def _on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        return await self.executor.on_node(node, function, *args)

    # -- methods for other processes ---------------------------------------------------------------------------------------

    async def start(self, serve: bool = False, adopt: bool = False, gone: Sequence[str] = ()) -> str:
        """Begin to renew leases and to look for commands. Return the name under which the host holds leases.

        serve: True to also look for experiments that need a driver.
        adopt: True to also drive experiments whose script has ended. Those created over the API are always driven.
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
            with contextlib.suppress(
                OSError
            ):  # this machine does not have the address, for instance behind NAT: reports are sent as Ray calls
                self._report_address = await self._report_server.open(self.executor.listen_at())
            if self.executor.own_process:
                self._collections.begin()
        self._poked = asyncio.Event()
        self._poked.set()  # look for the first time immediately
        self._background = [asyncio.create_task(self._keep_leases()), asyncio.create_task(self._watch())]
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
        """
        await self.start()
        while True:
            record = await asyncio.to_thread(self.store.experiments.get, public_id)
            if record.id not in self.tasks:
                if record.state.ended and not await self._is_to_go_on(record.id, record.state):
                    return str(record.state)
                self._begin(record, executor)
            state = await asyncio.shield(self.tasks[record.id])
            if not await self._is_to_go_on(record.id, state):
                return str(state)

    async def _is_to_go_on(self, experiment: int, state: ExperimentState) -> bool:
        """Return whether a paused or ended experiment has a pending command that lets it run again."""
        wanted = "continue" if state.ended else "resume"
        commands = await asyncio.to_thread(self.store.commands.pending, [experiment])
        return any(command.command == wanted and command.trial is None for command in commands)

    async def news(self) -> list[str]:
        """Return lines for the service's log about the experiments found since the last call: those driven here, and others.

        The others have lost their script, and their lines say how users can continue them.
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
        begun = time.perf_counter()
        what = "verdict" if reports and reports[-1].waits else "report"
        with tracing.span(what, segment=segment_id, trial=found.ref.trial, reports=len(reports)):
            answer = await found.inbound.report(found.ref, found.start_iteration, reports)
        took = time.perf_counter() - begun
        self._figures.reports.add(took)
        if reports and reports[-1].waits:
            self._figures.verdicts.add(took)
        return answer

    async def checkpoint(self, segment_id: str, info: CheckpointInfo) -> None:
        """Commit the event that a checkpoint of a segment was written, or that the checkpoint's upload is complete."""
        found = self.segments.get(segment_id)
        if found is not None:
            await found.inbound.checkpoint(found.ref, info)

    async def take_logs(self, segment_id: str, chunks: Sequence[LogChunk]) -> None:
        """Store a part of a rank's log."""
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
        """Return a list with one reference, to an object that was stored with the training code."""
        return [await self._segment(segment_id).inbound.object(stored)]

    async def _called(self, question: str, arguments: Sequence[Any]) -> Any:
        """Answer a request of a rank that reaches the host over a socket instead of calling the Ray actor."""
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
        """Answer a request of an agent; see `AgentGroups.answer`."""
        begun = time.perf_counter()
        with tracing.span("agent", question=question, experiment=experiment):
            answer = await self.executors.agents.answer(question, experiment, arguments)
        if question == "report":
            self._figures.reports.add(time.perf_counter() - begun)
        return answer

    async def look(self, segment_id: str) -> dict[str, dict[str, Any]]:
        """Return the Python stack ("stack") and the resource usage (`process_stats.usage`) of each rank of a segment."""
        return await self.executors.look(segment_id)

    async def profile(self, segment_id: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Profile a rank of a segment. Return {"found": the profile}; None in it if the segment does not run here.

        An error becomes {"error": ...}, see `raised`.

        arguments: "id", "rank", and the fields of a `ProfileRequest`; or only "stop", the id of a profile to end, because
            nobody waits for it any more.
        """
        return await self._profiles.profile(segment_id, arguments)

    async def driver_log(self, experiment: str, tail: int, search: str | None = None) -> dict[str, Any]:
        """Return {"found": the log of this host about an experiment}; None in it if this host's machine has none."""
        found = await asyncio.to_thread(driver_log, self.settings.home, experiment, tail, search)
        return {"found": None if found is None else asdict(found)}

    async def cluster(self) -> dict[str, Any]:
        """Return a description of the cluster as JSON; see `tuner.driver.hosts.overview`."""
        nodes, available = await self.executor.nodes()
        standings = {name: self._standing(name) for name in self._named}
        return overview(
            nodes,
            available,
            self.executors.groups.held(),
            self.executors.groups.waiting(),
            standings,
            {name: self.executors.groups.share(name) for name in standings},
            began=time.time() - time.monotonic(),
        )

    def _places(self) -> dict[str, Place]:
        return {name: Place(running.experiment, *running.ref) for name, running in self.segments.items()}

    async def status(self) -> dict[str, Any]:
        """Return what this host is doing, for readiness checks and benchmarks."""
        return {
            "owner": self.owner,
            "attended": time.monotonic() < self._attended_at + ATTENDED_S,
            "pid": os.getpid(),
            "experiments": [d.record.public_id for d in self.driven.values()],
            "segments": len(self.segments),
            "groups": self.executors.stats(),
        }

    async def figures(self) -> dict[str, Any]:
        """Return this host's part of `GET /metrics`.

        Call this regularly: each call adds the GPU seconds and rank seconds since the previous call to the totals.
        """
        training = self.executors.training()
        running = [self.segments[name] for name in training if name in self.segments]
        found = [
            (self.driven[one.experiment].record.spec.scaling, self.driven[one.experiment].workers(one.ref))
            for one in running
            if one.experiment in self.driven
        ]
        gpus = sum(workers * scaling.bundle().get("GPU", 0.0) for scaling, workers in found)
        self._figures.count_use(gpus, sum(workers for _, workers in found), time.monotonic())
        return {
            **self._figures.shown(),
            "experiments": len(self.driven),
            "groups": self.executors.stats(),
            "writer_queue": self._writer._work_queue.qsize(),
        }

    async def rest(self, keep_groups: bool) -> None:
        """Release the database and idle worker groups until the next `start`. Do nothing while an experiment is driven.

        keep_groups: True to keep idle groups without GPUs until their idle timeout.
        """
        async with self._starting:  # a start that is under way would continue with a closed database
            if self.tasks:
                return
            await self._end_tasks(self._background)
            await self.executors.rest(keep_groups)
            if self.logs is not None:
                await self.logs.flush(timeout=LOGS_S)
            await self.proposals.close()
            self.store.close()

    async def close(self) -> None:
        """End everything that the host runs. Experiments keep their state, and another host can take them over immediately."""
        async with self._starting:
            await self._end_tasks([*self._background, *self.tasks.values()])
            await self.executors.close()
            if self.logs is not None:
                await self.logs.flush(timeout=LOGS_S)
            await self.proposals.close()
            await self._report_server.close()
            self._collections.end()
            self._writer.shutdown(wait=False)
            self.store.close()

    async def _end_tasks(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._background.clear()

    # -- one experiment --------------------------------------------------------------------------------------------------

    def _begin(self, record: ExperimentRecord, executor: str = "") -> None:
        task = asyncio.create_task(self._drive(record, executor), name=record.public_id)
        self.tasks[record.id] = task
        task.add_done_callback(lambda done: self._forget(record, done))

    def _forget(self, record: ExperimentRecord, task: asyncio.Task[ExperimentState]) -> None:
        self.tasks.pop(record.id, None)
        if not task.cancelled() and task.exception() is not None:  # `_drive` has logged it
            self._not_before[record.id] = time.time() + AGAIN_S

    async def _drive(self, record: ExperimentRecord, executor: str) -> ExperimentState:
        with log_format.about(experiment=record.public_id):
            try:
                if self.settings.log_bytes:
                    self.driver_logs.begin(record.public_id)
                state = await self._drive_alone(record, executor)
                self.driver_logs.say(record.public_id, "no longer driven here: the experiment is %s", state)
                return state
            except Exception as error:
                # This is not left to `_forget`: the experiment's log is closed by then.
                what = f"{type(error).__name__}: {error}"
                log.error("experiment %s is no longer driven: %s", record.public_id, what, exc_info=error)
                raise
            finally:
                self.driver_logs.end(record.public_id)

    async def _drive_alone(self, record: ExperimentRecord, executor: str) -> ExperimentState:
        store = self.store
        if record.spec.executor == "local" and self.executor.name != "local":
            executor = "trials run in processes of the driver's machine: executor is 'local'"
        if record.spec.executor == "agents":
            executor = "trials run on agents, which ask for them over HTTP: executor is 'agents'"
        if record.lease_until and record.lease_until > time.time() and self._candidates.is_dead(record.driver_owner):
            await self.write(store.drivers.release, record.id, record.driver_epoch)
        epoch = await self.write(store.drivers.claim, record.id, self.owner, self.settings.lease_s, time.time())
        self._claimed[record.id] = epoch
        self.driver_logs.say(
            record.public_id,
            "driver %d of this experiment: tuner %s in process %d on %s, host %s, executor %s",
            epoch, __version__, os.getpid(), socket.gethostname(), self.owner, executor or self.executor.name,
        )  # fmt: skip
        driven: Driven | None = None
        try:
            try:
                driven = await asyncio.to_thread(Driven, self, record, epoch)  # reads and folds the whole log
            except StoreError:
                raise
            except Exception as error:
                return await self._refuse(record, epoch, error)
            uploaded: list[CheckpointInfo] = []
            if epoch > 1:  # an earlier driver and its ranks may have been killed
                if record.spec.executor != "agents":  # an agent may be writing a checkpoint now
                    uploaded = await asyncio.to_thread(ended_uploads, driven)
                    await asyncio.to_thread(sweep_checkpoints, self.store, driven)
                if self.logs is not None:
                    await find_logs(self.store, self.logs, driven)
            slots = self.executors.of(record.spec).capacity(record.spec.scaling)
            elastic = record.spec.scaling.elastic
            workers = self.executors.of(record.spec).workers(record.spec.scaling) if elastic else None
            if len(self.tasks) == 1 and (groups := self.executors.groups_in_use) is not None:
                groups.trim(record.spec.scaling, record.spec.limits.max_concurrent_trials or slots)
            pending = await asyncio.to_thread(store.commands.pending, [record.id])
            commands = {c.id: as_event(c) for c in pending}
            self._seen |= {_key(c) for c in pending}
            self.driver_logs.say(
                record.public_id, "the log has %d entries about %d trials; room for %s trials at once",
                driven.core.seq, len(driven.core.trials), "any number of" if slots is None else slots,
            )  # fmt: skip
            self._named[record.public_id] = driven
            self.driven[record.id] = driven  # from now on it gets commands, but its loop handles DriverStarted first
            state = await driven.loop.run(epoch, slots, commands, executor, workers, uploaded)
            self._crashes.pop(record.public_id, None)
            if state.ended:
                self.executors.forget(record.public_id)
                storage = record.spec.checkpoint.storage or self.settings.storage
                await sweep_objects(store, storage, self.settings.database_url)
            return state
        except StoreError:
            raise
        except Exception as error:
            if driven is None or not self._crashes_again(record, driven.core.seq):
                raise
            return await self._refuse(record, epoch, error)
        finally:
            self.driven.pop(record.id, None)
            self._named.pop(record.public_id, None)
            await self._leave_nothing(record)
            if self.logs is not None:
                await self.logs.flush(record.id, timeout=LOGS_S)
            self._claimed.pop(record.id, None)
            with contextlib.suppress(Exception):
                await self.write(store.drivers.release, record.id, epoch)
            if driven is not None:
                await driven.close()

    def _crashes_again(self, record: ExperimentRecord, seq: int) -> bool:
        """Count a crash of this experiment's driver. Return True after CRASHES crashes without enough progress in between."""
        reached, times = self._crashes.get(record.public_id, (-1, 0))
        times = 1 if seq > reached + PROGRESS else times + 1
        self._crashes[record.public_id] = (max(seq, reached), times)
        return times >= CRASHES

    async def _refuse(self, record: ExperimentRecord, epoch: int, error: Exception) -> ExperimentState:
        """Fail an experiment that cannot be driven, and store the reason as its error.

        An experiment that had ended before keeps its state. Its driver was only to delete checkpoints.
        """
        log.error("experiment %s cannot be driven", record.public_id, exc_info=error)
        if record.state.ended and not await self._is_to_go_on(record.id, record.state):
            return record.state
        what = str(error) if isinstance(error, TunerError) else f"{type(error).__name__}: {error}"
        summary = {"error": what, "reason": "the experiment cannot be driven"}
        batch = Batch(log=[], state=ExperimentState.FAILED, summary=summary)
        await self.write(self.store.drivers.commit, record.id, epoch, batch, time.time())
        return ExperimentState.FAILED

    async def _leave_nothing(self, record: ExperimentRecord) -> None:
        mine = [name for name, running in self.segments.items() if running.experiment == record.id]
        await self.executors.kill(mine, "the driver stopped driving the experiment")
        self.executors.abandon(record.public_id, "the driver stopped driving the experiment")

    # -- background ------------------------------------------------------------------------------------------------------

    async def _keep_leases(self) -> None:
        wait = self.settings.lease_s / 3
        while True:
            await asyncio.sleep(wait)
            wait = self.settings.lease_s / 3
            for key, epoch in list(self._claimed.items()):
                task = self.tasks.get(key)
                with log_format.about(experiment=task.get_name() if task is not None else None):
                    try:
                        await self.write(self.store.drivers.renew, key, epoch, self.settings.lease_s, time.time())
                    except LostLease as error:
                        if self._claimed.get(key) != epoch:
                            continue  # the lease was released meanwhile
                        log.warning("%s", error)
                        if (task := self.tasks.get(key)) is not None:
                            task.cancel()
                    except Exception as error:
                        log.warning("a lease could not be renewed: %s", error)
                        for other in self.tasks.values():  # the database is away for all of them
                            if other is not task:
                                self.driver_logs.say(other.get_name(), "a lease could not be renewed: %s", error)
                        wait = min(wait, POLL_S)  # another host may claim expired leases once the database is back
                        break

    async def _watch(self) -> None:
        assert self._poked is not None
        while True:
            # `wait_for` is not used, because in Python 3.11 it ignores a cancellation that comes together with a poke.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._poked.wait()
            self._poked.clear()
            try:
                await self._take_commands()
                if self._serving:
                    await self._take_experiments()
                self._reading = True
            except Exception:
                if self._reading:  # log an outage only once, since it may last
                    log.warning("the database could not be read", exc_info=True)
                self._reading = False
                self._failed_at = time.monotonic()

    async def _take_commands(self) -> None:
        for command in await asyncio.to_thread(self.store.commands.pending, list(self.driven)):
            driven = self.driven.get(command.experiment_id)
            if driven is not None and _key(command) not in self._seen:
                self._seen.add(_key(command))
                driven.loop.put(as_event(command), command=command.id)

    async def _take_experiments(self) -> None:
        """Start to drive the experiments that have no live driver and that this host should drive."""
        now = time.time()
        busy = {*self.tasks, *(key for key, until in self._not_before.items() if now < until)}
        # If reads or writes have failed, leases of live holders may have expired. The holders need a moment to renew them.
        outage = time.monotonic() < self._failed_at + self.settings.lease_s / 2
        found = await asyncio.to_thread(self._candidates.find, now, busy=busy, outage=outage, adopt=self._adopting)
        for record, why, adopted in found.to_drive:
            if record.id in self.tasks:
                continue
            if adopted:
                await self.write(self.store.drivers.adopt, record.id)
            self._news.append(f"{record.public_id} ({record.name}) is driven here: {why}")
            self._begin(record)
        self._news += [how_to_go_on(record) for record in found.to_offer]


def _quotas(settings: Settings) -> dict[str, dict[str, float]]:
    """Return the quotas of the settings by project and resource."""
    found: dict[str, dict[str, float]] = {}
    for quota in settings.quotas:
        found.setdefault(quota.project, {})[quota.resource] = quota.amount
    return found


def _key(command: CommandRecord) -> CommandKey:
    return command.id, command.experiment_id, command.created_at


def _on_ray(settings: Settings) -> Executor:
    from tuner.driver.hosts.ray_executor import RayExecutor

    return RayExecutor(settings.node_types)
