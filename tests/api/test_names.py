"""Test that a path may name an experiment instead of its id."""

from __future__ import annotations

import httpx

from tests.store.examples import a_spec
from tuner.store import Store

API = "/api/v1/experiments"


async def test_a_name_that_only_one_experiment_has_stands_for_its_id(
    client: httpx.AsyncClient, sqlite_store: Store
) -> None:
    made = sqlite_store.experiments.create(a_spec("digits"))
    for path in ("", "/trials", "/decisions", "/curves"):
        named, by_id = await client.get(f"{API}/digits{path}"), await client.get(f"{API}/{made.public_id}{path}")
        assert (named.status_code, named.json()) == (by_id.status_code, by_id.json())
    changed = await client.patch(f"{API}/digits", json={"notes": "by name"})
    assert (changed.status_code, changed.json()["id"], changed.json()["notes"]) == (200, made.public_id, "by name")
    paused = await client.post(f"{API}/digits/cancel")
    assert (paused.status_code, paused.json()["id"]) == (202, made.public_id)


async def test_other_names_are_not_found_and_the_answer_says_what_to_use(
    client: httpx.AsyncClient, sqlite_store: Store
) -> None:
    first, second = (sqlite_store.experiments.create(a_spec("digits")) for _ in range(2))
    sqlite_store.experiments.create(a_spec("letters"))
    wrong, several = await client.get(f"{API}/leters"), await client.delete(f"{API}/digits")
    assert (wrong.status_code, several.status_code) == (404, 404)
    assert wrong.json()["detail"] == "no experiment 'leters'; did you mean 'letters'?"
    assert several.json()["detail"].startswith("2 experiments have the name 'digits'; use an id (newest first): ")
    assert first.public_id in several.json()["detail"]
    assert second.public_id in several.json()["detail"]
