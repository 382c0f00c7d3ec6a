"""Measure how much time has passed between events, without the jumps of the clock that stamps them."""

from __future__ import annotations

import math

from tuner.domain.events import ClockJumped, DriverStarted, Event


class SteadyTime:
    """Converts the times of events to times that no jump of the driver's clock changes, and that stand still during a suspend.

    Until the clock jumps, both are the same.
    """

    def __init__(self) -> None:
        self._ahead = 0.0  # how far all jumps together have moved the clock forward
        self._least = -math.inf  # the steady time at the newest jump

    def take(self, event: Event, since: float) -> float:
        """Apply an event, in the order of the log, and return its steady time.

        After a takeover by another driver, steady time continues from `since` even if the new driver's clock is behind.

        since: the steady time of the log before; 0 if there is none.
        """
        if isinstance(event, ClockJumped):
            self._least = self.at(event.start)
            self._ahead += event.seconds
        elif isinstance(event, DriverStarted) and since:
            self._ahead = min(self._ahead, event.time - since)
        return self.at(event.time)

    def at(self, time: float) -> float:
        """Return the steady time of an event. Call this when the event is applied, in the order of the log.

        An event from just before a jump may be applied after it. It counts as having happened at the jump.
        """
        return max(time - self._ahead, self._least)
