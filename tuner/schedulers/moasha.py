"""Multi-objective ASHA: a trial continues past a rung only if it is among the best 1/eta by non-dominated sorting.

Schmucker, Donini, Zafar, Salinas, Archambeau: "Multi-objective Asynchronous Successive Halving", 2021,
https://arxiv.org/abs/2106.12639. Trials of one front are ordered by an epsilon-net, so that the trials that
continue are spread over the front. The paper promotes trials; this scheduler stops them, like `asha` and Syne Tune's MOASHA.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner.domain.decisions import Decision, Stop
from tuner.domain.trial import Population, Trial
from tuner.schedulers.base import TrialReported
from tuner.schedulers.shared import pareto
from tuner.schedulers.shared.rungs import survivors
from tuner.schedulers.shared.standing import standing, violates
from tuner.schedulers.shared.wording import rank_in_words, shown, time_in_words
from tuner.schedulers.successive_halving import SuccessiveHalving


@dataclass(slots=True)
class MoashaState:
    rungs: list[list[list[tuple[float, ...]]]]  # bracket -> rung -> standings of the trials that have reached it
    passed: dict[int, int] = field(default_factory=dict)  # trial -> number of rungs that it has passed
    newest: tuple[int, int] | None = None  # (trial, rung) if the latest fact is an entry in a rung


class MOASHAScheduler(SuccessiveHalving):
    """Asynchronous successive halving for several objectives: at each rung it stops the trials that others dominate.

    At a rung with n entries, including its own, a trial continues if it is among the top max(1, floor(n/eta)). Entries
    are ordered by non-dominated front. Within a front, each entry is as far as possible from all earlier entries. A trial
    with the same values as one of the top trials continues too. A missing objective counts as the worst value. Trials
    without a finite value of the first objective come after those that have one. Trials that violate the constraints of
    the search come after those that do not, by the size of the violation.

    The options are those of `SuccessiveHalving`.
    """

    TYPE = "moasha"
    SEVERAL_OBJECTIVES = True
    STATE = MoashaState
    RUNG = list

    def _enter(self, fact: TrialReported, rung: list[tuple[float, ...]], trials: Population) -> None:
        rung.append(self._scores(trials[fact.trial]))

    def _judge(self, fact: TrialReported, rung: list[tuple[float, ...]], trials: Population) -> Sequence[Decision]:
        count = max(1, survivors(len(rung), self._eta))
        ranks = _ranks(rung)
        if ranks[0] <= count:
            return ()
        where = time_in_words(self.context.time_attr, fact.t)
        return (Stop(trial=fact.trial, reason=f"stopped at {where}: {self._why(rung, ranks[-1], count)}"),)

    def _scores(self, trial: Trial) -> tuple[float, ...]:
        """Return the trial's newest values as scores, in the order of the objectives.

        If the trial violates the constraints, all of them are the same number; see `standing`.
        """
        found = [
            o.score(trial.last[o.metric]) if o.metric in trial.last else -math.inf for o in self.context.all_objectives
        ]
        scores = [score if math.isfinite(score) else -math.inf for score in found]
        return tuple(standing(score, trial.last, self.context) for score in scores)

    def _why(self, entries: Sequence[tuple[float, ...]], rank: int, count: int) -> str:
        mine, objectives = entries[-1], self.context.all_objectives
        values = ", ".join(f"{o.metric} {shown(o.score(score))}" for o, score in zip(objectives, mine, strict=True))
        better = sum(pareto.dominates(other, mine) for other in entries)
        names = " and ".join(o.metric for o in objectives)
        ranked = rank_in_words(rank, len(entries), count)
        if math.isinf(mine[0]):
            return f"it has no finite value of {objectives[0].metric}, and trials that have one come first; {ranked}"
        if violates(mine[0]):
            return f"it violates the constraints, and trials that satisfy them come first; {ranked}"
        if better:
            trials = "1 trial is" if better == 1 else f"{better} trials are"
            return f"{values}: {trials} at least as good in {names} and better in one; {ranked}"
        each = "all" if len(objectives) > 2 else "both"
        return f"{values}: no trial is better in {each}, but those that continue cover the front better; {ranked}"


def _ranks(entries: Sequence[tuple[float, ...]]) -> list[int]:
    """Return the ranks, from 1, of the newest entry and of those with the same values: the best rank first, its own last.

    Entries that violate the constraints come last. Only the front of the newest entry is ordered, which is much quicker than to
    order all entries.
    """
    newest = entries[-1]
    inside = [entry for entry in entries if not violates(entry[0])]
    if violates(newest[0]):
        outside = sorted((entry for entry in entries if violates(entry[0])), key=lambda entry: -entry[0])
        return [rank for rank, entry in enumerate(outside, len(inside) + 1) if entry == newest]
    better = 0
    for indices in pareto.fronts(inside):
        front = [inside[i] for i in indices]
        if newest in front:
            return [better + rank for rank, i in enumerate(pareto.epsilon_net(front), 1) if front[i] == newest]
        better += len(front)
    raise AssertionError("the newest entry is in a front")
