"""Notice if this whole process stands still, as after SIGSTOP or `docker pause`."""

from __future__ import annotations

import threading
import time
from time import process_time
from typing import NamedTuple

BEAT_S = 0.1
"""Seconds between two beats."""

STILL_S = 5.0
"""The process stood still if no beat came for this many seconds, which a busy machine hardly ever causes."""

BUSY = 0.02
"""The process did not stand still if it used more CPU time between two beats than this part of the time, and `BEFORE_S`."""

BEFORE_S = 2 * BEAT_S
"""The CPU time, in seconds, that a process may use between the last beat before a stop and the stop; it may use several CPUs."""


class _Beat(NamedTuple):
    time: float  # of the monotonic clock
    cpu_s: float


class Pulse:
    """A thread that notes the time at short intervals, for all experiments of this process.

    It runs even while an event loop waits for a disk or a database in a blocking call, which is thus not taken for a stop.
    The beats are so close that what the process has computed before a stop, for any of its experiments, hides no stop.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._beat = _Beat(time.monotonic(), cpu_s())  # the newest beat
        self._gap = (0.0, 0.0)  # when the newest gap of at least STILL_S began and ended

    def start(self) -> None:
        """Start the thread, if it does not run yet. Each call needs a call of `end`."""
        with self._lock:
            self._users += 1
            if self._thread is None or not self._thread.is_alive():  # a forked process has no living one
                self._over.clear()
                self._beat = _Beat(time.monotonic(), cpu_s())
                self._thread = threading.Thread(target=self._run, name="tuner-pulse", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Let the thread end, once nobody else has started it."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            self._over.set()
            if self._thread is not None:
                self._thread.join()  # at once, since it waits for the event

    def still_s(self, since: float) -> float:
        """Return for how many seconds the process stood still since this time of the monotonic clock; 0 for less than STILL_S."""
        open_gap = self._gap_after(self._beat)  # read before `_gap`, into which the thread may turn it at any time
        found = max(end - max(start, since) for start, end in (open_gap, self._gap))
        return found if found >= STILL_S else 0.0

    def _gap_after(self, beat: _Beat) -> tuple[float, float]:
        """Return from when until when the process stood still between a beat and now; an empty time if it did not."""
        now = time.monotonic()
        passed = now - beat.time
        is_still = passed >= STILL_S and cpu_s() - beat.cpu_s < BEFORE_S + BUSY * passed
        return (beat.time, now) if is_still else (now, now)

    def _run(self) -> None:
        while not self._over.wait(BEAT_S):
            gap = self._gap_after(self._beat)
            if gap[0] < gap[1]:
                self._gap = gap
            self._beat = _Beat(gap[1], cpu_s())


def cpu_s() -> float:
    """Return the CPU time that this process has used."""
    return process_time()


PULSE = Pulse()
"""The pulse of this process."""
