"""Fork servers for the Rays of tests that cost no imports: each is a fork of a process that has already imported what it needs.

A process of the tests starts about ten Rays. Each fork server would spend one to three seconds of CPU on the same imports.
Within `planting`, `ForkServer` gets a process from a seed instead. One that is not told to import PyTorch is forked from the
first seed, and all others from a second one, which has also imported PyTorch and Lightning. A seed has one thread, as every
fork server has.

Servers that are started with other variables than the seed had, apart from those that no library reads, are started as usual.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from tuner.hosts.ray import fork_server
from tuner.hosts.ray.fork_server import _ROOT, FORKS, HOST, import_torch, preload
from tuner.hosts.scripts.needs import OF_LIBRARIES
from tuner.trials.messages.forks import ON_USE, receive, send

_START = f"import sys; sys.path.insert(0, {_ROOT!r}); from tests.seeds import main; main()"
"""The code that a seed runs. It begins as that of a fork server, so that `sys.path` is the same."""
_MANY = ("lightning.pytorch", "pytorch_lightning")
"""Libraries that the ranks of many tests import. They start no threads and do not initialize CUDA."""
_UNREAD = ("RAY_", "TUNER_", "_TUNER_", "PYTEST_", "PYTHONBREAKPOINT")
"""The beginnings of the names of variables that no library reads while a seed imports it. Ray's own modules come later."""


class Planted:
    """A process that a seed has forked, with the methods of a `Popen` that `ForkServer` calls."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._open: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._open = None

    def kill(self) -> None:
        if self._open is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._open, signal.SIGKILL)

    def wait(self) -> None:
        if self._open is not None:
            select.select([self._open], [], [])
            os.close(self._open)
            self._open = None


class Seed:
    """The handle of a seed, in the process of the tests. It lives as long as this process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    @classmethod
    def first(cls) -> Seed:
        """Start a process that imports what every fork server needs."""
        ours, theirs = socket.socketpair()
        with theirs:
            subprocess.Popen(
                [sys.executable, "-P", "-c", _START, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
        return cls(ours)

    def fork(self, options: str, file: socket.socket | int) -> int:
        """Fork a process that serves with this socket, and return its id. options: "" for another seed."""
        message = {"options": options, "environment": dict(os.environ), "directory": os.getcwd()}
        with self._lock:
            send(self._connection, message, [file if isinstance(file, int) else file.fileno()])
            return int(receive(self._connection)[0]["pid"])

    def grown(self) -> Seed:
        """Return a second seed, which imports PyTorch and Lightning, too."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.fork("", theirs)
        return Seed(ours)


@contextlib.contextmanager
def planting() -> Iterator[None]:
    """Let this process fork its fork servers from seeds, within a `with` block."""
    if not FORKS:
        yield
        return
    start = fork_server.start
    environment = _read(os.environ)
    first = functools.cache(Seed.first)
    grown = functools.cache(lambda: first().grown())

    def started(file: int, options: str) -> Any:
        if _read(os.environ) != environment:
            return start(file, options)
        return Planted((grown() if json.loads(options)["torch"] else first()).fork(options, file))

    fork_server.start = started
    try:
        yield
    finally:
        fork_server.start = start


def _read(environment: Any) -> dict[str, str]:
    ignored = fork_server._OF_A_WORKER | OF_LIBRARIES
    return {name: value for name, value in environment.items() if name not in ignored and not name.startswith(_UNREAD)}


def main() -> None:
    """Fork a process for each message, until the process of the tests ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that what was forked leaves no zombies
    connection = socket.socket(fileno=int(sys.argv[1]))
    del sys.argv[1]
    preload(HOST)
    _serve(connection)


def _serve(connection: socket.socket) -> None:
    while True:
        try:
            message, files = receive(connection)
        except OSError:
            return
        if (pid := os.fork()) == 0:
            connection.close()
            os.setpgid(0, 0)
            os.environ.clear()
            os.environ.update(message["environment"])
            os.chdir(message["directory"])
            for name in ("tests.seeds", "tests"):  # a rank's own code may have a package of this name
                sys.modules.pop(name, None)
            _become(message["options"], files)
            return
        for file in files:
            os.close(file)
        send(connection, {"pid": pid})


def _become(options: str, files: Sequence[int]) -> None:
    """Serve as a fork server with these options, or as a seed."""
    if options:
        sys.argv[1:] = [str(files[0]), options]
        fork_server.main()
        return
    import_torch()
    preload(ON_USE)
    preload(_MANY)
    _serve(socket.socket(fileno=files[0]))
