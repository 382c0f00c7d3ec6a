"""Sockets over which ranks send reports and logs to the driver.

A call to an async Ray actor costs the driver almost a millisecond of CPU time. A message over these sockets costs a
tenth of that.

A message carries the arguments of `launch.Driver.report` or `launch.Driver.take_logs`, and may be repeated. If a
connection fails, or if the network lets only Ray's traffic through, this message and all later ones are sent by calling
the driver's actor. Logs have separate connections, so that reports never wait for logs.

In the local executor, the driver is not an actor. There, ranks send all other requests over a third connection
(`SocketDriver`).

A rank on another machine has one more connection, by which the driver notices that the machine cannot be reached
(`tuner.trials.messages.lifeline`). A rank on Ray has one over which the driver calls it (`tuner.trials.messages.call_lines`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import hmac
import logging
import operator
import pickle
import secrets
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from tuner.domain.logs import LogChunk
from tuner.domain.segments import Report, Verdict
from tuner.errors import DriverSilent
from tuner.trials.messages.call_lines import CallLine, CallLines
from tuner.trials.messages.channel import Link, PeerLost
from tuner.trials.messages.keepalive import SILENT_S, is_cut, keep_alive
from tuner.trials.messages.launch import Resend

log = logging.getLogger(__name__)

_HEADER = struct.Struct("!I")
_GREETING_S = 10.0
_CONNECT_S = 5.0
_PATIENCE_S = 120.0
_PAUSE_S = 0.2

Answer = Verdict | Resend | None
Take = Callable[[str, list[Report]], Awaitable[Answer]]
TakeLogs = Callable[[str, Sequence[LogChunk]], Awaitable[None]]
TakeCall = Callable[[str, Sequence[Any]], Awaitable[Any]]
TakeCut = Callable[[bytes, str, bool], None]
LIFELINE, CALL_LINE = b"W", b"M"
_REPORTS, _LOGS, _CALLS = b"R", b"L", b"C"  # the byte after the token: what the connection is for


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    token: bytes = field(repr=False)  # a secret that every connection must send first


class ReportServer:
    """The driver's end of the sockets. It runs in the driver's event loop.

    Args:
        take: called with each batch of reports; returns the answer.
        take_logs: called with chunks of logs; returns once they are stored.
        take_call: called with the name and the arguments of each other request; returns the answer.
        take_cut: called with the token of a rank's process, a reason in words, and True if the rank's machine can no
            longer be reached, or False if the rank cannot reach another rank's machine.
        lines: takes the connections over which the driver calls ranks.
    """

    def __init__(
        self,
        take: Take,
        take_logs: TakeLogs | None = None,
        take_call: TakeCall | None = None,
        take_cut: TakeCut | None = None,
        lines: CallLines | None = None,
    ) -> None:
        self._take, self._take_logs, self._take_call, self._take_cut = take, take_logs, take_call, take_cut
        self._lines = lines
        self._token = secrets.token_bytes(16)
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._serving: set[asyncio.Task[None]] = set()  # a report is processed even if its connection has broken

    async def open(self, ip: str) -> Address:
        """Listen on a free port of this IP address. Return the address to which ranks connect.

        Raise OSError if this machine does not have the address, or cannot connect to it, as without a loopback interface.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), ip, 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), _CONNECT_S)
        except OSError:
            await self.close()
            raise
        writer.close()
        return Address(host, port, self._token)

    async def close(self) -> None:
        """Stop listening, and close all connections. A rank that gets no answer sends its batch of reports again."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _greeted(self, greeting: bytes) -> bool:
        """Return whether this greeting is the secret of this server."""
        return hmac.compare_digest(greeting, self._token)

    async def _answer(self, segment_id: str, reports: list[Report]) -> tuple[bool, tuple[Any, ...] | int | None]:
        """Return (True, the parts of the answer to a batch of reports), or (False, None) after an error.

        After an error, the rank sends the batch again by calling the actor, which raises the same error in the rank.
        """
        try:
            verdict = await self._take(segment_id, reports)
        except Exception:
            return False, None
        if verdict is None:
            return True, None
        if isinstance(verdict, Resend):
            return True, verdict.after
        return True, _parts_of_verdict(verdict)

    async def _called(self, question: str, arguments: Sequence[Any]) -> bytes:
        """Carry out a request other than reports and logs. Return the pickle of (True, answer) or (False, error)."""
        try:
            if self._take_call is None:
                raise NotImplementedError(f"this driver does not accept {question} over a socket")
            answer: tuple[bool, Any] = True, await self._take_call(question, arguments)
        except Exception as error:
            answer = False, error
        try:
            return pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception:
            return pickle.dumps((False, RuntimeError(f"{type(answer[1]).__name__}: {answer[1]}")))

    async def _store(self, segment_id: str, chunks: Sequence[LogChunk]) -> bool:
        """Store chunks of a log. Return whether they are stored."""
        if self._take_logs is None:
            return False
        try:
            await self._take_logs(segment_id, chunks)
        except Exception:
            return False
        return True


class _Connection(asyncio.Protocol):
    """The server's end of one connection.

    It parses messages as they arrive. With asyncio's streams, each message would take two more iterations of the event loop.
    """

    def __init__(self, server: ReportServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._purpose = b""  # what the connection is for; empty until that is known
        self._rank = b""  # the token of the rank's process, if the connection belongs to one
        self._line: CallLine | None = None
        self._waiting: deque[bytes] = deque()
        self._serving: asyncio.Task[None] | None = None
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class has the same methods, but another base
        self._server._connections.add(self)
        self._late = asyncio.get_running_loop().call_later(_GREETING_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if self._late is not None and not self._is_greeted():
            return
        while len(received) >= _HEADER.size:
            end = _HEADER.size + _HEADER.unpack_from(received)[0]
            if len(received) < end:
                return
            body = bytes(received[_HEADER.size : end])
            del received[:end]
            self._take(body)

    def connection_lost(self, error: Exception | None) -> None:
        if self._late is not None:
            self._late.cancel()
        self._server._connections.discard(self)
        if self._line is not None:
            self._line.end()
        if self._purpose == LIFELINE and error is not None and is_cut(error) and self._server._take_cut is not None:
            self._server._take_cut(self._rank, f"its node has not answered for {SILENT_S} s", True)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _is_greeted(self) -> bool:
        """Return whether the whole greeting has arrived, and consume it. Close the connection if the greeting is wrong."""
        assert self._transport is not None
        assert self._late is not None
        secret = len(self._server._token)
        greeting = bytes(self._received[: secret + 1])
        if len(greeting) <= secret:
            return False
        if not self._server._greeted(greeting[:secret]):
            self._transport.close()
            return False
        begin = secret + 1
        purpose = greeting[secret:]
        if purpose in (LIFELINE, CALL_LINE):
            begin += secret
            if len(self._received) < begin:
                return False
            self._rank = bytes(self._received[secret + 1 : begin])
            keep_alive(self._transport.get_extra_info("socket"))
        if purpose == CALL_LINE and self._server._lines is None:
            self._transport.close()
            return False
        del self._received[:begin]
        self._late.cancel()
        self._late, self._purpose = None, purpose
        if purpose == CALL_LINE and self._server._lines is not None:
            self._line = self._server._lines.connected(self._rank, self._transport)
        return True

    def _take(self, body: bytes) -> None:
        if self._line is not None:
            self._line.received(body)
        elif self._purpose == LIFELINE:
            if self._server._take_cut is not None:
                self._server._take_cut(self._rank, str(pickle.loads(body)), False)
        else:
            self._waiting.append(body)
            if self._serving is None:
                self._serving = asyncio.get_running_loop().create_task(self._serve())
                self._server._serving.add(self._serving)
                self._serving.add_done_callback(self._server._serving.discard)

    async def _serve(self) -> None:
        """Answer the messages that have arrived, one after another."""
        assert self._transport is not None
        try:
            while self._waiting:
                segment_id, packed = pickle.loads(self._waiting.popleft())
                if self._purpose == _CALLS:
                    body = await self._server._called(segment_id, packed)
                elif self._purpose == _LOGS:
                    stored = await self._server._store(segment_id, [LogChunk(*parts) for parts in packed])
                    body = pickle.dumps(stored, protocol=pickle.HIGHEST_PROTOCOL)
                else:
                    answer = await self._server._answer(segment_id, [_report(*parts) for parts in packed])
                    body = pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)
                if not self._transport.is_closing():  # the rank may have ended; uvloop raises an error then
                    self._transport.write(_HEADER.pack(len(body)) + body)
        except asyncio.CancelledError:  # the server is closing
            pass
        except Exception:
            log.exception("cannot answer a message from a rank")
            self._transport.abort()
        finally:
            self._serving = None


class _DriverConnection:
    """A connection to the driver, which is opened when it is first needed. After a failure, it is not reopened."""

    def __init__(self, address: Address | None, purpose: bytes) -> None:
        self._address, self._purpose = address, purpose
        self._link: Link | None = None

    def _request(self, message: Any) -> Any:
        """Send a message and return its answer, or None if there is no connection."""
        if (link := self._connected()) is None:
            return None
        try:
            link.send(message)
            return link.receive()
        except PeerLost as error:
            log.info("lost the connection to the driver, continuing through Ray: %s", error)
            self.close()
            return None

    def close(self) -> None:
        """Close the connection, so that everything is sent through Ray from now on."""
        self._address = None
        if self._link is not None:
            self._link.close()
            self._link = None

    def _connected(self) -> Link | None:
        if self._link is None and (to := self._address) is not None:
            try:
                connection = socket.create_connection((to.host, to.port), timeout=_CONNECT_S)
                connection.sendall(to.token + self._purpose)
                self._link = Link(connection, large_messages=True)  # logs
            except OSError as error:
                log.info("cannot connect to the driver, continuing through Ray: %s", error)
                self._address = None
        return self._link


class ReportClient(_DriverConnection):
    """Rank 0's end of the connection for reports, which is opened at the first report of the process.

    call: a function that sends reports through the driver's actor; used if there is no connection.
    """

    def __init__(self, address: Address | None, call: Callable[[str, list[Report]], Answer]) -> None:
        super().__init__(address, _REPORTS)
        self._call = call

    def send(self, segment_id: str, reports: list[Report]) -> Answer:
        """Send a batch of reports, and return the driver's answer. Only one thread may send at a time."""
        taken, answer = self._request((segment_id, [_parts(report) for report in reports])) or (False, None)
        if not taken:
            return self._call(segment_id, reports)
        if isinstance(answer, int):
            return Resend(after=answer)
        return _verdict(*answer) if answer is not None else None


class LogClient(_DriverConnection):
    """A rank's end of the connection for its log.

    Several threads can send at the same time.

    call: a function that sends chunks through the driver's actor; used if there is no connection.
    """

    def __init__(self, address: Address | None, call: Callable[[str, Sequence[LogChunk]], None]) -> None:
        super().__init__(address, _LOGS)
        self._call = call
        self._sending = threading.Lock()

    def send(self, segment_id: str, chunks: Sequence[LogChunk]) -> None:
        """Send chunks of a log, and return once the driver has stored them. Raise DriverSilent if that fails."""
        packed = [(chunk.rank, chunk.start, chunk.size, chunk.data, chunk.time) for chunk in chunks]
        with self._sending:
            stored = self._request((segment_id, packed))
        if stored is None:
            self._call(segment_id, chunks)
        elif not stored:
            raise DriverSilent("the driver could not store part of a log")


class SocketDriver:
    """The `DriverLink` of a rank of the local executor: a connection that is opened when it is first needed."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection = _DriverConnection(address, _CALLS)
        self._sending = threading.Lock()

    def ask(self, question: str, *args: Any, patience_s: float = _PATIENCE_S) -> Any:
        """Send a request and return the driver's answer. If the driver raises an error, raise the same error here.

        Raises:
            DriverSilent: there was no connection for `patience_s` seconds.
        """
        deadline = time.monotonic() + patience_s
        while True:
            with self._sending:
                answer = self._connection._request((question, args))
                if answer is None:
                    self._connection = _DriverConnection(self._address, _CALLS)
            if answer is not None:
                break
            if time.monotonic() + _PAUSE_S > deadline:
                raise DriverSilent("the driver cannot be reached")
            time.sleep(_PAUSE_S)
        done, value = answer
        if not done:
            raise value
        return value

    def object(self, segment_id: str, stored: Any) -> Any:
        """Load an object that was stored with the training code. Its file is on this machine or at a URI."""
        return stored.load()


# Reports are sent as plain tuples: unpickling a frozen dataclass with slots would take ten times as long.


_FIELDS = tuple(f.name for f in dataclasses.fields(Report))
_parts: Callable[[Report], tuple[Any, ...]] = operator.attrgetter(*_FIELDS)
_VERDICT_FIELDS = tuple(f.name for f in dataclasses.fields(Verdict))
_parts_of_verdict: Callable[[Verdict], tuple[Any, ...]] = operator.attrgetter(*_VERDICT_FIELDS)


def _report(*parts: Any) -> Report:
    return Report(**dict(zip(_FIELDS, parts, strict=True)))


def _verdict(*parts: Any) -> Verdict:
    return Verdict(**dict(zip(_VERDICT_FIELDS, parts, strict=True)))
