"""The driver host: a Ray actor that reserves no CPU and drives many experiments as asyncio tasks.

Ranks and placement groups belong to it. If it dies, Ray removes them, and the next host continues every experiment from what
the database holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import ray
from packaging.version import Version
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tuner import __version__, log_format
from tuner.domain.batch import Batch
from tuner.domain.events import RoomWanted
from tuner.domain.keys import keyed_seed
from tuner.domain.logs import LogChunk, LogLimit
from tuner.domain.segments import CheckpointInfo, Report, Verdict
from tuner.domain.states import ExperimentState
from tuner.driver.commands import as_event
from tuner.driver.hosts.cluster import HOST_PREFIX, NAMESPACE, capacity, living_nodes, remove_orphans
from tuner.driver.hosts.driven import Driven, Running
from tuner.driver.hosts.figures import Figures
from tuner.driver.hosts.logs import LogKeeper, Owner
from tuner.driver.hosts.overview import overview
from tuner.driver.hosts.owners import owner_is_dead, owner_name
from tuner.driver.hosts.proposals import Proposals
from tuner.driver.hosts.usage import Place, UsageKeeper
from tuner.errors import Conflict, LostLease, NewerHost, Retryable, StoreError, TunerError
from tuner.experiment.usecases import how_to_go_on
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.records import CommandRecord, ExperimentRecord
from tuner.trials.checkpoints import checkpoints, objects
from tuner.trials.checkpoints.objects import Stored
from tuner.trials.groups.admission import Standing
from tuner.trials.groups.manager import GroupManager
from tuner.trials.groups.segment_run import LogFile
from tuner.trials.messages.launch import Resend
from tuner.trials.messages.report_socket import Address, ReportServer
from tuner.trials.messages.tasks import on_node

log = logging.getLogger(__name__)

T = TypeVar("T")

POLL_S = 0.5
SCRIPTS = ("python", "study")
"""The sources of experiments that scripts drive. A study, which is driven by ask and tell, is never adopted."""

WITNESS_S = 2.0
"""A lease that has expired is taken from a living holder after it has stayed expired for this long.

A holder that could not reach the database for a while renews its leases within `POLL_S` seconds once it can.
"""

LEASES_S = 2.0
"""Seconds between two searches for leases of dead drivers, which cost more than searches for free experiments."""
ROOM_S = 1.0
"""Seconds between two looks whether trials should make room for other experiments."""
AGAIN_S = 5.0
"""Seconds before an experiment whose driver crashed is driven again."""
LOGS_S = 10.0
"""Seconds that the end of an experiment waits for its logs. What takes longer is still written afterwards."""
CRASHES, PROGRESS = 3, 20
"""An experiment fails if its driver crashes CRASHES times with at most PROGRESS log entries between two crashes."""


_VERSION = "-v"
"""The text before the version in the name of a shared host. Names of other hosts have hexadecimal digits there."""
ANSWER_S = 10.0
"""Seconds that the host of another version may take to give its owner name, and then to end."""

ATTENDED_S = 10.0
"""A host whose service has said nothing for this long may be ended by a service of an older version."""

CommandKey = tuple[int, int, float]
"""The id, the experiment and the time of a command. A restored backup may give its id to another one."""


class Host:
    """Drive experiments: one event loop, one thread that writes to the database. Other processes call its public methods."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.settings, self.name = settings, name
        if settings.log_format == "json":
            log_format.configure(settings.log_level, "json")
        self.store = Store.open(settings.database_url, synchronous=settings.durability)
        self.owner = owner_name()
        self.segments: dict[str, Running] = {}
        self.driven: dict[int, Driven] = {}
        self._named: dict[str, Driven] = {}  # the same, by public id
        self.tasks: dict[int, asyncio.Task[ExperimentState]] = {}
        self._claimed: dict[int, int] = {}  # experiment -> the epoch that is ours, from the claim to the release
        self._seen: set[CommandKey] = set()
        self._crashes: dict[str, tuple[int, int]] = {}  # public id -> (event_seq reached, crashes since)
        self._not_before: dict[int, float] = {}
        self._background: list[asyncio.Task[None]] = []
        self._poked: asyncio.Event | None = None
        self._serving = self._adopting = False
        self._attended_at = float("-inf")  # when a service called the last time
        self._news: list[str] = []  # lines for the log of the service
        self._offered: set[str] = set()  # public ids
        self._expired: dict[int, tuple[int, float]] = {}  # experiment -> epoch of the expired lease, seen since
        self._gone: set[str] = set()  # owners that are known to be dead, wherever they were
        self._reading = True  # the database could be read the last time
        self._starting = asyncio.Lock()  # if it takes long, the service calls `start` again
        self._failed_at = float("-inf")  # when a read or a write failed the last time, because the database was away
        self._leases_read_at = float("-inf")
        self._groups: GroupManager | None = None
        self.logs: LogKeeper | None = None
        if settings.log_bytes:
            self.logs = LogKeeper(self.store.logs, LogLimit.of(settings.log_bytes), self._on_node)
        self._report_server = ReportServer(self.report, self.take_logs)
        self._report_address: Address | None = None
        self.proposals = Proposals()
        self._figures = Figures()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tuner-writer")

    async def write(self, function: Callable[..., T], *args: Any) -> T:
        """Write to the database in the writer thread, so that a slow or locked database never blocks the event loop.

        Writes are done in the order of the calls. If the caller is cancelled, a write that has begun is still finished and
        waited for, so that the caller's next write, such as the release of a lease, comes after it.

        An error that may pass is remembered. With a full disk, or a server that became a standby, only writes fail.
        """
        done = asyncio.get_running_loop().run_in_executor(self._writer, self._timed, function, *args)
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
    def node(self) -> str:
        """Return Ray's id of the node that it runs on."""
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
                standing=self._standing,
                preempt_after_s=self.settings.preempt_after_s,
            )
        return self._groups

    def _standing(self, experiment: str) -> Standing:
        """Return what an experiment is entitled to, as of its last change by a user."""
        driven = self._named.get(experiment)
        return Standing(driven.core.spec.priority, driven.core.spec.weight) if driven is not None else Standing()

    async def _on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function on a node, or here if the node is unknown: this machine may have been it in an earlier cluster."""
        if node != self.node and node in await asyncio.to_thread(living_nodes):
            return await on_node(node, function, *args)
        return await asyncio.to_thread(function, *args)

    # -- what other processes call -----------------------------------------------------------------------------------------

    async def start(self, serve: bool = False, adopt: bool = False, gone: Sequence[str] = ()) -> str:
        """Start to renew leases and to look for commands; with `serve`, also for experiments that need a driver.

        adopt: whether to drive experiments that scripts have left behind, too. Those created over the API are driven anyway.
        gone: owners that the caller knows to be dead. Their experiments are driven here before their leases expire.
        """
        self._gone |= set(gone) - {self.owner}
        self._serving = self._serving or serve
        if serve:
            self._adopting = adopt
        async with self._starting:
            if not self._background:
                await self._begin_background()
        return self.owner

    async def _begin_background(self) -> None:
        await asyncio.to_thread(remove_orphans)
        if self._report_address is None:
            with contextlib.suppress(
                OSError
            ):  # the address is not one of this machine, as behind NAT: reports go by Ray calls
                self._report_address = await self._report_server.open(ray.util.get_node_ip_address())
            gc.collect()
            # Exclude the loaded libraries from collections: these are rare, and leave much garbage, while there are many objects.
            gc.freeze()
        self._poked = asyncio.Event()
        self._background = [asyncio.create_task(self._keep_leases()), asyncio.create_task(self._watch())]
        self._background.append(asyncio.create_task(self._sweep_objects(self.settings.storage)))
        self._background.append(asyncio.create_task(self._make_room()))
        if self.settings.usage_every_s > 0:
            keeper = UsageKeeper(self.groups, self.store.ranks, self._places)
            self._background.append(asyncio.create_task(keeper.keep(self.settings.usage_every_s)))

    async def drive(self, public_id: str) -> str:
        """Drive this experiment until it has ended or is paused, and return its state.

        Raises:
            Conflict: another driver, which is alive, has it.
        """
        await self.start()
        while True:
            record = await asyncio.to_thread(self.store.experiments.get, public_id)
            if record.id not in self.tasks:
                if record.state.ended and not await self._is_to_go_on(record.id, record.state):
                    return str(record.state)
                self._begin(record)
            state = await asyncio.shield(self.tasks[record.id])
            if not await self._is_to_go_on(record.id, state):
                return str(state)

    async def _is_to_go_on(self, experiment: int, state: ExperimentState) -> bool:
        """Return whether an experiment that is paused or has ended is to run again: no loop has taken the command yet."""
        wanted = "continue" if state.ended else "resume"
        commands = await asyncio.to_thread(self.store.commands.pending, [experiment])
        return any(command.command == wanted and command.trial is None for command in commands)

    async def news(self) -> list[str]:
        """Return lines for the log of the service: which experiments this host has claimed since the last call, and which not."""
        self._attended_at = time.monotonic()
        told, self._news = self._news, []
        return told

    async def live(self) -> None:
        """Wait for ever, so that the caller learns at once when this process dies."""
        await asyncio.Event().wait()

    async def poke(self) -> None:
        """Look for new commands and experiments now."""
        if self._poked is not None:
            self._poked.set()

    async def report(self, segment_id: str, reports: list[Report]) -> Verdict | Resend | None:
        """Take reports from rank 0 of a segment; see `Driver.report`."""
        found = self.segments.get(segment_id)
        if found is None:
            return None
        begun = time.perf_counter()
        answer = await found.inbound.report(found.ref, found.start_iteration, reports)
        took = time.perf_counter() - begun
        self._figures.reports.add(took)
        if reports and reports[-1].waits:
            self._figures.verdicts.add(took)
        return answer

    async def checkpoint(self, segment_id: str, info: CheckpointInfo) -> None:
        """Note that a checkpoint of a segment has been written, or that its upload is done."""
        found = self.segments.get(segment_id)
        if found is not None:
            await found.inbound.checkpoint(found.ref, info)

    async def take_logs(self, segment_id: str, chunks: Sequence[LogChunk]) -> None:
        """Store what a rank has printed."""
        if self.logs is not None:
            await self.logs.take(segment_id, chunks)

    async def draw(self, segment_id: str, name: str, distribution: str) -> Any:
        """Return the value of a parameter that a rank's training code asks for. All ranks get the same."""
        found = self._segment(segment_id)
        return await found.inbound.draw(found.ref, name, distribution)

    async def note(self, segment_id: str, notes: dict[str, Any]) -> None:
        """Keep notes from rank 0 with the trial, for people to read."""
        found = self._segment(segment_id)
        await found.inbound.note(found.ref, notes)

    async def end(self, segment_id: str, reason: str) -> None:
        """Stop the trial, because rank 0 asks for it."""
        found = self._segment(segment_id)
        await found.inbound.end(found.ref.trial, reason)

    async def object(self, segment_id: str, stored: Stored) -> list[Any]:
        """Return a reference, in a list, to an object that was stored with the training code."""
        return [await self._segment(segment_id).inbound.object(stored)]

    def _segment(self, segment_id: str) -> Running:
        found = self.segments.get(segment_id)
        if found is None:
            raise Conflict(f"{segment_id} is over")
        return found

    async def look(self, segment_id: str) -> dict[str, dict[str, Any]]:
        """Return, for each rank of a running segment, its Python stack ("stack") and what it uses (`process_stats.usage`)."""
        stacks, figures = await asyncio.gather(self.groups.stacks(segment_id), self.groups.usage(segment_id))
        return {rank: {"stack": stack, **figures.get(rank, {})} for rank, stack in stacks.items()}

    async def cluster(self) -> dict[str, Any]:
        """Return the cluster as `overview` describes it."""
        nodes, available = await asyncio.gather(
            asyncio.to_thread(ray.nodes), asyncio.to_thread(ray.available_resources)
        )
        standings = {name: self._standing(name) for name in self._named}
        return overview(
            nodes,
            available,
            self.groups.held(),
            self.groups.waiting(),
            standings,
            {name: self.groups.share(name) for name in standings},
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
            "groups": self._groups.stats() if self._groups is not None else {},
        }

    async def figures(self) -> dict[str, Any]:
        """Return what `GET /metrics` shows of this host. Call it regularly: it also counts what has been in use."""
        training = self._groups.training() if self._groups is not None else []
        running = [self.segments[name].experiment for name in training if name in self.segments]
        scalings = [self.driven[one].record.spec.scaling for one in running if one in self.driven]
        gpus = sum(one.num_workers * one.bundle().get("GPU", 0.0) for one in scalings)
        self._figures.count_use(gpus, sum(one.num_workers for one in scalings), time.monotonic())
        return {
            **self._figures.shown(),
            "experiments": len(self.driven),
            "groups": self._groups.stats() if self._groups is not None else {},
            "writer_queue": self._writer._work_queue.qsize(),
        }

    async def rest(self, keep_groups: bool) -> None:
        """Release the database and idle worker groups until the next `start`.

        keep_groups: keep groups without GPUs until their idle timeout.
        """
        async with self._starting:  # a start that is under way would go on with a closed database
            if self.tasks:
                return
            await self._end_tasks(self._background)
            if self._groups is not None:
                await self._groups.rest(keep_groups)
            if self.logs is not None:
                await self.logs.flush(timeout=LOGS_S)
            await self.proposals.close()
            self.store.close()

    async def close(self) -> None:
        """Release everything. Experiments stay as they are, and another host can take them over at once."""
        async with self._starting:
            await self._end_tasks([*self._background, *self.tasks.values()])
            if self._groups is not None:
                await self._groups.close()
            if self.logs is not None:
                await self.logs.flush(timeout=LOGS_S)
            await self.proposals.close()
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
        with log_format.about(experiment=record.public_id):
            return await self._drive_alone(record)

    async def _drive_alone(self, record: ExperimentRecord) -> ExperimentState:
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
            if epoch > 1:  # an earlier driver and its ranks may have been killed
                await asyncio.to_thread(self._sweep_checkpoints, driven)
                await self._find_logs(driven)
            slots = capacity(record.spec.scaling)
            if len(self.tasks) == 1 and self._groups is not None:
                self._groups.trim(record.spec.scaling, record.spec.limits.max_concurrent_trials or slots)
            pending = await asyncio.to_thread(store.commands.pending, [record.id])
            commands = {c.id: as_event(c) for c in pending}
            self._seen |= {_key(c) for c in pending}
            self._named[record.public_id] = driven
            self.driven[record.id] = driven  # from now on it gets commands; its loop handles DriverStarted first
            state = await driven.loop.run(epoch, slots, commands)
            self._crashes.pop(record.public_id, None)
            if state.ended:
                if self._groups is not None:
                    self._groups.forget(record.public_id)
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
            self._named.pop(record.public_id, None)
            await self._leave_nothing(record)
            if self.logs is not None:
                await self.logs.flush(record.id, timeout=LOGS_S)
            self._claimed.pop(record.id, None)
            with contextlib.suppress(Exception):
                await self.write(store.drivers.release, record.id, epoch)
            if driven is not None:
                await driven.close()

    def _sweep_checkpoints(self, driven: Driven) -> None:
        """Delete the files of checkpoints whose reports were not committed when the ranks or the driver were killed."""
        rows = self.store.trials.checkpoints(driven.record.id)
        checkpoints.sweep(driven.groups.storage, {row.uri for row in rows if row.state != "deleted"})

    async def _sweep_objects(self, storage: str) -> None:
        """Delete the objects of `with_parameters` that no experiment needs any more."""
        try:
            await asyncio.to_thread(objects.sweep, storage, self.settings.database_url, self.store.code.unfinished)
        except Exception:  # they stay until the next time
            log.warning("objects that came with training functions could not be deleted", exc_info=True)

    def _crashes_again(self, record: ExperimentRecord, seq: int) -> bool:
        """Count a crash. Return whether the driver of this experiment has crashed CRASHES times without making progress."""
        reached, times = self._crashes.get(record.public_id, (-1, 0))
        times = 1 if seq > reached + PROGRESS else times + 1
        self._crashes[record.public_id] = (max(seq, reached), times)
        return times >= CRASHES

    async def _refuse(self, record: ExperimentRecord, epoch: int, error: Exception) -> ExperimentState:
        """Fail an experiment that cannot be driven, and store the reason as its error."""
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
            if self.logs.is_closing(found.segment_id):
                continue
            owner = Owner(driven.record.id, found.trial, found.segment)
            path = os.path.join(driven.groups.log_dir, found.segment_id, f"rank{found.rank}.log")
            files.setdefault(owner, []).append(LogFile(found.rank, found.node, path))
            names[owner] = found.segment_id
        for owner, name in names.items():
            self.logs.begin(name, owner)
            self.logs.end(name, files[owner], gone=asyncio.sleep(0))

    async def _leave_nothing(self, record: ExperimentRecord) -> None:
        mine = [name for name, running in self.segments.items() if running.experiment == record.id]
        await asyncio.gather(
            *(self.groups.kill(name, "its driver released it") for name in mine), return_exceptions=True
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
                    wait = min(wait, POLL_S)  # another host may claim expired leases once the database is back
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
                self._failed_at = time.monotonic()

    async def _make_room(self) -> None:
        """Have trials paused whose room another experiment should have, see `tuner.trials.groups.fair_share`."""
        while True:
            await asyncio.sleep(ROOM_S)
            if self._groups is None or len(self._named) < 2:
                continue
            for name, experiment, priority in self._groups.make_room(self._may_yield):
                segment = self.segments[name]
                reason = f"to make room for experiment {experiment} (priority {priority})"
                trial, ordinal = segment.ref
                segment.inbound.loop.put(RoomWanted(time=time.time(), trial=trial, segment=ordinal, reason=reason))

    def _may_yield(self, name: str) -> bool:
        """Return whether a segment can be paused and go on later from a checkpoint."""
        found = self.segments.get(name)
        return found is not None and found.inbound.core.may_yield(found.ref)

    async def _take_commands(self) -> None:
        for command in await asyncio.to_thread(self.store.commands.pending, list(self.driven)):
            driven = self.driven.get(command.experiment_id)
            if driven is not None and _key(command) not in self._seen:
                self._seen.add(_key(command))
                driven.loop.put(as_event(command), command=command.id)

    async def _take_experiments(self) -> None:
        now = time.time()
        free = await asyncio.to_thread(self.store.drivers.claimable, now)
        free += await asyncio.to_thread(self._left_by_the_dead, now)
        found = [r for r in free if r.id not in self.tasks and now >= self._not_before.get(r.id, 0.0)]
        if time.monotonic() < self._failed_at + self.settings.lease_s / 2:
            # Reads or writes have failed, so leases of living holders have expired. They need a moment to renew them.
            found = [r for r in found if r.driver_owner in (None, self.owner) or self._is_gone(r.driver_owner)]
        found = self._without_fresh(found)
        theirs = [record.id for record in found if record.source in SCRIPTS]
        commands = await asyncio.to_thread(self.store.commands.pending, theirs)
        cancelled = {c.experiment_id for c in commands if c.command in ("cancel", "kill") and c.trial is None}
        for record in found:
            if record.id in self.tasks:
                continue
            if record.source not in SCRIPTS:
                self._take_up(record, "it was created over the API")
            elif record.state is ExperimentState.CANCELLING or record.id in cancelled:
                self._take_up(record, "it is to be cancelled")
            elif record.abandoned(now) and self._adopting:
                await self.write(self.store.drivers.adopt, record.id)
                self._take_up(record, "its script is gone, and this service adopts such experiments")
            elif record.abandoned(now) and record.public_id not in self._offered:
                self._offered.add(record.public_id)
                self._news.append(how_to_go_on(record))

    def _without_fresh(self, found: Sequence[ExperimentRecord]) -> list[ExperimentRecord]:
        """Return the records without those whose lease has been seen expired for less than `WITNESS_S`.

        This host may have begun when an outage of the database had just ended, and so know nothing of it.
        """
        now, before, self._expired = time.monotonic(), self._expired, {}
        ready = []
        for record in found:
            if record.driver_owner in (None, self.owner) or self._is_gone(record.driver_owner):
                ready.append(record)
                continue
            epoch, since = before.get(record.id, (0, 0.0))
            if epoch != record.driver_epoch:
                epoch, since = record.driver_epoch, now
            self._expired[record.id] = (epoch, since)
            if now >= since + WITNESS_S:
                ready.append(record)
        return ready

    def _left_by_the_dead(self, now: float) -> list[ExperimentRecord]:
        """Return the experiments whose driver is dead and whose lease has not expired. Look every `LEASES_S` seconds."""
        if time.monotonic() < self._leases_read_at + LEASES_S:
            return []
        self._leases_read_at = time.monotonic()
        return [r for r in self.store.drivers.claimable(now, leased_from=self.owner) if self._is_gone(r.driver_owner)]

    def _is_gone(self, owner: str | None) -> bool:
        return owner in self._gone or owner_is_dead(owner)

    def _take_up(self, record: ExperimentRecord, why: str) -> None:
        self._offered.discard(record.public_id)
        self._news.append(f"{record.public_id} ({record.name}) is driven here: {why}")
        self._begin(record)


def _key(command: CommandRecord) -> CommandKey:
    return command.id, command.experiment_id, command.created_at


def end_other_versions(settings: Settings) -> list[tuple[str, str | None]]:
    """End the shared hosts of this database that another version of this package has started.

    Return (version, owner) of each; the owner is None if the host did not say. The next host claims their experiments.

    Raises:
        NewerHost: a service of a newer version runs and uses such a host. If each of two services ended the other's host,
            no experiment would go on.
    """
    base, ended = _base_name(settings), []
    for name in sorted(_names_of_hosts()):
        version = name.removeprefix(base)
        if (
            name == _shared_name(settings)
            or not name.startswith(base)
            or (version and not version.startswith(_VERSION))
        ):
            continue
        try:
            host = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:  # it has just ended
            continue
        status: dict[str, Any] = {}
        with contextlib.suppress(Exception):  # it is ended even if it does not answer
            status = ray.get(host.status.remote(), timeout=ANSWER_S)
        number = version.removeprefix(_VERSION)
        if number and status.get("attended") and Version(number) > Version(__version__):
            raise NewerHost(
                f"a service of version {number} drives the experiments of this database; this one is {__version__} and drives "
                "none while that one runs: update it, or end the other one"
            )
        owner = status.get("owner")
        ray.kill(host)
        until = time.monotonic() + ANSWER_S
        while (
            name in _names_of_hosts() and time.monotonic() < until
        ):  # once it is gone, its placement groups are orphans
            time.sleep(0.05)
        ended.append((version.removeprefix(_VERSION) or "an earlier version", owner))
    return ended


def _names_of_hosts() -> set[str]:
    actors = ray.util.list_named_actors(all_namespaces=True)
    return {
        actor["name"] for actor in actors if actor["namespace"] == NAMESPACE and actor["name"].startswith(HOST_PREFIX)
    }


def _base_name(settings: Settings) -> str:
    return f"{HOST_PREFIX}{keyed_seed(0, settings.database_url):016x}"


def _shared_name(settings: Settings) -> str:
    return f"{_base_name(settings)}{_VERSION}{__version__}"


def start_host(settings: Settings, *, shared: bool = False) -> Any:
    """Start the actor and return its handle.

    A shared one outlives its creator. Its name follows from its database and from the version of this package, so that a
    service never uses a host that runs the code of another version.
    """
    name = _shared_name(settings) if shared else f"{_base_name(settings)}-{secrets.token_hex(6)}"
    options: dict[str, Any] = {
        "num_cpus": 0,
        "max_concurrency": 10_000,
        "namespace": NAMESPACE,
        "name": name,
        "enable_task_events": False,  # otherwise Ray's head keeps a record of each report
    }
    if settings.database_url.startswith("sqlite"):  # the file is on this machine, so the host stays here
        here = ray.get_runtime_context().get_node_id()
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(here, soft=False)
    if shared:
        options |= {"lifetime": "detached", "get_if_exists": True}
    return ray.remote(Host).options(**options).remote(settings, name)
