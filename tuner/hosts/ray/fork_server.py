"""Fork Ray's workers from one process that has already imported what they need.

A Ray worker spends a second or more on imports: Ray, and for ranks PyTorch. This server imports them once. After that, a new
worker takes some ten milliseconds, and shares the memory of the imported libraries with the others. The server has one
thread, imports no user code and does not initialize CUDA, so a fork is safe.

`ForkServer` is the handle in the process that starts Ray. The raylet starts `fork_client` in place of a worker, and the
client asks the server. A worker whose environment differs from that of the server, such as one with a `runtime_env`, is
started in Ray's usual way. So is every worker if the server has exited.
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
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.trials.messages.forks import ON_USE, PATH, receive, send
from tuner.trials.runtime.function.modules import forking

FORKS = sys.platform == "linux" and hasattr(os, "pidfd_open")
"""True if a fork server works on this system."""
IDLE_S = 0.1
"""Seconds without a request after which a server imports what the first workers do not need."""
LOOK_S = 1.0
"""Seconds between two checks that the starter is alive, and the timeout in seconds for a client to send its request."""
HOST = ("tuner.hosts.host",)
"""The modules of driver hosts. The server imports them while Ray is being started."""
SERIALIZERS = (
    "pydantic.v1",
    "pydantic.fields",
    "pydantic.functional_validators",
    "pydantic.types",
    "pydantic.deprecated.class_validators",
    "pydantic.deprecated.config",
    "starlette.datastructures",
)
"""The modules for which Ray registers serializers in each worker before its first task, and imports for that. Ray also imports
pyarrow, which the server must not import, because pyarrow starts a thread."""
RAY = ("ray", *SERIALIZERS, "tuner.hosts.ray_executor", "tuner.hosts.actor", "tuner.trials.runtime.ray_rank")
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
_TORCH = "torch"
_LOWEST = 19  # the niceness of a thread that must not slow down trials


class ForkServer:
    """The handle of a fork server, in the process that starts Ray.

    The server exits when the raylet exits. It also exits if this process exits before starting a raylet.

    Args:
        torch: True to import PyTorch, if it is installed, before any worker is forked.
        later: True to import PyTorch only after the first workers, which run the driver host, have been forked.
        ignored: names of environment variables that may differ between the server and a worker, because they may change
            before Ray is started.
        used: the modules of `ON_USE` to import before any worker is forked.
    """

    def __init__(
        self, torch: bool = False, ignored: Iterable[str] = (), *, later: bool = False, used: Iterable[str] = ()
    ) -> None:
        self._control, theirs = socket.socketpair()
        options = {"torch": torch, "later": later, "ignored": sorted(ignored), "used": list(used)}
        with theirs:
            self._process = start(theirs.fileno(), json.dumps(options))

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
        """Stop the server. The workers that it has forked keep running."""
        self._process.kill()
        self._process.wait()
        self._control.close()

    def _tell(self, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
        with contextlib.suppress(OSError):  # the server has exited
            send(self._control, message, files)


def start(file: int, options: str) -> subprocess.Popen[bytes]:
    """Start the process of a server. file: its end of the connection. options: those of `ForkServer`, as JSON."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _START, str(file), options],
        pass_fds=[file],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Variables that C libraries have set are not in os.environ. The raylet's environment lacks them too.
        env=dict(os.environ),
        process_group=0,  # so that Ctrl-C at a terminal does not reach it
    )


# -- the server ------------------------------------------------------------------------------------------------------------


class _Server:
    """Runs in the server's process, and forks workers for those who ask."""

    def __init__(self, control: socket.socket, ignored: Iterable[str], later: bool) -> None:
        self._control = control
        self._later = [_TORCH] if later else []  # what is imported once there are no requests
        self._has_forked = False
        self._ignored = _OF_A_WORKER.union(ignored)
        self._environment = dict(os.environ)
        self._starter_ended = False
        self._listener: socket.socket | None = None
        self._raylet: int | None = None  # a file descriptor that is readable once the raylet has exited
        self._importing: threading.Thread | None = None

    def serve(self) -> list[str] | None:
        """Answer clients until the raylet exits, and return None. In each forked process, return its command instead."""
        while self._raylet is not None or not self._starter_ended:
            # `select.select` takes no descriptor above 1,023, which the connection has if the starter has many files open
            poll = select.poll()
            if not self._starter_ended:
                poll.register(self._control, select.POLLIN)
            if self._raylet is not None:
                poll.register(self._raylet, select.POLLIN)
                if self._listener is not None:
                    poll.register(self._listener, select.POLLIN)
            now = bool(self._later) and self._has_forked and not self._is_importing()
            readable = {descriptor for descriptor, _ in poll.poll((IDLE_S if now else LOOK_S) * 1000)}
            if now and not readable:  # clients wait meanwhile, but their workers need the import, too
                module = self._later.pop(0)
                import_torch() if module == _TORCH else preload([module])
            if self._raylet in readable:
                return None
            if (
                self._control.fileno() in readable
            ):  # a message, or the end of the connection because the starter has exited
                self._hear()
            elif self._listener is not None and self._listener.fileno() in readable:
                with contextlib.suppress(OSError):  # the client has exited, or this process cannot be forked
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
        """Return whether any variable that libraries may read when they are imported differs from the server's."""
        ours = self._environment
        return any(
            environment.get(name) != ours.get(name)
            for name in environment.keys() | ours.keys()
            if name not in self._ignored and not name.startswith("RAY_")
        )

    def _answer(self, listener: socket.socket) -> list[str] | None:
        """Fork a worker for the next client, or refuse.

        Return the worker's command in the forked process, and None in the server.
        """
        client, _ = listener.accept()
        with client:
            client.settimeout(LOOK_S)
            request, files = receive(client)
            try:
                if request.get("torch"):
                    self._import_torch()
                    return None
                if "used" in request:
                    missing = [name for name in ON_USE if name in request["used"] and name not in sys.modules]
                    self._later += [name for name in missing if name not in self._later]
                    return None
                command: list[str] = request["command"]
                forks = self._can_fork(command, request["environment"])
                if forks:
                    self._has_forked = True
                    forking()
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
        """Return whether a fork of this process would be like the worker that Ray would start."""
        if self._is_importing():
            return False  # in the forked process, the locks that the other thread holds would never be released
        return "--runtime-env-hash=0" in command and not self._differs(environment)

    def _is_importing(self) -> bool:
        return self._importing is not None and self._importing.is_alive()

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
        """Close the server's files. Called in a forked process."""
        self._control.close()
        if self._listener is not None:
            self._listener.close()
        if self._raylet is not None:
            os.close(self._raylet)


def _waits(client: socket.socket) -> bool:
    """Return whether the client still waits for the answer. It may have started the worker itself in the meantime."""
    readable, _, _ = select.select([client], [], [], 0)
    return not readable  # the client sends nothing more: its socket is readable only once it has closed the connection


def become(files: Sequence[int], request: Mapping[str, Any], variables: Mapping[str, str]) -> None:
    """Give this process, which has just been forked, the client's files, environment, working directory and limits."""
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
    # If memory runs out, the kernel then kills this process early, like other workers of Ray.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(os.environ.get(_OOM, "1000"), encoding="utf-8")
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # otherwise all workers would draw the same numbers


def preload(modules: Sequence[str]) -> None:
    """Import modules. BLAS and OpenMP get one thread; a rank with more CPUs changes that.

    Garbage is collected only at the end. All that is imported stays, and looking for garbage in it takes a fifth of the time.
    """
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    collects = gc.isenabled()
    gc.disable()
    for module in modules:
        with contextlib.suppress(Exception):  # a worker that needs the module says what is wrong with it
            importlib.import_module(module)
    _set("OMP_NUM_THREADS", threads)
    gc.collect()
    gc.freeze()  # so that the garbage collector of a forked process does not copy the memory of these objects
    if collects:
        gc.enable()


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
    """Serve until the raylet exits. In a forked process, run the worker."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as in all processes of Ray
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that workers leave no zombies when they exit
    options = json.loads(sys.argv[2])
    server = _Server(socket.socket(fileno=int(sys.argv[1])), options["ignored"], options["later"])
    preload(HOST)
    if options["torch"]:
        import_torch()
    preload(options["used"])
    command = server.serve()
    if command is not None:
        sys.argv[:] = command
        sys.path.remove(_ROOT)  # removes the first of the equal entries, which `_START` has added
        sys.path.insert(0, os.path.dirname(command[0]))
        # Ray causes this warning in each worker, which ends if warnings are errors. Then `ray.init` never returns.
        warnings.filterwarnings("ignore", "uvloop.install", DeprecationWarning)
        runpy.run_path(command[0], run_name="__main__")
