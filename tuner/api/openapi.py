"""The OpenAPI document, with the spec's own schema as the body of POST /experiments and of its dry run."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tuner.experiments.spec import SpecModel

ABOUT = """Experiments, their trials and why each of them was stopped. Times are RFC 3339 in UTC, NaN and infinities are null,
lists come in pages, errors are `application/problem+json` with a JSON pointer to the field."""


def describe(app: FastAPI) -> None:
    """Let `app.openapi` make the document, once."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, description=ABOUT, routes=app.routes)
            _add_spec(made)
            _as_problems(made)
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _add_spec(document: dict[str, Any]) -> None:
    # Answers have the same sections, but there every field is required: hence other names.
    schema = SpecModel.model_json_schema(ref_template="#/components/schemas/{model}Spec")
    sections = {f"{name}Spec": section for name, section in schema.pop("$defs", {}).items()}
    document["components"]["schemas"].update(sections)
    document["components"]["schemas"]["Spec"] = {**schema, "title": "Spec"}
    body = {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Spec"}}}}
    for path in ("/api/v1/experiments", "/api/v1/experiments/dry-run"):
        document["paths"][path]["post"]["requestBody"] = body


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
