"""The long form of `test_protocol`: agents of a real `tuner serve`, whose API and driver host are killed."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.conftest import SPEC
from tests.agents.test_workers import TRAIN
from tests.services import ROOT, Service, host_of, until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
def service(tmp_path: Path, database_url: str, without_ray: None) -> Iterator[Service]:
    service = Service(tmp_path / "home", database_url, TUNER_LEASE_S="3")
    try:
        service.start()
        yield service
    finally:
        service.clean_up()


def test_agents_outlive_the_api_and_the_driver(service: Service, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(TRAIN)
    made = service.post({**SPEC, "num_samples": 4, "max_t": 9, "checkpoint": {"frequency": 1}, "space": LR})
    name = made["id"]
    port = service.client.base_url.port
    agents = [
        subprocess.Popen(
            [sys.executable, "-c", "from tuner.cli import main; main()", "agent"]
            + [f"http://127.0.0.1:{port}", "--experiment", name, "job.py:train", "--lease-s", "10"],
            cwd=tmp_path,
            env={**os.environ, "TUNER_HOME": str(tmp_path / f"agent{n}"), "PYTHONPATH": str(ROOT), "EPOCH_S": "0.5"},
        )
        for n in range(2)
    ]
    try:
        until("reports", lambda: sum(t["iteration"] for t in trials(service, name)) >= 4)
        service.process.kill()
        service.process.wait()
        restart(service, str(port))
        until("more reports", lambda: sum(t["iteration"] for t in trials(service, name)) >= 8)
        for trial in trials(service, name):
            segments = service.get(f"/trials/{trial['id']}")["segments"]
            assert len(segments) == 1, "a lease has ended while the API was away"
        host_of(service.home).kill()
        ended = service.ended(name)
        assert (ended["state"], ended["counts"]["completed"]) == ("completed", 4)
        assert all(trial["failures"] == 0 for trial in trials(service, name))
        assert [agent.wait(60) for agent in agents] == [0, 0]
    finally:
        for agent in agents:
            agent.kill()


def test_a_verdict_takes_milliseconds(service: Service) -> None:
    name = service.post({**SPEC, "num_samples": 1, "max_t": 1000})["id"]
    got = service.client.post(f"/api/v1/experiments/{name}/assignments", json={"wait_s": 30}).json()
    took = []
    for iteration in range(1, 301):
        body = {"iteration": iteration, "metrics": {"loss": 1 / iteration}}
        begun = time.perf_counter()
        answer = service.client.post(f"/api/v1/experiments/{name}/assignments/{got['lease']}/reports", json=body)
        took.append(time.perf_counter() - begun)
        assert answer.json()["verdict"] == "continue"
    print(f"verdicts over HTTP: median {statistics.median(took) * 1e3:.1f} ms, 99 % {sorted(took)[-4] * 1e3:.1f} ms")


LR = {"lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1}}


def trials(service: Service, name: str) -> list[Any]:
    return list(service.get(f"/experiments/{name}/trials")["items"])


def restart(service: Service, port: str) -> None:
    """Start the service again at the same port, as systemd would."""
    before = service.command
    service.command = lambda *arguments: before("--port", port) if "--port" in arguments else before(*arguments)  # type: ignore[method-assign]
    service.start()
