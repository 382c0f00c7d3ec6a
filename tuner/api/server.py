"""Run the app in uvicorn. Before uvicorn shuts down, end event streams and imports, because it would wait for them."""

from __future__ import annotations

import asyncio
import os
import socket

import uvicorn
from fastapi import FastAPI


class Server(uvicorn.Server):
    """A uvicorn server for an app that `create_app` returned."""

    def __init__(self, app: FastAPI, log_level: str = "info", grace_s: int = 5) -> None:
        # uvicorn must not log requests or read the headers of proxies, because the app does both.
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
    """Return a duplicate of a listening socket, with its protocol set to TCP. Return a socket that is not for IP unchanged.

    asyncio sets TCP_NODELAY on connections only if the listening socket has this protocol. Without TCP_NODELAY, the body of
    a response on a kept-alive connection is delayed by 40 ms, until the client has acknowledged the headers.
    """
    if listening.family not in (socket.AF_INET, socket.AF_INET6):
        return listening
    return socket.socket(listening.family, listening.type, socket.IPPROTO_TCP, fileno=os.dup(listening.fileno()))
