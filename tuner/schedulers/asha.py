"""ASHA, stopping form: at each rung a trial goes on only if it is among the best 1/eta of those that have come so far.

Li, Jamieson, Rostamizadeh, Gonina, Ben-tzur, Hardt, Recht, Talwalkar: "A System for Massively Parallel Hyperparameter
Tuning", MLSys 2020, https://arxiv.org/abs/1810.05934 (in the stopping form that Ray Tune and Optuna implement).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner.domain.decisions import Complete, Decision, Stop
from tuner.domain.trial import Population
from tuner.schedulers.base import Fact, TrialReported
from tuner.schedulers.halving import SuccessiveHalving
from tuner.schedulers.ranking import Ranking
from tuner.schedulers.rungs import survivors
from tuner.schedulers.wording import at, below_the_cut, reached_max_t


@dataclass(slots=True)
class AshaState:
    rungs: list[list[Ranking[float]]]  # bracket -> rung -> scores of the trials that came to it
    passed: dict[int, int] = field(default_factory=dict)  # trial -> how many rungs lie behind it
    newest: tuple[int, int] | None = None  # (trial, rung) where the latest fact entered one


class ASHAScheduler(SuccessiveHalving):
    """Asynchronous successive halving: stops the trials that lag behind, and waits for nobody.

    At a rung with n entries, its own included, a trial goes on if it is among the top max(1, floor(n/eta)); those
    that tie with the last of these go on too. A report that jumps over rungs counts at the highest one that it
    passes. A retried trial keeps its entries and is not judged twice at one rung; a failed trial's entries stay.

    Options: see `SuccessiveHalving`.
    """

    TYPE = "asha"

    def __init__(
        self,
        max_t: float | None = None,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        time_attr: str | None = None,
    ) -> None:
        super().__init__(max_t, grace_period, reduction_factor, brackets, time_attr)
        self.state = AshaState(rungs=[[] for _ in range(brackets)])

    def record(self, fact: Fact, trials: Population) -> None:
        state: AshaState = self.state
        state.newest = None
        if not isinstance(fact, TrialReported):
            return
        rung = self.new_rung(fact.trial, fact.t)
        if rung is None:
            return
        rungs = state.rungs[self.bracket(fact.trial)]
        while len(rungs) <= rung:
            rungs.append(Ranking())
        rungs[rung].add(fact.score)
        state.passed[fact.trial] = rung + 1
        state.newest = (fact.trial, rung)

    def decide(self, fact: Fact, trials: Population) -> Sequence[Decision]:
        if not isinstance(fact, TrialReported):
            return ()
        setting = self.setting
        if self._end is not None and self.at_end(fact.t):
            return (Complete(trial=fact.trial, reason=reached_max_t(setting.time_attr, fact.t, self._end)),)
        newest = self.state.newest
        if newest is None or newest[0] != fact.trial:
            return ()
        rung: Ranking[float] = self.state.rungs[self.bracket(fact.trial)][newest[1]]
        cut = rung.from_top(max(1, survivors(len(rung), self._eta)))
        if fact.score >= cut:
            return ()
        why = below_the_cut(setting.objective, fact.score, cut, rung.above(fact.score) + 1, len(rung))
        return (Stop(trial=fact.trial, reason=f"stopped at {at(setting.time_attr, fact.t)}: {why}"),)


#: The name that Ray Tune gives it; with several `brackets` it is the asynchronous form of HyperBand.
AsyncHyperBandScheduler = ASHAScheduler
