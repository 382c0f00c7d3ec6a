"""What both forms of ASHA share: the options, the rungs, and which bracket a trial is in."""

from __future__ import annotations

import math
from typing import Any

from tuner.domain.keys import keyed_seed
from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.schedulers.base import Scheduler, Setting
from tuner.schedulers.options import check_number, check_whole, options_of
from tuner.schedulers.rungs import Levels, check_max_t, reduction


class SuccessiveHalving(Scheduler):
    """Base of the two forms. A subclass has a state with `passed`: trial -> how many rungs of its bracket lie behind
    it.

    max_t: a trial that gets there is completed; the experiment's where None. No rung lies there.
    grace_period: the lowest rung; no trial is stopped before it.
    reduction_factor: eta; each rung is eta times the one below, and about 1/eta of its trials go on.
    brackets: bracket s starts at grace_period * eta**s. A trial's bracket follows from the experiment's seed and its
        number, with weights exp(number of rungs), as Ray's does at random.
    time_attr: the experiment's where None; it cannot be another one.
    """

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
        check_whole("brackets", brackets, at_least=1)
        self.max_t = max_t
        self.grace_period = grace_period
        self.reduction_factor = reduction_factor
        self.brackets = brackets
        self.time_attr = time_attr
        self._eta = reduction(reduction_factor)
        self._end = max_t
        self._levels = [Levels(grace_period, self._eta, max_t, s) for s in range(brackets)]
        self._weights: list[float] = []

    def setup(self, setting: Setting) -> None:
        super().setup(setting)
        self._end = self.inherited_max_t(self.max_t, self.time_attr)
        check_max_t(self._end, self.grace_period, "/scheduler")
        self._levels = [Levels(self.grace_period, self._eta, self._end, s) for s in range(self.brackets)]
        if self.brackets > 1:
            self._weights = self._cumulative_weights()

    def _cumulative_weights(self) -> list[float]:
        if self._end is None:
            raise SpecError("several brackets need a max_t, which says how many rungs each one has", "/scheduler/max_t")
        sizes = [len(levels.all()) for levels in self._levels]
        if sizes[-2] == 0:
            most = sum(size > 0 for size in sizes) + 1
            message = f"up to max_t {self._end:g} there is room for {most} brackets, not for {self.brackets}"
            raise SpecError(message, "/scheduler/brackets")
        weights = [math.exp(size - sizes[0]) for size in sizes]
        return [sum(weights[: s + 1]) / sum(weights) for s in range(self.brackets)]

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE, **options_of(self, type(self))}

    def bracket(self, trial: int) -> int:
        """The bracket of a trial, which is the same for ever."""
        if self.brackets == 1:
            return 0
        place = keyed_seed(self.setting.seed, "bracket", trial) / 2**64
        return next((s for s, upto in enumerate(self._weights) if place < upto), self.brackets - 1)

    def milestone(self, trial: Trial, trials: Population) -> float | None:
        levels = self._levels[self.bracket(trial.number)]
        rung = max(self.state.passed.get(trial.number, 0), levels.passed(trial.t))
        level = levels.level(rung)
        return self._end if level is None else level

    def at_end(self, t: float) -> bool:
        return self._end is not None and t >= self._end

    def new_rung(self, trial: int, t: float) -> int | None:
        """The rung that a report at t counts at: the highest one passed, if the trial was not there before."""
        behind = self._levels[self.bracket(trial)].passed(t)
        if behind <= self.state.passed.get(trial, 0) or self.at_end(t):
            return None
        return behind - 1
