"""Start Ray without the helper processes that this project does not need.

Besides the GCS server and the raylet, Ray starts five Python processes on a head node, and each of them imports Ray: the
autoscaler, the log monitor, the dashboard's server (even if there is no dashboard), the dashboard's agent, and the agent for
runtime environments. The raylet accepts no work before both agents are up. `without_helpers` leaves out the first four. A
small process replaces the dashboard's agent (`no_dashboard_agent`). It tells the raylet that the agent is not in use, as Ray's
own agent does if the dashboard is not installed. The agent for runtime environments is started when it is first needed
(`late_agent`). Workers are forked by a server that has imported what they need (`fork_server`).

`python -m tuner.hosts.ray.ray_start start --head ...` does the same as `ray start --head ...`, without these helpers.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import queue
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tuner.hosts.ray.fork_server import FORKS, USED, ForkServer

NODE = "ray._private.node"
SERVICES = "ray._private.services"
PRIVATE: Mapping[str, tuple[str, ...]] = {NODE: ("Node",), SERVICES: ("start_ray_process", "ConsolePopen")}
"""The private names of Ray's modules that this module uses, by module."""
STARTERS = ("start_monitor", "start_log_monitor", "start_api_server")
"""The methods of Ray's `Node` that start the unneeded helper processes."""

_SOCKET = "session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
_SOCKET_BYTES = 103
"""The maximum length of the path of a Unix socket on macOS. On Linux, it is four bytes more."""

_AGENT_OPTION = "--dashboard_agent_command="
_AGENT = str(Path(__file__).with_name("no_dashboard_agent.py"))
_ENV_AGENT_OPTION = "--runtime_env_agent_command="
_ENV_AGENT = str(Path(__file__).with_name("late_agent.py"))
_ISOLATED = "--enable-resource-isolation"
_SOCKET_OPTION = "--raylet_socket_name="
_WORKER_OPTION = "--python_worker_command="
_WORKER = "default_worker.py"
_CLIENT = str(Path(__file__).with_name("fork_client.py"))
_PATIENCE = "RAY_worker_register_timeout_seconds"
_PATIENCE_S = "180"
"""The seconds that a raylet waits for a worker to start. Ray's own 60 are too few on a busy machine: the raylet then forgets the
worker, and if it forgets the first ones, `ray.init` never returns. More would delay a trial whose process is killed before it has
started."""

_LASTING = "tuner-ray-start"
"""The name of the thread that starts Ray's processes for all threads but the main one."""


def temporary(folder: str) -> str:
    """Return the directory for a folder in which Ray keeps its files and Unix sockets, whose paths must be short.

    It is the temporary directory, or /tmp if paths in the temporary directory would be too long.
    """
    place = tempfile.gettempdir()
    return place if len(os.fsencode(f"{place}/{folder}/{_SOCKET}")) <= _SOCKET_BYTES else "/tmp"


def missing() -> list[str]:
    """Return a message for each private name that this version of Ray lacks. If one is missing, Ray starts with all helpers."""
    found = []
    for module, names in PRIVATE.items():
        loaded = importlib.import_module(module)
        found += [f"{module}.{name} is gone" for name in names if not hasattr(loaded, name)]
    node = getattr(importlib.import_module(NODE), "Node", None)
    return found + [f"{NODE}.Node.{name} is gone" for name in STARTERS if not hasattr(node, name)]


@contextlib.contextmanager
def without_helpers(server: ForkServer | None = None) -> Iterator[None]:
    """Let this process start Ray without the needless helper processes, within a `with` block.

    server: the server that forks the workers; None if the raylet starts them itself.
    """
    if missing():
        yield
        return
    node: Any = importlib.import_module(NODE).Node
    services: Any = importlib.import_module(SERVICES)
    with contextlib.ExitStack() as stack:
        for name in STARTERS:
            stack.callback(setattr, node, name, getattr(node, name))
            setattr(node, name, _start_nothing)
        start = services.start_ray_process
        stack.callback(setattr, services, "start_ray_process", start)
        services.start_ray_process = functools.partial(_start_process, start, server)
        # A signal to the script's process group, such as a closing terminal's SIGHUP, would stop Ray before the search is paused.
        stack.callback(setattr, services, "ConsolePopen", services.ConsolePopen)
        services.ConsolePopen = functools.partial(_in_lasting_thread, services.ConsolePopen, process_group=0)
        yield


def _in_lasting_thread(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function in the main thread, if this is it, or else in a thread that lasts as long as this process.

    The kernel kills Ray's processes as soon as the thread that has started them ends. The function may call this again: it
    does in nested blocks of `without_helpers`.
    """
    this = threading.current_thread()
    if this is threading.main_thread() or this.name == _LASTING:
        return function(*args, **options)
    done: Future[Any] = Future()

    def call() -> None:
        try:
            done.set_result(function(*args, **options))
        except BaseException as error:
            done.set_exception(error)

    _lasting_thread(os.getpid()).put(call)
    return done.result()


@functools.cache
def _lasting_thread(pid: int) -> queue.SimpleQueue[Callable[[], None]]:
    """Start a thread that makes the calls of a queue, and return the queue. pid: this process; a fork has no such thread."""
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def serve() -> None:
        while True:
            calls.get()()

    threading.Thread(target=serve, name=_LASTING, daemon=True).start()
    return calls


def _start_nothing(node: Any, **options: Any) -> None:
    """Do nothing, in place of a method of Ray's `Node` that starts a helper process."""


def _start_process(
    start: Callable[..., Any], server: ForkServer | None, command: Sequence[str], *args: Any, **options: Any
) -> Any:
    """Call Ray's `start_ray_process`. For a raylet, replace the commands of its agent and its workers, and let it be patient."""
    sockets = [text.removeprefix(_SOCKET_OPTION) for text in command if text.startswith(_SOCKET_OPTION)]
    if sockets and _PATIENCE not in os.environ:
        options["env_updates"] = {**(options.get("env_updates") or {}), _PATIENCE: _PATIENCE_S}
    if server is None or not sockets or _ISOLATED in command:
        return start([_with_our_agents(argument) for argument in command], *args, **options)
    path = f"{sockets[0]}-forks"
    try:
        # Ray gives the name of a raylet that has ended to the next one of the same session, and its server has left this file.
        Path(path).unlink(missing_ok=True)
        server.listen(path)
    except OSError:  # for instance, because the path is longer than a socket's path may be
        server.end()
        return start([_with_our_agents(argument) for argument in command], *args, **options)
    started = start([_forking(_with_our_agents(argument), path) for argument in command], *args, **options)
    server.attend(started.process.pid, {**os.environ, **(options.get("env_updates") or {})})
    return started


def _with_our_agents(argument: str) -> str:
    """Replace a raylet's commands for its agents."""
    if argument.startswith(_AGENT_OPTION):
        theirs = shlex.split(argument.removeprefix(_AGENT_OPTION))
        options = [option for option in theirs if option.startswith("--")]
        return _AGENT_OPTION + subprocess.list2cmdline([sys.executable, "-S", "-E", _AGENT, *options])
    if argument.startswith(_ENV_AGENT_OPTION):
        theirs = shlex.split(argument.removeprefix(_ENV_AGENT_OPTION))
        return _ENV_AGENT_OPTION + subprocess.list2cmdline([sys.executable, "-S", "-E", _ENV_AGENT, *theirs])
    return argument


def _forking(argument: str, path: str) -> str:
    """Replace a raylet's command for workers, so that they are forked by the server at this path."""
    if not argument.startswith(_WORKER_OPTION):
        return argument
    theirs = shlex.split(argument.removeprefix(_WORKER_OPTION))
    at = next((i for i, part in enumerate(theirs) if os.path.basename(part) == _WORKER), None)
    if at is None:
        return argument
    # The raylet removes the second part of the command if a worker needs no `runtime_env`.
    return _WORKER_OPTION + subprocess.list2cmdline([*theirs[:at], "-S", "-E", _CLIENT, path, *theirs[at:]])


def main() -> None:
    """Run Ray's command-line interface, with the arguments of this process and without the needless helper processes."""
    from ray.scripts.scripts import main as ray

    with without_helpers(ForkServer(later=_used_torch()) if "start" in sys.argv and FORKS else None):
        ray()


def _used_torch() -> bool:
    """Return whether the ranks of an earlier head, which has died, used PyTorch."""
    return os.path.exists(os.environ.get(USED, ""))


if __name__ == "__main__":
    main()
