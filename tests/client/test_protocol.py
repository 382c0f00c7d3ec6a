"""Addresses and tokens that cannot be used are refused before a request is sent."""

from __future__ import annotations

import asyncio
import math
import random
import ssl
import sys
import threading
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tuner.agents.leases import Leases
from tuner.client.protocol import Attempts, address_of, headers_of, tls_of
from tuner.client.synchronous import Client
from tuner.errors import ServiceUnreachable, SpecError


@pytest.mark.parametrize(
    "address",
    [
        "http://[::1",
        "http://localhost:abc",
        "localhost:99999",
        "http://localhost:-1",
        "http://h\n",
        "ftp://h",
        "http://",
    ],
)
def test_a_malformed_address_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="^address: expected a URL such as http://localhost:8000, got "):
        address_of(address)
    monkeypatch.setenv("TUNER_ADDRESS", address.replace("\n", "\x01"))
    with pytest.raises(
        SpecError, match="^address: expected a URL such as http://localhost:8000 in TUNER_ADDRESS, got "
    ):
        address_of(None)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("https://[::1]:80/tuner/api/v1", "https://[::1]:80/tuner"),
        ("http://a_b.lan/", "http://a_b.lan"),
    ],
)
def test_the_address_of_a_service_is_its_url(address: str, url: str) -> None:
    assert address_of(address) == url


def test_a_token_that_no_header_can_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for token in ("tökén", "tnr_a\nX-Other: b"):
        with pytest.raises(SpecError, match="^token: the token has characters other than printable ASCII") as caught:
            headers_of(token)
        assert token not in str(caught.value)
    monkeypatch.setenv("TUNER_TOKEN", "tökén")
    with pytest.raises(SpecError, match="^token: the token in TUNER_TOKEN has characters"):
        headers_of(None)


def test_white_space_around_a_token_is_ignored() -> None:
    assert headers_of("tnr_abc\r\n")["Authorization"] == "Bearer tnr_abc"
    assert "Authorization" not in headers_of("\n")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"space": {"lr": {"upper": math.inf}}}, "space.lr.upper: expected a finite number, got inf"),
        (
            {"points_to_evaluate": [{"lr": 1.0}, {"lr": math.nan}]},
            "points_to_evaluate.1.lr: expected a finite number, got nan",
        ),
        ({"notes": date(2026, 1, 31)}, "notes: expected a JSON value, got date datetime.date(2026, 1, 31)"),
    ],
)
def test_a_value_that_json_does_not_have_is_refused_and_named(spec: dict[str, object], message: str) -> None:
    with Client("http://localhost:1") as client, pytest.raises(SpecError) as refused:
        client.create(spec)
    assert str(refused.value) == message
    with pytest.raises(SpecError, match="^lease_s: expected a finite number, got inf"):
        Leases("http://localhost:1", None, "far", "here", math.inf)


@pytest.mark.parametrize("seconds", [-1, math.nan, None, "60", True])
@pytest.mark.parametrize("name", ["timeout_s", "patience_s"])
def test_a_time_that_is_no_number_of_seconds_is_refused(name: str, seconds: object) -> None:
    with pytest.raises(SpecError, match=f"{name}: expected a number of seconds, got"):
        Client("http://localhost:1", **{name: seconds})  # type: ignore[arg-type]


def test_no_answer_can_be_there_at_once() -> None:
    with pytest.raises(SpecError, match="timeout_s: expected a number of seconds above 0"):
        Client("http://localhost:1", timeout_s=0)


def test_a_value_that_contains_itself_is_refused() -> None:
    """A mapping in YAML can contain itself."""
    space: dict[str, object] = {}
    space["lr"] = [space]
    with (
        Client("http://localhost:1") as client,
        pytest.raises(SpecError, match="one that contains itself or is nested"),
    ):
        client.create({"space": space})


@pytest.mark.parametrize("key", ["täglich", "nightly\n", " nightly", "\x7f"])
def test_an_idempotency_key_that_no_header_can_have_is_refused(key: str) -> None:
    """It was an error of the encoding, or of a service that does not answer."""
    with Client("http://localhost", transport=httpx.MockTransport(lambda _: httpx.Response(500))) as client:
        for ask in (client.create, client.experiment("exp_0123456789abcdef0123").fork):
            with pytest.raises(SpecError, match="^idempotency-key: expected printable ASCII characters"):
                ask({}, idempotency_key=key)


def test_certificates_are_read_for_https_only() -> None:
    assert tls_of("HTTPS://tuner.example.org").get_ca_certs()
    context = tls_of("http://localhost:8000")
    assert not context.get_ca_certs()
    assert context.verify_mode is ssl.CERT_REQUIRED  # so that no certificate at all would be trusted


def test_a_file_of_certificates_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", f"{tmp_path}/gone")
    with pytest.raises(
        SpecError, match=f"^SSL_CERT_FILE: the certificates in '{tmp_path}/gone' cannot be read: No such file"
    ):
        tls_of("https://tuner.example.org")


class _Empty(BaseHTTPRequestHandler):
    """Answers every request with 204."""

    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_service_of_this_machine_is_reached_without_the_proxy(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # nothing listens there
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Empty) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            url = f"http://{host}:{server.server_port}"
            with Client(url) as client:
                assert client.request("GET", "/session") is None

            async def ask() -> None:
                leases = Leases(url, None, "x", "agent")
                try:
                    assert await leases.ask("r1") is None
                finally:
                    await leases.close()

            asyncio.run(ask())
        finally:
            server.shutdown()


def test_the_error_of_a_service_that_a_proxy_should_reach_names_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://me:secret@127.0.0.1:1")
    with (
        Client("http://gpu.invalid:8000", patience_s=0.0) as client,
        pytest.raises(
            ServiceUnreachable, match=r"through the proxy of HTTP_PROXY \(NO_PROXY=gpu.invalid avoids it\)"
        ) as lost,
    ):
        client.request("GET", "/session")
    assert "secret" not in str(lost.value)
    monkeypatch.setenv("no_proxy", "gpu.invalid")
    with (
        Client("http://gpu.invalid:8000", patience_s=0.0) as client,
        pytest.raises(ServiceUnreachable, match=r"answers at http://gpu.invalid:8000: "),
    ):
        client.request("GET", "/session")


@pytest.mark.parametrize(
    ("proxy", "why"),
    [("socks5://127.0.0.1:1", "socksio"), ("foo://127.0.0.1:1", "Unknown scheme"), ("http://[::1", "Invalid port")],
)
def test_a_proxy_that_cannot_be_used_is_named(proxy: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)  # as if it was not installed
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("all_proxy", proxy)
    for connect in (lambda: Client("http://gpu.invalid"), lambda: Leases("http://gpu.invalid", None, "far", "here")):
        with pytest.raises(SpecError, match=f"^ALL_PROXY: this proxy cannot be used: .*{why}"):
            connect()
    Client("http://localhost:1").close()


def test_the_pauses_between_attempts_grow_up_to_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda _, most: most)
    attempts = Attempts(True, patience_s=3600.0)
    waits = [attempts.wait_s(None, httpx.ReadError("cut")) for _ in range(8)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    attempts.made = 2000  # as after some hours: an OverflowError
    assert attempts.wait_s(None, httpx.ReadError("cut")) == 5.0
