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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending.set()
        await super().shutdown(sockets)
