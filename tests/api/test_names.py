"""Test that a path may name an experiment instead of its id."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.store.examples import a_spec, begin
from tuner.api import create_app
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.service.access import Role

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


@pytest.mark.parametrize("name", ["exp_sweep", "exp_1", "a/b", "/a//b/", "a%2Fb", "ä/b %", "spec/spec"])
async def test_every_name_stands_for_its_experiment(client: httpx.AsyncClient, sqlite_store: Store, name: str) -> None:
    made = sqlite_store.experiments.create(a_spec(name))
    for path in ("", "/trials", "/spec", "/pareto"):
        named = await client.get(f"{API}/{quote(name, safe='')}{path}")
        by_id = await client.get(f"{API}/{made.public_id}{path}")
        assert (named.status_code, named.json()) == (200, by_id.json())


async def test_a_name_is_told_from_one_in_which_its_slash_is_encoded(
    client: httpx.AsyncClient, sqlite_store: Store
) -> None:
    plain, encoded = (sqlite_store.experiments.create(a_spec(name)) for name in ("c/d", "e%2Ff"))
    assert (await client.get(f"{API}/c%2fd")).json()["id"] == plain.public_id
    assert (await client.get(f"{API}/e%252Ff")).json()["id"] == encoded.public_id
    assert (await client.get(f"{API}/c%252Fd")).json()["id"] == plain.public_id, "as behind a proxy that decodes"
    assert (await client.get(f"{API}/e%2Fg")).json()["detail"].startswith("no experiment 'e/g'")


@pytest.mark.parametrize("name", ["exp_sweep", "a/b"])
async def test_agents_may_use_every_name(sqlite_store: Store, tmp_path: Path, name: str) -> None:
    app = create_app(Settings(home=tmp_path, auth="on"), sqlite_store, web=tmp_path / "web")
    begin(sqlite_store, spec=a_spec(name, project="ours", executor="agents"))
    for project in ("ours", None):
        secret, _ = sqlite_store.access.create_token("agent", Role.AGENT, project=project)
        head = {"Authorization": f"Bearer {secret}"}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=head) as agent:
            answer = await agent.post(f"{API}/{quote(name, safe='')}/assignments", json={})
            assert (answer.status_code, "no driver" in answer.json()["detail"]) == (503, True), answer.text
            assert (await agent.get(f"{API}/{quote(name, safe='')}")).status_code == 403


async def test_a_slash_in_a_name_opens_nothing_to_viewers(sqlite_store: Store, tmp_path: Path) -> None:
    app = create_app(Settings(home=tmp_path, auth="on"), sqlite_store, web=tmp_path / "web")
    sqlite_store.experiments.create(a_spec("a/b"))
    secret, _ = sqlite_store.access.create_token("viewer", Role.VIEWER)
    head = {"Authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://localhost", headers=head
    ) as viewer:
        assert (await viewer.get(f"{API}/a%2Fb")).status_code == 200
        for path in ("a%2Fb/spec", "a%2fb/spec", "a%252Fb/spec"):
            assert (await viewer.get(f"{API}/{path}")).status_code == 403
