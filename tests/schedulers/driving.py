"""Drive a scheduler in tests, in two ways.

`Feed` gives it one report after the other by hand. `Drive` runs the real core over events in a random order, with failures, lost
segments, NaN, reports without the objective and late checkpoints among them.
"""

from __future__ import annotations

import json
import math
import pickle
import random
from collections.abc import Callable, Mapping
from typing import Any

from tuner.domain import events as e
from tuner.domain.batch import Entry
from tuner.domain.decisions import Decision, Exploit, Pause, Resume, Start
from tuner.domain.experiment import Limits, Objective, Spec
from tuner.domain.segments import SegmentRef
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.driver.assemble import Parts, assemble
from tuner.driver.core import Core
from tuner.driver.core.actions import Fit, Interrupt, RunSegment
from tuner.schedulers import from_json
from tuner.schedulers.base import Scheduler, SchedulerContext, TrialEnded, TrialReported, TrialStarted
from tuner.schedulers.stoppers import CombinedStopper, Stopper
from tuner.schedulers.stoppers import from_json as stopper_from_json
from tuner.space import Space, choice, loguniform, randint, uniform

SPACE = Space(
    {
        "lr": loguniform(1e-4, 1e-1),
        "width": choice([16, 32, 64, 128]),
        "depth": randint(1, 9),
        "act": choice(["relu", "tanh", "gelu"]),
        "opt": choice(
            [{"momentum": uniform(0.0, 0.99)}, {"beta": uniform(0.8, 0.999), "amsgrad": choice([True, False])}]
        ),
    }
)


def context(
    mode: str = "max", max_t: int | None = None, num_samples: int | None = None, **more: Any
) -> SchedulerContext:
    options: dict[str, Any] = {"time_attr": "training_iteration", "seed": 0, "space": SPACE, **more}
    return SchedulerContext(objective=Objective("m", mode), max_t=max_t, num_samples=num_samples, **options)  # type: ignore[arg-type]


class Feed:
    """Drives a scheduler with a population and without a core. Decisions about a trial take effect at once."""

    def __init__(self, scheduler: Scheduler, its_context: SchedulerContext) -> None:
        scheduler.setup(its_context)
        self.scheduler, self.context = scheduler, its_context
        self.trials = Population()

    def start(self, params: Mapping[str, Any] | None = None) -> int:
        number = len(self.trials)
        self.trials.add(Trial(number, dict(params or {}), state=TrialState.RUNNING))
        self.scheduler.record(TrialStarted(trial=number), self.trials)
        return number

    def report(self, number: int, t: float, value: float, metrics: Mapping[str, float] | None = None) -> list[Decision]:
        """Return the decisions after this report; pass one to `take` to carry it out."""
        trial = self.trials[number]
        trial.iteration, trial.t = math.floor(t), float(t)
        trial.last = {"m": value, **(metrics or {})}
        score = self.context.objective.score(value)
        fact = TrialReported(trial=number, iteration=trial.iteration, t=t, score=score, metrics=trial.last, time=t)
        self.scheduler.record(fact, self.trials)
        return list(self.scheduler.decide(fact, self.trials))

    def take(self, decision: Decision) -> list[Decision]:
        """Carry a decision out. Return the decisions that follow from it."""
        further: list[Decision] = []
        match decision.KIND:
            case "pause":
                self.trials.move(decision.trial, TrialState.PAUSED)  # type: ignore[attr-defined]
            case "resume" | "exploit":
                self.trials.move(decision.trial, TrialState.RUNNING)  # type: ignore[attr-defined]
            case "stop" | "complete":
                further = self.end(decision.trial, TrialState.STOPPED, enact=False)  # type: ignore[attr-defined]
        self.scheduler.enacted(decision, self.trials)
        return further

    def end(self, number: int, state: TrialState = TrialState.FAILED, enact: bool = True) -> list[Decision]:
        self.trials.move(number, state)
        fact = TrialEnded(trial=number, state=state)
        self.scheduler.record(fact, self.trials)
        return list(self.scheduler.decide(fact, self.trials)) if enact else []


Value = Callable[[random.Random, Trial, int], float]


def some_value(rng: random.Random, trial: Trial, iteration: int) -> float:
    """Return a coarse value, so that ties happen."""
    return round(rng.random(), 1)


class Drive:
    """Feed the real core with events in an order that a generator decides.

    With a `stride`, it keeps for every `stride`-th event what a crash just before would leave behind: the log, the scheduler's
    state, and the milestones that ranks had been told.
    """

    def __init__(
        self,
        scheduler: Mapping[str, Any],
        seed: int,
        *,
        num_samples: int = 12,
        slots: int = 3,
        max_t: int | None = 9,
        mode: str = "max",
        stop: Mapping[str, Any] | None = None,
        trouble: float = 0.05,
        checkpoints: float = 0.9,
        bare: float = 0.0,
        value: Value = some_value,
        space: Space = SPACE,
        stride: int | None = None,
    ) -> None:
        self.stride, self.count = stride, 0
        self.rng = random.Random(seed)
        self.spec = Spec(
            name="drive",
            space=space.to_json(),
            objectives=(Objective("m", mode),),  # type: ignore[arg-type]
            num_samples=num_samples,
            seed=seed,
            max_t=max_t,
            scheduler=dict(scheduler),
            search={"type": "random"},
            stop=dict(stop or {}),
            limits=Limits(max_concurrent_trials=slots, max_failures=2),
        )
        self.fits: list[Any] = []
        self.space, self.value, self.trouble, self.checkpoints, self.bare = space, value, trouble, checkpoints, bare
        self.core = self.fresh()
        self.log: list[Entry] = []
        self.moments: list[Moment] = []
        self.running: dict[int, int] = {}  # trial -> its segment
        self.launched: list[tuple[int, int]] = []
        self.leaving: list[tuple[int, int]] = []
        self.late: list[e.CheckpointSaved] = []
        self.now = 0.0

    def fresh(self) -> Core:
        """Return a core as after a restart: from JSON, with nothing folded yet."""
        parts = Parts(
            scheduler=from_json(json.loads(json.dumps(self.spec.scheduler))),
            stopper=stopper_from_json(json.loads(json.dumps(dict(self.spec.stop)))),
        )
        return assemble(self.spec, self.space, parts)

    def run(self, most: int = 2000) -> Drive:
        self.feed(e.DriverStarted(time=self.now, epoch=self.core.experiment.epoch + 1))
        for _ in range(most):
            if self.core.ended or not self.step():
                break
        return self

    def feed(self, event: e.Event) -> list[Entry]:
        self.count += 1
        keep = self.stride is not None and self.count % self.stride == 0
        if keep:
            segments = {n: self.core.trials[n].segments[-1] for n in self.running}
            told = {n: (segment.milestone, segment.decide_at) for n, segment in segments.items()}
            trials = pickle.dumps(list(self.core.trials))
            self.moments.append(Moment(event, len(self.log), state_of(self.core), trials, told))
        out = self.core.handle(event)
        if keep:
            self.moments[-1].outcome = list(out.log)
        self.log += out.log
        for action in out.actions:
            if isinstance(action, RunSegment):
                self.launched.append(action.segment)
            elif isinstance(action, Interrupt):
                self.leaving.append(action.segment)
            elif isinstance(action, Fit):
                self.fits.append(action.payload)
        return out.log

    def step(self) -> bool:
        """Handle one of the events that may come next. Fits of a model come back late."""
        if self.fits and self.rng.random() < 0.3:
            payload = json.loads(json.dumps(self.fits.pop(0)))
            self.now += 1.0
            self.feed(e.ModelFitted(time=self.now, payload=json.loads(json.dumps(self.core.scheduler.fit(payload)))))
            return True
        able: list[Callable[[], None]] = []
        able += [lambda x=x: self.begin(*x) for x in self.launched]  # type: ignore[misc]
        able += [lambda x=x: self.leave(*x) for x in self.leaving]  # type: ignore[misc]
        able += [lambda x=x: self.report(x) for x in self.running]  # type: ignore[misc]
        able += [lambda x=x: self.save(x) for x in self.late]  # type: ignore[misc]
        if not able:
            return bool(self.fits)
        self.now += 1.0
        self.rng.choice(able)()
        return True

    def begin(self, trial: int, segment: int) -> None:
        self.launched.remove((trial, segment))
        current = self.core.trials[trial].segment
        if current is None or current.ordinal != segment or not current.open:
            return
        self.core.first_milestone(SegmentRef(trial, segment))
        self.running[trial] = segment
        self.feed(e.SegmentStarted(time=self.now, trial=trial, segment=segment, startup_s=0.5))

    def leave(self, trial: int, segment: int) -> None:
        self.leaving.remove((trial, segment))
        self.end(trial, segment, "left")

    def save(self, event: e.CheckpointSaved) -> None:
        self.late.remove(event)
        self.feed(event)

    def end(self, trial: int, segment: int, outcome: str) -> None:
        self.running.pop(trial, None)
        self.launched = [x for x in self.launched if x != (trial, segment)]
        failure = e.Failure(kind="user", message="it broke") if outcome == "failed" else None
        self.feed(
            e.SegmentEnded(time=self.now, trial=trial, segment=segment, outcome=outcome, failure=failure)  # type: ignore[arg-type]
        )

    def report(self, number: int) -> None:
        trial = self.core.trials[number]
        segment = trial.segments[-1]
        if self.rng.random() < self.trouble / 2:
            self.end(number, segment.ordinal, "failed")
            return
        report_no = segment.report_no + 1
        iteration = segment.start_iteration + report_no
        value = self.value(self.rng, trial, iteration)
        if self.rng.random() < self.trouble / 4:
            value = math.nan
        info = None
        if self.rng.random() < self.checkpoints:
            info = e.CheckpointInfo(id=f"{number}.{segment.ordinal}.{report_no}", uri="", step=iteration)
            if self.rng.random() < 0.2:
                self.late.append(
                    e.CheckpointSaved(time=self.now, trial=number, segment=segment.ordinal, checkpoint=info)
                )
                info = None
        self.feed(
            e.Reported(
                time=self.now,
                trial=number,
                segment=segment.ordinal,
                report_no=report_no,
                iteration=iteration,
                metrics={"other": value}
                if (trial.last or self.bare) and self.rng.random() < self.bare
                else {"m": value},
                checkpoint=info,
            )
        )
        if self.core.verdict(SegmentRef(number, segment.ordinal)).action != "continue":
            self.end(number, segment.ordinal, "left")

    def decisions(self) -> list[Decision]:
        return [entry for _, entry in self.log if isinstance(entry, Decision)]


class Moment:
    """The state just before an event, and the outcome of the event."""

    def __init__(
        self,
        event: e.Event,
        length: int,
        state: str,
        trials: bytes,
        told: dict[int, tuple[int | None, float | None]],
    ) -> None:
        self.event, self.length, self.state, self.told = event, length, state, told
        self._trials = trials  # pickled, as most are never looked at
        self.outcome: list[Entry] = []

    @property
    def trials(self) -> list[Trial]:
        trials: list[Trial] = pickle.loads(self._trials)
        return trials

    def restore(self, drive: Drive) -> Core:
        """Return the core as a restart would build it, from the log."""
        core = drive.fresh()
        for seq, entry in pickle.loads(pickle.dumps(drive.log[: self.length])):
            core.fold(seq, entry)
        for number, (milestone, decide_at) in self.told.items():
            segment = core.trials[number].segments[-1]
            segment.milestone, segment.decide_at = milestone, decide_at
        return core


def state_of(core: Core) -> str:
    """Return the states of the scheduler and of every stopper, as a text that shows every bit and does not change later."""
    return repr([core.scheduler.state, *(stopper.state for stopper in parts_of(core.stopper))])


def parts_of(stopper: Stopper | None) -> list[Stopper]:
    if isinstance(stopper, CombinedStopper):
        return [part for one in stopper.stoppers for part in parts_of(one)]
    return [] if stopper is None else [stopper]


__all__ = ["SPACE", "Drive", "Exploit", "Feed", "Moment", "Pause", "Resume", "Start", "context", "state_of"]
