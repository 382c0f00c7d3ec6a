"""Fork Ray's workers from one process that has already imported what they need.

A worker of Ray spends a second or more on imports: Ray, and for ranks PyTorch. This server imports them once. Then a new
worker takes some ten milliseconds, and shares the memory of the imported libraries with the others. The server has one
thread, imports no user code and does not initialize CUDA, so a fork is safe.

`ForkServer` is the handle in the process that starts Ray. The raylet starts `fork_client` in place of a worker, and the
client asks the server. A worker whose environment differs from that of the server, such as one with a `runtime_env`, is
started as Ray does it. So is every worker if the server has ended.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

LOOK_S = 1.0
"""Seconds between two checks whether the raylet is alive, and how long a client may take to send its request."""
HOST = ("tuner.driver.hosts.host",)
"""What driver hosts import. The server imports it while Ray is being started."""
RAY = ("ray", "tuner.driver.hosts.ray_executor", "tuner.driver.hosts.actor", "tuner.trials.runtime.ray_rank")
"""What driver hosts and ranks import on Ray. Ray reads its settings from the environment when it is imported, and one of
them is the raylet's process id. So these modules are imported once the raylet has been started."""

_OF_A_WORKER = frozenset({"LD_PRELOAD", "SPT_NOENV", "OMP_NUM_THREADS"})
"""Variables in which a worker's environment may differ from the server's, besides those whose names begin with RAY_."""
_NO_JOB = "ffffffff"
"""The job of workers that Ray starts in advance. They belong to the first job that gives them a task."""
_ROOT = str(Path(__file__).resolve().parents[4])


class ForkServer:
    """The handle of a fork server, in the process that starts Ray.

    The server ends when the raylet ends, or when this process ends before it has started a raylet.

    Args:
        torch: True to import PyTorch, if it is installed.
    """

    def __init__(self, torch: bool = False) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno()), *(["torch"] if torch else [])],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None if os.environ.get("FORKDBG") else subprocess.DEVNULL,
                process_group=0,  # so that Ctrl-C at a terminal does not reach it
            )

    def listen(self, path: str) -> None:
        """Let the server answer at this path, which must be free. Clients may connect at once, and then wait."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            os.chmod(path, 0o600)
            listener.listen(128)
            self._tell({}, [listener.fileno()])

    def attend(self, raylet: int, environment: Mapping[str, str]) -> None:
        """Tell the server the id of the raylet's process and the raylet's environment."""
        self._tell({"raylet": raylet, "environment": dict(environment)})

    def import_torch(self) -> None:
        """Let the server import PyTorch, if it is installed and not imported yet."""
        self._tell({"torch": True})

    def end(self) -> None:
        """End the server. The workers that it has forked stay."""
        self._process.kill()
        self._process.wait()
        self._control.close()

    def _tell(self, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
        body = json.dumps(message).encode()
        with contextlib.suppress(OSError):  # the server has ended
            socket.send_fds(self._control, [len(body).to_bytes(4, "big")], files)
            self._control.sendall(body)


# -- the server ------------------------------------------------------------------------------------------------------------


class _Server:
    """The server's process."""

    def __init__(self, control: socket.socket) -> None:
        self._control, self._starter = control, os.getppid()
        self._starter_ended = False
        self._listener: socket.socket | None = None
        self._raylet: int | None = None
        self._raylet_end: int | None = None  # a file descriptor that is readable once the raylet has ended
        self._environment = dict(os.environ)

    def serve(self) -> list[str] | None:
        """Answer clients until the raylet ends, and return None. In each forked process, return its command instead."""
        while self._is_wanted():
            sources: list[Any] = [self._raylet_end] if self._raylet_end is not None else []
            sources += [self._listener] if self._listener is not None and self._raylet is not None else []
            sources += [] if self._starter_ended else [self._control]
            readable, _, _ = select.select(sources, [], [], LOOK_S)
            if self._control in readable:
                self._hear()
            elif self._listener is not None and self._listener in readable:
                with contextlib.suppress(OSError):  # the client has ended, or this process cannot be forked
                    if (command := self._answer(self._listener)) is not None:
                        return command
        return None

    def _is_wanted(self) -> bool:
        """Return whether the raylet is alive, or may still be started."""
        if self._raylet is None:
            return not self._starter_ended and os.getppid() == self._starter
        if self._raylet_end is not None:
            return not select.select([self._raylet_end], [], [], 0)[0]
        try:
            return bool(psutil.Process(self._raylet).status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return False

    def _hear(self) -> None:
        """Do what the next message of the starter says."""
        try:
            message, files = receive(self._control)
        except OSError:
            self._starter_ended = True
            return
        for file in files:
            self._listener = socket.socket(fileno=file)
        if "raylet" in message:
            self._attend(message["raylet"], message["environment"])
        if message.get("torch"):
            import_torch()

    def _attend(self, raylet: int, environment: Mapping[str, str]) -> None:
        if self._differs(environment):
            sys.exit()  # what was imported may have read variables that have changed since
        self._raylet = raylet
        with contextlib.suppress(AttributeError, OSError):  # not Linux, or the raylet has just ended
            self._raylet_end = os.pidfd_open(raylet)
        os.environ.update(environment, RAY_RAYLET_PID=str(raylet), RAY_JOB_ID=_NO_JOB)
        preload(RAY)

    def _differs(self, environment: Mapping[str, str]) -> bool:
        """Return whether the value of a variable, which libraries may read when they are imported, differs from the server's."""
        ours = self._environment
        return any(
            environment.get(name) != ours.get(name)
            for name in environment.keys() | ours.keys()
            if name not in _OF_A_WORKER and not name.startswith("RAY_")
        )

    def _answer(self, listener: socket.socket) -> list[str] | None:
        """Fork a worker for the next client, or refuse. Return None, and in the forked process the worker's command."""
        client, _ = listener.accept()
        with client:
            client.settimeout(LOOK_S)
            request, files = receive(client)
            try:
                command: list[str] = request["command"]
                forks = "--runtime-env-hash=0" in command and not self._differs(request["environment"])
                if forks and os.fork() == 0:
                    become(files, request)
                    self._close()
                    return command
            finally:
                for file in files:
                    os.close(file)
            client.sendall(b"y" if forks else b"n")
        return None

    def _close(self) -> None:
        """Close the files of the server in a forked process."""
        self._control.close()
        if self._listener is not None:
            self._listener.close()
        if self._raylet_end is not None:
            os.close(self._raylet_end)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a message and the files that came with it. Raise OSError if the other side has ended."""
    header, files, _, _ = socket.recv_fds(connection, 4, 3)
    size, body = int.from_bytes(header, "big"), b""
    while header and len(body) < size and (more := connection.recv(size - len(body))):
        body += more
    if not header or len(body) < size:
        raise ConnectionError("the other side has ended")
    message: dict[str, Any] = json.loads(body)
    return message, files


def become(files: Sequence[int], request: Mapping[str, Any]) -> None:
    """Give this process, which has just been forked, the standard files, the environment and the directory of a worker."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    for standard, file in enumerate(files):
        os.dup2(file, standard)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["environment"], RAY_JOB_ID=_NO_JOB)
    os.chdir(request["directory"])
    with contextlib.suppress(OSError):  # the raylet does so for the processes that it starts
        Path("/proc/self/oom_score_adj").write_text(os.environ.get("RAY_worker_oom_score_adjustment", "1000"))
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # otherwise all workers would draw the same numbers


def preload(modules: Sequence[str]) -> None:
    """Import modules as a worker would whose BLAS and OpenMP have one thread. A rank with more CPUs changes that."""
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    path = list(sys.path)
    sys.path.append(_ROOT)  # if this package is not installed
    try:
        for module in modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
    finally:
        sys.path[:] = path
        os.environ.pop("OMP_NUM_THREADS")
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = threads
    gc.collect()
    gc.freeze()  # so that the garbage collector of a forked process does not copy the memory of these objects


def import_torch() -> None:
    """Import PyTorch, if it is installed."""
    if "torch" not in sys.modules and importlib.util.find_spec("torch") is not None:
        preload(["torch.distributed"])


def main() -> None:
    """Serve until the raylet ends. In a forked process, run the worker."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as in all processes of Ray
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that workers that have ended leave nothing behind
    server = _Server(socket.socket(fileno=int(sys.argv[1])))
    preload(HOST)
    if "torch" in sys.argv[2:]:
        import_torch()
    command = server.serve()
    if command is not None:
        sys.argv[:] = command
        sys.path.insert(0, os.path.dirname(command[0]))
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main()
