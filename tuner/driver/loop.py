"""The real-time shell: it takes events from its inbox, commits them, and carries out the resulting actions.

It knows neither Ray nor SQL, only the ports (`tuner.driver.ports`). Until the batch with a decision is committed, no rank gets
an answer and no action is carried out.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, assert_never

from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.batch import Batch
from tuner.domain.events import Event, Failure
from tuner.domain.keys import keyed_random
from tuner.domain.segments import CheckpointInfo, Outcome, SegmentRef, Verdict
from tuner.domain.states import ExperimentState
from tuner.driver.core import Core, Effects
from tuner.driver.core.actions import Action, Ask, DeleteCheckpoint, Fit, Interrupt, RunSegment, suggested
from tuner.driver.gathering import Gathering
from tuner.driver.ports import Groups, Journal
from tuner.driver.pulse import PULSE
from tuner.errors import CheckpointError, CheckpointUnreachable, LostLease, Retryable, text_of
from tuner.schedulers.stoppers import ITERATION, TIME, CombinedStopper, Stopper
from tuner.search.base import Suggestion
from tuner.telemetry import tracing

log = logging.getLogger(__name__)

T = TypeVar("T")

BATCH = 500
"""The maximum number of events in one transaction."""

RETRY_COMMIT_S = (0.1, 0.3, 1.0, 2.0)
"""Seconds to wait between attempts to commit while the database is unreachable. All further attempts use the last one."""

OUTAGE_S = 3600.0
"""By default, a commit is retried for this many seconds while the database is unreachable."""

TRIES = 4
"""The maximum number of attempts to commit if they fail with errors that may be permanent."""

TELL_S = 60.0
"""Seconds between two messages in the process's log about the same database outage."""

DELETIONS_S = 30.0
"""At the end of an experiment, the loop waits for checkpoint deletions until none has finished for this many seconds."""

LOOK_S = 0.05
"""Seconds between two checks of the inbox while the loop waits for deletions."""

BUDGET_S = 0.25
"""The maximum time between two checks of the time budget and of the clock, in seconds."""

JUMP_S = 1.0
"""A change of the clock by at least this many seconds at once counts as a jump."""

DELETE_AGAIN_S = (1.0, 2.0, 4.0, 8.0, 15.0, 60.0, 240.0)
"""Seconds to wait before the deletion of a checkpoint is tried again, if the storage did not answer.

If it fails after the last wait, or for another reason, the next driver tries it.
"""

ASK_AGAIN_S = (0.5, 2.0)
"""Seconds to wait before a slow searcher that failed is tried again. If it fails after the last wait, the trial's configuration
is drawn at random.
"""


class Stopped(RuntimeError):
    """Raised to those who wait for an event if the loop is cancelled."""


@dataclass(slots=True)
class _Item:
    event: Event
    done: asyncio.Future[Verdict | None]
    command: int | None = None
    segment: SegmentRef | None = None  # the segment whose verdict is requested

    @property
    def urgent(self) -> bool:
        """Return whether somebody is waiting for the commit. Nobody waits for a report between two milestones."""
        return self.segment is not None or not isinstance(self.event, e.Reported)


class ExperimentLoop:
    """Drives one experiment until it has ended or is paused."""

    def __init__(self, core: Core, journal: Journal, groups: Groups, outage_s: float = OUTAGE_S) -> None:
        self.core, self.journal, self.groups, self.outage_s = core, journal, groups, outage_s
        self._inbox: asyncio.Queue[_Item] = asyncio.Queue()
        self._urgent = asyncio.Event()  # an event has arrived whose commit somebody is waiting for
        self._gathering = Gathering()
        self._early: list[_Item] | None = []  # events that arrived before `run`; None once the inbox is open
        self._taken: list[_Item] = []  # the events that were taken from the inbox last
        self._tasks: set[asyncio.Task[None]] = set()
        self._deletions: set[asyncio.Task[None]] = set()
        self._launched: dict[SegmentRef, int] = {}  # segment -> event_seq of the decision to run it
        self._stopped: BaseException | None = None
        self._foreign = runs_user_code(core)
        self._amended = asyncio.Event()  # a user may have changed the budget
        self._clocks = (time.time(), time.monotonic())  # what both clocks showed at the newest comparison
        self._jumped: asyncio.Future[Verdict | None] | None = None  # is done once the newest jump is committed
        self._put_back = False  # whether the clock has jumped back
        # Held while a thread changes the core; only a core that calls the user's code is changed in a thread.
        self.deciding = asyncio.Lock()
        self._outside = core.stopper is not None and any(stopper.outside for stopper in core.stopper.functions())

    @property
    def stopped(self) -> BaseException | None:
        """Return why the loop takes no more events; None if it still takes them."""
        return self._stopped

    # ------------------------------------------------------------------------------------------------ in

    def put(
        self, event: Event, *, command: int | None = None, segment: SegmentRef | None = None
    ) -> asyncio.Future[Verdict | None]:
        """Queue an event. Return a future that is done once the event is committed, with the verdict for `segment`, if given.

        Events that arrive before `run` wait until DriverStarted has been handled, so that no decision is based on an
        outdated state, and so that time without a driver is not counted as training time.

        If a command causes the event, `command` is the id of the command's row.
        """
        done = asyncio.get_running_loop().create_future()
        item = _Item(event, done, command, segment)
        if self._stopped is not None:
            done.set_exception(self._stopped)
            done.exception()
        elif self._early is not None:
            self._early.append(item)
        else:
            self._compare_clocks()
            if self._put_back and event.time > (now := self._clocks[0]):  # it was stamped before that
                item.event = replace(event, time=now)
            self._queue(item)
        return done

    def _queue(self, item: _Item) -> None:
        self._inbox.put_nowait(item)
        if item.urgent:
            self._urgent.set()

    def _compare_clocks(self) -> None:
        """Queue ClockJumped if the wall clock has jumped since the last comparison.

        The monotonic clock does not run while the machine is suspended, so a suspend is a jump, too. If only the process was
        stopped, for example by SIGSTOP or `docker pause`, both clocks kept running, but that counts as a jump, too.
        """
        (start, before), (now, steady) = self._clocks, (time.time(), time.monotonic())
        self._clocks = (now, steady)
        passed = steady - before
        still = max(0.0, min(PULSE.still_s(before), passed - BUDGET_S))
        jump = (now - start) - passed + still
        if abs(jump) < JUMP_S:
            return
        log.warning("the clock has jumped by %.1f s, or the machine or this process was suspended", jump)
        self._put_back = self._put_back or jump < 0
        item = _Item(e.ClockJumped(time=now, start=start, seconds=jump), asyncio.get_running_loop().create_future())
        self._queue(item)
        self._jumped = item.done

    async def report(self, events: Sequence[e.Reported]) -> Verdict | None:
        """Commit reports of one segment, in order. Return the verdict if the ranks wait at the last report, else None."""
        if not events:
            return None
        last = events[-1]
        judged: Mapping[int, e.StopJudged] = {}
        if self._outside:
            await self._know_jumps()
            judged = await self._judged(events)
        for event in events:
            if (found := judged.get(event.report_no)) is not None:
                self.put(found)
            if event is not last:
                self.put(event)
        return await self.put(last, segment=last.ref if last.waits else None)

    async def _know_jumps(self) -> None:
        """Wait until the core knows of each jump of the clock, so that none counts as training."""
        if self._early is None and self._stopped is None:
            self._compare_clocks()
            if self._jumped is not None and not self._jumped.done():
                await asyncio.wait([self._jumped])  # not `await`: if this call were cancelled, so would be the future

    async def _judged(self, events: Sequence[e.Reported]) -> dict[int, e.StopJudged]:
        """Call the user's stop functions for reports that the core has not seen yet. Return the functions' answers by report_no.

        Only this trial waits for the functions. Reports at which every function lets the trial continue are left out.
        """
        trials = self.core.trials
        found: dict[int, e.StopJudged] = {}
        if events[0].trial not in trials:
            return found
        trial = trials[events[0].trial]
        last, ran = dict(trial.last), trial.running_s
        segment, steady = trial.segment, self.core.experiment.steady
        clock = segment.clock if segment is not None and segment.started else steady.at(events[0].time)
        for event in events:
            at = steady.at(event.time)
            ran, clock = ran + max(0.0, at - clock), at
            last |= event.metrics
            metrics = {ITERATION: float(event.iteration), TIME: ran, **last}
            answers = await self.groups.judge(event.trial, metrics)
            if any(answer.get("stop", True) for answer in answers):
                found[event.report_no] = e.StopJudged(
                    time=event.time,
                    trial=event.trial,
                    segment=event.segment,
                    iteration=event.iteration,
                    answers=answers,
                )
        return found

    async def handle_first(self, events: Sequence[Event], commands: Sequence[int] = (), reason: str = "") -> None:
        """Commit events before `run` and without the actions that follow from them, which the next takeover decides again.

        commands: the ids of the command rows that the events carry out.
        reason: the experiment's reason, in place of the core's.
        """
        out = Effects()
        for event in events:
            out.absorb(self.core.handle(event))
        batch = self._batch(out, list(commands), [])
        await self._commit(replace(batch, summary={**batch.summary, "reason": reason}) if reason else batch)

    # ------------------------------------------------------------------------------------------------ the loop

    async def run(
        self,
        epoch: int,
        slots: int | None,
        commands: Mapping[int, Event] | None = None,
        executor: str = "",
        workers: int | None = None,
        uploaded: Sequence[CheckpointInfo] = (),
    ) -> ExperimentState:
        """Take over the experiment and drive it until it has ended or is paused. Return its state.

        epoch: this driver's epoch, which every commit checks.
        slots: how many trials the cluster can run at once.
        commands: the events of commands that users have already given, by command id.
        executor: where trials run and why, for the log.
        workers: for elastic trials, how many ranks the cluster holds.
        uploaded: the checkpoints whose uploads ended while the experiment had no driver.
        """
        started = e.DriverStarted(
            time=time.time(), epoch=epoch, slots=slots, executor=executor, workers=workers, uploaded=tuple(uploaded)
        )
        PULSE.start()
        self._open_inbox(started, commands or {})
        self._track(self._watch_clocks())
        self._track(self._watch_budget())
        self._track(self._watch_gpu_hours())
        try:
            while items := await self._take():
                await self._handle(items)
            return self.core.state
        except asyncio.CancelledError:  # whoever waits for an event is not cancelled
            self._stopped = Stopped("the driver has been stopped")
            raise
        except BaseException as error:
            self._stopped = error
            raise
        finally:
            await self._wind_up()

    def _open_inbox(self, started: e.DriverStarted, commands: Mapping[int, Event]) -> None:
        """Queue DriverStarted first, then the pending commands, then the events that arrived before `run`."""
        early, self._early = self._early or [], None
        self._clocks = (time.time(), time.monotonic())
        self.core.decider.expect(list(commands.values()))
        self.put(started)
        for command, event in commands.items():
            self.put(event, command=command)
        for item in early:
            self._inbox.put_nowait(item)

    async def _take(self) -> list[_Item]:
        """Wait for the next events and return them. Return an empty list once the experiment has ended or is paused.

        Before returning an empty list, wait for deletions of checkpoint files until none has finished for
        `DELETIONS_S`. A command that arrives meanwhile is handled as usual; a resume makes the experiment continue.
        """
        until: float | None = None
        while self._inbox.empty() and self._over():
            until = time.monotonic() + DELETIONS_S if until is None else until
            if not self._deletions or time.monotonic() >= until:
                return []
            await asyncio.wait(self._deletions, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        items = self._taken = [await self._inbox.get()]
        self._take_present(items)
        if self._inbox.empty() and not any(item.urgent for item in items):
            await self._gather(items)
        self._gathering.committing(len(items), time.monotonic())
        return items

    def _take_present(self, items: list[_Item]) -> None:
        while len(items) < BATCH and not self._inbox.empty():
            items.append(self._inbox.get_nowait())

    async def _gather(self, items: list[_Item]) -> None:
        """Wait a moment for more events, if many are arriving. Stop waiting as soon as an urgent one arrives."""
        if pause := self._gathering.pause_s(time.monotonic()):
            self._urgent.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._urgent.wait()
            before = len(items)
            self._take_present(items)
            self._gathering.paused(len(items) - before)

    async def _handle(self, items: list[_Item]) -> None:
        out = await self._decide(self._fold, items)
        commands = [item.command for item in items if item.command is not None]
        deletes = [a.info.id for a in out.actions if isinstance(a, DeleteCheckpoint) and not a.lost]
        pinned: Collection[str] = ()
        if out.log or commands or deletes:
            pinned = await self._commit(self._batch(out, commands, deletes))
        verdicts, milestones = await self._decide(self._answers, items, out.actions)
        for item, verdict in zip(items, verdicts, strict=True):
            if not item.done.done():
                item.done.set_result(verdict)
        for action in out.actions:
            if not (isinstance(action, DeleteCheckpoint) and action.info.id in pinned):
                self._act(action, milestones)
        if any(isinstance(item.event, e.Amended | e.Commanded) for item in items):
            self._amended.set()

    async def _decide(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function that may change the core, and return its value. Use a thread if the core may call the user's code."""
        if not self._foreign:
            return function(*args)
        async with self.deciding:
            try:
                return await asyncio.to_thread(function, *args)
            except SystemExit as error:  # it would end the event loop, and with it all experiments of this host
                raise RuntimeError(f"the user's code has called sys.exit({text_of(error)})") from error

    def _fold(self, items: list[_Item]) -> Effects:
        out = Effects()
        for item in items:
            out.absorb(self.core.handle(item.event))
        return out

    def _answers(
        self, items: list[_Item], actions: list[Action]
    ) -> tuple[list[Verdict | None], dict[SegmentRef, int | None]]:
        """Return a verdict for each item (None if it requested none), and the first milestone of each segment to run."""
        verdicts = [self.core.verdict(item.segment) if item.segment is not None else None for item in items]
        launches = [action for action in actions if isinstance(action, RunSegment)]
        return verdicts, {a.segment: self.core.first_milestone(a.segment) for a in launches}

    def _batch(self, out: Effects, commands: list[int], deletes: list[str]) -> Batch:
        core = self.core
        carried_out: list[int] = []
        superseded: dict[int, int] = {}
        for seq, entry in out.log:
            match entry:
                # SegmentStarted takes a different path from the first report, and may arrive later
                case e.SegmentStarted() | e.Reported():
                    carried_out += self._carried_out(entry.ref)
                case d.Start():  # a start stays pending until its segment has started
                    pass
                case d.Resume() | d.Retry() | d.Exploit() | d.Resize():
                    superseded[entry.trial] = seq
                case d.Pause() | d.Stop() | d.Complete() | d.Fail() | d.Cancel():
                    superseded[entry.trial] = seq
                    carried_out.append(seq)
                case d.Finish() | d.Note():
                    carried_out.append(seq)
                case (
                    e.DriverStarted()
                    | e.Waiting()
                    | e.StopJudged()
                    | e.CheckpointSaved()
                    | e.CheckpointDeleted()
                    | e.UploadFailed()
                    | e.SegmentEnded()
                    | e.Suggested()
                    | e.Drawn()
                    | e.Noted()
                    | e.ModelFitted()
                    | e.Commanded()
                    | e.Amended()
                    | e.Enqueued()
                    | e.Pinned()
                    | e.RoomWanted()
                    | e.BudgetSpent()
                    | e.GpuHoursSpent()
                    | e.SlotsChanged()
                    | e.WorkersChanged()
                    | e.ClockJumped()
                ):
                    pass
                case _:
                    assert_never(entry)
        return Batch(
            log=out.log,
            trials=[core.trials[n] for n in out.touched],
            state=core.state,
            time=core.experiment.now,
            summary=core.summary(),
            carried_out=carried_out,
            superseded=superseded,
            best=out.best if core.experiment.leaderboard.tells_best else None,
            commands=commands,
            deletes=deletes,
        )

    def _carried_out(self, segment: SegmentRef) -> list[int]:
        seq = self._launched.pop(segment, 0)
        return [seq] if seq else []

    async def _commit(self, batch: Batch) -> Collection[str]:
        """Commit the batch. While the database is unreachable, retry for `outage_s`; after other errors, give up sooner."""
        begun, told = time.monotonic(), -TELL_S
        for tries, wait in enumerate(itertools.chain(RETRY_COMMIT_S, itertools.repeat(RETRY_COMMIT_S[-1])), 1):
            try:
                with tracing.span("commit", entries=len(batch.log), attempt=tries):
                    pinned = await self.journal.commit(batch)
                break
            except LostLease:
                raise
            except Exception as error:
                away = time.monotonic() - begun
                if away + wait > self.outage_s if isinstance(error, Retryable) else tries >= TRIES:
                    raise
                if away >= told + TELL_S:
                    told = away
                    log.warning("a commit has been failing for %.0f s and will be retried: %s", away, error)
                await asyncio.sleep(wait)
        if tries > 1:
            log.warning("the commit succeeded after %.1f s", time.monotonic() - begun)
        return pinned

    def _over(self) -> bool:
        return self.core.ended or self.core.state is ExperimentState.PAUSED

    async def _wind_up(self) -> None:
        if self._stopped is None:
            self._stopped = RuntimeError("the experiment has ended")
        PULSE.end()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        left, self._early = [*self._taken, *(self._early or [])], None
        while not self._inbox.empty():
            left.append(self._inbox.get_nowait())
        for item in left:
            if not item.done.done():
                item.done.set_exception(self._stopped)
                item.done.exception()

    # ------------------------------------------------------------------------------------------------ actions

    def _act(self, action: Action, milestones: Mapping[SegmentRef, int | None]) -> None:
        match action:
            case RunSegment():
                self._launched[action.segment] = action.decision_seq
                self._track(self._run_segment(action.segment, milestones[action.segment]))
            case Interrupt():
                self._track(self.groups.interrupt(action.segment, action.why))
            case Fit():
                self._track(self._fit(action.payload))
            case Ask():
                self._track(self._ask(action.number))
            case DeleteCheckpoint():
                deletion = self._track(self._delete(action))
                self._deletions.add(deletion)
                deletion.add_done_callback(self._deletions.discard)
            case _:
                assert_never(action)

    async def _run_segment(self, segment: SegmentRef, milestone: int | None) -> None:
        try:
            with tracing.span("segment", trial=segment.trial, segment=segment.ordinal):
                outcome = await self.groups.run(segment, milestone)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("%s could not be run", segment)
            failure = Failure(kind="system", cause="driver", message=f"{type(error).__name__}: {error}")
            outcome = Outcome(kind="failed", failure=failure)
        event = e.SegmentEnded(
            time=time.time(),
            trial=segment.trial,
            segment=segment.ordinal,
            outcome=outcome.kind,
            failure=outcome.failure,
            warning=outcome.warning,
            uploading=outcome.uploading,
        )
        self.put(event)
        for info in outcome.uploading:
            self._track(self._await_upload(segment, info))

    async def _await_upload(self, segment: SegmentRef, info: CheckpointInfo) -> None:
        try:
            end = await self.groups.upload_end(segment, info)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("cannot track the upload of %s (%s)", info.id, segment)
            end = f"{type(error).__name__}: {error}"
        about: dict[str, Any] = {"time": time.time(), "trial": segment.trial, "segment": segment.ordinal}
        if isinstance(end, str):
            self.put(e.UploadFailed(**about, checkpoint=info, reason=end))
        else:
            self.put(e.CheckpointSaved(**about, checkpoint=end))

    async def _fit(self, payload: Mapping[str, Any]) -> None:
        try:
            result = await self.groups.offload(type(self.core.scheduler).fit, payload)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a model fit failed; the scheduler keeps using the previous model")
            result = {}
        self.put(e.ModelFitted(time=time.time(), payload=result))

    async def _ask(self, number: int) -> None:
        searcher = self.core.searcher
        suggestion: Suggestion | None = None
        for wait in (*ASK_AGAIN_S, None):
            try:
                async with self.deciding:  # no thread changes the trials meanwhile
                    suggestion = await self.groups.suggest(searcher, number, self.core.trials)
                break
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.exception("the searcher failed to propose trial %s", number)
                if wait is None:
                    drawn = searcher.context.space.sample(keyed_random(searcher.context.seed, "instead", number))
                    note = f"drawn at random, because the searcher failed: {type(error).__name__}: {text_of(error)}"
                    suggestion = Suggestion(drawn, note=note[:500])
                else:
                    await asyncio.sleep(wait)
        self.put(suggested(time.time(), number, suggestion))

    async def _delete(self, action: DeleteCheckpoint) -> None:
        for wait in (*DELETE_AGAIN_S, None):
            try:
                await self.groups.delete_checkpoint(action.info)
                break
            except (OSError, CheckpointError) as error:
                if wait is None or not isinstance(error, CheckpointUnreachable):
                    log.warning("the checkpoint %s cannot be deleted: %s", action.info.uri, error)
                    return
                again = f"this is tried again in {wait:g} s"
                log.warning("the checkpoint %s cannot be deleted: %s; %s", action.info.uri, error, again)
            await asyncio.sleep(wait)
            if action.info.id not in self.core.experiment.checkpoints.deleting:
                return  # a trial needs it again, since another checkpoint was lost
        self.put(e.CheckpointDeleted(time=time.time(), trial=action.trial, checkpoint=action.info.id))

    async def _watch_clocks(self) -> None:
        """Compare the clocks at short intervals, so that it is known when a jump began, and whether this process was stopped."""
        while True:
            self._compare_clocks()
            await asyncio.sleep(BUDGET_S)

    async def _watch_budget(self) -> None:
        """Queue BudgetSpent when the time budget is used up, and again whenever a raised budget is used up."""
        while True:
            await self._know_jumps()
            experiment, budget, now = self.core.experiment, self.core.spec.limits.time_budget_s, time.time()
            since = experiment.steady.at(now) - experiment.ran if experiment.counts_time else 0.0
            spent = experiment.running_s + max(0.0, since)
            if budget is not None and spent >= budget and not self.core.ended:
                self.put(e.BudgetSpent(time=now, seconds=budget))
            self._amended.clear()
            left = budget - spent if budget is not None and spent < budget else None
            with contextlib.suppress(TimeoutError):  # not `wait_for`, which may ignore a cancellation in Python 3.11
                async with asyncio.timeout(None if left is None else min(left, BUDGET_S)):
                    await self._amended.wait()

    async def _watch_gpu_hours(self) -> None:
        """Queue GpuHoursSpent when the GPU hours are used up, and again whenever a raised limit is used up."""
        while True:
            await self._know_jumps()
            experiment, limit = self.core.experiment, self.core.spec.limits.gpu_hours
            now = time.time()
            ran = experiment.steady.at(now)
            watched = limit is not None and not experiment.capped and not self.core.ended
            if limit is not None and watched and experiment.usage.gpu_hours(ran) >= limit:
                await self.put(e.GpuHoursSpent(time=now, gpu_hours=limit))
                continue
            left = None if limit is None else experiment.usage.left_s(limit, ran)
            await asyncio.sleep(BUDGET_S if left is None else min(max(left, 0.001), BUDGET_S))

    def _track(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        with contextlib.suppress(asyncio.CancelledError):
            if (error := task.exception()) is not None and not isinstance(error, LostLease):
                log.error("an action failed", exc_info=error)


def runs_user_code(core: Core) -> bool:
    """Return whether the core may call the user's own scheduler, searcher or stopper, whose calls can take arbitrarily long.

    The user's stop functions do not count, because the shell calls them before the core sees a report.
    """
    scheduler, stopper = core.scheduler, core.stopper
    mutations = getattr(scheduler, "mutations", {})
    return (
        not is_ours(scheduler, "tuner.schedulers.")
        or not is_ours(core.searcher, "tuner.search.")
        or getattr(scheduler, "custom_explore_fn", None) is not None
        or any(getattr(mutation, "function", None) is not None for mutation in mutations.values())
        or not all(is_ours(one, "tuner.schedulers.stoppers") for one in _parts(stopper))
    )


def _parts(stopper: Stopper | None) -> list[Stopper]:
    if isinstance(stopper, CombinedStopper):
        return [one for part in stopper.stoppers for one in _parts(part)]
    return [] if stopper is None else [stopper]


def is_ours(part: object, where: str) -> bool:
    """Return whether a scheduler, searcher or stopper is from the module or package `where` and calls no user code."""
    module = type(part).__module__
    return module.startswith(where) and module not in _ADAPTERS


_ADAPTERS = ("tuner.schedulers.stoppers.from_ray", "tuner.search.ray_searcher")
"""Modules of tuner whose classes wrap a stopper or searcher that the user passed."""
