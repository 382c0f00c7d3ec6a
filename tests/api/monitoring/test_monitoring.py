"""/metrics: what Prometheus reads, from whom, and who may."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.api.answering import Answers
from tests.store.examples import T0, a_spec, begin
from tuner.api import create_app
from tuner.domain.batch import Batch
from tuner.hosts.measures.metrics import HostMetrics
from tuner.settings import Settings
from tuner.store import Store, StoreUnavailable
from tuner.store.service.access import Role

Found = dict[str, dict[tuple[str, ...], float]]


def parsed(text: str) -> Found:
    """Return name -> sorted values of the labels -> value, as Prometheus would read it."""
    found: Found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in sorted(sample.labels))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


@pytest.fixture
def host() -> dict[str, Any]:
    metrics = HostMetrics()
    metrics.reports.add(0.003)
    metrics.reports.add(0.2)
    metrics.verdicts.add(0.2)
    metrics.count_use(gpus=2.0, ranks=4, now=100.0)
    metrics.count_use(gpus=2.0, ranks=4, now=110.0)
    return {**metrics.shown(), "experiments": 1, "groups": {"running": 2, "waiting": 3, "idle": 1}, "writer_queue": 5}


@pytest.fixture
async def client(sqlite_store: Store, tmp_path: Path, host: dict[str, Any]) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(Settings(home=tmp_path), sqlite_store, Answers(metrics=lambda: host or None), web=tmp_path / "web")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:8000") as client:
        yield client


async def test_experiments_and_trials_are_counted_by_state(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    begin(sqlite_store, trials=3)
    sqlite_store.experiments.create(a_spec(project="vision"))
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    found = parsed(answer.text)
    assert found["tuner_experiments"] == {("default", "running"): 1, ("vision", "pending"): 1}
    assert found["tuner_trials"] == {("default", "running"): 3}
    assert found["tuner_database_up"] == {(): 1}


async def test_gpu_seconds_used_and_saved_are_shown_by_project(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    for project, used in (("default", 2.0), ("vision", 0.5), ("vision", 0.25)):
        made, epoch, trials = begin(sqlite_store, spec=a_spec(project=project))
        summary = {"gpu_hours": used, "gpu_hours_saved": 2 * used}
        sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials, summary=summary), T0)
    found = parsed((await client.get("/metrics")).text)
    assert found["tuner_experiments_gpu_seconds"] == {("default",): 7200.0, ("vision",): 2700.0}
    assert found["tuner_experiments_gpu_seconds_saved"] == {("default",): 14400.0, ("vision",): 5400.0}
    shown = (await client.get(f"/api/v1/experiments/{made.public_id}")).json()
    assert (shown["gpu_hours"], shown["gpu_hours_saved"]) == (0.25, 0.5)


async def test_the_figures_of_the_host_are_shown(client: httpx.AsyncClient) -> None:
    found = parsed((await client.get("/metrics")).text)
    assert found["tuner_driver_up"] == {(): 1}
    assert found["tuner_gpu_seconds_total"] == {(): 20.0}
    assert found["tuner_rank_seconds_total"] == {(): 40.0}
    assert (found["tuner_waiting_groups"], found["tuner_writer_queue"]) == ({(): 3}, {(): 5})
    assert found["tuner_report_seconds_count"] == {(): 2}
    assert found["tuner_report_seconds_bucket"]["0.005",] == 1
    assert found["tuner_report_seconds_bucket"]["+Inf",] == 2
    assert found["tuner_report_seconds_sum"][()] == pytest.approx(0.203)
    assert found["tuner_verdict_seconds_count"] == {(): 1}


async def test_a_host_that_is_gone_is_told_of(client: httpx.AsyncClient, host: dict[str, Any]) -> None:
    host.clear()
    found = parsed((await client.get("/metrics")).text)
    assert found["tuner_driver_up"] == {(): 0}
    assert "tuner_report_seconds_count" not in found


async def test_requests_are_counted_by_route_and_status(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    made, _, _ = begin(sqlite_store)
    for path in (f"/api/v1/experiments/{made.public_id}", "/api/v1/experiments/exp_no", "/nothing/there"):
        await client.get(path)
    await client.head(f"/api/v1/experiments/{made.public_id}")
    await client.request("BREW", "/api/v1/experiments")
    found = parsed((await client.get("/metrics")).text)
    route = "/api/v1/experiments/{experiment_id}"
    assert found["tuner_http_requests_total"] == {
        ("GET", route, "200"): 1,
        ("GET", route, "404"): 1,
        ("HEAD", route, "200"): 1,
        ("GET", "page", "404"): 1,
        ("other", "/api/v1/experiments", "405"): 1,
    }
    assert found["tuner_http_request_seconds_count"]["GET", route] == 2


async def test_the_process_is_measured(client: httpx.AsyncClient) -> None:
    found = parsed((await client.get("/metrics")).text)
    assert found["process_resident_memory_bytes"][()] > 1e7


async def test_a_database_that_is_away_is_told_of(
    client: httpx.AsyncClient, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(type(sqlite_store.experiments), "tally", away)
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert parsed(answer.text)["tuner_database_up"] == {(): 0}


@pytest.mark.parametrize(
    ("metrics", "statuses"), [("auto", (401, 200, 403)), ("open", (200, 200, 200)), ("off", (401, 404, 403))]
)
async def test_who_may_read_them(sqlite_store: Store, tmp_path: Path, metrics: Any, statuses: tuple[int, ...]) -> None:
    app = create_app(Settings(home=tmp_path, auth="on", metrics=metrics), sqlite_store)
    viewer, _ = sqlite_store.access.create_token("prometheus", Role.VIEWER)
    limited, _ = sqlite_store.access.create_token("prometheus", Role.ADMIN, project="vision")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://box.lan") as client:
        found = [
            (await client.get("/metrics", headers={"Authorization": f"Bearer {secret}"} if secret else {})).status_code
            for secret in ("", viewer, limited)
        ]
    assert tuple(found) == statuses
