"""What a shell has to do after a commit. Actions are values; carrying one out twice does no harm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tuner.domain.events import CheckpointInfo, Suggested
from tuner.search.base import Suggestion


@dataclass(frozen=True, slots=True)
class Launch:
    """Run the newest segment of this trial on a worker group."""

    trial: int
    segment: int
    decision_seq: int  # pending until the segment has started


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Have the ranks of this segment report at a count they agree on, and ask for the verdict there."""

    trial: int
    segment: int
    why: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Let the (heavy) searcher propose the configuration of this trial beside the driver; answer with `Suggested`."""

    number: int


@dataclass(frozen=True, slots=True)
class Fit:
    """Run the scheduler's `fit` on this payload beside the driver; answer with `ModelFitted`."""

    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteCheckpoint:
    """Nothing points to this checkpoint any more; answer with `CheckpointDeleted`."""

    trial: int
    info: CheckpointInfo


Action = Launch | Interrupt | Ask | Fit | DeleteCheckpoint


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the ranks of a segment do after a report. A `next_milestone` of None: never wait again."""

    action: Literal["continue", "stop", "pause", "exploit"]
    next_milestone: int | None = None  # report_no within the segment
    save_checkpoint: bool = False
    reason: str = ""


def suggested(time: float, number: int, suggestion: Suggestion | None) -> Suggested:
    """The event that answers an `Ask`; None: there is nothing more to propose."""
    if suggestion is None:
        return Suggested(time=time, number=number, params=None)
    return Suggested(time=time, number=number, params=suggestion.params, state=suggestion.state, note=suggestion.note)
