"""Apply a report to its trial: the iteration, the time attribute, the metrics, the best value."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tuner.domain.events import Reported
from tuner.domain.experiment import Spec
from tuner.domain.segments import CheckpointInfo
from tuner.domain.trial import ScoredReport, Segment, Trial
from tuner.driver.core.state.checkpoints import CheckpointLedger
from tuner.driver.core.state.leaderboard import Leaderboard
from tuner.driver.core.state.outlook import Outlook


class Progress:
    """Applies reports to their trials, and passes them on to `Leaderboard`, `CheckpointLedger` and `Outlook`. Part of `State`."""

    def __init__(self, spec: Spec, leaderboard: Leaderboard, checkpoints: CheckpointLedger, outlook: Outlook) -> None:
        self._spec, self._leaderboard, self._checkpoints, self._outlook = spec, leaderboard, checkpoints, outlook
        self._objective = spec.objective
        self._metrics = {objective.metric for objective in spec.objectives}
        self._by_iteration = spec.time_attr == "training_iteration"
        self._by_metric = spec.time_attr not in ("training_iteration", "time_total_s")
        self.reports = 0  # the number of reports of all trials

    def report(self, trial: Trial, segment: Segment, event: Reported, steady: float) -> float | None:
        """Apply a report to its trial. Return its score (higher is better), or None if it has no finite objective.

        steady: the steady time of the report; see `SteadyTime`.
        """
        before = trial.running_s
        self.reports += 1
        self._count(trial, segment, event, steady)
        segment.scored = self._metrics <= event.metrics.keys()
        trial.last = {**trial.last, **event.metrics}
        trial.t = self._time_of(trial, event.metrics)
        value = event.metrics.get(self._objective.metric)
        trial.diverged = value is not None and not math.isfinite(value)
        score = None
        if value is not None and not trial.diverged:
            score = self._take_value(trial, event, value)
        self._leaderboard.reported(trial, event.metrics)
        if self._leaderboard.best is not None and trial.repeat_of is None:
            self._checkpoints.set_leader(self._leaderboard.best[1])
        self._note_values(trial, segment, event, value if score is not None else None)
        size = segment.workers / self._spec.scaling.num_workers
        self._outlook.reported((trial.running_s - before) * size, None if trial.feasible_now is False else score)
        return score

    def start_time(self, trial: Trial, source: CheckpointInfo | None) -> float:
        """Return the value of time_attr at the beginning of a segment that starts from `source`, or without a checkpoint."""
        if self._by_iteration:
            return float(source.step) if source else 0.0
        if not self._by_metric:
            return trial.t
        kept = self._checkpoints.find(source.id) if source else None
        return 0.0 if source is None else kept.t if kept is not None and kept.t is not None else trial.t

    @staticmethod
    def _count(trial: Trial, segment: Segment, event: Reported, steady: float) -> None:
        segment.offers = event.checkpoint is not None or segment.offer == event.report_no
        segment.report_no, segment.iteration = event.report_no, event.iteration
        if event.waits:  # other reports do not name the next offer
            segment.offer = event.offer
        passed = max(0.0, steady - segment.clock)
        trial.running_s += passed
        segment.trained_s += passed
        segment.clock = steady
        trial.iteration = event.iteration
        trial.reports += 1

    def _time_of(self, trial: Trial, metrics: Mapping[str, float]) -> float:
        """Return the trial's value of time_attr at its newest report, which has these metrics.

        If time_attr is a metric that the report lacks, return the previous value, or NaN if the report has the objective.
        """
        match self._spec.time_attr:
            case "training_iteration":
                return float(trial.iteration)
            case "time_total_s":
                return trial.running_s
            case name:
                return float(metrics.get(name, math.nan if trial.segments[-1].scored else trial.t))

    def _take_value(self, trial: Trial, event: Reported, value: float) -> float:
        trial.last_value = value
        score = self._objective.score(value)
        if trial.best_value is None or score > self._objective.score(trial.best_value):
            trial.best_value, trial.best_iteration, trial.best_segment = value, event.iteration, event.segment
        trial.last_mark = ScoredReport(value, event.iteration, event.segment)
        return score

    def _note_values(self, trial: Trial, segment: Segment, event: Reported, value: float | None) -> None:
        """Record the objective and time_attr value of a report, by which a checkpoint of the same iteration is judged."""
        if trial.feasible_now is False:
            value = None
        if value is not None:
            trial.values[event.iteration] = value
        else:
            trial.values.pop(event.iteration, None)
        t = trial.t if self._by_metric and math.isfinite(trial.t) else None
        if t is not None:
            trial.times[event.iteration] = t
        self._checkpoints.reported(trial, segment.ordinal, event.iteration, value, t)
