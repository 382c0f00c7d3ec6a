"""Ray's processes and the driver host are killed under a running service: experiments go on, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import invariants
from tests.services import SLOW, Service, host_of, until
from tuner.hosts.ray.head import find_head
from tuner.store import Store

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    # With this value, the lease does not expire during the test.
    service = Service(home, f"sqlite:///{home / 'tuner.db'}", TUNER_LEASE_S="3600")
    try:
        service.start()
        yield service
    finally:
        service.clean_up()


def part(home: Path, name: str) -> psutil.Process:
    """Return the process of Ray's head, or of the driver host, that is to be killed."""
    if name == "host":
        return host_of(home)
    head = find_head(home)
    assert head is not None
    return {process.name(): process for process in head.parts}[name]


def started(service: Service) -> str:
    """Start an experiment and return its id when each of its trials has a checkpoint."""
    created = service.post(SLOW)
    path = f"/experiments/{created['id']}/trials"
    until("checkpoints of both", lambda: [t for t in service.get(path)["items"] if t["checkpoint"]][1:])
    return str(created["id"])


def check(service: Service, experiment: str) -> None:
    """Check that it completes, that each trial continued from a checkpoint, and that the log has everything once."""
    ended = service.ended(experiment)
    assert ended["state"] == "completed", ended
    for row in service.get(f"/experiments/{experiment}/trials")["items"]:
        trial = service.get(f"/trials/{row['id']}")
        assert trial["iteration"] == 40
        assert all(s["start_iteration"] > 0 for s in trial["segments"][1:]), trial["segments"]
    with Store.open(service.database_url) as store:
        invariants.check_all(store, set())
        assert store.experiments.get(experiment).driver_epoch == 2
    assert service.process.poll() is None, "the API outlives Ray"
    until("readiness", lambda: service.client.get("/readyz").status_code == 200)


# With the raylet, the host ends too. So the case of the host is the short form.
@pytest.mark.parametrize(
    "victim", ["host", *(pytest.param(one, marks=pytest.mark.long) for one in ("raylet", "gcs_server"))]
)
def test_what_is_killed_is_started_again(service: Service, victim: str) -> None:
    experiment = started(service)
    part(service.home, victim).kill()
    check(service, experiment)


@pytest.mark.long
def test_a_service_that_finds_a_dead_head_starts_another(service: Service) -> None:
    experiment = started(service)
    service.end()
    part(service.home, "raylet").kill()
    service.start()
    check(service, experiment)


@pytest.mark.long  # tests/test_service.py ends a service with --stop
def test_a_head_that_was_ended_on_purpose_stays_ended(service: Service) -> None:
    assert service.stop() == "stopped"
    until("words", lambda: "shut down by `tuner serve --stop`" in service.client.get("/readyz").text)
    assert find_head(service.home) is None
    assert service.client.get("/healthz").status_code == 200
    service.end()
    service.start()
