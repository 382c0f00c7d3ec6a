"""The driver host of a script or a notebook, kept between its calls: only the first one waits for Ray and a host to start.

What is kept ends with the process, by `shutdown`, and whenever a call needs another: other settings, another Ray, changed
environment variables or `sys.path`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ray

from tuner.driver.cluster import DEAD, connect
from tuner.driver.host import start_host
from tuner.settings import Settings

_CLOSE_S = 20.0


@dataclass(slots=True, eq=False)
class _Kept:
    host: Any
    private: bool  # whether Ray was started for it
    needs: tuple[Any, ...]  # what a call must have in common with the one that it was started for
    node: str  # of the Ray that it belongs to
    pid: int
    users: int = 0

    @property
    def here(self) -> bool:
        """Whether this process, and not the one it was forked from, is still connected to that Ray."""
        return self.pid == os.getpid() and ray.is_initialized() and ray.get_runtime_context().get_node_id() == self.node


_kept: _Kept | None = None
_lock = threading.RLock()


@contextlib.contextmanager
def borrow(
    settings: Settings, address: str | None, start: Callable[[Any], None], *, keep: bool = True
) -> Iterator[Any]:
    """A driver host for the length of a `with` block: the kept one, or a new one once `start` has seen it come up.

    address: of the Ray cluster; None: the one that this process is connected to, or a private one.
    keep: whether it may serve the next call. After an exception it never does.
    """
    kept = _take(settings, address, start)
    try:
        yield kept.host
    except BaseException as error:
        kept.users -= 1
        _end(kept, ray_too=not isinstance(error, DEAD))
        raise
    with _lock:
        kept.users -= 1
        done_with = kept is not _kept or (not kept.users and not (keep and _rests(kept)))
        if done_with:
            _end(kept)


def shutdown() -> None:
    """End what was kept for further calls: the driver host, idle worker groups, and the Ray that was started for them."""
    with _lock:
        if _kept is not None:
            _end(_kept)


def _take(settings: Settings, address: str | None, start: Callable[[Any], None]) -> _Kept:
    global _kept
    with _lock:
        needs = _needs(settings, address)
        if _kept is not None and _kept.here and _kept.needs == needs and _answers(_kept.host):
            _kept.users += 1
            return _kept
        if _kept is not None and not _kept.users:
            shutdown()
        private = connect(address)
        host = start_host(settings)
        kept = _Kept(host, private, (), ray.get_runtime_context().get_node_id(), os.getpid(), users=1)
        try:
            start(host)
        except BaseException:
            kept.users -= 1
            _end(kept)
            raise
        kept.needs = _needs(settings, address)  # connecting sets variables of its own
        if _kept is None:  # else another thread uses one, and this one serves one call
            _kept = kept
        return kept


def _needs(settings: Settings, address: str | None) -> tuple[Any, ...]:
    return settings, address, _file(settings.database_url), dict(os.environ), list(sys.path)


def _file(url: str) -> tuple[int, int] | None:
    """Which file an SQLite database is: one that was deleted and made anew is another."""
    try:
        found = os.stat(url.removeprefix("sqlite:///"))
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _answers(host: Any) -> bool:
    try:
        ray.get(host.start.remote(), timeout=_CLOSE_S)
    except ray.exceptions.RayError:
        return False
    return True


def _rests(kept: _Kept) -> bool:
    """On a Ray of our own idle worker groups may stay for a while; on one that others use, nothing stays but the host."""
    try:
        ray.get(kept.host.rest.remote(kept.private))
    except ray.exceptions.RayError:
        return False
    return True


def _end(kept: _Kept, ray_too: bool = True) -> None:
    """Let the host put everything back, and if it cannot, have Ray remove it with all that belongs to it."""
    global _kept
    with _lock:
        if kept is _kept:
            _kept = None
        if not kept.here:
            return
        try:
            ray.get(kept.host.close.remote(), timeout=_CLOSE_S)
        except Exception:
            pass
        finally:
            ray.kill(kept.host)
        if kept.private and ray_too and not kept.users:
            ray.shutdown()


atexit.register(shutdown)
