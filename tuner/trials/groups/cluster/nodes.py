"""Functions to run on a rank's node after the rank has exited: read the rest of its log, and kill leftover processes.

The driver host calls these functions directly for its own node, and as Ray tasks for other nodes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence

from tuner.domain.logs import LogChunk, LogLimit, Range, cut, without
from tuner.trials.groups.failures import Findings
from tuner.trials.runtime.sending import logs
from tuner.trials.training.oom import oom_kills

_GONE_S = 30.0  # seconds that processes may take to exit; one with a lot of memory takes long
_POLL_S = 0.02


def inspect(log_path: str) -> Findings:
    return Findings(log_end=logs.tail(log_path, 1000), oom_kills=oom_kills())


def reap(pids: Sequence[int]) -> list[int]:
    """Wait for ranks' processes to exit, kill those that take too long, and return the pids that are still alive.

    Processes that a rank has started are killed too. They are in the process group that the rank leads.
    """
    deadline = time.monotonic() + _GONE_S
    hard = time.monotonic() + 0.5
    left = list(pids)
    while left:
        left = [pid for pid in left if _alive(pid)]
        if not left or time.monotonic() > deadline:
            break
        if time.monotonic() > hard:
            for pid in left:
                _signal(pid)
        time.sleep(_POLL_S)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    return left


def rest_of_log(path: str, rank: int, limit: LogLimit, have: Sequence[Range]) -> list[LogChunk]:
    """Return the chunks of a rank's log file that have not been stored yet, followed by a chunk that marks the end.

    Return an empty list if there is no such file on this node. have: the ranges of the file that are already stored.
    """
    now = time.time()
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size

            def read(start: int, count: int) -> bytes:
                return os.pread(file.fileno(), count, start)

            chunks = list(cut(read, without(limit.kept(size), have), limit.head, rank, now))
    except FileNotFoundError:  # the rank died before it could open its log, or it ran on another machine
        return []
    return [*chunks, LogChunk.of(rank, size, b"", now)]


def _alive(pid: int) -> bool:
    """Return whether a process is running.

    A zombie whose threads have all exited does not count as running, because it no longer holds memory or devices.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state = file.read().rpartition(")")[2].split()[0]
        return state not in ("Z", "X") or len(os.listdir(f"/proc/{pid}/task")) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def _signal(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
