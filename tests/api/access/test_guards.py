"""Only this machine may talk to the service, and no foreign web page through a browser on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.store.examples import a_spec, begin
from tuner.api import create_app
from tuner.api import server as server_module
from tuner.api.access import guards
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
    "origin", ["http://evil.example", "null", "http://[", "http://localhost:9999", "https://localhost.evil.example"]
)
async def test_other_pages_change_nothing(client: httpx.AsyncClient, sqlite_store: Store, origin: str) -> None:
    made, _, _ = begin(sqlite_store)
    url = f"/api/v1/experiments/{made.public_id}/cancel"
    assert (await client.post(url, headers={"Origin": origin})).status_code == 403
    assert sqlite_store.commands.pending([made.id]) == []
    assert (await client.get("/healthz", headers={"Origin": origin})).status_code == 200, "it changes nothing"
    assert (await client.post(url, headers={"Origin": "http://localhost:8000"})).status_code == 202


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
async def test_a_body_must_say_that_it_is_json(
    client: httpx.AsyncClient, sqlite_store: Store, spec: dict[str, Any], kind: str
) -> None:
    response = await client.post("/api/v1/experiments", content="{}", headers={"Content-Type": kind})
    assert (response.status_code, "application/json" in response.json()["detail"]) == (415, True)
    assert sqlite_store.experiments.page().items == ()


async def test_a_body_without_a_length_is_counted_as_it_comes(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(64):
            sent += 1
            yield b" " * 2**20

    url, headers = "/api/v1/experiments", {"Content-Type": "application/json"}
    response = await client.post(url, content=chunks(), headers=headers)
    assert (response.status_code, response.headers["content-type"]) == (413, "application/problem+json")
    assert "larger than" in response.json()["detail"]
    assert sent <= 17, "the rest is not read"
    assert sqlite_store.experiments.page().items == ()


async def test_a_body_that_arrives_too_slowly_is_refused(
    client: httpx.AsyncClient, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "BODY_S", 0.2)

    async def drips() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.01)

    headers = {"Content-Type": "application/json"}
    response = await client.post("/api/v1/experiments", content=drips(), headers=headers)
    assert (response.status_code, response.headers["connection"]) == (408, "close")
    assert re.fullmatch(r"only \d+ bytes of the body have arrived in \d+ s", response.json()["detail"])
    assert sqlite_store.experiments.page().items == ()


def test_a_connection_that_sends_no_request_is_closed(
    server: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HEAD_S", 0.4)
    monkeypatch.setattr(server_module, "TICKS", 1)
    host, port = server.removeprefix("http://").split(":")

    def connection(start: bytes) -> socket.socket:
        found = socket.create_connection((host, int(port)), timeout=20)
        found.sendall(start)
        return found

    begin = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    events = f"/api/v1/experiments/{sqlite_store.experiments.create(a_spec()).public_id}/events"
    with (
        connection(f"GET {events} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()) as stream,
        connection(b"") as silent,
        connection(begin + b"X-Slow: ") as slow,
        connection(begin + b"\r\n" + begin) as second,
        contextlib.closing(http.client.HTTPConnection(host, int(port))) as idle,
        contextlib.closing(http.client.HTTPConnection(host, int(port))) as busy,
    ):
        slow.sendall(b"x")
        idle.request("GET", "/healthz")
        assert idle.getresponse().read()
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            busy.request("GET", "/healthz")  # fails if the server has closed this connection
            assert busy.getresponse().read()
            time.sleep(0.05)
        closed = [b"".join(iter(lambda one=one: one.recv(1000), b"")) for one in (silent, slow, second)]  # type: ignore[misc]
        assert [answer[:12] for answer in closed] == [b"", b"", b"HTTP/1.1 200"]
        stream.setblocking(False)
        with pytest.raises(BlockingIOError):  # it is open, and there is no more to read
            while stream.recv(10_000):
                pass
        before = idle.sock
        idle.request("GET", "/healthz")
        assert idle.getresponse().read()
        assert idle.sock is before


def test_trailers_without_end_are_refused_and_a_long_body_before_a_head_is_not(server: str) -> None:
    host, port = server.removeprefix("http://").split(":")
    post = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\n"
    with socket.create_connection((host, int(port)), timeout=20) as endless:
        endless.sendall(post + b"Transfer-Encoding: chunked\r\n\r\n0\r\n")
        with pytest.raises(ConnectionError):  # the server has closed it
            for _ in range(100_000):
                endless.sendall(b"X-Trailer: " + b"x" * 1000 + b"\r\n")
    with socket.create_connection((host, int(port)), timeout=20) as another:
        another.sendall(post + b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000 + b"GET /healthz HTTP/1.1\r\n")
        assert another.recv(1000).startswith(b"HTTP/1.1 415")
        another.sendall(b"Host: localhost\r\n\r\n")
        received = b""
        while b"HTTP/1.1 200" not in received:
            part = another.recv(1000)
            assert part, received
            received += part


def test_a_head_that_does_not_end_is_refused(server: str) -> None:
    host, port = server.removeprefix("http://").split(":")
    begin = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    with socket.create_connection((host, int(port)), timeout=20) as endless:
        endless.sendall(begin + b"\r\n")
        assert endless.recv(1000).startswith(b"HTTP/1.1 200")
        with pytest.raises(ConnectionError):  # the server has closed it
            for part in (begin + b"X-Long: ", *[b"x" * 64 * 1024] * 1000):
                endless.sendall(part)
    with socket.create_connection((host, int(port)), timeout=20) as another:
        another.sendall(begin + b"X-Long: " + b"x" * 8 * 1024 + b"\r\n\r\n")
        assert another.recv(1000).startswith(b"HTTP/1.1 200")


async def test_a_body_must_be_utf_8(client: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "application/json"}
    for body in ('{"name": "é"}'.encode("latin-1"), '{"name": "x"}'.encode("utf-16")):
        response = await client.post("/api/v1/experiments", content=body, headers=headers)
        assert (response.status_code, "not UTF-8" in response.json()["detail"]) == (422, True)
    headers = {"Content-Type": "application/json; charset=utf-16"}
    response = await client.post("/api/v1/experiments", content=b"{}", headers=headers)
    assert (response.status_code, "utf-16" in response.json()["detail"]) == (415, True)


async def test_a_name_that_occurs_twice_is_refused(client: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "application/json"}
    body = b'{"name": "a", "space": {"lr": 1, "lr": 2}}'
    response = await client.post("/api/v1/experiments/dry-run", content=body, headers=headers)
    assert (response.status_code, "'lr' occurs twice" in response.json()["detail"]) == (422, True)
    # Anybody may send this without a token. The search for the name must not compare each name with all others.
    many = ", ".join(f'"{number}": 0' for number in range(200_000))
    response = await client.post("/api/v1/session", content=f'{{{many}, "199999": 1}}', headers=headers)
    assert (response.status_code, "'199999' occurs twice" in response.json()["detail"]) == (422, True)


@pytest.mark.parametrize("path", ["/healthz", "/api/v1/experiments", "/", "/nothing.js", "/openapi.json"])
async def test_every_answer_says_that_its_type_is_meant(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path)
    assert response.headers.get_list("x-content-type-options") == ["nosniff"]
    refused = await client.get(path, headers={"Host": "evil.example"})
    assert refused.headers.get_list("x-content-type-options") == ["nosniff"]


async def test_head_is_get_without_a_body(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    made, _, _ = begin(sqlite_store)
    for path in ("/healthz", f"/api/v1/experiments/{made.public_id}", "/api/v1/experiments/nothing"):
        plain = {"Accept-Encoding": "identity", "X-Request-Id": "same"}
        get, head = await client.get(path, headers=plain), await client.head(path, headers=plain)
        assert (head.status_code, head.content) == (get.status_code, b"")
        assert {**head.headers, "vary": ""} == {**get.headers, "vary": ""}
    stream = await client.head(f"/api/v1/experiments/{made.public_id}/events")
    assert (stream.status_code, stream.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/api/v1/experiments", "GET, HEAD, POST"),
        ("PUT", "/api/v1/experiments/exp_1", "DELETE, GET, HEAD, PATCH"),
        ("GET", "/api/v1/experiments/exp_1/cancel", "POST"),
        ("POST", "/healthz", "GET, HEAD"),
        ("POST", "/", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(
    client: httpx.AsyncClient, method: str, path: str, allowed: str
) -> None:
    response = await client.request(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)
    assert response.headers["content-type"] == "application/problem+json"


async def test_a_body_that_is_too_large_is_refused_by_its_head(client: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "application/json", "Content-Length": str(2**30)}
    assert (await client.post("/api/v1/experiments", content=b"{}", headers=headers)).status_code == 413
