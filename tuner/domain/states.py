"""States of experiments and trials, with one table of legal changes each."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from tuner.errors import IllegalTransition


class ExperimentState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return not EXPERIMENT_CHANGES[self]


class TrialState(StrEnum):
    PENDING = "pending"  # created, its first segment not yet running
    RUNNING = "running"
    PAUSED = "paused"  # by the scheduler or a user; holds no resources
    COMPLETED = "completed"  # reached its end: the function returned, max_t, or a stop criterion
    STOPPED = "stopped"  # by the scheduler or a user, early
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return not TRIAL_CHANGES[self]


_E, _T = ExperimentState, TrialState

EXPERIMENT_CHANGES: Mapping[ExperimentState, frozenset[ExperimentState]] = {
    _E.PENDING: frozenset({_E.RUNNING, _E.PAUSED, _E.CANCELLED, _E.FAILED}),
    _E.RUNNING: frozenset({_E.PAUSING, _E.PAUSED, _E.CANCELLING, _E.CANCELLED, _E.COMPLETED, _E.FAILED}),
    _E.PAUSING: frozenset({_E.PAUSED, _E.RUNNING, _E.CANCELLING, _E.CANCELLED, _E.COMPLETED, _E.FAILED}),
    _E.PAUSED: frozenset({_E.RUNNING, _E.CANCELLING, _E.CANCELLED}),
    _E.CANCELLING: frozenset({_E.CANCELLED, _E.FAILED}),
    _E.CANCELLED: frozenset(),
    _E.COMPLETED: frozenset(),
    _E.FAILED: frozenset(),
}

TRIAL_CHANGES: Mapping[TrialState, frozenset[TrialState]] = {
    _T.PENDING: frozenset({_T.RUNNING, _T.PAUSED, _T.FAILED, _T.STOPPED, _T.CANCELLED}),
    _T.RUNNING: frozenset({_T.PENDING, _T.PAUSED, _T.COMPLETED, _T.STOPPED, _T.FAILED, _T.CANCELLED}),
    _T.PAUSED: frozenset({_T.PENDING, _T.RUNNING, _T.COMPLETED, _T.STOPPED, _T.FAILED, _T.CANCELLED}),
    _T.COMPLETED: frozenset(),
    _T.STOPPED: frozenset(),
    _T.FAILED: frozenset(),
    _T.CANCELLED: frozenset(),
}


def change_experiment(old: ExperimentState, new: ExperimentState) -> ExperimentState:
    """Return `new`. Raise IllegalTransition if the table has no change from `old` to `new`."""
    if new not in EXPERIMENT_CHANGES[old]:
        raise IllegalTransition(f"an experiment that is {old} cannot become {new}")
    return new


def change_trial(old: TrialState, new: TrialState) -> TrialState:
    """Return `new`. Raise IllegalTransition if the table has no change from `old` to `new`."""
    if new not in TRIAL_CHANGES[old]:
        raise IllegalTransition(f"a trial that is {old} cannot become {new}")
    return new
