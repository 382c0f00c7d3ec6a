"""Addresses and tokens that cannot be used are refused before a request is sent."""

from __future__ import annotations

import math
import random
import ssl
from datetime import date

import httpx
import pytest

from tuner.agents.leases import Leases
from tuner.client.protocol import Attempts, address_of, headers_of, tls_of
from tuner.client.synchronous import Client
from tuner.errors import SpecError


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
        with pytest.raises(SpecError, match="^token: expected a token") as caught:
            headers_of(token)
        assert token not in str(caught.value)
    monkeypatch.setenv("TUNER_TOKEN", "tökén")
    with pytest.raises(SpecError, match="^token: expected a token .* in TUNER_TOKEN"):
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


def test_certificates_are_read_for_https_only() -> None:
    assert tls_of("HTTPS://tuner.example.org").get_ca_certs()
    context = tls_of("http://localhost:8000")
    assert not context.get_ca_certs()
    assert context.verify_mode is ssl.CERT_REQUIRED  # so that no certificate at all would be trusted


def test_the_pauses_between_attempts_grow_up_to_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda _, most: most)
    attempts = Attempts(True, patience_s=3600.0)
    waits = [attempts.wait_s(None, httpx.ReadError("cut")) for _ in range(8)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
