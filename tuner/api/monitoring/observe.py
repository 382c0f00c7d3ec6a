"""Observe every request: give it an id, write a line to the log, and count it for `GET /metrics`."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.api.headers import header
from tuner.api.monitoring.metrics import Metrics
from tuner.api.paths import keep_slashes, path_of
from tuner.api.problems import problem_response, unexpected
from tuner.store import watched_commits
from tuner.telemetry import log_format, tracing

log = logging.getLogger("tuner.access")

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""The pattern that a request id from a client or a proxy must match; other ids are ignored, since ids are written to the log."""

PAGE = "page"
"""The route that metrics show for requests outside the API: the web UI, its files, and wrong paths."""

QUIET = frozenset({"/healthz", "/readyz", "/metrics", PAGE})
"""Routes that are logged only at the level DEBUG, because probes call them all the time."""

Route = tuple[re.Pattern[str], str]
"""The regular expression and the template of a route's path."""


def _span(name: str, route: str, carrier: Mapping[str, str]) -> AbstractContextManager[Any]:
    """Return a context manager that opens the span of a request. Requests to the routes in `QUIET` get no span."""
    return nullcontext() if route in QUIET else tracing.span(name, carrier)


def _below(root_path: str, location: bytes) -> bytes:
    """Return the value of the header Location for clients that reach the service below a path."""
    return root_path.encode() + location if location.startswith(b"/api/") else location


class Observe:
    """The outermost ASGI middleware: gives each request an id, and logs and counts the response.

    It also adds the service's path prefix to the header Location of responses, and answers a request that has failed with an
    unexpected error or was cancelled, so that this response has the request's id too.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Sequence[Route], root_path: str = "") -> None:
        self._app = app
        self._metrics = metrics
        self._fixed = {template for _, template in routes if "{" not in template}
        self._routes = routes
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        keep_slashes(scope)
        if self._root_path:
            # Routes then match with and without the prefix, because not all proxies strip it.
            scope["root_path"] = self._root_path
        sent = header(scope, b"x-request-id") or ""
        name = sent if REQUEST_ID.fullmatch(sent) else f"{random.getrandbits(64):016x}"
        route, ids = self._route(path_of(scope))
        begun, status, is_answered = time.perf_counter(), 500, False
        scope.setdefault("state", {})  # inner middleware puts the sender's identity into this dict

        async def noting(message: Message) -> None:
            nonlocal status, is_answered
            if message["type"] == "http.response.start":
                status, is_answered = message["status"], True
                headers = [(key, value) for key, value in message["headers"] if key != b"x-request-id"]
                if root := scope.get("root_path"):
                    headers = [(key, _below(root, value) if key == b"location" else value) for key, value in headers]
                message["headers"] = [*headers, (b"x-request-id", name.encode())]
            await send(message)

        carrier = {key: value for key in ("traceparent", "tracestate") if (value := header(scope, key.encode()))}
        about = f"{scope['method']} {route}"
        with log_format.about(request_id=name, **ids), watched_commits(), _span(about, route, carrier) as span:
            try:
                await self._app(scope, receive, noting)
            except Exception as error:
                if is_answered:
                    raise
                tracing.record_error(span, error)
                await unexpected(scope, error)(scope, receive, noting)
            except asyncio.CancelledError:  # the service ends, and this request takes too long
                if not is_answered:
                    detail = "the service was stopped before the request was answered; it may have been carried out"
                    await problem_response(503, detail, headers={"Connection": "close"})(scope, receive, noting)
                raise
            finally:
                if span is not None:
                    span.set_attribute("http.response.status_code", status)
                took = time.perf_counter() - begun
                self._metrics.count_request(scope["method"], route, status, took)
                self._write(scope, route, status, took)

    def _route(self, path: str) -> tuple[str, dict[str, str]]:
        """Return the template of the route with this path, and the ids of the experiment and the trial in the path."""
        if path in self._fixed:
            return path, {}
        for pattern, template in self._routes:
            if (found := pattern.fullmatch(path)) is not None:
                ids = {name.removesuffix("_id"): value for name, value in found.groupdict().items()}
                return template, {name: ids[name] for name in ("experiment", "trial") if name in ids}
        return PAGE, {}

    def _write(self, scope: Scope, route: str, status: int, took: float) -> None:
        level = logging.DEBUG if route in QUIET and status < 500 else logging.INFO
        if not log.isEnabledFor(level):
            return
        identity = scope["state"].get("identity")
        client = scope.get("client")
        path = scope["path"].encode("ascii", "backslashreplace").decode()
        extra = {
            "method": scope["method"],
            "path": path,
            "status": status,
            "ms": round(took * 1000, 1),
            "actor": identity.name if identity is not None else None,
            "address": client[0] if client else None,
        }
        log.log(level, "%s %r %d in %.1f ms", scope["method"], path, status, took * 1000, extra=extra)
