"""Answer health checks while the service loads its modules, which takes a second or two.

The port is open from the start. `/healthz` answers that the process is alive; all other paths answer that it is not ready yet.
This module imports only the standard library, so that it can answer at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator

from tuner.errors import SpecError

PATIENCE_S = 2.0
"""Seconds that a client may take to send a request."""

NOT_ASKED = (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
"""The errors that occur if a client sends no request or only part of a request."""

STARTING = "the service is starting"


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this host and port. Raise SpecError if the port cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise SpecError(
            f"port {port} of {host} cannot be used: {error.strerror}; --port 0 picks a free one", "/port"
        ) from error
    return listening


class Early:
    """Answers requests on a socket, in a thread, until `end` is called. The socket then stays open for the service."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self._loop = asyncio.new_event_loop()
        self._done = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="early", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop answering. Close accepted connections, and leave those that were not accepted yet to the service."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._done.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        own = socket.socket(self.listening.family, self.listening.type, fileno=os.dup(self.listening.fileno()))
        server = await asyncio.start_server(_answer, sock=own, limit=16_384)
        await self._done.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others)
        await asyncio.sleep(0)  # lets the event loop close the connections of the cancelled tasks


@contextlib.contextmanager
def answering(host: str, port: int) -> Iterator[Early]:
    """Yield an `Early` that answers on this port until the block ends. Raise SpecError if the port cannot be used."""
    with listen(host, port) as listening:
        early = Early(listening)
        try:
            yield early
        finally:
            early.end()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(*NOT_ASKED, asyncio.CancelledError):
        async with asyncio.timeout(PATIENCE_S):
            head = await reader.readuntil(b"\r\n\r\n")
            method, target, _ = head.split(b"\r\n", 1)[0].split(b" ")
            writer.write(_response(method == b"HEAD", target.split(b"?")[0]))
            await writer.drain()
    writer.close()


def _response(only_head: bool, path: bytes) -> bytes:
    body: dict[str, object]
    kind, more = "application/json", ""
    if path == b"/healthz":
        status, body = "200 OK", {"status": "ok"}
    elif path == b"/readyz":
        status, body = "503 Service Unavailable", {"status": "unready", "problems": [STARTING]}
    else:
        status, kind, more = "503 Service Unavailable", "application/problem+json", "Retry-After: 1\r\n"
        body = {"type": "about:blank", "title": "Service Unavailable", "status": 503, "detail": STARTING, "errors": []}
    text = json.dumps(body).encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\n{more}"
        "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if only_head else text)
