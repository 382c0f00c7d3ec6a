"""Stoppers that compare a number with a limit: iterations, metrics, time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.options import check_integer, check_number
from tuner.plurals import counted
from tuner.schedulers.base import Fact, TrialReported
from tuner.schedulers.shared.wording import shown
from tuner.schedulers.stoppers.base import ITERATION, TIME, Stopper, next_report


class MaximumIterationStopper(Stopper):
    """Ends every trial at its `max_iter`-th report."""

    TYPE = "iterations"

    def __init__(self, max_iter: int) -> None:
        check_integer("max_iter", max_iter, at_least=1)
        self.max_iter = max_iter

    def milestone(self, trial: Trial) -> float | None:
        if self.context.time_attr == ITERATION:
            return float(self.max_iter) if trial.t < self.max_iter else next_report(trial)
        return next_report(trial)

    def decide(self, number: int, trials: Population) -> str | None:
        trial = trials[number]
        if trial.iteration < self.max_iter:
            return None
        return f"completed at iteration {trial.iteration}: the limit is {counted(self.max_iter, 'iteration')}"


class ThresholdStopper(Stopper):
    """Ends a trial as soon as one of several metrics is at or above its threshold, as ``stop={...}`` does in Ray Tune.

    Besides reported metrics, the thresholds can name "training_iteration" and "time_total_s" (the seconds for which the
    trial has run). If a metric is missing from a report, its threshold is ignored at that report. The first time this
    happens, a note in the decision log says so.
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
        if set(self.thresholds) == {self.context.time_attr} and trial.t < self.thresholds[self.context.time_attr]:
            return self.thresholds[self.context.time_attr]
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
    """Ends the whole search after `seconds`. With `per_trial`, ends each trial after that time instead.

    The time of the search begins at the start of the first trial that reported, and is computed from the times of
    reports. Pauses and the time without a driver do not count. With `per_trial`, only the time for which the trial ran
    counts. The limit is checked when a report arrives. For an exact limit, which holds even if no trial reports, use the
    experiment's `time_budget_s`.
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
            self._note_time(trials[fact.trial], fact.running_s)

    def record_report_without(self, trial: Trial, metrics: Mapping[str, float], running_s: float) -> None:
        self._note_time(trial, running_s)

    def _note_time(self, trial: Trial, running_s: float) -> None:
        if self.state.began is None:
            self.state.began = running_s - trial.running_s
        self.state.now = max(self.state.now, running_s)

    def decide(self, number: int, trials: Population) -> str | None:
        trial = trials[number]
        if not self.per_trial or trial.running_s < self.seconds:
            return None
        ran = f"it has run for {shown(trial.running_s)} s, and the limit is {shown(self.seconds)} s"
        return f"completed at iteration {trial.iteration}: {ran}"

    def finished(self, trials: Population) -> str | None:
        if self.per_trial or self.state.began is None or self.state.now - self.state.began < self.seconds:
            return None
        return (
            f"the search has run for {shown(self.state.now - self.state.began)} s, and the limit is "
            f"{shown(self.seconds)} s"
        )
