"""The API in a process of its own, which kills itself at a chosen moment of the first POST."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from tuner.api import create_app
from tuner.settings import Settings
from tuner.store import Store

MOMENTS = ("before it is handled", "before the answer", "in the answer")


@dataclass(frozen=True)
class Served:
    url: str
    home: str
    port: int
    moment: str
    mark: str
    """The value of the environment variable TUNER_FAULT_MARK in every process that the service starts."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve(orders: Served) -> None:
    """Serve until killed. The kill happens once: a file says that it has happened."""
    os.environ["TUNER_FAULT_MARK"] = orders.mark
    done = Path(orders.home, "killed")
    with Store.open(orders.url) as store:
        app = create_app(Settings(home=Path(orders.home), database_url=orders.url), store, web=Path(orders.home, "web"))

        def kill(moment: str) -> None:
            if moment == orders.moment and not done.exists():
                done.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        async def wrapped(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http" or scope["method"] != "POST":
                await app(scope, receive, send)
                return

            async def sending(message: Any) -> None:
                if message["type"] == "http.response.start":
                    kill("before the answer")
                    await send(message)
                    kill("in the answer")
                else:
                    await send(message)

            kill("before it is handled")
            await app(scope, receive, sending)

        uvicorn.run(wrapped, host="127.0.0.1", port=orders.port, log_level="warning")
