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
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.trials.messages.forks import PATH, receive, send

FORKS = sys.platform == "linux" and hasattr(os, "pidfd_open")
"""True if a fork server works on this system."""
IDLE_S = 0.1
"""Seconds without a request after which a server imports PyTorch that is not needed before the first workers run."""
LOOK_S = 1.0
"""Seconds between two checks whether the starter is alive, and seconds that a client may take to send its request."""
HOST = ("tuner.hosts.host",)
"""The modules of driver hosts. The server imports them while Ray is being started."""
RAY = ("ray", "tuner.hosts.ray_executor", "tuner.hosts.actor", "tuner.trials.runtime.ray_rank")
"""The modules of driver hosts and ranks on Ray. Ray reads its settings from the environment when it is imported, and one of
them is the raylet's process id. So the server imports these modules once the raylet has been started."""
USED = "_TUNER_TORCH_IS_USED"
"""The environment variable with the path of a file that the server writes when workers need PyTorch. If the head is lost,
the server of the next head finds the file, and has imported PyTorch before the ranks are started again."""
_OF_A_WORKER = frozenset({"SPT_NOENV", "OMP_NUM_THREADS"})
"""Variables in which a worker's environment may differ from the server's, besides those whose names begin with RAY_."""
_NO_JOB = "ffffffff"
"""The job of workers that Ray starts in advance. They belong to the first job that gives them a task."""
_OOM = "RAY_worker_oom_score_adjustment"
_ROOT = str(Path(__file__).resolve().parents[3])
_START = f"import sys; sys.path.insert(0, {_ROOT!r}); from tuner.hosts.ray.fork_server import main; main()"
"""The code that the server runs.

It adds the folder of tuner to `sys.path`, and forked workers remove this entry. PYTHONPATH cannot be
used instead: if tuner is installed, the folder is `site-packages`, and Python lists a duplicate entry only once. Removing
that entry would leave workers without `site-packages`.
"""
_LOWEST = 19  # the niceness of a thread that must not slow down trials


class ForkServer:
    """The handle of a fork server, in the process that starts Ray.

    The server ends when the raylet ends, or when this process ends before it has started a raylet.

    Args:
        torch: True to import PyTorch, if it is installed, before any worker is forked.
        later: True to import it only after the first workers have been forked, which run the driver host.
        ignored: names of environment variables that may change before Ray is started.
    """

    def __init__(self, torch: bool = False, ignored: Iterable[str] = (), *, later: bool = False) -> None:
        self._control, theirs = socket.socketpair()
        options = {"torch": torch, "later": later, "ignored": sorted(ignored)}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, str(theirs.fileno()), json.dumps(options)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=dict(os.environ),  # without what C libraries have set, which the raylet's environment lacks too
                process_group=0,  # so that Ctrl-C at a terminal does not reach it
            )

    @property
    def pid(self) -> int:
        """Return the id of the server's process."""
        return self._process.pid

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

    def end(self) -> None:
        """End the server. The workers that it has forked stay."""
        self._process.kill()
        self._process.wait()
        self._control.close()

    def _tell(self, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
        with contextlib.suppress(OSError):  # the server has ended
            send(self._control, message, files)


# -- the server ------------------------------------------------------------------------------------------------------------


class _Server:
    """The server's process."""

    def __init__(self, control: socket.socket, ignored: Iterable[str], later: bool) -> None:
        self._control = control
        self._later = later  # True until PyTorch is imported, if ranks will need it
        self._has_forked = False
        self._ignored = _OF_A_WORKER.union(ignored)
        self._environment = dict(os.environ)
        self._starter_ended = False
        self._listener: socket.socket | None = None
        self._raylet: int | None = None  # a file descriptor that is readable once the raylet has ended
        self._importing: threading.Thread | None = None

    def serve(self) -> list[str] | None:
        """Answer clients until the raylet ends, and return None. In each forked process, return its command instead."""
        while self._raylet is not None or not self._starter_ended:
            sources: list[Any] = [] if self._starter_ended else [self._control]
            if self._raylet is not None:
                sources += [self._raylet, self._listener]
            now = self._later and self._has_forked
            readable, _, _ = select.select(sources, [], [], IDLE_S if now else LOOK_S)
            if now and not readable:  # clients wait meanwhile: this is their import, too
                import_torch()
                self._later = False
            if self._raylet in readable:
                return None
            if self._control in readable:  # also if the starter has ended, after its last message
                self._hear()
            elif self._listener is not None and self._listener in readable:
                with contextlib.suppress(OSError):  # the client has ended, or this process cannot be forked
                    if (command := self._answer(self._listener)) is not None:
                        return command
        return None

    def _hear(self) -> None:
        """Handle the next message of the starter."""
        try:
            message, files = receive(self._control)
        except OSError:
            self._starter_ended = True
            return
        for file in files:
            self._listener = socket.socket(fileno=file)
        if "raylet" in message:
            self._attend(message["raylet"], message["environment"])

    def _attend(self, raylet: int, environment: Mapping[str, str]) -> None:
        if self._differs(environment):
            sys.exit()  # what was imported may have read variables that have changed since
        self._raylet = os.pidfd_open(raylet)
        os.environ.update(environment, RAY_RAYLET_PID=str(raylet), RAY_JOB_ID=_NO_JOB)
        preload(RAY)

    def _differs(self, environment: Mapping[str, str]) -> bool:
        """Return whether the value of a variable, which libraries may read when they are imported, differs from the server's."""
        ours = self._environment
        return any(
            environment.get(name) != ours.get(name)
            for name in environment.keys() | ours.keys()
            if name not in self._ignored and not name.startswith("RAY_")
        )

    def _answer(self, listener: socket.socket) -> list[str] | None:
        """Fork a worker for the next client, or refuse. Return None, and in the forked process the worker's command."""
        client, _ = listener.accept()
        with client:
            client.settimeout(LOOK_S)
            request, files = receive(client)
            try:
                if request.get("torch"):
                    self._import_torch()
                    return None
                command: list[str] = request["command"]
                forks = self._can_fork(command, request["environment"])
                if forks:
                    self._has_forked = True
                if forks and _waits(client) and os.fork() == 0:
                    try:
                        become(files, request, {"RAY_JOB_ID": _NO_JOB, PATH: listener.getsockname()})
                        self._close()
                    except BaseException:
                        os._exit(1)  # this process must not become a second server
                    return command
            finally:
                for file in files:
                    os.close(file)
            client.sendall(b"y" if forks else b"n")
        return None

    def _can_fork(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Return whether a fork of this process is like the worker that Ray would start."""
        if self._importing is not None and self._importing.is_alive():
            return False  # in the forked process, the locks that the other thread holds would never be released
        return "--runtime-env-hash=0" in command and not self._differs(environment)

    def _import_torch(self) -> None:
        """Import PyTorch in a thread, at the lowest priority, because trials are running."""

        def run() -> None:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
            import_torch()

        if (mark := os.environ.get(USED)) is not None:
            with contextlib.suppress(OSError):
                Path(mark).touch()
        if self._importing is None:
            self._importing = threading.Thread(target=run, name="tuner-import", daemon=True)
            self._importing.start()

    def _close(self) -> None:
        """Close the files of the server in a forked process."""
        self._control.close()
        if self._listener is not None:
            self._listener.close()
        if self._raylet is not None:
            os.close(self._raylet)


def _waits(client: socket.socket) -> bool:
    """Return whether the client still waits for the answer. It may have started the worker itself meanwhile."""
    readable, _, _ = select.select([client], [], [], 0)
    return not readable  # it sends nothing more, so it is readable only after it has closed the connection


def become(files: Sequence[int], request: Mapping[str, Any], variables: Mapping[str, str]) -> None:
    """Make this process, which has just been forked, like the client: its files, environment, directory and limits."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    for standard, file in enumerate(files):
        os.dup2(file, standard)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["environment"], **variables)
    os.chdir(request["directory"])
    os.nice(max(0, request["niceness"] - os.nice(0)))
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, request["files"])
    with contextlib.suppress(OSError):  # the raylet does so for the processes that it starts
        Path("/proc/self/oom_score_adj").write_text(os.environ.get(_OOM, "1000"))
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # otherwise all workers would draw the same numbers


def preload(modules: Sequence[str]) -> None:
    """Import modules. BLAS and OpenMP get one thread; a rank with more CPUs changes that."""
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    for module in modules:
        with contextlib.suppress(Exception):  # a worker that needs the module says what is wrong with it
            importlib.import_module(module)
    _set("OMP_NUM_THREADS", threads)
    gc.collect()
    gc.freeze()  # so that the garbage collector of a forked process does not copy the memory of these objects


def _set(name: str, value: str | None) -> None:
    """Set an environment variable, or remove it if the value is None."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def import_torch() -> None:
    """Import PyTorch, if it is installed."""
    if "torch" not in sys.modules and importlib.util.find_spec("torch") is not None:
        preload(["torch.distributed"])


def main() -> None:
    """Serve until the raylet ends. In a forked process, run the worker."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as in all processes of Ray
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that workers that have ended leave nothing behind
    options = json.loads(sys.argv[2])
    server = _Server(socket.socket(fileno=int(sys.argv[1])), options["ignored"], options["later"])
    preload(HOST)
    if options["torch"]:
        import_torch()
    command = server.serve()
    if command is not None:
        sys.argv[:] = command
        sys.path.remove(_ROOT)  # the entry of `_START`, which is the first of its kind; Ray adds what the script has
        sys.path.insert(0, os.path.dirname(command[0]))
        runpy.run_path(command[0], run_name="__main__")
