"""Query parameters that a route does not take are refused, on every route. TypeScript checks those that the page sends."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.store.examples import begin
from tuner.domain.keys import trial_id
from tuner.store import Store

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("path", "name", "message"),
    [
        ("/experiments", "page_sise", "unknown parameter; did you mean page_size?"),
        ("/experiments/{id}/curves", "point", "unknown parameter; did you mean points?"),
        ("/experiments/{id}/curves", "Metric", "unknown parameter; did you mean metric?"),
        (
            "/experiments/{id}/curves",
            "zzz",
            "unknown parameter; there are metric, x, x_metric, points, from, to, trial, limit",
        ),
        ("/experiments/{id}", "zzz", "unknown parameter; this route has none"),
        ("/experiments/{id}/events", "afer", "unknown parameter; did you mean after?"),
        ("/trials/{trial}/logs", "tali", "unknown parameter; did you mean tail?"),
    ],
)
async def test_the_nearest_parameter_is_named(
    client: httpx.AsyncClient, sqlite_store: Store, path: str, name: str, message: str
) -> None:
    made, _, _ = begin(sqlite_store)
    url = "/api/v1" + path.format(id=made.public_id, trial=trial_id(made.public_id, 0))
    response = await client.get(url, params={name: "100"})
    assert (response.status_code, response.headers["content-type"]) == (422, "application/problem+json")
    assert response.json()["errors"] == [{"pointer": f"/{name}", "message": message}]


async def test_every_route_refuses_them_and_says_so_in_the_document(app: FastAPI, client: httpx.AsyncClient) -> None:
    seen = 0
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            if not path.startswith("/api/v1"):
                continue
            seen += 1
            url = re.sub(r"\{\w+\}", f"exp_{0:020x}", path)  # an id; anything else would be looked up as a name
            query = {"nonsense": "1", "more": "2"}
            if "application/zip" in operation.get("requestBody", {}).get("content", {}):
                response = await client.request(
                    method, url, params=query, content=b"", headers={"content-type": "application/zip"}
                )
            else:
                response = await client.request(method, url, params=query, json={})
            assert response.status_code == 422, (method, path)
            assert [e["pointer"] for e in response.json()["errors"]] == ["/nonsense", "/more"], (method, path)
            assert "application/problem+json" in operation["responses"]["422"]["content"], (method, path)
    assert seen > 10


async def test_a_parameter_given_twice_is_named_once(client: httpx.AsyncClient) -> None:
    response = await client.get("/api/v1/experiments?a=1&a=2")
    assert [error["pointer"] for error in response.json()["errors"]] == ["/a"]


def test_the_documents_table_has_every_parameter(app: FastAPI) -> None:
    text = (ROOT / "docs/api.md").read_text()
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            names = [p["name"] for p in operation.get("parameters", []) if p["in"] == "query"]
            missing: list[Any] = [n for n in names if not re.search(rf"[?&]{n}\b", text)]
            assert not missing, (method, path)
