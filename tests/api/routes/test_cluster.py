"""GET /cluster."""

from __future__ import annotations

import httpx
from fastapi import FastAPI

from tests.hosts.test_overview import cluster_of
from tests.store.examples import begin
from tuner.domain.keys import trial_id
from tuner.hosts.overview import overview
from tuner.store import Store


async def test_the_driver_is_asked(client: httpx.AsyncClient, app: FastAPI) -> None:
    app.state.context.driver.cluster = lambda: overview([], {}, [], [], {}, {}, began=0.0)
    answered = await client.get("/api/v1/cluster")
    assert answered.status_code == 200
    assert answered.json() == {
        "cpus": 0.0,
        "cpus_in_use": 0.0,
        "gpus": 0.0,
        "gpus_in_use": 0.0,
        "nodes": [],
        "may_join": [],
        "agents": [],
        "groups": [],
        "waiting": [],
        "experiments": [],
    }


async def test_a_page_without_a_driver_knows_no_cluster(client: httpx.AsyncClient) -> None:
    answered = await client.get("/api/v1/cluster")
    assert answered.status_code == 503
    assert "tuner serve" in answered.json()["detail"]


async def test_trials_have_their_numbers(client: httpx.AsyncClient, app: FastAPI, sqlite_store: Store) -> None:
    made, *_ = begin(sqlite_store, 3)
    held = cluster_of(made.public_id, running=[trial_id(made.public_id, 2)])
    found = cluster_of(made.public_id, waiting=[trial_id(made.public_id, 1), "trl_x"])
    app.state.context.driver.cluster = lambda: {**found, "groups": held["groups"]}
    answered = (await client.get("/api/v1/cluster")).json()
    assert [group["trial_number"] for group in answered["groups"]] == [2]
    assert [group["trial_number"] for group in answered["waiting"]] == [1, None]
