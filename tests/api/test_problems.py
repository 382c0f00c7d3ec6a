"""Test what the client sees when the database is in trouble."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psycopg
import pytest

from tests.api.answering import Answers
from tuner.api import create_app, problems
from tuner.api.monitoring import readiness
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.sql import connect
from tuner.usercode.entrypoints import EntrypointChecker


def test_titles_do_not_depend_on_the_version_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 has changed the phrases of some statuses."""
    monkeypatch.setattr(problems, "HTTPStatus", lambda status: SimpleNamespace(phrase="as in a later Python"))
    titles = [json.loads(problems.problem_response(status, "").body)["title"] for status in (413, 422, 404)]
    assert titles == ["Request Entity Too Large", "Unprocessable Entity", "as in a later Python"]


async def test_a_locked_database_is_worth_another_try(
    sqlite_url: str, tmp_path: Path, spec: dict[str, Any], checker: EntrypointChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "BUSY_TIMEOUT_MS", 20)
    blocker = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with Store.open(sqlite_url) as store:
        app = create_app(Settings(home=tmp_path), store)
        app.state.context.checker = checker
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            response = await client.post("/api/v1/experiments", json=spec)
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert "locked" in response.json()["detail"]
            assert (await client.get("/api/v1/experiments")).status_code == 200
            blocker.execute("ROLLBACK")
            assert (await client.post("/api/v1/experiments", json=spec)).status_code == 201
    blocker.close()


async def test_a_database_without_tables_is_our_fault_and_not_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Store.open(f"sqlite:///{tmp_path}/empty.db") as store:
        app = create_app(Settings(home=tmp_path), store)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            response = await client.get("/api/v1/experiments")
            assert (response.status_code, response.headers["content-type"]) == (500, "application/problem+json")
            assert "no such table" in response.json()["detail"]
            ready = await client.get("/readyz")
            assert (ready.status_code, "tuner migrate" in ready.json()["problems"][0]) == (503, True)
    assert any(record.levelno == logging.ERROR for record in caplog.records)


async def test_an_error_of_ours_says_no_more_than_its_name(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> str | None:
        raise ZeroDivisionError("with something private")

    with Store.open(sqlite_url) as store:
        app = create_app(Settings(home=tmp_path), store, Answers(problem=broken))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            response = await client.get("/readyz", headers={"X-Request-Id": "mine"})
    assert (response.status_code, response.headers["content-type"]) == (500, "application/problem+json")
    assert response.headers["x-request-id"] == response.json()["request_id"] == "mine"
    assert response.headers["x-content-type-options"] == "nosniff"
    [record] = [one for one in caplog.records if one.exc_info]
    assert record.getMessage() == "GET /readyz failed"
    assert "ZeroDivisionError" in response.json()["detail"]
    assert "private" not in response.text
    assert "private" in caplog.text


async def test_readiness_tells_of_a_database_that_takes_no_writes(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "BUSY_TIMEOUT_MS", 20)
    monkeypatch.setattr(readiness, "AGAIN_S", 0.0)
    blocker = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    with Store.open(sqlite_url) as store:
        app = create_app(Settings(home=tmp_path), store)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            assert (await client.get("/readyz")).status_code == 200
            blocker.execute("BEGIN IMMEDIATE")
            unready = await client.get("/readyz")
            assert (unready.status_code, unready.json()["problems"]) == (503, ["sqlite: database is locked"])
            blocker.execute("ROLLBACK")
            assert (await client.get("/readyz")).status_code == 200
    blocker.close()


@pytest.mark.parametrize(("method", "path"), [("PUT", f"/api/v1/bundles/{'a' * 64}"), ("POST", "/api/v1/experiments")])
async def test_a_client_that_disconnects_in_the_middle_of_its_request_is_no_failure_of_the_service(
    sqlite_store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str, path: str
) -> None:
    """The log had a traceback, and the metrics counted a 500."""
    app = create_app(Settings(home=tmp_path), sqlite_store)
    come = [
        {"type": "http.request", "body": b"half", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return come.pop(0)

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    kind = "application/zip" if method == "PUT" else "application/json"
    headers = {"host": "localhost", "content-length": "100", "content-type": kind}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": "",
        "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "server": ("localhost", 80), "client": ("127.0.0.1", 1),
    }  # fmt: skip
    with caplog.at_level(logging.INFO):
        await app(scope, receive, send)
    assert sent[0]["status"] == 400
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_readiness_does_not_wait_for_a_database_that_says_nothing(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, looks = threading.Event(), []

    def check() -> None:
        looks.append(1)
        silent.wait(60)

    monkeypatch.setattr(readiness, "PATIENCE_S", 0.05)
    monkeypatch.setattr(sqlite_store, "check", check)
    app = create_app(Settings(home=tmp_path), sqlite_store)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        for _ in range(3):
            unready = await client.get("/readyz")
            assert unready.status_code == 503
            assert "the database has not answered" in unready.json()["problems"][0]
        assert looks == [1], "one look at a time"
        silent.set()
        while (await client.get("/readyz")).status_code != 200:
            pass


@pytest.mark.parametrize("error", [psycopg.errors.DiskFull, psycopg.errors.AdminShutdown, psycopg.OperationalError])
def test_errors_that_pass(error: type[psycopg.Error]) -> None:
    assert isinstance(connect.translate(error("could not extend file"), "postgresql"), connect.StoreUnavailable)
    assert not isinstance(
        connect.translate(psycopg.errors.UniqueViolation("x"), "postgresql"), connect.StoreUnavailable
    )
