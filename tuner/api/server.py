"""Run uvicorn so that event streams and imports end first at shutdown. uvicorn would wait for them, and they last long."""

from __future__ import annotations

import asyncio
import os
import socket

import uvicorn
from fastapi import FastAPI


class Server(uvicorn.Server):
    """Serves an app that `create_app` returned."""

    def __init__(self, app: FastAPI, log_level: str = "info", grace_s: int = 5) -> None:
        # The app logs its requests itself, and itself decides which proxies it believes.
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

    asyncio sets TCP_NODELAY on a connection only if its listening socket is marked. Without it, the body of an answer on a
    kept-alive connection waits 40 ms for the client to acknowledge the head.
    """
    if listening.family not in (socket.AF_INET, socket.AF_INET6):
        return listening
    return socket.socket(listening.family, listening.type, socket.IPPROTO_TCP, fileno=os.dup(listening.fileno()))
