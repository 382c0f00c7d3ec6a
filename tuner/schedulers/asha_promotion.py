"""ASHA with promotion: every trial pauses at each rung, and a free worker group resumes the best trial that may be promoted.

Algorithm 2 of Li, Jamieson, Rostamizadeh, Gonina, Ben-tzur, Hardt, Recht, Talwalkar: "A System for Massively Parallel
Hyperparameter Tuning", MLSys 2020, https://arxiv.org/abs/1810.05934.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sortedcontainers import SortedList

from tuner.domain.decisions import Decision, Note, Pause, Resume
from tuner.domain.states import TrialState
from tuner.domain.trial import Population
from tuner.schedulers.base import Choice, Fact, TrialEnded, TrialReported, can_resume
from tuner.schedulers.shared.rungs import survivors
from tuner.schedulers.shared.standing import standing
from tuner.schedulers.shared.wording import score_and_rank, time_in_words
from tuner.schedulers.successive_halving import SuccessiveHalving

Entry = tuple[float, int]
"""An entry of a rung: (standing, -order of arrival). Greater entries are better, so among equals the earlier one wins."""


@dataclass(slots=True)
class PromotionRung:
    entries: SortedList[Entry] = field(default_factory=SortedList)
    waiting: SortedList[Entry] = field(default_factory=SortedList)  # entries whose trials may still be promoted
    trials: list[int] = field(default_factory=list)  # the trials in the order of arrival

    def trial(self, entry: Entry) -> int:
        return self.trials[-entry[1]]

    def better_than(self, entry: Entry) -> int:
        """Return the number of entries of the rung that are better than `entry`."""
        return len(self.entries) - self.entries.bisect_right(entry)  # type: ignore[no-any-return]


@dataclass(slots=True)
class PromotionState:
    rungs: list[list[PromotionRung]]  # bracket -> rung
    passed: dict[int, int] = field(default_factory=dict)  # trial -> number of rungs that it has passed
    waits: dict[int, Entry] = field(default_factory=dict)  # trial -> its entry in the rung where it waits
    newest: tuple[int, int] | None = None  # (trial, rung) if the latest fact is an entry in a rung
    promoted: bool = False  # whether the newest entry was promoted on arrival


class ASHAPromotionScheduler(SuccessiveHalving):
    """Asynchronous successive halving by promotion. No trial is stopped. Trials wait at their rungs until they are promoted.

    A free worker group resumes a trial that is among the top floor(n/eta) of its rung's n entries and has not been
    promoted from that rung. Higher rungs come first, then better trials. If there is no such trial, a new one is
    started. A trial that would be promoted as soon as it arrives continues without a pause. Each trial is promoted once
    per rung. Among trials with equal scores, the trial that arrived first is better. Trials that violate
    the constraints of the search are ranked below all other trials.

    The trainable should save a checkpoint at each pause. If it saves none, each promotion restarts the trial from the
    beginning (the decision's reason says so), and `asha` is the better choice.

    The options are those of `SuccessiveHalving`.
    """

    TYPE = "asha_promotion"
    STATE = PromotionState
    RUNG = PromotionRung

    def record(self, fact: Fact, trials: Population) -> None:
        """Enter a report in its rung, and note whether its trial is promoted on arrival."""
        state: PromotionState = self.state
        state.promoted = False
        if isinstance(fact, TrialEnded):
            self._leave(fact.trial)
        super().record(fact, trials)
        if state.newest is None:
            return
        trial, index = state.newest
        rung, first = state.rungs[self.bracket(trial)][index], next(self._promotable(), None)
        state.promoted = first is not None and first[0] is rung and first[1] == state.waits[trial]
        if state.promoted:
            self._leave(trial)

    def _enter(self, fact: TrialReported, rung: PromotionRung, trials: Population) -> None:
        self._leave(fact.trial)
        entry = (standing(fact.score, trials[fact.trial].last, self.context), -len(rung.trials))
        rung.trials.append(fact.trial)
        rung.entries.add(entry)
        rung.waiting.add(entry)
        self.state.waits[fact.trial] = entry

    def enacted(self, decision: Decision, trials: Population) -> None:
        if isinstance(decision, Resume):
            self._leave(decision.trial)

    def _leave(self, trial: int) -> None:
        """Remove a trial that was promoted or has ended from the trials that wait at its rung."""
        entry = self.state.waits.pop(trial, None)
        if entry is not None:
            self.state.rungs[self.bracket(trial)][self.state.passed[trial] - 1].waiting.remove(entry)

    def _promotable(self) -> Iterator[tuple[PromotionRung, Entry]]:
        """Yield the entries that may be promoted, with their rungs: the highest rung first, and within a rung the best first."""
        state: PromotionState = self.state
        found = [
            (self._levels[bracket].level(index) or 0.0, bracket, rung)
            for bracket, rungs in enumerate(state.rungs)
            for index, rung in enumerate(rungs)
        ]
        for _, _, rung in sorted(found, key=lambda place: place[:2], reverse=True):
            top = survivors(len(rung.entries), self._eta)
            for entry in reversed(rung.waiting):
                if rung.better_than(entry) >= top:
                    break
                yield rung, entry

    def _judge(self, fact: TrialReported, rung: PromotionRung, trials: Population) -> Sequence[Decision]:
        where = time_in_words(self.context.time_attr, fact.t)
        own = standing(fact.score, trials[fact.trial].last, self.context)
        compared = self._score_and_rank(rung, (own, 1 - len(rung.trials)))
        if self.state.promoted:
            return (Note(reason=f"trial {fact.trial} continues at {where}: {compared}"),)
        return (Pause(trial=fact.trial, reason=f"paused at {where}: {compared}"),)

    def _score_and_rank(self, rung: PromotionRung, entry: Entry) -> str:
        rank, size = rung.better_than(entry) + 1, len(rung.entries)
        return score_and_rank(self.context.objective, entry[0], rank, size, survivors(size, self._eta))

    def choose(self, trials: Population, may_start: bool) -> Choice | None:
        for rung, entry in self._promotable():
            trial = trials[rung.trial(entry)]
            if can_resume(trial):
                reason = f"promoted from {time_in_words(self.context.time_attr, trial.t)}: {self._score_and_rank(rung, entry)}"
                return Resume(trial=trial.number, reason=reason)
        return super().choose(trials, may_start)

    def finished(self, trials: Population, may_start: bool) -> str | None:
        busy = trials.count(TrialState.RUNNING) + trials.count(TrialState.PENDING)
        if may_start or busy or not trials.count(TrialState.PAUSED) or next(self._promotable(), None):
            return None
        fraction = f"1/{self.reduction_factor:g}"
        return f"no paused trial is among the best {fraction} of its rung, and no new trial may be started"
