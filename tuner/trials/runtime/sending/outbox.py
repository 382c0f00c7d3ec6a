"""The queue of rank 0's reports, which are sent to the driver in batches, and kept until the driver has committed them."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Protocol

from tuner.domain.segments import Report, Verdict
from tuner.errors import ReportsLost, Retryable
from tuner.trials.messages.launch import Resend

_BATCHING_S = 0.2  # seconds between batches, so that pages show live reports; costs rank 0 one percent of a core
_PATIENCE_S = 120.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0

_PASSING = (Retryable, ConnectionError, TimeoutError)
"""Errors after which the same reports are sent again, because a retry may succeed."""


class Sender(Protocol):
    def send(self, messages: list[Report]) -> Verdict | Resend | None:
        """Send a batch of reports to the driver, and return the driver's answer; see `launch.Driver.report`."""


class Outbox:
    """The queue of one segment's reports, in order.

    A report stays in the queue until the driver has acknowledged it. If sending fails, all reports in the queue are
    sent again in order, for up to `patience_s` seconds. If that fails too, or if the error is permanent, all methods
    raise ReportsLost from then on.
    """

    def __init__(self, sender: Sender, batching_s: float = _BATCHING_S, patience_s: float = _PATIENCE_S) -> None:
        self._sender = sender
        self._batching_s, self._patience_s = batching_s, patience_s
        self._messages: list[Report] = []  # the reports that are not acknowledged yet
        self._sending = threading.Lock()  # one batch at a time
        self._news = threading.Condition()
        self._acknowledged = 0  # the newest report_no that the driver has
        self._wanted = 0  # the newest report_no that a caller of `wait_for` waits for
        self._hurry = threading.Event()  # set to send at once instead of at the end of the interval
        self._closed = self._ended = False
        self._thread: threading.Thread | None = None
        self._error: ReportsLost | None = None
        self.answered_at = time.monotonic()  # when the driver last acknowledged reports

    @property
    def waits(self) -> bool:
        """Return whether reports are being sent that the driver has not committed yet."""
        return self._sending.locked() and bool(self._messages)

    def put(self, message: Report) -> None:
        """Add a report to the queue and return at once. The report is sent with the next batch."""
        if self._error is not None:
            raise self._error
        self._messages.append(message)
        if self._thread is None:
            thread = threading.Thread(target=self._send_regularly, name="tuner-outbox", daemon=True)
            thread.start()
            self._thread = thread  # set after the start, since a thread that failed to start cannot be joined
        if message.report_no <= self._wanted:
            self._hurry.set()

    def ask(self, message: Report) -> Verdict:
        """Send all reports up to this one, wait for the driver's verdict on it, and return the verdict."""
        with self._sending:  # hold the lock, or the thread might send the report and drop the verdict
            self._messages.append(message)
            answer = self._deliver()
        return answer if answer is not None else Verdict(action="stop", reason="the driver no longer knows this run")

    def wait_for(self, report_no: int) -> None:
        """Wait until the driver has committed this report and all earlier ones. Raise ReportsLost if sending fails."""
        with self._news:
            self._wanted = max(self._wanted, report_no)
            self._hurry.set()
            self._news.wait_for(lambda: self._acknowledged >= report_no or self._error is not None or self._ended)
            if self._acknowledged < report_no:
                raise self._error or ReportsLost(f"report {report_no} was never made")

    def flush(self) -> None:
        """Send the reports that are in the queue now. Return once the driver has committed them."""
        with self._sending:
            self._deliver()

    def close(self) -> None:
        """Send the remaining reports, and stop the thread. Return once the driver has committed the reports."""
        self._closed = True
        self._hurry.set()
        try:
            if self._thread is not None:
                self._thread.join()
            self.flush()
        finally:
            with self._news:
                self._ended = True
                self._news.notify_all()

    def _send_regularly(self) -> None:
        while not self._closed and self._error is None:
            self._hurry.wait(self._batching_s)
            self._hurry.clear()
            with self._sending:
                try:
                    self._deliver()
                except ReportsLost:
                    return  # the error is in `_error`; the training thread raises it

    def _deliver(self) -> Verdict | None:
        """Send the reports in the queue, and return the driver's answer. The caller must hold the lock `_sending`."""
        if self._error is not None:
            raise self._error
        if not self._messages:
            return None
        last = self._messages[-1].report_no  # the training thread may append more in the meantime
        try:
            answer = self._send_until_answered(last)
        except Exception as error:
            lost = _lost(self._messages, error)
            with self._news:
                self._error = lost
                self._news.notify_all()
            raise lost from error
        with self._news:
            self.answered_at = time.monotonic()
            self._acknowledged = last
            del self._messages[: sum(message.report_no <= last for message in self._messages)]
            self._news.notify_all()
        return answer

    def _send_until_answered(self, last: int) -> Verdict | None:
        after, deadline, pause = 0, time.monotonic() + self._patience_s, _FIRST_PAUSE_S
        while True:
            batch = [message for message in self._messages if after < message.report_no <= last]
            now = time.monotonic()
            try:
                answer = self._sender.send([dataclasses.replace(m, age=max(0.0, now - m.time)) for m in batch])
            except _PASSING:
                if time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
                continue
            if not isinstance(answer, Resend):
                return answer
            numbers = [message.report_no for message in self._messages]
            if answer.after + 1 not in numbers or answer.after + 1 == batch[0].report_no:
                raise LookupError(f"the driver asks for report {answer.after + 1}, which this rank no longer has")
            after = answer.after


def _lost(messages: list[Report], error: Exception) -> ReportsLost:
    first, last = messages[0].report_no, messages[-1].report_no
    which = f"report {first}" if first == last else f"reports {first} to {last}"
    return ReportsLost(f"{which} did not reach the driver: {type(error).__name__}: {error}")
