"""The effects of events, which a driver commits and then carries out."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuner.domain.batch import Entry
from tuner.driver.core.actions import Action


@dataclass(slots=True)
class Effects:
    """Collects the effects of events.

    log: log entries to commit.
    touched: trials whose rows change.
    best: the best values so far, keyed by the event_seq of the report that set them, then by objective. They are needed
        only if they do not follow from the metrics of the reports alone (`Leaderboard.tells_best`).
    actions: what to do after the commit.
    """

    log: list[Entry] = field(default_factory=list)
    touched: dict[int, None] = field(default_factory=dict)
    best: dict[int, dict[str, float]] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)

    def absorb(self, other: Effects) -> None:
        """Add the effects of a later event to these."""
        self.log += other.log
        self.touched |= other.touched
        self.best |= other.best
        self.actions += other.actions
