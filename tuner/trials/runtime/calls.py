"""Run the driver's calls to a rank one after another in one thread, whether they come through Ray or over a direct line.

One dedicated thread runs all calls, so that thread-local state, such as the current GPU, carries over from call to call.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tuner.trials.messages.channel import Link, PeerLost
from tuner.trials.messages.report_socket import CALL_LINE, Address
from tuner.trials.runtime.errors import as_text

log = logging.getLogger(__name__)

SERIAL = ("prepare", "train", "reset")
"""The methods of a rank whose calls run one after another."""

_CONNECT_S = 5.0
_REMEMBERED = 8  # answers that are kept, in case the line breaks before they have arrived


class Calls:
    """The calls to a rank's methods, which the driver numbers from 0, and which run in this order.

    call: a function that calls a method, given its name and arguments.
    """

    def __init__(self, call: Callable[[str, tuple[Any, ...]], Any]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[str, tuple[Any, ...]]] = {}
        self._answers: dict[int, Future[Any]] = {}
        self._by_line: set[int] = set()  # the waiting calls whose answers are sent over the line
        self._next = 0  # the number of the call to run next
        self._received = -1  # the number of the last call that came over the line
        self._line: Link | None = None
        self._closed = False
        self._woken, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        threading.Thread(target=self._serve, name="tuner-calls", daemon=True).start()

    def open_line(self, address: Address, rank: bytes) -> None:
        """Connect to the driver, so that calls can come over this line. Without a connection, all calls come through Ray."""
        try:
            connection = socket.create_connection((address.host, address.port), timeout=_CONNECT_S)
            connection.sendall(address.token + CALL_LINE + rank)
        except OSError as error:
            log.info("cannot connect to the driver, which will call through Ray: %s", error)
            return
        self._line = Link(connection)
        self._poll.register(connection, select.POLLIN)
        self._wake()

    def make(self, number: int, method: str, arguments: tuple[Any, ...]) -> Any:
        """Run a call after all calls with lower numbers, and return its value. A call that is repeated runs only once."""
        with self._lock:
            if number < self._next and number not in self._answers:
                raise LookupError(f"the answer to call {number} is no longer kept")
            if number not in self._answers:
                self._waiting[number] = method, arguments
            answer = self._answer(number)
        self._wake()
        return answer.result()

    def last_received(self) -> int:
        """Close the line. Return the number of the last call that came over it, or -1 if none did."""
        with self._lock:
            self._closed = True
            if self._line is not None:
                self._line.close()
            return self._received

    def answer_to(self, number: int) -> Any:
        """Return the value of a call that came over the line, once the call has run."""
        with self._lock:
            answer = self._answer(number)
        return answer.result()

    def _answer(self, number: int) -> Future[Any]:
        return self._answers.setdefault(number, Future())

    def _wake(self) -> None:
        os.write(self._wakeup, b"w")

    def _serve(self) -> None:
        while True:
            number, method, arguments, by_line = self._take()
            answer = self._answers[number]
            try:
                value = self._call(method, arguments)
            except BaseException as error:
                answer.set_exception(error)
                told: tuple[int, bool, Any] = number, False, as_text(error)
            else:
                answer.set_result(value)
                told = number, True, value
            if by_line:
                self._tell(told)
            with self._lock:
                self._next += 1
                self._answers.pop(number - _REMEMBERED, None)

    def _tell(self, told: tuple[int, bool, Any]) -> None:
        assert self._line is not None
        try:
            self._line.send(told)
        except PeerLost:
            pass  # the driver will ask for the answer through Ray
        except Exception:  # the answer cannot be pickled
            log.exception("the answer to call %s cannot be sent", told[0])
            self._line.close()

    def _take(self) -> tuple[int, str, tuple[Any, ...], bool]:
        """Wait for the next call, and return its number, its method, its arguments, and whether it came over the line."""
        while True:
            with self._lock:
                number = self._next
                if number in self._waiting:
                    method, arguments = self._waiting.pop(number)
                    by_line = number in self._by_line
                    self._by_line.discard(number)
                    return number, method, arguments, by_line
            for descriptor, _ in self._poll.poll():
                if descriptor == self._woken:
                    os.read(self._woken, 4096)
                else:
                    self._read(descriptor)

    def _read(self, descriptor: int) -> None:
        assert self._line is not None
        try:
            number, method, arguments = self._line.receive()
        except PeerLost:
            self._poll.unregister(descriptor)
            return
        except Exception:  # the arguments cannot be unpickled; the driver will send this call again through Ray
            log.exception("a call from the driver cannot be read")
            self._poll.unregister(descriptor)
            self._line.close()
            return
        with self._lock:
            if self._closed:  # the driver has been told that this call has not arrived, and will send it again
                return
            self._answer(number)
            self._waiting[number] = method, arguments
            self._by_line.add(number)
            self._received = number
