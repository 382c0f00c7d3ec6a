"""Profiles of running trials over HTTP: on the local executor, with roles and the audit trail; refused for agents."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import invariants
from tests.agents.conftest import SPEC, AgentService
from tuner.client.synchronous import connect
from tuner.errors import Conflict, NotAllowed, ServiceError, SpecError
from tuner.store import Store
from tuner.store.service.access import Role

STEADY: dict[str, Any] = {
    **SPEC,
    "name": "steady",
    "executor": "local",
    "entrypoint": "tests.jobs:steady",
    "num_samples": 1,
}


@pytest.fixture
def service(sqlite_url: str, tmp_path: Path) -> Iterator[AgentService]:
    """Yield a service that asks for tokens. Its driver runs trials in processes of this machine, or lends them to agents."""
    service = AgentService(tmp_path, sqlite_url, auth="on")
    try:
        service.start_host()
        service.start_api()
        service.client.headers["Authorization"] = f"Bearer {token(service, Role.EDITOR)}"
        yield service
    finally:
        service.close()
    with Store.open(sqlite_url) as store:
        invariants.check_all(store, set())


def token(service: AgentService, role: Role) -> str:
    secret, _ = service.store.access.create_token(str(role), role)
    return secret


def begun(service: AgentService) -> tuple[str, str]:
    """Create an experiment, wait until its trial trains, and return the ids of both."""
    consts = {"steps": 1_000_000, "told": str(service.settings.home)}
    space = {**SPEC["space"], **{name: {"type": "const", "value": value} for name, value in consts.items()}}
    name = service.create(**{**STEADY, "space": space})
    [trial] = service.until("a report", lambda: [one for one in service.trials(name) if one["iteration"]])
    return name, trial["id"]


def test_the_log_of_the_driver_is_read_over_http(service: AgentService, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tuner.access")  # here the API shares a process with the driver, and so its log
    name, trial = begun(service)
    service.post(f"/trials/{trial}/stop", status=202)
    service.until("the end", lambda: service.get(f"/experiments/{name}")["state"] == "completed")
    found = service.until(
        "the last line",
        lambda: (log := service.get(f"/experiments/{name}/driver-log")) and "no longer" in log["text"] and log,
    )
    lines = found["text"].splitlines()
    assert "driver 1 of this experiment: tuner " in lines[0]
    assert "the log has 0 entries about 0 trials" in lines[1]
    about = [line.partition("trial 0, segment 1: ")[2] for line in lines[2:-1]]
    assert about[0] == "requested 1 x {'CPU': 1.0}"
    assert re.match(r"starts in new processes after [\d.]+ s: rank 0 on \S+ \(process \d+\)$", about[1])
    assert re.match(r"left after [\d.]+ s$", about[2])
    assert lines[-1].endswith("no longer driven here: the experiment is completed")
    assert found["left_out"] == 0
    assert service.get(f"/experiments/{name}/driver-log?search=NEW+PROC")["text"].count("\n") == 1
    with connect(service.url, token=token(service, Role.VIEWER)) as viewer:
        log = viewer.experiment(name).driver_log(tail=1)
        assert (log.text.count("\n"), log.left_out) == (1, len(lines) - 1)


def test_a_running_trial_is_profiled_over_http(service: AgentService) -> None:
    name, trial = begun(service)
    with connect(service.url, token=token(service, Role.EDITOR)) as client:
        handle = client.experiment(name).trial(0)
        profile = handle.profile(duration_s=0.5, rate_hz=50)
        assert (profile.rank, profile.segment, profile.kind, profile.complete) == (0, 1, "cpu", True)
        assert profile.cpu is not None
        assert profile.cpu.threads[0].name == "train"
        assert 10 < profile.cpu.samples < 50
        lines = [line for line in profile.collapsed().splitlines() if line.startswith("train;")]
        assert all(line.startswith("train;steady (jobs.py:") for line in lines)
        assert sum(int(line.rpartition(" ")[2]) for line in lines) == pytest.approx(profile.duration_s * 1e6, rel=0.01)
        assert '"$schema":"https://www.speedscope.app/' in profile.speedscope_json()
        memory = handle.profile(kind="memory", duration_s=0.2).memory
        assert memory is not None
        assert memory.rss_end_bytes > 2**20
        long: list[Any] = []
        other = threading.Thread(target=lambda: long.append(once_free(lambda: handle.profile(duration_s=60))))
        other.start()
        service.until("the other profile", lambda: ("s more" in (why := refusal(service, trial))) and seconds(why) > 1)
        client.experiment(name).cancel()
        other.join(60)
        assert not long[0].complete, "it ends with the segment"
        with pytest.raises(Conflict, match="is cancelled, so it has no running ranks"):
            service.ended(name)
            handle.profile()
    with connect(service.url, token=token(service, Role.VIEWER)) as viewer:
        assert viewer.experiment(name).get().state == "cancelled"
        with pytest.raises(NotAllowed, match="needs the role editor"):
            viewer.experiment(name).trial(0).profile()
    expected = {("editor", 200), ("editor", 409), ("viewer", 403)}

    def noted() -> bool:  # an entry is written after the answer was sent
        trail = service.store.access.trail()
        return {(one.actor, one.status) for _, one in trail if one.path.endswith("/profile")} == expected

    service.until("the entries of the audit trail", noted)


def test_a_profile_ends_if_its_client_goes_away(service: AgentService) -> None:
    _, trial = begun(service)
    with pytest.raises(httpx.ReadTimeout):
        service.client.post(f"/trials/{trial}/profile", json={"duration_s": 60}, timeout=1)
    before = time.monotonic()
    service.until("the end of the profile", lambda: not refusal(service, trial))
    assert time.monotonic() - before < 30


def once_free(profile: Callable[[], Any]) -> Any:
    """Make a profile once the rank is not being profiled."""
    while True:
        try:
            return profile()
        except Conflict as error:
            if "is already being profiled" not in str(error) and "is still summarizing" not in str(error):
                raise


def seconds(why: str) -> int:
    """Return the seconds of "rank 0 is already being profiled, for 59 s more"."""
    return int(why.split()[-3])


def refusal(service: AgentService, trial: str) -> str:
    answer = service.client.post(f"/trials/{trial}/profile", json={"duration_s": 0.1})
    return str(answer.json()["detail"]) if answer.status_code == 409 else ""


def test_what_cannot_be_profiled_says_why(service: AgentService) -> None:
    name, trial = begun(service)
    for body, pointer in (
        ({"duration_s": 61}, "/duration_s"),
        ({"rate_hz": 1000}, "/rate_hz"),
        ({"kind": "gpu"}, "/kind"),
        ({"rank": 1}, "/rank"),
        ({"seconds": 1}, "/seconds"),
    ):
        answer = service.client.post(f"/trials/{trial}/profile", json=body)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
    assert service.client.post("/trials/trl_unknown/profile").status_code == 404
    far = service.create()
    service.ask(far, agent="gpu-7")
    [lent] = service.until("the lease", lambda: [one for one in service.trials(far) if one["state"] == "running"])
    assert "runs on the agent gpu-7, and ranks of agents cannot be profiled" in refusal(service, lent["id"])
    service.end_host()
    answer = service.client.post(f"/trials/{trial}/profile")
    assert (answer.status_code, answer.json()["detail"]) == (503, "the driver is starting")
    with connect(service.url, token=token(service, Role.EDITOR), patience_s=0.1) as client:
        with pytest.raises(ServiceError, match="the driver is starting"):
            client.experiment(name).trial(0).profile()
        with pytest.raises(SpecError, match="duration_s"):
            client.experiment(name).trial(0).profile(duration_s=0)
