"""Reports over a socket of their own: a call of an async Ray actor costs the driver most of a millisecond of CPU, this a tenth.

The line only carries what `launch.Driver.report` takes and answers, which may be repeated. So whatever goes wrong with it, a
network that lets only Ray through included, the same report goes by a call of the actor instead, and so does what follows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hmac
import logging
import operator
import pickle
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tuner.domain.segments import Report, Verdict, VerdictAction
from tuner.trials.messages.channel import Link, PeerLost
from tuner.trials.messages.launch import Resend

log = logging.getLogger(__name__)

_HEADER = struct.Struct("!I")
_GREETING_S = 10.0
_CONNECT_S = 5.0

Answer = Verdict | Resend | None
Take = Callable[[str, list[Report]], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    token: bytes = field(repr=False)  # what a connection starts with; without it nothing is read


class Exchange:
    """The driver's end, on its event loop: `take` is given each batch, and what it returns is the answer."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._token = secrets.token_bytes(16)
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[Any]] = set()

    async def open(self, ip: str) -> Address:
        """Listen at a free port of this address."""
        self._server = await asyncio.start_server(self._serve, ip, 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port, self._token)

    async def close(self) -> None:
        """Hear and listen no more. A batch whose answer is lost so is repeated by its sender."""
        if self._server is not None:
            self._server.close()
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        try:
            greeting = await asyncio.wait_for(reader.readexactly(len(self._token)), _GREETING_S)
            if not hmac.compare_digest(greeting, self._token):
                return
            while True:
                (size,) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
                segment_id, packed = pickle.loads(await reader.readexactly(size))
                answer = await self._answer(segment_id, [_report(*parts) for parts in packed])
                body = pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)
                writer.write(_HEADER.pack(len(body)) + body)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, TimeoutError, OSError):
            pass  # the rank is gone, or this end is closing
        finally:
            self._lines.discard(task)
            writer.close()

    async def _answer(self, segment_id: str, reports: list[Report]) -> tuple[bool, tuple[Any, ...] | int | None]:
        """(True, the parts of the answer), or (False, None) after an error, which the call of the actor will tell."""
        try:
            verdict = await self._take(segment_id, reports)
        except Exception:
            return False, None
        if verdict is None:
            return True, None
        if isinstance(verdict, Resend):
            return True, verdict.after
        return True, (verdict.action, verdict.next_milestone, verdict.save_checkpoint, verdict.reason)


class Line:
    """Rank 0's end: one connection a process, from its first report on. `call` is the way by the actor."""

    def __init__(self, address: Address | None, call: Callable[[str, list[Report]], Answer]) -> None:
        self._address, self._call = address, call
        self._link: Link | None = None

    def send(self, segment_id: str, reports: list[Report]) -> Answer:
        """Deliver and wait for the answer. One sender at a time."""
        if (link := self._connected()) is not None:
            try:
                link.send((segment_id, [_parts(report) for report in reports]))
                taken, answer = link.receive()
                if taken:
                    if isinstance(answer, int):
                        return Resend(after=answer)
                    return _verdict(*answer) if answer is not None else None
            except PeerLost as error:
                log.info("the line to the driver is gone, reports go through Ray: %s", error)
                self.close()
        return self._call(segment_id, reports)

    def close(self) -> None:
        """Everything goes through Ray from now on."""
        self._address = None
        if self._link is not None:
            self._link.close()
            self._link = None

    def _connected(self) -> Link | None:
        if self._link is None and (to := self._address) is not None:
            try:
                connection = socket.create_connection((to.host, to.port), timeout=_CONNECT_S)
                with contextlib.suppress(OSError):  # a driver whose machine is gone says nothing
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                connection.sendall(to.token)
                self._link = Link(connection)
            except OSError as error:
                log.info("there is no line to the driver, reports go through Ray: %s", error)
                self._address = None
        return self._link


# Plain tuples go over the line: a frozen dataclass with slots takes ten times as long to unpickle.


_FIELDS = tuple(f.name for f in dataclasses.fields(Report))
_parts: Callable[[Report], tuple[Any, ...]] = operator.attrgetter(*_FIELDS)


def _report(*parts: Any) -> Report:
    return Report(**dict(zip(_FIELDS, parts, strict=True)))


def _verdict(action: VerdictAction, next_milestone: int | None, save_checkpoint: bool, reason: str) -> Verdict:
    return Verdict(action=action, next_milestone=next_milestone, save_checkpoint=save_checkpoint, reason=reason)
