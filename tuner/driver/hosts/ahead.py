"""Start processes for trials while a script still checks its arguments, loads modules and opens the database.

This module loads little, so that the processes start early.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any

from tuner.driver.hosts.needs import of_workers
from tuner.trials.groups.local_ranks import RankServer

_ahead: tuple[RankServer, tuple[Any, ...], int] | None = None  # with what it inherited, and the pid of its parent
_lock = threading.Lock()


def cpus_here() -> int:
    """Return how many CPUs this process may use."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def start(count: int) -> None:
    """Start a server and `count` processes, unless there are some already that nobody has taken."""
    global _ahead
    with _lock:
        if _ahead is None:
            _ahead = RankServer(min(count, cpus_here())), of_workers(), os.getpid()


def take() -> RankServer:
    """Return the server that was started ahead, or a new one."""
    global _ahead
    with _lock:
        found, _ahead = _ahead, None
    if found is not None and found[2] == os.getpid():
        if found[1] == of_workers() and not found[0].over:
            return found[0]
        found[0].kill()
    return RankServer()


def drop() -> None:
    """End what was started ahead and is not needed."""
    global _ahead
    with _lock:
        found, _ahead = _ahead, None
    if found is not None and found[2] == os.getpid():
        found[0].kill()


atexit.register(drop)
