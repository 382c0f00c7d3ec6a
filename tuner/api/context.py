"""The objects that all routes share: the database, the settings, the functions that reach the driver."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from tuner.api.access.auth import Authenticator, Identity
from tuner.api.creations import Creations
from tuner.api.driver import Driver
from tuner.api.monitoring.metrics import Metrics
from tuner.api.monitoring.readiness import Readiness
from tuner.api.stream import Tail
from tuner.errors import CheckerBusy, DriverSilent
from tuner.experiment.analysis.preview import Importances
from tuner.experiment.code.bundles import Bundles
from tuner.settings import Settings
from tuner.store import Store
from tuner.usercode.entrypoints import EntrypointChecker

T = TypeVar("T")

LOOK_S = 0.25
"""While a request waits for the driver, it checks at this interval, in seconds, whether the service is shutting down."""
CHECK_THREADS = 64
"""The number of threads for requests that may import an entrypoint.

It exceeds the number of requests that may wait for an import, so that there is always a free thread.
"""


@dataclass(slots=True)
class Context:
    """The objects that a route needs to answer a request.

    If the sender's token is limited to a project, `store` shows only that project.
    """

    settings: Settings
    store: Store
    driver: Driver
    metrics: Metrics | None = None
    checker: EntrypointChecker = field(default_factory=EntrypointChecker)
    project: str | None = None  # the only project that the caller may see; None: all projects
    ending: threading.Event = field(default_factory=threading.Event)
    # Several replays at once would delay all other requests.
    replaying: asyncio.Lock = field(default_factory=asyncio.Lock)
    tail: Tail = field(init=False)
    importances: Importances = field(init=False)
    readiness: Readiness = field(init=False)
    bundles: Bundles = field(init=False)
    creations: Creations = field(init=False)
    _checks: ThreadPoolExecutor = field(init=False)
    authenticator: Authenticator = field(init=False)

    def __post_init__(self) -> None:
        self.readiness = Readiness(self.store, self.driver.problem)
        self.bundles = Bundles(self.settings.storage, self.store)
        self.creations = Creations(self.store)
        self._checks = ThreadPoolExecutor(CHECK_THREADS, thread_name_prefix="check")
        self.tail = Tail(self.store, self.ending)
        self.importances = Importances(self.store)
        self.authenticator = Authenticator(self.settings, self.store)

    def within(self, project: str | None) -> Context:
        """Return a copy of this context that is limited to a project. If `project` is None, return this context."""
        if project is None:
            return self
        limited = copy.copy(self)
        limited.store, limited.project = self.store.within(project), project
        return limited

    async def off_the_pool(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function that may import an entrypoint, and return its result.

        The function runs in a thread pool of its own, so that it does not block the threads of other routes. Raise CheckerBusy
        if the service is shutting down.
        """
        if self.ending.is_set():
            raise CheckerBusy("the service is shutting down")
        return await asyncio.get_running_loop().run_in_executor(
            self._checks, contextvars.copy_context().run, functools.partial(function, *args)
        )

    async def answered(
        self, asked: Future[T], patience_s: float, gone: Callable[[], Awaitable[bool]] | None = None
    ) -> T:
        """Wait for the driver's answer. Raise DriverSilent if it does not come in time, or if the service shuts down first.

        gone: returns True if the client has disconnected. Then DriverSilent is raised too, because nobody waits for the answer.
        """
        answer = asyncio.wrap_future(asked)
        end = asyncio.get_running_loop().time() + patience_s
        while not (await asyncio.wait({answer}, timeout=LOOK_S))[0]:
            if self.ending.is_set() or asyncio.get_running_loop().time() >= end:
                answer.cancel()
                raise DriverSilent(
                    "the service is shutting down" if self.ending.is_set() else "the driver did not answer in time"
                )
            if gone is not None and await gone():
                answer.cancel()
                raise DriverSilent("the client has disconnected")
        return answer.result()

    def end(self) -> None:
        """End open event streams and waiting requests, and stop imports of entrypoints that are in progress."""
        self.ending.set()
        self.checker.close()
        self._checks.shutdown(wait=False)
        self.creations.close()
        self.readiness.close()


async def context(request: Request) -> Context:
    """Return the app's context, limited to what the caller may see.

    This is a coroutine, because FastAPI would run a plain function in a thread.
    """
    found: Context = request.app.state.context
    identity: Identity | None = request.scope.get("state", {}).get("identity")
    return found if identity is None else found.within(identity.project)


Here = Annotated[Context, Depends(context)]
