"""Run uvicorn, and end event streams and imports before it shuts down, because uvicorn would wait for them."""

from __future__ import annotations

import asyncio
import os
import socket

import uvicorn
from fastapi import FastAPI


class Server(uvicorn.Server):
    """Serves an app that `create_app` returned."""

    def __init__(self, app: FastAPI, log_level: str = "info", grace_s: int = 5) -> None:
        # The app itself logs requests and decides which proxies to trust.
        config = uvicorn.Config(
            app,
            log_level=log_level,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_graceful_shutdown=grace_s,
        )
        super().__init__(config)
        self._context = app.state.context

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(None if sockets is None else [_as_tcp(listening) for listening in sockets])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.to_thread(self._context.end)
        await super().shutdown(sockets)


def _as_tcp(listening: socket.socket) -> socket.socket:
    """Return the same socket, marked as TCP.

    asyncio sets TCP_NODELAY on a connection only if the listening socket is marked so. Without it, the body of an
    answer on a kept-alive connection is delayed by 40 ms, until the client has acknowledged the headers.
    """
    if listening.family not in (socket.AF_INET, socket.AF_INET6):
        return listening
    return socket.socket(listening.family, listening.type, socket.IPPROTO_TCP, fileno=os.dup(listening.fileno()))
