"""The uploads of a rank's process, which may continue after the end of the segment that started them."""

from __future__ import annotations

import shutil
import threading
from collections import OrderedDict

from tuner.domain.segments import CheckpointInfo
from tuner.trials.checkpoints.saver import Saver
from tuner.trials.checkpoints.staging import spool

LATE_AFTER_S = 0.1
"""Seconds that a segment always waits for its uploads when it ends, since most of them are quick."""
MOST = 4
"""The maximum number of checkpoints that may still be uploading when a segment ends. If there are more, the segment waits."""
LAST_SAVE_S = 600.0
"""Seconds that a failed segment waits for checkpoints that are still being saved."""
LATE_RANK_S = 2.0
"""Seconds that a failed segment waits for a rank that has not made the report to which a checkpoint belongs.

The rank may never make it, since it waits for the one that has failed.
"""
FREE = 0.1
"""The fraction of the spool's disk that must be free; if less is free, the segment waits for its uploads."""
_KNOWN = 20_000  # the number of begun segments to remember; no upload continues for that many segments
_REMEMBERED = 64  # savers without uploads that are kept, since rank 0 may still ask for this rank's parts


class Uploads:
    """Keeps the savers of this process's segments, by segment id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._savers: OrderedDict[str, Saver] = OrderedDict()
        self._begun: OrderedDict[str, None] = OrderedDict()

    def begin(self, segment_id: str, saver: Saver) -> None:
        """Add the saver of a new segment, and forget the savers of old segments."""
        with self._lock:
            self._begun[segment_id] = None
            while len(self._begun) > _KNOWN:
                self._begun.popitem(last=False)
            self._savers[segment_id] = saver
            done = [name for name, old in self._savers.items() if not old.unsaved]
            for name in done[: max(0, len(done) - _REMEMBERED)]:
                del self._savers[name]

    def has_begun(self, segment_id: str) -> bool:
        """Return whether this process is running the segment, or has run it."""
        return segment_id in self._begun

    def saver(self, segment_id: str) -> Saver | None:
        """Return the saver of a segment, or None if it is no longer known."""
        with self._lock:
            return self._savers.get(segment_id)

    def leave(self, saver: Saver, may_continue: bool = True) -> list[CheckpointInfo]:
        """End a saver's segment. On rank 0, return the checkpoints whose upload continues; see `Saver.leave`.

        may_continue: whether uploads would still work after the segment. If not, the segment waits for them.
        """
        return saver.leave(LATE_AFTER_S if self._may_continue(saver, may_continue) else None)

    def leave_failed(self, saver: Saver, may_continue: bool = True) -> list[CheckpointInfo]:
        """Do the same as `leave` for a segment that has failed, but wait only for a limited time for checkpoints."""
        if self._may_continue(saver, may_continue):
            return saver.leave(LATE_AFTER_S)
        saver.drain(LAST_SAVE_S, LATE_RANK_S)
        return []

    def _may_continue(self, saver: Saver, may_continue: bool) -> bool:
        return may_continue and saver.uploads and self._has_room()

    def _has_room(self) -> bool:
        with self._lock:
            count = sum(saver.unsaved for saver in self._savers.values())
        disk = shutil.disk_usage(spool())
        return count <= MOST and disk.free >= FREE * disk.total
