"""Decide how much of the training goes to scouts: trials that are chosen without the model and not paused early."""

from __future__ import annotations

import statistics

from tuner.schedulers.freeze_thaw.state import FreezeThawState

SCOUT_REACH = 0.2  # scouts are not paused before this share of max_t
SCOUTS_WHEN_MISLED = 4  # while early reports say little, the share of scouts grows by this many times scout_share
SCOUTS_WHEN_STALLED = 2  # while scores do not improve, the share grows by up to this many times scout_share
PATIENCE = 5  # during this many full trainings at the beginning, the search never counts as stalled
NEARLY = 0.05  # a score this share of the way from the best to the median is nearly as good as the best


def are_due(state: FreezeThawState, share: float, end: float, misled: bool) -> bool:
    """Return True if scouts have had less than their share of all training so far.

    Args:
        state: the scheduler's state.
        share: the usual share of scouts.
        end: the length of a full training, in units of time_attr.
        misled: True if early reports say little about later ones.
    """
    more = SCOUTS_WHEN_MISLED if misled else SCOUTS_WHEN_STALLED * stalled(state, end)
    return state.scouted < share * (1 + more) * state.spent


def why(reach: str, misled: bool) -> str:
    """Return the reason for a scout that is not paused before `reach`."""
    said = (
        f"started as a scout: a configuration chosen without the model, which trains at least to {reach}, "
        "because a good trial that starts slowly cannot be recognized earlier"
    )
    if not misled:
        return said
    times = 1 + SCOUTS_WHEN_MISLED
    return (
        f"{said}; there are {times} times as many scouts as usual, "
        "because the early reports of trials say little about their later ones here"
    )


def stalled(state: FreezeThawState, end: float) -> float:
    """Return the share of all training that was done after the first score that is nearly as good as the best.

    The first PATIENCE full trainings are not counted.
    """
    scores = [s for trial, level, s in state.results if s is not None and (trial, level) not in state.excess]
    if state.best is None or not scores or not state.spent:
        return 0.0
    near = state.best - NEARLY * max(0.0, state.best - statistics.median(scores))
    since = next((spent for spent, best in state.records if best >= near), state.spent)
    return max(0.0, 1 - max(since, PATIENCE * end) / state.spent)
