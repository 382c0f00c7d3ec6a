"""Who may talk to the service: nobody from elsewhere, not even by way of a browser that runs here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.store.examples import begin
from tuner.api import create_app
from tuner.settings import Settings
from tuner.store import Store


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "LOCALHOST", "127.0.0.1:1", "127.1.2.3", "[::1]:8000"])
async def test_loopback_by_any_name_is_welcome(client: httpx.AsyncClient, host: str) -> None:
    assert (await client.get("/healthz", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "192.168.0.1", "[::2]", "", "[", "a:b:c"])
async def test_any_other_host_is_refused(client: httpx.AsyncClient, host: str) -> None:
    response = await client.get("/healthz", headers={"Host": host})
    assert (response.status_code, response.headers["content-type"]) == (421, "application/problem+json")


async def test_hosts_that_the_settings_name_are_welcome(sqlite_store: Store, tmp_path: Path) -> None:
    app = create_app(Settings(home=tmp_path, allowed_hosts=("box.lan",)), sqlite_store)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://box.lan") as client:
        assert (await client.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:9999", "https://localhost.evil.example"]
)
async def test_other_pages_change_nothing(client: httpx.AsyncClient, sqlite_store: Store, origin: str) -> None:
    made, _, _ = begin(sqlite_store)
    url = f"/api/v1/experiments/{made.public_id}/cancel"
    assert (await client.post(url, headers={"Origin": origin})).status_code == 403
    assert sqlite_store.pending_commands([made.id]) == []
    assert (await client.post(url, headers={"Origin": "http://localhost:8000"})).status_code == 202


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
async def test_a_body_must_say_that_it_is_json(
    client: httpx.AsyncClient, sqlite_store: Store, spec: dict[str, Any], kind: str
) -> None:
    response = await client.post("/api/v1/experiments", content="{}", headers={"Content-Type": kind})
    assert (response.status_code, "application/json" in response.json()["detail"]) == (415, True)
    assert sqlite_store.list_experiments().items == ()


async def test_a_body_that_is_too_large_is_refused_by_its_head(client: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "application/json", "Content-Length": str(2**30)}
    assert (await client.post("/api/v1/experiments", content=b"{}", headers=headers)).status_code == 413
