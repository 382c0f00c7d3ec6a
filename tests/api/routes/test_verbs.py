"""Test the verbs of experiments over HTTP: change, continue, archive, delete, kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import Poked
from tests.experiment.operations.test_amend import commands, ended
from tests.store.examples import begin
from tuner.store import Store

API = "/api/v1/experiments"


async def test_patch_changes_what_it_names_and_get_shows_it_at_once(
    client: httpx.AsyncClient, sqlite_store: Store, poked: Poked
) -> None:
    made = ended(sqlite_store)
    before = (await client.get(f"{API}/{made.public_id}")).json()
    changes = {"name": "wider", "notes": "see *this*", "tags": {"team": "vision"}, "limits": {"max_failures": 2}}
    answer = await client.patch(f"{API}/{made.public_id}", json=changes)
    assert (answer.status_code, poked.count) == (200, 1)
    shown = {**before, **changes, "limits": {**before["limits"], "max_failures": 2}, "revision": 1}
    assert answer.json() == shown
    assert (await client.get(f"{API}/{made.public_id}")).json() == shown
    assert (await client.get(API, params={"tag": "team=vision"})).json()["items"] == [shown]
    assert (await client.get(API, params={"tag": ["team=vision", "year"]})).json()["items"] == []


async def test_if_match_compares_what_users_change_and_not_what_the_driver_reports(
    client: httpx.AsyncClient, sqlite_store: Store
) -> None:
    made, _, _ = begin(sqlite_store)
    url = f"{API}/{made.public_id}"
    tag = (await client.get(url)).headers["etag"]
    running = {"If-Match": tag.replace("-", "-0")}  # the same revision, other reports
    first = await client.patch(url, json={"notes": "one"}, headers=running)
    assert first.status_code == 200
    stale = await client.patch(url, json={"notes": "two"}, headers={"If-Match": tag})
    assert (stale.status_code, stale.json()["detail"]) == (
        412,
        "the experiment has been changed in the meantime: it is at revision 1, not 0",
    )
    assert (await client.patch(url, json={"notes": "two"}, headers={"If-Match": "nonsense"})).status_code == 412
    assert (await client.delete(url, params={"force": True}, headers={"If-Match": tag})).status_code == 412
    for fine in (first.headers["etag"], f"W/{first.headers['etag']}", "*"):
        assert (await client.patch(url, json={}, headers={"If-Match": fine})).status_code == 200
    assert (await client.get(url)).json()["notes"] == "one"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [({"seed": 1}, "/seed"), ({"limits": {"max_failures": "2"}}, "/limits/max_failures"), ([], "")],
)
async def test_a_wrong_change_is_pointed_at(
    client: httpx.AsyncClient, sqlite_store: Store, body: Any, pointer: str
) -> None:
    made, _, _ = begin(sqlite_store)
    answer = await client.patch(f"{API}/{made.public_id}", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


async def test_continue_adds_samples_and_hands_a_scripts_experiment_to_the_service(
    client: httpx.AsyncClient, sqlite_store: Store
) -> None:
    made = ended(sqlite_store)
    shown = (await client.get(f"{API}/{made.public_id}")).json()
    assert {"continue", "archive", "delete", "edit"} <= set(shown["actions"])
    answer = await client.post(f"{API}/{made.public_id}/continue", json={"num_samples": 3})
    assert answer.status_code == 202
    assert (answer.json()["num_samples"], answer.json()["source"]) == (5, "adopted")
    assert [name for name, _ in commands(sqlite_store, made)] == ["amend", "continue"]
    for body, pointer, message in (
        ({"num_sample": 1}, "/num_sample", "unknown field; did you mean num_samples?"),
        ({"add": 1}, "/add", "unknown field; there are num_samples"),
        ({"num_samples": 0}, "/num_samples", "expected at least 1, got 0"),
    ):
        wrong = await client.post(f"{API}/{made.public_id}/continue", json=body)
        assert (wrong.status_code, wrong.json()["errors"]) == (422, [{"pointer": pointer, "message": message}])
    assert (await client.post(f"{API}/{made.public_id}/continue")).status_code == 202


async def test_archive_and_delete(client: httpx.AsyncClient, sqlite_store: Store, tmp_path: Path) -> None:
    made = ended(sqlite_store)
    url = f"{API}/{made.public_id}"
    files = tmp_path / "checkpoints" / made.public_id / "trl" / "ckp"
    files.mkdir(parents=True)
    answer = await client.post(f"{url}/archive")
    assert (answer.status_code, "unarchive" in answer.json()["actions"]) == (200, True)
    assert answer.json()["archived_at"]
    assert (await client.get(API)).json()["items"] == []
    assert len((await client.get(API, params={"archived": "yes"})).json()["items"]) == 1
    assert (await client.post(f"{url}/unarchive")).json()["archived_at"] is None
    assert len((await client.get(API)).json()["items"]) == 1
    assert (await client.delete(url)).status_code == 204
    assert (await client.get(url)).status_code == (await client.delete(url)).status_code == 404
    assert not files.exists()


async def test_a_running_experiment_is_neither_archived_nor_deleted(
    client: httpx.AsyncClient, sqlite_store: Store
) -> None:
    made, _, _ = begin(sqlite_store)
    url = f"{API}/{made.public_id}"
    assert (await client.delete(url)).status_code == (await client.post(f"{url}/archive")).status_code == 409
    assert (await client.delete(url, params={"force": True})).status_code == 204  # its driver is gone
