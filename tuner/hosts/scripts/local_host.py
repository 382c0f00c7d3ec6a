"""Run the driver host of the local executor in a thread of the script, and keep it between the script's calls.

The processes for trials may have been started early; see `tuner.hosts.scripts.prestart`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from tuner.hosts.host import Host
from tuner.hosts.local_executor import LocalExecutor
from tuner.hosts.scripts import prestart
from tuner.hosts.scripts.needs import of_database, of_workers
from tuner.settings import Settings
from tuner.trials.groups.pools.cpus import cpus_here
from tuner.trials.groups.pools.local_ranks import RankServer

T = TypeVar("T")

_CLOSE_S = 20.0
_CANCEL_S = 2.0


class LocalHost:
    """A driver host whose event loop runs in a thread of this process."""

    def __init__(self, settings: Settings, server: RankServer) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tuner-driver", daemon=True)
        self._thread.start()
        self._host = self._call(_new_host(settings, server)).result()

    def _run(self) -> None:
        """Run the event loop until it is stopped. Then cancel the tasks that `close` has not waited for, as in an outage."""
        try:
            self._loop.run_forever()
            if rest := asyncio.all_tasks(self._loop):
                for task in rest:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(rest, timeout=_CANCEL_S))
        finally:
            self._loop.close()

    def start(self) -> None:
        """Start renewing leases and looking for commands. Repeated calls do no harm."""
        self._call(self._host.start()).result()

    def drive(self, public_id: str, executor: str) -> Future[str]:
        """Drive an experiment until it has ended or is paused. Return a future of the experiment's state.

        executor: a sentence on where the trials run and why, for the experiment's log.
        """
        return self._call(self._host.drive(public_id, executor))

    def poke(self) -> None:
        """Look for new commands now."""
        self._call(self._host.poke())

    def rest(self) -> None:
        """Release the database until the next call. Idle processes are kept for a while."""
        self._call(self._host.rest(True)).result(_CLOSE_S)

    def close(self) -> None:
        """Shut down the host and everything that it runs. Experiments keep their state."""
        with contextlib.suppress(Exception):
            self._call(self._host.close()).result(_CLOSE_S)
        self.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)

    def kill(self) -> None:
        """Kill the processes of all trials at once."""
        self._server.kill()

    def _call(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


async def _new_host(settings: Settings, server: RankServer) -> Host:
    return Host(settings, f"local-{os.getpid()}", LocalExecutor(server, cpus_here()))


@dataclass(slots=True, eq=False)
class _Kept:
    host: LocalHost
    needs: tuple[Any, ...]  # a call can use this host only if the call's needs are the same
    users: int = 0


_kept: _Kept | None = None
_lock = threading.RLock()
_pid = os.getpid()


def has(needs: tuple[Any, ...]) -> bool:
    """Return whether a host from an earlier call can serve a call with these needs; see `needs.of_workers`."""
    return _kept is not None and _kept.needs[2:] == needs


@contextlib.contextmanager
def borrow(settings: Settings, *, keep: bool = True) -> Iterator[LocalHost]:
    """Provide a driver host for a `with` block: the host that was kept from an earlier call, or a new one.

    keep: True to keep the host for later calls. After an exception in the block, the host is not kept.
    """
    kept = _take(settings)
    try:
        yield kept.host
    except BaseException:
        _give_back(kept, keep=False)
        raise
    _give_back(kept, keep)


def shutdown() -> None:
    """Shut down everything that is kept for later calls: the driver host and idle processes."""
    global _kept
    prestart.drop()
    with _lock:
        kept, _kept = _kept, None
        if os.getpid() != _pid:
            return  # this process is a fork; the kept host belongs to its parent
        if kept is not None and not kept.users:
            kept.host.close()


def _take(settings: Settings) -> _Kept:
    global _kept, _pid
    with _lock:
        if os.getpid() != _pid:  # a fork does not have its parent's threads
            _kept, _pid = None, os.getpid()
        kept = _kept
        if kept is None or kept.needs != _needs(settings):
            if kept is not None and not kept.users:
                _kept = None
                kept.host.close()
            kept = _Kept(LocalHost(settings, prestart.take()), _needs(settings))
            if _kept is None:  # if another thread uses the kept host, the new host is for this call only
                _kept = kept
        kept.users += 1
    try:
        kept.host.start()
    except BaseException:  # Ctrl-C
        _give_back(kept, keep=False)
        raise
    return kept


def _give_back(kept: _Kept, keep: bool) -> None:
    global _kept
    with _lock:
        kept.users -= 1
        if not keep and kept is _kept:
            _kept = None
        if kept.users:
            return
        if kept is _kept:
            try:
                kept.host.rest()
            except Exception:
                _kept = None
        if kept is not _kept:
            kept.host.close()


def _needs(settings: Settings) -> tuple[Any, ...]:
    return settings, of_database(settings.database_url), *of_workers()


def _at_exit() -> None:
    """Kill the processes of all trials. The host cannot be closed properly: Python has already shut down its thread pools."""
    if os.getpid() == _pid and _kept is not None:
        _kept.host.kill()


atexit.register(_at_exit)
