from __future__ import annotations

import base64
import gzip
import hashlib
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from tests.api.conftest import Poked


@pytest.fixture
def web(tmp_path: Path) -> Path:
    folder = tmp_path / "web"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<title>page</title>")
    (folder / "assets" / "index-abc.js").write_text("1")
    (tmp_path / "secret.txt").write_text("secret")
    return folder


async def test_the_page_is_served_at_every_address_of_its_own(client: httpx.AsyncClient, web: Path) -> None:
    for path in ("/", "/experiments/exp_1", "/index.html"):
        response = await client.get(path)
        assert (response.status_code, response.text) == (200, "<title>page</title>")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-frame-options"] == "DENY"
    script = await client.get("/assets/index-abc.js")
    assert (script.text, "immutable" in script.headers["cache-control"]) == ("1", True)
    assert "javascript" in script.headers["content-type"]


async def test_the_policy_allows_only_scripts_of_this_service_and_the_inline_ones_of_the_page(
    client: httpx.AsyncClient, web: Path
) -> None:
    early = "const path = location.pathname;\n"
    (web / "index.html").write_text(
        f'<script>{early}</script><script type="module" src="./assets/index-abc.js"></script>'
    )
    known = f"'sha256-{base64.b64encode(hashlib.sha256(early.encode()).digest()).decode()}'"
    for path in ("/", "/experiments/exp_1", "/index.html"):
        policy = (await client.get(path)).headers["content-security-policy"]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["script-src"] == f"'self' {known}"
        assert (rules["default-src"], rules["connect-src"]) == ("'none'", "'self'")
        assert (rules["frame-ancestors"], rules["base-uri"]) == ("'none'", "'none'")
    (web / "index.html").write_text("<title>without inline scripts</title>")
    assert "script-src 'self';" in (await client.get("/")).headers["content-security-policy"]


@pytest.mark.parametrize(
    ("path", "up"),
    [
        ("/", "./"),
        ("/experiments", "./"),
        ("/experiments/", "./../"),
        ("/experiments/exp_1", "./../"),
        ("/trials/trl_1/more/", "./../../../"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "/some/prefix"])
async def test_the_page_finds_its_bundle_from_every_address(
    app: FastAPI, web: Path, path: str, up: str, prefix: str
) -> None:
    """Ask behind a proxy that removes a prefix, once unknown to the server and once known."""
    (web / "index.html").write_text('<link href="./favicon.svg"><script src="./assets/index-abc.js"></script>')
    transport = httpx.ASGITransport(app, root_path=prefix)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
        response = await client.get(prefix + path)
        assert response.text == f'<link href="{up}favicon.svg"><script src="{up}assets/index-abc.js"></script>'
        script = response.url.join(f"{up}assets/index-abc.js")
        assert script.path == f"{prefix}/assets/index-abc.js"
        assert (await client.get(script)).text == "1"


@pytest.mark.parametrize(
    "path",
    [
        "/assets/nothing.js",
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/a%00.js",
        "/assets/" + 300 * "a",
        "/" + 9000 * "a",
        "/api/nothing",
        "/docs",
        "/redoc",
        "/admin/console",
        "/openapi.json/x",
        "/healthz/x",
    ],
)
async def test_nothing_else_is_served(client: httpx.AsyncClient, web: Path, path: str) -> None:
    response = await client.get(path)
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"
    assert "secret" not in response.text.replace("secret.txt", "")


async def test_a_compressed_file_is_sent_to_those_who_take_it(client: httpx.AsyncClient, web: Path) -> None:
    script = web / "assets" / "index-abc.js"
    script.write_text("let page = 1;\n" * 500)
    (web / "assets" / "index-abc.js.gz").write_bytes(gzip.compress(script.read_bytes()))
    packed = await client.get("/assets/index-abc.js")
    assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "Accept-Encoding")
    assert "javascript" in packed.headers["content-type"]
    assert "immutable" in packed.headers["cache-control"]
    assert int(packed.headers["content-length"]) < 500
    plain = await client.get("/assets/index-abc.js", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.text == packed.text == script.read_text()


async def test_long_answers_are_compressed(client: httpx.AsyncClient) -> None:
    long, short = await client.get("/openapi.json"), await client.get("/healthz")
    assert (long.headers.get("content-encoding"), short.headers.get("content-encoding")) == ("gzip", None)
    assert long.json()["openapi"]


async def test_a_missing_bundle_says_how_to_build_it(client: httpx.AsyncClient) -> None:
    response = await client.get("/")
    assert (response.status_code, "make web" in response.text) == (200, True)
    assert "script-src 'self';" in response.headers["content-security-policy"]
    assert (await client.get("/experiments/exp_1")).status_code == 404


async def test_health_and_readiness(client: httpx.AsyncClient, poked: Poked) -> None:
    assert (await client.get("/healthz")).json() == {"status": "ok", "problems": []}
    assert (await client.get("/readyz")).json() == {"status": "ready", "problems": []}
    poked.trouble = "the driver is being started again"
    response = await client.get("/readyz")
    assert (response.status_code, response.json()) == (503, {"status": "unready", "problems": [poked.trouble]})
    assert (await client.get("/healthz")).status_code == 200


async def test_a_browser_that_is_lost_gets_the_page_which_says_so(client: httpx.AsyncClient, web: Path) -> None:
    lost = await client.get("/nowhere", headers={"Accept": "text/html,*/*"})
    assert (lost.status_code, lost.headers["content-type"].split(";")[0]) == (404, "text/html")
    docs = await client.get("/docs", headers={"Accept": "text/html,*/*"})
    assert (docs.status_code, docs.headers["content-type"]) == (404, "application/problem+json")
