"""A rank as a plain process on this machine, forked from a small server that has imported what every rank needs.

The driver starts the server (`python -m tuner.trials.runtime.local_rank`) and asks it for processes. The server has one
thread and imports no user code, so a fork is safe and takes milliseconds. It also tells the driver how each process
exited.

No process outlives the driver: the server exits when the driver does, and each rank is killed by the kernel, or kills
itself, when the server exits. Processes that a rank has started are killed with it. Most are in the rank's process group.
Those that have left it become children of the server when the rank exits (on Linux), and the server kills them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import queue
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import psutil

from tuner.trials.messages.channel import Link, PeerLost
from tuner.trials.messages.lost import CUT_OFF
from tuner.trials.messages.report_socket import SocketDriver
from tuner.trials.runtime.errors import as_text
from tuner.trials.runtime.function import modules
from tuner.trials.runtime.worker import CONTROL, LASTING, Rank

LOOK_S = 0.5
"""Seconds between the server's checks whether the driver is alive. A closed connection is noticed at once."""
_exit = os._exit  # the rank replaces it, to note that training code has called it
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STARTED_BY = "_TUNER_STARTED_BY_RANK"
"""The environment variable by which the server finds the rank that has started a process. Its value is the rank's pid."""

# -- a rank ----------------------------------------------------------------------------------------------------------------


def serve(link: Link) -> None:
    """Create the rank from the driver's first message, and answer the driver's calls until the connection is closed.

    Calls to the methods in `CONTROL` and `LASTING` are answered in separate threads. All other calls are answered one
    after another in the main thread, so that modules are imported there. The method "run" calls a function that is sent
    with the request.
    """
    try:
        address, log_limit = link.receive()
        rank = Rank(SocketDriver(address), False, address, log_limit)
    except PeerLost:
        return
    calls: queue.SimpleQueue[tuple[int, str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(link, rank, calls), name="tuner-calls", daemon=True).start()
    while True:
        _answer(link, rank, *calls.get())


def _receive(link: Link, rank: Rank, calls: queue.SimpleQueue[tuple[int, str, Any]]) -> None:
    try:
        while True:
            number, method, arguments = link.receive()
            if method in CONTROL or method in LASTING:
                threading.Thread(
                    target=_answer, args=(link, rank, number, method, arguments), name="tuner-control", daemon=True
                ).start()
            else:
                calls.put((number, method, arguments))
    finally:  # the driver is gone
        os.killpg(0, signal.SIGKILL)


def _answer(link: Link, rank: Rank, number: int, method: str, arguments: Any) -> None:
    try:
        if method == "run":
            sys_path, blob = arguments
            sys.path[:0] = [entry for entry in sys_path if entry not in sys.path]
            function, args = pickle.loads(blob)
            answer: tuple[int, bool, Any] = number, True, function(*args)
        else:
            answer = number, True, getattr(rank, method)(*arguments)
    except BaseException as error:
        answer = number, False, as_text(error)
    try:
        link.send(answer)
    except PeerLost:
        if not link.is_open():
            _exit(CUT_OFF)  # the server kills the processes that this one has started
        os.killpg(0, signal.SIGKILL)
    except Exception as error:  # the answer cannot be pickled
        link.send((number, False, f"{type(error).__name__}: {error}"))


# -- the server ------------------------------------------------------------------------------------------------------------


def main() -> None:
    """Fork a rank for each socket that the driver sends, and tell the driver about each rank that exits."""
    control = socket.socket(fileno=int(sys.argv[1]))
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if libc is not None:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    nothing = os.open(os.devnull, os.O_RDWR)
    living: set[int] = set()
    modules.forking()
    poll = select.poll()  # the driver may have many files open, and `select.select` takes no descriptor above 1,023
    for descriptor in (control.fileno(), woken):
        poll.register(descriptor, select.POLLIN)
    try:
        control.sendall(b'{"ready": true}\n')
        while os.getppid() == parent:
            readable = {descriptor for descriptor, _ in poll.poll(LOOK_S * 1000)}
            if woken in readable:
                os.read(woken, 4096)
            _reap(control, living)
            if control.fileno() in readable:
                message, sockets, _, _ = socket.recv_fds(control, 1, 1)
                if not message:
                    break
                for found in sockets:
                    os.set_inheritable(found, False)
                    try:
                        pid = os.fork()
                    except OSError as error:  # such as too many processes; the other ranks keep running
                        os.close(found)
                        control.sendall(json.dumps({"refused": str(error)}).encode() + b"\n")
                        continue
                    if pid == 0:
                        _become_rank(socket.socket(fileno=found), control, (wakeup, woken), nothing, libc)
                    os.close(found)
                    living.add(pid)
                    with contextlib.suppress(OSError):
                        os.setpgid(pid, pid)  # the rank makes the same call; either process may be first
                    control.sendall(json.dumps({"pid": pid}).encode() + b"\n")
    except OSError:
        pass  # the driver is gone
    finally:
        for pid in living:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)  # then its children are those of the server
        _end_orphans(set())
        control.close()


def _reap(control: socket.socket, living: set[int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        if pid not in living:
            continue  # a process that a rank has started
        living.discard(pid)
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)  # the processes that the rank has started
        _end_orphans(living)
        ended = {"ended": pid, "status": os.waitstatus_to_exitcode(status)}
        control.sendall(json.dumps(ended).encode() + b"\n")


def _end_orphans(living: set[int]) -> None:
    """Kill the processes whose rank has exited, and those that they have started in turn, in whatever session they are.

    A process without the variable that names its rank may belong to any rank, and is killed once no rank is left.
    """
    tried: set[int] = set()
    while found := [pid for pid in _children() if pid not in living | tried and _is_orphan(pid, living)]:
        for pid in found:
            tried.add(pid)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)  # then its children are those of the server


def _children() -> list[int]:
    """Return the children of the server, which has one thread."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split()]
    except OSError:
        return [process.pid for process in psutil.Process().children()]


def _is_orphan(pid: int, living: set[int]) -> bool:
    try:
        rank = psutil.Process(pid).environ().get(_STARTED_BY)
    except psutil.Error:
        rank = None
    if rank == os.environ.get(_STARTED_BY):
        rank = None  # a fork that runs no program shows the server's own variables, which name no rank of this server
    return not living if rank is None else not (rank.isdecimal() and int(rank) in living)


def _become_rank(
    connection: socket.socket, control: socket.socket, pipes: tuple[int, int], nothing: int, libc: Any
) -> None:
    """Turn the forked process into a rank. This function does not return."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        server = os.getppid()
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != server:  # the server exited before the kernel was told to kill this process
            return
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        control.close()
        for pipe in pipes:
            os.close(pipe)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        os.environ[_STARTED_BY] = str(os.getpid())
        if "gpus" not in sys.argv[2:]:  # no trial requests a GPU; Ray hides GPUs from such trials too
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        serve(Link(connection))
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
