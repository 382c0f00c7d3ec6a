"""ASHA, promotion form: pause at every rung, and give free capacity to the best trial that has earned to go on.

Algorithm 2 of Li, Jamieson, Rostamizadeh, Gonina, Ben-tzur, Hardt, Recht, Talwalkar: "A System for Massively Parallel
Hyperparameter Tuning", MLSys 2020, https://arxiv.org/abs/1810.05934.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tuner.domain.decisions import Complete, Decision, Note, Pause, Resume
from tuner.domain.states import TrialState
from tuner.domain.trial import Population
from tuner.schedulers.base import Choice, Fact, TrialEnded, TrialReported, can_resume
from tuner.schedulers.halving import SuccessiveHalving
from tuner.schedulers.ranking import Ranking
from tuner.schedulers.rungs import survivors
from tuner.schedulers.wording import at, reached_max_t, reported

Entry = tuple[float, int]
"""(score, minus the order of arrival): the greater, the better, and of equals the one that came first."""


@dataclass(slots=True)
class PromotionRung:
    entries: Ranking[Entry] = field(default_factory=Ranking)
    waiting: Ranking[Entry] = field(default_factory=Ranking)  # those not promoted, and not ended
    trials: list[int] = field(default_factory=list)  # in the order of arrival

    def trial(self, entry: Entry) -> int:
        return self.trials[-entry[1]]


@dataclass(slots=True)
class PromotionState:
    rungs: list[list[PromotionRung]]  # bracket -> rung
    passed: dict[int, int] = field(default_factory=dict)  # trial -> how many rungs lie behind it
    waits: dict[int, Entry] = field(default_factory=dict)  # trial -> its entry in the rung where it waits
    newest: tuple[int, int, bool] | None = None  # (trial, rung, goes on at once) where the latest fact entered one


class ASHAPromotionScheduler(SuccessiveHalving):
    """Asynchronous successive halving by promotion: nothing is stopped, everything waits at its rung for its turn.

    At each rung a trial pauses. A free worker group goes to the best trial not yet promoted that is among the top
    floor(n/eta) of the n entries of its rung, the highest rung first; where there is none, to a new trial. One that
    would be chosen at the very moment when it arrives goes on without a pause. A promoted trial is among the top
    floor(n/eta) at that moment, and once per rung; of equal ones the first counts as the better.

    It wants a checkpoint at each pause. A trainable that saves none is restarted from the beginning at each promotion,
    and the decision says so; the stopping form suits it better.

    Options: see `SuccessiveHalving`.
    """

    TYPE = "asha_promotion"
    NEEDS_CHECKPOINTS = True

    def __init__(
        self,
        max_t: float | None = None,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        time_attr: str | None = None,
    ) -> None:
        super().__init__(max_t, grace_period, reduction_factor, brackets, time_attr)
        self.state = PromotionState(rungs=[[] for _ in range(brackets)])

    def record(self, fact: Fact, trials: Population) -> None:
        state: PromotionState = self.state
        state.newest = None
        if isinstance(fact, TrialEnded):
            self._leave(fact.trial)
        if not isinstance(fact, TrialReported):
            return
        index = self.new_rung(fact.trial, fact.t)
        if index is None:
            return
        rungs = state.rungs[self.bracket(fact.trial)]
        while len(rungs) <= index:
            rungs.append(PromotionRung())
        rung = rungs[index]
        self._leave(fact.trial)
        entry = (fact.score, -len(rung.trials))
        rung.trials.append(fact.trial)
        rung.entries.add(entry)
        rung.waiting.add(entry)
        state.passed[fact.trial] = index + 1
        state.waits[fact.trial] = entry
        first = next(self._promotable(), None)
        goes_on = first is not None and first[0] is rung and first[1] == entry
        if goes_on:
            self._leave(fact.trial)
        state.newest = (fact.trial, index, goes_on)

    def enacted(self, decision: Decision, trials: Population) -> None:
        if isinstance(decision, Resume):
            self._leave(decision.trial)

    def _leave(self, trial: int) -> None:
        """The trial no longer waits at its rung: it was promoted, or it ended."""
        entry = self.state.waits.pop(trial, None)
        if entry is not None:
            self.state.rungs[self.bracket(trial)][self.state.passed[trial] - 1].waiting.remove(entry)

    def _promotable(self) -> Iterator[tuple[PromotionRung, Entry]]:
        """Those that may be promoted, the highest rung first and the best of a rung first."""
        state: PromotionState = self.state
        found = [
            (self._levels[bracket].level(index) or 0.0, bracket, rung)
            for bracket, rungs in enumerate(state.rungs)
            for index, rung in enumerate(rungs)
        ]
        for _, _, rung in sorted(found, key=lambda place: place[:2], reverse=True):
            top = survivors(len(rung.entries), self._eta)
            for entry in reversed(rung.waiting):
                if rung.entries.above(entry) >= top:
                    break
                yield rung, entry

    def decide(self, fact: Fact, trials: Population) -> Sequence[Decision]:
        if not isinstance(fact, TrialReported):
            return ()
        setting = self.setting
        if self._end is not None and self.at_end(fact.t):
            return (Complete(trial=fact.trial, reason=reached_max_t(setting.time_attr, fact.t, self._end)),)
        state: PromotionState = self.state
        if state.newest is None or state.newest[0] != fact.trial:
            return ()
        _, index, goes_on = state.newest
        rung = state.rungs[self.bracket(fact.trial)][index]
        where = at(setting.time_attr, fact.t)
        standing = self._standing(rung, (fact.score, 1 - len(rung.trials)))
        if goes_on:
            return (Note(reason=f"trial {fact.trial} goes on at {where}: {standing}"),)
        return (Pause(trial=fact.trial, reason=f"paused at {where}: {standing}"),)

    def _standing(self, rung: PromotionRung, entry: Entry) -> str:
        rank, size = rung.entries.above(entry) + 1, len(rung.entries)
        score = reported(self.setting.objective, entry[0])
        return f"{score} is rank {rank} of {size}, the best {survivors(size, self._eta)} go on"

    def choose(self, trials: Population, may_start: bool) -> Choice | None:
        for rung, entry in self._promotable():
            trial = trials[rung.trial(entry)]
            if can_resume(trial):
                reason = f"promoted from {at(self.setting.time_attr, trial.t)}: {self._standing(rung, entry)}"
                if trial.checkpoint is None:
                    reason += "; it saved no checkpoint and starts from the beginning"
                return Resume(trial=trial.number, reason=reason)
        return super().choose(trials, may_start)

    def finished(self, trials: Population, may_start: bool) -> str | None:
        busy = trials.count(TrialState.RUNNING) + trials.count(TrialState.PENDING)
        if may_start or busy or not trials.count(TrialState.PAUSED) or next(self._promotable(), None):
            return None
        return f"no paused trial is among the best 1/{self.reduction_factor:g} of its rung, and no new one may start"
