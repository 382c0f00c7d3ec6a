"""Synchronous HyperBand: brackets of successive halving, from many short trials to few long trials.

Li, Jamieson, DeSalvo, Rostamizadeh, Talwalkar: "Hyperband: A Novel Bandit-Based Approach to Hyperparameter
Optimization", JMLR 18 (2018), algorithm 1, https://arxiv.org/abs/1603.06560. With R = 81 and eta = 3 its brackets (n,
r) are (81, 1), (34, 3), (15, 9), (8, 27), (5, 81).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tuner.domain.decisions import Complete, Decision, Pause, Resume, Stop
from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.options import check_number, options_of
from tuner.plurals import counted
from tuner.schedulers.base import (
    Choice,
    Fact,
    Scheduler,
    SchedulerContext,
    TrialEnded,
    TrialReported,
    TrialStarted,
    can_resume,
)
from tuner.schedulers.shared.rungs import exact, plain, reduction
from tuner.schedulers.shared.standing import standing
from tuner.schedulers.shared.wording import below_the_cut, reached_max_t, score_and_rank, time_in_words

RAYS_MAX_T = 81  # the default of Ray Tune's HyperBandScheduler


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a bracket: the number of trials at its beginning, and the level of each round. The last level is R."""

    trials: int
    levels: tuple[float, ...]

    def following(self, round: int) -> int:
        """Return the next round. Rounds at equal levels, which occur if eta is below 2, are one round."""
        return next(later for later, level in enumerate(self.levels) if level > self.levels[round])

    def left(self, trials: int, rounds: int, eta: int | Fraction) -> int:
        """Return how many of `trials` are left after this many rounds: floor(n / eta^rounds), and at least one."""
        return max(1, int(trials // Fraction(eta) ** rounds))


def shapes(max_t: float, eta: int | Fraction) -> list[Shape]:
    """Return the brackets of one band, the most aggressive first. Levels are computed exactly, then rounded down to integers."""
    R, eta = exact(max_t), Fraction(eta)
    s_max = 0
    while eta ** (s_max + 1) <= R:
        s_max += 1

    def level(down: int) -> float:
        value = R / eta**down
        return plain(value) if down == 0 else int(value)

    return [
        Shape(math.ceil(Fraction(s_max + 1, s + 1) * eta**s), tuple(level(down) for down in range(s, -1, -1)))
        for s in range(s_max, -1, -1)
    ]


@dataclass(slots=True)
class Bracket:
    shape: int  # index into the band
    size: int  # number of trials at its beginning; fewer than planned if no more could be started
    members: int = 0
    round: int = 0
    awaited: dict[int, None] = field(default_factory=dict)  # trials of this round that have not reached its level
    arrived: dict[int, float] = field(default_factory=dict)  # trial -> standing, in the order of arrival
    winners: dict[int, str] = field(default_factory=dict)  # paused trial to be resumed -> reason, best trial first


@dataclass(slots=True)
class HyperBandState:
    brackets: list[Bracket] = field(default_factory=list)
    home: dict[int, int] = field(default_factory=dict)  # trial that has not ended -> its bracket
    ready: dict[int, None] = field(default_factory=dict)  # brackets that have winners
    losers: dict[int, str] = field(default_factory=dict)  # trial to be stopped -> reason
    newest: int | None = None  # the trial that the latest fact brought to its level


class HyperBandScheduler(Scheduler):
    """Fills one bracket after another. In each round of a bracket, the best 1/eta of its trials continue and the others stop.

    A trial that reaches the level of its round waits, paused, for the other trials of its bracket. Meanwhile its
    worker group starts trials of the next brackets. Bands repeat while new trials are allowed. When no more trials are
    allowed, a bracket that is not full continues with the trials that it has. If a trial fails, the next best trial takes
    its place. Trials that violate the constraints of the search are ranked below all other trials.

    Args:
        max_t: R, at which a trial is completed. None: the experiment's max_t; if that is None too, 81 (the default of Ray
            Tune).
        reduction_factor: eta.
        time_attr: must equal the experiment's time_attr. None: the experiment's.
    """

    TYPE = "hyperband"

    def __init__(self, max_t: float | None = None, reduction_factor: float = 3, time_attr: str | None = None) -> None:
        if max_t is not None:
            check_number("max_t", max_t, at_least=1)
        self.max_t = max_t
        self.reduction_factor = reduction_factor
        self.time_attr = time_attr
        self._eta = reduction(reduction_factor)
        self.state = HyperBandState()

    def setup(self, context: SchedulerContext) -> None:
        super().setup(context)
        inherited = self.inherited_max_t(self.max_t, self.time_attr)
        self._end: float = RAYS_MAX_T if inherited is None else inherited
        if self._end < 1:
            raise SpecError(f"expected at least 1, got {self._end:.15g}", "/scheduler/max_t")
        self._shapes = shapes(self._end, self._eta)

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE, **options_of(self)}

    def resolved(self) -> dict[str, Any]:
        return {**super().resolved(), "max_t": self._end}

    def _level(self, bracket: Bracket) -> float:
        return self._shapes[bracket.shape].levels[bracket.round]

    def milestone(self, trial: Trial, trials: Population) -> float | None:
        home = self.state.home.get(trial.number)
        if home is None:
            return self._end
        bracket = self.state.brackets[home]
        levels = self._shapes[bracket.shape].levels[bracket.round :]
        return next((level for level in levels if level > trial.t), self._end)

    def record(self, fact: Fact, trials: Population) -> None:
        state: HyperBandState = self.state
        state.newest = None
        match fact:
            case TrialStarted(trial=number):
                self._admit(number)
            case TrialReported(trial=number):
                home = state.home.get(number)
                if home is None or fact.t >= self._end:
                    return
                bracket = state.brackets[home]
                if fact.t >= self._level(bracket) and number in bracket.awaited:
                    del bracket.awaited[number]
                    bracket.arrived[number] = standing(fact.score, trials[number].last, self.context)
                    state.newest = number
                    self._close_if_all_came(home)
                    self._went_on(home, number)
            case TrialEnded(trial=number):
                state.losers.pop(number, None)
                home = state.home.pop(number, None)
                if home is not None:
                    bracket = state.brackets[home]
                    bracket.awaited.pop(number, None)
                    bracket.arrived.pop(number, None)
                    self._went_on(home, number)
                    self._close_if_all_came(home)

    def enacted(self, decision: Decision, trials: Population) -> None:
        state: HyperBandState = self.state
        if not isinstance(decision, Resume) or decision.trial not in state.home:
            return
        home = state.home[decision.trial]
        bracket = state.brackets[home]
        if decision.trial in bracket.arrived and bracket.members < bracket.size and not bracket.awaited:
            bracket.size = bracket.members
            self._close_if_all_came(home)
        self._went_on(home, decision.trial)

    def _went_on(self, home: int, trial: int) -> None:
        winners = self.state.brackets[home].winners
        winners.pop(trial, None)
        if not winners:
            self.state.ready.pop(home, None)

    def _admit(self, trial: int) -> None:
        state: HyperBandState = self.state
        if not state.brackets or state.brackets[-1].members >= state.brackets[-1].size:
            shape = len(state.brackets) % len(self._shapes)
            state.brackets.append(Bracket(shape, self._shapes[shape].trials))
        bracket = state.brackets[-1]
        bracket.members += 1
        bracket.awaited[trial] = None
        state.home[trial] = len(state.brackets) - 1

    def _close_if_all_came(self, home: int) -> None:
        """End the round if all its trials have arrived. The best continue to the next level, and the others are stopped."""
        bracket = self.state.brackets[home]
        if bracket.awaited or not bracket.arrived or bracket.members < bracket.size:
            return
        shape = self._shapes[bracket.shape]
        ranked = sorted(bracket.arrived.items(), key=lambda item: -item[1])
        following = shape.following(bracket.round)
        keep = min(shape.left(bracket.size, following, self._eta), len(ranked))
        cut, size, objective = ranked[keep - 1][1], len(ranked), self.context.objective
        where = time_in_words(self.context.time_attr, self._level(bracket))
        for rank, (trial, score) in enumerate(ranked, 1):
            if rank <= keep:
                bracket.winners[trial] = f"resumed from {where}: {score_and_rank(objective, score, rank, size, keep)}"
                bracket.awaited[trial] = None
            else:
                self.state.losers[trial] = (
                    f"stopped at {where}: {below_the_cut(objective, score, cut, rank, size, keep)}"
                )
        bracket.arrived = {}
        bracket.round = following
        self.state.ready[home] = None

    def decide(self, fact: Fact, trials: Population) -> Sequence[Decision]:
        state: HyperBandState = self.state
        decisions: list[Decision] = [Stop(trial=trial, reason=why) for trial, why in state.losers.items()]
        if not isinstance(fact, TrialReported) or fact.trial in state.losers:
            return decisions
        if fact.t >= self._end:
            reason = reached_max_t(self.context.time_attr, fact.t, self._end)
            return [*decisions, Complete(trial=fact.trial, reason=reason)]
        home = state.home.get(fact.trial)
        if home is not None and fact.trial in state.brackets[home].arrived:
            bracket = state.brackets[home]
            missing = len(bracket.awaited) + bracket.size - bracket.members
            where = time_in_words(self.context.time_attr, fact.t)
            more = "1 more trial of its bracket has" if missing == 1 else f"{missing} more trials of its bracket have"
            reason = f"paused at {where}: the best continue once {more} trained this far and can be compared"
            decisions.append(Pause(trial=fact.trial, reason=reason))
        return decisions

    def choose(self, trials: Population, may_start: bool) -> Choice | None:
        for home in self.state.ready:
            for number, why in self.state.brackets[home].winners.items():
                if can_resume(trials[number]):
                    return Resume(trial=number, reason=why)
        if may_start:
            return super().choose(trials, may_start)
        return self._close_unfilled(trials)

    def _close_unfilled(self, trials: Population) -> Resume | None:
        """Continue the last bracket with the trials that it has, because no more trials may be started.

        Resume the best of these trials first.
        """
        bracket = self.state.brackets[-1] if self.state.brackets else None
        if bracket is None or bracket.awaited or not bracket.arrived or bracket.members >= bracket.size:
            return None
        best = max(bracket.arrived, key=lambda trial: bracket.arrived[trial])
        if not can_resume(trials[best]):
            return None
        shape = self._shapes[bracket.shape]
        keep = shape.left(bracket.members, shape.following(bracket.round), self._eta)
        where = time_in_words(self.context.time_attr, self._level(bracket))
        reason = (
            f"resumed from {where}: the best of {counted(len(bracket.arrived), 'trial')}, of which {keep} "
            f"continue{'s' if keep == 1 else ''}; "
            f"their bracket was planned for {counted(bracket.size, 'trial')}, but no further trial may be started"
        )
        return Resume(trial=best, reason=reason)
