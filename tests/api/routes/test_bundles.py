"""Code bundles over HTTP."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.store.examples import a_spec
from tuner.api import create_app
from tuner.api.access import guards
from tuner.api.housekeeping import DAY_S, clean_up
from tuner.client.protocol import BROKEN
from tuner.errors import Conflict, NotFound, SpecError
from tuner.experiment.code.bundles import LEFT_S, Bundles, unpacked
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.service.access import Role
from tuner.store.service.uses import LEASE_S
from tuner.trials.checkpoints.storage import Place
from tuner.usercode.archives import Archive, pack, sha256
from tuner.usercode.entrypoints import EntrypointChecker

ZIP = {"Content-Type": "application/zip"}
MODULE = "import tuner\n\ndef train(config):\n    tuner.report({'accuracy': config['lr']})\n"


def bundle(folder: Path, **files: str) -> bytes:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return pack({f"{name}.py": folder / f"{name}.py" for name in files})


async def put(client: httpx.AsyncClient, content: bytes, name: str | None = None, **headers: str) -> httpx.Response:
    return await client.put(f"/api/v1/bundles/{name or sha256(content)}", content=content, headers=headers or ZIP)


async def test_a_failed_upload_takes_no_files_of_another_upload(
    client: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, the failed one removed the unpacked folder while the other one wrote the zip file."""
    content, write = bundle(tmp_path, bundled_code=MODULE), Place.write

    def while_another_fails(place: Place, *parts: Any) -> None:
        shutil.rmtree(place.path.removesuffix(".zip"))
        write(place, *parts)

    monkeypatch.setattr(Place, "write", while_another_fails)
    assert (await put(client, content)).status_code == 200
    assert list(tmp_path.glob("**/bundles/*/bundled_code.py"))


@pytest.mark.parametrize("step", [(Archive, "unpack"), (Place, "write")])
async def test_a_full_disk_is_said_and_the_upload_can_be_repeated(
    client: httpx.AsyncClient, tmp_path: Path, step: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was 500: "the service failed: OSError"."""
    content = bundle(tmp_path, bundled_code=MODULE)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(*step, full)
        refused = await put(client, content)
    assert refused.status_code == 507 not in BROKEN, "the client does not upload it again and again"
    assert refused.json()["detail"] == "the service could not store the bundle: [Errno 28] No space left on device"
    assert not list(tmp_path.glob("**/bundles/*"))
    assert (await put(client, content)).status_code == 200
    assert len(list(tmp_path.glob("**/bundles/*"))) == 2


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
    assert made.json()["bundle"] == name, "so that a copy of the spec can name it"
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
        (await put(client, content, other), 422, "the path names another hash"),
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


@pytest.fixture
def bundles(store: Store, tmp_path: Path) -> Bundles:
    return Bundles(str(tmp_path / "storage"), store)


def test_bundles_that_nobody_uses_are_deleted(bundles: Bundles, store: Store, tmp_path: Path) -> None:
    named = {}
    for name in ("unused", "referred", "changed", "touched"):
        content = bundle(tmp_path, **{name: MODULE})
        named[name] = bundles.put(sha256(content), io.BytesIO(content))
    now = time.time()
    made = store.experiments.create(a_spec(runtime_env={"py_modules": [named["referred"].uri]}))
    other = store.experiments.create(a_spec())
    store.experiments.change(other.id, {"runtime_env": {"py_modules": [named["changed"].uri]}})
    store.bundles.touch([named["touched"].sha256], now + 2 * DAY_S)
    settings = Settings(home=tmp_path, storage=str(tmp_path / "storage"), bundle_days=1)
    assert clean_up(store, replace(settings, bundle_days=0), now + 9 * DAY_S) == {}
    assert clean_up(store, settings, now + 0.5 * DAY_S) == {}
    assert clean_up(store, settings, now + 2.5 * DAY_S) == {"code bundles": 1}
    assert not list((tmp_path / "storage").glob(f"**/{named['unused'].sha256}*"))
    with pytest.raises(NotFound):
        bundles.get(named["unused"].sha256)
    for kept in ("referred", "changed", "touched"):
        assert Path(unpacked(named[kept].uri)).is_dir()
        assert Path(named[kept].uri.removeprefix("file://")).is_file()
    store.experiments.seize(made.id)
    store.experiments.remove(made.id)
    assert clean_up(store, settings, now + 3.5 * DAY_S) == {"code bundles": 2}
    assert bundles.get(named["changed"].sha256)
    # A fork of the experiment that was just deleted would name this bundle.
    with pytest.raises(SpecError, match="upload it again"):
        bundles.applied({"runtime_env": {"py_modules": [named["referred"].uri]}})


def test_a_bundle_of_an_older_version_counts_as_used_when_it_is_first_seen(
    bundles: Bundles, store: Store, tmp_path: Path
) -> None:
    content = bundle(tmp_path, old=MODULE)
    bundles.put(sha256(content), io.BytesIO(content))
    with store._database.write() as cursor:
        cursor.execute("DELETE FROM bundle")
    now = time.time()
    assert bundles.prune(now - DAY_S, now) == 0
    assert bundles.prune(now + 1, now + DAY_S + 1) == 1


@pytest.mark.parametrize("first", ["request", "deletion"])
def test_a_request_and_the_deletion_exclude_each_other(
    bundles: Bundles, store: Store, tmp_path: Path, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever is first: a spec that is accepted has its bundle."""
    content = bundle(tmp_path, raced=MODULE)
    name = bundles.put(sha256(content), io.BytesIO(content)).sha256
    now = time.time()
    if first == "request":
        # The request has noted the use, and the deletion comes before the experiment is there.
        spec = bundles.applied({"bundle": name})
        assert bundles.prune(now - 0.001, now) == 0
        assert Path(spec["runtime_env"]["py_modules"][0].removeprefix("file://")).is_file()
        return
    # The deletion has marked the bundle, and is about to delete the file: requests are refused, and an upload waits.
    uploaded: list[str] = []
    uploading = threading.Thread(target=lambda: uploaded.append(bundles.put(name, io.BytesIO(content)).sha256))
    delete = bundles._delete

    def deletes(sha: str) -> bool:
        with pytest.raises(SpecError, match="there is no bundle"):
            bundles.applied({"bundle": name})
        with pytest.raises(SpecError, match="upload it again"):
            bundles.applied({"runtime_env": {"py_modules": [uri]}})
        with pytest.raises(NotFound):
            bundles.get(name)
        uploading.start()
        uploading.join(0.3)
        assert not uploaded, "it must wait for the deletion"
        return delete(sha)

    uri = bundles.get(name).uri
    monkeypatch.setattr(bundles, "_delete", deletes)
    assert bundles.prune(now + 1, now + 2) == 1
    uploading.join()
    assert uploaded == [name]
    assert Path(unpacked(bundles.applied({"bundle": name})["runtime_env"]["py_modules"][0])).is_dir()


def test_a_slow_storage_does_not_delay_other_writes(
    s3: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundles = Bundles(f"{s3.partition('?')[0]}/slow?{s3.partition('?')[2]}", store)
    content = bundle(tmp_path, remote=MODULE)
    name = bundles.put(sha256(content), io.BytesIO(content)).sha256
    assert bundles.get(name).uri.startswith("s3://")
    delete = bundles._delete

    def deletes(sha: str) -> bool:
        writing = threading.Thread(target=store.experiments.create, args=(a_spec(),), daemon=True)
        writing.start()
        writing.join(20)
        assert not writing.is_alive(), "the deletion holds the database's write lock"
        return delete(sha)

    monkeypatch.setattr(bundles, "_delete", deletes)
    assert bundles.prune(time.time() + 1) == 1
    assert bundles._found(name) is None


def test_a_deletion_that_fails_is_repeated(
    bundles: Bundles, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    for text in ("first", "second"):
        content = bundle(tmp_path, **{text: MODULE})
        names.append(bundles.put(sha256(content), io.BytesIO(content)).sha256)
    delete = bundles._delete

    def fails(sha: str) -> bool:
        raise OSError("the storage does not answer")

    now = time.time()
    for at in (now + 1, now + 2):  # each call fails at another bundle
        monkeypatch.setattr(bundles, "_delete", fails)
        with pytest.raises(OSError, match="does not answer"):
            bundles.prune(now + 0.5, at)
    for name in names:
        with pytest.raises(NotFound):
            bundles.get(name)
    monkeypatch.setattr(bundles, "_delete", delete)
    assert bundles.prune(now + 0.5, now + 3) == 0, "another process may still be deleting it"
    assert bundles.prune(now + 0.5, now + 10 + LEASE_S) == 2
    assert not list((tmp_path / "storage").glob("**/*.py"))


def test_an_upload_deletes_what_killed_uploads_have_left(bundles: Bundles, tmp_path: Path) -> None:
    """The files were left for good."""
    folder = tmp_path / "storage" / "bundles"
    old, new = ((f"{'a' * 64}.zip.tmp{at}", f".aside-{at}") for at in ("old", "new"))
    for file, aside in (old, new):
        (folder / aside).mkdir(parents=True)
        (folder / aside / "module.py").write_text(MODULE)
        (folder / file).write_bytes(b"PK")
    for name in old:
        os.utime(folder / name, (time.time() - LEFT_S - 1,) * 2)
    (folder / "loop.zip.tmp").symlink_to("loop.zip.tmp")  # cannot be looked at; the upload does not depend on it
    content = bundle(tmp_path, later=MODULE)
    stored = bundles.put(sha256(content), io.BytesIO(content)).sha256
    kept = {*new, "loop.zip.tmp", stored, f"{stored}.zip"}
    assert {path.name for path in folder.iterdir()} == kept, "new ones may still be written"


def test_an_upload_continues_a_deletion_that_was_interrupted(
    bundles: Bundles, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bundle(tmp_path, cut=MODULE, other="")
    name = bundles.put(sha256(content), io.BytesIO(content)).sha256
    folder = Path(unpacked(bundles.get(name).uri))
    remove = shutil.rmtree

    def killed(path: str, **options: Any) -> None:
        (Path(path) / "cut.py").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    before = time.time() - 2 * LEASE_S
    with store._database.write() as cursor:
        cursor.execute("UPDATE bundle SET used_at = ?", (before - 1,))
    with pytest.raises(KeyboardInterrupt):
        bundles.prune(before, before)
    monkeypatch.setattr(shutil, "rmtree", remove)
    assert bundles.put(name, io.BytesIO(content)).sha256 == name
    assert sorted(path.name for path in folder.iterdir()) == ["cut.py", "other.py"]


def test_an_upload_gives_up_if_a_deletion_does_not_end(
    bundles: Bundles, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bundle(tmp_path, held=MODULE)
    name = bundles.put(sha256(content), io.BytesIO(content)).sha256
    with store._database.write() as cursor:
        cursor.execute("UPDATE bundle SET deleting_since = ?", (time.time(),))
    monkeypatch.setattr("tuner.experiment.code.bundles.DELETION_S", 0.1)
    with pytest.raises(Conflict, match="is being deleted; try again later"):
        bundles.put(name, io.BytesIO(content))
