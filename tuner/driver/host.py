"""The driver host: a Ray actor that takes no CPU of the cluster and drives many experiments as asyncio tasks.

Ranks and placement groups belong to it: when it dies, Ray removes them, and whoever starts a host again continues every
experiment from what its database holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tuner.domain.batch import Batch
from tuner.domain.events import (
    CheckpointInfo,
    Commanded,
    Drawn,
    Event,
    Failure,
    Noted,
    Reported,
    SegmentStarted,
    Waiting,
)
from tuner.domain.events import CheckpointSaved as Saved
from tuner.domain.keys import keyed_seed, segment_id, trial_id
from tuner.domain.logs import LogChunk, LogLimit
from tuner.domain.states import ExperimentState
from tuner.driver.assemble import assemble
from tuner.driver.cluster import HOST_PREFIX, NAMESPACE, capacity, living_nodes, remove_orphans
from tuner.driver.core import Core
from tuner.driver.judge import Judge
from tuner.driver.logs import LogKeeper, Owner
from tuner.driver.loop import ExperimentLoop
from tuner.driver.owners import owner_is_dead, owner_name
from tuner.driver.parts import load_parts
from tuner.driver.usage import Place, UsageKeeper
from tuner.errors import Conflict, LostLease, SpecError, StoreError, TunerError
from tuner.experiments.usecases import how_to_go_on
from tuner.schedulers.functions import functions_by_name, sealed
from tuner.settings import Settings
from tuner.space import Space
from tuner.store import Store
from tuner.store.records import CodeRecord, ExperimentRecord
from tuner.trials.checkpoints import checkpoints, objects, transfer
from tuner.trials.checkpoints.objects import Stored
from tuner.trials.checkpoints.storage import join
from tuner.trials.groups.manager import GroupManager, LogFile
from tuner.trials.messages.launch import CodeRef, Launch, ReportMsg, Resend, Verdict
from tuner.trials.messages.report_socket import Address, ReportServer
from tuner.trials.messages.tasks import on_node

log = logging.getLogger(__name__)

T = TypeVar("T")

POLL_S = 0.5
LEASES_S = 2.0
"""How often a host looks for leases of drivers that have died, which costs more than to look for free experiments."""
AGAIN_S = 5.0
"""How long an experiment whose driver crashed is left alone before it is taken up again."""
LOGS_S = 10.0
"""How long the end of an experiment waits for its logs; what takes longer is still written afterwards."""
CRASHES, PROGRESS = 3, 20
"""An experiment fails whose driver crashes so often with less than so many log entries between two crashes."""


@dataclass(slots=True)
class _Heard:
    """What has come of one segment's reports."""

    report_no: int = 0  # the newest one
    time: float = 0.0  # when that one was made

    def misses_before(self, reports: Sequence[ReportMsg]) -> bool:
        """Whether a report is missing between what has come before and the end of this batch."""
        newest = self.report_no
        for report in reports:
            if report.report_no > newest + 1:
                return True
            newest = max(newest, report.report_no)
        return False

    def take(self, reports: Sequence[ReportMsg], now: float) -> list[float]:
        """When each of the reports was made, by the clock of this process: never ahead of it, and never backwards."""
        times = []
        for report in reports:
            self.report_no = max(self.report_no, report.report_no)
            self.time = min(now, max(self.time, now - max(0.0, report.age)))
            times.append(self.time)
        return times


class Driven:
    """One experiment on this host: the ports of its loop, filled with Ray and the store."""

    def __init__(self, host: Host, record: ExperimentRecord, epoch: int) -> None:
        self.host, self.record, self.epoch = host, record, epoch
        spec = record.spec
        code = host.store.code.get(spec.code) if spec.code else None
        self.space = Space.from_json(spec.space, code.space_blob if code else None)
        with functions_by_name():  # what the user wrote runs in the judge's process
            self.core: Core = assemble(spec, self.space, load_parts(code.parts_blob if code else None))
        stoppers = self.core.stopper.functions() if self.core.stopper is not None else []
        for stopper in stoppers:
            stopper.outside = True
        self._judge = Judge(
            [sealed(stopper.function) for stopper in stoppers],
            sys_path=code.sys_path if code else (),
            working_dir=code.working_dir if code else None,
            environ=spec.runtime_env.get("env_vars"),
        )
        for seq, entry in host.store.drivers.load(record.id):
            self.core.fold(seq, entry)
        self.code = self._code_ref(code)
        self._drawing = asyncio.Lock()
        self._objects: dict[Stored, Any] = {}
        self.loop = ExperimentLoop(self.core, self, self, host.settings.outage_s)
        self._heard: dict[tuple[int, int], _Heard] = {}

    def _code_ref(self, code: CodeRecord | None) -> CodeRef:
        spec = self.record.spec
        if code is None:
            assert spec.entrypoint is not None
            return CodeRef(hash=f"entrypoint:{spec.entrypoint}", entrypoint=spec.entrypoint)
        blob = ray.put(code.blob) if code.blob else None
        return CodeRef(
            hash=code.hash,
            entrypoint=spec.entrypoint,
            blob=blob,
            sys_path=tuple(code.sys_path),
            working_dir=code.working_dir or None,
        )

    @property
    def storage(self) -> str:
        """Where the experiment's checkpoints lie."""
        return join(self.record.spec.checkpoint.storage or self.host.settings.storage, self.record.public_id)

    @property
    def log_dir(self) -> str:
        """Where the ranks write their logs, on the nodes where they run."""
        return str(self.host.settings.home / "logs" / self.record.public_id)

    def segment_name(self, number: int, ordinal: int) -> str:
        return segment_id(self.record.public_id, number, ordinal)

    # -- Journal ---------------------------------------------------------------------------------------------------------

    async def commit(self, batch: Batch) -> None:
        await self.host.write(self.host.store.drivers.commit, self.record.id, self.epoch, batch, time.time())

    # -- Groups ----------------------------------------------------------------------------------------------------------

    async def run(self, number: int, ordinal: int, milestone: int | None) -> tuple[str, Failure | None, str]:
        launch = self._launch(number, ordinal, milestone)
        self.host.segments[launch.segment_id] = (self, number, ordinal, launch.start_iteration)
        if self.host.logs is not None:
            self.host.logs.begin(launch.segment_id, Owner(self.record.id, number, ordinal))
        try:
            outcome = await self.host.groups.run(launch, inbox=self)
        finally:
            self.host.segments.pop(launch.segment_id, None)
            self._heard.pop((number, ordinal), None)
        return outcome.kind, outcome.failure, outcome.warning

    async def interrupt(self, number: int, ordinal: int, why: str) -> None:
        await self.host.groups.interrupt(self.segment_name(number, ordinal), why)

    async def kill(self, number: int, ordinal: int, why: str) -> None:
        await self.host.groups.kill(self.segment_name(number, ordinal), why)

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        if info.node in (None, self.host.node) or await asyncio.to_thread(checkpoints.is_here, info.uri):
            await asyncio.to_thread(checkpoints.delete, info.uri)
        else:
            await transfer.delete(info.uri, info.node)

    async def offload(self, function: Callable[..., Any], *args: Any) -> Any:
        return await ray.remote(num_cpus=0)(function).remote(*args)

    async def judge(self, number: int, metrics: Mapping[str, float]) -> list[dict[str, Any]]:
        return await self._judge.ask(number, metrics)

    async def close(self) -> None:
        """Let go of the process that calls the user's stop functions."""
        await self._judge.close()

    def _launch(self, number: int, ordinal: int, milestone: int | None) -> Launch:
        spec, settings = self.record.spec, self.host.settings
        trial = self.core.trials[number]
        segment = trial.segments[ordinal - 1]
        experiment = self.record.public_id
        return Launch(
            experiment_id=experiment,
            trial_id=trial_id(experiment, number),
            segment_id=self.segment_name(number, ordinal),
            trial_number=number,
            segment=ordinal,
            params=segment.params,
            seed=spec.seed,
            start_iteration=segment.start_iteration,
            checkpoint=segment.source,
            code=self.code,
            space=spec.space,
            space_blob=self.space.blob(),
            scaling=spec.scaling,
            limits=spec.limits,
            checkpoint_policy=spec.checkpoint,
            storage=self.storage,
            durable=settings.durability == "FULL",
            log_dir=self.log_dir,
            first_milestone=milestone,
            checkpoint_every=spec.checkpoint.frequency,
            milestone_checkpoints=self.core.scheduler.SAVES_AT_MILESTONES,
            metric=spec.objective.metric,
            runtime_env=spec.runtime_env,
        )

    # -- Inbox of the groups ---------------------------------------------------------------------------------------------

    def waiting(self, segment_id: str, reason: str) -> None:
        _, number, ordinal, _ = self.host.segments[segment_id]
        self.loop.put(Waiting(time=time.time(), trial=number, segment=ordinal, reason=reason))

    def started(self, segment_id: str, placement: Any, startup_s: float, warm: bool) -> None:
        _, number, ordinal, _ = self.host.segments[segment_id]
        self.loop.put(
            SegmentStarted(
                time=time.time(),
                trial=number,
                segment=ordinal,
                placement=placement,
                startup_s=startup_s,
                warm=warm,
            )
        )

    async def report(self, number: int, ordinal: int, start: int, reports: list[ReportMsg]) -> Verdict | Resend | None:
        heard = self._heard.setdefault((number, ordinal), _Heard())
        if heard.misses_before(reports):
            return Resend(after=heard.report_no)
        times = heard.take(reports, time.time())
        events = [
            Reported(
                time=at,
                trial=number,
                segment=ordinal,
                report_no=message.report_no,
                iteration=start + message.report_no,
                metrics=message.metrics,
                checkpoint=message.checkpoint,
                waits=message.wait,
                step=message.step,
            )
            for message, at in zip(reports, times, strict=True)
        ]
        waits = bool(reports) and reports[-1].wait
        verdict = await self.loop.report(events, waits, reports[-1].offer if waits else None)
        if verdict is None:
            return None
        return Verdict(
            action=verdict.action,
            next_milestone=verdict.next_milestone,
            save_checkpoint=verdict.save_checkpoint,
            reason=verdict.reason,
        )

    # -- what training code asks for -------------------------------------------------------------------------------------

    async def draw(self, number: int, ordinal: int, name: str, distribution: str) -> Any:
        """The value of a parameter that a running trial has come to; committed before it is known to anybody."""
        async with self._drawing:
            trial = self.core.trials[number]
            draw = getattr(self.core.searcher, "draw", None)
            if draw is None:
                raise SpecError(
                    f"the training code asks for {name}, which the space does not have: search_alg='define_by_run' draws such "
                    "parameters",
                    f"/space/{name}",
                )
            async with self.loop.deciding:  # the trials do not change meanwhile
                value, state = draw(number, name, distribution, self.core.trials)
            if name not in trial.params:
                event = Drawn(time=time.time(), trial=number, segment=ordinal, name=name, value=value, state=state)
                await self.loop.put(event)
            return value

    async def note(self, number: int, ordinal: int, notes: dict[str, Any]) -> None:
        await self.loop.put(Noted(time=time.time(), trial=number, segment=ordinal, notes=notes))

    async def end(self, number: int, reason: str) -> None:
        await self.loop.put(Commanded(time=time.time(), command="stop", trial=number, reason=reason))

    async def object(self, stored: Stored) -> Any:
        """A reference to an object that came with the training code: read once, kept while the experiment is driven."""
        if stored not in self._objects:
            self._objects[stored] = ray.put(await asyncio.to_thread(stored.load))
        return self._objects[stored]


class Host:
    """Everything async: one event loop, one writer to the database."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.settings, self.name = settings, name
        self.store = Store.open(settings.database_url, synchronous=settings.durability)
        self.owner = owner_name()
        self.segments: dict[str, tuple[Driven, int, int, int]] = {}
        self.driven: dict[int, Driven] = {}
        self.tasks: dict[int, asyncio.Task[ExperimentState]] = {}
        self._claimed: dict[int, int] = {}  # experiment -> the epoch that is ours, from the claim to the release
        self._seen: set[int] = set()
        self._crashes: dict[int, tuple[int, int]] = {}  # experiment -> (event_seq reached, crashes since)
        self._not_before: dict[int, float] = {}
        self._background: list[asyncio.Task[None]] = []
        self._poked: asyncio.Event | None = None
        self._serving = self._adopting = False
        self._news: list[str] = []  # what the log of the service is to say
        self._offered: set[int] = set()
        self._gone: set[str] = set()  # owners that are known to be dead, wherever they were
        self._reading = True  # the database could be read the last time
        self._read_failed_at = self._leases_read_at = float("-inf")
        self._groups: GroupManager | None = None
        self.logs: LogKeeper | None = None
        if settings.log_bytes:
            self.logs = LogKeeper(self.store.logs, LogLimit.of(settings.log_bytes), self._on_node)
        self._report_server = ReportServer(self.report, self.take_logs)
        self._report_address: Address | None = None
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tuner-writer")

    async def write(self, function: Callable[..., T], *args: Any) -> T:
        """Write to the database in the one thread that does, so that a slow or locked database never blocks the event loop.

        Writes are done in the order in which they were asked for. One that was begun is finished and waited for even if
        the caller is cancelled: what the caller writes next, such as the release of a lease, comes after it.
        """
        done = asyncio.get_running_loop().run_in_executor(self._writer, function, *args)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await asyncio.wait({done})
            raise

    @property
    def node(self) -> str:
        """Ray's id of the node that it runs on."""
        node: str = ray.get_runtime_context().get_node_id()
        return node

    @property
    def groups(self) -> GroupManager:
        if self._groups is None:
            self._groups = GroupManager(
                ray.get_runtime_context().current_actor,
                name=self.name,
                report_address=self._report_address,
                reserve_after_s=self.settings.reserve_after_s,
                logs=self.logs,
                log_limit=LogLimit.of(self.settings.log_bytes) if self.logs is not None else None,
            )
        return self._groups

    async def _on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function on a node; here if it is this one, or one of an earlier cluster, which may have been this machine."""
        if node != self.node and node in await asyncio.to_thread(living_nodes):
            return await on_node(node, function, *args)
        return await asyncio.to_thread(function, *args)

    # -- what other processes call -----------------------------------------------------------------------------------------

    async def start(self, serve: bool = False, adopt: bool = False, gone: Sequence[str] = ()) -> str:
        """Begin to keep leases and to look for commands; with `serve`, also for experiments that want a driver.

        adopt: whether to take up what scripts have left behind too; what was given to a service is taken up anyway.
        gone: owners that the caller knows to be dead; their experiments are taken up before their leases run out.
        """
        self._gone |= set(gone) - {self.owner}
        self._serving = self._serving or serve
        if serve:
            self._adopting = adopt
        if not self._background:
            await asyncio.to_thread(remove_orphans)
            if self._report_address is None:
                with contextlib.suppress(
                    OSError
                ):  # an address that is not this machine's own, behind NAT: reports go by calls
                    self._report_address = await self._report_server.open(ray.util.get_node_ip_address())
                gc.collect()
                gc.freeze()  # libraries have come to stay: else what trials leave is only looked at once there is much of it
            self._poked = asyncio.Event()
            self._background = [asyncio.create_task(self._keep_leases()), asyncio.create_task(self._watch())]
            self._background.append(asyncio.create_task(self._sweep_objects(self.settings.storage)))
            if self.settings.usage_every_s > 0:
                keeper = UsageKeeper(self.groups, self.store.ranks, self._places)
                self._background.append(asyncio.create_task(keeper.keep(self.settings.usage_every_s)))
        return self.owner

    async def drive(self, public_id: str) -> str:
        """Drive this experiment until it has ended or is paused; its state then. Conflict while a living driver has it."""
        await self.start()
        while True:
            record = await asyncio.to_thread(self.store.experiments.get, public_id)
            if record.id not in self.tasks:
                if record.state.ended:
                    return str(record.state)
                self._begin(record)
            state = await asyncio.shield(self.tasks[record.id])
            if state is not ExperimentState.PAUSED or not await self._is_to_go_on(record.id):
                return str(state)

    async def _is_to_go_on(self, experiment: int) -> bool:
        """Whether somebody has asked for a resume after the loop of a paused experiment took its last command."""
        commands = await asyncio.to_thread(self.store.commands.pending, [experiment])
        return any(command.command == "resume" and command.trial is None for command in commands)

    async def news(self) -> list[str]:
        """What this host has taken up, and what it has not, since the last call: lines for the log of the service."""
        told, self._news = self._news, []
        return told

    async def live(self) -> None:
        """Never return: the caller learns at once when this process dies."""
        await asyncio.Event().wait()

    async def poke(self) -> None:
        """There is a new command or a new experiment."""
        if self._poked is not None:
            self._poked.set()

    async def report(self, segment_id: str, reports: list[ReportMsg]) -> Verdict | Resend | None:
        """From rank 0 of a segment."""
        found = self.segments.get(segment_id)
        if found is None:
            return None
        driven, number, ordinal, start = found
        return await driven.report(number, ordinal, start, reports)

    async def checkpoint(self, segment_id: str, info: CheckpointInfo) -> None:
        """A checkpoint of a segment has come into being, or its upload is done."""
        found = self.segments.get(segment_id)
        if found is not None:
            driven, number, ordinal, _ = found
            await driven.loop.put(Saved(time=time.time(), trial=number, segment=ordinal, checkpoint=info))

    async def take_logs(self, segment_id: str, chunks: Sequence[LogChunk]) -> None:
        """Store what a rank has printed."""
        if self.logs is not None:
            await self.logs.take(segment_id, chunks)

    async def draw(self, segment_id: str, name: str, distribution: str) -> Any:
        """From any rank: the value of a parameter that its training code has come to; equal for all ranks."""
        driven, number, ordinal, _ = self._segment(segment_id)
        return await driven.draw(number, ordinal, name, distribution)

    async def note(self, segment_id: str, notes: dict[str, Any]) -> None:
        """From rank 0: something to be kept with the trial for people to read."""
        driven, number, ordinal, _ = self._segment(segment_id)
        await driven.note(number, ordinal, notes)

    async def end(self, segment_id: str, reason: str) -> None:
        """From rank 0: the trial stops itself."""
        driven, number, _, _ = self._segment(segment_id)
        await driven.end(number, reason)

    async def object(self, segment_id: str, stored: Stored) -> list[Any]:
        """From any rank: a reference, in a list, to an object that came with the training code."""
        driven, *_ = self._segment(segment_id)
        return [await driven.object(stored)]

    def _segment(self, segment_id: str) -> tuple[Driven, int, int, int]:
        found = self.segments.get(segment_id)
        if found is None:
            raise Conflict(f"{segment_id} is over")
        return found

    async def look(self, segment_id: str) -> dict[str, dict[str, Any]]:
        """rank -> its Python stack ("stack") and what it uses now (see `process_stats.usage`), of a segment that runs."""
        stacks, figures = await asyncio.gather(self.groups.stacks(segment_id), self.groups.usage(segment_id))
        return {rank: {"stack": stack, **figures.get(rank, {})} for rank, stack in stacks.items()}

    def _places(self) -> dict[str, Place]:
        return {name: Place(driven.record.id, *which) for name, (driven, *which, _) in self.segments.items()}

    async def status(self) -> dict[str, Any]:
        """What this host is doing, for readiness checks and benchmarks."""
        return {
            "owner": self.owner,
            "pid": os.getpid(),
            "experiments": [d.record.public_id for d in self.driven.values()],
            "segments": len(self.segments),
            "groups": self._groups.stats() if self._groups is not None else {},
        }

    async def rest(self, keep_groups: bool) -> None:
        """Nothing is to be done until the next `start`: let go of the database and of idle worker groups.

        keep_groups: groups without GPUs stay until they have been idle for long.
        """
        if self.tasks:
            return
        await self._end_tasks(self._background)
        if self._groups is not None:
            await self._groups.rest(keep_groups)
        if self.logs is not None:
            await self.logs.flush(timeout=LOGS_S)
        self.store.close()

    async def close(self) -> None:
        """Let go of everything; experiments stay as they are and can be taken over at once."""
        await self._end_tasks([*self._background, *self.tasks.values()])
        if self._groups is not None:
            await self._groups.close()
        if self.logs is not None:
            await self.logs.flush(timeout=LOGS_S)
        await self._report_server.close()
        self._writer.shutdown(wait=False)
        self.store.close()

    async def _end_tasks(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._background.clear()

    # -- one experiment --------------------------------------------------------------------------------------------------

    def _begin(self, record: ExperimentRecord) -> None:
        task = asyncio.create_task(self._drive(record), name=record.public_id)
        self.tasks[record.id] = task
        task.add_done_callback(lambda done: self._forget(record, done))

    def _forget(self, record: ExperimentRecord, task: asyncio.Task[ExperimentState]) -> None:
        self.tasks.pop(record.id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("experiment %s is not driven any more: %s", record.public_id, error, exc_info=error)
            self._not_before[record.id] = time.time() + AGAIN_S

    async def _drive(self, record: ExperimentRecord) -> ExperimentState:
        store = self.store
        if record.lease_until and record.lease_until > time.time() and self._is_gone(record.driver_owner):
            await self.write(store.drivers.release, record.id, record.driver_epoch)
        epoch = await self.write(store.drivers.claim, record.id, self.owner, self.settings.lease_s, time.time())
        self._claimed[record.id] = epoch
        driven: Driven | None = None
        try:
            try:
                driven = await asyncio.to_thread(Driven, self, record, epoch)  # reads and folds the whole log
            except StoreError:
                raise
            except Exception as error:
                return await self._refuse(record, epoch, error)
            if epoch > 1:  # what ranks of an earlier driver had begun and not committed when they were killed
                await asyncio.to_thread(checkpoints.sweep, driven.storage)
                await self._find_logs(driven)
            slots = capacity(record.spec.scaling)
            if len(self.tasks) == 1 and self._groups is not None:
                self._groups.trim(record.spec.scaling, record.spec.limits.max_concurrent_trials or slots)
            commands = {c.id: _commanded(c) for c in await asyncio.to_thread(store.commands.pending, [record.id])}
            self._seen |= set(commands)
            self.driven[record.id] = driven  # from now on it is given commands; its loop lets DriverStarted in first
            state = await driven.loop.run(epoch, slots, commands)
            self._crashes.pop(record.id, None)
            if state.ended:
                await self._sweep_objects(record.spec.checkpoint.storage or self.settings.storage)
            return state
        except StoreError:
            raise
        except Exception as error:
            if driven is None or not self._crashes_again(record, driven.core.seq):
                raise
            return await self._refuse(record, epoch, error)
        finally:
            self.driven.pop(record.id, None)
            await self._leave_nothing(record)
            if self.logs is not None:
                await self.logs.flush(record.id, timeout=LOGS_S)
            self._claimed.pop(record.id, None)
            with contextlib.suppress(Exception):
                await self.write(store.drivers.release, record.id, epoch)
            if driven is not None:
                await driven.close()
                del driven.loop  # which knows it as well: the two would keep all trials until the next full collection

    async def _sweep_objects(self, storage: str) -> None:
        """Delete objects of `with_parameters` that no experiment needs any more."""
        try:
            await asyncio.to_thread(objects.sweep, storage, self.settings.database_url, self.store.code.unfinished)
        except Exception:  # they stay until the next time
            log.warning("objects that came with training functions could not be deleted", exc_info=True)

    def _crashes_again(self, record: ExperimentRecord, seq: int) -> bool:
        """Whether the driver of this experiment has now died CRASHES times without getting any further."""
        reached, times = self._crashes.get(record.id, (-1, 0))
        times = 1 if seq > reached + PROGRESS else times + 1
        self._crashes[record.id] = (max(seq, reached), times)
        return times >= CRASHES

    async def _refuse(self, record: ExperimentRecord, epoch: int, error: Exception) -> ExperimentState:
        """It cannot be driven: say why where people will look."""
        log.error("experiment %s cannot be driven", record.public_id, exc_info=error)
        what = str(error) if isinstance(error, TunerError) else f"{type(error).__name__}: {error}"
        batch = Batch(log=[], state=ExperimentState.FAILED, summary={"error": what, "reason": "it cannot be driven"})
        await self.write(self.store.drivers.commit, record.id, epoch, batch, time.time())
        return ExperimentState.FAILED

    async def _find_logs(self, driven: Driven) -> None:
        """Read, in the background, the rest of the logs of ranks that died with an earlier host."""
        if self.logs is None:
            return
        files: dict[Owner, list[LogFile]] = {}
        names: dict[Owner, str] = {}
        for found in await asyncio.to_thread(self.store.logs.unfinished, driven.record.id):
            owner = Owner(driven.record.id, found.trial, found.segment)
            path = os.path.join(driven.log_dir, found.segment_id, f"rank{found.rank}.log")
            files.setdefault(owner, []).append(LogFile(found.rank, found.node, path))
            names[owner] = found.segment_id
        for owner, name in names.items():
            self.logs.begin(name, owner)
            self.logs.end(name, files[owner], gone=asyncio.sleep(0))

    async def _leave_nothing(self, record: ExperimentRecord) -> None:
        mine = [name for name, (driven, *_) in self.segments.items() if driven.record.id == record.id]
        await asyncio.gather(
            *(self.groups.kill(name, "its driver let go of it") for name in mine), return_exceptions=True
        )

    # -- background ------------------------------------------------------------------------------------------------------

    async def _keep_leases(self) -> None:
        wait = self.settings.lease_s / 3
        while True:
            await asyncio.sleep(wait)
            wait = self.settings.lease_s / 3
            for key, epoch in list(self._claimed.items()):
                try:
                    await self.write(self.store.drivers.renew, key, epoch, self.settings.lease_s, time.time())
                except LostLease as error:
                    if self._claimed.get(key) != epoch:
                        continue  # it was given back meanwhile
                    log.warning("%s", error)
                    if (task := self.tasks.get(key)) is not None:
                        task.cancel()
                except Exception as error:
                    log.warning("a lease could not be renewed: %s", error)
                    wait = min(wait, POLL_S)  # another host may claim what has run out once the database is back
                    break

    async def _watch(self) -> None:
        assert self._poked is not None
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._poked.wait(), POLL_S)
            self._poked.clear()
            try:
                await self._take_commands()
                if self._serving:
                    await self._take_experiments()
                self._reading = True
            except Exception:
                if self._reading:  # once for an outage, which may last
                    log.warning("the database could not be read", exc_info=True)
                self._reading = False
                self._read_failed_at = time.monotonic()

    async def _take_commands(self) -> None:
        for command in await asyncio.to_thread(self.store.commands.pending, list(self.driven)):
            driven = self.driven.get(command.experiment_id)
            if driven is not None and command.id not in self._seen:
                self._seen.add(command.id)
                driven.loop.put(_commanded(command), command=command.id)

    async def _take_experiments(self) -> None:
        now = time.time()
        free = await asyncio.to_thread(self.store.drivers.claimable, now)
        free += await asyncio.to_thread(self._left_by_the_dead, now)
        found = [r for r in free if r.id not in self.tasks and now >= self._not_before.get(r.id, 0.0)]
        if time.monotonic() < self._read_failed_at + self.settings.lease_s / 2:
            # The database was away, so leases have run out whose holders live: they need a moment to renew them.
            found = [r for r in found if r.driver_owner in (None, self.owner) or self._is_gone(r.driver_owner)]
        theirs = [record.id for record in found if record.source == "python"]
        commands = await asyncio.to_thread(self.store.commands.pending, theirs)
        cancelled = {c.experiment_id for c in commands if c.command == "cancel" and c.trial is None}
        for record in found:
            if record.id in self.tasks:
                continue
            if record.source != "python":
                self._take_up(record, "it was given to this service")
            elif record.state is ExperimentState.CANCELLING or record.id in cancelled:
                self._take_up(record, "it is to be cancelled")
            elif record.abandoned(now) and self._adopting:
                await self.write(self.store.drivers.adopt, record.id)
                self._take_up(record, "its script is gone, and this service adopts such experiments")
            elif record.abandoned(now) and record.id not in self._offered:
                self._offered.add(record.id)
                self._news.append(how_to_go_on(record))

    def _left_by_the_dead(self, now: float) -> list[ExperimentRecord]:
        """Return the experiments whose lease is still alive although their driver is not. Looks every `LEASES_S` seconds."""
        if time.monotonic() < self._leases_read_at + LEASES_S:
            return []
        self._leases_read_at = time.monotonic()
        return [r for r in self.store.drivers.claimable(now, leased_from=self.owner) if self._is_gone(r.driver_owner)]

    def _is_gone(self, owner: str | None) -> bool:
        return owner in self._gone or owner_is_dead(owner)

    def _take_up(self, record: ExperimentRecord, why: str) -> None:
        self._offered.discard(record.id)
        self._news.append(f"{record.public_id} ({record.name}) is taken up: {why}")
        self._begin(record)


def _commanded(command: Any) -> Event:
    return Commanded(time=time.time(), command=command.command, trial=command.trial, reason=command.reason)


def start_host(settings: Settings, *, shared: bool = False) -> Any:
    """The actor. A shared one outlives its creator and is found again by the same name, which is that of its database."""
    name = f"{HOST_PREFIX}{keyed_seed(0, settings.database_url):016x}" + ("" if shared else f"-{secrets.token_hex(6)}")
    options: dict[str, Any] = {
        "num_cpus": 0,
        "max_concurrency": 10_000,
        "namespace": NAMESPACE,
        "name": name,
        "enable_task_events": False,  # Ray's head would keep a record of each report
    }
    if settings.database_url.startswith("sqlite"):  # the file is on this machine, so the host stays here
        here = ray.get_runtime_context().get_node_id()
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(here, soft=False)
    if shared:
        options |= {"lifetime": "detached", "get_if_exists": True}
    return ray.remote(Host).options(**options).remote(settings, name)
