"""Make the decisions that follow a user's command, a takeover by a new driver, or the end of a budget."""

from __future__ import annotations

from typing import assert_never

from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.decisions import Decision
from tuner.domain.states import ExperimentState, TrialState
from tuner.domain.trial import Trial
from tuner.driver.core.rules.words import paused, where_from
from tuner.driver.core.state.state import State


def after_command(experiment: State, event: e.Commanded) -> list[Decision]:
    """Return the decisions that follow a command immediately. `State` records the requests that must wait for a report."""
    by = event.reason or "by a user"
    if event.trial is not None:
        if event.trial not in experiment.trials or experiment.trials[event.trial].state.ended:
            return []
        return _about_trial(experiment.trials[event.trial], event.command, by)
    match event.command:
        case "cancel":
            return [d.Cancel(trial=t.number, reason=f"cancelled {by}") for t in experiment.trials if not t.state.ended]
        case "kill":
            return [d.Cancel(trial=t.number, reason=f"killed {by}") for t in experiment.trials if not t.state.ended]
        case "resume":
            held = [t for t in experiment.trials if t.held and t.number not in experiment.waiting_exploits]
            return [_release(trial, by) for trial in held]
        case "continue":
            return [d.Note(reason=f"continued {by}")]
        case "pause" | "stop" | "retry":
            return []  # running trials pause at their next report; the other two are for single trials only
        case _:
            assert_never(event.command)


def after_takeover(experiment: State) -> list[Decision]:
    """Return the decisions that pause or retry the trials that ran, or were about to run, under the previous driver."""
    decisions: list[Decision] = []
    for trial in experiment.trials:
        waits = trial.state in (TrialState.PENDING, TrialState.RUNNING)
        if not waits or trial.next is not None or trial.holds_resources:
            continue
        if experiment.state in (ExperimentState.PAUSING, ExperimentState.PAUSED):
            why = f"{paused(experiment)} after the trial's driver had ended"
            decisions.append(d.Pause(trial=trial.number, reason=why, held=True))
        else:
            why = f"continued {where_from(experiment, trial)} by a new driver"
            decisions.append(d.Retry(trial=trial.number, reason=why))
    return decisions


def stop_all(experiment: State, reason: str) -> list[Decision]:
    """Return the decisions that stop every trial that has not ended."""
    return [d.Stop(trial=trial.number, reason=reason) for trial in experiment.trials if not trial.state.ended]


def _release(trial: Trial, by: str) -> Decision:
    """Resume a trial that a user has paused. If the scheduler had paused the trial before, let the scheduler resume it."""
    if trial.paused_by_scheduler:
        return d.Pause(trial=trial.number, reason=f"released {by}, but still paused by the scheduler")
    return d.Resume(trial=trial.number, reason=f"resumed {by}")


def _where(trial: Trial) -> str:
    """Return the last words of a reason, which say at which iteration the trial ends; "" while that is unknown.

    The iteration is unknown while ranks run: they report once more, and reports that they have sent may not have arrived
    yet.
    """
    if trial.holds_resources:
        return ""
    return f" at iteration {trial.iteration}" if trial.iteration else " before its first report"


def _about_trial(trial: Trial, command: e.Command, by: str) -> list[Decision]:
    match command:
        case "stop":
            return [d.Stop(trial=trial.number, reason=f"stopped {by}{_where(trial)}")]
        case "cancel":
            return [d.Cancel(trial=trial.number, reason=f"cancelled {by}")]
        case "kill":
            return [d.Cancel(trial=trial.number, reason=f"killed {by}{_where(trial)}")]
        case "resume":
            waits = trial.state is TrialState.PAUSED and trial.next is None
            return [d.Resume(trial=trial.number, reason=f"resumed {by}")] if waits else []
        case "continue" | "retry":
            return []
        case "pause":  # a running trial pauses at its next report
            paused = trial.state is TrialState.PAUSED
            return [d.Pause(trial=trial.number, reason=f"held {by}", held=True)] if paused else []
        case _:
            assert_never(command)
