"""Write to the database in one thread of a driver host."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tuner.errors import Retryable
from tuner.hosts.measures.figures import Histogram

T = TypeVar("T")


class Writer:
    """Calls functions that write to the database, one after another in a thread of its own.

    So a slow or locked database never blocks the event loop.

    Args:
        times: the histogram of the seconds that writes take, without the time in the queue.
    """

    def __init__(self, times: Histogram) -> None:
        self._times = times
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tuner-writer")
        self.failed_at = float("-inf")
        """The time, by the monotonic clock, of the last write that failed because the database was unreachable.

        It may be the only sign of an outage, because reads still work if the disk is full or the server has become a standby.
        """

    @property
    def queue(self) -> int:
        """Return the number of writes that wait for the thread."""
        return self._thread._work_queue.qsize()

    async def write(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in the thread. The calls are made in the order of the calls of this method.

        A caller that is cancelled still waits for a write that has begun, so that the caller's next write, such as the release
        of a lease, comes later.
        """
        context = contextvars.copy_context()  # so that the thread's log lines name the experiment, too
        done = asyncio.get_running_loop().run_in_executor(self._thread, context.run, self._timed, function, *args)
        try:
            return await asyncio.shield(done)
        except Retryable:
            self.failed_at = time.monotonic()
            raise
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await asyncio.wait({done})
            raise

    def _timed(self, function: Callable[..., T], *args: Any) -> T:
        begun = time.perf_counter()
        try:
            return function(*args)
        finally:
            self._times.add(time.perf_counter() - begun)

    def close(self) -> None:
        """End the thread once it has made the calls that wait for it."""
        self._thread.shutdown(wait=False)
