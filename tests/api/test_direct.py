"""Test that the direct route of POST /experiments answers as FastAPI's route does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tuner.api import create_app
from tuner.api.direct import Direct
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.service.access import Role
from tuner.usercode.entrypoints import EntrypointChecker

API = "/api/v1/experiments"
OWN = ("id", "created_at", "request_id")
"""The fields that differ between two answers to the same request."""


@dataclass
class Case:
    """A request, and its status. `direct`: whether the direct route takes it."""

    status: int
    direct: bool = True
    body: Callable[[dict[str, Any]], Any] = lambda spec: spec
    headers: dict[str, str] = field(default_factory=dict)
    query: str = ""
    role: Role = Role.EDITOR
    project: str | None = None


CASES = {
    "valid": Case(201),
    "a key": Case(201, headers={"Idempotency-Key": "one"}),
    "the longest key": Case(201, headers={"Idempotency-Key": "k" * 200}),
    "a key that is too long": Case(422, direct=False, headers={"Idempotency-Key": "k" * 201}),
    "an unknown parameter": Case(422, direct=False, query="?nmae=a"),
    "a mistake": Case(422, body=lambda spec: {**spec, "metrics": "loss", "max_t": 0}),
    "not an object": Case(422, body=lambda spec: [spec]),
    "not JSON": Case(422, body=lambda spec: b'{"name": }'),
    "a byte order mark": Case(422, body=lambda spec: b"\xef\xbb\xbf{}"),
    "a name that occurs twice": Case(422, body=lambda spec: b'{"name": "a", "name": "b"}'),
    "not UTF-8": Case(422, body=lambda spec: b'{"name": "\xff"}'),
    "another type": Case(415, direct=False, headers={"Content-Type": "text/plain"}),
    "an origin": Case(403, direct=False, headers={"Origin": "http://elsewhere.example"}),
    "a viewer": Case(403, direct=False, role=Role.VIEWER),
    "no token": Case(401, direct=False, headers={"Authorization": "Bearer wrong"}),
    "a token for a project": Case(201, project="vision"),
    "a token for another project": Case(422, body=lambda spec: {**spec, "project": "speech"}, project="vision"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_the_direct_route_answers_as_fastapi_does(
    case: Case,
    sqlite_store: Store,
    checker: EntrypointChecker,
    spec: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    direct, taken = Direct.handle, 0

    async def counted(*args: Any) -> None:
        nonlocal taken
        taken += 1
        await direct(*args)

    monkeypatch.setattr(Direct, "handle", counted)
    secret, _ = sqlite_store.access.create_token("me", case.role, project=case.project)
    found = []
    for has_direct in (True, False):
        app = create_app(Settings(home=tmp_path, auth="on"), sqlite_store)
        app.state.context.checker = checker
        if not has_direct:
            _remove_direct(app)
        given = case.body(spec)
        body = given if isinstance(given, bytes) else json.dumps(given).encode()
        head = {"Content-Type": "application/json", "Authorization": f"Bearer {secret}", **case.headers}
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://box.lan:8000") as client:
            answer = await client.post(API + case.query, content=body, headers=head)
        assert answer.status_code == case.status, answer.text
        found.append(answer)
    ours, theirs = found
    if "Idempotency-Key" in case.headers:
        assert ours.content.partition(b"request_id")[0] == theirs.content.partition(b"request_id")[0]
    assert _without_own(ours.json()) == _without_own(theirs.json())
    assert [name for name, _ in ours.headers.raw] == [name for name, _ in theirs.headers.raw]
    assert taken == case.direct
    statuses = [record.status for _, record in sqlite_store.access.trail()]
    assert statuses == ([] if case.status in (401, 415) or "Origin" in case.headers else [case.status] * 2)


def _remove_direct(app: FastAPI) -> None:
    [mine] = [route for route in app.router.routes if isinstance(route, Direct)]
    app.router.routes.remove(mine)


def _without_own(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in OWN}


async def test_other_methods_of_the_path_are_routed_as_before(client: httpx.AsyncClient) -> None:
    assert (await client.get(API)).status_code == 200
    refused = await client.put(API, json={})
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")
