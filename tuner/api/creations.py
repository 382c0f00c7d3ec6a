"""Create experiments for many requests at once.

One thread checks the specs of the requests that wait, and writes their experiments in one transaction. A thread for
each request would take twice as much CPU time, most of it for handing over the GIL.

A request waits for those before it, so this thread must not do anything slow. Requests that may import code, read logs or copy
files are handled by `Context.off_the_pool` instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from tuner.api.access.auth import Entry
from tuner.api.problems import problem_response
from tuner.experiment.operations.earlier import ProjectFacts
from tuner.store import Creation, ExperimentRecord, Store
from tuner.store.service.access import AuditRecord

AT_ONCE = 64
"""The maximum number of experiments in one transaction. The first request is answered only once all of them are written.

If all waiting requests fit, each waits for the transaction before its own and for its own, and for about as long as the others
do. If they do not fit, some wait for one transaction more than others.
"""

QUICK_BYTES = 16 * 1024
"""The maximum size of a body that is handled here. Checking a spec of this size takes a few milliseconds."""

SLOW_FIELDS = ("warm_start", "runtime_env", "bundle", "command", "function")
"""The fields of a spec that make its check slow, because it reads logs, or reads, copies or hashes files."""

Check = Callable[[ProjectFacts], Creation | ExperimentRecord]
"""Returns the `Creation` of the experiment, or the experiment that an earlier request with the same key has created.

Its argument is what the requests of one transaction have read about their projects.
"""


def is_quick(data: Any, size: int) -> bool:
    """Return whether a request with this spec can be handled here. size: the number of bytes of its body."""
    return size <= QUICK_BYTES and isinstance(data, Mapping) and not any(data.get(name) for name in SLOW_FIELDS)


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request that waits for its experiment."""

    check: Check
    show: Callable[[ExperimentRecord], Response]
    loop: asyncio.AbstractEventLoop
    answered: asyncio.Future[Response]
    entry: Entry | None
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    creation: Creation | None = None
    response: Response | None = None
    error: BaseException | None = None

    def begin(self, facts: ProjectFacts) -> None:
        """Check the spec."""
        try:
            found = self.context.run(self.check, facts)
            if isinstance(found, ExperimentRecord):
                self.response = self.context.run(self.show, found)
            else:
                self.creation = found
        except BaseException as error:
            self.error = error

    def record(self) -> AuditRecord | None:
        """Return the entry for the audit trail if the experiment has been inserted, and None if there is no entry to write."""
        if self.entry is None or self.creation is None or self.creation.error is not None:
            return None
        found = self.creation.result
        assert found is not None
        return self.entry.record(201, found if isinstance(found, str) else found.public_id)

    def finish(self, store: Store) -> None:
        """Build the response, after the transaction."""
        if self.creation is None:
            return
        try:
            self.response = self.context.run(self.show, store.experiments.created(self.creation))
        except BaseException as error:
            self.error = error

    def answer(self) -> None:
        """Pass the response on to the request, in its event loop."""
        if self.answered.done():  # the client has disconnected
            return
        if self.error is not None:
            self.answered.set_exception(self.error)
        else:
            assert self.response is not None
            self.answered.set_result(self.response)


class Creations:
    """Creates experiments in a thread of its own. Use it in event loops."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="create")
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._works = False
        self._is_closed = False

    async def create(
        self, check: Check, show: Callable[[ExperimentRecord], Response], entry: Entry | None = None
    ) -> Response:
        """Create an experiment, and return the response that shows it, or a 503 after `close`.

        Args:
            check: checks the spec. It is called in the thread, and must be quick.
            show: builds the response from the record. It is called in the thread after the experiment is committed.
            entry: the request's entry in the audit trail, which is written in the same transaction.
        """
        loop = asyncio.get_running_loop()
        mine = _Waiting(check, show, loop, loop.create_future(), entry)
        with self._lock:
            if self._is_closed:
                return problem_response(503, "the service is shutting down", headers={"Retry-After": "2"})
            if not self._works:
                self._thread.submit(self._work)  # if this fails, no request is left waiting
                self._works = True
            self._waiting.append(mine)
        return await mine.answered

    def close(self) -> None:
        """Accept no more requests. Those that wait are still answered."""
        with self._lock:
            self._is_closed = True
        self._thread.shutdown(wait=False)

    def _work(self) -> None:
        while batch := self._next():
            try:
                self._create(batch)
            except BaseException as error:  # otherwise these requests, and all later ones, would wait forever
                for one in batch:
                    one.error = one.error or error
            for loop in {one.loop for one in batch}:
                with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits for these answers
                    loop.call_soon_threadsafe(_answer, [one for one in batch if one.loop is loop])

    def _create(self, batch: list[_Waiting]) -> None:
        # A token for one project cannot create experiments in another, so this store may see all.
        facts = ProjectFacts(self._store)
        for one in batch:
            one.begin(facts)
        entries = self._store.access.entries(lambda: filter(None, [one.record() for one in batch]))
        if creations := [one.creation for one in batch if one.creation is not None]:
            self._store.experiments.create_all(creations, entries)
        for one in batch:
            if one.entry is not None:
                one.entry.is_written = one.creation is not None and one.creation.error is None and entries.error is None
            one.finish(self._store)

    def _next(self) -> list[_Waiting]:
        with self._lock:
            found = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
            self._works = bool(found)
        return found


def _answer(batch: list[_Waiting]) -> None:
    for one in batch:
        one.answer()
