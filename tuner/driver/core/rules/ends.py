"""Decide about a trial whose segment has ended: complete, retry, pause or fail it."""

from __future__ import annotations

from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.decisions import Decision
from tuner.domain.segments import Failure
from tuner.domain.states import ExperimentState
from tuner.domain.trial import Trial
from tuner.driver.core.rules.alike import all_failed_alike
from tuner.driver.core.rules.failures import all_fail, missing_metric
from tuner.driver.core.rules.words import paused, where_from
from tuner.driver.core.state.state import State
from tuner.plurals import counted

_UNTIL = {"disk_full": "once there is room", "storage": "once the storage can be used"}


def after_end(experiment: State, event: e.SegmentEnded) -> list[Decision]:
    """Decide about the trial whose segment has ended, and record what users should know of the end."""
    return [
        *_warning(experiment, event),
        *_unsaved(experiment, event),
        *unsavable(experiment, event.trial),
        *_about_trial(experiment, event),
    ]


def _warning(experiment: State, event: e.SegmentEnded) -> list[Decision]:
    """Record the warning of an ended segment. Only an experiment's first such warning is shown to users outside the log.

    Every trial runs the same function, so later warnings are likely about the same mistake.
    """
    if not event.warning:
        return []
    why = f"trial {event.trial}: {event.warning}"
    return [d.Note(reason=why, trial=event.trial, warning=experiment.warned_ends == 1)]


def _unsaved(experiment: State, event: e.SegmentEnded) -> list[Decision]:
    """Record that the last checkpoint of an ended trial could not be saved: the trial keeps its result, and does not fail.

    Only an experiment's first such note is a warning, since later ones are likely about the same full disk.
    """
    trial, failure = experiment.trials[event.trial], event.failure
    if failure is None or not trial.state.ended or not failure.in_save:
        return []
    left = f"its newest one is of iteration {trial.checkpoint.step}" if trial.checkpoint else "it has no other one"
    why = f"the last checkpoint of trial {trial.number} could not be saved, and {left}: {failure.message}"
    return [d.Note(reason=why, trial=trial.number, warning=experiment.unsaved_ends == 1)]


def unsavable(experiment: State, trial: int) -> list[Decision]:
    """Warn that the present event has paused the experiment, because checkpoints cannot be saved. Say how to continue it."""
    found = experiment.unsavable
    if found is None or found.seq != experiment.seq:
        return []
    return [d.Note(reason=f"the experiment is {found.reason}", trial=trial, warning=True)]


def _about_trial(experiment: State, event: e.SegmentEnded) -> list[Decision]:
    trial = experiment.trials[event.trial]
    segment = trial.segments[-1]
    moved_on = segment.ordinal != event.segment  # the trial's next segment was planned, and is open now
    if trial.state.ended or moved_on or segment.leaving or trial.next is not None:
        return []
    match event.outcome:
        case "returned":
            return _returned(experiment, trial)
        case "left":
            if segment.commanded == "pause" or experiment.state is ExperimentState.PAUSING:
                return [
                    d.Pause(trial=trial.number, reason=f"{paused(experiment)} before the trial reported", held=True)
                ]
            return [d.Retry(trial=trial.number, reason="the trial's worker group was taken away")]
        case "failed":
            return _failed(
                experiment, trial, event.failure or Failure(kind="system", message="the worker group was lost")
            )


def _returned(experiment: State, trial: Trial) -> list[Decision]:
    objectives = [objective.metric for objective in experiment.spec.objectives]
    if trial.reports and (never := [metric for metric in objectives if metric not in trial.last]):
        return missing_metric(experiment, trial, "the objective", never, trial.last)
    if not trial.segments[-1].report_no:
        why = f"the function returned at once: it continued from the checkpoint saved at its end, iteration {trial.iteration}"
        return [d.Complete(trial=trial.number, reason=why)]
    count = counted(trial.iteration, "report")  # reports that a retry repeated count once
    return [d.Complete(trial=trial.number, reason=f"the function returned after {count}")]


def _failed(experiment: State, trial: Trial, failure: Failure) -> list[Decision]:
    if failure.kind == "placement":
        return all_fail(experiment, trial, failure, "every trial asks for the same workers")
    if (retry := _retry(experiment, trial, failure)) is not None:
        return [retry]
    if failure.cause in _UNTIL and experiment.state in (ExperimentState.PAUSING, ExperimentState.PAUSED):
        until, what = _UNTIL[failure.cause], failure.headline(trial.number)
        return [
            d.Retry(trial=trial.number, reason=f"starts again {where_from(experiment, trial)} {until}, after {what}")
        ]
    alike = all_failed_alike(experiment.trials, trial.number, failure)
    if alike is not None:
        return all_fail(experiment, trial, failure, alike)
    return [d.Fail(trial=trial.number, reason=failure.headline(trial.number))]


def _retry(experiment: State, trial: Trial, failure: Failure) -> d.Retry | None:
    """Return the decision to retry after a failed segment; None if no retries are left, or if a retry would not help."""
    limits = experiment.spec.limits
    what = failure.headline(trial.number)
    if failure.kind == "user" and trial.failures < limits.max_failures:
        why = f"retry {trial.failures + 1} of {limits.max_failures}, {where_from(experiment, trial)}, after {what}"
        return d.Retry(trial=trial.number, reason=why)
    if failure.kind == "system" and trial.system_failures < limits.max_system_failures:
        return d.Retry(trial=trial.number, reason=f"started again {where_from(experiment, trial)} after {what}")
    return None
