"""Restore a backup that was made in mid-search: everything goes on, whatever happened to the files since then."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services import SLOW, Service, until
from tuner.store import Store

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

STEPS = 60
ONE_RANK = {"num_workers": 1, "resources_per_worker": {"CPU": 0.5}, "backend": "none"}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    """Yield a service whose trials start over in five seconds after the loss of their driver."""
    url = str(request.getfixturevalue(f"{request.param}_url"))
    service = Service(tmp_path / "home", url, TUNER_LEASE_S="5", TUNER_STORAGE=str(tmp_path / "checkpoints"))
    service.home.mkdir()
    try:
        service.start()
        yield service
    finally:
        service.clean_up()


def spec(name: str, steps: int, **more: Any) -> dict[str, Any]:
    space = {**SLOW["space"], "steps": {"type": "const", "value": steps}}
    return {**SLOW, "name": name, "space": space, "scaling": ONE_RANK, **more}


def command(service: Service, *arguments: str) -> None:
    line = [sys.executable, "-c", "from tuner.cli import main; main()", *arguments]
    done = subprocess.run(line, env=service.environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def trials(service: Service, experiment: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.get(f"/experiments/{experiment}/trials")["items"]
    return found


def failures(service: Service, experiment: str) -> set[str]:
    """Return the causes of the latest failures of the experiment's trials."""
    found = [service.get(f"/trials/{trial['id']}")["error"] for trial in trials(service, experiment)]
    return {failure["cause"] for failure in found if failure is not None}


def do(service: Service, experiment: str, verb: str) -> None:
    answer = service.client.post(f"/api/v1/experiments/{experiment}/{verb}")
    assert answer.status_code == 202, answer.text


@pytest.mark.long  # tests/store/backups/test_backup.py restores databases and compares their rows
def test_a_backup_of_mid_search_goes_on(service: Service, tmp_path: Path) -> None:
    ended = service.post(spec("ended", 3))["id"]
    service.ended(ended)
    paused = service.post(spec("paused", STEPS))["id"]
    until("its checkpoints", lambda: sum(bool(trial["checkpoint"]) for trial in trials(service, paused)) == 2)
    do(service, paused, "pause")
    until("the pause", lambda: service.get(f"/experiments/{paused}")["state"] == "paused")
    running = service.post(spec("running", STEPS))["id"]
    until("its checkpoints", lambda: sum(bool(trial["checkpoint"]) for trial in trials(service, running)) == 2)
    command(service, "backup", str(tmp_path / "copy"))

    do(service, paused, "resume")
    later = service.post(spec("later", 3))["id"]
    for experiment in (running, paused, later):
        assert service.ended(experiment)["state"] == "completed"
    assert service.client.delete(f"/api/v1/experiments/{ended}").status_code == 204
    service.end()
    service.stop()
    command(service, "restore", str(tmp_path / "copy"), "--force")
    service.start()

    assert service.client.get(f"/api/v1/experiments/{later}").status_code == 404
    assert service.get(f"/experiments/{paused}")["state"] == "paused"
    do(service, paused, "resume")
    for experiment in (running, paused):
        assert service.ended(experiment)["state"] == "completed"
        assert [(one["state"], one["iteration"]) for one in trials(service, experiment)] == [("completed", STEPS)] * 2
        assert failures(service, experiment) <= {"checkpoint_lost"}, "no disk is lost"
    was = service.get(f"/experiments/{ended}")
    assert was["state"] == "completed"
    checkpoint = next(trial["checkpoint"]["id"] for trial in trials(service, ended))
    answer = service.client.get(f"/api/v1/checkpoints/{checkpoint}/download")
    assert answer.status_code == 409
    assert "there is no committed checkpoint at" in answer.json()["detail"]
    with Store.open(service.database_url) as store:
        for experiment in (running, paused):
            kept = {
                row.uri
                for row in store.trials.checkpoints(store.experiments.get(experiment).id)
                if row.state == "ready"
            }
            folder = tmp_path / "checkpoints" / experiment
            there = {str(path) for path in folder.glob("trial_*/*") if path.is_dir()}
            assert there == kept
            assert not list(folder.glob(".staging/*"))
