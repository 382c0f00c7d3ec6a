"""Messages to the server that forks Ray's workers; see `tuner.hosts.ray.fork_server`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

PATH = "_TUNER_FORK_SERVER"
"""The environment variable that tells a forked worker the path of the server's socket."""
ON_USE = ("torch._dynamo",)
"""Modules that a library imports only on first use, and that are slow to import: PyTorch imports this one when the first
optimizer or the first DDP module is created, which takes more than a second. They start no threads and do not initialize CUDA,
so the server may import them."""


def ask_for_torch() -> None:
    """Ask the server that forked this process, if any, to import PyTorch, so that later workers start with it."""
    if "torch" not in sys.modules:
        _tell({"torch": True})


def tell_used() -> None:
    """Tell the server, once per module, which modules of `ON_USE` this process has imported, so that later workers have them."""
    if used := [name for name in ON_USE if name in sys.modules and name not in _told]:
        _told.update(used)
        _tell({"used": used})


_told: set[str] = set()


def _tell(message: Mapping[str, Any]) -> None:
    """Send a message to the server that forked this process, if there is one."""
    if (path := os.environ.get(PATH)) is not None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as server:
            server.connect(path)
            send(server, message)


def send(connection: socket.socket, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    """Send a message together with the descriptors `files`."""
    body = json.dumps(message).encode()
    socket.send_fds(connection, [len(body).to_bytes(4, "big")], files)
    connection.sendall(body)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a message and the files that came with it.

    Raise OSError if the other side has closed the connection or sent anything else.
    """
    header, files, _, _ = socket.recv_fds(connection, 4, 3)
    try:
        size, body = int.from_bytes(header, "big"), b""
        while len(header) == 4 and len(body) < size and (more := connection.recv(size - len(body))):
            body += more
        if len(header) < 4 or len(body) < size:
            raise ConnectionError("the other side has closed the connection")
        message: dict[str, Any] = json.loads(body)
    except (OSError, ValueError) as error:
        for file in files:
            os.close(file)
        raise ConnectionError(f"no message could be read: {error}") from error
    return message, files
