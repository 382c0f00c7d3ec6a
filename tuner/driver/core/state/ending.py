"""Pause or end an experiment once its trials have ended, and say why it has no result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.domain.states import ExperimentState, TrialState, change_experiment

if TYPE_CHECKING:
    from tuner.driver.core.state.state import State

_S, _X = TrialState, ExperimentState


def settle(state: State) -> None:
    """Pause or end the experiment if its state and its trials require it. Call this only while no segment is open.

    The experiment then needs no driver. While there are late uploads, do nothing, because they would end with their
    driver.
    """
    if state.checkpoints.late:
        return
    if state.state is _X.PAUSING and (state.finishing is None or not state.all_ended):
        state.state = change_experiment(state.state, _X.PAUSED)
    elif state.state is _X.CANCELLING and state.all_ended:
        state.state = change_experiment(state.state, _X.CANCELLED)
    elif state.state in (_X.RUNNING, _X.PAUSING) and state.finishing is not None and state.all_ended:
        lost = state.trials.count(_S.FAILED)
        failed = state.failing or (lost > 0 and (not state.leaderboard.finite or lost == len(state.trials)))
        state.error = _why_failed(state, lost) if failed else _why_none(state)
        state.state = change_experiment(state.state, _X.FAILED if failed else _X.COMPLETED)


def _why_none(state: State) -> str | None:
    """Return why a search that completed has no best trial, or None if it has one."""
    unreported = None if state.leaderboard.finite else f"no trial reported {state.spec.objective.metric!r}"
    return state.leaderboard.why_none() or unreported


def _why_failed(state: State, lost: int) -> str | None:
    """Return the error of an experiment that failed: why it was ended, which trials failed, why there is no best trial."""
    ended = state.finishing if state.failing and (state.fatal is None or lost > 1) else None
    failures = _failures(state, lost) if lost and (ended is None or state.fatal is None) else None
    return "; ".join(filter(None, [ended, failures, state.leaderboard.why_none()])) or None


def _failures(state: State, count: int) -> str:
    last = [trial for trial in state.trials if trial.state is _S.FAILED][-1].reason
    return last if count == 1 else f"{count} of {len(state.trials)} trials failed; the last one: {last}"
