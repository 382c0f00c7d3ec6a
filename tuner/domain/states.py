"""The states of experiments, trials and segments, each with one table of legal changes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar, cast

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
        """Return True if the experiment has ended. It runs again only if a user continues it."""
        return self in _ENDED


class TrialState(StrEnum):
    PENDING = "pending"  # the trial's next segment does not run yet
    RUNNING = "running"
    PAUSED = "paused"  # paused by the scheduler or a user; holds no resources
    COMPLETED = "completed"  # reached its end: the function returned, max_t, or a stop criterion
    STOPPED = "stopped"  # ended early by the scheduler or a user
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return not TRIAL_CHANGES[self]


class SegmentState(StrEnum):
    PLANNED = "planned"  # waits for a free slot, and for the trial's open segment to end
    LAUNCHING = "launching"  # has a slot; its ranks have not entered the training function yet
    RUNNING = "running"  # all ranks have entered the training function
    LEAVING = "leaving"  # a verdict is ending it; its worker group is still in use
    RETURNED = "returned"  # the training function returned
    LEFT = "left"  # the ranks followed a verdict, or their worker group was shut down
    FAILED = "failed"
    LOST = "lost"  # the driver died, and the ranks died with it
    DROPPED = "dropped"  # never got a slot: another plan replaced it, or its trial ended

    @property
    def ended(self) -> bool:
        return not SEGMENT_CHANGES[self]

    @property
    def open(self) -> bool:
        """Return whether a segment in this state holds a slot and a worker group."""
        return self in OPEN_SEGMENTS


_E, _T, _G = ExperimentState, TrialState, SegmentState
State = TypeVar("State", ExperimentState, TrialState)
_ENDED = frozenset({_E.CANCELLED, _E.COMPLETED, _E.FAILED})
OPEN_SEGMENTS = frozenset({_G.LAUNCHING, _G.RUNNING, _G.LEAVING})

EXPERIMENT_CHANGES: Mapping[ExperimentState, frozenset[ExperimentState]] = {
    _E.PENDING: frozenset({_E.RUNNING, _E.PAUSED, _E.CANCELLED, _E.FAILED}),
    _E.RUNNING: frozenset({_E.PAUSING, _E.PAUSED, _E.CANCELLING, _E.CANCELLED, _E.COMPLETED, _E.FAILED}),
    _E.PAUSING: frozenset({_E.PAUSED, _E.RUNNING, _E.CANCELLING, _E.CANCELLED, _E.COMPLETED, _E.FAILED}),
    _E.PAUSED: frozenset({_E.RUNNING, _E.CANCELLING, _E.CANCELLED}),
    _E.CANCELLING: frozenset({_E.CANCELLED, _E.FAILED}),
    # A user can continue an experiment that has ended.
    _E.CANCELLED: frozenset({_E.RUNNING}),
    _E.COMPLETED: frozenset({_E.RUNNING}),
    _E.FAILED: frozenset({_E.RUNNING}),
}

TRIAL_CHANGES: Mapping[TrialState, frozenset[TrialState]] = {
    # A pending trial completes if it makes its last report while its segment ends for a resize.
    _T.PENDING: frozenset({_T.RUNNING, _T.PAUSED, _T.COMPLETED, _T.STOPPED, _T.FAILED, _T.CANCELLED}),
    _T.RUNNING: frozenset({_T.PENDING, _T.PAUSED, _T.COMPLETED, _T.STOPPED, _T.FAILED, _T.CANCELLED}),
    _T.PAUSED: frozenset({_T.PENDING, _T.RUNNING, _T.COMPLETED, _T.STOPPED, _T.FAILED, _T.CANCELLED}),
    _T.COMPLETED: frozenset(),
    _T.STOPPED: frozenset(),
    _T.FAILED: frozenset(),
    _T.CANCELLED: frozenset(),
}

SEGMENT_CHANGES: Mapping[SegmentState, frozenset[SegmentState]] = {
    _G.PLANNED: frozenset({_G.LAUNCHING, _G.DROPPED}),
    _G.LAUNCHING: frozenset({_G.RUNNING, _G.LEAVING, _G.LEFT, _G.FAILED, _G.LOST}),
    _G.RUNNING: frozenset({_G.LEAVING, _G.RETURNED, _G.LEFT, _G.FAILED, _G.LOST}),
    _G.LEAVING: frozenset({_G.RETURNED, _G.LEFT, _G.FAILED, _G.LOST}),
    _G.RETURNED: frozenset(),
    _G.LEFT: frozenset(),
    _G.FAILED: frozenset(),
    _G.LOST: frozenset(),
    _G.DROPPED: frozenset(),
}


_STAND_INS: Mapping[type[StrEnum], StrEnum] = {_E: _E.PAUSED, _T: _T.PAUSED}
"""The states in which this version shows what is in a state that only another version knows. None of them needs a driver, and
retention deletes none of them."""


def read_state(kind: type[State], stored: str) -> State:
    """Return the state with this value, or one that stands in for it if only another version knows it."""
    return kind(stored) if is_state(kind, stored) else cast("State", _STAND_INS[kind])


def is_state(kind: type[StrEnum], stored: str) -> bool:
    """Return whether this version knows a stored state."""
    return stored in _values(kind)


@functools.cache
def _values(kind: type[StrEnum]) -> frozenset[str]:
    return frozenset(kind)


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


def change_segment(old: SegmentState, new: SegmentState) -> SegmentState:
    """Return `new`. Raise IllegalTransition if the table has no change from `old` to `new`."""
    if new not in SEGMENT_CHANGES[old]:
        raise IllegalTransition(f"a segment that is {old} cannot become {new}")
    return new
