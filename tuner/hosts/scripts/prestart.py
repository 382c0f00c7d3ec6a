"""Start processes early, while a script is still checking its arguments, loading modules and opening the database.

This module imports few others, so that the processes start as early as possible.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable
from typing import Any

from tuner.hosts.ray.fork_server import FORKS, ForkServer
from tuner.hosts.scripts.needs import OF_LIBRARIES, of_workers
from tuner.trials.groups.pools.cpus import cpus_here
from tuner.trials.groups.pools.local_ranks import RankServer

# the server, the needs for which it was started, and the pid of its parent
_early: tuple[RankServer, tuple[Any, ...], int] | None = None
_lock = threading.Lock()


def start(count: int) -> None:
    """Start a server with up to `count` processes for trials, unless a server that was started earlier is still unused."""
    global _early
    with _lock:
        if _early is None:
            _early = RankServer(min(count, cpus_here())), of_workers(), os.getpid()


def take() -> RankServer:
    """Return the server that was started early if it can be used, otherwise a new one without processes."""
    global _early
    with _lock:
        found, _early = _early, None
    if found is not None and found[2] == os.getpid():
        if found[1] == of_workers() and not found[0].over:
            return found[0]
        found[0].kill()
    return RankServer()


def drop() -> None:
    """Stop the server that was started early, unless `take` has returned it."""
    global _early
    with _lock:
        found, _early = _early, None
    if found is not None and found[2] == os.getpid():
        found[0].kill()


# the server for a Ray that has not been started yet, and the pid of its parent
_forks: tuple[ForkServer, int] | None = None


def start_forks(torch: bool, used: Iterable[str]) -> None:
    """Start a server that forks the workers of a private Ray, unless one that was started earlier is still unused.

    torch: True if the workers need PyTorch. used: the modules of `ON_USE` that they need.
    """
    global _forks
    with _lock:
        if FORKS and _forks is None:
            _forks = ForkServer(torch, OF_LIBRARIES, used=used), os.getpid()


def take_forks() -> ForkServer:
    """Return the server that was started early, or a new one."""
    global _forks
    with _lock:
        found, _forks = _forks, None
    return found[0] if found is not None and found[1] == os.getpid() else ForkServer(ignored=OF_LIBRARIES)


def drop_forks() -> None:
    """Stop the server that was started early, unless `take_forks` has returned it."""
    global _forks
    with _lock:
        found, _forks = _forks, None
    if found is not None and found[1] == os.getpid():
        found[0].end()


atexit.register(drop)
atexit.register(drop_forks)
