"""The document from which the page's types are made says what the answers are."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tuner.experiments.spec import SpecModel


@pytest.fixture
def document(app: FastAPI) -> dict[str, Any]:
    return app.openapi()


def test_every_answer_has_a_type(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (path, method)
            for status, response in operation["responses"].items():
                if status == "204":
                    assert "content" not in response
                    continue
                for kind, content in response["content"].items():
                    if kind == "text/event-stream":
                        continue
                    assert content["schema"]["$ref"], (path, method, status)
                    assert (kind == "application/problem+json") == (status >= "400" and path != "/readyz"), (
                        path,
                        status,
                    )


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*(references(item) for item in value.values()))
        return set().union(*(references(item) for item in value)) if isinstance(value, list) else set()

    schemas = document["components"]["schemas"]
    assert {ref.removeprefix("#/components/schemas/") for ref in references(document)} <= set(schemas)
    assert set(schemas["Spec"]["properties"]) == set(SpecModel.model_fields)
    assert schemas["Spec"]["additionalProperties"] is False


def test_fields_that_are_always_there_are_required(document: dict[str, Any]) -> None:
    for name in ("Experiment", "Trial", "TrialDetail", "Segment", "Curves", "Decision", "Counts", "TrialPage"):
        schema = document["components"]["schemas"][name]
        assert set(schema["required"]) == set(schema["properties"]), name


async def test_it_is_where_people_look_for_it(client: httpx.AsyncClient, document: dict[str, Any]) -> None:
    assert (await client.get("/openapi.json")).json() == document
