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
from tuner.schedulers.shared.standing import standing
from tuner.schedulers.shared.wording import below_the_cut, time_in_words
from tuner.schedulers.successive_halving import SuccessiveHalving


@dataclass(slots=True)
class AshaState:
    rungs: list[list[SortedList[float]]]  # bracket -> rung -> standings of the trials that have reached it, ascending
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
        rung.add(standing(fact.score, trials[fact.trial].last, self.context))

    def _judge(self, fact: TrialReported, rung: SortedList[float], trials: Population) -> Sequence[Decision]:
        context = self.context
        count = max(1, survivors(len(rung), self._eta))
        cut, entry = rung[-count], standing(fact.score, trials[fact.trial].last, context)
        if entry >= cut:
            return ()
        rank = len(rung) - rung.bisect_right(entry) + 1
        why = below_the_cut(context.objective, entry, cut, rank, len(rung), count)
        return (Stop(trial=fact.trial, reason=f"stopped at {time_in_words(context.time_attr, fact.t)}: {why}"),)


#: The name in Ray Tune. With several `brackets`, this is asynchronous HyperBand.
AsyncHyperBandScheduler = ASHAScheduler
