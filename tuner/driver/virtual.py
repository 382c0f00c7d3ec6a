"""Run searches in virtual time: the same decisions as on a cluster, without one, and repeatable bit for bit.

def evaluate(config, checkpoint):
    step = checkpoint or 0
    while True:
        step += 1
        yield tuner.Step(metrics={"loss": config["lr"] / step}, seconds=3.2, checkpoint=step)

result = tuner.simulate(evaluate, {"lr": tuner.loguniform(1e-4, 1e-1)}, metric="loss", mode="min", num_samples=500,
                        scheduler=tuner.ASHAScheduler(max_t=27), max_concurrent_trials=4)
"""

from __future__ import annotations

import heapq
import itertools
import traceback
import types
import warnings
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, assert_never

from tuner.domain import events as e
from tuner.domain.batch import Batch, Entry
from tuner.domain.decisions import Decision, Note
from tuner.domain.events import Event
from tuner.domain.experiment import CheckpointPolicy, Limits, Mode, Objective, Spec
from tuner.domain.keys import checkpoint_id, segment_id
from tuner.domain.segments import CheckpointInfo, Failure, Leave, Outcome, SegmentRef, Verdict
from tuner.domain.states import ExperimentState
from tuner.domain.trial import Trial
from tuner.driver.assemble import Parts, assemble
from tuner.driver.core import Core
from tuner.driver.core.actions import Action, Ask, DeleteCheckpoint, Fit, Interrupt, RunSegment, suggested
from tuner.driver.ports import Inbound
from tuner.errors import Mistakes, SpecError
from tuner.names import keywords_explained
from tuner.schedulers.base import Scheduler
from tuner.schedulers.stoppers import Stopper
from tuner.search.base import Searcher
from tuner.space import Space

T = TypeVar("T")

FIT_DELAY_S = 1e-3
"""Virtual seconds from the request for a model fit to its result."""


@dataclass(frozen=True, slots=True)
class Step:
    """One report of a simulated trial.

    seconds: virtual time since the previous report, or since the start. checkpoint: any object that `evaluate` can go on from;
    None if this report has no checkpoint.
    """

    metrics: Mapping[str, float]
    seconds: float = 1.0
    checkpoint: Any = None


Evaluate = Callable[[dict[str, Any], Any], Iterable[Step]]


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulated search did.

    best_value, best_config: the best report within the constraints, and the configuration that reached it. best_finished: the
    trial with the best last value among those trained to their end. error: what went wrong, or why there is no best trial.
    history: (virtual seconds, trial number, training_iteration, metrics) in the order of the reports.
    log: every event and decision, as a driver would have committed them.
    """

    history: list[tuple[float, int, int, Mapping[str, float]]] = field(repr=False)
    trials: list[Trial] = field(repr=False)
    configs: list[dict[str, Any]] = field(repr=False)
    best_trial: Trial | None = field(repr=False)
    best_value: float | None
    best_config: dict[str, Any] | None
    best_finished: Trial | None = field(repr=False)
    state: ExperimentState
    seconds: float
    error: str | None
    log: list[Entry] = field(repr=False)

    @property
    def decisions(self) -> list[Decision]:
        return [entry for _, entry in self.log if isinstance(entry, Decision)]

    @property
    def warnings(self) -> list[str]:
        """Return what `tuner.run` would print as warnings: likely mistakes in the user's code or settings."""
        return [entry.reason for _, entry in self.log if isinstance(entry, Note) and entry.warning]


@keywords_explained
def simulate(
    evaluate: Evaluate,
    space: Mapping[str, Any] | Space,
    *,
    metric: str | Sequence[str],
    mode: Mode | Sequence[Mode],
    num_samples: int | None = None,
    scheduler: Scheduler | Mapping[str, Any] | str | None = None,
    search_alg: Searcher | Mapping[str, Any] | str | Any | None = None,
    max_t: int | None = None,
    stop: Any = None,
    points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
    max_concurrent_trials: int = 4,
    startup_s: float = 0.0,
    time_budget_s: float | None = None,
    budget: float | None = None,
    seed: int = 0,
    time_attr: str = "training_iteration",
    max_failures: int = 0,
) -> Simulation:
    """Run a search in virtual time.

    evaluate: called as ``evaluate(config, checkpoint)`` when a trial starts, resumes or exploits; yields one `Step` per report.
    checkpoint is None at the beginning, otherwise the object of the step that it continues from. startup_s: virtual seconds
    that every start and every resume costs. time_budget_s: virtual seconds from the start of the first trial after which
    everything is stopped. budget: how many full trainings' worth the default search may spend, all trials together.

    An exception in `evaluate` fails the trial, as it would on a cluster. A bad space, scheduler or option raises SpecError. What
    `tuner.run` would print as a warning is a UserWarning here, and is in the result's `warnings`.
    """
    mistakes = Mistakes()
    with mistakes:
        built = space if isinstance(space, Space) else Space.from_python(space)
    with mistakes:
        aims = objectives(metric, mode)
    parts = parts_of(scheduler, search_alg, stop, mistakes)
    mistakes.check()
    spec = Spec(
        name="simulation",
        space=built.to_json(),
        objectives=aims,
        num_samples=num_samples,
        seed=seed,
        max_t=max_t,
        time_attr=time_attr,
        points_to_evaluate=tuple(
            built.check(p, f"/points_to_evaluate/{i}") for i, p in enumerate(points_to_evaluate or ())
        ),
        checkpoint=CheckpointPolicy(interval_s=None),
        limits=Limits(
            max_concurrent_trials=max_concurrent_trials,
            time_budget_s=time_budget_s,
            budget=budget,
            max_failures=max_failures,
        ),
    )
    done = _simulation(virtual_loop(assemble(spec, built, parts), built, evaluate, startup_s))
    for warning in done.warnings:
        warnings.warn(warning, UserWarning, stacklevel=3)  # above `keywords_explained`
    return done


def objectives(metric: str | Sequence[str], mode: Mode | Sequence[Mode]) -> tuple[Objective, ...]:
    """Check the metrics and their modes, and return the objectives."""
    metrics = [metric] if isinstance(metric, str) else list(metric)
    modes = [mode] * len(metrics) if isinstance(mode, str) else list(mode)
    if not metrics or len(modes) != len(metrics):
        raise SpecError(f"expected one mode for each of {len(metrics)} metrics, got {len(modes)}", "/mode")
    for name in metrics:
        if not isinstance(name, str) or not name:
            raise SpecError(f"expected the name of a metric, got {name!r}", "/metric")
    for m in modes:
        if m not in ("min", "max"):
            raise SpecError(f"expected 'min' or 'max', got {m!r}", "/mode")
    return tuple(Objective(n, m) for n, m in zip(metrics, modes, strict=True))


def scheduler_part(scheduler: Any) -> Scheduler | None:
    """Return the scheduler that a Python caller means; None for None and "auto", which `assemble` resolves."""
    if scheduler is None or scheduler == "auto":
        return None
    from tuner.schedulers import from_argument

    return from_argument(scheduler)


def searcher_part(search_alg: Any) -> Searcher | None:
    """Return the searcher that a Python caller means; None for None and "auto", which `assemble` resolves."""
    if search_alg is None or search_alg == "auto":
        return None
    from tuner.search import from_argument

    return from_argument(search_alg)


def parts_of(scheduler: Any, search_alg: Any, stop: Any, mistakes: Mistakes) -> Parts:
    """Return the parts that a Python caller means. What is wrong with them is added to `mistakes`."""
    parts: dict[str, Any] = {}
    with mistakes:
        parts["scheduler"] = scheduler_part(scheduler)
    with mistakes:
        parts["searcher"] = searcher_part(search_alg)
    with mistakes:
        parts["stopper"] = stopper_part(stop)
    return Parts(**parts)


def stopper_part(stop: Any) -> Stopper | None:
    if not stop:
        return None
    from tuner.schedulers.stoppers import from_argument

    return from_argument(stop)


class _Interrupted(BaseException):
    """Thrown into a simulated segment that is to leave."""


class _Clock:
    """Virtual time: coroutines wait for it by `sleep`. Those that wake at the same time do so in the order of their sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Coroutine[float, None, Any]]] = []
        self._order = itertools.count()
        self._due: dict[int, int] = {}  # id of a sleeping coroutine -> its place in the order

    def __bool__(self) -> bool:
        """Whether anybody sleeps."""
        return bool(self._heap)

    @property
    def next(self) -> float:
        """Return the time of the next waking."""
        return self._heap[0][0]

    @types.coroutine
    def sleep(self, delay: float) -> Generator[float, None, None]:
        """Return after so many virtual seconds."""
        yield delay

    def spawn(self, work: Coroutine[float, None, Any]) -> None:
        """Run a coroutine until it sleeps for the first time."""
        self._run(work)

    def tick(self) -> None:
        """Go on to the next waking, and run the coroutine that wakes."""
        self.now, order, work = heapq.heappop(self._heap)
        if self._due.get(id(work)) == order:
            self._run(work)

    def throw(self, work: Coroutine[float, None, Any], error: BaseException) -> None:
        """Wake a sleeping coroutine at once, with an exception."""
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
        """End everything that still sleeps."""
        for _, _, work in self._heap:
            work.close()


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns that never sleeps."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise RuntimeError("it sleeps")


class MemoryJournal:
    """A journal that keeps the log in memory."""

    def __init__(self) -> None:
        self.log: list[Entry] = []

    async def commit(self, batch: Batch) -> None:
        self.log += batch.log


class SimulatedGroups:
    """Worker groups of virtual time: a segment is a generator of steps."""

    def __init__(self, clock: _Clock, core: Core, space: Space, evaluate: Evaluate, startup_s: float) -> None:
        self._clock, self._core, self._space, self._evaluate, self.startup_s = clock, core, space, evaluate, startup_s
        self.inbound: Inbound
        self.history: list[tuple[float, int, int, Mapping[str, float]]] = []
        self._saved: dict[str, Any] = {}
        self._running: dict[SegmentRef, Coroutine[float, None, Any]] = {}

    def launch(self, segment: SegmentRef, work: Coroutine[float, None, None]) -> None:
        """Start the coroutine that awaits `run`; an interrupt ends it."""
        self._running[segment] = work
        self._clock.spawn(work)

    async def run(self, segment: SegmentRef, milestone: int | None) -> Outcome:
        """Run a segment to its end. It waits for a verdict at every report, whatever its milestone."""
        try:
            await self._clock.sleep(self.startup_s)
            return await self._train(segment)
        except _Interrupted:
            return Outcome(kind="left")
        finally:
            self._running.pop(segment, None)

    async def interrupt(self, segment: SegmentRef, why: Leave) -> None:
        await self._clock.sleep(0.0)
        if (work := self._running.get(segment)) is not None:
            self._clock.throw(work, _Interrupted())

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        self._saved.pop(info.id, None)

    async def offload(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    async def judge(self, number: int, metrics: Mapping[str, float]) -> list[dict[str, Any]]:
        return []  # stop functions are called in this process

    def config(self, trial: Trial, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the configuration of a trial as `evaluate` gets it."""
        return self._space.config(trial.params if params is None else params, self._core.spec.seed, trial.number)

    async def _train(self, ref: SegmentRef) -> Outcome:
        trial = self._core.trials[ref.trial]
        segment = trial.segments[ref.ordinal - 1]
        if segment.leaving:
            return Outcome(kind="left")
        checkpoint = self._saved[segment.source.id] if segment.source else None
        try:
            steps = iter(self._evaluate(self.config(trial), checkpoint))
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
        for report_no in itertools.count(1):
            try:
                step = next(steps, None)
            except Exception as error:
                return _failed(error)
            if step is None:
                break
            if not isinstance(step, Step):
                raise TypeError(f"evaluate has to yield tuner.Step(metrics=..., seconds=...), not {step!r}")
            if not step.seconds >= 0:
                raise ValueError(f"a step takes 0 seconds or more, not {step.seconds!r}")
            await self._clock.sleep(step.seconds)
            verdict = await self.inbound.report([self._reported(ref, base, report_no, step)])
            if verdict is None or verdict.action != "continue":
                return Outcome(kind="left")
        if report_no == 1 and not base:
            failure = Failure(kind="user", cause="no_report", message="it ended without a report")
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
    message = f"{type(error).__name__}: {error}"
    return Outcome(
        kind="failed", failure=Failure(kind="user", cause="exception", message=message, rank=0, traceback=trace)
    )


class _Committed:
    """What `put` returns in virtual time, where everything is done when it returns."""

    def __init__(self, verdict: Verdict | None = None) -> None:
        self._verdict = verdict

    def __await__(self) -> Generator[Any, None, Verdict | None]:
        yield from ()
        return self._verdict


class VirtualLoop:
    """The shell of virtual time."""

    def __init__(self, core: Core, clock: _Clock, journal: MemoryJournal, groups: SimulatedGroups) -> None:
        self.core, self.clock, self.journal, self.groups = core, clock, journal, groups
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

    def run(self) -> None:
        """Drive the experiment until it has ended, or nothing can happen any more."""
        core, clock = self.core, self.clock
        self.put(e.DriverStarted(time=0.0, epoch=1))
        budget, startup = core.spec.limits.time_budget_s, self.groups.startup_s
        while clock and not core.ended:
            if budget is not None and clock.next > startup + budget and core.experiment.finishing is None:
                clock.now = startup + budget  # the budget counts from the start of the first trial
                self.put(e.BudgetSpent(time=clock.now, seconds=budget))
            else:
                clock.tick()
        clock.close()

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
        suggestion = await self.groups.offload(self.core.searcher.suggest, number, self.core.trials)
        self.put(suggested(self.clock.now, number, suggestion))

    async def _delete(self, number: int, info: CheckpointInfo) -> None:
        await self.groups.delete_checkpoint(info)
        await self.clock.sleep(0.0)
        self.put(e.CheckpointDeleted(time=self.clock.now, trial=number, checkpoint=info.id))


def virtual_loop(core: Core, space: Space, evaluate: Evaluate, startup_s: float = 0.0) -> VirtualLoop:
    """Return the shell that runs this core in virtual time."""
    clock = _Clock()
    return VirtualLoop(core, clock, MemoryJournal(), SimulatedGroups(clock, core, space, evaluate, startup_s))


def _simulation(loop: VirtualLoop) -> Simulation:
    """Run a loop to its end, and return what it did."""
    loop.run()
    core, config = loop.core, loop.groups.config
    best = core.best_trial()
    mark = core.experiment.standing.of(best) if best else None
    return Simulation(
        history=loop.groups.history,
        trials=list(core.trials),
        configs=[config(trial) for trial in core.trials],
        best_trial=best,
        best_value=mark.value if mark else None,
        best_config=config(best, best.params_at(mark)) if best and mark else None,
        best_finished=core.experiment.standing.best_finished(core.trials),
        state=core.state,
        seconds=loop.clock.now,
        error=core.experiment.error,
        log=loop.journal.log,
    )
