"""Sign-in with an OpenID Connect provider that runs in the test: what a browser does, and what must not work."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.store.examples import a_spec
from tuner.api import create_app
from tuner.api.access import auth, oidc
from tuner.errors import SpecError
from tuner.settings import OidcRule, Settings
from tuner.store import Store

ISSUER, CLIENT, SECRET = "https://sso.example.com/realms/ml", "tuner", "hush"
ROLES = (OidcRule("ml-admins", "admin"), OidcRule("vision", "editor", "vision"))


class SmallProvider:
    """An OpenID Connect provider with one client, which signs everybody in at once as `person`.

    `lie` changes the claims of an ID token before it is signed.
    """

    def __init__(self) -> None:
        self.person: dict[str, Any] = {"sub": "u1", "email": "ada@example.com", "groups": ["staff", "vision"]}
        self.key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})
        self.lie: Callable[[dict[str, Any]], None] = lambda claims: None
        self.signs_with: RSAKey | None = None
        self.more_keys: list[Any] = []
        self.auth_methods: list[str] | None = None  # how the client may send its secret
        self.codes: dict[str, dict[str, str]] = {}
        self.asked: list[dict[str, str]] = []
        self.app = app = FastAPI()

        @app.get("/realms/ml/.well-known/openid-configuration")
        def configuration() -> dict[str, Any]:
            return {
                "issuer": ISSUER,
                "authorization_endpoint": f"{ISSUER}/authorize",
                "token_endpoint": f"{ISSUER}/token",
                "jwks_uri": f"{ISSUER}/keys",
                "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
                **({"token_endpoint_auth_methods_supported": self.auth_methods} if self.auth_methods else {}),
            }

        @app.get("/realms/ml/keys")
        def keys() -> dict[str, Any]:
            return {"keys": [*self.more_keys, self.key.as_dict(private=False)]}

        @app.get("/realms/ml/authorize")
        def authorize(request: Request) -> Response:
            asked = dict(request.query_params)
            self.asked.append(asked)
            assert (asked["response_type"], asked["client_id"], asked["code_challenge_method"]) == (
                "code",
                CLIENT,
                "S256",
            )
            assert {"openid", "profile", "email"} <= set(asked["scope"].split())
            code = secrets.token_urlsafe(8)
            self.codes[code] = asked
            return RedirectResponse(f"{asked['redirect_uri']}?code={code}&state={asked['state']}", 303)

        @app.post("/realms/ml/token")
        async def token(request: Request) -> Response:
            form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
            basic = request.headers.get("authorization", "").removeprefix("Basic ")
            given = base64.b64decode(basic).decode()
            if self.auth_methods == ["client_secret_post"]:
                given = "" if basic else f"{form['client_id']}:{form.get('client_secret')}"
            asked = self.codes.pop(form["code"], None)  # a code works once
            challenge = (
                base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
            )
            if (
                asked is None
                or given != f"{CLIENT}:{SECRET}"
                or challenge != asked["code_challenge"]
                or form["redirect_uri"] != asked["redirect_uri"]
            ):
                return JSONResponse({"error": "invalid_grant", "error_description": "AADSTS7000222: it <expired>"}, 400)
            now = int(time.time())
            claims = {
                "iss": ISSUER,
                "aud": CLIENT,
                "iat": now,
                "exp": now + 300,
                "nonce": asked["nonce"],
                **self.person,
            }
            self.lie(claims)
            signed = jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.signs_with or self.key)
            return JSONResponse({"access_token": "x", "token_type": "Bearer", "id_token": signed})


@pytest.fixture(scope="module")
def _provider() -> SmallProvider:
    return SmallProvider()  # its key takes a moment to make


@pytest.fixture
def provider(_provider: SmallProvider, monkeypatch: pytest.MonkeyPatch) -> SmallProvider:
    _provider.person = {"sub": "u1", "email": "ada@example.com", "groups": ["staff", "vision"]}
    _provider.lie, _provider.signs_with = lambda claims: None, None
    _provider.asked.clear()
    made = oidc.Provider.__init__

    def within(self: oidc.Provider, settings: Settings) -> None:
        made(self, settings, httpx.ASGITransport(_provider.app))

    monkeypatch.setattr(oidc.Provider, "__init__", within)
    return _provider


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        home=tmp_path, oidc_issuer=ISSUER, oidc_client_id=CLIENT, oidc_client_secret=SECRET, oidc_roles=ROLES
    )


@pytest.fixture
async def browser(provider: SmallProvider, settings: Settings, sqlite_store: Store) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(settings, sqlite_store, web=settings.home / "web")
    transport = httpx.ASGITransport(app, client=("10.0.0.7", 1234))
    async with httpx.AsyncClient(transport=transport, base_url="https://tuner.lan") as client:
        yield client


async def at_provider(provider: SmallProvider, browser: httpx.AsyncClient, path: str = "/auth/login") -> str:
    """Begin to sign in, and return the address to which the provider sends the browser back."""
    sent = await browser.get(path)
    assert sent.status_code == 303, sent.text
    async with httpx.AsyncClient(transport=httpx.ASGITransport(provider.app)) as there:
        return (await there.get(sent.headers["location"])).headers["location"]


async def who(browser: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await browser.get("/api/v1/session")).json()
    return found


async def test_a_person_signs_in_and_has_the_role_and_the_project_of_their_group(
    browser: httpx.AsyncClient, provider: SmallProvider, sqlite_store: Store
) -> None:
    before = await who(browser)
    assert (before["required"], before["name"], before["sign_in_url"]) == (True, None, "/auth/login")
    assert (await browser.get("/api/v1/experiments")).status_code == 401
    back = await at_provider(provider, browser, "/auth/login?next=/experiments/exp_1")
    begun = next(cookie for cookie in browser.cookies.jar if "oidc" in cookie.name)
    assert (begun.path, begun.secure) == ("/auth/callback", True)
    done = await browser.get(back)
    assert (done.status_code, done.headers["location"]) == (303, "/experiments/exp_1")
    assert "HttpOnly" in done.headers["set-cookie"]
    now = await who(browser)
    assert (now["name"], now["role"], now["project"]) == ("ada@example.com", "editor", "vision")
    assert now["expires_at"] is not None
    sqlite_store.experiments.create(a_spec("theirs"))
    assert (await browser.get("/api/v1/experiments")).json()["items"] == []
    assert (await browser.get("/api/v1/audit")).status_code == 403
    [(_, entry)] = sqlite_store.access.trail()
    assert (entry.actor, entry.path, entry.address, entry.project) == (
        "ada@example.com",
        "/auth/callback",
        "10.0.0.7",
        "vision",
    )
    assert (await browser.delete("/api/v1/session")).status_code == 204
    assert (await who(browser))["name"] is None


@pytest.mark.parametrize(
    "methods", [["client_secret_post"], ["client_secret_post", "client_secret_basic"], ["private_key_jwt"]]
)
async def test_the_secret_is_sent_as_the_provider_takes_it(
    browser: httpx.AsyncClient, provider: SmallProvider, monkeypatch: pytest.MonkeyPatch, methods: list[str]
) -> None:
    """A provider that takes the secret only in the body, as Apple does, refused every sign-in with `invalid_client`."""
    monkeypatch.setattr(provider, "auth_methods", methods)
    done = await browser.get(await at_provider(provider, browser))
    assert done.status_code == 303, done.text


async def test_people_sign_in_in_two_tabs_at_once(browser: httpx.AsyncClient, provider: SmallProvider) -> None:
    """The second tab overwrote the cookie of the first one, which then deleted it: both were refused."""
    one = await at_provider(provider, browser, "/auth/login?next=/experiments/exp_1")
    two = await at_provider(provider, browser, "/auth/login?next=/experiments/exp_2")
    for back, page in ((one, "/experiments/exp_1"), (two, "/experiments/exp_2")):
        done = await browser.get(back)
        assert (done.status_code, done.headers.get("location")) == (303, page), done.text
    assert not [cookie.name for cookie in browser.cookies.jar if "oidc" in cookie.name], "both are over"


async def test_the_first_group_of_the_list_counts(browser: httpx.AsyncClient, provider: SmallProvider) -> None:
    provider.person["groups"] = ["vision", "ml-admins"]
    await browser.get(await at_provider(provider, browser))
    assert ((await who(browser))["role"], (await who(browser))["project"]) == ("admin", None)


@pytest.mark.parametrize("groups", [["staff"], [], "staff", None, {"vision": 1}])
async def test_who_is_in_no_group_with_a_role_is_refused(
    browser: httpx.AsyncClient, provider: SmallProvider, groups: Any
) -> None:
    provider.person["groups"] = groups
    refused = await browser.get(await at_provider(provider, browser))
    assert (refused.status_code, (await who(browser))["name"]) == (403, None)
    assert "No group of ada@example.com has a role here: ask an admin" in refused.text


async def test_groups_that_are_too_many_for_the_id_token_are_said(
    browser: httpx.AsyncClient, provider: SmallProvider
) -> None:
    """Entra ID leaves out the groups of people who are in more than 200. The page said that none of them has a role."""
    del provider.person["groups"]
    provider.person |= {"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {"endpoint": "https://graph"}}}
    refused = await browser.get(await at_provider(provider, browser))
    assert refused.status_code == 403
    assert (
        "The provider left the groups of ada@example.com out of the ID token, since they are too many" in refused.text
    )


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        ("nonce", "another"),
        ("nonce", None),
        ("aud", "other-client"),
        ("aud", [CLIENT, "other-client"]),
        ("iss", "https://evil.example.com"),
        ("exp", 1000),
        ("exp", None),
        ("iat", 4_000_000_000),
        ("sub", None),
    ],
)
async def test_an_id_token_with_a_wrong_claim_is_refused(
    browser: httpx.AsyncClient, provider: SmallProvider, claim: str, value: Any
) -> None:
    def lie(claims: dict[str, Any]) -> None:
        claims.pop(claim) if value is None else claims.update({claim: value})

    provider.lie = lie
    refused = await browser.get(await at_provider(provider, browser))
    assert (refused.status_code, (await who(browser))["name"]) == (403, None)
    assert "ID token that is not valid" in refused.text
    of_times = claim in ("exp", "iat") and value is not None
    assert ("compare the clocks of the service and the provider" in refused.text) == of_times
    assert "_" not in refused.text, "an error code is for programs"


async def test_a_sign_in_that_failed_can_be_tried_again_with_its_page_or_made_with_a_token(
    browser: httpx.AsyncClient, provider: SmallProvider
) -> None:
    """`Try again` led to the list of experiments, and there was no way to the form for a token."""
    provider.lie = lambda claims: claims.update(exp=1000)
    refused = await browser.get(await at_provider(provider, browser, "/auth/login?next=/experiments/exp_1?tab=log"))
    clocks = "compare the clocks of the service and the provider, which may differ by at most 60 s"
    assert f"The provider sent an ID token that is not valid: the token is expired; {clocks}.<" in refused.text
    again, with_token = re.findall("href='([^']*)'", refused.text)
    assert urljoin(str(refused.url), with_token) == "https://tuner.lan/"
    provider.lie = lambda claims: None
    done = await browser.get(await at_provider(provider, browser, urljoin(str(refused.url), again)))
    assert done.headers["location"] == "/experiments/exp_1?tab=log"


async def test_an_id_token_that_another_key_has_signed_is_refused(
    browser: httpx.AsyncClient, provider: SmallProvider
) -> None:
    provider.signs_with = RSAKey.generate_key(2048, {"kid": "one"})
    assert (await browser.get(await at_provider(provider, browser))).status_code == 403


async def test_a_key_that_the_provider_has_withdrawn_is_refused_soon(
    browser: httpx.AsyncClient, provider: SmallProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await browser.get(await at_provider(provider, browser))).status_code == 303
    provider.signs_with = provider.key
    monkeypatch.setattr(provider, "key", RSAKey.generate_key(2048, {"kid": "one"}))
    monkeypatch.setattr(oidc, "KNOWN_S", -1.0)
    assert (await browser.get(await at_provider(provider, browser))).status_code == 403


async def test_an_answer_without_an_id_token_is_refused(
    browser: httpx.AsyncClient, provider: SmallProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwt, "encode", lambda *_: None)
    refused = await browser.get(await at_provider(provider, browser))
    assert (refused.status_code, "The provider sent no ID token" in refused.text) == (403, True)


async def test_a_new_key_of_the_provider_is_read(browser: httpx.AsyncClient, provider: SmallProvider) -> None:
    await browser.get(await at_provider(provider, browser))
    old, provider.key = provider.key, RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})
    try:
        assert (await browser.get(await at_provider(provider, browser))).status_code == 303
    finally:
        provider.key = old


@pytest.mark.parametrize(
    "other",
    [
        {"kty": "EC", "crv": "brainpoolP256r1", "x": "AA", "y": "AA", "kid": "b"},
        {"kty": "AKP", "alg": "ML-DSA-44", "pub": "AA", "kid": "b"},
        {"kty": "RSA", "e": "AQAB", "kid": "b"},
        "key",
    ],
)
async def test_a_key_that_is_not_understood_is_ignored(
    browser: httpx.AsyncClient, provider: SmallProvider, monkeypatch: pytest.MonkeyPatch, other: Any
) -> None:
    """One key of a kind that is not supported failed the sign-in of everybody, with a server error."""
    monkeypatch.setattr(provider, "more_keys", [other])
    assert (await browser.get(await at_provider(provider, browser))).status_code == 303


@pytest.mark.parametrize("answer", [{"error": "try later"}, {"keys": None}])
async def test_keys_that_are_no_key_set_are_said(
    browser: httpx.AsyncClient, provider: SmallProvider, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]
) -> None:
    get = oidc.Provider._get

    async def without_keys(self: oidc.Provider, url: str) -> dict[str, Any]:
        return answer if url.endswith("/keys") else await get(self, url)

    monkeypatch.setattr(oidc.Provider, "_get", without_keys)
    refused = await browser.get(await at_provider(provider, browser))
    assert (refused.status_code, "are not a JSON Web Key Set" in refused.text) == (503, True)


async def test_a_code_works_only_in_the_browser_that_began_and_only_once(
    browser: httpx.AsyncClient, provider: SmallProvider
) -> None:
    back = await at_provider(provider, browser)
    head = {"Cookie": "; ".join(f"{name}={value}" for name, value in browser.cookies.items())}
    browser.cookies.clear()
    assert (await browser.get(back)).status_code == 403, "without the cookie"
    await at_provider(provider, browser)
    assert (await browser.get(back)).status_code == 403, "with the cookie of another sign-in"
    browser.cookies.clear()
    assert (await browser.get(back, headers=head)).status_code == 303
    browser.cookies.clear()
    assert (await browser.get(back, headers=head)).status_code == 403, "a second time"
    assert (await who(browser))["name"] is None


async def test_a_verifier_that_does_not_fit_the_challenge_is_refused(
    browser: httpx.AsyncClient, provider: SmallProvider
) -> None:
    back = await at_provider(provider, browser)
    [name] = [name for name in browser.cookies if "oidc" in name]
    kept = json.loads(base64.urlsafe_b64decode(browser.cookies[name]))
    assert kept["verifier"] not in str(provider.asked), "the provider gets only its hash"
    changed = base64.urlsafe_b64encode(json.dumps({**kept, "verifier": "x" * 64}).encode()).decode()
    browser.cookies.clear()
    refused = await browser.get(back, headers={"Cookie": f"{name}={changed}"})
    assert (refused.status_code, "invalid_grant" in refused.text) == (403, True)
    assert "invalid_grant: AADSTS7000222: it &lt;expired&gt;" in refused.text, "why, in the provider's words"


@pytest.mark.parametrize("path", ["//evil.example.com", "https://evil.example.com", "/\\evil.example.com", "evil"])
async def test_nobody_is_sent_elsewhere_afterwards(
    browser: httpx.AsyncClient, provider: SmallProvider, path: str
) -> None:
    done = await browser.get(await at_provider(provider, browser, f"/auth/login?next={path}"))
    assert done.headers["location"] == "/"


async def test_a_cookie_from_elsewhere_sends_nobody_elsewhere(
    browser: httpx.AsyncClient, provider: SmallProvider
) -> None:
    """A neighbor on the same domain can set the cookie of a sign-in of its own, and would be sent the person afterwards."""
    back = await at_provider(provider, browser)
    begun = next(cookie for cookie in browser.cookies.jar if "oidc" in cookie.name)
    pending = oidc.Pending.unpacked(begun.value or "")
    assert pending is not None
    changed = replace(pending, path="//evil.example.com").packed()
    browser.cookies.clear()
    done = await browser.get(back, headers={"Cookie": f"{begun.name}={changed}"})
    assert (done.status_code, done.headers["location"]) == (303, "/")


async def test_what_the_provider_says_is_escaped_and_attempts_are_limited(
    browser: httpx.AsyncClient, provider: SmallProvider
) -> None:
    state = parse_qs(urlsplit((await browser.get("/auth/login")).headers["location"]).query)["state"][0]
    said = await browser.get(f"/auth/callback?state={state}&error=access_denied&error_description=<script>")
    assert (said.status_code, "&lt;script&gt;" in said.text, "<script>" in said.text) == (403, True, False)
    found = [(await browser.get("/auth/callback?state=x&code=y")).status_code for _ in range(auth.TRIES)]
    assert (found[0], found[-1]) == (403, 429)


async def test_a_provider_that_is_away_is_said(browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    get = oidc.Provider._get

    async def away(self: oidc.Provider, url: str) -> dict[str, Any]:
        self._transport = httpx.MockTransport(refused)
        return await get(self, url)

    monkeypatch.setattr(oidc.Provider, "_get", away)
    answer = await browser.get("/auth/login")
    said = re.search("The provider does not answer at (.*): ConnectError", answer.text)
    assert (answer.status_code, said and urlsplit(said[1]).scheme) == (503, "https")


async def test_a_proxy_that_needs_another_package_is_said(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)  # as if it was not installed
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(oidc.ProviderSilent, match="^the provider does not answer at https://.*: .*socksio"):
        await oidc.Provider(settings).begin("https://tuner.lan/auth/callback", "/")


async def test_without_the_setting_there_is_no_such_page(sqlite_store: Store, tmp_path: Path) -> None:
    app = create_app(Settings(home=tmp_path), sqlite_store, web=tmp_path / "web")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        assert (await client.get("/auth/login")).status_code == 404
        assert (await who(client))["sign_in_url"] is None


def test_the_settings_are_read_and_checked() -> None:
    given = {
        "TUNER_OIDC_ISSUER": ISSUER,
        "TUNER_OIDC_CLIENT_ID": CLIENT,
        "TUNER_OIDC_ROLES": "ml-admins=admin, a team=editor@vision, *=viewer",
    }
    assert Settings.from_env(given).oidc_roles == (
        OidcRule("ml-admins", "admin"),
        OidcRule("a team", "editor", "vision"),
        OidcRule("*", "viewer"),
    )
    with pytest.raises(
        SpecError, match="'ml-admins=admin' has no effect, since everybody belongs to the group \\* before it"
    ):
        Settings.from_env({**given, "TUNER_OIDC_ROLES": "*=viewer, ml-admins=admin"})
    names = '"CN=ml,OU=x,DC=lan"=admin, CN=one=viewer,"a ""b"", c" =editor@vision , d "e" f=viewer,, *=viewer'
    assert Settings.from_env({**given, "TUNER_OIDC_ROLES": names}).oidc_roles == (
        OidcRule("CN=ml,OU=x,DC=lan", "admin"),
        OidcRule("CN=one", "viewer"),
        OidcRule('a "b", c', "editor", "vision"),
        OidcRule('d "e" f', "viewer"),
        OidcRule("*", "viewer"),
    )
    with pytest.raises(SpecError, match="in double quotes if GROUP has a comma, got 'CN=ml'"):
        Settings.from_env({**given, "TUNER_OIDC_ROLES": "CN=ml,OU=x=admin"})
    for wrong in ({"TUNER_OIDC_ROLES": '"CN=ml,OU=x=admin'}, {"TUNER_OIDC_ROLES": '"CN=ml,OU=x"a=admin'}):
        with pytest.raises(SpecError, match="TUNER_OIDC"):
            Settings.from_env({**given, **wrong})
    for wrong in ({"TUNER_OIDC_ROLES": "a=boss"}, {"TUNER_OIDC_ROLES": ""}, {"TUNER_OIDC_ISSUER": "http://sso.lan"}):
        with pytest.raises(SpecError, match="TUNER_OIDC"):
            Settings.from_env({**given, **wrong})
