"""Test that the direct route of POST /experiments answers as FastAPI's route does."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import Match

from tuner.api import create_app
from tuner.api.context import Context
from tuner.api.creations import QUICK_BYTES
from tuner.api.direct import Direct
from tuner.experiment.operations import usecases
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.service.access import Role
from tuner.store.sql import connect
from tuner.usercode.entrypoints import EntrypointChecker

API = "/api/v1/experiments"
OWN = ("id", "created_at", "request_id")
"""The fields that differ between two answers to the same request."""


@dataclass
class Case:
    """A request, and its status.

    direct: whether the direct route takes it.
    off_the_pool: whether the experiment is created in a thread of its own, because that may take long.
    chunked: the body is sent without a Content-Length.
    prefix: the path under which the service is reached.
    """

    status: int
    direct: bool = True
    body: Callable[[dict[str, Any]], Any] = lambda spec: spec
    headers: dict[str, str] = field(default_factory=dict)
    query: str = ""
    role: Role = Role.EDITOR
    project: str | None = None
    off_the_pool: bool = False
    chunked: bool = False
    prefix: str = ""


CASES = {
    "valid": Case(201),
    "a key": Case(201, headers={"Idempotency-Key": "one"}),
    "the longest key": Case(201, headers={"Idempotency-Key": "k" * 200}),
    "a key that is too long": Case(422, direct=False, headers={"Idempotency-Key": "k" * 201}),
    "an unknown parameter": Case(422, direct=False, query="?nmae=a"),
    "a mistake": Case(422, body=lambda spec: {**spec, "metrics": "loss", "max_t": 0}),
    "not an object": Case(422, body=lambda spec: [spec], off_the_pool=True),
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
    "in chunks": Case(201, chunked=True),
    "too large, in chunks": Case(413, body=lambda spec: b" " * (16 * 2**20 + 1), chunked=True),
    "a large body": Case(201, body=lambda spec: {**spec, "notes": "n" * QUICK_BYTES}, off_the_pool=True),
    "one that learns from others": Case(201, body=lambda spec: {**spec, "warm_start": "auto"}, off_the_pool=True),
    "a large body with a mistake": Case(
        422, body=lambda spec: {**spec, "notes": "n" * QUICK_BYTES, "max_t": 0}, off_the_pool=True
    ),
    "below a path": Case(201, prefix="/tuner"),
    "a mistake below a path": Case(422, body=lambda spec: {**spec, "max_t": 0}, prefix="/tuner"),
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
    usecases.dry_run(spec, checker)  # imports the entrypoint, so that no request has to
    taken = _counted(monkeypatch, Direct, "handle")
    pooled = _counted(monkeypatch, Context, "off_the_pool")
    secret, _ = sqlite_store.access.create_token("me", case.role, project=case.project)
    found = []
    for app in _with_and_without_direct(
        Settings(home=tmp_path, auth="on", root_path=case.prefix), sqlite_store, checker
    ):
        answer = await _answer(app, case, spec, {"Authorization": f"Bearer {secret}"})
        assert answer.status_code == case.status, answer.text
        if case.status == 201:
            assert answer.headers["location"] == f"{case.prefix}{API}/{answer.json()['id']}"
        found.append(answer)
    ours, theirs = found
    if "Idempotency-Key" in case.headers:
        assert ours.content.partition(b"request_id")[0] == theirs.content.partition(b"request_id")[0]
    _assert_equal(ours, theirs)
    assert len(taken) == case.direct
    assert len(pooled) == 2 * case.off_the_pool
    statuses = [record.status for _, record in sqlite_store.access.trail()]
    assert statuses == ([] if case.status in (401, 415) or "Origin" in case.headers else [case.status] * 2)


async def test_both_say_when_to_try_again_if_the_database_does_not_answer(
    sqlite_url: str, tmp_path: Path, spec: dict[str, Any], checker: EntrypointChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "BUSY_TIMEOUT_MS", 20)
    taken = _counted(monkeypatch, Direct, "handle")
    blocker = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with Store.open(sqlite_url) as store:
        apps = _with_and_without_direct(Settings(home=tmp_path), store, checker)
        ours, theirs = [await _answer(app, Case(503), spec, {}) for app in apps]
        for answer in (ours, theirs):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert "locked" in answer.json()["detail"]
        assert store.experiments.page().items == ()
    blocker.close()
    _assert_equal(ours, theirs)
    assert len(taken) == 1


def _with_and_without_direct(settings: Settings, store: Store, checker: EntrypointChecker) -> list[FastAPI]:
    apps = [create_app(settings, store) for _ in range(2)]
    for app in apps:
        app.state.context.checker = checker
    [mine] = [route for route in apps[1].router.routes if isinstance(route, Direct)]
    apps[1].router.routes.remove(mine)
    return apps


def _counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[None]:
    """Return a list that gets an item for each call of a coroutine method."""
    method, calls = getattr(owner, name), list[None]()

    async def counting(*args: Any) -> Any:
        calls.append(None)
        return await method(*args)

    monkeypatch.setattr(owner, name, counting)
    return calls


async def _answer(app: FastAPI, case: Case, spec: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
    given = case.body(spec)
    body = given if isinstance(given, bytes) else json.dumps(given).encode()
    head = {"Content-Type": "application/json", **headers, **case.headers}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, root_path=case.prefix)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
        content = _chunks(body) if case.chunked else body
        return await client.post(case.prefix + API + case.query, content=content, headers=head)


async def _chunks(body: bytes) -> AsyncIterator[bytes]:
    """Yield the body in at least two parts."""
    size = min(2**20, len(body) // 2)
    for start in range(0, len(body), size):
        yield body[start : start + size]


def _assert_equal(ours: httpx.Response, theirs: httpx.Response) -> None:
    assert _without_own(ours.json()) == _without_own(theirs.json())
    assert [name for name, _ in ours.headers.raw] == [name for name, _ in theirs.headers.raw]


def _without_own(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in OWN}


async def test_other_methods_of_the_path_are_routed_as_before(client: httpx.AsyncClient) -> None:
    assert (await client.get(API)).status_code == 200
    refused = await client.put(API, json={})
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
def test_what_is_no_http_request_is_not_taken(app: FastAPI, kind: str) -> None:
    """A websocket has no method."""
    [route] = [route for route in app.router.routes if isinstance(route, Direct)]
    assert route.matches({"type": kind, "path": API, "query_string": b"", "headers": []})[0] is Match.NONE
