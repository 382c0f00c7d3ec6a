"""Write to the database in one thread of a driver host."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tuner.errors import Retryable
from tuner.hosts.measures.metrics import Histogram

T = TypeVar("T")

_END_S = 60.0  # seconds for which the process waits for pending writes before it exits


class Writer:
    """Calls functions that write to the database, one after another in a thread of its own.

    This way, a slow or locked database never blocks the event loop. Every verdict goes through this thread and back, so the
    thread takes its calls from a queue in C, which costs a third as much per call as a `ThreadPoolExecutor` with its two futures.

    Args:
        times: the histogram of the seconds that writes take, excluding the time in the queue.
    """

    def __init__(self, times: Histogram) -> None:
        self._times = times
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.failed_at = float("-inf")
        """The time, by the monotonic clock, of the last write that failed because the database was unreachable.

        It may be the only sign of an outage, because reads still work if the disk is full or the server has become a standby.
        """

    @property
    def queue(self) -> int:
        """Return the number of writes that wait for the thread."""
        return self._calls.qsize()

    async def write(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in the thread. The calls are made in the order of the calls of this method.

        If the caller is cancelled during the write, it still waits until the write ends. So the caller's next write, such as the
        release of a lease, comes after this one.
        """
        if self._closed:
            raise RuntimeError("cannot write after the writer was closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tuner-writer", daemon=True)
            self._thread.start()
            atexit.register(self._finish)  # pending writes are still made when the process exits
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()  # so that the thread's log lines name the experiment, too

        def call() -> None:
            try:
                value = context.run(self._timed, function, *args)
            except BaseException as error:
                _tell(loop, _fail, done, error)
            else:
                _tell(loop, _set, done, value)

        self._calls.put(call)
        try:
            return await asyncio.shield(done)
        except Retryable:
            self.failed_at = time.monotonic()
            raise
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await asyncio.wait({done})
            raise

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # the thread must not keep the batch until the next one comes

    def _timed(self, function: Callable[..., T], *args: Any) -> T:
        begun = time.perf_counter()
        try:
            return function(*args)
        finally:
            self._times.add(time.perf_counter() - begun)

    def close(self) -> None:
        """Stop the thread once it has made all pending calls."""
        if not self._closed:
            self._closed = True
            self._calls.put(None)
            atexit.unregister(self._finish)

    def _finish(self) -> None:
        self.close()
        if self._thread is not None:
            self._thread.join(_END_S)


def _tell(loop: asyncio.AbstractEventLoop, how: Callable[..., None], done: asyncio.Future[Any], value: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(how, done, value)


def _set(done: asyncio.Future[Any], value: Any) -> None:
    if not done.done():
        done.set_result(value)


def _fail(done: asyncio.Future[Any], error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)
