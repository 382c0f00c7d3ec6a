"""Test access control: tokens, roles, signing in, and the audit trail."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.api.conftest import serving, with_shared_document
from tests.store.examples import T0, a_spec, begin
from tuner.api import create_app, stream
from tuner.api.access import auth, permission
from tuner.domain.keys import trial_id
from tuner.domain.logs import LogChunk
from tuner.settings import Settings
from tuner.store import Store, StoreUnavailable, may_have_written, watched_commits
from tuner.store.service.access import AuditRecord, Role, TokenRecord

EXPERIMENTS = "/api/v1/experiments"
ME = "/api/v1/session"


@pytest.fixture
def guarded(sqlite_store: Store, tmp_path: Path) -> FastAPI:
    """Return a service that asks for tokens."""
    return with_shared_document(create_app(Settings(home=tmp_path, auth="on"), sqlite_store, web=tmp_path / "web"))


@pytest.fixture
async def stranger(guarded: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(guarded, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://box.lan:8000") as client:
        yield client


def bearer(store: Store, role: Role, name: str = "ci", **options: Any) -> dict[str, str]:
    secret, _ = store.access.create_token(name, role, **options)
    return {"Authorization": f"Bearer {secret}"}


async def test_without_a_token_nothing_of_the_api_answers(stranger: httpx.AsyncClient, guarded: FastAPI) -> None:
    paths = [
        (method.upper(), path)
        for path, operations in guarded.openapi()["paths"].items()
        for method in operations
        if path.startswith("/api/") and path != ME
    ]
    assert len(paths) > 15
    for method, path in paths:
        response = await stranger.request(method, path)
        assert (response.status_code, path) == (401, path)
        assert response.headers["content-type"] == "application/problem+json"
        assert response.headers["www-authenticate"].startswith("Bearer")


async def test_health_and_the_page_stay_open(stranger: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/openapi.json", "/"):
        assert (await stranger.get(path)).status_code == 200


@pytest.mark.parametrize(
    "header",
    ["Bearer ", "Bearer tnr_wrong", "Basic dXNlcjpwYXNz", "bearer", "", "Bearer \x7f", "Bearer " + "x" * 5000],
)
async def test_a_wrong_token_is_refused(stranger: httpx.AsyncClient, header: str) -> None:
    response = await stranger.get(EXPERIMENTS, headers={"Authorization": header.encode()})  # type: ignore[dict-item]
    assert response.status_code == 401


async def test_a_wrong_token_is_refused_even_if_none_is_needed(client: httpx.AsyncClient) -> None:
    response = await client.get(EXPERIMENTS, headers={"Authorization": "Bearer tnr_wrong"})
    assert response.status_code == 401


async def test_an_old_cookie_does_no_harm_if_no_token_is_needed(client: httpx.AsyncClient) -> None:
    cookie = {"Cookie": f"{auth.COOKIE}_8000=tns_of_an_earlier_service"}
    assert (await client.get(EXPERIMENTS, headers=cookie)).status_code == 200
    session = (await client.get(ME, headers=cookie)).json()
    assert (session["required"], session["name"], session["role"]) == (False, "local", "admin")


async def test_who_signs_in_is_known_also_if_no_token_is_needed(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    """The trail has their name, and they see their project only."""
    secret, _ = sqlite_store.access.create_token("me", Role.VIEWER, project="vision")
    (await client.post(ME, json={"token": secret})).raise_for_status()
    session = (await client.get(ME)).json()
    assert (session["required"], session["name"], session["role"], session["project"]) == (
        False,
        "me",
        "viewer",
        "vision",
    )


async def test_an_old_cookie_is_refused_if_a_token_is_needed(stranger: httpx.AsyncClient) -> None:
    cookie = {"Cookie": f"{auth.COOKIE}_8000=tns_of_an_earlier_service"}
    assert (await stranger.get(EXPERIMENTS, headers=cookie)).status_code == 401
    assert (await stranger.get(ME, headers=cookie)).json()["name"] is None


async def test_roles(stranger: httpx.AsyncClient, sqlite_store: Store) -> None:
    made, _, _ = begin(sqlite_store)
    cancel = f"{EXPERIMENTS}/{made.public_id}/cancel"
    expected = {  # role: reading, changing, reading tokens
        Role.VIEWER: (200, 403, 403),
        Role.EDITOR: (200, 202, 403),
        Role.ADMIN: (200, 202, 200),
    }
    for role, statuses in expected.items():
        head = bearer(sqlite_store, role)
        head["Authorization"] = head["Authorization"].replace("Bearer ", "bearer  ")  # which RFC 9110 allows
        answers = [
            await stranger.get(EXPERIMENTS, headers=head),
            await stranger.post(cancel, headers=head),
            await stranger.get("/api/v1/tokens", headers=head),
        ]
        assert tuple(answer.status_code for answer in answers) == statuses
    viewer = bearer(sqlite_store, Role.VIEWER)
    refused = await stranger.post(cancel, headers=viewer)
    assert "needs the role editor" in refused.json()["detail"]
    refused = await stranger.post(f"{EXPERIMENTS}/{made.public_id}/assignments", headers=viewer)
    assert refused.json()["detail"].endswith("needs the role agent or editor")
    replay = f"{EXPERIMENTS}/{made.public_id}/replay"
    for given, status in ((viewer, 422), (bearer(sqlite_store, Role.AGENT), 403), ({}, 401)):
        answer = await stranger.post(replay, headers=given, json={"scheduler": "fifo"})
        assert answer.status_code == status, "a viewer may replay, but there is no report yet"
    recorded = {entry.status for _, entry in sqlite_store.access.trail() if entry.path == replay}
    assert not recorded, "it changes nothing"


async def test_viewers_do_not_get_what_may_be_secret(stranger: httpx.AsyncClient, sqlite_store: Store) -> None:
    """The variables of a `runtime_env` and the URLs of webhooks may contain passwords."""
    made, _, _ = begin(sqlite_store)
    viewer, editor = bearer(sqlite_store, Role.VIEWER), bearer(sqlite_store, Role.EDITOR)
    for path in (f"{EXPERIMENTS}/{made.public_id}/spec", f"{EXPERIMENTS}/digits/spec", "/api/v1/webhooks"):
        assert (await stranger.get(path, headers=editor)).status_code == 200, path
        for beside in ("", "%0A", "/"):
            assert (await stranger.get(path + beside, headers=viewer)).status_code == 403, path + beside
        assert (await stranger.head(path, headers=viewer)).status_code == 403
    assert (await stranger.get(f"{EXPERIMENTS}/{made.public_id}", headers=viewer)).status_code == 200


async def test_an_expired_token_is_refused(stranger: httpx.AsyncClient, sqlite_store: Store) -> None:
    head = bearer(sqlite_store, Role.VIEWER, lifetime_s=60, now=0.0)
    assert (await stranger.get(EXPERIMENTS, headers=head)).status_code == 401


async def test_a_revoked_token_is_refused_at_once(stranger: httpx.AsyncClient, sqlite_store: Store) -> None:
    admin = bearer(sqlite_store, Role.ADMIN, "admin")
    made = await stranger.post("/api/v1/tokens", headers=admin, json={"name": "ci", "role": "viewer"})
    assert made.status_code == 201
    head = {"Authorization": f"Bearer {made.json()['secret']}"}
    assert (await stranger.get(EXPERIMENTS, headers=head)).status_code == 200
    revoked = await stranger.post(f"/api/v1/tokens/{made.json()['id']}/revoke", headers=admin)
    assert (revoked.status_code, revoked.json()["secret"]) == (200, None)
    assert (await stranger.get(EXPERIMENTS, headers=head)).status_code == 401


async def test_only_the_newest_sessions_are_kept_in_memory(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody who has a token may open any number of sessions."""
    authenticator = auth.Authenticator(Settings(home=tmp_path), sqlite_store)
    secret = sqlite_store.access.open_session(name="me", role=Role.VIEWER, expires_at=time.time() + 3600)
    found = sqlite_store.access.session_of(secret)
    asked: list[str] = []
    monkeypatch.setattr(sqlite_store.access, "session_of", lambda session: asked.append(session) or found)
    sessions = [auth.Credential(f"tns_{number}", is_session=True) for number in range(1001)]
    for session in (*sessions, sessions[-1], sessions[0]):
        assert await authenticator.identity_of(session) is not None
    assert asked == [session.secret for session in (*sessions, sessions[0])]


async def test_another_service_notices_a_revoked_token_soon(
    stranger: httpx.AsyncClient, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = bearer(sqlite_store, Role.VIEWER)
    assert (await stranger.get(EXPERIMENTS, headers=head)).status_code == 200
    sqlite_store.access.revoke_token(sqlite_store.access.tokens()[0].id)
    monkeypatch.setattr(auth, "KNOWN_S", 0.0)
    assert (await stranger.get(EXPERIMENTS, headers=head)).status_code == 401


async def test_signing_in_sets_a_cookie_that_scripts_cannot_read(
    stranger: httpx.AsyncClient, sqlite_store: Store
) -> None:
    unknown = {"required": True, "name": None, "role": None, "expires_at": None, "project": None, "sign_in_url": None}
    assert (await stranger.get(ME)).json() == unknown
    secret, _ = sqlite_store.access.create_token("me", Role.EDITOR)
    response = await stranger.post(ME, json={"token": secret})
    assert (response.status_code, response.json()["name"], response.json()["role"]) == (200, "me", "editor")
    cookie = response.headers["set-cookie"].lower()
    assert all(part in cookie for part in ("httponly", "samesite=strict", "max-age=2592000"))
    assert "secure" not in cookie, "this connection is not encrypted"
    assert (await stranger.get(EXPERIMENTS)).status_code == 200
    assert (await stranger.get(ME)).json()["name"] == "me"
    assert (await stranger.delete(ME)).status_code == 204
    assert (await stranger.get(EXPERIMENTS)).status_code == 401


async def test_the_cookie_has_a_session_and_not_the_token(
    stranger: httpx.AsyncClient, sqlite_store: Store, sqlite_url: str
) -> None:
    secret, _ = sqlite_store.access.create_token("me", Role.EDITOR)
    response = await stranger.post(ME, json={"token": secret})
    assert secret.removeprefix("tnr_") not in response.headers["set-cookie"]
    cookie = stranger.cookies["tuner_session_8000"]
    assert cookie.startswith("tns_")
    dump = "\n".join(sqlite3.connect(sqlite_url.removeprefix("sqlite:///")).iterdump())
    assert cookie.removeprefix("tns_") not in dump
    bearer = {"Authorization": f"Bearer {cookie}"}
    stranger.cookies.clear()
    assert (await stranger.get(EXPERIMENTS, headers=bearer)).status_code == 401, "a session is no token"
    swapped = {"Cookie": f"tuner_session_8000={secret}"}
    assert (await stranger.get(EXPERIMENTS, headers=swapped)).status_code == 401, "a token is no session"


@pytest.mark.parametrize("end", ["signed out", "revoked", "expired"])
async def test_a_stolen_cookie_is_of_no_use_after_the_end(
    stranger: httpx.AsyncClient, sqlite_store: Store, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, token = sqlite_store.access.create_token("me", Role.EDITOR, lifetime_s=3600)
    await stranger.post(ME, json={"token": secret})
    stolen = {"Cookie": f"tuner_session_8000={stranger.cookies['tuner_session_8000']}"}
    assert (await stranger.get(EXPERIMENTS, headers=stolen)).status_code == 200
    match end:
        case "signed out":
            close, loop = sqlite_store.access.close_session, asyncio.get_running_loop()

            def close_after_a_request(session: str) -> None:
                """Another request, or an open stream, of the browser may find the session while it is being ended."""
                asked = asyncio.run_coroutine_threadsafe(stranger.get(EXPERIMENTS, headers=stolen), loop)
                assert asked.result(60).status_code == 200
                close(session)

            monkeypatch.setattr(sqlite_store.access, "close_session", close_after_a_request)
            assert (await stranger.delete(ME)).status_code == 204
        case "revoked":
            head = bearer(sqlite_store, Role.ADMIN)
            assert (await stranger.post(f"/api/v1/tokens/{token.id}/revoke", headers=head)).status_code == 200
        case _:
            later = time.time() + 3601
            monkeypatch.setattr(time, "time", lambda: later)
    stranger.cookies.clear()
    assert (await stranger.get(EXPERIMENTS, headers=stolen)).status_code == 401


async def test_services_on_two_ports_have_cookies_of_their_own(guarded: FastAPI, sqlite_store: Store) -> None:
    """Browsers send the cookies of one port of a host to all its ports."""
    secret, _ = sqlite_store.access.create_token("me", Role.EDITOR)
    jar = httpx.Cookies()
    for port in (8000, 8001):
        transport = httpx.ASGITransport(guarded)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://box.lan:{port}", cookies=jar) as client:
            assert (await client.get(EXPERIMENTS)).status_code == 401
            await client.post(ME, json={"token": secret})
            assert (await client.get(EXPERIMENTS)).status_code == 200
            jar = client.cookies
    assert {cookie.name for cookie in jar.jar} == {"tuner_session_8000", "tuner_session_8001"}


async def test_the_cookie_is_secure_on_an_encrypted_connection(guarded: FastAPI, sqlite_store: Store) -> None:
    secret, _ = sqlite_store.access.create_token("me", Role.EDITOR, lifetime_s=600)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="https://box.lan") as client:
        response = await client.post(ME, json={"token": secret})
    cookie = response.headers["set-cookie"].lower()
    assert "secure" in cookie
    age = int(cookie.partition("max-age=")[2].partition(";")[0])
    assert 590 <= age <= 600, "it ends with the token"


async def test_another_page_cannot_use_the_cookie(stranger: httpx.AsyncClient, sqlite_store: Store) -> None:
    made, _, _ = begin(sqlite_store)
    secret, _ = sqlite_store.access.create_token("me", Role.EDITOR)
    await stranger.post(ME, json={"token": secret})
    cancel = f"{EXPERIMENTS}/{made.public_id}/cancel"
    assert (await stranger.post(cancel, headers={"Origin": "http://evil.example"})).status_code == 403
    assert (await stranger.post(cancel, headers={"Origin": "http://box.lan:8000"})).status_code == 202


async def test_guessing_is_slowed_down_and_a_right_token_is_not(
    stranger: httpx.AsyncClient, sqlite_store: Store
) -> None:
    answers = await asyncio.gather(*(stranger.post(ME, json={"token": f"tnr_{i}"}) for i in range(auth.TRIES + 5)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) == 5, "also if they come all at once"
    assert 0 < int(refused[0].headers["retry-after"]) <= auth.TRIES_S + 1
    secret, _ = sqlite_store.access.create_token("me", Role.EDITOR)
    assert (await stranger.post(ME, json={"token": secret})).status_code == 200, "others share this address"
    assert (await stranger.post(ME, json={"token": "tnr_wrong"})).status_code == 401, "and the count begins again"


async def test_guesses_are_forgotten(
    stranger: httpx.AsyncClient, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(auth.TRIES):
        await stranger.post(ME, json={"token": "tnr_wrong"})
    assert (await stranger.post(ME, json={"token": "tnr_wrong"})).status_code == 429
    monkeypatch.setattr(auth, "TRIES_S", 0.0)
    assert (await stranger.post(ME, json={"token": "tnr_wrong"})).status_code == 401


@pytest.mark.parametrize("body", [None, [], {}, {"token": 3}, {"token": ""}, {"token": "x" * 1001}])
async def test_a_wrong_body_is_told_of(stranger: httpx.AsyncClient, body: object) -> None:
    answer = await stranger.post(ME, json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == ("/token" if isinstance(body, dict) else "")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"name": "a"}, "/role"),
        ({"name": "a", "role": "root"}, "/role"),
        ({"name": " ", "role": "viewer"}, "/name"),
        ({"name": "a", "role": "admin", "projct": "vision"}, "/projct"),
        ([], ""),
    ],
)
async def test_a_wrong_token_request_is_told_of(client: httpx.AsyncClient, body: Any, pointer: str) -> None:
    response = await client.post("/api/v1/tokens", json=body)
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, pointer)


async def test_who_changed_what_is_written_down(stranger: httpx.AsyncClient, sqlite_store: Store) -> None:
    made, _, _ = begin(sqlite_store)
    cancel = f"{EXPERIMENTS}/{made.public_id}/cancel"
    await stranger.post(cancel)
    await stranger.post(cancel, headers=bearer(sqlite_store, Role.VIEWER, "guest"))
    await stranger.post(cancel, headers=bearer(sqlite_store, Role.EDITOR, "ci"))
    admin = bearer(sqlite_store, Role.ADMIN, "admin")
    assert (await stranger.get(EXPERIMENTS, headers=admin)).status_code == 200, "reading is not written down"
    found = (await stranger.get("/api/v1/audit", headers=admin)).json()["items"]
    assert [(entry["actor"], entry["status"]) for entry in found] == [("ci", 202), ("guest", 403)]
    assert {(entry["method"], entry["path"]) for entry in found} == {("POST", cancel)}
    page = (await stranger.get("/api/v1/audit?page_size=1", headers=admin)).json()
    rest = (await stranger.get(f"/api/v1/audit?page_token={page['next_page_token']}", headers=admin)).json()
    assert [entry["actor"] for entry in rest["items"]] == ["guest"]


async def test_a_token_that_is_passed_in_place_of_its_id_is_not_in_the_trail(
    stranger: httpx.AsyncClient, sqlite_store: Store
) -> None:
    secret, _ = sqlite_store.access.create_token("leaked", Role.EDITOR)
    admin = bearer(sqlite_store, Role.ADMIN, "admin")
    assert (await stranger.post(f"/api/v1/tokens/{secret}/revoke", headers=admin)).status_code == 404
    [(_, entry)] = sqlite_store.access.trail()
    assert entry.path == "/api/v1/tokens/tnr_***/revoke"


async def test_the_trail_names_what_was_created(client: httpx.AsyncClient, spec: dict[str, Any]) -> None:
    made = await client.post(EXPERIMENTS, json=spec)
    fork = await client.post(f"{EXPERIMENTS}/{made.json()['id']}/fork", json={"changes": {"seed": 2}})
    webhook = await client.post("/api/v1/webhooks", json={"url": "https://example.com/a", "events": ["trial.failed"]})
    paused = await client.post(f"{EXPERIMENTS}/{made.json()['id']}/pause")
    refused = await client.post(EXPERIMENTS, json={})
    assert [one.status_code for one in (made, fork, webhook, paused, refused)] == [201, 201, 201, 202, 422]
    assert (await client.get(webhook.headers["location"])).json()["id"] == webhook.json()["id"]
    found = (await client.get("/api/v1/audit")).json()["items"]
    created = [one.json()["id"] for one in (webhook, fork, made)]
    assert [entry["created"] for entry in found] == [None, None, *created]


async def test_strangers_cannot_fill_the_trail(stranger: httpx.AsyncClient, sqlite_store: Store) -> None:
    for i in range(5):
        assert (await stranger.post(f"/api/v1/{'x' * 500}{i}")).status_code == 401
        await stranger.post(ME, json={"token": "tnr_wrong"})
    assert sqlite_store.access.trail() == []


@pytest.mark.parametrize("mounted", [True, False])
async def test_a_path_prefix_opens_nothing(guarded: FastAPI, sqlite_store: Store, mounted: bool) -> None:
    app = Starlette(routes=[Mount("/tuner", guarded)]) if mounted else guarded
    transport = httpx.ASGITransport(app, root_path="" if mounted else "/tuner")
    async with httpx.AsyncClient(transport=transport, base_url="http://box.lan") as client:
        for path in ("/tuner/api/v1/tokens", "/tuner/api/v1/experiments", "/tuner//api/v1/tokens", "/api/v1/tokens"):
            assert (await client.get(path)).status_code in (401, 404), path
        assert (await client.post("/tuner/api/v1/tokens", json={"name": "x", "role": "admin"})).status_code == 401
        head = bearer(sqlite_store, Role.VIEWER)
        assert (await client.get("/tuner/api/v1/experiments", headers=head)).status_code == 200
        assert (await client.get("/tuner/api/v1/tokens", headers=head)).status_code == 403
    assert [token.name for token in sqlite_store.access.tokens()] == ["ci"]


async def test_a_route_that_the_check_has_not_seen_is_refused(sqlite_store: Store, tmp_path: Path) -> None:
    app = create_app(Settings(home=tmp_path), sqlite_store)
    app.user_middleware.clear()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        assert (await client.get(EXPERIMENTS)).status_code == 401


@pytest.mark.parametrize("other", ['a={"x":1}', "a[b]=1", "flag", "x=a,b c", "k@y=1"])
async def test_cookies_of_other_services_do_no_harm(
    stranger: httpx.AsyncClient, sqlite_store: Store, other: str
) -> None:
    secret = sqlite_store.access.open_session(name="me", role=Role.VIEWER, expires_at=time.time() + 60)
    response = await stranger.get(EXPERIMENTS, headers={"Cookie": f"{other}; {auth.COOKIE}_8000={secret}"})
    assert response.status_code == 200


async def test_credentials_for_a_proxy_do_no_harm(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient, sqlite_store: Store
) -> None:
    basic = {"Authorization": "Basic dXNlcjpwYXNz"}
    assert (await client.get(EXPERIMENTS, headers=basic)).status_code == 200
    secret = sqlite_store.access.open_session(name="me", role=Role.VIEWER, expires_at=time.time() + 60)
    cookie = {"Cookie": f"{auth.COOKIE}_8000={secret}"}
    assert (await stranger.get(EXPERIMENTS, headers={**basic, **cookie})).status_code == 200


async def test_reading_does_not_wait_for_a_write(
    stranger: httpx.AsyncClient, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(type(sqlite_store.access), "note_use", away)
    assert (await stranger.get(EXPERIMENTS, headers=bearer(sqlite_store, Role.VIEWER))).status_code == 200


@pytest.mark.parametrize("put_back", [False, True], ids=["first use", "used before the clock was put back"])
async def test_the_latest_use_of_a_token_is_noted(
    stranger: httpx.AsyncClient, sqlite_store: Store, put_back: bool
) -> None:
    headers, began = bearer(sqlite_store, Role.VIEWER), time.time()
    if put_back:
        sqlite_store.access.note_use(sqlite_store.access.tokens()[0].id, now=began + 3600)
    await stranger.get(EXPERIMENTS, headers=headers)
    for _ in range(500):
        used_at = sqlite_store.access.tokens()[0].used_at
        if used_at is not None and used_at < began + 3600:
            return
        await asyncio.sleep(0.01)
    pytest.fail("the use was not noted within 5 s")


async def test_a_sign_in_is_in_the_trail_without_its_secret(stranger: httpx.AsyncClient, sqlite_store: Store) -> None:
    secrets, ids = [], []
    for name in ("me", "the next user of the browser"):
        secret, token = sqlite_store.access.create_token(name, Role.ADMIN)
        await stranger.post(ME, json={"token": secret})
        secrets.append(secret)
        ids.append((name, token.id))
    answer = await stranger.get("/api/v1/audit")
    entries = answer.json()["items"][::-1]
    assert [(entry["actor"], entry["token_id"]) for entry in entries] == ids
    assert [(entry["method"], entry["path"]) for entry in entries] == [("POST", ME)] * 2
    assert not any(secret in answer.text for secret in secrets)


async def test_without_auth_everybody_is_local(client: httpx.AsyncClient) -> None:
    session = (await client.get(ME)).json()
    assert session == {
        "required": False,
        "name": "local",
        "role": "admin",
        "expires_at": None,
        "project": None,
        "sign_in_url": None,
    }
    assert (await client.get("/api/v1/tokens")).status_code == 200


async def test_a_database_that_is_away_is_not_a_wrong_token(
    stranger: httpx.AsyncClient, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("away")

    head = bearer(sqlite_store, Role.VIEWER)
    monkeypatch.setattr(type(sqlite_store.access), "token_of", away)
    response = await stranger.get(EXPERIMENTS, headers=head)
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


async def test_the_event_stream_needs_a_token_too(stranger: httpx.AsyncClient, sqlite_store: Store) -> None:
    made, _, _ = begin(sqlite_store)
    assert (await stranger.get(f"{EXPERIMENTS}/{made.public_id}/events")).status_code == 401


@pytest.fixture
def guarded_server(guarded: FastAPI) -> Iterator[str]:
    """Serve a service that asks for tokens over a socket and yield its URL."""
    yield from serving(guarded)


@pytest.mark.parametrize("path", ["changes", "events", "logs/text"])
@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_an_open_stream_ends_with_its_token(
    guarded_server: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch, path: str, end: str
) -> None:
    monkeypatch.setattr(auth, "KNOWN_S", 0.1)
    monkeypatch.setattr(permission, "ASK_S", 0.1)
    made, _, _ = begin(sqlite_store)
    sqlite_store.logs.add(made.id, {(0, 1): [LogChunk.of(0, 0, b"first\n", T0)]})
    secret, token = sqlite_store.access.create_token("ci", Role.VIEWER)
    monkeypatch.setattr(stream, "COMMENT_S", 3600.0)
    url = f"{guarded_server}{EXPERIMENTS}/{made.public_id}/{path}"
    if path == "logs/text":
        url = f"{guarded_server}/api/v1/trials/{trial_id(made.public_id, 0)}/{path}?follow=true"
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.stream("GET", url, headers=headers, timeout=10) as response:
        lines = response.iter_lines()
        next(line for line in lines if line.startswith(("data", "first")))
        if end == "revoked":
            sqlite_store.access.revoke_token(token.id)
        else:
            monkeypatch.setattr(TokenRecord, "is_valid", lambda self, now: False)
        for _ in lines:
            pass  # a stream that stays open times out
    assert httpx.get(url, headers=headers).status_code == 401


def test_an_old_cookie_ends_no_stream_if_no_token_is_needed(
    server: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permission, "ASK_S", 0.0)
    made, _, _ = begin(sqlite_store)
    sqlite_store.logs.add(made.id, {(0, 1): [LogChunk.of(0, 0, b"first\n", T0)]})
    url = f"{server}/api/v1/trials/{trial_id(made.public_id, 0)}/logs/text?follow=true"
    cookie = {"Cookie": f"{auth.COOKIE}_{server.rpartition(':')[2]}=tns_of_an_earlier_service"}
    with httpx.stream("GET", url, headers=cookie, timeout=10) as response:
        lines = response.iter_lines()
        next(line for line in lines if line == "first")
        sqlite_store.logs.add(made.id, {(0, 1): [LogChunk.of(0, 6, b"second\n", T0)]})
        assert next(lines) == "second"


@pytest.mark.postgres
async def test_two_services_over_one_database_share_sessions(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "KNOWN_S", 0.0)
    with Store.open(postgres_url) as one, Store.open(postgres_url) as other:
        secret, _ = one.access.create_token("me", Role.EDITOR, project="vision")
        apps = [create_app(Settings(home=tmp_path, auth="on"), store) for store in (one, other)]
        transports = [httpx.ASGITransport(app) for app in apps]
        base = "http://box.lan:8000"  # a balancer in front of both
        async with (
            httpx.AsyncClient(transport=transports[0], base_url=base) as first,
            httpx.AsyncClient(transport=transports[1], base_url=base) as second,
        ):
            assert (await first.post(ME, json={"token": secret})).status_code == 200
            second.cookies = first.cookies
            begin(one, spec=a_spec(project="vision"))
            begin(one, spec=a_spec(project="speech"))
            for client in (first, second):
                items = (await client.get(EXPERIMENTS)).json()["items"]
                assert [item["project"] for item in items] == ["vision"]
            stolen = {"Cookie": f"tuner_session_8000={second.cookies['tuner_session_8000']}"}
            assert (await second.delete(ME)).status_code == 204
            first.cookies.clear()
            assert (await first.get(EXPERIMENTS, headers=stolen)).status_code == 401


def a_call(path: str) -> AuditRecord:
    return AuditRecord(
        time=T0, actor="ci", token_id=None, method="POST", path=path, status=201, address="10.0.0.1", project=None
    )


async def test_the_time_of_a_tokens_use_does_not_count_as_a_write_of_the_request(
    sqlite_store: Store, tmp_path: Path
) -> None:
    """Otherwise a failed request would not be repeated, although it has written nothing."""
    authenticator = auth.Authenticator(Settings(home=tmp_path), sqlite_store)
    secret, made = sqlite_store.access.create_token("ci", Role.EDITOR)
    with watched_commits():
        assert await authenticator.identity_of(auth.Credential(secret)) is not None
        await asyncio.gather(*authenticator._writing)
        assert not may_have_written()
    assert next(one for one in sqlite_store.access.tokens() if one.id == made.id).used_at is not None


async def test_a_failed_write_of_the_audit_trail_keeps_no_request_waiting(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authenticator = auth.Authenticator(Settings(home=tmp_path), sqlite_store)
    began, may_fail, paths = threading.Event(), threading.Event(), []

    def note(*records: AuditRecord) -> None:
        paths.append([record.path for record in records])
        if len(paths) == 1:
            began.set()
            may_fail.wait(10)
            raise RuntimeError("broken")

    monkeypatch.setattr(sqlite_store.access, "note", note)
    first = asyncio.ensure_future(authenticator.note(a_call("/first")))
    await asyncio.to_thread(began.wait, 10)
    later = [asyncio.ensure_future(authenticator.note(a_call(path))) for path in ("/second", "/third")]
    await asyncio.sleep(0)
    may_fail.set()
    async with asyncio.timeout(10):
        answers = await asyncio.gather(first, *later, return_exceptions=True)
    assert [repr(answer) for answer in answers] == ["RuntimeError('broken')", "None", "None"]
    assert paths == [["/first"], ["/second", "/third"]]


async def test_a_cancelled_write_of_the_audit_trail_keeps_no_request_waiting(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authenticator = auth.Authenticator(Settings(home=tmp_path), sqlite_store)
    began, may_end = threading.Event(), threading.Event()

    def note(*_: AuditRecord) -> None:
        began.set()
        may_end.wait(10)

    monkeypatch.setattr(sqlite_store.access, "note", note)
    waiting = [asyncio.ensure_future(authenticator.note(a_call("/first")))]
    await asyncio.to_thread(began.wait, 10)
    waiting.append(asyncio.ensure_future(authenticator.note(a_call("/second"))))
    await asyncio.sleep(0)
    assert authenticator._notes is not None
    authenticator._notes.cancel()
    try:
        async with asyncio.timeout(5):
            answers = await asyncio.gather(*waiting, return_exceptions=True)
    finally:
        may_end.set()
    assert [type(answer) for answer in answers] == [asyncio.CancelledError] * 2
    await authenticator.note(a_call("/third"))


async def test_the_trail_has_every_request_that_was_answered(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = sqlite_store.access.note

    def slowly(*records: AuditRecord) -> None:
        time.sleep(0.3)
        write(*records)

    monkeypatch.setattr(sqlite_store.access, "note", slowly)
    for url in serving(create_app(Settings(home=tmp_path), sqlite_store)):
        async with httpx.AsyncClient(base_url=url) as client:
            for auto in ("auto", None):
                changed = await client.patch("/api/v1/projects/vision", json={"warm_start": auto})
                assert changed.status_code == 200, changed.text
                items = (await client.get("/api/v1/audit")).json()["items"]
                assert [item["path"] for item in items] == ["/api/v1/projects/vision"] * (1 if auto else 2)
