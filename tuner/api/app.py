"""Putting the API together: routes, errors, guards, the page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.routing import APIRoute
from starlette.routing import compile_path

from tuner import __version__
from tuner.api import access, experiments, health, pages, problems, trials
from tuner.api.answers import only_known_parameters
from tuner.api.auth import Authenticate
from tuner.api.context import Context
from tuner.api.guards import Guard
from tuner.api.openapi import describe
from tuner.errors import DriverSilent
from tuner.settings import Settings
from tuner.store import Store

GZIP_LEVEL = 1  # the others take several times as long for a few per cent


def create_app(
    settings: Settings,
    store: Store,
    poke: Callable[[], None] | None = None,
    problem: Callable[[], str | None] | None = None,
    look: Callable[[str], Mapping[str, Mapping[str, Any]]] | None = None,
    *,
    web: Path | None = None,
) -> FastAPI:
    """The service without a driver, to be run by any ASGI server in one process.

    poke: called after a row was written that the driver should look at; must return at once.
    problem: why the driver is not ready, or None; for ``/readyz``.
    look: segment -> rank -> {"stack": …, and its figures now}; nothing where it does not run. DriverSilent where nobody can tell.
    web: the built page; by default the one in the package.

    The store stays the caller's: it is not closed. ``app.state.context.end()`` lets open event streams and waiting requests
    end before the server waits for them.
    """
    context = Context(settings, store, poke or (lambda: None), problem or (lambda: None), look or _nobody)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        yield {}
        context.end()

    app = FastAPI(title="tuner", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.context = context
    app.include_router(health.router)
    for part in (experiments, trials, access):
        app.include_router(part.router, prefix="/api/v1", dependencies=[Depends(only_known_parameters)])
    app.include_router(pages.router(web))
    app.state.methods = [
        (compile_path(prefix + route.path)[0], route.methods)
        for prefix, part in (("", health), ("/api/v1", experiments), ("/api/v1", trials), ("/api/v1", access))
        for route in part.router.routes
        if isinstance(route, APIRoute)
    ]
    problems.install(app)
    describe(app)
    app.add_middleware(Authenticate, authenticator=context.authenticator, store=store)
    app.add_middleware(Guard, settings=settings)
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=GZIP_LEVEL)  # not of event streams
    return app


def _nobody(segment_id: str) -> Mapping[str, Mapping[str, Any]]:
    raise DriverSilent("the driver belongs to the script that runs this search, and only `tuner serve` can ask its own")
