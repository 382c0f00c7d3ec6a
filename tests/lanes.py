"""Let all lanes of `.ci/test` share one import of the tests.

A process of pytest-xdist would spend six seconds on importing the tests, with PyTorch, Ray and Lightning. `serve` imports them
once, and forks the processes from then on. xdist runs this file as a script in place of Python. The script asks for a fork
and waits for its end. If nobody answers, it becomes a usual Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

LOOK_S = 1.0
"""Seconds between two checks that `.ci/test` is alive."""
MESSAGE_BYTES = 1 << 18
"""The maximum size of a request. It has the environment of a lane."""


def ask(path: str, arguments: list[str]) -> None:
    """Let a fork run the code of `python -u -c CODE`, with the files and the environment of this process."""
    try:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.connect(path)
        lane = {"code": arguments[-1], "environment": dict(os.environ), "niceness": os.nice(0)}
        socket.send_fds(server, [json.dumps(lane).encode()], [0, 1, 2])
    except OSError:  # also on macOS, which has no such sockets
        os.execv(sys.executable, [sys.executable, *arguments])
    with server, contextlib.suppress(ConnectionError, KeyboardInterrupt):
        server.recv(1)  # returns when the fork has ended


def serve(path: str) -> None:
    """Collect all tests. Then fork a lane for each client, until the process that has started this one ends.

    A client that is killed takes its lane with it, as if it were the lane.

    Args:
        path: the path of the socket, which is there once the tests are collected.
    """
    import pytest

    starter = os.getppid()
    # Without capturing, the libraries that keep `sys.stderr` when they are imported keep that of the process, which stays open.
    pytest.main(["--collect-only", "-q", "-s", "-p", "no:cacheprovider"])
    sys.stdout.flush()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, selectors.DefaultSelector() as selector:
        listener.bind(path)
        listener.listen(16)
        selector.register(listener, selectors.EVENT_READ)
        while os.getppid() == starter:
            for key, _ in selector.select(LOOK_S):
                if key.fileobj is not listener:
                    _end(selector, key.data)
                    continue
                client, _ = listener.accept()
                body, files, _, _ = socket.recv_fds(client, MESSAGE_BYTES, 3)
                if (process := os.fork()) == 0:
                    selector.close()
                    listener.close()
                    client.close()
                    _run(json.loads(body), files)
                    return
                for file in files:
                    os.close(file)
                lane = (process, client, os.pidfd_open(process))
                selector.register(client, selectors.EVENT_READ, lane)  # readable once the client has ended
                selector.register(lane[2], selectors.EVENT_READ, lane)  # readable once the lane has ended


def _end(selector: selectors.BaseSelector, lane: tuple[int, socket.socket, int]) -> None:
    process, client, ended = lane
    with contextlib.suppress(KeyError):  # both have ended at once
        selector.unregister(client)
        selector.unregister(ended)
        signal.pidfd_send_signal(ended, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(ended)
        with contextlib.suppress(OSError):  # the client has ended
            client.shutdown(
                socket.SHUT_RDWR
            )  # `close` alone would not tell the client, since later lanes have copies of the socket
        client.close()


def _run(lane: dict[str, Any], files: list[int]) -> None:
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    os.environ.clear()
    os.environ.update(lane["environment"])
    os.nice(max(0, lane["niceness"] - os.nice(0)))
    sys.argv[:] = ["-c"]
    sys.stdin = os.fdopen(0, closefd=False)
    exec(lane["code"], vars(sys.modules["__main__"]))


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # a module of the tests may have the name of one of Python's
    ask(sys.argv[1], sys.argv[2:])
