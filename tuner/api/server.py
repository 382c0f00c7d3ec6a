"""uvicorn, told to let event streams end first: it would wait for them, and they last as long as somebody looks."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI


class Server(uvicorn.Server):
    """Serves an app of `create_app`."""

    def __init__(self, app: FastAPI, log_level: str = "info", grace_s: int = 5) -> None:
        super().__init__(uvicorn.Config(app, log_level=log_level, timeout_graceful_shutdown=grace_s))
        self._ending = app.state.context.ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for listening in sockets or ():
            # Accepted connections inherit it. asyncio sets it by itself only if the socket was made with IPPROTO_TCP; without it
            # the body of an answer waits up to 40 ms for the client to acknowledge the head.
            if listening.family in (socket.AF_INET, socket.AF_INET6):
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending.set()
        await super().shutdown(sockets)
