"""Keep the driver host of a script or notebook between calls, so that only the first call waits until Ray and a host start.

A host is kept for calls with the same settings and database. A Ray instance that was started here is kept for calls
with the same address, environment variables and `sys.path`. Its workers inherit the last two from this process. The host and
the Ray instance are shut down when the process exits or `shutdown` is called.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil
import ray

from tuner.hosts.on_ray.start import start_host
from tuner.hosts.ray.cluster import DEAD, connect, disconnect
from tuner.hosts.ray.fork_server import ForkServer
from tuner.hosts.scripts import prestart
from tuner.hosts.scripts.needs import of_database, of_workers
from tuner.settings import Settings
from tuner.trials.messages.rpc import ask

_CLOSE_S = 20.0
_PARTS = {"raylet", "gcs_server"}


@dataclass(slots=True, eq=False)
class _Kept:
    host: Any
    needs: tuple[Any, ...]  # a call can use this host only if the call's needs are the same
    connection: str  # identifies the connection to the Ray instance that the host runs on
    users: int = 0
    pid: int = field(default_factory=os.getpid)  # the process that keeps the host; a fork of it may have a copy of this


@dataclass(frozen=True, slots=True)
class _Private:
    """A Ray instance that this process started and must shut down."""

    connection: str
    needs: tuple[Any, ...]
    forks: ForkServer | None  # forks its workers


_kept: _Kept | None = None
_private: _Private | None = None
_users = 0  # the number of users of all hosts
_lock = threading.RLock()


def _forget() -> None:
    """Forget in a fork what belongs to its parent, and let the fork keep a host and Ray of its own."""
    global _kept, _private, _users, _lock
    _kept = _private = None
    _users = 0
    _lock = threading.RLock()  # another thread of the parent may hold the lock


os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def borrow(
    settings: Settings, address: str | None, start: Callable[[Any], None], *, keep: bool = True
) -> Iterator[Any]:
    """Provide a driver host for a `with` block: the host that was kept from an earlier call, or a new one.

    address: the address of the Ray cluster. None: the cluster that this process is connected to, or a private one.
    start: called with a new host; returns once the host has started.
    keep: True to keep the host for later calls. After an exception in the block, the host is not kept: it is closed once
        its other users, in other threads, have also finished.
    """
    kept = _take(settings, address, start)
    try:
        yield kept.host
    except DEAD:
        _give_back(kept, keep=False)
        raise
    except BaseException:
        _give_back(kept, keep=False)
        _end_ray()
        raise
    _give_back(kept, keep)


def shutdown() -> None:
    """Shut down everything that is kept for later calls: the driver host, idle worker groups, and the private Ray instance."""
    global _kept
    with _lock:
        kept, _kept = _kept, None
        if kept is not None and not kept.users:
            _end(kept)
        _end_ray()


def on_own_ray() -> bool:
    """Return whether this process is connected to a private Ray instance that `borrow` started."""
    return _private is not None and _private.connection == _connection()


def _take(settings: Settings, address: str | None, start: Callable[[Any], None]) -> _Kept:
    global _kept, _users
    with _lock:
        kept = _kept
        if kept is None or not (_here(kept) and kept.needs == _needs(settings, address) and _answers(kept)):
            kept = _begin(settings, address, start)
            if _kept is None:  # if another thread uses the kept host, the new host is for this call only
                _kept = kept
        kept.users += 1
        _users += 1
        return kept


def _begin(settings: Settings, address: str | None, start: Callable[[Any], None]) -> _Kept:
    global _kept
    old = _kept
    if old is not None and not old.users:
        _kept = None
        _end(old)
    if _private is not None and (_private.needs != _of_ray(address) or not _is_whole()):
        _end_ray()
    _connect(address)
    kept = _Kept(start_host(settings), (), _connection())
    try:
        start(kept.host)
    except BaseException:
        _end(kept)
        _end_ray()
        raise
    kept.needs = _needs(settings, address)
    return kept


def _connect(address: str | None) -> None:
    """Connect this process to Ray. If that starts a private Ray instance, keep it."""
    global _private
    forks: ForkServer | None = None

    def take() -> ForkServer:
        nonlocal forks
        forks = prestart.take_forks()
        return forks

    try:
        started = connect(address, fork_server=take)
    except BaseException:
        if forks is not None:
            forks.end()
        raise
    if started:
        # Read the variables after connecting, because Ray sets some of its own.
        _private = _Private(_connection(), _of_ray(address), forks)


def _give_back(kept: _Kept, keep: bool) -> None:
    global _kept, _users
    if kept.pid != os.getpid():
        return  # this fork was made while its parent used the host
    with _lock:
        kept.users -= 1
        _users -= 1
        if not keep and kept is _kept:
            _kept = None
        if not kept.users and (kept is not _kept or not _rests(kept)):
            if kept is _kept:
                _kept = None
            _end(kept)
        if _is_lost(kept):
            _end_ray()  # or else Ray would end this process, which may have more to do than searches


def _is_whole() -> bool:
    """Return whether the raylet and the GCS server of the private Ray instance live.

    Without them, Ray would never start another host, calls of a host would wait in vain, and a minute after the end of the GCS
    server, Ray ends this process with status 1.
    """
    found = set()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.add(child.name())
    return found >= _PARTS


def _is_lost(kept: _Kept) -> bool:
    """Return whether the host can no longer be asked, because it runs on the private Ray instance, which is not whole."""
    return _private is not None and _private.connection == kept.connection and not _is_whole()


def _needs(settings: Settings, address: str | None) -> tuple[Any, ...]:
    return settings, of_database(settings.database_url), _of_ray(address)


def _of_ray(address: str | None) -> tuple[Any, ...]:
    return address, *of_workers()


def _connection() -> str:
    """Return an id of this process's connection to Ray, which each `ray.init` changes, even for the same cluster."""
    if not ray.is_initialized():
        return ""
    context = ray.get_runtime_context()
    return f"{context.get_node_id()} {context.get_job_id()}"


def _here(kept: _Kept) -> bool:
    return kept.pid == os.getpid() and kept.connection == _connection()


def _answers(kept: _Kept) -> bool:
    if _is_lost(kept):
        return False
    try:
        ask(kept.host.start, patience_s=_CLOSE_S, in_time=True)
    except Exception:
        return False
    return True


def _rests(kept: _Kept) -> bool:
    """Make the host release what it does not need between calls. Return whether that succeeded.

    On a private Ray instance, idle worker groups without GPUs are kept for a while; on a shared cluster, no group is kept.
    """
    if _is_lost(kept):
        return False
    private = _private is not None and _private.connection == kept.connection
    try:
        ask(kept.host.rest, private, patience_s=_CLOSE_S, in_time=True)
    except Exception:
        return False
    return True


def _end(kept: _Kept) -> None:
    """Close the host, and then let Ray kill the host's actor with everything that belongs to it.

    If Ray is not whole, do nothing: the host ends with Ray.
    """
    if not _here(kept) or _is_lost(kept):
        return
    try:
        ask(kept.host.close, patience_s=_CLOSE_S, in_time=True)
    except Exception:
        pass
    finally:
        with contextlib.suppress(Exception):
            ray.kill(kept.host)


def _end_ray() -> None:
    """Shut down the Ray instance that this process started, unless another thread still uses it or it is already shut down."""
    global _private
    with _lock:
        if _private is None or _users:
            return
        private, _private = _private, None
        if private.connection == _connection():
            disconnect()
        if private.forks is not None:
            private.forks.end()


atexit.register(shutdown)
