"""Provide the ports of one experiment on a host: its journal, its groups and its inbound port."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tuner.domain.batch import Batch
from tuner.domain.events import CheckpointSaved, Commanded, Drawn, Noted, Reported, SegmentStarted, Waiting
from tuner.domain.keys import segment_id, trial_id
from tuner.domain.segments import CheckpointInfo, Interruption, Outcome, Report, SegmentRef, Verdict
from tuner.domain.trial import Population
from tuner.driver.assemble import assemble
from tuner.driver.core import Core
from tuner.driver.core.rules.reports import unusable
from tuner.driver.loop import ExperimentLoop, is_ours, runs_user_code
from tuner.driver.parts import load_parts, without_parts
from tuner.errors import CheckpointUnreachable, SpecError
from tuner.experiment.code.by_value import runnable_parts, runnable_space
from tuner.experiment.specs.stored import check_driven
from tuner.hosts.executor import Executor
from tuner.hosts.executors import Executors
from tuner.hosts.helpers.judge import Judge
from tuner.hosts.helpers.proposals import Proposals
from tuner.hosts.measures.driver_log import DriverLogs
from tuner.hosts.measures.logs import LogKeeper, Owner
from tuner.hosts.writer import Writer
from tuner.schedulers.functions import functions_by_name, sealed
from tuner.search.base import Searcher, Suggestion
from tuner.settings import Settings
from tuner.space import Space
from tuner.store import Store
from tuner.store.records import CodeRecord, ExperimentRecord
from tuner.trials.checkpoints.checkpoints import where_now
from tuner.trials.checkpoints.objects import Stored
from tuner.trials.checkpoints.storage import is_local, is_passing, is_within, join
from tuner.trials.messages.launch import CodeRef, Launch, Resend

SETTLE_S = 0.002
"""Seconds between two checks of whether a segment has ended."""

Draw = Callable[[int, str, str], Awaitable[tuple[Any, dict[str, Any]]]]
"""The type of `HostGroups.draw`, which draws the value of a parameter that a running trial asks for."""


Say = Callable[..., None]
"""The type of `HostGroups.say`, which writes a message about a segment to the driver's log."""


@dataclass(frozen=True, slots=True)
class Running:
    """A segment that runs on this host."""

    experiment: int  # the store's id
    ref: SegmentRef
    start_iteration: int
    inbound: RankInbound


class DriverHost(Protocol):
    """The parts of a `Host` that the drivers of its experiments share."""

    settings: Settings
    store: Store
    owner: str  # the name under which the host holds leases
    executor: Executor
    executors: Executors
    segments: dict[str, Running]  # the segments that run, by id
    logs: LogKeeper | None
    driver_logs: DriverLogs
    proposals: Proposals
    writer: Writer


@dataclass(slots=True)
class _Received:
    """The reports of one segment that have arrived so far."""

    report_no: int = 0  # number of the newest report
    time: float = 0.0  # when that report was made

    def misses_before(self, reports: Sequence[Report]) -> bool:
        """Return whether a report that precedes the last of these reports is missing."""
        newest = self.report_no
        for report in reports:
            if report.report_no > newest + 1:
                return True
            newest = max(newest, report.report_no)
        return False

    def take(self, reports: Sequence[Report], now: float) -> list[float]:
        """Record these reports, and return the time at which each was made, by the clock of this process.

        The times never decrease and are never in the future.
        """
        times = []
        for report in reports:
            self.report_no = max(self.report_no, report.report_no)
            self.time = min(now, max(self.time, now - max(0.0, report.age)))
            times.append(self.time)
        return times


class StoreJournal:
    """The journal of one experiment, which writes batches to the store in the host's writer thread."""

    def __init__(self, host: DriverHost, experiment: int, epoch: int) -> None:
        self._host, self._experiment, self._epoch = host, experiment, epoch

    async def commit(self, batch: Batch) -> Collection[str]:
        return await self._host.writer.write(
            self._host.store.drivers.commit, self._experiment, self._epoch, batch, time.time()
        )


class RankInbound:
    """Turns the messages of an experiment's ranks into events for the experiment's loop."""

    def __init__(
        self,
        core: Core,
        loop: ExperimentLoop,
        running: Mapping[str, Running],
        draw: Draw,
        share: Callable[[Any], Any],
        say: Say,
    ) -> None:
        self.core, self.loop, self._running, self._draw, self._share = core, loop, running, draw, share
        self._say = say
        self._heard: dict[SegmentRef, _Received] = {}
        self._drawing = asyncio.Lock()
        self._objects: dict[Stored, Any] = {}

    def waiting(self, segment_id: str, reason: str) -> None:
        trial, ordinal = ref = self._running[segment_id].ref
        self._say(ref, "waits: %s", reason)
        self.loop.put(Waiting(time=time.time(), trial=trial, segment=ordinal, reason=reason))

    def started(self, segment_id: str, placement: Any, startup_s: float, warm: bool, held_s: float) -> None:
        trial, ordinal = ref = self._running[segment_id].ref
        how = "a warm group" if warm else "new processes"
        where = ", ".join(
            f"rank {rank['rank']} on {rank['host']} (process {rank['pid']})" for rank in placement["ranks"]
        )
        self._say(ref, "starts in %s after %.3f s: %s", how, startup_s, where)
        event = SegmentStarted(
            time=time.time(),
            trial=trial,
            segment=ordinal,
            placement=placement,
            startup_s=startup_s,
            warm=warm,
            held_s=held_s,
        )
        self.loop.put(event)

    async def report(
        self, segment: SegmentRef, start_iteration: int, reports: Sequence[Report]
    ) -> Verdict | Resend | None:
        """Commit a batch of reports. Return the verdict if the ranks wait, or a Resend if earlier reports are missing."""
        heard = self._heard.setdefault(segment, _Received())
        if heard.misses_before(reports):
            return Resend(after=heard.report_no)
        times = heard.take(reports, time.time())
        return await self.loop.report(
            [Reported.of(report, segment, start_iteration, at) for report, at in zip(reports, times, strict=True)]
        )

    async def checkpoint(self, segment: SegmentRef, info: CheckpointInfo) -> None:
        """Commit an event: a checkpoint of a segment was written, or its upload is complete."""
        trial, ordinal = segment
        await self.loop.put(CheckpointSaved(time=time.time(), trial=trial, segment=ordinal, checkpoint=info))

    async def draw(self, segment: SegmentRef, name: str, distribution: str) -> Any:
        """Return the value of a parameter that a running trial asks for. The value is committed before it is returned."""
        async with self._drawing:
            trial = self.core.trials[segment.trial]
            async with self.loop.deciding:  # no thread changes the trials meanwhile
                value, state = await self._draw(segment.trial, name, distribution)
            if name not in trial.params:
                event = Drawn(
                    time=time.time(), trial=segment.trial, segment=segment.ordinal, name=name, value=value, state=state
                )
                await self.loop.put(event)
            return value

    async def note(self, segment: SegmentRef, notes: dict[str, Any]) -> None:
        """Commit the user attributes that the training code has set for its trial."""
        await self.loop.put(Noted(time=time.time(), trial=segment.trial, segment=segment.ordinal, notes=notes))

    async def end(self, number: int, reason: str) -> None:
        """Stop a trial at the request of its training code."""
        await self.loop.put(Commanded(time=time.time(), command="stop", trial=number, reason=reason))

    async def object(self, stored: Stored) -> Any:
        """Return a reference to an object that was stored with the training code. The object is read once per experiment."""
        if stored not in self._objects:
            self._objects[stored] = self._share(await asyncio.to_thread(stored.load))
        return self._objects[stored]

    def unusable(
        self, segment: SegmentRef, metrics: Mapping[str, float], last: bool, before: Collection[str] = ()
    ) -> str | None:
        """Return why a report of these metrics would fail the trial; see `reports.unusable`."""
        return unusable(self.core.experiment, self.core.trials[segment.trial], metrics, last, before)

    async def settled(self, segment: SegmentRef) -> None:
        """Wait until the event that ends the segment is committed. Raise RuntimeError if the loop stops before that."""
        while self.core.experiment.segment(segment) is not None:
            if (why := self.loop.stopped) is not None:
                raise RuntimeError(f"the experiment is no longer driven here: {why}") from why
            await asyncio.sleep(SETTLE_S)
        late = Waiting(time=time.time(), trial=segment.trial, segment=segment.ordinal, reason="it has ended")
        await self.loop.put(late)  # this event changes nothing, and is handled after the commit

    def ended(self, segment: SegmentRef) -> None:
        """Forget the reports of a segment that has ended."""
        self._heard.pop(segment, None)


class HostGroups:
    """The worker groups of one experiment, on the executor that runs its trials."""

    inbound: RankInbound

    def __init__(
        self,
        host: DriverHost,
        record: ExperimentRecord,
        core: Core,
        space: Space,
        code: CodeRef,
        judge: Judge,
        sys_path: Sequence[str] = (),
    ) -> None:
        self._host, self.record, self._core, self._space, self._code = host, record, core, space, code
        self._judge, self._sys_path = judge, sys_path
        self._found: dict[SegmentRef, asyncio.Event] = {}  # is set once the checkpoint of a segment to run is found

    @property
    def storage(self) -> str:
        """Return the path or URI below which the experiment's checkpoints are stored."""
        return join(self.record.spec.checkpoint.storage or self._host.settings.storage, self.record.public_id)

    @property
    def log_dir(self) -> str:
        """Return the folder to which the ranks write their logs, each on its own node."""
        return str(self._host.settings.home / "logs" / self.record.public_id)

    async def run(self, segment: SegmentRef, milestone: int | None) -> Outcome:
        launch = self._launch(segment, milestone)
        if launch.checkpoint is not None:
            found = self._found[segment] = asyncio.Event()
            try:
                launch = replace(launch, checkpoint=await self._present(launch.checkpoint))
            finally:
                del self._found[segment]
                found.set()
        running = Running(self.record.id, segment, launch.start_iteration, self.inbound)
        self._host.segments[launch.segment_id] = running
        if self._host.logs is not None:
            self._host.logs.begin(launch.segment_id, Owner(self.record.id, *segment))
        self.say(segment, "requested %d x %s", launch.scaling.num_workers, launch.scaling.bundle())
        begun = time.monotonic()
        try:
            outcome = await self._host.executors.groups_of(self.record.spec).run(launch, inbox=self.inbound)
            why = "" if outcome.failure is None else f" ({outcome.failure.cause}): {outcome.failure.message}"
            self.say(segment, "%s after %.3f s%s", outcome.kind, time.monotonic() - begun, why)
            return outcome
        finally:
            self._host.segments.pop(launch.segment_id, None)
            running.inbound.ended(segment)

    async def upload_end(self, segment: SegmentRef, info: CheckpointInfo) -> CheckpointInfo | str:
        return await self._host.executors.groups_of(self.record.spec).upload_end(self._name(segment), info.id)

    async def interrupt(self, segment: SegmentRef, why: Interruption) -> None:
        if (found := self._found.get(segment)) is not None:
            await found.wait()  # until then, the executor does not know the segment
        # once the GPU hours are used up, the segment must not even wait for a last checkpoint
        hard = why == "stop" and self._core.experiment.capped
        await self._host.executors.groups_of(self.record.spec).interrupt(self._name(segment), "cancel" if hard else why)

    async def _present(self, info: CheckpointInfo) -> CheckpointInfo:
        """Return a checkpoint with the place where it is now, since users move homes."""
        if is_within(self.storage, info.uri):
            return info  # without a change to a thread, for which each warm start would wait
        return replace(info, uri=await asyncio.to_thread(where_now, info.uri, self.storage))

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        if self.record.spec.executor == "agents" and (not is_within(self.storage, info.uri) or self._in_use(info.uri)):
            return  # the checkpoint is outside the experiment's storage, or an agent has overwritten it with a newer one
        try:
            await self._host.executors.of(self.record.spec).delete_checkpoint(await self._present(info))
        except OSError as error:
            if is_passing(error):
                raise CheckpointUnreachable(str(error)) from error
            raise

    def _in_use(self, uri: str) -> bool:
        """Return whether a checkpoint that is still kept has this URI."""
        mine = uri.rstrip("/")
        kept = (kept for trial in self._core.trials for kept in trial.checkpoints.values())
        return any(one.info.uri.rstrip("/") == mine for one in kept)

    async def offload(self, function: Callable[..., Any], *args: Any) -> Any:
        executors = self._host.executors
        executors.groups_of(self.record.spec)  # without Ray, they have the helper processes
        return await executors.of(self.record.spec).offload(self._code.sys_path, function, *args)

    async def suggest(self, searcher: Searcher, number: int, trials: Population) -> Suggestion | None:
        if not is_ours(searcher, "tuner.search."):  # the user's own searcher: it runs where the training code runs
            return await self.offload(_suggest, searcher, number, trials)  # type: ignore[no-any-return]
        experiment = self.record.public_id
        return await self._host.proposals.suggest(experiment, searcher, number, trials, self._sys_path)

    async def forget_proposals(self) -> None:
        """Make the helper processes that run searchers release their data about this experiment."""
        await self._host.proposals.forget(self.record.public_id)

    async def draw(self, number: int, name: str, distribution: str) -> tuple[Any, dict[str, Any]]:
        """Return the value of a parameter that a running trial asks for, and the state to be stored with the trial."""
        searcher, trials = self._core.searcher, self._core.trials
        draw = getattr(searcher, "draw", None)
        if draw is None:
            raise SpecError(
                f"the training code asks for {name}, which the space does not have: search_alg='define_by_run' draws such "
                "parameters",
                f"/space/{name}",
            )
        if not searcher.is_heavy(trials):
            return draw(number, name, distribution, trials)  # type: ignore[no-any-return]
        experiment = self.record.public_id
        return await self._host.proposals.draw(experiment, searcher, number, name, distribution, trials, self._sys_path)

    async def judge(self, number: int, metrics: Mapping[str, float]) -> list[dict[str, Any]]:
        return await self._judge.ask(number, metrics)

    def say(self, segment: SegmentRef, message: str, *args: object) -> None:
        """Write a message about a segment to the driver's log."""
        experiment = self.record.public_id
        self._host.driver_logs.say(experiment, f"trial %d, segment %d: {message}", *segment, *args)

    def _name(self, segment: SegmentRef) -> str:
        return segment_id(self.record.public_id, *segment)

    def _launch(self, ref: SegmentRef, milestone: int | None) -> Launch:
        spec, settings = self.record.spec, self._host.settings
        present = self._core.spec
        spaces = (*present.former_spaces, present.space)
        segment = self._core.trials[ref.trial].segments[ref.ordinal - 1]
        experiment = self.record.public_id
        return Launch(
            experiment_id=experiment,
            trial_id=trial_id(experiment, ref.trial),
            segment_id=self._name(ref),
            trial_number=ref.trial,
            drawn_as=self._core.trials[ref.trial].drawn_as,
            segment=ref.ordinal,
            params=segment.params,
            seed=spec.seed,
            start_iteration=segment.start_iteration,
            checkpoint=segment.source,
            code=self._code,
            space=spaces[segment.space_revision],
            space_blob=self._space.blob(),
            scaling=replace(spec.scaling, num_workers=segment.workers),
            base_workers=spec.scaling.num_workers if spec.scaling.elastic else None,
            placed_before=any(one.started_at is not None for trial in self._core.trials for one in trial.segments),
            limits=self._core.spec.limits,
            checkpoint_policy=spec.checkpoint,
            storage=self.storage,
            has_saved=self._has_saved(),
            durable=settings.durability == "FULL",
            log_dir=self.log_dir,
            first_milestone=milestone,
            checkpoint_every=spec.checkpoint.frequency,
            milestone_checkpoints=self._core.scheduler.SAVES_AT_MILESTONES,
            metric=spec.objective.metric,
            modes=tuple(objective.mode for objective in spec.objectives),
            runtime_env=spec.resolved.get("runtime_env", spec.runtime_env),
        )

    def _has_saved(self) -> bool:
        """Return whether trials run on this machine, without Ray, and earlier ones have saved checkpoints in the storage here.

        A node of Ray need not have the folder of the experiment, even if the search began with the local executor.
        """
        if self._host.executors.of(self.record.spec).name != "local" or not is_local(self.storage):
            return False
        below, kept = f"{self.storage.rstrip('/')}/", self._core.experiment.checkpoints.newest_first()
        return any(info.node is None and info.uri.startswith(below) for info in kept)


class Driven:
    """An experiment that this host drives: the core, folded from the experiment's log, the loop, and the ports of the loop."""

    def __init__(self, host: DriverHost, record: ExperimentRecord, epoch: int) -> None:
        self.record = record
        check_driven(record)
        spec = record.first_spec  # the log contains later changes
        code = host.store.code.get(spec.code) if spec.code else None
        space_blob, parts_blob = runnable_space(code), runnable_parts(code)
        if code is not None and parts_blob is None and code.parts_blob is not None:
            # Another Python pickled the parts, so the experiment is only paused or cancelled here.
            spec = without_parts(spec)
        space = Space.from_json(spec.space, space_blob, opaque=code is not None and space_blob != code.space_blob)
        # The user's stop functions run only in the process of `Judge`, so they are not imported here.
        with functions_by_name():
            self.core: Core = assemble(spec, space, load_parts(parts_blob))
        # The user's own searcher or scheduler may read anything of a trial.
        reads_values = self.core.searcher.READS_VALUES or runs_user_code(self.core)
        self.core.experiment.keeps_values = reads_values
        stoppers = self.core.stopper.functions() if self.core.stopper is not None else []
        for stopper in stoppers:
            stopper.outside = True
        self._judge = Judge(
            [sealed(stopper.function) for stopper in stoppers],
            sys_path=code.sys_path if code else (),
            working_dir=code.working_dir if code else None,
            runtime_env=spec.resolved.get("runtime_env", spec.runtime_env),
        )
        for seq, entry in host.store.drivers.load(record.id):
            self.core.fold(seq, entry)
        self.groups = HostGroups(
            host, record, self.core, space, _code_ref(host, record, code), self._judge, code.sys_path if code else ()
        )
        self.loop = ExperimentLoop(self.core, StoreJournal(host, record.id, epoch), self.groups, host.settings.outage_s)
        self.inbound = self.groups.inbound = RankInbound(
            self.core, self.loop, host.segments, self.groups.draw, host.executors.of(record.spec).share, self.groups.say
        )

        self.slots: int | None = None  # how many of its trials the cluster could hold at the last check
        self.granted: int | None = None  # how many workers its elastic trials could have at the last check

    def workers(self, ref: SegmentRef) -> int:
        """Return the number of ranks of a segment."""
        return self.core.trials[ref.trial].segments[ref.ordinal - 1].workers

    async def close(self) -> None:
        """Stop the helper process for the user's stop functions, and break the reference cycles between the parts.

        The loop, the groups and the inbound port refer to each other, which would keep all trials in memory until the next
        full garbage collection.
        """
        await self._judge.close()
        await self.groups.forget_proposals()
        del self.loop, self.inbound, self.groups.inbound


def _suggest(searcher: Searcher, number: int, trials: Population) -> Suggestion | None:
    return searcher.suggest(number, trials)


def _code_ref(host: DriverHost, record: ExperimentRecord, code: CodeRecord | None) -> CodeRef:
    spec = record.spec
    if spec.executor == "agents":
        return CodeRef(hash="agents", entrypoint=spec.entrypoint)
    if code is None:
        assert spec.entrypoint is not None
        return CodeRef(hash=f"entrypoint:{spec.entrypoint}", entrypoint=spec.entrypoint)
    return CodeRef(
        hash=code.hash,
        entrypoint=spec.entrypoint,
        blob=host.executors.of(record.spec).share(code.blob) if code.blob else None,
        sys_path=tuple(code.sys_path),
        working_dir=code.working_dir or None,
    )
