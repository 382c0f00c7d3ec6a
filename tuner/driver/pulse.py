"""Notice if this whole process stands still, as after SIGSTOP or `docker pause`."""

from __future__ import annotations

import threading
import time

BEAT_S = 1.0
"""Seconds between two beats."""

STILL_S = 5.0
"""The process stood still if no beat came for this many seconds, which a busy machine hardly ever causes."""


class Pulse:
    """A thread that notes the time at short intervals.

    It runs even while an event loop waits for a disk or a database in a blocking call, which is thus not taken for a stop.
    """

    def __init__(self) -> None:
        self._over = threading.Event()
        self._beat = time.monotonic()  # when the newest beat came
        self._gap = (0.0, 0.0)  # when the newest gap of at least STILL_S began and ended

    def start(self) -> None:
        """Start the thread."""
        self._beat = time.monotonic()
        threading.Thread(target=self._run, name="tuner-pulse", daemon=True).start()

    def end(self) -> None:
        """Let the thread end."""
        self._over.set()

    def still_s(self, since: float) -> float:
        """Return for how many seconds the process stood still since this time of the monotonic clock; 0 for less than STILL_S."""
        open_gap = (self._beat, time.monotonic())  # read before `_gap`, into which the thread may turn it at any time
        found = max(end - max(start, since) for start, end in (open_gap, self._gap))
        return found if found >= STILL_S else 0.0

    def _run(self) -> None:
        while not self._over.wait(BEAT_S):
            now = time.monotonic()
            if now - self._beat >= STILL_S:
                self._gap = (self._beat, now)
            self._beat = now
