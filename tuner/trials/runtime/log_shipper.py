"""Send what a rank prints to the driver host while it trains, so that it can be read wherever the rank runs.

The log file is the buffer: once a second a thread checks the size of the file and sends what the driver does not have
yet. It never holds up training. If it falls behind, it skips what is between the head of the log and its newest
part. At the end, it sends as much of that as is kept. If the process dies first, the driver host reads the rest
from the file.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice

from tuner.domain.logs import LogChunk, LogLimit, Range, cut, merged, without

log = logging.getLogger(__name__)

PERIOD_S = 1.0
NEWEST_BYTES = 256 << 10
"""The most bytes that are sent at a time while the rank trains. They are the newest."""
_CHUNKS_AT_ONCE = 4
_ATTEMPTS = 3  # to send the rest at the end

Send = Callable[[str, Sequence[LogChunk]], None]
"""Deliver chunks of a segment's logs, and return once the driver has stored them."""


class LogShipper:
    """Sends the log of one rank in one segment, from `start` to `finish`."""

    def __init__(self, path: str, segment_id: str, rank: int, limit: LogLimit, send: Send) -> None:
        self._path, self._segment_id, self._rank = path, segment_id, rank
        self._limit, self._send = limit, send
        self._sent: list[Range] = []
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tuner-logs", daemon=True)

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def finish(self) -> None:
        """Tell the thread to send what is left and the mark of the end. Return at once."""
        self._finished.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until everything has been sent, or sending has failed."""
        self._thread.join(timeout)

    def _run(self) -> None:
        attempts = 0
        while True:
            finished = self._finished.wait(PERIOD_S)
            try:
                self._ship(finished)
            except Exception as error:  # the driver cannot be reached, for a moment or for good
                log.info("the log of %s could not be sent: %s", self._segment_id, error)
                attempts += finished
                if attempts < _ATTEMPTS:
                    time.sleep(PERIOD_S if finished else 0)
                    continue
            if finished:
                return

    def _ship(self, finished: bool) -> None:
        with open(self._path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            limit = self._limit
            if not finished:
                limit = LogLimit(limit.head, min(limit.tail, NEWEST_BYTES))

            def read(start: int, count: int) -> bytes:
                return os.pread(file.fileno(), count, start)

            missing = without(limit.kept(size), self._sent)
            chunks = cut(read, missing, limit.head, self._rank, time.time())
            while batch := list(islice(chunks, _CHUNKS_AT_ONCE)):
                self._send(self._segment_id, batch)
                self._sent = merged([*self._sent, *((chunk.start, chunk.end) for chunk in batch)])
        self._sent = without(self._sent, [(limit.head, size - self._limit.tail)])  # these are never needed again
        if finished:
            self._send(self._segment_id, [LogChunk.of(self._rank, size, b"", time.time())])
