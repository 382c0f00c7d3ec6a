"""Turn exceptions into responses in problem+json (RFC 9457), with JSON pointers to the fields that have mistakes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from tuner.api.paths import PREFIX, meant_path, path_of
from tuner.api.schemas import ErrorItem, Problem
from tuner.errors import (
    CheckerBusy,
    Conflict,
    DriverSilent,
    Gone,
    NotFound,
    Retryable,
    SpecError,
    Stale,
    StoreError,
    TunerError,
)
from tuner.store import may_have_written
from tuner.telemetry import log_format

log = logging.getLogger(__name__)

_TITLES = {
    413: "Request Entity Too Large",
    414: "Request-URI Too Long",
    416: "Requested Range Not Satisfiable",
    422: "Unprocessable Entity",
}
"""The titles of statuses whose names in `HTTPStatus` depend on the version of Python."""


def problem_response(
    status: int, detail: str, errors: Sequence[tuple[str, str]] = (), headers: Mapping[str, str] | None = None
) -> Response:
    problem = Problem(
        title=_TITLES.get(status) or HTTPStatus(status).phrase,
        status=status,
        detail=_text(detail),
        request_id=log_format.request_id(),
        errors=[ErrorItem(pointer=_text(pointer), message=_text(message)) for pointer, message in errors],
    )
    return Response(problem.model_dump_json(), status, headers, "application/problem+json")


def _text(value: str) -> str:
    """Return the text with unpaired surrogates escaped. A request may contain them, and messages quote the request."""
    return value.encode("utf-8", "backslashreplace").decode()


def install(app: FastAPI) -> None:
    app.add_exception_handler(TunerError, _ours)
    app.add_exception_handler(RequestValidationError, _query)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, _disconnected)
    app.add_exception_handler(Exception, _unexpected)


def _ours(_: Request, error: Exception) -> Response:
    match error:
        case SpecError(errors=errors):
            return problem_response(422, str(error), errors)
        case NotFound():
            return problem_response(404, str(error))
        case Gone():
            return problem_response(410, str(error))
        case Stale():
            return problem_response(412, str(error))
        case Conflict():
            return problem_response(409, str(error))
        case StoreError() if isinstance(error, Retryable):
            log.warning("the database does not answer: %s", error)
            return _database_away(error)
        case DriverSilent():
            return problem_response(503, str(error), headers={"Retry-After": "2"})
        case CheckerBusy():
            return problem_response(503, str(error), headers={"Retry-After": "5"})
        case _:
            log.error("%s", error, exc_info=error)
            return problem_response(500, str(error))


def _database_away(error: Exception) -> Response:
    """Return the 503 response for a database that does not answer.

    The response has a Retry-After header only if nothing can have been written, since only then is it safe to repeat the
    request.
    """
    detail = f"the database does not answer at the moment: {error}"
    if may_have_written():
        return problem_response(503, f"{detail}; the request may still have been carried out")
    return problem_response(503, detail, headers={"Retry-After": "1"})


def _query(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [("/" + "/".join(str(part) for part in item["loc"][1:]), _worded(item)) for item in error.errors()]
    detail = "; ".join(f"{pointer[1:]}: {message}" for pointer, message in errors)
    return problem_response(422, detail, errors)


def _worded(item: Mapping[str, Any]) -> str:
    message = str(item["msg"])
    if item["type"] == "missing":
        return "is required"
    return f"{message[:1].lower()}{message[1:]}, got {item.get('input')!r}"


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code in (404, 405) and not (allowed := allowed_methods(request)):
        path = path_of(request.scope)
        meant = meant_path(
            path, [template for _, template, methods in request.app.state.routes if request.method in methods]
        )
        if meant is not None or error.status_code == 404 or path.startswith(f"{PREFIX}/"):
            detail = str(error.detail) if error.status_code == 404 else f"there is no {path}"
            return problem_response(404, f"{detail}; did you mean {meant}?" if meant is not None else detail)
    if error.status_code == 405:
        headers["Allow"] = allowed or "GET, HEAD"
        return problem_response(405, f"{request.url.path} supports {headers['Allow']}", headers=headers)
    return problem_response(error.status_code, str(error.detail), headers=headers)


def _disconnected(_: Request, __: Exception) -> Response:
    """Return what the log of requests and the metrics count; nobody receives it."""
    return problem_response(400, "the client has disconnected before its whole request had arrived")


def allowed_methods(request: Request) -> str:
    """Return the methods that the API supports at this path, for the header Allow; "" if the API has no such path."""
    found: set[str] = set()
    for pattern, _, methods in request.app.state.routes:
        if pattern.fullmatch(path_of(request.scope)):
            found |= methods
    return ", ".join(sorted(found | {"HEAD"} if "GET" in found else found))


def _unexpected(request: Request, error: Exception) -> Response:
    return unexpected(request.scope, error)


def unexpected(scope: Scope, error: Exception) -> Response:
    """Log an error that is a bug of the service, and return the 500 response, which contains only the error's type."""
    log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
    detail = f"the service failed: {type(error).__name__}; its log has the details"
    return problem_response(500, detail, headers={"X-Content-Type-Options": "nosniff"})
