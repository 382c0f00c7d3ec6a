"""Decide how long to hold back a report that nobody is waiting for, so that it can share a commit with others.

A commit costs the driver half a millisecond of CPU, however little it writes. If few reports arrive, each is committed
at once, which delays nobody. If many arrive, thousands of small commits would take most of a core.
"""

from __future__ import annotations

GATHER_S = 0.01
"""The minimum time between two commits, in seconds, while many events arrive and nobody is waiting for the next commit."""

MANY = 500
"""Events are gathered if at least this many arrive per second."""

FEW = 3
"""The minimum number of events that must arrive during a pause.

If fewer arrive, there are no more pauses until the rate has been measured again. Pauses would only slow down, for example, a
single trial that waits for each of its reports to be committed.
"""

_WINDOW_S = 0.5  # the rate is measured over windows of this many seconds


class Gathering:
    """Measures the rate of events, and says when the next commit may begin. The times are those of a monotonic clock."""

    def __init__(self) -> None:
        self._committed_at = float("-inf")
        self._window_began = float("-inf")
        self._events = 0
        self._many = False

    def committing(self, events: int, now: float) -> None:
        """Record that a commit of this many events is starting."""
        self._committed_at = now
        self._events += events
        if (took := now - self._window_began) >= _WINDOW_S:
            self._many = self._events >= MANY * took
            self._window_began, self._events = now, 0

    def paused(self, came: int) -> None:
        """Record how many events arrived during a pause."""
        if came < FEW:
            self._many = False

    def pause_s(self, now: float) -> float:
        """Return how many seconds to hold back an event that nobody is waiting for; 0 to commit it at once."""
        return max(0.0, self._committed_at + GATHER_S - now) if self._many else 0.0
