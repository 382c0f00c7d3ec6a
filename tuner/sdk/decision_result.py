"""A decision of a search, in a `Result`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tuner.sdk.live import notebook


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionResult:
    """A decision of the scheduler, of a user or of tuner itself."""

    seq: int  # the position in the log
    time: float  # seconds since the epoch
    kind: str  # start, stop, pause, resume, exploit, note, ...
    trial: int | None  # the number of the trial that it is about; None if it is about the whole search
    reason: str  # in words
    payload: Mapping[str, Any] = field(repr=False)  # details, which depend on the kind
    COLUMNS: ClassVar[notebook.Columns] = (("seq", True), ("trial", True), ("kind", False), ("reason", False))

    def cells(self) -> tuple[object, ...]:
        """Return the cells of the decision's row in a notebook's table."""
        return (self.seq, "" if self.trial is None else self.trial, self.kind, self.reason)
