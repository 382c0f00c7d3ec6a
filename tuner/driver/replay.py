"""Run recorded trials again in virtual time under another scheduler, to find that scheduler's cost and result.

The core, the scheduler and the searcher are the real ones. Only the training is replaced: a trial repeats its recorded
reports. No values are made up. If a trial would have continued beyond the end of its record, it is *censored*: it
ends there, and only bounds on its cost and result are known. Each configuration that a searcher or scheduler proposes
is replaced by the nearest recorded configuration that has not been used yet.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tuner.domain.decisions import Decision, Start
from tuner.domain.experiment import CheckpointPolicy, Objective, Spec
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.driver.assemble import Parts, assemble
from tuner.driver.core import Core
from tuner.driver.recording import RecordedReport, RecordedTrial, Recording
from tuner.driver.virtual_loop import SimulatedGroups, Step, VirtualLoop, virtual_loop
from tuner.errors import SpecError
from tuner.options import check_integer
from tuner.plurals import counted
from tuner.schedulers.base import Choice, Fact, Scheduler
from tuner.search.base import Searcher, SearcherContext, Suggestion
from tuner.search.constraints import Constraint, read
from tuner.space import Space

RECORDED = "recorded"
"""The key in a replayed trial's searcher state that holds the number of the recorded trial."""

CONFIGURING = ("pbt", "pb2")
"""Schedulers that change a trial's configuration during training, so that recorded curves do not apply."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state in which a trial ended, the training that it got, and the value that it reached.

    state: the trial's state, or "censored" if a replayed trial would have continued beyond its record.
    iterations: the number of the trial's reports; repeated reports count once.
    value: the trial's best value of the objective within the constraints; with scope="last", its last such value.
    reason: why the replayed trial ended, in words; "" for a recorded trial.
    """

    state: TrialState | Literal["censored"]
    iterations: int
    value: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Compared:
    """One recorded trial: its outcome in the experiment, and in the replay (None if the replay did not start the trial)."""

    number: int
    params: Mapping[str, Any]
    recorded: Outcome
    replayed: Outcome | None


@dataclass(frozen=True, slots=True)
class Totals:
    """The cost and the result of a search.

    Attributes:
        trials: number of trials that were started.
        reports: total reports of all trials, including those that were repeated because a trial started over.
        training_s: total seconds of training of all trials, without the time that the trials took to start.
        duration_s: seconds from the start of the first trial to the end of the search.
        best_trial: the number that the best trial had in the experiment; None if no trial has a value within the constraints.
        best_value: the value of the best trial.
    """

    trials: int
    reports: int
    training_s: float
    duration_s: float
    best_trial: int | None
    best_value: float | None


@dataclass(frozen=True, slots=True)
class Replay:
    """A scheduler's outcome on an experiment's trials, compared with the experiment's own outcome.

    Attributes:
        method: the scheduler and the searcher in short, such as "asha(reduction_factor=4)".
        scheduler: the scheduler with all its options, as JSON.
        search: the searcher as JSON; None if the trials were replayed in the order in which they were recorded, or if the
            scheduler proposes configurations.
        recorded: the cost and result of the experiment.
        replayed: the cost and result of the replay.
        trials: the recorded trials, by number.
        censored: how many trials would have continued beyond their record. If there are any, the cost of the replay is
            a lower bound, and its result is not known.
        notes: notes on how to read the outcome.
        summary: the outcome, in one sentence.
    """

    method: str
    scheduler: Mapping[str, Any]
    search: Mapping[str, Any] | None
    recorded: Totals
    replayed: Totals
    trials: tuple[Compared, ...]
    censored: int
    notes: tuple[str, ...]
    summary: str

    @property
    def saved(self) -> float:
        """Return the share of the reports that would have been saved: negative if the replay makes more reports.

        If trials are censored, the share is an upper bound.
        """
        return 1 - self.replayed.reports / self.recorded.reports


def replay(
    spec: Spec,
    space: Space,
    record: Recording,
    parts: Parts | None = None,
    *,
    max_concurrent_trials: int | None = None,
    check: Callable[[], None] | None = None,
) -> Replay:
    """Run the recorded trials of an experiment again, with the spec's scheduler and searcher or with those in `parts`.

    Args:
        spec: the experiment's spec, with the scheduler, searcher and limits of the replay.
        space: the experiment's search space. Python functions in it need not be loaded, since they are never called.
        record: the experiment's recording.
        parts: the scheduler, the searcher and the stopper to use in place of the spec's. Without a searcher, the trials start
            in the order in which the experiment started them.
        max_concurrent_trials: how many trials train at once. None: as many as trained at once in the experiment.
        check: called before every step of the replay; may raise an error to give up.

    Raises:
        SpecError: nothing was recorded, or the scheduler cannot be replayed or does not fit the experiment.
    """
    if not record.reports:
        raise SpecError("no trial of the experiment has reported, so there is nothing to replay")
    if max_concurrent_trials is not None:
        check_integer("max_concurrent_trials", max_concurrent_trials, at_least=1)
    parts = parts or Parts()
    wanted = parts.searcher
    trials = list(record.trials.values())
    constraints = read(spec.resolved.get("constraints")) or list(
        wanted.metric_constraints() if wanted is not None else ()
    )
    if parts.scheduler is not None and parts.scheduler.PROPOSES:
        wanted = None  # such a scheduler uses only the constraints of a searcher
    used = _Unused(trials, space) if wanted is not None else None
    searcher: Searcher = (
        Nearest(wanted, used, constraints) if wanted is not None and used is not None else InOrder(trials, constraints)
    )
    changed = _as_replayed(spec, parts.scheduler, record, max_concurrent_trials)
    core = assemble(
        changed,
        space,
        Parts(parts.scheduler, searcher, parts.stopper),
        saves_checkpoints=record.saves_checkpoints,
    )
    if core.scheduler.TYPE in CONFIGURING or core.scheduler.SAVES_AT_MILESTONES:
        raise SpecError(
            f"{core.scheduler.TYPE} changes configurations during training, so recorded curves do not apply",
            "/scheduler",
        )
    scheduler = core.scheduler
    if scheduler.PROPOSES:
        used = _Unused(trials, space)
        core = Core(core.spec, OverRecorded(scheduler, used), searcher, core.stopper, core.notes)
    loop = virtual_loop(core, space, _never, record.startup_s)
    groups = RecordedGroups(loop, record)
    loop.groups = groups
    loop.run(check)
    duration = loop.clock.now - record.startup_s
    found = _compared(core, scheduler, wanted, record, groups, duration, constraints, used)
    if wanted is parts.searcher or parts.searcher is None:
        return found
    unused = f"{scheduler.TYPE} proposes configurations itself, so {parts.searcher.TYPE} was not used"
    return replace(found, notes=(*found.notes, unused))


def _as_replayed(spec: Spec, scheduler: Scheduler | None, record: Recording, slots: int | None) -> Spec:
    """Return the spec for a replay: without retries, with the recorded number of trials, and with supported limits only."""
    counts = scheduler.COUNTS_BUDGET if scheduler is not None else True
    limits = replace(
        spec.limits,
        max_concurrent_trials=slots or record.slots,
        max_failures=0,
        repeats=0,
        budget=spec.limits.budget if counts else None,
    )
    return replace(
        spec,
        num_samples=len(record.trials),
        points_to_evaluate=(),
        limits=limits,
        scaling=replace(spec.scaling, max_workers=None),
        checkpoint=CheckpointPolicy(interval_s=None),
        resolved={},  # by the rules of this version
    )


def _never(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    raise AssertionError("RecordedGroups replays reports and does not call evaluate")


class RecordedGroups(SimulatedGroups):
    """Simulated worker groups that replay the recorded reports of trials.

    censored: the numbers of replayed trials that reached the end of their record and would have continued.
    """

    def __init__(self, loop: VirtualLoop, record: Recording) -> None:
        super().__init__(loop.clock, loop.core, Space({}), _never, record.startup_s)
        self.inbound = loop
        self.censored: set[int] = set()
        self._record = record

    def steps(self, trial: Trial, checkpoint: Any) -> Iterator[Step]:
        recorded = self._record.trials[trial.searcher_state[RECORDED]]
        for at, report in enumerate(recorded.reports[checkpoint or 0 :], start=(checkpoint or 0) + 1):
            kept = at if self._record.saves_checkpoints else None
            yield Step(report.metrics, seconds=report.seconds, checkpoint=kept)
        if recorded.end == "failed":
            raise RuntimeError(recorded.error)
        if recorded.end == "cut":
            self.censored.add(trial.number)


# -- which configuration comes next -----------------------------------------------------------------------------------------


class InOrder(Searcher):
    """Suggests the recorded configurations in the order in which the experiment started them."""

    TYPE: ClassVar[str] = "recorded"

    def __init__(self, trials: Sequence[RecordedTrial], constraints: Sequence[Constraint]) -> None:
        self._trials, self._constraints = trials, constraints

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE}

    def suggest(self, number: int, trials: Population) -> Suggestion | None:
        if number >= len(self._trials):
            return None
        recorded = self._trials[number]
        return Suggestion(dict(recorded.params), {RECORDED: recorded.number})

    def metric_constraints(self) -> Sequence[Constraint]:
        return self._constraints

    def total(self) -> int:
        return len(self._trials)


class _Unused:
    """Finds the recorded configuration nearest to a proposal, among those that have not been used yet."""

    def __init__(self, trials: Sequence[RecordedTrial], space: Space) -> None:
        self._trials, self._space = trials, space
        self._unordered = [p.kind == "choice" and not p.ordered for p in space.parameters]
        places = np.array([self._place(trial.params) for trial in trials], dtype=float)
        self._columns = places.reshape(len(trials), len(self._unordered)).T
        self._index = {trial.number: at for at, trial in enumerate(trials)}
        self._used = np.zeros(len(trials), dtype=bool)
        self._read = 0  # all replayed trials below this number have been read
        self.moved: list[float] = []  # distance from each proposal to its replacement

    def nearest(self, params: Mapping[str, Any], trials: Population) -> RecordedTrial | None:
        """Return the recorded trial nearest to the proposed params that none of `trials` replays; None if all are in use."""
        while self._read in trials:
            if (recorded := trials[self._read].searcher_state.get(RECORDED)) is not None:
                self._used[self._index[recorded]] = True
            self._read += 1
        distances = np.where(self._used, np.inf, self._distances(params))
        at = int(distances.argmin())
        if not np.isfinite(distances[at]):
            return None
        self.moved.append(float(distances[at]))
        return self._trials[at]

    def _place(self, params: Mapping[str, Any]) -> list[float]:
        """Return a configuration's coordinates in the unit cube, with NaN for each parameter that is not active."""
        unit, active = self._space.to_unit(params), self._space.active(params)
        return [u if on else math.nan for u, on in zip(unit, active, strict=True)]

    def _distances(self, params: Mapping[str, Any]) -> NDArray[np.float64]:
        """Return the Euclidean distances (n,) of a configuration from all recorded ones.

        Two different categories are 1 apart, and so are a value and a missing value.
        """
        total = np.zeros(len(self._trials))
        for value, column, unordered in zip(self._place(params), self._columns, self._unordered, strict=True):
            missing = np.isnan(column)
            if math.isnan(value):
                total += ~missing
            else:
                total += np.where(missing, 1.0, column != value if unordered else (column - value) ** 2)
        return np.sqrt(total)


class Nearest(Searcher):
    """Replaces each proposal of another searcher with the nearest recorded configuration that has not been used yet."""

    TYPE: ClassVar[str] = "recorded"

    def __init__(self, inner: Searcher, unused: _Unused, constraints: Sequence[Constraint]) -> None:
        self._inner, self._unused, self._constraints = inner, unused, constraints

    def setup(self, context: SearcherContext) -> None:
        super().setup(context)
        self._inner.setup(context)

    def to_json(self) -> dict[str, Any]:
        return self._inner.to_json()

    def suggest(self, number: int, trials: Population) -> Suggestion | None:
        proposed = self._inner.suggest(number, trials)
        found = self._unused.nearest(proposed.params, trials) if proposed is not None else None
        if proposed is None or found is None:
            return None
        return Suggestion(dict(found.params), {**proposed.state, RECORDED: found.number}, proposed.note)

    def waits(self) -> bool:
        return self._inner.waits()

    def metric_constraints(self) -> Sequence[Constraint]:
        return self._constraints


class OverRecorded(Scheduler):
    """Wraps a scheduler that proposes configurations, and replaces each proposal with the nearest unused recorded one."""

    TYPE: ClassVar[str] = "over_recorded"
    PROPOSES: ClassVar[bool] = True

    def __init__(self, inner: Scheduler, unused: _Unused) -> None:
        self._inner, self._unused = inner, unused
        self.fit = inner.fit  # type: ignore[method-assign]
        self.context = inner.context

    def to_json(self) -> dict[str, Any]:
        return self._inner.to_json()

    def milestone(self, trial: Trial, trials: Population) -> float | None:
        return self._inner.milestone(trial, trials)

    def record(self, fact: Fact, trials: Population) -> None:
        self._inner.record(fact, trials)

    def enacted(self, decision: Decision, trials: Population) -> None:
        self._inner.enacted(decision, trials)

    def decide(self, fact: Fact, trials: Population) -> Sequence[Decision]:
        return self._inner.decide(fact, trials)

    def choose(self, trials: Population, may_start: bool) -> Choice | None:
        choice = self._inner.choose(trials, may_start)
        if not isinstance(choice, Start) or choice.params is None:
            return choice
        found = self._unused.nearest(choice.params, trials)
        if found is None:
            return None
        return replace(choice, params=dict(found.params), state={**choice.state, RECORDED: found.number})

    def fit_request(self, trials: Population) -> Mapping[str, Any] | None:
        return self._inner.fit_request(trials)

    def finished(self, trials: Population, may_start: bool) -> str | None:
        return self._inner.finished(trials, may_start)


# -- the outcome ----------------------------------------------------------------------------------------------------------


def _compared(
    core: Core,
    scheduler: Scheduler,
    searcher: Searcher | None,
    record: Recording,
    groups: RecordedGroups,
    duration: float,
    constraints: Sequence[Constraint],
    unused: _Unused | None,
) -> Replay:
    value = _Values(core.spec, constraints)
    again = {trial.searcher_state[RECORDED]: trial for trial in core.trials}
    compared = []
    for number, recorded in record.trials.items():
        then = Outcome(recorded.state, len(recorded.reports), value.of(recorded.reports))
        now = None
        if (trial := again.get(number)) is not None:
            reached = max((segment.iteration for segment in trial.segments), default=0)
            cut = trial.number in groups.censored
            state: TrialState | Literal["censored"] = "censored" if cut else trial.state
            late = f"the record ends at iteration {reached}, but the trial would have continued"
            why = late if cut else trial.reason
            now = Outcome(state, reached, value.of(recorded.reports[:reached]), why)
        compared.append(Compared(number, recorded.params, then, now))
    then_best = value.best([(c.number, c.recorded.value) for c in compared])
    now_best = value.best([(c.number, c.replayed.value) for c in compared if c.replayed is not None])
    trained = sum(r.seconds for t in record.trials.values() for r in t.reports)
    before = Totals(len(compared), record.reports, trained, record.seconds, *then_best)
    spent = sum(trial.running_s for trial in core.trials)
    after = Totals(len(core.trials), len(groups.history), spent, max(duration, 0.0), *now_best)
    method = in_words(scheduler, searcher)
    return Replay(
        method=method,
        scheduler=scheduler.resolved(),
        search=searcher.to_json() if searcher is not None else None,
        recorded=before,
        replayed=after,
        trials=tuple(compared),
        censored=len(groups.censored),
        notes=tuple(_notes(core, record, groups, unused)),
        summary=_summary(method, before, after, compared, len(groups.censored), core.spec.objective),
    )


class _Values:
    """Computes a trial's value: the best (with scope="last", the last) value of the first objective within the constraints."""

    def __init__(self, spec: Spec, constraints: Sequence[Constraint]) -> None:
        self._objective, self._last, self._constraints = spec.objective, spec.scope == "last", constraints

    def of(self, reports: Sequence[RecordedReport]) -> float | None:
        newest: dict[str, float] = {}
        found: list[float] = []
        feasible = True
        for report in reports:
            newest |= report.metrics
            value = newest.get(self._objective.metric, math.nan)
            feasible = all(c.excess(newest) <= 0 for c in self._constraints)
            if math.isfinite(value) and feasible:
                found.append(value)
        if self._last:
            return found[-1] if found and feasible else None
        return max(found, key=self._objective.score, default=None)

    def best(self, values: Sequence[tuple[int, float | None]]) -> tuple[int | None, float | None]:
        """Return the number and the value of the best trial; among trials with equal values, the first."""
        known = [(number, value) for number, value in values if value is not None]
        return max(known, key=lambda each: self._objective.score(each[1]), default=(None, None))


def in_words(scheduler: Scheduler, searcher: Searcher | None = None) -> str:
    """Return a scheduler and a searcher in words, each by its type and the options that differ from their defaults.

    For example, ``asha(reduction_factor=4) + tpe``.
    """
    words = [_in_words(scheduler)]
    return " + ".join([*words, *([_in_words(searcher)] if searcher is not None else [])])


def _in_words(part: Scheduler | Searcher) -> str:
    usual = {name: p.default for name, p in inspect.signature(type(part)).parameters.items()}
    options = {name: value for name, value in part.to_json().items() if name != "type"}
    shown = [f"{name}={value!r}" for name, value in options.items() if value != usual.get(name)]
    return f"{part.TYPE}({', '.join(shown)})" if shown else part.TYPE


def _notes(core: Core, record: Recording, groups: RecordedGroups, unused: _Unused | None) -> Iterator[str]:
    if cut := len(groups.censored):
        ends = "its recorded curve ends" if cut == 1 else "their recorded curves end"
        yield (
            f"{cut} of {counted(len(core.trials), 'trial')} would have continued, but {ends} here. The real cost "
            "would be higher than shown, and the result might be better"
        )
    if unused is not None and unused.moved:
        mean = sum(unused.moved) / len(unused.moved)
        yield (
            "each proposed configuration was replaced by the nearest recorded one that was not used yet, at a "
            f"mean distance of {mean:.2g} in the unit cube, because only recorded configurations have curves"
        )
        if len(core.trials) == len(record.trials):
            count = len(core.trials)
            used = "the only recorded configuration was" if count == 1 else f"all {count} recorded configurations were"
            yield f"{used} used; the search itself would have proposed new ones"
    again = len(groups.history) - sum(max((s.iteration for s in trial.segments), default=0) for trial in core.trials)
    if not record.saves_checkpoints and again > 0:
        yield f"no trial saved checkpoints, so paused trials had to start over and repeated {counted(again, 'report')}"
    if core.experiment.error:
        yield f"the replay ended with an error: {core.experiment.error}"


def _summary(
    method: str, then: Totals, now: Totals, compared: Sequence[Compared], censored: int, objective: Objective
) -> str:
    share = 1 - now.reports / then.reports
    if censored:
        # The real outcome is not known, so it is not compared.
        saved = f", and would have saved at most {100 * share:.0f} % of the training" if share >= 0.0005 else ""
        ends, trials = ("ends", "the trial") if censored == 1 else ("end", "the trials")
        return (
            f"{method} would have needed at least {counted(now.reports, 'report')}{saved}: {censored} of "
            f"{counted(now.trials, 'recorded curve')} {ends} before {method} would have ended {trials}, so what it would have "
            "cost and found is not known"
        )
    if share >= 0.0005:
        cost = f"would have saved {100 * share:.0f} % of the training"
    elif share <= -0.0005:
        cost = f"would have cost {-100 * share:.0f} % more training"
    else:
        cost = "would have cost the same amount of training"
    return f"{method} {cost} and {_found(then, now, compared, objective)}"


def _found(then: Totals, now: Totals, compared: Sequence[Compared], objective: Objective) -> str:
    if now.best_value is None or then.best_value is None:
        return "found no result" if now.best_value is None else "found a result"
    failed = any(
        c.number == now.best_trial and c.replayed is not None and c.replayed.state is TrialState.FAILED
        for c in compared
    )
    if now.best_value == then.best_value:
        if now.best_trial == then.best_trial:
            return f"found the same best trial{', which failed' if failed else ''}"
        return f"found an equally good trial{f' (trial {now.best_trial}), which failed' if failed else ''}"
    where = f"{objective.metric} {now.best_value:.6g} (trial {now.best_trial}{', which failed' if failed else ''})"
    return f"found {where} instead of {then.best_value:.6g} (trial {then.best_trial})"
