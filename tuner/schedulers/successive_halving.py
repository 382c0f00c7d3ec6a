"""Asynchronous successive halving: the options, rungs and brackets that ASHA, ASHA with promotion and MOASHA share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from tuner.domain.decisions import Complete, Decision
from tuner.domain.keys import keyed_seed
from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.options import check_integer, check_number, options_of
from tuner.schedulers.base import Fact, Scheduler, SchedulerContext, TrialReported
from tuner.schedulers.shared.rungs import Levels, check_max_t, reduction
from tuner.schedulers.shared.wording import reached_max_t

MOST_BRACKETS = 100
"""The maximum number of brackets. With the smallest reduction factor, 1.1, the last begins at about 12,500 grace periods."""


class SuccessiveHalving(Scheduler):
    """Base class of ASHA, ASHA with promotion, and MOASHA.

    A subclass enters trials in rungs (`_enter`) and decides about the newest entry (`_judge`). Its state has these fields:

    - rungs: bracket -> rung -> its entries
    - passed: trial -> the number of rungs of its bracket that it has passed
    - newest: (trial, rung) if the latest fact is an entry in a rung, else None

    Args:
        max_t: a trial that reaches this value is completed. No rung is at max_t. None: the experiment's max_t.
        grace_period: the lowest rung, in units of time_attr. No trial is stopped before it.
        reduction_factor: eta. Each rung is eta times as high as the rung below it, and about 1/eta of its trials continue.
        brackets: the number of brackets. Bracket s starts at grace_period * eta**s. A trial's bracket is drawn at
            random, from the experiment's seed and the trial's number, with weights exp(number of rungs) as in Ray Tune.
        time_attr: must equal the experiment's time_attr. None: the experiment's.
    """

    STATE: ClassVar[type[Any]]
    """The class of the scheduler's state, which is constructed from `rungs`."""
    RUNG: ClassVar[type[Any]]
    """The class of a rung, which is constructed without arguments."""

    def __init__(
        self,
        max_t: float | None = None,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        time_attr: str | None = None,
    ) -> None:
        check_number("grace_period", grace_period, above=0)
        check_max_t(max_t, grace_period)
        check_integer("brackets", brackets, at_least=1, at_most=MOST_BRACKETS)
        self.max_t = max_t
        self.grace_period = grace_period
        self.reduction_factor = reduction_factor
        self.brackets = brackets
        self.time_attr = time_attr
        self._eta = reduction(reduction_factor)
        self._weights: list[float] = []
        self.state = self.STATE([[] for _ in range(brackets)])

    def setup(self, context: SchedulerContext) -> None:
        super().setup(context)
        self._end = self.inherited_max_t(self.max_t, self.time_attr)
        check_max_t(self._end, self.grace_period, "/scheduler")
        self._levels = [Levels(self.grace_period, self._eta, self._end, s) for s in range(self.brackets)]
        if self.brackets > 1:
            self._weights = self._cumulative_weights()

    def _cumulative_weights(self) -> list[float]:
        if self._end is None:
            message = "several brackets need a max_t, which determines how many rungs each bracket has"
            raise SpecError(message, "/scheduler/max_t")
        sizes = [len(levels.all()) for levels in self._levels]
        if sizes[-2] == 0:
            most = sum(size > 0 for size in sizes) + 1
            fit = "1 bracket fits" if most == 1 else f"{most} brackets fit"
            message = f"at most {fit} below max_t {self._end:.15g}, got {self.brackets}"
            raise SpecError(message, "/scheduler/brackets")
        weights = [math.exp(size - sizes[0]) for size in sizes]
        return [sum(weights[: s + 1]) / sum(weights) for s in range(self.brackets)]

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE, **options_of(self)}

    def record(self, fact: Fact, trials: Population) -> None:
        """Enter a report in the rung that it has reached, if the trial has not been entered there before."""
        state = self.state
        state.newest = None
        if not isinstance(fact, TrialReported):
            return
        index = self.new_rung(fact.trial, fact.t)
        if index is None:
            return
        rungs = state.rungs[self.bracket(fact.trial)]
        while len(rungs) <= index:
            rungs.append(self.RUNG())
        self._enter(fact, rungs[index], trials)
        state.passed[fact.trial] = index + 1
        state.newest = (fact.trial, index)

    def decide(self, fact: Fact, trials: Population) -> Sequence[Decision]:
        """Complete a trial that has reached max_t, and judge a trial that has just reached a rung."""
        if not isinstance(fact, TrialReported):
            return ()
        if self._end is not None and self.at_end(fact.t):
            return (Complete(trial=fact.trial, reason=reached_max_t(self.context.time_attr, fact.t, self._end)),)
        newest = self.state.newest
        if newest is None or newest[0] != fact.trial:
            return ()
        return self._judge(fact, self.state.rungs[self.bracket(fact.trial)][newest[1]], trials)

    def _enter(self, fact: TrialReported, rung: Any, trials: Population) -> None:
        """Enter a report in a rung."""
        raise NotImplementedError

    def _judge(self, fact: TrialReported, rung: Any, trials: Population) -> Sequence[Decision]:
        """Return the decision about a trial whose report has just been entered in a rung."""
        raise NotImplementedError

    def bracket(self, trial: int) -> int:
        """Return the bracket of a trial, which never changes."""
        if self.brackets == 1:
            return 0
        place = keyed_seed(self.context.seed, "bracket", trial) / 2**64
        return next((s for s, upto in enumerate(self._weights) if place < upto), self.brackets - 1)

    def milestone(self, trial: Trial, trials: Population) -> float | None:
        levels = self._levels[self.bracket(trial.number)]
        rung = max(self.state.passed.get(trial.number, 0), levels.passed(trial.t))
        level = levels.level(rung)
        return self._end if level is None else level

    def at_end(self, t: float) -> bool:
        return self._end is not None and t >= self._end

    def new_rung(self, trial: int, t: float) -> int | None:
        """Return the rung in which to enter a report at time t, or None if it is entered in no rung.

        A report is entered in the highest rung that it passes, unless the trial has been entered there before.
        """
        behind = self._levels[self.bracket(trial)].passed(t)
        if behind <= self.state.passed.get(trial, 0) or self.at_end(t):
            return None
        return behind - 1
