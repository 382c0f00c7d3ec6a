"""Group trials by their configurations, and rank the configurations by their expected scores.

If results differ from run to run, the best of many results is partly luck. So leading configurations are evaluated again, each
time as a separate trial (`Trial.repeat_of`). This module says what is known of them; `rules.repeats` decides which is next.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from typing import Any

from sortedcontainers import SortedKeyList

from tuner.domain.experiment import Spec
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.driver.core.state.leaderboard import Leaderboard
from tuner.schedulers.shared.repeats import LARGEST, Ranking, Runs, ranking

_S = TrialState

MOST_SHOWN = 100
"""The largest number of configurations with several runs that the summary lists."""
MOST_COMPARED = 500
"""The maximum number of configurations to rank: those with the best results, and those that were repeated."""


class Repeats:
    """Compares the runs of equal configurations. Part of `State`, which calls `changed` when a trial changes.

    Trials with the same parameters have the same configuration. Among the trials of the search with one configuration, the one
    that has trained longest is the *first run*. The others that have trained as long are further runs. Only configurations whose
    trials have changed are examined again, because a search that a user continues may have thousands.
    """

    def __init__(self, spec: Spec, trials: Population, leaderboard: Leaderboard) -> None:
        self._objective, self._trials, self._leaderboard = spec.objective, trials, leaderboard
        self._numbers: list[int] = []  # the trials that are repeats
        self._changed: dict[int, None] = {}  # the trials that have changed since the following attributes were computed
        # trial -> its parameters, and its configuration as text
        self._texts: dict[int, tuple[dict[str, Any], str]] = {}
        self._groups: dict[str, set[int]] = {}  # configuration -> its trials
        self._alone: dict[int, float] = {}  # trial that cannot be repeated -> its score
        self._known: dict[str, Runs] = {}  # configuration -> its runs
        self._counting: Any = SortedKeyList(key=_order)  # the runs of the configurations without a bad run
        self._others: Any = SortedKeyList(key=_order)  # the runs of the other configurations
        self._runs: dict[int, list[Trial]] = {}  # first run -> the runs of its configuration that count
        self._several: dict[int, None] = {}  # the first runs of the configurations with several runs
        self._dropped: dict[int, Trial] = {}
        self._ranking: Ranking | None = None
        self._is_ranked = False  # whether the ranking is up to date

    def started(self, trial: Trial) -> None:
        """Add a repeat."""
        self._numbers.append(trial.number)

    def changed(self, number: int) -> None:
        """Note that a trial must be examined again before the next ranking."""
        self._changed[number] = None

    @property
    def made(self) -> int:
        """Return how many repeats have started so far."""
        return len(self._numbers)

    @property
    def all(self) -> list[Trial]:
        """Return all repeats."""
        return [self._trials[number] for number in self._numbers]

    @property
    def running(self) -> list[Trial]:
        """Return the repeats that have not ended, except those that a user has paused."""
        return [trial for trial in self.all if _is_unfinished(trial)]

    @property
    def ranking(self) -> Ranking | None:
        """Return the ranking of all configurations; None if there is no result that counts."""
        self._compute()
        if not self._is_ranked:
            best = self._counting or self._others
            several = best.bisect_key_left(_FIRST_SINGLE)
            self._ranking = ranking(list(islice(best, several + MOST_COMPARED))) if best else None
            self._is_ranked = True
        return self._ranking

    @property
    def equal(self) -> tuple[int, int] | None:
        """Return two trials that show that equal configurations give equal results; None if no two trials show it.

        A metric with few different values, such as an accuracy on a few examples, may be equal by chance. If different
        configurations had equal results as well, three pairs without any difference are needed.
        """
        self._compute()
        pairs = [(self._runs[first][0], other) for first in sorted(self._several) for other in self._runs[first][1:]]
        if not pairs or any(_results(one) != _results(other) for one, other in pairs):
            return None
        first = [_results(runs[0]) for runs in self._runs.values()]
        needed = 3 if len(set(first)) < len(first) else 1
        return (pairs[0][0].number, pairs[0][1].number) if len(pairs) >= needed else None

    @property
    def dropped(self) -> dict[int, Trial]:
        """Return the configurations that do not count because of a bad run: first run -> bad run.

        A bad run failed, diverged or violated the constraints.
        """
        self._compute()
        return dict(sorted(self._dropped.items()))

    @property
    def best(self) -> Trial | None:
        """Return the first run of the configuration with the best expected score; None before the first repeat.

        A trial that cannot be repeated, such as one that started from another trial's checkpoint, counts with its only result.
        """
        if not self._numbers or self.ranking is None:
            return None
        leader = self.ranking.leader
        alone = max(self._alone, key=lambda number: (self._alone[number], -number), default=None)
        if alone is not None and self._alone[alone] > leader.mean:
            return self._trials[alone]
        return self._trials[leader.runs.number]

    def summary(self) -> dict[str, Any] | None:
        """Return a summary of the best configuration's runs, and the expected values of the others, as JSON.

        Return None before the first repeat, or if the best trial cannot be repeated.
        """
        best = self.best
        if best is None or self.ranking is None or best.number not in self._runs:
            return None
        leader = self.ranking.leader
        runs = self._runs[best.number]
        return {
            "trials": [trial.number for trial in runs],
            "values": [self._objective.score(score) for score in leader.runs.scores],
            "mean": self._objective.score(leader.runs.mean),
            "error": leader.sd,
            "noise": self.ranking.noise,
            "pairs": self.ranking.pairs,
            "repeated": [
                {
                    "trials": [trial.number for trial in self._runs[one.runs.number]],
                    "mean": self._objective.score(one.runs.mean),
                    "expected": self._objective.score(one.mean),
                }
                for one in islice((one for one in self.ranking.estimates if len(one.runs.scores) > 1), MOST_SHOWN)
            ],
            "single": {"middle": self._objective.score(self.ranking.middle), "weight": self.ranking.weight},
            "dropped": sorted(self._dropped),
        }

    def _compute(self) -> None:
        """Examine the configurations of the trials that have changed."""
        groups: dict[str, None] = {}
        for number in self._changed:
            trial = self._trials[number]
            params, before = self._texts.get(number, (None, None))
            # `params` is replaced, never changed in place.
            text = before if params is trial.params else _configuration(trial)
            if not is_comparable(trial):
                text = None
            if text != before:
                self._move(trial, before, text)
            for one in (before, text):
                if one is not None:
                    groups[one] = None
            score = self._score(trial) if text is None and self._is_whole(trial) else None
            if score is not None:
                self._alone[number] = score
            else:
                self._alone.pop(number, None)
        self._changed.clear()
        for group in groups:
            self._look(group)

    def _move(self, trial: Trial, before: str | None, text: str | None) -> None:
        """Move a trial from one configuration's group to another's. None: no group."""
        if before is not None:
            self._groups[before].discard(trial.number)
            del self._texts[trial.number]
        if text is not None:
            self._groups.setdefault(text, set()).add(trial.number)
            self._texts[trial.number] = trial.params, text

    def _look(self, text: str) -> None:
        """Find the runs of one configuration again, after one of its trials has changed."""
        group = [self._trials[number] for number in sorted(self._groups[text])]
        first, before = self._first(group), self._known.get(text)
        runs, bad = [], None
        found: Runs | None = None
        if first is not None:
            again = [trial for trial in group if trial is not first and _is_run(trial, first)]
            runs = [first, *(trial for trial in again if self._score(trial) is not None)]
            scores = tuple(score for trial in runs if (score := self._score(trial)) is not None)
            pending = sum(trial.repeat_of is not None and _is_unfinished(trial) for trial in group)
            found = Runs(first.number, scores, first.t, pending)
            bad = next(filter(_is_bad, group), None)
        if found == before and (before is None or self._dropped.get(before.number) is bad):
            return
        self._is_ranked = False
        if before is not None:
            (self._others if before.number in self._dropped else self._counting).remove(before)
            del self._known[text], self._runs[before.number]
            self._dropped.pop(before.number, None)
            self._several.pop(before.number, None)
        if found is not None:
            self._known[text], self._runs[found.number] = found, runs
            if len(runs) > 1:
                self._several[found.number] = None
            if bad is not None:
                self._dropped[found.number] = bad
            (self._counting if bad is None else self._others).add(found)

    def _first(self, group: Sequence[Trial]) -> Trial | None:
        found = [trial for trial in group if trial.repeat_of is None and self._is_whole(trial)]
        return max(found, key=lambda trial: (trial.t, -trial.number), default=None)

    def _is_whole(self, trial: Trial) -> bool:
        """Return whether a trial has a result, and has not lost the training that led to it."""
        mark = self._leaderboard.of(trial)
        return mark is not None and not trial.diverged and trial.t > 0 and mark.iteration <= trial.iteration

    def _score(self, trial: Trial) -> float | None:
        """Return the score that counts for a trial; None if the trial has none."""
        mark = None if trial.diverged else self._leaderboard.of(trial)
        return None if mark is None else max(-LARGEST, min(LARGEST, self._objective.score(mark.value)))


def is_comparable(trial: Trial) -> bool:
    """Return whether another trial with the same configuration would be trained in the same way.

    It would not if the trial started from a checkpoint of another trial, or changed its configuration.
    """
    return not any(segment.cause in ("fork", "exploit") for segment in trial.segments)


def _is_unfinished(trial: Trial) -> bool:
    return not trial.state.ended and not (trial.state is _S.PAUSED and trial.held)


def _is_run(trial: Trial, first: Trial) -> bool:
    """Return whether a trial with the configuration of `first` was trained as long."""
    if trial.repeat_of is None:
        return trial.state.ended and trial.t == first.t
    # If trials were added to the search, a paused `first` may have continued to train after the repeat.
    returned = bool(trial.segments) and trial.segments[-1].leaving is None
    return trial.state is _S.COMPLETED and (returned or trial.t >= first.t)


def _is_bad(trial: Trial) -> bool:
    """Return whether a repeat shows that its configuration fails, diverges or violates the constraints at times."""
    if trial.repeat_of is None or not trial.state.ended:
        return False
    crashed = trial.state is _S.FAILED and trial.failure is not None and trial.failure.kind == "user"
    return crashed or trial.diverged or (trial.state is _S.COMPLETED and trial.feasible is False)


def _results(trial: Trial) -> tuple[float | None, int | None, float | None]:
    return trial.best_value, trial.best_iteration, trial.last_value


def _configuration(trial: Trial) -> str:
    return json.dumps([trial.params, trial.space_revision], sort_keys=True)


def _order(runs: Runs) -> tuple[bool, float, int]:
    """Return a sort key that puts configurations with several runs first, and better first results before worse ones."""
    return len(runs.scores) == 1, -runs.scores[0], runs.number


_FIRST_SINGLE = (True, float("-inf"), -1)
"""A sort key just before the keys of all configurations with a single run."""
