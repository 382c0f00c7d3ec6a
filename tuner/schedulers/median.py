"""Median stopping: a trial whose best value so far is worse than the median of the others' running means has no future.

Golovin, Solnik, Moitra, Kochanski, Karro, Sculley: "Google Vizier: A Service for Black-Box Optimization", KDD 2017,
3.2.2, https://research.google/pubs/pub46180/, as Ray Tune reads it.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.domain.decisions import Complete, Decision, Pause, Resume, Stop
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.schedulers.base import Choice, Fact, Scheduler, Setting, TrialReported, can_resume
from tuner.schedulers.options import check_boolean, check_number, check_whole, options_of
from tuner.schedulers.ranking import Ranking
from tuner.schedulers.wording import at, reached_max_t, reported


@dataclass(slots=True)
class Course:
    """What one trial has reported so far."""

    best: float
    t: float  # its furthest report
    yielded: float  # where it last gave its worker group away; its beginning where it never did
    total: float = 0.0  # of its scores since the grace period
    count: int = 0
    times: list[float] = field(default_factory=list)
    means: list[float] = field(default_factory=list)  # the running mean at each of `times`

    def mean(self, t: float) -> float | None:
        """The running mean up to and with t."""
        place = bisect_right(self.times, t)
        return self.means[place - 1] if place else None


@dataclass(slots=True)
class MedianState:
    courses: dict[int, Course] = field(default_factory=dict)
    levels: list[int] = field(default_factory=list)  # whole times at which somebody was judged, ascending
    means: dict[int, Ranking[float]] = field(default_factory=dict)  # level -> running means of those that came that far
    set_aside: dict[int, None] = field(default_factory=dict)  # paused by the rule; they run at the end
    newest: tuple[int, int] | None = None  # (trial, level) that the latest fact is to be judged at


class MedianStoppingRule(Scheduler):
    """Stops a trial at t if its best value is strictly worse than the median of the others' means over reports up to t.

    The others are all trials that came at least as far. t counts in whole units of time_attr.

    grace_period: no trial is stopped before it, and the means begin there. 1, where Ray has 60 (seconds).
    min_samples_required: of how many others there must be means.
    min_time_slice: while these are too few, a trial that has run for so long gives its worker group to one that
        waits; None (where Ray has 0): never.
    hard_stop: False pauses trials instead of stopping them; they run on when nothing new is left to start.
    max_t, time_attr: the experiment's where None.
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
        check_whole("min_samples_required", min_samples_required, at_least=1)
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
        self._end = max_t
        self.state = MedianState()

    def setup(self, setting: Setting) -> None:
        super().setup(setting)
        self._end = self.inherited_max_t(self.max_t, self.time_attr)

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE, **options_of(self, type(self))}

    def milestone(self, trial: Trial, trials: Population) -> float | None:
        if trial.number in self.state.set_aside:
            return self._end
        return max(math.nextafter(trial.t, math.inf), float(self.grace_period))

    def record(self, fact: Fact, trials: Population) -> None:
        state: MedianState = self.state
        state.newest = None
        if not isinstance(fact, TrialReported):
            return
        course = state.courses.setdefault(fact.trial, Course(fact.score, -math.inf, 0.0))
        course.best = max(course.best, fact.score)
        before, course.t = course.t, max(course.t, fact.t)
        if fact.t <= before or fact.t < self.grace_period:
            return
        course.total += fact.score
        course.count += 1
        course.times.append(fact.t)
        course.means.append(course.total / course.count)
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
        """A level at which nobody was judged before; those that have jumped over it have a mean there, too."""
        insort(self.state.levels, level)
        ranking: Ranking[float] = Ranking()
        self.state.means[level] = ranking
        for trial, course in self.state.courses.items():
            mean = course.mean(level)
            if trial != newcomer and course.t >= level and mean is not None:
                ranking.add(mean)

    def enacted(self, decision: Decision, trials: Population) -> None:
        if not isinstance(decision, Pause) or decision.held or decision.trial not in self.state.courses:
            return
        if self._verdict(decision.trial) is not None:
            self.state.set_aside[decision.trial] = None
        self.state.courses[decision.trial].yielded = self.state.courses[decision.trial].t

    def _others(self, number: int) -> tuple[int, float]:
        """How many others came as far as this trial, and the median of their means."""
        assert self.state.newest is not None
        level = self.state.newest[1]
        ranking: Ranking[float] = self.state.means[level]
        own = self.state.courses[number].mean(level)
        count = len(ranking) - (own is not None)
        skip = ranking.above(own) + 1 if own is not None else len(ranking) + 1
        if count == 0:
            return 0, -math.inf

        def place(k: int) -> float:
            return ranking.from_top(k if k < skip else k + 1)

        upper = place((count + 1) // 2)
        return count, upper if count % 2 else (upper + place(count // 2 + 1)) / 2

    def _verdict(self, number: int) -> str | None:
        """Why this trial, which has just reported, should run no further."""
        state: MedianState = self.state
        if state.newest is None or state.newest[0] != number or number in state.set_aside:
            return None
        count, median = self._others(number)
        best = state.courses[number].best
        if count < self.min_samples_required or best >= median:
            return None
        objective = self.setting.objective
        side = "below" if objective.mode == "max" else "above"
        return (
            f"at {at(self.setting.time_attr, state.courses[number].t)}: its best value {reported(objective, best)} "
            f"is {side} {reported(objective, median)}, the median of the means of {count} others"
        )

    @staticmethod
    def _paused(trials: Population) -> list[Trial]:
        return [trials[number] for number in trials.in_state(TrialState.PAUSED)]

    def _waiting(self, trials: Population) -> bool:
        total = self.setting.num_samples
        return total is None or len(trials) < total or any(map(can_resume, self._paused(trials)))

    def decide(self, fact: Fact, trials: Population) -> Sequence[Decision]:
        if not isinstance(fact, TrialReported):
            return ()
        number, state = fact.trial, self.state
        if self._end is not None and fact.t >= self._end:
            return (Complete(trial=number, reason=reached_max_t(self.setting.time_attr, fact.t, self._end)),)
        why = self._verdict(number)
        if why is not None:
            kind = Stop if self.hard_stop else Pause
            return (kind(trial=number, reason=f"{'stopped' if self.hard_stop else 'set aside'} {why}"),)
        if self.min_time_slice is None or state.newest is None or number in state.set_aside:
            return ()
        count, _ = self._others(number)
        ran = fact.t - state.courses[number].yielded
        if count < self.min_samples_required and ran > self.min_time_slice and self._waiting(trials):
            where = at(self.setting.time_attr, fact.t)
            reason = (
                f"paused at {where}: others wait, and only {count} of {self.min_samples_required} can be compared with"
            )
            return (Pause(trial=number, reason=reason),)
        return ()

    def choose(self, trials: Population, may_start: bool) -> Choice | None:
        if may_start:
            return super().choose(trials, may_start)
        paused = [trial.number for trial in self._paused(trials) if can_resume(trial)]
        for trial in paused:
            if trial not in self.state.set_aside:
                return Resume(trial=trial, reason="its turn has come again")
        if paused:
            return Resume(trial=paused[0], reason="nothing new may be started, so a trial that was set aside runs on")
        return None
