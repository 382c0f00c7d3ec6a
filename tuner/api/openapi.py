"""Build the OpenAPI document of the API.

FastAPI generates the document from the routes. This module adds the request bodies, such as the spec with its schedulers and
searchers, the responses that every route may give, and examples.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, PydanticUserError, TypeAdapter
from starlette.routing import BaseRoute

from tuner import schedulers, search
from tuner.api.access.auth import COOKIE, METRICS, SESSION
from tuner.api.schemas import (
    AgentFailure,
    AgentLog,
    AgentReport,
    AssignmentRequest,
    Completion,
    Continuation,
    Enqueue,
    ExperimentFork,
    Fork,
    LateCheckpoint,
    ProfileRequest,
    ReplayRequest,
)
from tuner.api.schemas.service.access import NewToken, SignIn
from tuner.api.schemas.service.projects import ProjectPatch
from tuner.api.schemas.service.webhooks import NewWebhook, WebhookPatch
from tuner.experiment.specs.changes import ExperimentPatchModel
from tuner.experiment.specs.model import SpecModel
from tuner.space.primitives import OPTIONS

ABOUT = """Experiments, their trials, and the reason for every decision. Times are RFC 3339 in UTC, NaN and infinities
are null, lists are paged, errors are `application/problem+json` with a JSON pointer to the field."""

EXAMPLE = {
    "name": "digits",
    "entrypoint": "tuner.examples.digits:train",
    "space": {
        "lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1},
        "width": {"type": "choice", "categories": [16, 32, 64]},
    },
    "metric": "accuracy",
    "mode": "max",
    "num_samples": 16,
    "scheduler": {"type": "asha", "max_t": 27},
    "scaling": {"num_workers": 2, "resources_per_worker": {"CPU": 0.5}},
    "limits": {"max_concurrent_trials": 2, "time_budget_s": 600},
}

BODIES: dict[tuple[str, str], tuple[type[BaseModel], bool]] = {
    ("post", "/session"): (SignIn, True),
    ("post", "/tokens"): (NewToken, True),
    ("post", "/webhooks"): (NewWebhook, True),
    ("patch", "/webhooks/{webhook_id}"): (WebhookPatch, True),
    ("patch", "/projects/{project}"): (ProjectPatch, True),
    ("patch", "/experiments/{experiment_id}"): (ExperimentPatchModel, True),
    ("post", "/experiments/{experiment_id}/replay"): (ReplayRequest, True),
    ("post", "/experiments/{experiment_id}/enqueue"): (Enqueue, True),
    ("post", "/trials/{trial_id}/fork"): (Fork, False),
    ("post", "/trials/{trial_id}/profile"): (ProfileRequest, False),
    ("post", "/experiments/{experiment_id}/continue"): (Continuation, False),
    ("post", "/experiments/{experiment_id}/fork"): (ExperimentFork, False),
    ("post", "/experiments/{experiment}/assignments"): (AssignmentRequest, False),
    ("post", "/experiments/{experiment}/assignments/{lease}/reports"): (AgentReport, True),
    ("post", "/experiments/{experiment}/assignments/{lease}/checkpoints"): (LateCheckpoint, True),
    ("post", "/experiments/{experiment}/assignments/{lease}/log"): (AgentLog, True),
    ("post", "/experiments/{experiment}/assignments/{lease}/complete"): (Completion, False),
    ("post", "/experiments/{experiment}/assignments/{lease}/fail"): (AgentFailure, True),
}
"""(method, path) of routes that parse the request body themselves -> (model of the body, whether a body is required)."""

REQUESTS: dict[str, dict[str, Any]] = {
    "SignIn": {"token": "tnr_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"},
    "NewToken": {"name": "ci", "role": "editor", "project": "vision", "expires_days": 30},
    "ExperimentPatch": {
        "notes": "see *the report*",
        "tags": {"team": "vision"},
        "limits": {"max_concurrent_trials": 4},
    },
    "ReplayRequest": {"scheduler": {"type": "asha", "reduction_factor": 4}, "max_concurrent_trials": 8},
    "Enqueue": {"configurations": [{"lr": 0.01, "width": 32}]},
    "Fork": {"checkpoint_id": None, "params": {"lr": 0.001}},
    "ProfileRequest": {"rank": 1, "kind": "cpu", "duration_s": 10.0},
    "ExperimentFork": {"changes": {"num_samples": 32, "space": {"lr": {"upper": 0.5}}}, "learn": True},
    "Continuation": {"num_samples": 20},
    "NewWebhook": {
        "url": "https://example.com/hook",
        "events": ["experiment.completed", "objective.reached"],
        "project": "vision",
        "threshold": 0.95,
    },
    "WebhookPatch": {"events": ["experiment.failed"]},
    "ProjectPatch": {"warm_start": "auto"},
    "AssignmentRequest": {"agent": "gpu-7", "request": "gpu-7-0001", "wait_s": 20.0},
    "AgentReport": {"iteration": 1, "metrics": {"loss": 0.71}, "checkpoint": "s3://bucket/trial-0/epoch-1.pt"},
    "LateCheckpoint": {"iteration": 1, "uri": "s3://bucket/trial-0/epoch-1.pt"},
    "AgentLog": {"text": "epoch 1 loss 0.71\n", "start": 0},
    "Completion": {"metrics": {"loss": 0.12}},
    "AgentFailure": {"message": "CUDA out of memory", "kind": "system", "cause": "oom"},
}
"""An example of each request body in `BODIES`, by the name of its schema."""

RECORDED = Path(__file__).with_name("examples.json")
"""The file with an example answer for each schema, written by ``python -m tests.api.record_examples``."""

STREAMS: dict[str, str] = {
    "experiments_events": 'id: 14\nevent: decision\ndata: {"seq": 14, "time": "2026-01-31T12:00:03.191613Z", "kind": "stop", '
    '"trial_number": 1, "trial_id": "trl_7b3223d679de5ee5833f", "reason": "stopped at iteration 1: accuracy '
    '0.434979 is rank 2 of 4 there, and only the best continues (at least 0.475911)", "state": "done", '
    '"payload": {"trial": 1}}\n\n',
    "experiments_changes": 'id: 17\nevent: changes\ndata: {"since": 16, "seq": 17, "reset": false, "experiment": null, '
    '"trials": [], "segments": [], "decisions": [], "points": [], "best": []}\n\n',
    "trials_log_text": "[rank 0] epoch 1 loss 2.300\n[rank 0] epoch 2 loss 1.150\n",
    "health_metrics": '# TYPE tuner_experiments gauge\ntuner_experiments{project="default",state="running"} 2.0\n',
}
"""Examples of answers that are not JSON, by the OpenAPI id of the operation."""

ALWAYS = {"421": "the Host header is not a name of this service"}
CHANGING = {
    "403": "the request comes from a web page of another origin, or the token's role or project does not allow it",
    "408": "the body arrives too slowly",
    "413": "the body is larger than 16 MiB, or 100 MiB for a zip file",
    "415": "the body does not have the media type of this route, or is not UTF-8",
}
NOT_MODIFIED = "the client already has this response: its ETag was in If-None-Match"


def describe(app: FastAPI, routes: Callable[[], Sequence[BaseRoute]]) -> None:
    """Make `app.openapi` return the document that this module builds. The document is built at the first call.

    `routes` returns the app's routes with the models of their responses.
    """

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, description=ABOUT, routes=routes())
            _add_spec(made)
            _add_answers(made)
            _as_problems(made)
            _add_examples(made)
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _add_spec(document: dict[str, Any]) -> None:
    # The sections of a spec also occur in responses, where every field is required. So the request schemas get the suffix "Spec".
    schema = SpecModel.model_json_schema(ref_template="#/components/schemas/{model}Spec")
    schemas = document["components"]["schemas"]
    schemas.update({f"{name}Spec": section for name, section in schema.pop("$defs", {}).items()})
    schemas["Spec"] = {**schema, "title": "Spec", "examples": [EXAMPLE]}
    for name, package in (("scheduler", schedulers), ("search", search)):
        schemas[name.capitalize()] = _part(package, name)
        field = schemas["Spec"]["properties"][name]
        schemas["Spec"]["properties"][name] = {
            "$ref": f"#/components/schemas/{name.capitalize()}",
            **{key: field[key] for key in ("description", "default") if key in field},
        }
    schemas["Parameter"] = _parameter()
    schemas["Spec"]["properties"]["space"]["additionalProperties"] = {"$ref": "#/components/schemas/Parameter"}
    body = {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Spec"}}}}
    for path in ("/api/v1/experiments", "/api/v1/experiments/dry-run"):
        document["paths"][path]["post"]["requestBody"] = body
    for (method, path), (model, needed) in BODIES.items():
        made = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(made.pop("$defs", {}))
        name = model.__name__.removesuffix("Model")
        assert name not in schemas, f"two models have the name {name}"
        schemas[name] = {**made, "title": name}
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
        document["paths"][f"/api/v1{path}"][method]["requestBody"] = {"required": needed, "content": content}
    document["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "session": {
            "type": "apiKey",
            "in": "cookie",
            "name": f"{COOKIE}_8000",
            "description": "the name of the cookie ends with the port of the service",
        },
    }
    document["security"] = [{}, {"token": []}, {"session": []}]


def _part(package: Any, what: str) -> dict[str, Any]:
    """Return the schema of the spec's scheduler or searcher, with the options that each class in the registry takes."""
    kinds = [{"title": "auto", "description": f"the {what} that does best in the benchmarks", **_options("auto", {})}]
    for kind, (module, name) in package.REGISTRY.items():
        made = getattr(importlib.import_module(f"{package.__name__}.{module}"), name)
        about = (inspect.getdoc(made) or "").partition("\n\n")[0].replace("\n", " ")
        parameters = inspect.signature(made, eval_str=True).parameters
        kinds.append({"title": kind, "description": about, **_options(kind, parameters)})
    plain = [kind["title"] for kind in kinds if kind["required"] == ["type"]]
    about = f"the name of a {what}, to use it with its default options"
    return {
        "title": what.capitalize(),
        "oneOf": [{"type": "string", "enum": plain, "title": "name", "description": about}, *kinds],
    }


def _options(kind: str, parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    properties: dict[str, Any] = {"type": {"const": kind, "type": "string"}}
    required = ["type"]
    for name, parameter in parameters.items():
        properties[name] = _schema(parameter.annotation)
        if parameter.default is parameter.empty:
            required.append(name)
        elif isinstance(parameter.default, str | int | float | bool | None):
            properties[name]["default"] = parameter.default
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _schema(annotation: Any) -> dict[str, Any]:
    """Return the JSON schema of a type. For types that JSON cannot represent, such as functions, it allows any value.

    A Path is left out of a union: only Python calls may name a file.
    """
    if isinstance(annotation, UnionType) and Path in get_args(annotation):
        annotation = functools.reduce(operator.or_, (kind for kind in get_args(annotation) if kind is not Path))
    try:
        return dict(TypeAdapter(annotation).json_schema())
    except PydanticUserError:
        return {}


def _parameter() -> dict[str, Any]:
    kinds = []
    for kind, (needed, optional) in OPTIONS.items():
        properties: dict[str, Any] = {
            "type": {"const": kind, "type": "string"},
            **{n: {} for n in (*needed, *optional)},
        }
        made = {"type": "object", "properties": properties, "required": ["type", *needed]}
        kinds.append({"title": kind, **made, "additionalProperties": False})
    rest = {"title": "constant", "description": "a constant, or an object or list that contains parameters"}
    return {"title": "Parameter", "description": "the domain of a parameter", "anyOf": [*kinds, rest]}


def _add_answers(document: dict[str, Any]) -> None:
    """Add the responses that every route can give: authentication errors, the responses of `Guard`, and 304 for a known ETag."""
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for address, path in document["paths"].items():
        needs_token = address.startswith(("/api/", METRICS)) and address != SESSION
        for method, operation in path.items():
            answers = operation["responses"]
            if needs_token:
                answers["401"] = {
                    "description": "a token is required, and this request has no valid one",
                    "content": problem,
                }
                answers["403"] = {
                    "description": "the token's role or project does not allow this request",
                    "content": problem,
                }
            for status, about in {**ALWAYS, **({} if method == "get" else CHANGING)}.items():
                answers[status] = {"description": about, "content": problem}
            if method == "get" and "application/json" in answers.get("200", {}).get("content", {}):
                answers["304"] = {"description": NOT_MODIFIED}
            operation["responses"] = dict(sorted(answers.items()))


def _add_examples(document: dict[str, Any]) -> None:
    """Add an example to each request body and to each response that is not an error."""
    answers: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    document["components"]["schemas"]["Problem"]["examples"] = [answers["Problem"]]
    for path in document["paths"].values():
        for operation in path.values():
            requests = operation.get("requestBody", {}).get("content", {})
            found = [(content, {"Spec": EXAMPLE, **REQUESTS}) for content in requests.values()]
            for status, response in operation["responses"].items():
                if status < "300":
                    found += [(content, answers) for content in response.get("content", {}).values()]
            for content, examples in found:
                name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
                example = STREAMS.get(operation["operationId"], examples.get(name))
                if example is not None:
                    content["example"] = example


def _as_problems(document: dict[str, Any]) -> None:
    """Declare the media type of error responses as application/problem+json, and remove FastAPI's unused error schemas."""
    for path in document["paths"].values():
        for operation in path.values():
            for status, response in operation.get("responses", {}).items():
                content = response.get("content", {})
                schemas = {kind: found.get("schema", {}).get("$ref", "") for kind, found in content.items()}
                if any(ref.endswith("/HTTPValidationError") for ref in schemas.values()):
                    response["content"] = {
                        "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
                    }
                elif status >= "400" and any(ref.endswith("/Problem") for ref in schemas.values()):
                    # FastAPI assumes that an error response has the media type of the route's normal response.
                    response["content"] = {"application/problem+json": next(iter(content.values()))}
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
