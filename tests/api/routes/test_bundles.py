"""Code bundles over HTTP."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from tuner.api import create_app, guards
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.access import Role
from tuner.usercode.archives import pack, sha256
from tuner.usercode.entrypoints import EntrypointChecker

ZIP = {"Content-Type": "application/zip"}
MODULE = "import tuner\n\ndef train(config):\n    tuner.report({'accuracy': config['lr']})\n"


def bundle(folder: Path, **files: str) -> bytes:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return pack({f"{name}.py": folder / f"{name}.py" for name in files})


async def put(client: httpx.AsyncClient, content: bytes, name: str | None = None, **headers: str) -> httpx.Response:
    return await client.put(f"/api/v1/bundles/{name or sha256(content)}", content=content, headers=headers or ZIP)


async def test_an_uploaded_bundle_has_the_entrypoint_of_a_spec(
    client: httpx.AsyncClient, sqlite_store: Store, spec: dict[str, Any], tmp_path: Path
) -> None:
    content = bundle(tmp_path, bundled_code=MODULE)
    name = sha256(content)
    assert (await client.get(f"/api/v1/bundles/{name}")).status_code == 404
    wanted = {**spec, "entrypoint": "bundled_code:train", "bundle": name}
    early = await client.post("/api/v1/experiments", json=wanted)
    assert (early.status_code, early.json()["errors"][0]["pointer"]) == (422, "/bundle")
    for _ in range(2):
        answer = await put(client, content)
        assert (answer.status_code, answer.json()["sha256"]) == (200, name)
    assert (await client.get(f"/api/v1/bundles/{name}")).json() == answer.json()
    assert (await client.post("/api/v1/experiments/dry-run", json=wanted)).status_code == 200
    made = await client.post("/api/v1/experiments", json=wanted)
    assert made.status_code == 201, made.text
    record = sqlite_store.experiments.get(made.json()["id"])
    [uri] = record.spec.runtime_env["py_modules"]
    assert uri.startswith("file://")
    assert uri.endswith(f"/bundles/{name}.zip")
    wrong = await client.post("/api/v1/experiments", json={**wanted, "entrypoint": "bundled_code:trian"})
    assert (wrong.status_code, "has no trian" in wrong.text or "did you mean" in wrong.text) == (422, True), wrong.text
    other = bundle(tmp_path, bundled_code=MODULE, more="")
    await put(client, other)
    forked = await client.post(
        f"/api/v1/experiments/{record.public_id}/fork", json={"changes": {"bundle": sha256(other)}}
    )
    assert forked.status_code == 201, forked.text
    env = sqlite_store.experiments.get(forked.json()["id"]).spec.runtime_env
    assert [uri.rpartition("/")[2] for uri in env["py_modules"]] == [f"{sha256(other)}.zip"], (
        "it replaces the other one"
    )


async def test_what_is_no_bundle_is_refused(
    client: httpx.AsyncClient, spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bundle(tmp_path, a="")
    other = hashlib.sha256(b"other").hexdigest()
    for answer, status, words in (
        (await put(client, content, other), 422, "the path names another one"),
        (await put(client, content, "ABC"), 422, "64 hex digits"),
        (await put(client, b"no zip"), 422, "not a zip file"),
        (await put(client, content, **{"Content-Type": "application/json"}), 415, "application/zip"),
        (await client.post("/api/v1/experiments", content=content, headers=ZIP), 415, "application/json"),
        (await client.post("/api/v1/experiments", json={**spec, "bundle": "../x"}), 422, "SHA-256"),
        (await client.post("/api/v1/experiments", json={**spec, "bundle": 5}), 422, "SHA-256"),
    ):
        assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text
    monkeypatch.setattr(guards, "ZIP", guards.Accepted("application/zip", 10))
    assert (await put(client, content)).status_code == 413

    async def in_parts() -> Any:
        yield content

    answer = await client.put(f"/api/v1/bundles/{sha256(content)}", content=in_parts(), headers=ZIP)
    assert answer.status_code == 413
    assert not list(tmp_path.glob("**/*.zip"))


async def test_an_editor_of_one_project_uploads_and_a_viewer_does_not(
    sqlite_store: Store, tmp_path: Path, checker: EntrypointChecker
) -> None:
    app = create_app(Settings(home=tmp_path / "home", auth="on"), sqlite_store)
    content = bundle(tmp_path, a="")
    secrets = [sqlite_store.access.create_token("ci", role, project="ours")[0] for role in (Role.VIEWER, Role.EDITOR)]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        found = [await put(client, content, None, **ZIP, Authorization=f"Bearer {secret}") for secret in secrets]
    assert [answer.status_code for answer in found] == [403, 200]
