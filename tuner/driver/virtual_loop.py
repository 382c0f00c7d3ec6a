"""The virtual-time shell: a clock, an in-memory journal, groups that run generators, and the loop that connects them."""

from __future__ import annotations

import heapq
import itertools
import math
import traceback
import types
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, assert_never

from tuner.domain import events as e
from tuner.domain.batch import Batch, Entry
from tuner.domain.events import Event
from tuner.domain.keys import checkpoint_id, segment_id
from tuner.domain.segments import CheckpointInfo, Failure, Interruption, Outcome, SegmentRef, Verdict
from tuner.domain.trial import Trial
from tuner.driver.core import Core
from tuner.driver.core.actions import Action, Ask, DeleteCheckpoint, Fit, Interrupt, RunSegment, suggested
from tuner.driver.ports import CallsHere, Inbound
from tuner.errors import text_of
from tuner.space import Space

T = TypeVar("T")

FIT_DELAY_S = 1e-3
"""Virtual seconds from the request for a model fit to its result."""


@dataclass(frozen=True, slots=True)
class Step:
    """One report of a simulated trial.

    seconds: virtual seconds since the previous report, or since the start. checkpoint: any object from which `evaluate`
        can continue; None if this report has no checkpoint.
    """

    metrics: Mapping[str, float]
    seconds: float = 1.0
    checkpoint: Any = None


Evaluate = Callable[[dict[str, Any], Any], Iterable[Step]]


class _Interrupted(BaseException):
    """Raised inside a simulated segment to make it stop."""


class _Clock:
    """A clock of virtual time, which runs coroutines and wakes them at the end of each `sleep`.

    Coroutines that wake at the same time wake in the order of their `sleep` calls.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Coroutine[float, None, Any]]] = []
        self._order = itertools.count()
        self._due: dict[int, int] = {}  # id of a sleeping coroutine -> its place in the order

    def __bool__(self) -> bool:
        """Return whether any coroutine is sleeping."""
        return bool(self._heap)

    @property
    def next(self) -> float:
        """Return the virtual time at which the next coroutine wakes."""
        return self._heap[0][0]

    @types.coroutine
    def sleep(self, delay: float) -> Generator[float, None, None]:
        """Return after this many virtual seconds."""
        yield delay

    def spawn(self, work: Coroutine[float, None, Any]) -> None:
        """Run a coroutine until it sleeps for the first time."""
        self._run(work)

    def tick(self) -> None:
        """Advance to the time at which the next coroutine wakes, and run this coroutine until it sleeps again."""
        self.now, order, work = heapq.heappop(self._heap)
        if self._due.get(id(work)) == order:
            self._run(work)

    def throw(self, work: Coroutine[float, None, Any], error: BaseException) -> None:
        """Wake a sleeping coroutine at once by raising an exception in it."""
        self._run(work, error)

    def _run(self, work: Coroutine[float, None, Any], error: BaseException | None = None) -> None:
        self._due.pop(id(work), None)
        try:
            delay = work.send(None) if error is None else work.throw(error)
        except StopIteration:
            return
        order = next(self._order)
        self._due[id(work)] = order
        heapq.heappush(self._heap, (self.now + delay, order, work))

    def close(self) -> None:
        """Close all coroutines that are still sleeping."""
        for _, _, work in self._heap:
            work.close()


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never sleeps, and return its value."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise RuntimeError("the coroutine sleeps")


class MemoryJournal:
    """A journal that keeps the log in memory."""

    def __init__(self) -> None:
        self.log: list[Entry] = []

    async def commit(self, batch: Batch) -> Collection[str]:
        self.log += batch.log
        return ()


class SimulatedGroups(CallsHere):
    """Worker groups in virtual time, which run each segment as a generator of steps."""

    def __init__(self, clock: _Clock, core: Core, space: Space, evaluate: Evaluate, startup_s: float) -> None:
        self._clock, self._core, self._space, self._evaluate, self.startup_s = clock, core, space, evaluate, startup_s
        self.inbound: Inbound
        self.history: list[tuple[float, int, int, Mapping[str, float]]] = []
        self._saved: dict[str, Any] = {}
        self._running: dict[SegmentRef, Coroutine[float, None, Any]] = {}
        self.speedup: Callable[[int], float] = lambda workers: 1.0  # speed by number of ranks, for elastic trials

    def launch(self, segment: SegmentRef, work: Coroutine[float, None, None]) -> None:
        """Start the coroutine that awaits `run` for a segment. Interrupting the segment raises _Interrupted in the coroutine."""
        self._running[segment] = work
        self._clock.spawn(work)

    async def run(self, segment: SegmentRef, milestone: int | None) -> Outcome:
        """Run a segment to its end. It waits for a verdict at every report; `milestone` is ignored."""
        try:
            await self._clock.sleep(self.startup_s)
            return await self._train(segment)
        except _Interrupted:
            return Outcome(kind="left")
        finally:
            self._running.pop(segment, None)

    async def interrupt(self, segment: SegmentRef, why: Interruption) -> None:
        await self._clock.sleep(0.0)
        if (work := self._running.get(segment)) is not None:
            self._clock.throw(work, _Interrupted())

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        self._saved.pop(info.id, None)

    def config(self, trial: Trial, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the configuration to pass to `evaluate`, made from `params` or, if this is None, from the trial's params."""
        return self._space.config(trial.params if params is None else params, self._core.spec.seed, trial.drawn_as)

    def steps(self, trial: Trial, checkpoint: Any) -> Iterable[Step]:
        """Return the steps of a trial that continues from this checkpoint, or starts if the checkpoint is None."""
        return self._evaluate(self.config(trial), checkpoint)

    async def _train(self, ref: SegmentRef) -> Outcome:
        trial = self._core.trials[ref.trial]
        segment = trial.segments[ref.ordinal - 1]
        if segment.leaving:
            return Outcome(kind="left")
        checkpoint = self._saved[segment.source.id] if segment.source else None
        try:
            steps = iter(self.steps(trial, checkpoint))
        except Exception as error:
            return _failed(error)
        number, ordinal, base = *ref, segment.start_iteration
        warm = ordinal > 1
        self.inbound.put(
            e.SegmentStarted(time=self._clock.now, trial=number, segment=ordinal, startup_s=self.startup_s, warm=warm)
        )
        try:
            return await self._report_steps(ref, base, steps)
        finally:
            if (close := getattr(steps, "close", None)) is not None:
                close()

    async def _report_steps(self, ref: SegmentRef, base: int, steps: Iterator[Step]) -> Outcome:
        speed = self.speedup(self._core.trials[ref.trial].segments[ref.ordinal - 1].workers)
        for report_no in itertools.count(1):
            try:
                step = next(steps, None)
            except Exception as error:
                return _failed(error)
            if step is None:
                break
            if not isinstance(step, Step):
                raise TypeError(f"evaluate must yield tuner.Step(metrics=..., seconds=...), not {step!r}")
            if not 0 <= step.seconds < math.inf:
                raise ValueError(f"the seconds of a step must be finite and 0 or more, not {step.seconds!r}")
            await self._clock.sleep(step.seconds / speed)
            verdict = await self.inbound.report([self._reported(ref, base, report_no, step)])
            if verdict is None or verdict.action != "continue":
                return Outcome(kind="left")
        if report_no == 1 and not base:
            failure = Failure(kind="user", cause="no_report", message="the trial ended without a report")
            return Outcome(kind="failed", failure=failure)
        return Outcome(kind="returned")

    def _reported(self, ref: SegmentRef, base: int, report_no: int, step: Step) -> e.Reported:
        iteration, info = base + report_no, None
        if step.checkpoint is not None:
            name = checkpoint_id(segment_id("sim", *ref), report_no)
            self._saved[name] = step.checkpoint
            info = CheckpointInfo(id=name, uri=f"virtual:{name}", step=iteration)
        self.history.append((self._clock.now, ref.trial, iteration, step.metrics))
        return e.Reported(
            time=self._clock.now,
            trial=ref.trial,
            segment=ref.ordinal,
            report_no=report_no,
            iteration=iteration,
            metrics=step.metrics,
            checkpoint=info,
        )


def _failed(error: Exception) -> Outcome:
    trace = "".join(traceback.format_exception(error))
    message = f"{type(error).__name__}: {text_of(error)}"
    return Outcome(
        kind="failed", failure=Failure(kind="user", cause="exception", message=message, rank=0, traceback=trace)
    )


class _Committed:
    """The awaitable that `put` returns in virtual time. It is done at once, because `put` has committed the event."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


class VirtualLoop:
    """The shell that drives a core in virtual time."""

    def __init__(self, core: Core, clock: _Clock, journal: MemoryJournal, groups: SimulatedGroups) -> None:
        self.core, self.clock, self.journal, self.groups = core, clock, journal, groups
        self.workers: int | None = None  # how many ranks the cluster holds, for elastic trials
        groups.inbound = self

    def put(self, event: Event) -> _Committed:
        out = self.core.handle(event)
        _at_once(self.journal.commit(Batch(log=out.log)))
        for action in out.actions:
            self._act(action)
        return _Committed()

    async def report(self, events: Sequence[e.Reported]) -> Verdict | None:
        for event in events:
            self.put(event)
        return self.core.verdict(events[-1].ref) if events and events[-1].waits else None

    def run(self, check: Callable[[], None] | None = None) -> None:
        """Drive the experiment until it has ended, or until no coroutine is left to wake.

        check: called before every step; may raise an error to give up.
        """
        core, clock = self.core, self.clock
        self.put(e.DriverStarted(time=0.0, epoch=1, workers=self.workers))
        budget, startup = core.spec.limits.time_budget_s, self.groups.startup_s
        hours = core.spec.limits.gpu_hours
        while clock and not core.ended:
            if check is not None:
                check()
            if budget is not None and clock.next > startup + budget and core.experiment.finishing is None:
                clock.now = startup + budget  # the budget counts from the start of the first trial
                self.put(e.BudgetSpent(time=clock.now, seconds=budget))
            elif hours is not None and (spent := self._spent_at(hours)) is not None and clock.next > spent:
                clock.now = spent
                self.put(e.GpuHoursSpent(time=clock.now, gpu_hours=hours))
            else:
                clock.tick()
        clock.close()

    def _spent_at(self, gpu_hours: float) -> float | None:
        """Return the time at which the running groups will have used up these GPU hours; None if they will not."""
        experiment = self.core.experiment
        left = None if experiment.capped else experiment.usage.left_s(gpu_hours, self.clock.now)
        return None if left is None else self.clock.now + left

    def _act(self, action: Action) -> None:
        match action:
            case RunSegment(segment=segment):
                self.groups.launch(segment, self._run_segment(segment))
            case Interrupt(segment=segment, why=why):
                self.clock.spawn(self.groups.interrupt(segment, why))
            case Fit(payload=payload):
                self.clock.spawn(self._fit(payload))
            case Ask(number=number):
                self.clock.spawn(self._ask(number))
            case DeleteCheckpoint(trial=number, info=info):
                self.clock.spawn(self._delete(number, info))
            case _:
                assert_never(action)

    async def _run_segment(self, segment: SegmentRef) -> None:
        outcome = await self.groups.run(segment, self.core.first_milestone(segment))
        self.put(
            e.SegmentEnded(
                time=self.clock.now,
                trial=segment.trial,
                segment=segment.ordinal,
                outcome=outcome.kind,
                failure=outcome.failure,
            )
        )

    async def _fit(self, payload: Mapping[str, Any]) -> None:
        result = await self.groups.offload(self.core.scheduler.fit, payload)
        await self.clock.sleep(FIT_DELAY_S)
        self.put(e.ModelFitted(time=self.clock.now, payload=result))

    async def _ask(self, number: int) -> None:
        await self.clock.sleep(0.0)
        suggestion = await self.groups.suggest(self.core.searcher, number, self.core.trials)
        self.put(suggested(self.clock.now, number, suggestion))

    async def _delete(self, number: int, info: CheckpointInfo) -> None:
        await self.groups.delete_checkpoint(info)
        await self.clock.sleep(0.0)
        self.put(e.CheckpointDeleted(time=self.clock.now, trial=number, checkpoint=info.id))


def virtual_loop(core: Core, space: Space, evaluate: Evaluate, startup_s: float = 0.0) -> VirtualLoop:
    """Return the shell that runs this core in virtual time."""
    clock = _Clock()
    return VirtualLoop(core, clock, MemoryJournal(), SimulatedGroups(clock, core, space, evaluate, startup_s))
