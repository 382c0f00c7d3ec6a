"""Messages to the server that forks Ray's workers, see `tuner.hosts.ray.fork_server`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

PATH = "_TUNER_FORK_SERVER"
"""The environment variable of a forked worker that has the path of the server's socket."""


def ask_for_torch() -> None:
    """Let the server that forked this process import PyTorch, so that later workers have it. Do nothing without a server."""
    if "torch" in sys.modules or (path := os.environ.get(PATH)) is None:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        send(server, {"torch": True})


def send(connection: socket.socket, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    """Send a message, and open files with it."""
    body = json.dumps(message).encode()
    socket.send_fds(connection, [len(body).to_bytes(4, "big")], files)
    connection.sendall(body)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a message and the files that came with it. Raise OSError if the other side has ended or sends anything else."""
    header, files, _, _ = socket.recv_fds(connection, 4, 3)
    try:
        size, body = int.from_bytes(header, "big"), b""
        while len(header) == 4 and len(body) < size and (more := connection.recv(size - len(body))):
            body += more
        if len(header) < 4 or len(body) < size:
            raise ConnectionError("the other side has ended")
        message: dict[str, Any] = json.loads(body)
    except (OSError, ValueError) as error:
        for file in files:
            os.close(file)
        raise ConnectionError(f"no message could be read: {error}") from error
    return message, files
