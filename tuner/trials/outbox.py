"""Rank 0's reports on their way to the driver: buffered, sent in batches from a thread of their own."""

from __future__ import annotations

import threading
from typing import Protocol

from tuner.trials.launch import ReportMsg, Verdict

_BATCHING_S = 0.2  # a page follows live, and sending costs rank 0 a percent of a core


class Sender(Protocol):
    def send(self, messages: list[ReportMsg]) -> Verdict | None:
        """Deliver and wait for the answer."""


class Outbox:
    def __init__(self, sender: Sender, batching_s: float = _BATCHING_S) -> None:
        self._sender = sender
        self._batching_s = batching_s
        self._buffer: list[ReportMsg] = []
        self._sending = threading.Lock()  # keeps batches in order
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def put(self, message: ReportMsg) -> None:
        if self._error is not None:
            raise self._error
        self._buffer.append(message)
        if self._thread is None:
            thread = threading.Thread(target=self._flush_regularly, name="tuner-outbox", daemon=True)
            thread.start()
            self._thread = thread  # only now: one that could not be started cannot be waited for either

    def ask(self, message: ReportMsg) -> Verdict:
        self._buffer.append(message)
        answer = self._flush()
        return answer if answer is not None else Verdict(action="stop", reason="the driver no longer knows this run")

    def close(self) -> None:
        """Send what is left."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self._flush()

    def _flush_regularly(self) -> None:
        while not self._closed.wait(self._batching_s):
            try:
                self._flush()
            except BaseException as error:
                self._error = error
                return

    def _flush(self) -> Verdict | None:
        with self._sending:
            if not self._buffer:
                return None
            # Appends of the training thread may come in between: take exactly as many as were seen.
            count = len(self._buffer)
            batch = self._buffer[:count]
            del self._buffer[:count]
            return self._sender.send(batch)
