"""Stoppers: when a trial has come to its end, and when the whole search has, whatever the scheduler thinks.

A stopper is as pure as a scheduler, and simpler: `record` folds facts into `state`; the other methods read it and
change nothing.

* `milestone(trial)`: the value of time_attr at which `decide` must be asked next: the trial's next report, a later one
  (an iteration limit), or None for never. So a stopper that waits for iteration 27 costs nothing before it.
* `decide(number, trials)`: after the trial's report, why it is complete, in words, or None.
* `finished(trials)`: after any fact, why the whole search is over, or None.

What people write: ``stop={"training_iteration": 27}`` or ``{"accuracy": 0.99}``, which ends a trial as soon as one of
the metrics is at or above its value, as in Ray Tune; a function ``(number, metrics) -> bool``; one of the classes
below, a list of any of these; or JSON, ``{"type": "plateau", "std": 0.001}``. Ray Tune's own stoppers are understood
as well.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Literal

from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.schedulers.base import Fact, Setting, TrialEnded, TrialReported
from tuner.schedulers.functions import function_name, import_function, name_of, sealed
from tuner.schedulers.options import build, check_number, check_whole, options_of, pick
from tuner.schedulers.state import restore
from tuner.schedulers.wording import shown

ITERATION = "training_iteration"
TIME = "time_total_s"


def next_report(trial: Trial) -> float:
    """A milestone at whatever comes next."""
    return math.nextafter(trial.t, math.inf)


class Stopper(ABC):
    TYPE: ClassVar[str]
    VERSION: ClassVar[int] = 1

    state: Any = None
    setting: Setting

    def setup(self, setting: Setting) -> None:
        """Take the experiment's setting, before anything else."""
        self.setting = setting

    def to_json(self) -> dict[str, Any]:
        """``{"type": ..., option: value, ...}``, from which `from_json` builds an equal stopper."""
        return {"type": self.TYPE, **options_of(self, type(self))}

    def save(self) -> dict[str, Any]:
        return {"version": self.VERSION, "state": None if self.state is None else asdict(self.state)}

    def load(self, saved: Mapping[str, Any]) -> None:
        if saved["version"] != self.VERSION:
            raise ValueError(f"saved by version {saved['version']} of {self.TYPE}, this is version {self.VERSION}")
        if self.state is not None:
            self.state = restore(type(self.state), saved["state"])

    def metrics(self) -> frozenset[str]:
        """The reported metrics that it looks at, by name. One that never comes is said in the decision log."""
        return frozenset()

    @abstractmethod
    def milestone(self, trial: Trial) -> float | None:
        """The smallest value of time_attr above the present one at which `decide` must be asked; None: never."""

    def record(self, fact: Fact, trials: Population) -> None:  # noqa: B027 - most have nothing to remember
        """Fold a fact into `state`."""

    def record_without(self, trial: Trial) -> None:  # noqa: B027
        """Fold in a report that had no objective, which no fact tells of; its trial has reported one before."""

    def decide(self, number: int, trials: Population) -> str | None:
        """Why this trial, which has just reported, is complete; None where it may go on."""
        return None

    def finished(self, trials: Population) -> str | None:
        """Why the whole search is over; None where it may go on."""
        return None

    def functions(self) -> list[FunctionStopper]:
        """The parts of it that call a function of the user's, always in the same order."""
        return []


class MaximumIterationStopper(Stopper):
    """Ends every trial at its report number `max_iter`."""

    TYPE = "iterations"

    def __init__(self, max_iter: int) -> None:
        check_whole("max_iter", max_iter, at_least=1)
        self.max_iter = max_iter

    def milestone(self, trial: Trial) -> float | None:
        if self.setting.time_attr == ITERATION:
            return float(self.max_iter) if trial.t < self.max_iter else next_report(trial)
        return next_report(trial)

    def decide(self, number: int, trials: Population) -> str | None:
        trial = trials[number]
        if trial.iteration < self.max_iter:
            return None
        return f"completed at iteration {trial.iteration}: the limit is {self.max_iter} iterations"


class ThresholdStopper(Stopper):
    """Ends a trial whose metric is at or above a value; of several, one suffices. What ``stop={...}`` means, as in
    Ray Tune.

    Besides reported metrics, "training_iteration" and "time_total_s" (seconds for which the trial has run) may be
    named. A metric that a report lacks says nothing at that report; the first time, a note in the decision log says so.
    """

    TYPE = "threshold"

    def __init__(self, thresholds: Mapping[str, float]) -> None:
        if not isinstance(thresholds, Mapping) or not thresholds:
            raise SpecError(f"expected metrics with their values, got {thresholds!r}", "/thresholds")
        for metric, value in thresholds.items():
            check_number(f"thresholds/{metric}", value)
        self.thresholds = dict(thresholds)

    def metrics(self) -> frozenset[str]:
        return frozenset(self.thresholds) - {ITERATION, TIME}

    def milestone(self, trial: Trial) -> float | None:
        if set(self.thresholds) == {self.setting.time_attr} and trial.t < self.thresholds[self.setting.time_attr]:
            return self.thresholds[self.setting.time_attr]
        return next_report(trial)

    def decide(self, number: int, trials: Population) -> str | None:
        trial = trials[number]
        known = {ITERATION: float(trial.iteration), TIME: trial.running_s, **trial.last}
        for metric, value in self.thresholds.items():
            if known.get(metric, -math.inf) >= value:
                reached = f"{metric} is {shown(known[metric])}, at or above {shown(value)}"
                return f"completed at iteration {trial.iteration}: {reached}"
        return None


class TimeStopper(Stopper):
    """Ends the whole search, or with `per_trial` each trial, `seconds` after its first sign of life.

    The search is measured from the beginning of the first trial that reported, on the clock of the reports;
    `per_trial` counts only the time for which the trial has run. It is looked at when a report comes. To bound
    running time exactly, also where nothing reports, use the experiment's `time_budget_s`.
    """

    TYPE = "time"

    @dataclass(slots=True)
    class State:
        began: float | None = None
        now: float = 0.0

    def __init__(self, seconds: float | timedelta, per_trial: bool = False) -> None:
        seconds = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        check_number("seconds", seconds, above=0)
        self.seconds = seconds
        self.per_trial = per_trial
        self.state = TimeStopper.State()

    def milestone(self, trial: Trial) -> float | None:
        return next_report(trial) if self.per_trial else None

    def record(self, fact: Fact, trials: Population) -> None:
        if isinstance(fact, TrialReported):
            if self.state.began is None:
                self.state.began = fact.time - trials[fact.trial].running_s
            self.state.now = max(self.state.now, fact.time)

    def decide(self, number: int, trials: Population) -> str | None:
        trial = trials[number]
        if not self.per_trial or trial.running_s < self.seconds:
            return None
        ran = f"it ran for {shown(trial.running_s)} s, the limit is {shown(self.seconds)} s"
        return f"completed at iteration {trial.iteration}: {ran}"

    def finished(self, trials: Population) -> str | None:
        if self.per_trial or self.state.began is None or self.state.now - self.state.began < self.seconds:
            return None
        return (
            f"the search has run for {shown(self.state.now - self.state.began)} s, the limit is {shown(self.seconds)} s"
        )


class TrialPlateauStopper(Stopper):
    """Ends a trial whose metric no longer moves: the standard deviation of its last `num_results` values is below
    `std`.

    metric: the objective where None. grace_period: reports before which no trial is ended. metric_threshold: a trial
    is ended only where its value is at or beyond this, in the direction of `mode` (the objective's where None).
    Defaults are Ray Tune's. A report that comes a second time after a retry replaces the first.
    """

    TYPE = "plateau"

    @dataclass(slots=True)
    class State:
        seen: dict[int, int] = field(default_factory=dict)  # trial -> reports
        last: dict[int, list[tuple[int, float]]] = field(
            default_factory=dict
        )  # trial -> (iteration, value), newest last

    def __init__(
        self,
        metric: str | None = None,
        std: float = 0.01,
        num_results: int = 4,
        grace_period: int = 4,
        metric_threshold: float | None = None,
        mode: Literal["min", "max"] | None = None,
    ) -> None:
        check_number("std", std, above=0)
        check_whole("num_results", num_results, at_least=2)
        check_whole("grace_period", grace_period, at_least=0)
        if metric_threshold is not None:
            check_number("metric_threshold", metric_threshold)
        _check_mode(mode)
        self.metric = metric
        self.std = std
        self.num_results = num_results
        self.grace_period = grace_period
        self.metric_threshold = metric_threshold
        self.mode = mode
        self.state = TrialPlateauStopper.State()

    def metrics(self) -> frozenset[str]:
        return frozenset() if self.metric is None else frozenset({self.metric})

    def milestone(self, trial: Trial) -> float | None:
        return next_report(trial)

    def record(self, fact: Fact, trials: Population) -> None:
        state: TrialPlateauStopper.State = self.state
        if isinstance(fact, TrialEnded):
            state.seen.pop(fact.trial, None)
            state.last.pop(fact.trial, None)
        if not isinstance(fact, TrialReported):
            return
        state.seen[fact.trial] = state.seen.get(fact.trial, 0) + 1
        value = fact.metrics.get(self.metric or self.setting.objective.metric)
        if value is not None:
            kept = [entry for entry in state.last.get(fact.trial, ()) if entry[0] < fact.iteration]
            state.last[fact.trial] = [*kept, (fact.iteration, value)][-self.num_results :]

    def decide(self, number: int, trials: Population) -> str | None:
        window = [value for _, value in self.state.last.get(number, ())]
        if len(window) < self.num_results or self.state.seen[number] < self.grace_period:
            return None
        if self.metric_threshold is not None:
            sign = 1.0 if (self.mode or self.setting.objective.mode) == "max" else -1.0
            if sign * window[-1] < sign * self.metric_threshold:
                return None
        deviation = _deviation(window)
        if not deviation < self.std:
            return None
        metric = self.metric or self.setting.objective.metric
        still = f"the standard deviation of its last {self.num_results} values is {shown(deviation)}"
        where = f"iteration {trials[number].iteration}"
        return f"completed at {where}: {metric} no longer moves, {still}, below {shown(self.std)}"


class ExperimentPlateauStopper(Stopper):
    """Ends the search when its best values no longer move: the `top` best values reported so far deviate by `std` or
    less.

    metric and mode: the objective's where None. patience: how many further reports this must stay so. As Ray Tune's,
    with its defaults; and as there, values of one trial may be among the best several times.
    """

    TYPE = "experiment_plateau"

    @dataclass(slots=True)
    class State:
        best: list[float] = field(default_factory=list)  # scores, ascending
        still: int = 0  # reports for which they have not moved

    def __init__(
        self,
        metric: str | None = None,
        std: float = 0.001,
        top: int = 10,
        mode: Literal["min", "max"] | None = None,
        patience: int = 0,
    ) -> None:
        check_number("std", std, above=0)
        check_whole("top", top, at_least=2)
        check_whole("patience", patience, at_least=0)
        _check_mode(mode)
        self.metric = metric
        self.std = std
        self.top = top
        self.mode = mode
        self.patience = patience
        self.state = ExperimentPlateauStopper.State()

    def metrics(self) -> frozenset[str]:
        return frozenset() if self.metric is None else frozenset({self.metric})

    def milestone(self, trial: Trial) -> float | None:
        return None

    def record(self, fact: Fact, trials: Population) -> None:
        if not isinstance(fact, TrialReported):
            return
        value = fact.metrics.get(self.metric or self.setting.objective.metric)
        if value is None or not math.isfinite(value):
            return
        sign = 1.0 if (self.mode or self.setting.objective.mode) == "max" else -1.0
        state: ExperimentPlateauStopper.State = self.state
        state.best = sorted([*state.best, sign * value])[-self.top :]
        state.still = state.still + 1 if self._plateau() else 0

    def _plateau(self) -> bool:
        return len(self.state.best) == self.top and _deviation(self.state.best) <= self.std

    def finished(self, trials: Population) -> str | None:
        if not self._plateau() or self.state.still < self.patience:
            return None
        metric = self.metric or self.setting.objective.metric
        return (
            f"{metric} no longer improves: the standard deviation of the {self.top} best values is "
            f"{shown(_deviation(self.state.best))}, not above {shown(self.std)}"
        )


class FunctionStopper(Stopper):
    """Ends a trial when ``function(number, metrics)`` says so. It must depend on its arguments alone.

    metrics: what the trial reported, with "training_iteration" and "time_total_s". An experiment that is stored needs
    a function at the top level of a module, which JSON names as ``"module:name"``.

    A driver host calls the function in another process and hands in what it answered (`answered`), as `outside` says; then
    `decide` only looks that up.
    """

    TYPE = "function"
    outside: bool = False

    def __init__(self, function: Callable[[int, dict[str, float]], bool] | str) -> None:
        self.function = import_function("function", function) if isinstance(function, str) else function
        if not callable(self.function):
            raise SpecError(f"expected a function, got {function!r}", "/function")
        self._answers: dict[
            int, tuple[tuple[int, int], Mapping[str, Any]]
        ] = {}  # trial -> (segment, iteration), answer

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the function apart, so that whoever unpickles the stopper need not load it."""
        return {**self.__dict__, "function": sealed(self.function)}

    def functions(self) -> list[FunctionStopper]:
        return [self]

    def arguments(self, trial: Trial) -> dict[str, float]:
        """What the function is called with for this trial, beside its number."""
        return {ITERATION: float(trial.iteration), TIME: trial.running_s, **trial.last}

    def answered(self, number: int, segment: int, iteration: int, answer: Mapping[str, Any]) -> None:
        """Take in what the function said of a trial's report: {"stop": bool}, or {"error", "args", "text", "traceback"}."""
        self._answers[number] = (segment, iteration), answer

    def record(self, fact: Fact, trials: Population) -> None:
        if isinstance(fact, TrialEnded):
            self._answers.pop(fact.trial, None)

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE, "function": function_name("function", self.function)}

    def milestone(self, trial: Trial) -> float | None:
        return next_report(trial)

    def decide(self, number: int, trials: Population) -> str | None:
        trial = trials[number]
        if not (self._answer(trial) if self.outside else self.function(number, self.arguments(trial))):
            return None
        return f"completed at iteration {trial.iteration}: {name_of(self.function)} says so"

    def _answer(self, trial: Trial) -> bool:
        """Return what it said of the trial's newest report. An answer is handed in only if it ends the trial or is an error.

        The answer to a report that was never committed must not count for another segment's report of the same iteration.
        """
        place, answer = self._answers.get(trial.number, ((0, 0), {}))
        if place != (len(trial.segments), trial.iteration):
            return False
        if "error" in answer:
            raise _error_of(answer)
        return bool(answer["stop"])


class _Elsewhere(Exception):
    """The traceback of an exception in another process, to be shown as the cause."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _error_of(answer: Mapping[str, Any]) -> Exception:
    if answer["error"] == "KeyError":
        error: Exception = KeyError(*answer["args"])
    else:
        error = type(answer["error"], (Exception,), {})(answer["text"])
    if answer["traceback"]:
        error.__cause__ = _Elsewhere(answer["traceback"])
    return error


class CombinedStopper(Stopper):
    """Several at once: a trial, or the search, ends as soon as one of them says so."""

    TYPE = "combined"

    def __init__(self, stoppers: Sequence[Any]) -> None:
        if isinstance(stoppers, (str, Mapping)) or not isinstance(stoppers, Sequence) or not stoppers:
            raise SpecError(f"expected a list of stoppers, got {stoppers!r}", "/stoppers")
        made = [from_argument(one, f"/stoppers/{place}") for place, one in enumerate(stoppers)]
        self.stoppers = [one for one in made if one is not None]

    def setup(self, setting: Setting) -> None:
        super().setup(setting)
        for stopper in self.stoppers:
            stopper.setup(setting)

    def metrics(self) -> frozenset[str]:
        return frozenset().union(*(stopper.metrics() for stopper in self.stoppers))

    def functions(self) -> list[FunctionStopper]:
        return [one for stopper in self.stoppers for one in stopper.functions()]

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE, "stoppers": [stopper.to_json() for stopper in self.stoppers]}

    def save(self) -> dict[str, Any]:
        return {"version": self.VERSION, "state": [stopper.save() for stopper in self.stoppers]}

    def load(self, saved: Mapping[str, Any]) -> None:
        for stopper, state in zip(self.stoppers, saved["state"], strict=True):
            stopper.load(state)

    def milestone(self, trial: Trial) -> float | None:
        return min((at for s in self.stoppers if (at := s.milestone(trial)) is not None), default=None)

    def record(self, fact: Fact, trials: Population) -> None:
        for stopper in self.stoppers:
            stopper.record(fact, trials)

    def record_without(self, trial: Trial) -> None:
        for stopper in self.stoppers:
            stopper.record_without(trial)

    def decide(self, number: int, trials: Population) -> str | None:
        return next((why for s in self.stoppers if (why := s.decide(number, trials))), None)

    def finished(self, trials: Population) -> str | None:
        return next((why for s in self.stoppers if (why := s.finished(trials))), None)


_TYPES: dict[str, type[Stopper]] = {
    stopper.TYPE: stopper
    for stopper in (
        MaximumIterationStopper,
        ThresholdStopper,
        TimeStopper,
        TrialPlateauStopper,
        ExperimentPlateauStopper,
        FunctionStopper,
        CombinedStopper,
    )
}


def from_json(data: Mapping[str, Any] | None, pointer: str = "/stop") -> Stopper | None:
    """The stopper that ``{"type": ..., ...}`` or ``{metric: value, ...}`` describes; None for an empty one.

    SpecError, with pointers below `pointer`, names an unknown type or option and the nearest known one, or a wrong
    value.
    """
    if not data:
        return None
    if not isinstance(data, Mapping):
        raise SpecError(f'expected {{"type": ..., ...}} or {{metric: value, ...}}, got {data!r}', pointer)
    if "type" in data and isinstance(data["type"], str):
        return build(pick(data["type"], _TYPES, "stopper", pointer), data, pointer)
    for metric, value in data.items():
        try:
            check_number(metric, value)
        except SpecError as error:
            raise SpecError([(pointer + at, message) for at, message in error.errors]) from error
    return ThresholdStopper(data)


def from_argument(argument: Any, pointer: str = "/stop") -> Stopper | None:
    """The stopper that Python code means: a Stopper, a dict, a function, a list of these, or one of Ray Tune's."""
    if argument is None or isinstance(argument, Stopper):
        return argument
    if isinstance(argument, Mapping):
        return from_json(argument, pointer)
    if isinstance(argument, (list, tuple)):
        try:
            return CombinedStopper(argument) if argument else None
        except SpecError as error:
            raise SpecError([(pointer + at.removeprefix("/stoppers"), text) for at, text in error.errors]) from error
    if any(cls.__module__.startswith("ray.tune.stopper") for cls in type(argument).__mro__):
        from tuner.schedulers.from_ray import stopper_from_ray

        return stopper_from_ray(argument, pointer)
    if callable(argument):
        return FunctionStopper(argument)
    raise SpecError(f"expected a stopper, a dict, a function or a list of these, got {argument!r}", pointer)


def _check_mode(mode: str | None) -> None:
    if mode not in (None, "min", "max"):
        raise SpecError(f'expected "min" or "max", got {mode!r}', "/mode")


def _deviation(values: Sequence[float]) -> float:
    """The population's standard deviation; NaN where a value is not finite."""
    mean = math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values)) if mean == mean else math.nan
