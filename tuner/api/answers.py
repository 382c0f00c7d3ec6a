"""Answers, and what routes ask of a request."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.responses import Response
from pydantic import BaseModel

from tuner.api.schemas import Problem
from tuner.errors import SpecError
from tuner.experiments.spec import escape
from tuner.names import did_you_mean

PageSize = Annotated[int, Query(ge=1, le=1000, description="items on a page")]
PageToken = Annotated[str | None, Query(max_length=40, description="next_page_token of the page before")]

NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "there is none"}}
BAD: dict[int | str, dict[str, Any]] = {422: {"model": Problem, "description": "something in the request is wrong"}}
SILENT: dict[int | str, dict[str, Any]] = {503: {"model": Problem, "description": "no driver answers just now"}}
BUSY: dict[int | str, dict[str, Any]] = {
    503: {"model": Problem, "description": "too many entrypoints are being imported, or the database does not answer"}
}
CONFLICT: dict[int | str, dict[str, Any]] = {409: {"model": Problem, "description": "its state does not allow it"}}


def answer(
    model: BaseModel, status: int = 200, headers: dict[str, str] | None = None, *, tag: str | None = None
) -> Response:
    """Return the model as JSON with an ETag, by default made from the body. A client that asks again with If-None-Match gets a
    304 if nothing has changed.
    """
    body = model.model_dump_json().encode()
    head = {"ETag": tag or etag(body), "Cache-Control": "no-cache", **(headers or {})}
    return Response(body, status, head, "application/json")


def etag(of: bytes) -> str:
    return f'"{hashlib.blake2b(of, digest_size=12).hexdigest()}"'


def knows(request: Request, tag: str) -> bool:
    """Return whether the client has the answer with this ETag already."""
    known = request.headers.get("if-none-match", "").split(",")
    return tag in {one.strip().removeprefix("W/") for one in known}


async def only_known_parameters(request: Request) -> None:
    """For every route: SpecError for query parameters that it does not take, each with the one that was most likely meant."""
    known = _parameters(request.scope["route"].dependant)
    unknown = dict.fromkeys(name for name in request.query_params if name not in known)
    if unknown:
        there_are = f"; there are {', '.join(known)}" if known else "; this takes none"
        raise SpecError([(f"/{escape(n)}", f"unknown parameter{did_you_mean(n, known) or there_are}") for n in unknown])


def _parameters(of: Dependant) -> list[str]:
    """The query parameters of a route's function and of what it depends on."""
    inner = [name for one in of.dependencies for name in _parameters(one)]
    return [*(field.alias for field in of.query_params), *inner]


async def json_body(request: Request) -> Any:
    """Return the body as JSON. SpecError says what is wrong with it: NaN, a name that occurs twice in an object, and any encoding
    but UTF-8 are errors, though Python would read them.
    """
    body = await request.body()
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"the body is not UTF-8: byte {error.start} is {body[error.start]:#04x}") from error
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise SpecError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except (RecursionError, ValueError) as error:
        raise SpecError(f"not JSON: {error}") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} occurs twice in one object")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
