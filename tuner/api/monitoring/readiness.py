"""Check that the service is ready: the database accepts writes and has this version's tables, and the driver answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from tuner.errors import StoreError
from tuner.store import Store

PATIENCE_S = 3.0
"""Seconds after which a readiness check stops waiting for the database."""

AGAIN_S = 1.0
"""Seconds after a successful test write before the next one, so that probes cause little load."""


class Readiness:
    """Checks whether the service is ready. It queries the database in a separate thread.

    Callers share a query that is still running, so that a slow database gets only one query at a time.
    """

    def __init__(self, store: Store, problem: Callable[[], str | None]) -> None:
        self._store, self._problem = store, problem
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="readiness")
        self._looking: Future[str | None] | None = None
        self._since = 0.0
        self._wrote_at = float("-inf")
        self._is_closed = False

    async def problems(self) -> list[str]:
        """Return the problems that keep the service from running experiments, or an empty list if it is ready."""
        if self._is_closed:
            return ["the service is shutting down"]
        found = [await self._database(), self._problem()]
        return [problem for problem in found if problem is not None]

    def close(self) -> None:
        """Start no further checks. From now on, the service is not ready."""
        self._is_closed = True
        self._thread.shutdown(wait=False)

    async def _database(self) -> str | None:
        if self._looking is None or self._looking.done():
            self._since = time.monotonic()
            self._looking = self._thread.submit(self._look)
        look = asyncio.wrap_future(self._looking)
        done, _ = await asyncio.wait([look], timeout=max(0.0, self._since + PATIENCE_S - time.monotonic()))
        if done:
            return look.result()
        return f"the database has not answered for {time.monotonic() - self._since:.0f} s"

    def _look(self) -> str | None:
        problem = self._try()
        # The first attempt fails if an earlier outage broke the connection. The second one uses a new connection.
        return self._try() if problem is not None else None

    def _try(self) -> str | None:
        try:
            self._store.check()
            if time.monotonic() >= self._wrote_at + AGAIN_S:
                self._store.check_write()
                self._wrote_at = time.monotonic()
        except StoreError as error:
            return str(error)
        return None
