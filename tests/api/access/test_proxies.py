"""A service behind proxies: who is believed about the address of a client, and path prefixes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from tests.api.conftest import SPEC, with_shared_document
from tuner.api import create_app
from tuner.api.access import auth
from tuner.errors import SpecError
from tuner.service.page import Page
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.service.access import Role
from tuner.usercode.entrypoints import EntrypointChecker

ME = "/api/v1/session"
WRONG = {"token": "tnr_wrong"}
Service = Callable[..., Any]


@pytest.fixture
def service(sqlite_store: Store, tmp_path: Path, checker: EntrypointChecker) -> Service:
    @asynccontextmanager
    async def open_client(
        client: str = "10.0.0.7", base: str = "http://box.lan:8000", **settings: Any
    ) -> AsyncIterator[httpx.AsyncClient]:
        app = create_app(Settings(home=tmp_path, auth="on", **settings), sqlite_store, web=tmp_path / "web")
        app.state.context.checker = checker
        transport = httpx.ASGITransport(with_shared_document(app), client=(client, 1234))
        async with httpx.AsyncClient(transport=transport, base_url=base) as found:
            yield found

    return open_client


async def guess(client: httpx.AsyncClient, forwarded: Callable[[int], str]) -> list[int]:
    """Try more tokens than one address may, each with another X-Forwarded-For."""
    answers = [
        await client.post(ME, json=WRONG, headers={"X-Forwarded-For": forwarded(i)}) for i in range(auth.TRIES + 2)
    ]
    return [answer.status_code for answer in answers]


@pytest.mark.parametrize("address", ["10.0.0.7", "127.0.0.1"])
async def test_a_made_up_address_does_not_evade_the_limit(service: Service, address: str) -> None:
    async with service(client=address) as client:
        assert (await guess(client, lambda i: f"1.2.3.{i}"))[-1] == 429


async def test_a_made_up_address_before_a_trusted_proxy_does_not_either(service: Service) -> None:
    """A client writes the beginning of the list; the proxy adds the address that it sees to its end."""
    async with service(client="10.0.0.7", trusted_proxies=("10.0.0.0/8",)) as client:
        assert (await guess(client, lambda i: f"1.2.3.{i}, 8.8.8.8"))[-1] == 429


async def test_a_trusted_proxy_tells_its_clients_apart(service: Service) -> None:
    async with service(client="10.0.0.7", trusted_proxies=("10.0.0.7",)) as client:
        assert set(await guess(client, lambda i: f"8.8.8.{i}")) == {401}


async def test_the_addresses_of_one_network_count_as_one(service: Service) -> None:
    async with service(client="10.0.0.7", trusted_proxies=("10.0.0.7",)) as client:
        assert (await guess(client, lambda i: f"2001:db8:1:2::{i + 1:x}"))[-1] == 429


async def test_the_trail_has_the_address_of_the_client(service: Service, sqlite_store: Store) -> None:
    secret, _ = sqlite_store.access.create_token("me", Role.ADMIN)
    head = {"Authorization": f"Bearer {secret}", "X-Forwarded-For": "8.8.8.8"}
    for proxies in ((), ("10.0.0.7",)):
        async with service(trusted_proxies=proxies) as client:
            await client.post("/api/v1/tokens/tok_x/revoke", headers=head)
    assert [entry.address for _, entry in sqlite_store.access.trail()] == ["8.8.8.8", "10.0.0.7"]


@pytest.mark.parametrize(("proxies", "secure"), [((), False), (("10.0.0.7",), True)])
async def test_the_cookie_is_secure_behind_a_proxy_that_encrypts(
    service: Service, sqlite_store: Store, proxies: tuple[str, ...], secure: bool
) -> None:
    secret, _ = sqlite_store.access.create_token("me", Role.ADMIN)
    async with service(trusted_proxies=proxies) as client:
        answer = await client.post(ME, json={"token": secret}, headers={"X-Forwarded-Proto": "https"})
    assert ("secure" in answer.headers["set-cookie"].lower()) is secure


@pytest.mark.parametrize("stripped", [True, False])
async def test_a_prefix_is_in_all_addresses(service: Service, sqlite_store: Store, stripped: bool) -> None:
    """Some proxies take the prefix away before they pass a request on, and some do not."""
    secret, _ = sqlite_store.access.create_token("me", Role.ADMIN)
    head = {"Authorization": f"Bearer {secret}"}
    base = "http://box.lan:8000" + ("" if stripped else "/tuner")
    async with service(base=base, root_path="/tuner") as client:
        made = await client.post("/api/v1/experiments", json=SPEC, headers=head)
        assert made.headers["location"] == f"/tuner/api/v1/experiments/{made.json()['id']}"
        document = (await client.get("/openapi.json")).json()
        assert document["servers"] == [{"url": "/tuner"}]
        signed_in = await client.post(ME, json={"token": secret})
        assert "path=/tuner;" in signed_in.headers["set-cookie"].lower()
        wrong = await client.put("/api/v1/experiments", headers=head, json={})
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD, POST")
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/api/v1/tokens")).status_code == (401 if stripped else 200), "the cookie's path"
        client.cookies.clear()
        assert (await client.get("/api/v1/tokens")).status_code == 401


async def test_without_a_prefix_addresses_begin_at_the_root(service: Service, sqlite_store: Store) -> None:
    secret, _ = sqlite_store.access.create_token("me", Role.ADMIN)
    async with service() as client:
        made = await client.post("/api/v1/experiments", json=SPEC, headers={"Authorization": f"Bearer {secret}"})
        assert made.headers["location"].startswith("/api/v1/experiments/exp_")


@pytest.mark.parametrize("address", ["::ffff:127.0.0.1", "127.0.0.1"])
async def test_a_caller_on_this_machine_needs_no_token_whatever_the_form_of_its_address(
    sqlite_store: Store, tmp_path: Path, address: str
) -> None:
    """An ASGI server that listens on "::" names a client without IPv6 in a form of IPv6."""
    app = create_app(Settings(home=tmp_path), sqlite_store, web=tmp_path / "web")
    transport = httpx.ASGITransport(app, client=(address, 1234))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
        assert (await client.get("/api/v1/experiments")).status_code == 200


async def test_clients_of_ipv4_are_told_apart_on_a_socket_for_both_versions(
    sqlite_store: Store, tmp_path: Path
) -> None:
    app = create_app(Settings(home=tmp_path, auth="on"), sqlite_store, web=tmp_path / "web")

    def client_at(address: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app, client=(address, 1234))
        return httpx.AsyncClient(transport=transport, base_url="http://box.lan:8000")

    async with client_at("::ffff:6.6.6.6") as guessing, client_at("::ffff:10.0.0.1") as other:
        assert (await guess(guessing, lambda _: "1.2.3.4"))[-1] == 429
        assert (await other.post(ME, json=WRONG)).status_code == 401
        secret, _ = sqlite_store.access.create_token("me", Role.ADMIN)
        await other.post("/api/v1/tokens/tok_x/revoke", headers={"Authorization": f"Bearer {secret}"})
    assert [entry.address for _, entry in sqlite_store.access.trail()] == ["10.0.0.1"]


@pytest.mark.parametrize("proxy", ["10.0.0.7", "10.0.0.0/8", "::ffff:10.0.0.7", "::ffff:10.0.0.0/104", "::/0"])
async def test_a_trusted_proxy_is_known_on_a_socket_for_both_versions(service: Service, proxy: str) -> None:
    async with service(client="::ffff:10.0.0.7", trusted_proxies=(proxy,)) as client:
        assert 429 not in await guess(client, lambda i: f"1.2.3.{i}")
        assert 429 not in await guess(client, lambda i: f"::ffff:1.2.4.{i}")


def forwarded_status(settings: Settings) -> int:
    """Return how a service with these settings answers somebody who creates a token through a proxy of this machine."""
    page = Page(settings, port=0)
    try:
        page.start()
        with httpx.Client(base_url=page.url) as client:
            head = {"X-Forwarded-For": "8.8.8.8"}
            return client.post("/api/v1/tokens", json={"name": "x", "role": "admin"}, headers=head).status_code
    finally:
        page.stop()


@pytest.mark.parametrize(
    ("auth", "proxies", "status"),
    [("auto", ("127.0.0.1",), 401), ("on", ("127.0.0.1",), 401), ("off", ("127.0.0.1",), 201), ("auto", (), 201)],
)
def test_a_loopback_service_behind_a_proxy_asks_for_tokens(
    tmp_path: Path, auth: Literal["auto", "on", "off"], proxies: tuple[str, ...], status: int
) -> None:
    settings = Settings(home=tmp_path, auth=auth, trusted_proxies=proxies)
    with Store.open(settings.database_url) as store:
        store.migrate()
        store.access.create_token("me", Role.ADMIN)
    assert forwarded_status(settings) == status


def test_a_service_behind_a_proxy_does_not_start_without_an_admin(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="TUNER_TRUSTED_PROXIES is set"):
        forwarded_status(Settings(home=tmp_path, trusted_proxies=("127.0.0.1",)))


def test_tokens_cannot_be_turned_off_beyond_loopback(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="0.0.0.0 needs tokens"):
        Page(Settings(home=tmp_path, host="0.0.0.0", auth="off"), port=0)


@pytest.mark.parametrize(
    ("auth", "proxies", "client", "status"),
    [
        ("auto", ("127.0.0.1",), "127.0.0.1", 401),
        ("auto", (), "10.0.0.7", 401),
        ("auto", (), "127.0.0.1", 201),
        ("off", (), "10.0.0.7", 201),
    ],
)
async def test_an_application_that_another_server_runs_asks_for_tokens_as_well(
    sqlite_store: Store,
    tmp_path: Path,
    auth: Literal["auto", "off"],
    proxies: tuple[str, ...],
    client: str,
    status: int,
) -> None:
    """It cannot know on which address that server listens, so with `auto` it looks at where a request comes from."""
    app = create_app(Settings(home=tmp_path, auth=auth, trusted_proxies=proxies), sqlite_store, web=tmp_path / "web")
    transport = httpx.ASGITransport(app, client=(client, 1234))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answer = await http.post("/api/v1/tokens", json={"name": "x", "role": "admin"})
        assert answer.status_code == status
        assert (await http.get("/api/v1/session")).json()["required"] is (status == 401)


@pytest.mark.parametrize(
    ("scheme", "host", "port"),
    [
        ("http", "box.lan", 80),
        ("https", "box.lan", 443),
        ("https", "box.lan:8443", 8443),
        ("http", "[::1]", 80),
        ("http", "[::1]:8000", 8000),
    ],
)
def test_a_cookie_is_named_after_the_port_that_the_browser_sees(scheme: str, host: str, port: int) -> None:
    scope = {"type": "http", "scheme": scheme, "headers": [(b"host", host.encode())]}
    assert auth.cookie_name(scope) == f"tuner_session_{port}"


def test_clients_without_an_address_count_as_one() -> None:
    """Uvicorn knows no address of a client that connects through a Unix socket."""
    assert auth.source_of({"type": "http", "client": None}) == "unknown"
