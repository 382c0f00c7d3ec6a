"""Median stopping: stop a trial whose best value is worse than the median of the other trials' running means.

Golovin, Solnik, Moitra, Kochanski, Karro, Sculley: "Google Vizier: A Service for Black-Box Optimization", KDD 2017,
section 3.2.2, https://research.google/pubs/pub46180/, as implemented in Ray Tune.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sortedcontainers import SortedList

from tuner.domain.decisions import Complete, Decision, Pause, Resume, Stop
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.options import check_boolean, check_integer, check_number, options_of
from tuner.plurals import counted
from tuner.schedulers.base import Choice, Fact, Scheduler, SchedulerContext, TrialReported, can_resume
from tuner.schedulers.shared.standing import standing, violates
from tuner.schedulers.shared.wording import reached_max_t, reported, time_in_words


@dataclass(slots=True)
class TrialMeans:
    """The reports of one trial so far."""

    best: float  # its best standing
    t: float  # the value of time_attr at its furthest report
    yielded: float  # the t at which the trial last gave up its worker group; its start if it never has
    violating: bool = True  # whether no report since the grace period has satisfied the constraints
    # sum of its scores since the grace period within the constraints; if `violating`, of its standings
    total: float = 0.0
    count: int = 0
    times: list[float] = field(default_factory=list)
    means: list[float] = field(default_factory=list)  # the running mean at each of `times`

    def add(self, t: float, standing: float) -> None:
        """Add a report to the running mean. Once one has satisfied the constraints, the mean is about such reports only."""
        outside = violates(standing)
        if self.violating and not outside:
            self.violating, self.total, self.count = False, 0.0, 0
        if self.violating == outside:
            self.total += standing
            self.count += 1
        self.times.append(t)
        self.means.append(self.total / self.count)

    def mean(self, t: float) -> float | None:
        """Return the running mean of the reports up to and including t, or None if there are no such reports."""
        place = bisect_right(self.times, t)
        return self.means[place - 1] if place else None


@dataclass(slots=True)
class MedianState:
    courses: dict[int, TrialMeans] = field(default_factory=dict)
    levels: list[int] = field(default_factory=list)  # whole values of time_attr at which a trial was judged, ascending
    # level -> running means of the trials that reached it
    means: dict[int, SortedList[float]] = field(default_factory=dict)
    set_aside: dict[int, None] = field(default_factory=dict)  # trials that the rule has paused, which run at the end
    newest: tuple[int, int] | None = None  # the trial of the latest fact, and the level at which it is judged


class MedianStoppingRule(Scheduler):
    """Stops a trial at time t if its best value is strictly worse than the median of the other trials' running means.

    A running mean is the mean of a trial's reports up to t. It is computed for every other trial that has reached t. Times
    are compared in whole units of time_attr. With constraints, only reports that satisfy them count. A trial without such a
    report is worse than all trials that have one, and is compared with the others by how far it violates the constraints.

    Args:
        grace_period: no trial is stopped before this value of time_attr, and the means begin there. The default is 1; Ray
            Tune's default is 60 (seconds).
        min_samples_required: a trial is judged only if at least this many other trials have a mean.
        min_time_slice: while fewer than `min_samples_required` trials have a mean, a trial that has run for this long
            gives up its worker group for a waiting trial. None: never. With 0, the default of Ray Tune, trials take
            turns at every report.
        hard_stop: False pauses trials instead of stopping them. Paused trials continue when no new trial may be started.
        max_t: a trial that reaches this value is completed. None: the experiment's max_t.
        time_attr: must equal the experiment's time_attr. None: the experiment's.
    """

    TYPE = "median"

    def __init__(
        self,
        grace_period: float = 1,
        min_samples_required: int = 3,
        min_time_slice: float | None = None,
        hard_stop: bool = True,
        max_t: float | None = None,
        time_attr: str | None = None,
    ) -> None:
        check_number("grace_period", grace_period, at_least=0)
        check_integer("min_samples_required", min_samples_required, at_least=1)
        if min_time_slice is not None:
            check_number("min_time_slice", min_time_slice, at_least=0)
        check_boolean("hard_stop", hard_stop)
        if max_t is not None:
            check_number("max_t", max_t, above=0)
        self.grace_period = grace_period
        self.min_samples_required = min_samples_required
        self.min_time_slice = min_time_slice
        self.hard_stop = hard_stop
        self.max_t = max_t
        self.time_attr = time_attr
        self.state = MedianState()

    def setup(self, context: SchedulerContext) -> None:
        super().setup(context)
        self._end = self.inherited_max_t(self.max_t, self.time_attr)

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE, **options_of(self)}

    def milestone(self, trial: Trial, trials: Population) -> float | None:
        if trial.number in self.state.set_aside:
            return self._end
        return max(math.nextafter(trial.t, math.inf), float(self.grace_period))

    def record(self, fact: Fact, trials: Population) -> None:
        state: MedianState = self.state
        state.newest = None
        if not isinstance(fact, TrialReported):
            return
        own = standing(fact.score, trials[fact.trial].last, self.context)
        course = state.courses.setdefault(fact.trial, TrialMeans(own, -math.inf, 0.0))
        course.best = max(course.best, own)
        before, course.t = course.t, max(course.t, fact.t)
        if fact.t <= before or fact.t < self.grace_period:
            return
        course.add(fact.t, own)
        level = math.floor(fact.t)
        if level not in state.means:
            self._open(level, fact.trial)
        first = 0 if before == -math.inf else bisect_right(state.levels, before)
        for passed in state.levels[first : bisect_right(state.levels, level)]:
            mean = course.mean(passed)
            if mean is not None:
                state.means[passed].add(mean)
        state.newest = (fact.trial, level)

    def _open(self, level: int, newcomer: int) -> None:
        """Add a level at which no trial has been judged yet, with the means of all trials that have passed it."""
        insort(self.state.levels, level)
        means: SortedList[float] = SortedList()
        self.state.means[level] = means
        for trial, course in self.state.courses.items():
            mean = course.mean(level)
            if trial != newcomer and course.t >= level and mean is not None:
                means.add(mean)

    def enacted(self, decision: Decision, trials: Population) -> None:
        if not isinstance(decision, Pause) or decision.held or decision.trial not in self.state.courses:
            return
        if self._verdict(decision.trial) is not None:
            self.state.set_aside[decision.trial] = None
        self.state.courses[decision.trial].yielded = self.state.courses[decision.trial].t

    def _others(self, number: int) -> tuple[int, float]:
        """Return how many other trials have reached the level of the newest report, and the median of their means."""
        assert self.state.newest is not None
        level = self.state.newest[1]
        means: SortedList[float] = self.state.means[level]
        own = self.state.courses[number].mean(level)
        count = len(means) - (own is not None)
        skip = len(means) - means.bisect_right(own) + 1 if own is not None else len(means) + 1
        if count == 0:
            return 0, -math.inf

        def from_top(k: int) -> float:
            """Return the k-th greatest mean of the other trials, where k = 1 is the greatest."""
            return means[-k if k < skip else -k - 1]  # type: ignore[no-any-return]

        upper = from_top((count + 1) // 2)
        if count % 2:
            return count, upper
        lower = from_top(count // 2 + 1)
        return count, (upper + lower) / 2 if violates(lower) == violates(upper) else lower

    def _verdict(self, number: int) -> str | None:
        """Return why this trial, which has just reported, should stop, or None to let it continue."""
        state: MedianState = self.state
        if state.newest is None or state.newest[0] != number or number in state.set_aside:
            return None
        count, median = self._others(number)
        best = state.courses[number].best
        if count < self.min_samples_required or best >= median:
            return None
        objective = self.context.objective
        where = f"at {time_in_words(self.context.time_attr, state.courses[number].t)}: "
        if violates(best):
            others = counted(count, "other trial")
            most = f"{others} has" if count == 1 else f"most of {others} have"
            why = f"the median of {others} violates them less" if violates(median) else most
            return f"{where}no report of it has satisfied the constraints, and {why}"
        side = "below" if objective.mode == "max" else "above"
        return (
            f"{where}its best value {reported(objective, best)} is {side} {reported(objective, median)}, "
            f"the median of the running means of {counted(count, 'other trial')}"
        )

    @staticmethod
    def _paused(trials: Population) -> list[Trial]:
        return [trials[number] for number in trials.in_state(TrialState.PAUSED)]

    def _waiting(self, trials: Population) -> bool:
        total = self.context.num_samples
        return total is None or len(trials) < total or any(map(can_resume, self._paused(trials)))

    def decide(self, fact: Fact, trials: Population) -> Sequence[Decision]:
        if not isinstance(fact, TrialReported):
            return ()
        number, state = fact.trial, self.state
        if self._end is not None and fact.t >= self._end:
            return (Complete(trial=number, reason=reached_max_t(self.context.time_attr, fact.t, self._end)),)
        why = self._verdict(number)
        if why is not None:
            kind = Stop if self.hard_stop else Pause
            return (kind(trial=number, reason=f"{'stopped' if self.hard_stop else 'set aside'} {why}"),)
        if self.min_time_slice is None or state.newest is None or number in state.set_aside:
            return ()
        count, _ = self._others(number)
        ran = fact.t - state.courses[number].yielded
        if count < self.min_samples_required and ran > self.min_time_slice and self._waiting(trials):
            where = time_in_words(self.context.time_attr, fact.t)
            reason = (
                f"paused at {where}: other trials are waiting, and it can be compared with only {count} of the "
                f"required {counted(self.min_samples_required, 'trial')}"
            )
            return (Pause(trial=number, reason=reason),)
        return ()

    def choose(self, trials: Population, may_start: bool) -> Choice | None:
        if may_start:
            return super().choose(trials, may_start)
        paused = [trial.number for trial in self._paused(trials) if can_resume(trial)]
        for trial in paused:
            if trial not in self.state.set_aside:
                return Resume(
                    trial=trial, reason="resumed: it was paused to let other trials run, and it is next in line"
                )
        if paused:
            reason = "resumed: no new trial may be started, so a trial that was set aside continues"
            return Resume(trial=paused[0], reason=reason)
        return None
