"""Connections over which the driver calls a rank's methods, instead of calling the rank's actor.

A call to a Ray actor costs the driver a millisecond of CPU time and has about the same latency. A warm trial needs
three calls to each rank, one after another. A rank on Ray opens such a connection to the driver when it starts.
`groups.pools.rank_handle` sends calls over it and falls back to Ray; `runtime.calls` implements the rank's end.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections.abc import Callable
from typing import Any

HEADER = struct.Struct("!I")
Heard = Callable[[int, bool, Any], None]
"""Called with a call's number, whether the method returned, and its return value or the text of its error."""


class CallLine:
    """The driver's end of one connection. It belongs to the driver's event loop."""

    def __init__(self, transport: asyncio.Transport, ended: Callable[[CallLine], None]) -> None:
        self._transport, self._ended = transport, ended
        self._heard: Heard | None = None
        self._broken: Callable[[], None] | None = None

    def attend(self, heard: Heard, broken: Callable[[], None]) -> None:
        """Set two callbacks: `heard` is called with each answer, `broken` once, when the connection has closed."""
        self._heard, self._broken = heard, broken

    def send(self, number: int, method: str, arguments: tuple[Any, ...]) -> None:
        """Send a call. If the connection is broken, `broken` is called later."""
        body = pickle.dumps((number, method, arguments), protocol=pickle.HIGHEST_PROTOCOL)
        self._transport.write(HEADER.pack(len(body)) + body)

    def received(self, body: bytes) -> None:
        """Pass the answer to a call on to the callback."""
        if self._heard is not None:
            self._heard(*pickle.loads(body))

    def cut(self) -> None:
        """Close the connection."""
        self._transport.abort()

    def end(self) -> None:
        """Call the callbacks for the end of the connection."""
        self._ended(self)
        if self._broken is not None:
            self._broken()


class CallLines:
    """The open connections of all ranks, by the secret tokens of the ranks' processes."""

    def __init__(self) -> None:
        self._lines: dict[bytes, CallLine] = {}

    def get(self, rank: bytes) -> CallLine | None:
        """Return the connection of a rank; None if the rank has none."""
        return self._lines.get(rank)

    def connected(self, rank: bytes, transport: asyncio.Transport) -> CallLine:
        """Add the connection of a rank, and return the connection. When it closes, it is removed."""

        def ended(line: CallLine) -> None:
            if self._lines.get(rank) is line:
                del self._lines[rank]

        line = self._lines[rank] = CallLine(transport, ended)
        return line
