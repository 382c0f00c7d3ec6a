"""Run the app in uvicorn.

Before uvicorn shuts down, end event streams and imports, because it would wait for them. Close connections that never
send a complete request head, because uvicorn would keep them forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

HEAD_S = 30.0
"""The time that a client may take to send the head of a request, in seconds."""

IDLE_S = 75
"""The time in seconds after which a connection without a request is closed.

Load balancers and proxies keep their connections for 60 s. If the service closed one first, a request that is just being sent
over it would be answered with 502.
"""

UNSENT_BYTES = 128 * 1024
"""The maximum number of unsent bytes that the kernel buffers for a connection.

Without this limit, it buffers megabytes for each client that does not read its event stream.
"""

TICKS = 10
"""The number of uvicorn's ticks between two searches for slow connections. uvicorn ticks ten times a second."""


COLLECT_AFTER = 10_000
"""The number of new objects that triggers a garbage collection. Python's own value is 700 or, in newer versions, 2,000.

Requests that arrive together have several thousand objects, nearly all of which are freed without a collection.
"""

LAST_S = 2.0
"""The time that canceled requests may take to end, or the app to shut down after a second Ctrl-C, in seconds."""


class Server(uvicorn.Server):
    """A uvicorn server for an app that `create_app` returned."""

    def __init__(self, app: FastAPI, log_level: str = "info", grace_s: int = 5) -> None:
        # uvicorn must not log requests or read the headers of proxies, because the app does both.
        config = uvicorn.Config(
            _with_quiet_cancellations(app),
            log_level=log_level,
            log_config=None,
            access_log=False,
            # httptools and uvloop have to be compiled, so they may be missing.
            http="tuner.api.parsing:Http" if find_spec("httptools") else "h11",
            loop="uvloop" if find_spec("uvloop") else "asyncio",
            proxy_headers=False,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=grace_s,
        )
        super().__init__(config)
        self._context = app.state.context
        # connection -> its last request, and since when it has been waiting
        self._waiting: dict[Any, tuple[Any, float]] = {}

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let SIGHUP end the service as SIGTERM does, unless this process ignores it, as under `nohup`. uvicorn leaves it out."""
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        ):
            with super().capture_signals():
                yield
            return
        with super().capture_signals():
            before = signal.signal(signal.SIGHUP, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(signal.SIGHUP, before)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(None if sockets is None else [_as_tcp(listening) for listening in sockets])
        gc.freeze()  # otherwise each full collection would walk all loaded modules, and delay requests by 0.1 s
        gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.to_thread(self._context.end)
        await super().shutdown(sockets)
        if not self.force_exit and self.server_state.tasks:
            # These requests took too long. uvicorn has canceled them, but does not wait until they are in the audit trail.
            await asyncio.wait(self.server_state.tasks, timeout=LAST_S)
        if self.force_exit:
            # After a second Ctrl-C, uvicorn no longer waits for connections, but it does not shut down the app. The app's
            # task would be cancelled, and that would be logged as an error.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.lifespan.shutdown(), LAST_S)

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS == 0:
            self._close_slow_connections()
        return await super().on_tick(counter)

    def _close_slow_connections(self) -> None:
        """Close the connections that have been waiting for the head of a request for too long.

        uvicorn itself closes only connections that send nothing at all after a request, after `IDLE_S`.
        """
        now, before, self._waiting = time.monotonic(), self._waiting, {}
        for connection in list(self.server_state.connections):
            last: Any = getattr(connection, "cycle", None)  # the request that is being answered, or the last one
            if last is not None and not last.response_complete:
                continue
            if getattr(connection, "is_idle", False):
                continue
            seen, since = before.get(connection, (last, now))
            self._waiting[connection] = last, since if seen is last else now
            if seen is last and now - since > HEAD_S:
                connection.transport.close()


def _with_quiet_cancellations(app: ASGIApp) -> ASGIApp:
    """Return the app without the exceptions of requests that uvicorn cancels, since uvicorn would log their tracebacks."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise

    return call


def _as_tcp(listening: socket.socket) -> socket.socket:
    """Return a duplicate of a listening socket, with its protocol set to TCP. Return a socket that is not for IP unchanged.

    The kernel buffers at most `UNSENT_BYTES` of unsent data for each connection.

    asyncio sets TCP_NODELAY on connections only if the listening socket has this protocol. Without TCP_NODELAY, the body of
    a response on a kept-alive connection is delayed by 40 ms, until the client has acknowledged the headers.
    """
    if listening.family not in (socket.AF_INET, socket.AF_INET6):
        return listening
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # Linux, macOS; connections inherit it
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return socket.socket(listening.family, listening.type, socket.IPPROTO_TCP, fileno=os.dup(listening.fileno()))
