"""Build the service as an ASGI app: routes, error responses, middleware, and the web UI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.routing import APIRoute
from starlette.routing import compile_path
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from tuner import __version__
from tuner.api import problems
from tuner.api.access.auth import Authenticate, PlainAddress, check_allowed, plain_networks, secured
from tuner.api.access.guards import Guard
from tuner.api.answers import with_models
from tuner.api.context import Context
from tuner.api.driver import Driver
from tuner.api.entry import check_request
from tuner.api.housekeeping import keep_clean
from tuner.api.monitoring.metrics import Metrics
from tuner.api.monitoring.observe import Observe
from tuner.api.openapi import describe
from tuner.api.projects import within_project
from tuner.api.routes import (
    access,
    bundles,
    checkpoints,
    health,
    monitoring,
    pages,
    trials,
    verbs,
    webhooks,
)
from tuner.api.routes import agents as agent_routes
from tuner.api.routes import cluster as cluster_routes
from tuner.api.routes import projects as project_routes
from tuner.api.routes.experiments import contents, evaluation, lifecycle, streams
from tuner.api.webhooks.deliver import Deliverer
from tuner.errors import SpecError
from tuner.names import with_extra
from tuner.settings import Settings
from tuner.store import Store

GZIP_LEVEL = 1  # higher levels take several times as long and make the response only a few percent smaller


PARTS = (
    lifecycle,
    contents,
    evaluation,
    streams,
    trials,
    checkpoints,
    verbs,
    agent_routes,
    bundles,
    cluster_routes,
    project_routes,
    access,
    webhooks,
)
"""The modules of the routes under /api/v1."""


def _operation_id(route: APIRoute) -> str:
    return f"{route.tags[0]}_{route.name}" if route.tags else route.name


def _routes(form: Callable[[APIRouter], APIRouter] = lambda router: router) -> APIRouter:
    """Return a router with the routes of every app. `form` is applied to the router of each module.

    FastAPI analyzes the parameters of an included route at its first request, which takes some 200 ms for all routes. Every
    app of this process takes the routes from this router, so they are analyzed only once.
    """
    found = APIRouter(generate_unique_id_function=_operation_id)
    found.include_router(form(health.router))
    found.include_router(form(monitoring.router), dependencies=[Depends(check_allowed), Depends(within_project)])
    for part in PARTS:
        found.include_router(
            form(part.router),
            prefix="/api/v1",
            dependencies=[Depends(check_request)],
        )
    return found


_ROUTES = _routes()
_TEMPLATES = [
    (compile_path(prefix + route.path)[0], prefix + route.path, route.methods)
    for prefix, part in (("", health), ("", monitoring), *(("/api/v1", part) for part in PARTS))
    for route in part.router.routes
    if isinstance(route, APIRoute)
]


def create_app(settings: Settings, store: Store, driver: Driver | None = None, *, web: Path | None = None) -> FastAPI:
    """Return the API and the web UI as an ASGI app. Any ASGI server can run the app, in one process.

    When the server shuts down, first call ``app.state.context.end()``, which ends open event streams and waiting requests.
    Otherwise the server waits for them.

    Args:
        settings: the settings of this installation.
        store: the database. The caller closes it.
        driver: reaches the driver host, which is in another process. None if there is no host.
        web: the folder with the built web UI. None: the folder in the package.
    """
    settings = secured(settings)
    context = Context(settings, store, driver or Driver())
    metrics = context.metrics = Metrics(store, context.driver.metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        deliverer = Deliverer(store, private=settings.webhook_private)
        tasks = [asyncio.create_task(keep_clean(store, settings)), asyncio.create_task(deliverer.run())]
        yield {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        context.end()

    app = FastAPI(
        title="tuner",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # `Observe` has spans and metrics of its own
    )
    app.state.context = context
    app.router.routes += [lifecycle.DIRECT_CREATE, *_ROUTES.routes]
    if settings.oidc_issuer is not None:
        app.include_router(_sign_in(settings))
    app.include_router(pages.router(web))
    app.state.routes = _TEMPLATES
    problems.install(app)
    describe(app, lambda: [*_routes(with_models).routes, *(r for r in app.routes if r not in _ROUTES.routes)])
    app.add_middleware(Authenticate, authenticator=context.authenticator, open_metrics=settings.metrics == "open")
    app.add_middleware(Guard, settings=settings)
    # GZipMiddleware does not compress event streams.
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=GZIP_LEVEL)
    app.add_middleware(
        Observe,
        metrics=metrics,
        routes=[(pattern, template) for pattern, template, _ in _TEMPLATES],
        root_path=settings.root_path,
    )
    app.add_middleware(PlainAddress)
    if settings.trusted_proxies:
        app.add_middleware(
            ProxyHeadersMiddleware,
            trusted_hosts=[plain for one in settings.trusted_proxies for plain in plain_networks(one)],
        )
        app.add_middleware(PlainAddress)  # for the address of the proxy; the other one is for the address that it names
    return app


def _sign_in(settings: Settings) -> APIRouter:
    try:
        from tuner.api.access.oidc import Provider
        from tuner.api.routes import sign_in
    except ImportError as error:
        raise SpecError(f"needs the extra oidc: {with_extra('oidc')} ({error})", "/oidc_issuer") from error
    return sign_in.router(Provider(settings))
