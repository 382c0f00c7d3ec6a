"""The OpenAPI document, with the spec's own schema as the body of POST /experiments and of its dry run."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tuner.api.access import NewToken, SignIn
from tuner.api.auth import COOKIE, SESSION
from tuner.experiments.spec import SpecModel

ABOUT = """Experiments, their trials and why each of them was stopped. Times are RFC 3339 in UTC, NaN and infinities are null,
lists come in pages, errors are `application/problem+json` with a JSON pointer to the field."""


def describe(app: FastAPI) -> None:
    """Let `app.openapi` make the document, once."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, description=ABOUT, routes=app.routes)
            _add_spec(made)
            _add_refusals(made)
            _as_problems(made)
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _add_spec(document: dict[str, Any]) -> None:
    schema = SpecModel.model_json_schema(ref_template="#/components/schemas/{model}")
    document["components"]["schemas"].update(schema.pop("$defs", {}))
    document["components"]["schemas"]["Spec"] = {**schema, "title": "Spec"}
    body = {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Spec"}}}}
    for path in ("/api/v1/experiments", "/api/v1/experiments/dry-run"):
        document["paths"][path]["post"]["requestBody"] = body
    for path, model in (("/api/v1/session", SignIn), ("/api/v1/tokens", NewToken)):
        name = model.__name__
        document["components"]["schemas"][name] = model.model_json_schema()
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
        document["paths"][path]["post"]["requestBody"] = {"required": True, "content": content}
    document["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
    }
    document["security"] = [{}, {"token": []}, {"session": []}]


def _add_refusals(document: dict[str, Any]) -> None:
    """Say of each call of the API that it may be refused for want of a token, or of a role."""
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if path.startswith("/api/") and path != SESSION:
                responses = operation["responses"]
                responses.setdefault("401", {"description": "a token is needed", "content": problem})
                if method != "get":
                    responses.setdefault(
                        "403", {"description": "the token's role does not allow it", "content": problem}
                    )


def _as_problems(document: dict[str, Any]) -> None:
    """Errors have a media type of their own, and FastAPI's own error schema is not ours."""
    for path in document["paths"].values():
        for operation in path.values():
            for status, response in operation.get("responses", {}).items():
                content = response.get("content", {})
                schema = content.get("application/json", {}).get("schema", {}).get("$ref", "")
                if schema.endswith("/HTTPValidationError"):
                    response["content"] = {
                        "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
                    }
                elif status >= "400" and schema.endswith("/Problem"):
                    response["content"] = {"application/problem+json": content["application/json"]}
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
