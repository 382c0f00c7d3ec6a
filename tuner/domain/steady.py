"""Measure how much time has passed between events, without the jumps of the clock that stamps them."""

from __future__ import annotations

import math


class SteadyTime:
    """Converts the times of events to times that no jump of the driver's clock changes, and that stand still during a suspend.

    Until the clock jumps, both are the same.
    """

    def __init__(self) -> None:
        self._ahead = 0.0  # how far all jumps together have moved the clock forward
        self._least = -math.inf  # the steady time at the newest jump

    def jumped(self, start: float, seconds: float) -> None:
        """Record that the clock has jumped by `seconds` when it showed `start`; see `tuner.domain.events.ClockJumped`."""
        self._least = self.at(start)
        self._ahead += seconds

    def continued(self, time: float, since: float) -> None:
        """Record that another driver takes over at `time`. Steady time continues from `since` even if the new clock is behind."""
        self._ahead = min(self._ahead, time - since)

    def at(self, time: float) -> float:
        """Return the steady time of an event. Call this when the event is applied, in the order of the log.

        An event from just before a jump may be applied after it. It counts as having happened at the jump.
        """
        return max(time - self._ahead, self._least)
