"""Group trials by their configurations, and rank the configurations by their expected scores.

If results differ from run to run, the best of many results is partly luck. So leading configurations are evaluated again, each
time as a trial of its own (`Trial.repeat_of`). This module says what is known of them; `rules.repeats` decides which is next.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tuner.domain.experiment import Spec
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.driver.core.state.standing import Standing
from tuner.schedulers.shared.repeats import LARGEST, Ranking, Runs, ranking

_S = TrialState

MOST_COMPARED = 500
"""The largest number of configurations that are ranked: those with the best results, and those that were repeated."""


class Repeats:
    """What the runs of equal configurations say. Part of `State`, which calls `changed` when a trial changes.

    A configuration is its parameters. If several trials of the search have the same ones, the one that has trained longest is
    the *first run*, and those that were trained as long are further runs.
    """

    def __init__(self, spec: Spec, trials: Population, standing: Standing) -> None:
        self._objective, self._trials, self._standing = spec.objective, trials, standing
        self._numbers: list[int] = []  # the trials that are repeats
        self._known = False  # whether the following attributes are up to date
        self._runs: dict[int, list[Trial]] = {}  # first run -> the runs of its configuration that count
        self._ranking: Ranking | None = None
        self._equal: tuple[int, int] | None = None
        self._dropped: dict[int, Trial] = {}
        self._alone: tuple[float, int] | None = None  # (score, trial) of the best trial that cannot be repeated
        self._configurations: dict[int, tuple[dict[str, Any], str]] = {}  # trial -> its parameters, and their text

    def started(self, trial: Trial) -> None:
        """Add a repeat."""
        self._numbers.append(trial.number)

    def changed(self) -> None:
        """Compute the ranking anew when it is next asked for."""
        self._known = False

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
        return [trial for trial in self.all if _goes_on(trial)]

    @property
    def ranking(self) -> Ranking | None:
        """Return the ranking of all configurations; None if there is no result that counts."""
        self._compute()
        return self._ranking

    @property
    def equal(self) -> tuple[int, int] | None:
        """Return two trials that show that equal configurations give equal results; None if no two trials show it.

        A metric with few different values, such as an accuracy on a few examples, may be equal by chance. If different
        configurations had equal results as well, three pairs without any difference are needed.
        """
        self._compute()
        return self._equal

    @property
    def dropped(self) -> dict[int, Trial]:
        """Return the configurations that do not count because of a bad run: first run -> that run.

        A bad run failed, diverged or violated the constraints.
        """
        self._compute()
        return self._dropped

    @property
    def best(self) -> Trial | None:
        """Return the first run of the configuration with the best expected score; None before the first repeat.

        A trial that cannot be repeated, such as one that started from another trial's checkpoint, counts with its only result.
        """
        if not self._numbers or self.ranking is None:
            return None
        leader = self.ranking.leader
        if self._alone is not None and self._alone[0] > leader.mean:
            return self._trials[self._alone[1]]
        return self._trials[leader.runs.number]

    def summary(self) -> dict[str, Any] | None:
        """Return what the runs of the best configuration say, as JSON.

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
        }

    def _compute(self) -> None:
        if self._known:
            return
        self._known = True
        groups: dict[str, list[Trial]] = {}
        self._alone = None
        for trial in self._trials:
            if is_comparable(trial):
                groups.setdefault(self._configuration(trial), []).append(trial)
            elif self._is_whole(trial) and (score := self._score(trial)) is not None:
                self._alone = max(self._alone or (score, trial.number), (score, trial.number), key=lambda one: one[0])
        self._runs, self._dropped = {}, {}
        known: list[Runs] = []
        for group in groups.values():
            if (first := self._first(group)) is None:
                continue
            again = [trial for trial in group if trial is not first and _is_run(trial, first)]
            runs = self._runs[first.number] = [first, *(t for t in again if self._score(t) is not None)]
            scores = tuple(score for trial in runs if (score := self._score(trial)) is not None)
            pending = sum(trial.repeat_of is not None and _goes_on(trial) for trial in group)
            known.append(Runs(first.number, scores, first.t, pending))
            if (bad := next(filter(_is_bad, group), None)) is not None:
                self._dropped[first.number] = bad
        counting = [runs for runs in known if runs.number not in self._dropped] or known
        counting.sort(key=lambda runs: (len(runs.scores) == 1, -runs.scores[0], runs.number))
        several = sum(len(runs.scores) > 1 for runs in counting)
        self._ranking = ranking(counting[: several + MOST_COMPARED]) if counting else None
        self._equal = self._equal_pair()

    def _configuration(self, trial: Trial) -> str:
        params, text = self._configurations.get(trial.number, (None, ""))
        if params is not trial.params:  # `State` replaces the parameters of a trial as a whole
            text = json.dumps([trial.params, trial.space_revision], sort_keys=True)
            self._configurations[trial.number] = trial.params, text
        return text

    def _first(self, group: Sequence[Trial]) -> Trial | None:
        found = [trial for trial in group if trial.repeat_of is None and self._is_whole(trial)]
        return max(found, key=lambda trial: (trial.t, -trial.number), default=None)

    def _is_whole(self, trial: Trial) -> bool:
        """Return whether a trial has a result, and has not lost the training that led to it."""
        mark = self._standing.of(trial)
        return mark is not None and not trial.diverged and trial.t > 0 and mark.iteration <= trial.iteration

    def _score(self, trial: Trial) -> float | None:
        """Return the score of a trial that counts; None if it has none."""
        mark = None if trial.diverged else self._standing.of(trial)
        return None if mark is None else max(-LARGEST, min(LARGEST, self._objective.score(mark.value)))

    def _equal_pair(self) -> tuple[int, int] | None:
        """Return two equal runs if no two runs of a configuration differ, and if that is not likely by chance."""
        pairs = [(runs[0], other) for runs in self._runs.values() for other in runs[1:]]
        if not pairs or any(_results(one) != _results(other) for one, other in pairs):
            return None
        first = [_results(runs[0]) for runs in self._runs.values()]
        needed = 3 if len(set(first)) < len(first) else 1
        return (pairs[0][0].number, pairs[0][1].number) if len(pairs) >= needed else None


def is_comparable(trial: Trial) -> bool:
    """Return whether another trial with the same configuration would be trained in the same way.

    It would not if the trial started from a checkpoint of another trial, or changed its configuration.
    """
    return not any(segment.cause in ("fork", "exploit") for segment in trial.segments)


def _goes_on(trial: Trial) -> bool:
    return not trial.state.ended and not (trial.state is _S.PAUSED and trial.held)


def _is_run(trial: Trial, first: Trial) -> bool:
    """Return whether a trial with the configuration of `first` was trained as long."""
    if trial.repeat_of is None:
        return trial.state.ended and trial.t == first.t
    # If trials were added to the search, a paused `first` may have trained on after the repeat.
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
