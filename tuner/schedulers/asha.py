"""ASHA with stopping: a trial continues past a rung only if it is among the best 1/eta of the trials that have reached it.

Li, Jamieson, Rostamizadeh, Gonina, Ben-tzur, Hardt, Recht, Talwalkar: "A System for Massively Parallel Hyperparameter
Tuning", MLSys 2020, https://arxiv.org/abs/1810.05934. The algorithm in the paper promotes trials, as in
`asha_promotion`. This scheduler stops trials instead, like Ray Tune and Optuna.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sortedcontainers import SortedList

from tuner.domain.decisions import Decision, Stop
from tuner.domain.trial import Population
from tuner.schedulers.base import TrialReported
from tuner.schedulers.shared.rungs import survivors
from tuner.schedulers.shared.wording import below_the_cut, rank_in_words, time_in_words
from tuner.schedulers.successive_halving import SuccessiveHalving

VIOLATING = -1e300
"""A number below all scores. The entries of trials that violate the constraints are computed from it."""


@dataclass(slots=True)
class AshaState:
    rungs: list[list[SortedList[float]]]  # bracket -> rung -> scores of the trials that have reached it, ascending
    passed: dict[int, int] = field(default_factory=dict)  # trial -> number of rungs that it has passed
    newest: tuple[int, int] | None = None  # (trial, rung) if the latest fact is an entry in a rung


class ASHAScheduler(SuccessiveHalving):
    """Asynchronous successive halving that stops the worst trials at each rung. No trial waits for another.

    At a rung with n entries, including its own, a trial continues if it is among the top max(1, floor(n/eta)). Trials
    that tie with the last of them continue too. A report that skips rungs is entered in the highest rung that it
    passes. A retried trial keeps its entries and is not judged twice at the same rung. The entries of a failed trial stay.
    Trials that violate the constraints of the search are ranked below all other trials, by the size of the violation.

    The options are those of `SuccessiveHalving`.
    """

    TYPE = "asha"
    STATE = AshaState
    RUNG = SortedList

    def _enter(self, fact: TrialReported, rung: SortedList[float], trials: Population) -> None:
        rung.add(self._entry(fact, trials))

    def _judge(self, fact: TrialReported, rung: SortedList[float], trials: Population) -> Sequence[Decision]:
        context = self.context
        count = max(1, survivors(len(rung), self._eta))
        cut, entry = rung[-count], self._entry(fact, trials)
        if entry >= cut:
            return ()
        rank = len(rung) - rung.bisect_right(entry) + 1
        if entry < fact.score:
            why = f"it violates the constraints, and trials that satisfy them come first; {rank_in_words(rank, len(rung), count)}"
        else:
            why = below_the_cut(context.objective, fact.score, cut, rank, len(rung), count)
        return (Stop(trial=fact.trial, reason=f"stopped at {time_in_words(context.time_attr, fact.t)}: {why}"),)

    def _entry(self, fact: TrialReported, trials: Population) -> float:
        """Return the trial's score, or a value below all scores if it violates the constraints, lower for larger violations."""
        excess = sum(max(0.0, c.excess(trials[fact.trial].last)) for c in self.context.constraints)
        return VIOLATING * (1 + excess / (1 + excess)) if excess > 0 else fact.score


#: The name in Ray Tune. With several `brackets`, this is asynchronous HyperBand.
AsyncHyperBandScheduler = ASHAScheduler
