"""Sockets over which ranks send reports and logs to the driver.

A call of an async Ray actor costs the driver almost a millisecond of CPU time. A message over these sockets costs a
tenth of that.

A message has the arguments of `launch.Driver.report` or `launch.Driver.take_logs`, and may be repeated. If a connection
fails, or if the network lets only Ray through, this message and all later ones are sent by calls of the driver's actor.
Logs have separate connections, so that reports never wait for logs.

In the local executor, the driver is not an actor. There, ranks send all other requests over a third connection
(`SocketDriver`).

A rank on another machine has one more connection, by which the driver notices that the machine cannot be reached
(`tuner.trials.messages.lifeline`).
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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.domain.logs import LogChunk
from tuner.domain.segments import Report, Verdict
from tuner.errors import DriverSilent
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
LIFELINE = b"W"
_REPORTS, _LOGS, _CALLS = b"R", b"L", b"C"  # the byte after the token: what the connection is for


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    token: bytes = field(repr=False)  # a secret, with which every connection must begin


class ReportServer:
    """The driver's end of the sockets. It runs in the driver's event loop.

    Args:
        take: called with each batch of reports; returns the answer.
        take_logs: called with chunks of logs; returns once they are stored.
        take_call: called with the name and the arguments of each other request; returns the answer.
        take_cut: called with the token of a rank's process, a reason in words, and True if the machine of the rank cannot
            be reached any more, or False if that rank cannot reach the machine of rank 0.
    """

    def __init__(
        self,
        take: Take,
        take_logs: TakeLogs | None = None,
        take_call: TakeCall | None = None,
        take_cut: TakeCut | None = None,
    ) -> None:
        self._take, self._take_logs, self._take_call, self._take_cut = take, take_logs, take_call, take_cut
        self._token = secrets.token_bytes(16)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()

    async def open(self, ip: str) -> Address:
        """Listen on a free port of this IP address. Return the address to which ranks connect."""
        self._server = await asyncio.start_server(self._serve, ip, 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port, self._token)

    async def close(self) -> None:
        """Stop listening, and close all connections. A rank that gets no answer sends its batch of reports again."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            greeting = await asyncio.wait_for(reader.readexactly(len(self._token) + 1), _GREETING_S)
            if not hmac.compare_digest(greeting[:-1], self._token):
                return
            if greeting.endswith(LIFELINE):
                await self._hear(reader, writer)
                return
            while True:
                (size,) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
                segment_id, packed = pickle.loads(await reader.readexactly(size))
                if greeting.endswith(_CALLS):
                    body = await self._called(segment_id, packed)
                    writer.write(_HEADER.pack(len(body)) + body)
                    continue
                if greeting.endswith(_LOGS):
                    answer: Any = await self._store(segment_id, [LogChunk(*parts) for parts in packed])
                else:
                    answer = await self._answer(segment_id, [_report(*parts) for parts in packed])
                body = pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)
                writer.write(_HEADER.pack(len(body)) + body)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, TimeoutError, OSError):
            pass  # the rank is gone, or the server is closing
        finally:
            self._connections.discard(task)
            writer.close()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Wait until a rank's lifeline ends, and report if it was cut. Pass on what the rank says about other ranks."""
        keep_alive(writer.get_extra_info("socket"))
        rank = await reader.readexactly(len(self._token))
        tell = self._take_cut or (lambda rank, why, silent: None)
        try:
            while True:
                (size,) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
                tell(rank, str(pickle.loads(await reader.readexactly(size))), False)
        except OSError as error:
            if is_cut(error):
                tell(rank, f"its node has not answered for {SILENT_S} s", True)

    async def _answer(self, segment_id: str, reports: list[Report]) -> tuple[bool, tuple[Any, ...] | int | None]:
        """Return (True, the parts of the answer to a batch of reports), or (False, None) after an error.

        After an error, the rank sends the batch by a call of the actor, which raises the same error in the rank.
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


class _DriverConnection:
    """A connection to the driver, which is opened when it is first needed. After a failure, it is not opened again."""

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
            raise DriverSilent("the driver could not store a part of a log")


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
        """Load an object that was stored with the training code from its file, which is on this machine or at a URI."""
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
