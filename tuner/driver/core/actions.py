"""Actions, which a shell carries out after a commit. They are immutable; carrying one out twice does no harm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.domain.events import Suggested
from tuner.domain.segments import CheckpointInfo, Interruption, SegmentRef
from tuner.search.base import Suggestion


@dataclass(frozen=True, slots=True)
class RunSegment:
    """Run this segment, its trial's newest, on a worker group."""

    segment: SegmentRef
    decision_seq: int  # event_seq of the decision to run the segment, which is pending until the segment has started


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Make the ranks of this segment agree on a report at which they wait for a verdict; if `why` is "kill", kill them."""

    segment: SegmentRef
    why: Interruption


@dataclass(frozen=True, slots=True)
class Ask:
    """Let a slow searcher propose a trial's configuration in another process; answer with `Suggested`."""

    number: int


@dataclass(frozen=True, slots=True)
class Fit:
    """Call the scheduler's `fit` with this payload in another process; answer with `ModelFitted`."""

    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteCheckpoint:
    """Delete a checkpoint that nothing refers to; answer with `CheckpointDeleted`.

    lost: True if the checkpoint is no longer usable, so that it is deleted even if a user has pinned it.
    """

    trial: int
    info: CheckpointInfo
    lost: bool = False


Question = Ask | Fit
"""A computation that the core requests, and that runs in another process."""

Action = RunSegment | Interrupt | Question | DeleteCheckpoint


def suggested(time: float, number: int, suggestion: Suggestion | None) -> Suggested:
    """Return the event that answers an `Ask`. A suggestion of None means that the searcher has no more configurations."""
    if suggestion is None:
        return Suggested(time=time, number=number, params=None)
    return Suggested(time=time, number=number, params=suggestion.params, state=suggestion.state, note=suggestion.note)
