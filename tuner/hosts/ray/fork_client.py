"""Run in place of Ray's own script for workers: let the fork server make the worker, or start it as Ray does.

The raylet starts this file as a script, without installed packages, so the script imports only the standard library. Its
arguments are the path of the fork server's socket, the path of Ray's script, and the arguments of that script.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys

PATIENCE_S = 30.0
"""Seconds to wait for the server, which answers once it has imported Ray."""


def main() -> None:
    """Ask the fork server for the worker. If there is no server, or if it refuses, become the worker."""
    path, *command = sys.argv[1:]
    if not _forked(path, command):
        os.execv(sys.executable, [sys.executable, *command])


def _forked(path: str, command: list[str]) -> bool:
    """Return whether the fork server has forked a process for this command."""
    try:
        wanted = {
            "command": command,
            "environment": dict(os.environ),
            "directory": os.getcwd(),  # an error, if it has been deleted
            "niceness": os.nice(0),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        with socket.socket(socket.AF_UNIX) as server:
            server.settimeout(PATIENCE_S)
            server.connect(path)
            body = json.dumps(wanted).encode()
            socket.send_fds(server, [len(body).to_bytes(4, "big")], [0, 1, 2])
            server.sendall(body)
            return server.recv(1) == b"y"
    except OSError:
        return False


if __name__ == "__main__":
    main()
