"""Send a rank's log to the driver host while the rank trains, so that users can read it no matter which node it is on.

The log file serves as the buffer: once a second, a thread checks the file's size and sends the new part. The thread
never delays training. If it falls behind, it skips the part between the head of the log and the newest part. When the
segment ends, it sends the skipped part too, as far as the limit on the log's size allows. If the rank's process dies
first, the driver host reads the missing parts from the file.

A process has one such thread for all its segments, because short segments follow each other within milliseconds. If
little of a log is still unsent when the segment ends, that part is sent to the driver with the rank's result.
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
"""The maximum number of new bytes to send at a time while the rank trains. If there are more, the newest are sent."""
REST_BYTES = 16 << 10
"""The rest of a log is sent with the rank's result if it is at most this many bytes long."""
_CHUNKS_AT_ONCE = 4
_ATTEMPTS = 3  # attempts to send the remaining parts of a log when the segment has ended

Send = Callable[[str, Sequence[LogChunk]], None]
"""Sends chunks of a segment's log to the driver, and returns once the driver has stored them."""


class LogShipper:
    """Sends the log of one rank in one segment, from the call to `start` until the call to `finish` or `rest`."""

    def __init__(self, path: str, segment_id: str, rank: int, limit: LogLimit, send: Send) -> None:
        self._path, self._segment_id, self._rank = path, segment_id, rank
        self._limit, self._send = limit, send
        self._note = b""  # is sent after the file
        self._sent: list[Range] = []
        self._sending = threading.Lock()
        self._finished = False
        self._attempts = 0  # how many times sending the remaining parts has failed
        self._done = threading.Event()

    def start(self) -> None:
        """Start sending the log in the background."""
        _thread.add(self)

    def lack(self) -> None:
        """Take the log for empty, since there is no file: the disk was too full for one. Call this before `start`."""
        self._path = os.devnull

    def note(self, text: bytes) -> None:
        """Send this text after the log, since the file has no room for it. Call this before `finish` or `rest`."""
        self._note = text

    def finish(self) -> None:
        """Let the background thread send the remaining parts of the log and the end mark. Return at once."""
        self._finished = True
        _thread.hurry()

    def rest(self) -> list[LogChunk]:
        """Return the chunks of the log that are still unsent and the end mark, for the caller to send.

        If the unsent part is long, or if the background thread is sending at the moment, return an empty list, and let
        the thread send it, as `finish` does.
        """
        chunks: list[LogChunk] = []
        if self._sending.acquire(blocking=False):
            try:
                chunks = self._short_rest()
            except OSError as error:
                log.info("the log of %s cannot be read: %s", self._segment_id, error)
            finally:
                self._sending.release()
        if chunks:
            self._done.set()
        else:
            self.finish()
        return chunks

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the whole log has been sent, or sending it has failed. Return False if `timeout` expires first."""
        return self._done.wait(timeout)

    def tick(self) -> bool:
        """Send the new part of the log. Return whether it was the last part."""
        with self._sending:
            if self._done.is_set():
                return True
            finished = self._finished
            try:
                self._ship(finished)
            except Exception as error:  # the driver cannot be reached, temporarily or permanently
                log.info("the log of %s could not be sent: %s", self._segment_id, error)
                self._attempts += finished
                if self._attempts < _ATTEMPTS:
                    return False
            if finished:
                self._done.set()
            return finished

    def _content(self, file: int) -> tuple[int, Callable[[int, int], bytes]]:
        """Return the size of the log with the note, and a function that reads `count` bytes from `start`."""
        written, note = os.fstat(file).st_size, self._note

        def read(start: int, count: int) -> bytes:
            found = os.pread(file, min(count, max(written - start, 0)), start)
            return found + note[max(start - written, 0) : max(start + count - written, 0)]

        return written + len(note), read

    def _short_rest(self) -> list[LogChunk]:
        """Return the unsent chunks of the log and the end mark, or an empty list if the unsent part is too long."""
        now = time.time()
        with open(self._path, "rb") as file:
            size, read = self._content(file.fileno())
            missing = without(self._limit.kept(size), self._sent) if size else []
            if sum(end - start for start, end in missing) > REST_BYTES:
                return []
            chunks = list(cut(read, missing, self._limit.head, self._rank, now))
        return [*chunks, LogChunk.of(self._rank, size, b"", now)]

    def _ship(self, finished: bool) -> None:
        with open(self._path, "rb") as file:
            size, read = self._content(file.fileno())
            limit = self._limit
            if not finished:
                limit = LogLimit(limit.head, min(limit.tail, NEWEST_BYTES))
            missing = without(limit.kept(size), self._sent)
            chunks = cut(read, missing, limit.head, self._rank, time.time())
            while batch := list(islice(chunks, _CHUNKS_AT_ONCE)):
                self._send(self._segment_id, batch)
                self._sent = merged([*self._sent, *((chunk.start, chunk.end) for chunk in batch)])
        self._sent = without(self._sent, [(limit.head, size - self._limit.tail)])  # the skipped part
        if finished:
            self._send(self._segment_id, [LogChunk.of(self._rank, size, b"", time.time())])


class _Thread:
    """The thread that calls this process's log shippers once a second, and at once if one has to finish its log."""

    def __init__(self) -> None:
        self._shippers: list[LogShipper] = []
        self._news = threading.Condition()
        self._hurried = self._begun = False

    def add(self, shipper: LogShipper) -> None:
        with self._news:
            self._shippers.append(shipper)
            if not self._begun:
                threading.Thread(target=self._run, name="tuner-logs", daemon=True).start()
                self._begun = True
            if len(self._shippers) == 1:
                self._news.notify()

    def hurry(self) -> None:
        with self._news:
            self._hurried = True
            self._news.notify()

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._shippers)
                self._news.wait_for(lambda: self._hurried, PERIOD_S)
                self._hurried = False
                shippers = list(self._shippers)
            done = [shipper for shipper in shippers if shipper.tick()]
            with self._news:
                self._shippers = [shipper for shipper in self._shippers if shipper not in done]


_thread = _Thread()
