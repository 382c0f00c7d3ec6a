"""The thin shell round the core: an inbox, a commit, and then the actions. Knows neither Ray nor SQL, only the two ports below.

Nothing is answered and nothing is done before the batch that decided it is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.batch import Batch, Entry
from tuner.domain.events import CheckpointInfo, Event, Failure
from tuner.domain.keys import keyed_random
from tuner.domain.states import ExperimentState
from tuner.domain.trial import Population
from tuner.driver.actions import Action, Ask, DeleteCheckpoint, Fit, Interrupt, Launch, Verdict, suggested
from tuner.driver.core import Core
from tuner.driver.fold import Outcome
from tuner.errors import LostLease
from tuner.schedulers.stoppers import ITERATION, TIME, CombinedStopper, Stopper
from tuner.search.base import Searcher, Suggestion

log = logging.getLogger(__name__)

T = TypeVar("T")

BATCH = 500
"""Events folded into one transaction at most."""

RETRY_COMMIT_S = (0.1, 0.3, 1.0, 3.0, 10.0, 10.0, 10.0)
"""Waits between attempts to commit while the database is out of reach; nothing is answered meanwhile."""


DELETIONS_S = 30.0
"""How long the end of an experiment waits for deletions of checkpoints."""

LOOK_S = 0.05
"""How often it looks meanwhile whether something else has come in."""

BUDGET_S = 0.25
"""How often the time budget is looked at, at least."""

ASK_AGAIN_S = (0.5, 2.0)
"""Waits before a heavy searcher that failed is asked again; after that a point is drawn at random."""


class Journal(Protocol):
    """Where batches are made durable. One writer: this loop."""

    async def commit(self, batch: Batch) -> None:
        """Write the batch whole or not at all, without blocking the event loop. LostLease if another driver has taken over.

        The core changes nothing until this returns, so the batch may be read from another thread.
        """


class Groups(Protocol):
    """Where segments run."""

    async def run(self, number: int, ordinal: int, milestone: int | None) -> tuple[str, Failure | None, str]:
        """Run the newest segment of a trial to its end: (outcome, failure, warning), see `SegmentEnded`."""

    async def interrupt(self, number: int, ordinal: int, why: str) -> None:
        """Make its ranks ask for a verdict soon."""

    async def kill(self, number: int, ordinal: int, why: str) -> None:
        """End it at once."""

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        """Remove a checkpoint's files; one that is gone is no error."""

    async def offload(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a pure function in a process of its own."""

    async def judge(self, number: int, metrics: Mapping[str, float]) -> list[dict[str, Any]]:
        """Call the user's stop functions in a process of their own: the `answers` of StopJudged."""


@dataclass(slots=True)
class _Item:
    event: Event
    done: asyncio.Future[Verdict | None]
    command: int | None = None
    segment: tuple[int, int, int | None] | None = None  # whose verdict is asked for


class ExperimentLoop:
    """Drives one experiment until it has ended or is paused."""

    def __init__(self, core: Core, journal: Journal, groups: Groups) -> None:
        self.core, self.journal, self.groups = core, journal, groups
        self._inbox: asyncio.Queue[_Item] = asyncio.Queue()
        self._early: list[_Item] | None = []  # what came before `run`; None once the inbox is open
        self._tasks: set[asyncio.Task[None]] = set()
        self._deletions: set[asyncio.Task[None]] = set()
        self._launched: dict[tuple[int, int], int] = {}  # segment -> decision that it carries out
        self._stopped: BaseException | None = None
        self._foreign = runs_user_code(core)
        self.deciding = asyncio.Lock()  # held while a thread changes the core; only where it runs the user's code
        self._outside = core.stopper is not None and any(stopper.outside for stopper in core.stopper.functions())

    # ------------------------------------------------------------------------------------------------ in

    def put(
        self, event: Event, *, command: int | None = None, segment: tuple[int, int, int | None] | None = None
    ) -> asyncio.Future[Verdict | None]:
        """Queue an event; the future is done when it is committed, with the verdict on `segment` as of then: the
        arguments of `Core.verdict`.

        What comes before `run` waits until DriverStarted has been handled, so that nothing is decided for a state that
        is about to change, and the time without a driver is never counted.
        """
        done = asyncio.get_running_loop().create_future()
        item = _Item(event, done, command, segment)
        if self._stopped is not None:
            done.set_exception(self._stopped)
            done.exception()
        elif self._early is not None:
            self._early.append(item)
        else:
            self._inbox.put_nowait(item)
        return done

    async def report(self, events: list[e.Reported], wait: bool, offer: int | None = None) -> Verdict | None:
        """Commit reports of one segment, in order; with `wait` the verdict after the last of them.

        offer: the report_no of the next report that a checkpoint may be had at, as far as its ranks can tell.
        """
        if not events:
            return None
        last = events[-1]
        judged = await self._judged(events) if self._outside else {}
        for event in events:
            if (found := judged.get(event.report_no)) is not None:
                self.put(found)
            if event is not last:
                self.put(event)
        return await self.put(last, segment=(last.trial, last.segment, offer) if wait else None)

    async def _judged(self, events: list[e.Reported]) -> dict[int, e.StopJudged]:
        """Ask the user's stop functions about reports of one segment, which have not been folded yet; by report_no.

        Only this trial waits for the answer. What none of the functions ends is left out.
        """
        trials = self.core.trials
        found: dict[int, e.StopJudged] = {}
        if events[0].trial not in trials:
            return found
        trial = trials[events[0].trial]
        last, ran = dict(trial.last), trial.running_s
        clock = trial.segments[-1].clock if trial.segments else events[0].time
        for event in events:
            ran, clock = ran + max(0.0, event.time - clock), event.time
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

    # ------------------------------------------------------------------------------------------------ the loop

    async def run(self, epoch: int, slots: int | None, commands: Mapping[int, Event] | None = None) -> ExperimentState:
        """Take the experiment over under this epoch, with the commands that wait for it, and drive it until it has ended or
        is paused.
        """
        self._open_inbox(e.DriverStarted(time=time.time(), epoch=epoch, slots=slots), commands or {})
        self._track(self._watch_budget())
        try:
            while items := await self._take():
                await self._handle(items)
            return self.core.state
        except BaseException as error:
            self._stopped = error
            raise
        finally:
            await self._wind_up()

    def _open_inbox(self, started: e.DriverStarted, commands: Mapping[int, Event]) -> None:
        """Let DriverStarted in first, then the commands that were waiting, then what has come meanwhile."""
        early, self._early = self._early or [], None
        self.put(started)
        for command, event in commands.items():
            self.put(event, command=command)
        for item in early:
            self._inbox.put_nowait(item)

    async def _take(self) -> list[_Item]:
        """Wait for the next events and return them; an empty list once the experiment has ended or is paused.

        Deletions of files that are under way at the end are waited for, as long as one is done every `DELETIONS_S`. A
        command that comes meanwhile is taken like any other: a resume makes the experiment go on.
        """
        until: float | None = None
        while self._inbox.empty() and self._over():
            until = time.monotonic() + DELETIONS_S if until is None else until
            if not self._deletions or time.monotonic() >= until:
                return []
            await asyncio.wait(self._deletions, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        items = [await self._inbox.get()]
        while len(items) < BATCH and not self._inbox.empty():
            items.append(self._inbox.get_nowait())
        return items

    async def _handle(self, items: list[_Item]) -> None:
        out = await self._decide(self._fold, items)
        commands = [item.command for item in items if item.command is not None]
        if out.log or commands:
            await self._commit(self._batch(out, items, commands))
        verdicts, milestones = await self._decide(self._answers, items, out.actions)
        for item, verdict in zip(items, verdicts, strict=True):
            if not item.done.done():
                item.done.set_result(verdict)
        for action in out.actions:
            self._act(action, milestones)

    async def _decide(self, function: Callable[..., T], *args: Any) -> T:
        """Call something that may call the scheduler; in a thread if that is, or calls, code of the user's."""
        if not self._foreign:
            return function(*args)
        async with self.deciding:
            return await asyncio.to_thread(function, *args)

    def _fold(self, items: list[_Item]) -> Outcome:
        out = Outcome()
        for item in items:
            out.absorb(self.core.handle(item.event))
        return out

    def _answers(
        self, items: list[_Item], actions: list[Action]
    ) -> tuple[list[Verdict | None], dict[tuple[int, int], int | None]]:
        """The verdicts that were asked for, and the first milestones of the segments that are to be launched."""
        verdicts = [self.core.verdict(*item.segment) if item.segment is not None else None for item in items]
        launches = [action for action in actions if isinstance(action, Launch)]
        return verdicts, {(a.trial, a.segment): self.core.first_milestone(a.trial) for a in launches}

    def _batch(self, out: Outcome, items: list[_Item], commands: list[int]) -> Batch:
        core = self.core
        carried_out: list[int] = []
        superseded: dict[int, int] = {}
        for seq, entry in out.log:
            match entry:
                case e.SegmentStarted() | e.Reported():  # the word of a start goes another way and may be later
                    carried_out += self._carried_out(entry.trial, entry.segment)
                case d.Start():
                    pass
                case d.Resume() | d.Retry() | d.Exploit():
                    superseded[entry.trial] = seq
                case d.Pause() | d.Stop() | d.Complete() | d.Fail() | d.Cancel():
                    superseded[entry.trial] = seq
                    carried_out.append(seq)
                case d.Decision():
                    carried_out.append(seq)
        return Batch(
            log=out.log,
            trials=[core.trials[n] for n in out.touched],
            state=core.state,
            summary=core.summary(),
            carried_out=carried_out,
            superseded=superseded,
            commands=commands,
        )

    def _carried_out(self, trial: int, segment: int) -> list[int]:
        seq = self._launched.pop((trial, segment), 0)
        return [seq] if seq else []

    async def _commit(self, batch: Batch) -> None:
        for wait in (*RETRY_COMMIT_S, None):
            try:
                await self.journal.commit(batch)
                return
            except LostLease:
                raise
            except Exception:
                if wait is None:
                    raise
                log.warning("a commit failed; trying again in %s s", wait, exc_info=True)
                await asyncio.sleep(wait)

    def _over(self) -> bool:
        return self.core.ended or self.core.state is ExperimentState.PAUSED

    async def _wind_up(self) -> None:
        if self._stopped is None:
            self._stopped = RuntimeError("the experiment is over")
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        left, self._early = self._early or [], None
        while not self._inbox.empty():
            left.append(self._inbox.get_nowait())
        for item in left:
            if not item.done.done():
                item.done.set_exception(self._stopped)
                item.done.exception()

    # ------------------------------------------------------------------------------------------------ actions

    def _act(self, action: Action, milestones: Mapping[tuple[int, int], int | None]) -> None:
        match action:
            case Launch():
                key = action.trial, action.segment
                self._launched[key] = action.decision_seq
                self._track(self._run_segment(*key, milestones[key]))
            case Interrupt():
                self._track(self.groups.interrupt(action.trial, action.segment, action.why))
            case Fit():
                self._track(self._fit(action.payload))
            case Ask():
                self._track(self._ask(action.number))
            case DeleteCheckpoint():
                deletion = self._track(self._delete(action))
                self._deletions.add(deletion)
                deletion.add_done_callback(self._deletions.discard)

    async def _run_segment(self, number: int, ordinal: int, milestone: int | None) -> None:
        try:
            outcome, failure, warning = await self.groups.run(number, ordinal, milestone)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("trial %s could not be run", number)
            outcome, warning = "failed", ""
            failure = Failure(kind="system", cause="driver", message=f"{type(error).__name__}: {error}")
        event = e.SegmentEnded(
            time=time.time(),
            trial=number,
            segment=ordinal,
            outcome=outcome,  # type: ignore[arg-type]
            failure=failure,
            warning=warning,
        )
        self.put(event)

    async def _fit(self, payload: Mapping[str, Any]) -> None:
        try:
            result = await self.groups.offload(type(self.core.scheduler).fit, payload)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a model fit failed; the last one stays in force")
            result = {}
        self.put(e.ModelFitted(time=time.time(), payload=result))

    async def _ask(self, number: int) -> None:
        searcher = self.core.searcher
        suggestion: Suggestion | None = None
        for wait in (*ASK_AGAIN_S, None):
            try:
                suggestion = await self.groups.offload(_suggest, searcher, number, self.core.trials)
                break
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.exception("the searcher failed to propose trial %s", number)
                if wait is None:
                    drawn = searcher.context.space.sample(keyed_random(searcher.context.seed, "instead", number))
                    note = f"drawn at random, the searcher having failed: {type(error).__name__}: {error}"
                    suggestion = Suggestion(drawn, note=note[:500])
                else:
                    await asyncio.sleep(wait)
        self.put(suggested(time.time(), number, suggestion))

    async def _delete(self, action: DeleteCheckpoint) -> None:
        await self.groups.delete_checkpoint(action.info)
        self.put(e.CheckpointDeleted(time=time.time(), trial=action.trial, checkpoint=action.info.id))

    async def _watch_budget(self) -> None:
        budget = self.core.spec.limits.time_budget_s
        if budget is None:
            return
        spent, last = self.core.running_s, time.monotonic()
        while spent < budget:
            await asyncio.sleep(min(budget - spent, BUDGET_S))
            now = time.monotonic()
            if self.core.counts_time:
                spent += now - last
            last = now
        if not self.core.ended:
            self.put(e.BudgetSpent(time=time.time(), seconds=budget))

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
    """Whether the core may call code of the user's, which may take any time: a scheduler, a searcher or a stopper of their own.

    Functions of `stop` do not count: the shell asks those before the core sees a report.
    """
    scheduler, stopper = core.scheduler, core.stopper
    mutations = getattr(scheduler, "mutations", {})
    return (
        not _is_ours(scheduler, "tuner.schedulers.")
        or not _is_ours(core.searcher, "tuner.search.")
        or getattr(scheduler, "custom_explore_fn", None) is not None
        or any(getattr(mutation, "function", None) is not None for mutation in mutations.values())
        or not all(_is_ours(one, "tuner.schedulers.stoppers") for one in _parts(stopper))
    )


def _parts(stopper: Stopper | None) -> list[Stopper]:
    if isinstance(stopper, CombinedStopper):
        return [one for part in stopper.stoppers for one in _parts(part)]
    return [] if stopper is None else [stopper]


def _is_ours(part: object, where: str) -> bool:
    module = type(part).__module__
    return module.startswith(where) and module not in _ADAPTERS


_ADAPTERS = ("tuner.schedulers.stoppers.from_ray", "tuner.search.ray_searcher")
"""Ours, but what they call is the user's."""


def _suggest(searcher: Searcher, number: int, trials: Population) -> Suggestion | None:
    return searcher.suggest(number, trials)


__all__ = ["BATCH", "Entry", "ExperimentLoop", "Groups", "Journal"]
