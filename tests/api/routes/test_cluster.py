"""GET /cluster."""

from __future__ import annotations

import httpx
from fastapi import FastAPI

from tuner.driver.hosts.overview import overview


async def test_the_driver_is_asked(client: httpx.AsyncClient, app: FastAPI) -> None:
    app.state.context.cluster = lambda: overview([], {}, [], [], {}, {}, began=0.0)
    answered = await client.get("/api/v1/cluster")
    assert answered.status_code == 200
    assert answered.json() == {
        "cpus": 0.0,
        "cpus_in_use": 0.0,
        "gpus": 0.0,
        "gpus_in_use": 0.0,
        "nodes": [],
        "groups": [],
        "waiting": [],
        "experiments": [],
    }


async def test_a_page_without_a_driver_knows_no_cluster(client: httpx.AsyncClient) -> None:
    answered = await client.get("/api/v1/cluster")
    assert answered.status_code == 503
    assert "tuner serve" in answered.json()["detail"]
