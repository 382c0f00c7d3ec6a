"""Read requests and write responses, for all routes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from tuner.api.schemas import CheckpointItem, Experiment, Problem, TrialDetail
from tuner.errors import SpecError, Stale
from tuner.experiment.specs.messages import in_words, pointer_to
from tuner.names import did_you_mean, option_meant
from tuner.space.words import escape
from tuner.store import Across, CheckpointRecord, ExperimentRecord, Store, TrialRecord

M = TypeVar("M", bound=BaseModel)

ExperimentId = Annotated[
    str,
    Path(
        description="exp_..., or the name of an experiment if no other experiment has it",
        examples=["exp_0123456789abcdef0123"],
    ),
]
TrialId = Annotated[str, Path(description="trl_...", examples=["trl_47e88a277328d6d747b0"])]
AcrossQuery = Annotated[
    Across,
    Query(
        description=(
            "what the x axis shows: step: the training_iteration; user_step: the step that the training code passed to "
            "`tuner.report`; time: seconds that the experiment had been running, without pauses; trial_time: seconds that the "
            "trial had been training, over all its segments; metric: the metric x_metric of the same reports, such as an epoch. "
            "Reports without a value on this axis are left out"
        )
    ),
]
XMetric = Annotated[
    str | None, Query(max_length=1000, description="the name of the metric on the x axis; only with x=metric")
]
PageSize = Annotated[int, Query(ge=1, le=1000, description="the maximum number of items per page")]
PageToken = Annotated[str | None, Query(max_length=40, description="next_page_token of the previous page")]

LONGEST_KEY = 200
IdempotencyKey = Annotated[
    str | None,
    Header(
        max_length=LONGEST_KEY,
        description="a key that identifies this request; if it is repeated with the same key, nothing is created, and it "
        "gets the response of the first request",
    ),
]
OnceKey = Annotated[
    str | None,
    Header(
        max_length=LONGEST_KEY,
        description="a key that identifies this request; if it is repeated with the same key, it is not carried out again",
    ),
]

NOT_FOUND: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "an object named in the path does not exist"}
}
BAD: dict[int | str, dict[str, Any]] = {422: {"model": Problem, "description": "the request is invalid"}}
SILENT: dict[int | str, dict[str, Any]] = {503: {"model": Problem, "description": "no driver answers at the moment"}}
BUSY: dict[int | str, dict[str, Any]] = {
    503: {"model": Problem, "description": "too many entrypoints are being imported, or the database does not answer"}
}
STALE: dict[int | str, dict[str, Any]] = {
    412: {"model": Problem, "description": "the experiment is no longer at the revision given in If-Match"}
}
IfMatch = Annotated[
    str | None,
    Header(
        max_length=1000,
        description="the ETag received with the experiment; the request fails if a user has changed the experiment since then",
    ),
]
CONFLICT: dict[int | str, dict[str, Any]] = {
    409: {"model": Problem, "description": "the current state of the object in the path does not allow the request"}
}


class Route(APIRoute):
    """A route whose functions return finished responses. FastAPI uses the models of the responses only to describe the API.

    Otherwise FastAPI would build a validator and a serializer for each model at the start, and again at the first request.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.options = options
        super().__init__(path, endpoint, **{**options, "response_model": None, "responses": None})


def with_models(router: APIRouter) -> APIRouter:
    """Return a router with the same routes and with the models of their responses, for the OpenAPI document."""
    found = APIRouter()
    for route in router.routes:
        assert isinstance(route, Route)
        found.routes.append(APIRoute(route.path, route.endpoint, **route.options))
    return found


def answer(
    model: BaseModel, status: int = 200, headers: dict[str, str] | None = None, *, tag: str | None = None
) -> Response:
    """Return a response with a model as JSON and with an ETag.

    If the request has this ETag in If-None-Match, so that the client already has the content, `Guard` replaces the response
    with a 304.

    Args:
        model: the content of the response.
        status: the HTTP status of the response.
        headers: headers besides ETag and Cache-Control.
        tag: the ETag. By default, it is computed from the content.
    """
    body = model.model_dump_json().encode()
    head = {"ETag": tag or etag(body), "Cache-Control": "no-cache", **(headers or {})}
    return Response(body, status, head, "application/json")


def found_experiment(store: Store, experiment_id: str) -> ExperimentRecord:
    """Return the experiment named in a path. Raise NotFound if there is none."""
    return store.experiments.get(plain_text(experiment_id))


def shown_experiment(store: Store, record: ExperimentRecord, status: int = 200) -> Response:
    """Return the response that shows an experiment."""
    return answer_with_revision(Experiment.of(record, store.metrics.names(record.id)), status)


def answer_with_revision(model: Experiment, status: int, headers: dict[str, str] | None = None) -> Response:
    """Return a response that shows an experiment.

    Its ETag begins with the experiment's revision. If-Match compares only this part.
    """
    return answer(model, status, headers, tag=f'"{model.revision}-{etag(model.model_dump_json().encode())[1:]}')


def shown_trial(store: Store, record: TrialRecord, status: int = 200) -> Response:
    """Return the response that shows a trial with its segments."""
    return answer(TrialDetail.of(record, store.experiments.by_id(record.experiment_id)), status)


def shown_checkpoint(store: Store, record: CheckpointRecord) -> Response:
    return answer(CheckpointItem.of(record, store.experiments.get(record.experiment)))


def revision_of(if_match: str | None) -> int | None:
    """Return the revision that an If-Match header asks for, or None if any revision matches.

    Raises:
        Stale: the header has no ETag that an experiment could have.
    """
    tags = [tag.strip().removeprefix("W/").strip('"') for tag in (if_match or "*").split(",")]
    if "*" in tags:
        return None
    numbers = [tag.partition("-")[0] for tag in tags]
    found = [int(number) for number in numbers if number.isascii() and number.isdecimal() and len(number) < 10]
    if not found:
        raise Stale(f"If-Match is {if_match}, which is not the ETag of any state of this experiment")
    return max(found)  # if the header has several ETags, only the newest can match the current state


def checked(model: type[M], data: Any) -> M:
    """Return the data of a request as this model. Raise SpecError with all mistakes if the data does not match it."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        known = list(model.model_fields)
        raise SpecError([(pointer_to(item["loc"]), _mistake(item, known)) for item in error.errors()]) from error


def _mistake(item: Any, known: Sequence[str]) -> str:
    """Return an error of pydantic in words. known: the fields of the body."""
    if item["type"] == "extra_forbidden" and len(item["loc"]) == 1:
        return "unknown field" + (option_meant(item["loc"][0], known) or f"; there are {', '.join(known)}")
    return in_words(item)


def etag(of: bytes) -> str:
    return f'"{hashlib.blake2b(of, digest_size=12).hexdigest()}"'


def not_modified(request: Request, tag: str, more: Mapping[str, str] | None = None) -> Response | None:
    """Return a 304 response if If-None-Match says that the client already has the response with this ETag, else None.

    more: other headers of that response.
    """
    known = request.headers.get("if-none-match", "").split(",")
    if tag not in {one.strip().removeprefix("W/") for one in known}:
        return None
    return Response(status_code=304, headers={"ETag": tag, "Cache-Control": "no-cache", **(more or {})})


async def only_known_parameters(request: Request) -> None:
    """Raise SpecError if a query parameter is unknown to the route. The error suggests the name that was probably meant."""
    if not request.scope["query_string"]:
        return
    known = _parameters(request.scope["route"].dependant)
    unknown = dict.fromkeys(name for name in request.query_params if name not in known)
    if unknown:
        there_are = f"; there are {', '.join(known)}" if known else "; this route has none"
        raise SpecError([(f"/{escape(n)}", f"unknown parameter{did_you_mean(n, known) or there_are}") for n in unknown])


def _parameters(of: Dependant) -> list[str]:
    """Return the names of the query parameters that a route and its dependencies take."""
    inner = [name for one in of.dependencies for name in _parameters(one)]
    return [*(field.alias for field in of.query_params), *inner]


async def json_body(request: Request) -> Any:
    """Return the body as JSON.

    Raises:
        SpecError: the body is not JSON, or has NaN, a duplicate name in an object, or an encoding other than UTF-8.
            Python's parser would accept the last three.
    """
    body = await request.body()
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"the body is not UTF-8: byte {error.start} is {body[error.start]:#04x}") from error
    if text.startswith("\ufeff"):
        raise SpecError("not JSON: the body begins with a byte order mark")
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise SpecError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except (RecursionError, ValueError) as error:
        raise SpecError(f"not JSON: {error}") from error


async def optional_json_body(request: Request) -> Any:
    """Return the body as JSON, or None if the request has no body. Raise SpecError like `json_body`."""
    return await json_body(request) if await request.body() else None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{twice!r} occurs twice in one object")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_without_repeats)


def plain_text(value: str) -> str:
    """Return the text with placeholders for characters that databases reject.

    So a request for a name with such characters gets a 404 instead of a database error.
    """
    return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def optional_text(value: str | None) -> str | None:
    """Return `plain_text` of a parameter that may be missing."""
    return None if value is None else plain_text(value)
