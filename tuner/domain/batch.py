"""Define the batch that a driver writes in one transaction: log entries, and the rows that changed with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.domain.decisions import Decision
from tuner.domain.events import Event
from tuner.domain.states import ExperimentState
from tuner.domain.trial import Trial

Entry = tuple[int, Event | Decision]
"""An event or decision with its number, `event_seq`. An experiment's events and decisions share one sequence without gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The changes that a driver writes in one transaction: all or none, and only while the driver's epoch is still valid.

    `log` is the source of truth. `trials` and `state` follow from the log, and are written so that readers do not have
    to fold the log. The trials are the core's own objects: read them, but do not change them or keep references to them.
    """

    log: Sequence[Entry]
    trials: Sequence[Trial] = ()  # trials that the log changes; their rows, segments and checkpoints are updated
    state: ExperimentState | None = None  # None: unchanged
    # the time of the state, which is never set back, as the times of events are with the clock; None: that of the newest event
    time: float | None = None
    # {"best": {...} | None, "counts": {...}, "reason": str, "error": str}
    summary: Mapping[str, Any] = field(default_factory=dict)
    carried_out: Sequence[int] = ()  # event_seq of the decisions that have taken effect
    # trial -> event_seq of the decision that replaces the trial's earlier decisions that were not carried out
    superseded: Mapping[int, int] = field(default_factory=dict)
    # the best values so far, by event_seq and objective; None: they follow from the reports alone
    best: Mapping[int, Mapping[str, float]] | None = None
    commands: Sequence[int] = ()  # ids of the command rows that this batch carries out
    deletes: Sequence[str] = ()  # ids of the checkpoints whose files are deleted next, unless a user has pinned them
