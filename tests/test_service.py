"""`tuner serve` as users run it: a separate process, HTTP, real Ray, and its shutdown.

`tests/test_running_service.py` kills its driver.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.services import DEADLINE_S, NO_MILESTONES, SLOW, SPEC, Service, until
from tuner.hosts.ray import head
from tuner.service.serve import AFTERWARDS
from tuner.service_url import service_url
from tuner.store import Store, shown_url

pytestmark = pytest.mark.ray


# `tests/test_outage.py` has a service on PostgreSQL, too.
POSTGRES = pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.long])


@pytest.fixture(params=["sqlite", POSTGRES], scope="module")
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    url = f"sqlite:///{home / 'tuner.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_server")
    service = Service(home, url)
    try:
        service.start()
        yield service
    finally:
        service.clean_up()


def test_a_posted_experiment_runs_to_its_end(service: Service) -> None:
    events: list[dict[str, Any]] = []
    names: set[str] = set()
    created = service.post(SPEC)

    def follow() -> None:
        with (
            contextlib.suppress(httpx.HTTPError),
            service.client.stream("GET", f"/api/v1/experiments/{created['id']}/events", timeout=DEADLINE_S) as stream,
        ):
            for line in stream.iter_lines():
                if line.startswith("event:"):
                    names.add(line[6:].strip())
                if line.startswith("data:"):
                    events.append(json.loads(line[5:]))

    threading.Thread(target=follow, daemon=True).start()
    ended = service.ended(created["id"])
    assert ended["state"] == "completed", ended
    assert ended["counts"]["completed"] + ended["counts"]["stopped"] == 6
    assert ended["best"]["value"] > 0.8

    trials = service.get(f"/experiments/{created['id']}/trials")["items"]
    assert [t["number"] for t in trials] == list(range(6))
    stopped = [t for t in trials if t["state"] == "stopped"]
    assert stopped
    assert all("(at least" in t["reason"] for t in stopped)
    curves = service.get(f"/experiments/{created['id']}/curves?metric=accuracy&x=step&points=100")
    longest = max(curves["series"], key=lambda s: len(s["segments"][0]["x"]))
    assert longest["segments"][0]["x"] == list(range(1, 10))
    seen = until("the last event", lambda: events and events[-1]["seq"] >= ended["last_event_seq"] and list(events), 20)
    assert [e["seq"] for e in seen] == sorted(e["seq"] for e in seen)
    assert {"reported", "decision", "segment_started"} <= names
    shown = service.client.get(f"/experiments/{created['id']}")
    assert shown.status_code == 200
    assert "<html" in shown.text.lower()


def test_a_mistake_is_pointed_at(service: Service) -> None:
    answer = service.client.post(
        "/api/v1/experiments", json={**SPEC, "scheduler": {"type": "asha", "max_T": 9}, "num_sample": 3}
    )
    assert answer.status_code == 422
    assert answer.headers["content-type"].startswith("application/problem+json")
    errors = {error["pointer"]: error["message"] for error in answer.json()["errors"]}
    assert "max_t" in errors["/scheduler/max_T"]
    assert "num_samples" in errors["/num_sample"]


def test_an_entrypoint_that_cannot_be_imported_is_refused_at_once(service: Service) -> None:
    answer = service.client.post("/api/v1/experiments", json={**SPEC, "entrypoint": "tuner.examples.digit:train"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/entrypoint"


def test_cancel_ends_the_trials_and_frees_their_groups(service: Service) -> None:
    endless = {"steps": {"type": "const", "value": 1_000_000}}  # nothing to wait for comes too late
    created = service.post({**SLOW, "space": {**SLOW["space"], **endless}})
    until("both to run", lambda: service.get(f"/experiments/{created['id']}")["counts"]["running"] == 2)
    trial = service.get(f"/experiments/{created['id']}/trials")["items"][0]["id"]
    live = f"/api/v1/trials/{trial}/live"
    found = until("ranks to look at", lambda: (answer := service.client.get(live)).status_code == 200 and answer.json())
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert all("thread" in rank["stack"] and rank["rss_bytes"] > 1e7 for rank in found["ranks"])
    profile = service.client.post(f"/api/v1/trials/{trial}/profile", json={"rank": 1, "duration_s": 0.3}).json()
    assert "slow" in {frame["name"] for frame in profile["speedscope"]["shared"]["frames"]}
    assert (profile["rank"], profile["complete"], profile["cpu"]["threads"][0]["name"]) == (1, True, "train")
    assert service.client.post(f"/api/v1/experiments/{created['id']}/cancel").status_code == 202
    ended = service.ended(created["id"])
    assert ended["state"] == "cancelled"
    assert ended["counts"]["cancelled"] == 2
    assert service.client.get(live).status_code == 409
    assert service.client.post(f"/api/v1/experiments/{created['id']}/cancel").status_code == 202


def test_pause_and_resume_over_http(service: Service) -> None:
    created = service.post(SLOW)
    until(
        "a checkpoint",
        lambda: any(t["checkpoint"] for t in service.get(f"/experiments/{created['id']}/trials")["items"]),
    )
    service.client.post(f"/api/v1/experiments/{created['id']}/pause")
    until("the pause", lambda: service.get(f"/experiments/{created['id']}")["state"] == "paused")
    service.client.post(f"/api/v1/experiments/{created['id']}/resume")
    assert service.ended(created["id"])["state"] == "completed"


def test_what_a_script_left_behind_is_offered_and_goes_on_when_a_user_resumes_it(service: Service) -> None:
    posted = service.post({**SLOW, "space": {**SLOW["space"], "steps": {"type": "const", "value": 2}}})
    with Store.open(service.database_url) as store:
        spec = store.experiments.get(posted["id"]).spec
        left = store.experiments.create(spec, source="python", now=time.time() - 3600).public_id
    assert service.ended(posted["id"])["state"] == "completed"
    until("the offer", lambda: f"`tuner resume {left}`" in service.output)
    assert f"{posted['id']} (slow) is driven here: the experiment was created through the API" in service.output
    shown = service.get(f"/experiments/{left}")
    assert (shown["state"], shown["abandoned"]) == ("pending", True)
    service.client.post(f"/api/v1/experiments/{left}/resume")
    assert service.ended(left)["state"] == "completed"


@pytest.mark.long  # the short forms are in tests/store/series/test_thinning.py and tests/api/test_housekeeping.py
def test_points_of_searches_that_ended_long_ago_are_thinned(service: Service) -> None:
    steps = {"steps": {"type": "const", "value": 2000}}
    spec = {**SLOW, "entrypoint": "tests.jobs:many", "space": {**SLOW["space"], **steps}, "checkpoint": NO_MILESTONES}
    done = service.post({**spec, "scaling": {**SLOW["scaling"], "num_workers": 1}})["id"]
    assert service.ended(done)["state"] == "completed"
    path = f"/experiments/{done}"

    def points() -> int:
        with Store.open(service.database_url) as store, store._database.cursor() as (cursor, _):
            query = """SELECT COUNT(*) FROM metric_point p JOIN metric_key k ON k.id = p.key_id
              JOIN experiment e ON e.id = k.experiment_id WHERE e.public_id = ?"""
            return int(cursor.value(query, (done,)))

    curves = f"{path}/curves?metric=loss&x=step&points=32"
    shown = [service.get(path)["best"], service.get(curves), service.get(f"{path}/trials")["items"]]
    assert points() == 2 * 2000
    service.end()
    service.more["TUNER_POINT_DAYS"] = "0.000001"
    service.start()
    # The level that is kept has 250 parts of 8 reports. The loss falls, so the first point of a part is its highest one.
    until("the end of the thinning", lambda: points() == 2 * 2 * 250)
    assert [service.get(path)["best"], service.get(curves), service.get(f"{path}/trials")["items"]] == shown
    assert service.get(path)["thinned_at"] is not None
    for verb in ("continue", "enqueue"):
        refused = service.client.post(
            f"/api/v1{path}/{verb}", json={"configurations": [{}]} if verb == "enqueue" else {}
        )
        assert (refused.status_code, "points" in refused.json()["detail"]) == (409, True), refused.text
    assert service.client.post(f"/api/v1{path}/fork", json={"changes": {"num_samples": 1}}).status_code == 201
    assert service.client.delete(f"/api/v1{path}").status_code == 204
    del service.more["TUNER_POINT_DAYS"]


def test_the_api_restarts_without_disturbing_trials_and_stop_ends_everything(service: Service) -> None:
    created = service.post(SLOW)
    until("a trial to run", lambda: service.get(f"/experiments/{created['id']}")["counts"]["running"])
    assert service_url(service.home, shown_url(service.database_url)) == str(service.client.base_url).rstrip("/")
    service.end()
    assert service_url(service.home, shown_url(service.database_url)) is None
    assert service.process.returncode == 0
    until("the last line", lambda: service.output.endswith(f"{AFTERWARDS}\n"), 30)
    service.start()
    ended = service.ended(created["id"])
    assert ended["state"] == "completed"
    for row in service.get(f"/experiments/{created['id']}/trials")["items"]:
        assert len(service.get(f"/trials/{row['id']}")["segments"]) == 1
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(timeout=30) == 0
    until("the last line", lambda: service.output.endswith(f"{AFTERWARDS}\n"), 30)
    files = head._scratch(service.home)
    assert files.is_dir()
    assert service.stop() == "stopped"
    assert not files.exists()
    until("no process left", lambda: not service.processes(), 30)
    assert service.stop() == "there was nothing to stop"
