"""The core in virtual time: the same decisions as on a cluster, without one, bit for bit repeatable.

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
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, assert_never

from tuner.domain import events as e
from tuner.domain.batch import Entry
from tuner.domain.decisions import Decision, Note
from tuner.domain.events import Event, Failure
from tuner.domain.experiment import CheckpointPolicy, Limits, Mode, Objective, Spec
from tuner.domain.keys import checkpoint_id, segment_id
from tuner.domain.segments import SegmentRef
from tuner.domain.states import ExperimentState
from tuner.domain.trial import Trial
from tuner.driver.assemble import Parts, assemble
from tuner.driver.core import Core
from tuner.driver.core.actions import Action, Ask, DeleteCheckpoint, Fit, Interrupt, RunSegment, suggested
from tuner.errors import Mistakes, SpecError
from tuner.names import keywords_explained
from tuner.schedulers.base import Scheduler
from tuner.schedulers.stoppers import Stopper
from tuner.search.base import Searcher
from tuner.space import Space

FIT_DELAY_S = 1e-3
"""Virtual seconds from the request for a model fit to its result."""


@dataclass(frozen=True, slots=True)
class Step:
    """One report of a simulated trial.

    seconds: virtual time since the report before (or since the start). checkpoint: any object that `evaluate` can go on from;
    None where this report comes without.
    """

    metrics: Mapping[str, float]
    seconds: float = 1.0
    checkpoint: Any = None


Evaluate = Callable[[dict[str, Any], Any], Iterable[Step]]


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulated search did.

    best_value, best_config: the best report within the constraints, and the configuration that reached it. best_finished: the
    trial whose last value is the best among those trained to their end. error: also says why there is no best trial.
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
        """What looks like a mistake of the user's: what `tuner.run` would print as warnings."""
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

    evaluate: called as ``evaluate(config, checkpoint)`` when a trial starts, resumes or exploits; yields one `Step` a report.
    checkpoint is None at the beginning, else the object of the step that it continues from. startup_s: virtual seconds that
    every start and every resume costs. time_budget_s: virtual seconds from the start of the first trial after which everything
    is stopped. budget: how many full trainings' worth the default search may spend, all trials together.

    An exception in `evaluate` fails the trial, as it would on a cluster. SpecError for a bad space, scheduler or option. What
    `tuner.run` would print as a warning is a UserWarning here, and in the result's `warnings`.
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
    done = _Shell(assemble(spec, built, parts), built, evaluate, startup_s).run()
    for warning in done.warnings:
        warnings.warn(warning, UserWarning, stacklevel=3)  # above `keywords_explained`
    return done


def objectives(metric: str | Sequence[str], mode: Mode | Sequence[Mode]) -> tuple[Objective, ...]:
    """One objective or several, checked."""
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
    """What a Python caller means by `scheduler`; None and "auto" are left to `assemble`."""
    if scheduler is None or scheduler == "auto":
        return None
    from tuner.schedulers import from_argument

    return from_argument(scheduler)


def searcher_part(search_alg: Any) -> Searcher | None:
    """What a Python caller means by `search_alg`; None and "auto" are left to `assemble`."""
    if search_alg is None or search_alg == "auto":
        return None
    from tuner.search import from_argument

    return from_argument(search_alg)


def parts_of(scheduler: Any, search_alg: Any, stop: Any, mistakes: Mistakes) -> Parts:
    """What a Python caller means by these three; what is wrong with each is added to `mistakes`."""
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


@dataclass(slots=True)
class _Run:
    """A segment that runs: its generator and the step it is about to report."""

    segment: SegmentRef
    steps: Iterator[Step]
    step: Step | None = None
    reports: int = 0
    base: int = 0


class _Shell:
    """A heap of events by virtual time, ties in the order in which they were scheduled."""

    def __init__(self, core: Core, space: Space, evaluate: Evaluate, startup_s: float) -> None:
        self.core, self.space, self.evaluate, self.startup_s = core, space, evaluate, startup_s
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.now = 0.0
        self.runs: dict[int, _Run] = {}
        self.saved: dict[str, Any] = {}
        self.history: list[tuple[float, int, int, Mapping[str, float]]] = []
        self.log: list[Entry] = []
        self.configs: dict[int, dict[str, Any]] = {}

    def run(self) -> Simulation:
        core = self.core
        self.feed(e.DriverStarted(time=0.0, epoch=1))
        budget = core.spec.limits.time_budget_s
        while self.heap and not core.ended:
            time, _, what = heapq.heappop(self.heap)
            if budget is not None and time > self.startup_s + budget and core.experiment.finishing is None:
                self.now = self.startup_s + budget  # the budget counts from the start of the first trial
                self.feed(e.BudgetSpent(time=self.now, seconds=budget))
                continue
            self.now = time
            what()
        best = core.best_trial()
        mark = core.experiment.standing.of(best) if best else None
        return Simulation(
            history=self.history,
            trials=list(core.trials),
            configs=[self.config(t) for t in core.trials],
            best_trial=best,
            best_value=mark.value if mark else None,
            best_config=self.config(best, best.params_at(mark)) if best and mark else None,
            best_finished=core.experiment.standing.best_finished(core.trials),
            state=core.state,
            seconds=self.now,
            error=core.experiment.error,
            log=self.log,
        )

    def config(self, trial: Trial, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self.space.config(trial.params if params is None else params, self.core.spec.seed, trial.number)

    def at(self, delay: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (self.now + delay, next(self.order), what))

    def feed(self, event: Event) -> None:
        out = self.core.handle(event)
        self.log += out.log
        for action in out.actions:
            self.act(action)

    def act(self, action: Action) -> None:
        match action:
            case RunSegment(segment=segment):
                self.at(self.startup_s, lambda: self.start(segment))
            case Interrupt(segment=segment):
                self.at(0.0, lambda: self.leave(segment))
            case Fit(payload=payload):
                result = self.core.scheduler.fit(payload)
                self.at(FIT_DELAY_S, lambda: self.feed(e.ModelFitted(time=self.now, payload=result)))
            case Ask(number=number):
                self.at(0.0, lambda: self.ask(number))
            case DeleteCheckpoint(trial=number, info=info):
                self.saved.pop(info.id, None)
                self.at(0.0, lambda: self.feed(e.CheckpointDeleted(time=self.now, trial=number, checkpoint=info.id)))
            case _:
                assert_never(action)

    def ask(self, number: int) -> None:
        suggestion = self.core.searcher.suggest(number, self.core.trials)
        self.feed(suggested(self.now, number, suggestion))

    def start(self, ref: SegmentRef) -> None:
        segment = self.core.experiment.segment(ref)
        if segment is None:
            return
        if segment.leaving:
            self.leave(ref)
            return
        trial = self.core.trials[ref.trial]
        checkpoint = self.saved[segment.source.id] if segment.source else None
        try:
            steps = iter(self.evaluate(self.config(trial), checkpoint))
        except Exception as error:
            self.fail(ref, error)
            return
        run = self.runs[ref.trial] = _Run(ref, steps, base=segment.start_iteration)
        self.core.first_milestone(ref)
        self.feed(
            e.SegmentStarted(
                time=self.now, trial=ref.trial, segment=ref.ordinal, startup_s=self.startup_s, warm=ref.ordinal > 1
            )
        )
        self.advance(run)

    def advance(self, run: _Run) -> None:
        """Draw the next step; it is reported when its seconds have passed."""
        try:
            run.step = next(run.steps, None)
        except Exception as error:
            self.fail(run.segment, error)
            return
        if run.step is not None and not isinstance(run.step, Step):
            raise TypeError(f"evaluate has to yield tuner.Step(metrics=..., seconds=...), not {run.step!r}")
        if run.step is not None and not run.step.seconds >= 0:
            raise ValueError(f"a step takes 0 seconds or more, not {run.step.seconds!r}")
        if run.step is None:
            self.end(run.segment, "returned")
        else:
            self.at(max(0.0, run.step.seconds), lambda: self.report(run))

    def report(self, run: _Run) -> None:
        step, (number, ordinal) = run.step, run.segment
        if self.runs.get(number) is not run or step is None:
            return
        run.reports += 1
        iteration = run.base + run.reports
        info = None
        if step.checkpoint is not None:
            name = checkpoint_id(segment_id("sim", number, ordinal), run.reports)
            self.saved[name] = step.checkpoint
            info = e.CheckpointInfo(id=name, uri=f"virtual:{name}", step=iteration)
        self.history.append((self.now, number, iteration, step.metrics))
        self.feed(
            e.Reported(
                time=self.now,
                trial=number,
                segment=ordinal,
                report_no=run.reports,
                iteration=iteration,
                metrics=step.metrics,
                checkpoint=info,
            )
        )
        if self.core.verdict(run.segment).action == "continue":
            self.advance(run)
        else:
            self.end(run.segment, "left")

    def leave(self, segment: SegmentRef) -> None:
        if self.core.experiment.segment(segment) is not None:
            self.end(segment, "left")

    def fail(self, segment: SegmentRef, error: Exception) -> None:
        trace = "".join(traceback.format_exception(error))
        message = f"{type(error).__name__}: {error}"
        failure = Failure(kind="user", cause="exception", message=message, rank=0, traceback=trace)
        self.end(segment, "failed", failure)

    def end(
        self, segment: SegmentRef, outcome: Literal["returned", "left", "failed"], failure: Failure | None = None
    ) -> None:
        number, ordinal = segment
        run = self.runs.pop(number, None)
        if run is not None and (close := getattr(run.steps, "close", None)) is not None:
            close()
        if outcome == "returned" and run is not None and not run.reports and not run.base:
            outcome, failure = "failed", Failure(kind="user", cause="no_report", message="it ended without a report")
        self.feed(e.SegmentEnded(time=self.now, trial=number, segment=ordinal, outcome=outcome, failure=failure))
