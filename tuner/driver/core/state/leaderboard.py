"""Find the best of all trials, and the best of the completed trials.

Only reports that satisfy the constraints count. Since not every report has all metrics, the constraints are checked with the
newest value of each metric.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.domain.experiment import Spec
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, ScoredReport, Trial
from tuner.plurals import counted
from tuner.search.constraints import Constraint, in_words


class Leaderboard:
    """Finds the best trial from the reports, all of which `State` passes on, both live and after a restart."""

    def __init__(self, spec: Spec, constraints: Sequence[Constraint]) -> None:
        self.constraints = tuple(constraints)
        self.best: tuple[float, int] | None = None  # (score, trial) of the best report that counts
        self.finite = False  # whether a trial has reported a finite objective
        self._objective = spec.objective
        self._scope = spec.scope
        self._by_last = spec.scope == "last"
        self._last = [(one, _Leader()) for one in spec.objectives] if self._by_last else []
        # True if the best values so far cannot be computed from the metrics of the reports alone.
        self.tells_best = bool(constraints) or self._by_last
        self._finished = _Leader()  # finds the best of the trials that were trained to their end
        self._not_finite: dict[int, int] = {}  # trial -> iteration of its first NaN or infinity
        # (excess, trial, metric, value) of the report nearest to the constraints
        self._nearest: tuple[float, int, str, float] | None = None
        self.improved: dict[str, float] = {}  # objective -> its best value, if the newest report changed it
        self._several = spec.objectives if len(spec.objectives) > 1 else ()
        # objective -> (value, trial) of the best report, if there are several objectives
        self._best_of: dict[str, tuple[float, int]] = {}

    def reported(self, trial: Trial, metrics: Mapping[str, float]) -> None:
        """Add the trial's newest report, which has these metrics and has been applied to the trial."""
        self.improved = {}
        if trial.repeat_of is not None:
            self._judge_repeat(trial)
            return
        judges = any(c.metric in metrics for c in self.constraints)
        value = metrics.get(self._objective.metric)
        if value is not None and not math.isfinite(value):
            self._not_finite.setdefault(trial.number, trial.iteration)
        elif (mark := trial.last_mark) is not None and (value is not None or judges):
            self._reported_first(trial, mark)
        if self._by_last:
            self._follow_last(trial)
        elif self._several and self._satisfies_all(trial):
            # A report may have only some of the objectives, and a constraint's metric may come after them.
            self._compare_each(trial, trial.last if judges else metrics)
        if trial.state is TrialState.COMPLETED:  # its ranks did not wait, and reported again before they were stopped
            self.completed(trial)

    def _judge_repeat(self, trial: Trial) -> None:
        """Record whether a repeat satisfies the constraints. It is never the best trial: the mean over all runs counts."""
        if not self.constraints or trial.last_mark is None:
            return
        if self._by_last:
            trial.feasible = trial.feasible_now = self._satisfies_all(trial)
        else:
            self._judge(trial, trial.last_mark)

    def _reported_first(self, trial: Trial, mark: ScoredReport) -> None:
        """Add a report that has the first objective or a metric of a constraint. `mark` is the trial's last scored report."""
        self.finite = True
        if self.constraints:
            self._judge(trial, mark)
        if not self._by_last and (trial.feasible_best == mark or not self.constraints) and self._is_better(mark):
            self.best = (self._objective.score(mark.value), trial.number)
            if not self._several:
                self.improved[self._objective.metric] = mark.value

    def _follow_last(self, trial: Trial) -> None:
        """Compare the trial's last values with those of the others. A report may also make the best trial's value worse."""
        counts = self._satisfies_all(trial)
        if self.constraints and trial.last_mark is not None:  # checked even if the newest objective is not finite
            trial.feasible = trial.feasible_now = counts
        for objective, leader in self._last:
            value = trial.last_value if objective == self._objective else trial.last.get(objective.metric)
            before = leader.best
            finite = value is not None and math.isfinite(value)
            leader.put(trial.number, objective.score(value) if counts and value is not None and finite else None)
            if leader.best is not None and (before is None or before[0] != leader.best[0]):
                self.improved[objective.metric] = objective.score(leader.best[0])
        self.best = self._last[0][1].best

    def _compare_each(self, trial: Trial, metrics: Mapping[str, float]) -> None:
        for objective in self._several:
            value = metrics.get(objective.metric, math.nan)
            best = self._best_of.get(objective.metric)
            if math.isfinite(value) and (best is None or objective.score(value) > objective.score(best[0])):
                self._best_of[objective.metric] = (value, trial.number)
                self.improved[objective.metric] = value

    def _judge(self, trial: Trial, mark: ScoredReport) -> None:
        broken = [(c.excess(trial.last), c.metric) for c in self.constraints if c.excess(trial.last) > 0]
        if broken:
            excess, metric = max(broken)
            if self._nearest is None or excess < self._nearest[0]:
                self._nearest = (excess, trial.number, metric, trial.last.get(metric, math.nan))
        elif trial.feasible_best is None or self._score(mark) > self._score(trial.feasible_best):
            trial.feasible_best = mark
        trial.feasible_now = not broken
        trial.feasible = not broken if self._by_last else trial.feasible_best is not None

    def completed(self, trial: Trial) -> None:
        """Record that a trial has completed: it reached max_t, its function returned, or `stop` ended it."""
        mark = trial.last_mark if not trial.diverged and self._satisfies_all(trial) else None
        self._finished.put(trial.number, None if mark is None else self._score(mark))

    def of(self, trial: Trial) -> ScoredReport | None:
        """Return the trial's best report (with scope="last", its last report); None if it has none within the constraints."""
        return trial.mark(self._scope) if trial.feasible is not False else None

    def best_trial(self, trials: Population) -> Trial | None:
        """Return the trial with the best report (with scope="last", the best last report) within the constraints, or None."""
        return trials[self.best[1]] if self.best is not None else None

    def best_finished(self, trials: Population) -> Trial | None:
        """Return the completed trial with the best last value; None if none has a finite one within the constraints."""
        return trials[self._finished.best[1]] if self._finished.best is not None else None

    def summary(
        self, trials: Population, best: Trial | None = None, runs: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Return the best trial and the best completed trial as JSON, for the experiment's row.

        If there are several objectives, the best value of each is included. If there is no best trial, return {"why": reason},
        or None before the first report.

        Args:
            trials: all trials.
            best: the first run of the configuration that leads after repeats; None if there were none.
            runs: the summary of that configuration's runs. Their mean is the best value.
        """
        trial = best or self.best_trial(trials)
        if trial is None:
            why = self.why_none()
            return {"why": why} if why else None
        mark = self.of(trial)
        assert mark is not None
        checkpoint = trial.checkpoint if self._by_last else trial.best_checkpoint(self._objective)
        found = _shown(trial, mark, checkpoint.id if checkpoint else None)
        if runs is not None:
            found |= {"value": runs["mean"], "runs": dict(runs)}
        if self._several:
            found["objectives"] = self._each()
        finished = self.best_finished(trials)
        if finished is None or finished.last_mark is None:
            return {**found, "finished": None}
        newest = finished.checkpoint.id if finished.checkpoint else None
        return {**found, "finished": _shown(finished, finished.last_mark, newest)}

    def _each(self) -> list[dict[str, Any]]:
        """Return the best value of each objective, with its trial. The values may come from different trials."""
        best = self._best_of
        if self._by_last:
            best = {o.metric: (o.score(led.best[0]), led.best[1]) for o, led in self._last if led.best is not None}
        return [
            {"metric": metric, "value": value, "trial_number": number}
            for metric, (value, number) in ((o.metric, best[o.metric]) for o in self._several if o.metric in best)
        ]

    def why_none(self) -> str | None:
        """Return why there is no best trial although trials have reported.

        Return None if there is a best trial, or if no trial has reported.
        """
        if self.finite and self._nearest is not None and self.best is None:
            _, number, metric, value = self._nearest
            said = f"has {metric} = {value:.4g}" if math.isfinite(value) else f"has not reported {metric!r}"
            wanted = ", ".join(in_words(c) for c in self.constraints)
            return f"no trial satisfies the constraints ({wanted}): the nearest one, trial {number}, {said}"
        if not self.finite and self._not_finite:
            count, first = len(self._not_finite), min(self._not_finite.values())
            name = self._objective.metric
            trials = counted(count, "trial")
            return f"no trial reported a finite {name!r}: {trials} reported NaN or infinity, first at iteration {first}"
        return None

    def _satisfies_all(self, trial: Trial) -> bool:
        return all(c.excess(trial.last) <= 0 for c in self.constraints)

    def _is_better(self, mark: ScoredReport) -> bool:
        return self.best is None or self._score(mark) > self.best[0]

    def _score(self, mark: ScoredReport) -> float:
        return self._objective.score(mark.value)


class _Leader:
    """A heap that finds the best of the trials' current scores. Outdated entries are removed once they are at the top."""

    def __init__(self) -> None:
        self.best: tuple[float, int] | None = None  # (score, trial)
        self._scores: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []  # (negated score, trial)

    def put(self, number: int, score: float | None) -> None:
        """Set the trial's score. None: it does not count."""
        if score is None:
            self._scores.pop(number, None)
        elif self._scores.get(number) != score:
            self._scores[number] = score
            heapq.heappush(self._heap, (-score, number))
        if len(self._heap) > 2 * len(self._scores) + 100:
            self._heap = [(-score, number) for number, score in self._scores.items()]
            heapq.heapify(self._heap)
        while self._heap and self._scores.get(self._heap[0][1]) != -self._heap[0][0]:
            heapq.heappop(self._heap)
        self.best = (-self._heap[0][0], self._heap[0][1]) if self._heap else None


def _shown(trial: Trial, mark: ScoredReport, checkpoint: str | None) -> dict[str, Any]:
    return {
        "trial_number": trial.number,
        "value": mark.value,
        "iteration": mark.iteration,
        "segment": mark.segment,
        "params": dict(trial.params_at(mark)),
        "checkpoint_id": checkpoint,
    }
