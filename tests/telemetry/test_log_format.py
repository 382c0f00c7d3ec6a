"""Logs: as text and as JSON, with ids, and without secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import SPEC
from tuner.api import create_app
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.service.access import Role
from tuner.telemetry import log_format


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """Return what is logged, as JSON, at the level DEBUG."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(log_format.JsonFormatter())
    root, ours = logging.getLogger(), logging.getLogger("tuner")
    levels = root.level, ours.level
    root.addHandler(handler)
    root.setLevel("DEBUG")
    ours.setLevel("NOTSET")  # an earlier test may have started a service, which sets it
    yield stream
    root.removeHandler(handler)
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_of_json_has_what_it_is_about(written: io.StringIO) -> None:
    log = logging.getLogger("tuner.test")
    with log_format.about(experiment="exp_1"), log_format.about(trial="trl_1", request_id=None):
        log.warning("the %s\nis gone", "node", extra={"node": "n1"})
    log.info("later")
    first, second = lines(written)
    assert (
        first.items()
        >= {
            "level": "WARNING",
            "logger": "tuner.test",
            "message": "the node\nis gone",
            "experiment": "exp_1",
            "trial": "trl_1",
            "node": "n1",
        }.items()
    )
    assert first["time"].endswith("Z")
    assert "request_id" not in first
    assert "experiment" not in second


def test_a_traceback_stays_in_its_line(written: io.StringIO) -> None:
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("tuner.test").exception("it failed")
    [line] = lines(written)
    assert "ValueError: no" in line["traceback"]


def test_what_looks_like_a_secret_is_replaced(sqlite_store: Store) -> None:
    secret, _ = sqlite_store.access.create_token("ci", Role.ADMIN)
    session = sqlite_store.access.open_session(name="ci", role=Role.ADMIN, expires_at=2e9)
    record = logging.makeLogRecord({"msg": f"{secret} and {session}", "args": ()})
    for formatter in (log_format.JsonFormatter(), log_format.TextFormatter()):
        line = formatter.format(record)
        assert "tnr_***" in line
        assert "tns_***" in line
        assert secret not in line
        assert session not in line


def test_text_has_the_ids_in_its_first_line() -> None:
    record = logging.makeLogRecord({"msg": "one\ntwo", "args": (), "levelname": "INFO", "name": "tuner"})
    with log_format.about(request_id="r1"):
        first, second = log_format.TextFormatter().format(record).splitlines()
    assert first.endswith("INFO tuner: one request_id=r1")
    assert second == "two"


async def test_the_log_of_a_service_has_ids_and_no_token(
    sqlite_store: Store, tmp_path: Path, written: io.StringIO
) -> None:
    app = create_app(Settings(home=tmp_path, auth="on"), sqlite_store, web=tmp_path / "web")
    secret, _ = sqlite_store.access.create_token("ci", Role.ADMIN)
    head = {"Authorization": f"Bearer {secret}", "X-Request-Id": "from-a-proxy.1"}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://box.lan:8000") as client:
        missing = await client.get("/api/v1/experiments/exp_gone", headers=head)
        signed_in = await client.post("/api/v1/session", json={"token": secret})
        cookie = client.cookies["tuner_session_8000"]
        wrong = await client.post("/api/v1/experiments", json={**SPEC, "space": 3, "metric": secret})
        await client.get("/api/v1/experiments", params={"token": secret})
        await client.get(f"/{secret}")
        await client.get("/api/v1/experiments", headers={"Authorization": f"Basic {secret}", "X-Request-Id": "a\tb"})
    app.state.context.end()
    assert missing.headers["x-request-id"] == missing.json()["request_id"] == "from-a-proxy.1"
    assert wrong.json()["request_id"] == wrong.headers["x-request-id"]
    assert len({signed_in.headers["x-request-id"], wrong.headers["x-request-id"]}) == 2
    ours = [line for line in lines(written) if line["logger"] == "tuner.access"]
    assert len(ours) == 6
    assert (
        ours[0].items()
        >= {
            "request_id": "from-a-proxy.1",
            "experiment": "exp_gone",
            "actor": "ci",
            "method": "GET",
            "status": 404,
            "level": "INFO",
        }.items()
    )
    assert all(len(line["request_id"]) in (14, 16) for line in ours)
    for hidden in (secret, cookie, secret.removeprefix("tnr_"), cookie.removeprefix("tns_")):
        assert hidden not in written.getvalue()
