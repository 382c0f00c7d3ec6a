"""Stoppers that end a trial, or the search, when a metric no longer changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.options import check_integer, check_number
from tuner.schedulers.base import Fact, TrialEnded, TrialReported
from tuner.schedulers.shared.wording import shown
from tuner.schedulers.stoppers.base import Stopper, next_report

_SQUARABLE = 1e150
"""The squares of numbers below this one, and sums of many of them, are finite."""


class TrialPlateauStopper(Stopper):
    """Ends a trial whose metric no longer changes.

    It ends a trial if the standard deviation of the trial's last `num_results` values is below `std`. The defaults are
    those of Ray Tune. If a report is repeated after a retry, the new report replaces the old report.

    Args:
        metric: the metric to watch. None: the objective.
        std: the standard deviation, in the metric's unit, below which the metric counts as unchanged.
        num_results: how many of the newest values to compare.
        grace_period: no trial is ended before it has made this many reports.
        metric_threshold: a trial is ended only if its metric is at least as good as this value.
        mode: the direction in which `metric_threshold` is compared. None: the objective's.
    """

    TYPE = "plateau"

    @dataclass(slots=True)
    class State:
        seen: dict[int, int] = field(default_factory=dict)  # trial -> reports
        # trial -> (iteration, value), newest last
        last: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

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
        check_integer("num_results", num_results, at_least=2)
        check_integer("grace_period", grace_period, at_least=0)
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
        if isinstance(fact, TrialReported):
            self._count(fact.trial, fact.iteration, fact.metrics)

    def record_report_without(self, trial: Trial, metrics: Mapping[str, float], running_s: float) -> None:
        if self.knows_objective(trial):
            self._count(trial.number, trial.iteration, metrics)

    def _count(self, number: int, iteration: int, metrics: Mapping[str, float]) -> None:
        state: TrialPlateauStopper.State = self.state
        state.seen[number] = state.seen.get(number, 0) + 1
        value = metrics.get(self.metric or self.context.objective.metric)
        if value is not None:
            kept = [entry for entry in state.last.get(number, ()) if entry[0] < iteration]
            state.last[number] = [*kept, (iteration, value)][-self.num_results :]

    def decide(self, number: int, trials: Population) -> str | None:
        window = [value for _, value in self.state.last.get(number, ())]
        if len(window) < self.num_results or self.state.seen[number] < self.grace_period:
            return None
        if self.metric_threshold is not None:
            sign = 1.0 if (self.mode or self.context.objective.mode) == "max" else -1.0
            if sign * window[-1] < sign * self.metric_threshold:
                return None
        deviation = _deviation(window)
        if not deviation < self.std:
            return None
        metric = self.metric or self.context.objective.metric
        still = f"the standard deviation of its last {self.num_results} values is {shown(deviation)}"
        where = f"iteration {trials[number].iteration}"
        return f"completed at {where}: {metric} no longer changes: {still}, below {shown(self.std)}"


class ExperimentPlateauStopper(Stopper):
    """Ends the search if its best values no longer change.

    It ends the search if the standard deviation of the `top` best values reported so far is at most `std`. The defaults
    are those of Ray Tune. As in Ray Tune, one trial can contribute several of the best values.

    Args:
        metric: the metric to watch. None: the objective.
        std: the standard deviation, in the metric's unit, up to which the best values count as unchanged.
        top: how many of the best values to compare.
        mode: the direction in which the metric improves. None: the objective's.
        patience: the number of further reports for which the best values must stay unchanged.
    """

    TYPE = "experiment_plateau"

    @dataclass(slots=True)
    class State:
        best: list[float] = field(default_factory=list)  # scores, ascending
        still: int = 0  # number of reports for which the best values have not changed

    def __init__(
        self,
        metric: str | None = None,
        std: float = 0.001,
        top: int = 10,
        mode: Literal["min", "max"] | None = None,
        patience: int = 0,
    ) -> None:
        check_number("std", std, above=0)
        check_integer("top", top, at_least=2)
        check_integer("patience", patience, at_least=0)
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
        if isinstance(fact, TrialReported):
            self._take(fact.metrics)

    def record_report_without(self, trial: Trial, metrics: Mapping[str, float], running_s: float) -> None:
        if self.knows_objective(trial):
            self._take(metrics)

    def _take(self, metrics: Mapping[str, float]) -> None:
        value = metrics.get(self.metric or self.context.objective.metric)
        if value is None or not math.isfinite(value):
            return
        sign = 1.0 if (self.mode or self.context.objective.mode) == "max" else -1.0
        state: ExperimentPlateauStopper.State = self.state
        state.best = sorted([*state.best, sign * value])[-self.top :]
        state.still = state.still + 1 if self._plateau() else 0

    def _plateau(self) -> bool:
        return len(self.state.best) == self.top and _deviation(self.state.best) <= self.std

    def finished(self, trials: Population) -> str | None:
        if not self._plateau() or self.state.still < self.patience:
            return None
        metric = self.metric or self.context.objective.metric
        return (
            f"{metric} no longer improves: the standard deviation of the {self.top} best values is "
            f"{shown(_deviation(self.state.best))}, at most {shown(self.std)}"
        )


def _check_mode(mode: str | None) -> None:
    if mode not in (None, "min", "max"):
        raise SpecError(f'expected "min" or "max", got {mode!r}', "/mode")


def _deviation(values: Sequence[float]) -> float:
    """Return the population standard deviation, or NaN if a value is not finite."""
    if not all(map(math.isfinite, values)):
        return math.nan
    largest = max(map(abs, values))
    unit = 1.0 if largest < _SQUARABLE else largest  # the square of a larger value would overflow
    scaled = [value / unit for value in values]
    mean = math.fsum(scaled) / len(scaled)
    return unit * math.sqrt(math.fsum((value - mean) ** 2 for value in scaled) / len(scaled))
