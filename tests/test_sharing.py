"""Experiments that share the cluster of a service: room is made for the urgent one, and the API shows who waits for what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.services import SLOW, Service, until

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    url = f"sqlite:///{home / 'tuner.db'}"
    service = Service(home, url, TUNER_PREEMPT_AFTER_S="1", TUNER_QUOTAS="capped=CPU:1")
    try:
        service.start()
        yield service
    finally:
        service.clean_up()


def filling(service: Service, name: str, steps: int, **more: Any) -> dict[str, Any]:
    """Return the spec of an experiment whose only trial fills the cluster, with a checkpoint at every report."""
    cpus = service.get("/cluster")["cpus"]
    return {
        **SLOW,
        "name": name,
        "num_samples": 1,
        "space": {**SLOW["space"], "steps": {"type": "choice", "categories": [steps]}},
        "scaling": {"resources_per_worker": {"CPU": cpus}, "backend": "none"},
        **more,
    }


def test_a_trial_is_paused_for_an_urgent_experiment_and_goes_on_from_its_checkpoint(service: Service) -> None:
    low = service.post(filling(service, "low", steps=150))["id"]
    trials = f"/experiments/{low}/trials"
    until("a checkpoint", lambda: any(trial["checkpoint"] for trial in service.get(trials)["items"]))
    [group] = service.get("/cluster")["groups"]
    assert group["experiment_id"] == low
    assert [rank["rank"] for rank in group["ranks"]] == [0]
    equal = service.post(filling(service, "equal", steps=3))["id"]
    urgent = service.post(filling(service, "urgent", steps=10, priority=10))["id"]
    waiting = until("two waits", lambda: len(found := service.get("/cluster")["waiting"]) == 2 and found)
    assert [(one["position"], one["experiment_id"], one["priority"]) for one in waiting] == [
        (1, urgent, 10),
        (2, equal, 0),
    ]
    assert "2 other experiments share" in waiting[0]["reason"]

    ended = {name: service.ended(name) for name in (urgent, equal, low)}
    assert {one["state"] for one in ended.values()} == {"completed"}
    assert ended[urgent]["ended_at"] < ended[low]["ended_at"]
    decisions = service.get(f"/experiments/{low}/decisions?page_size=100")["items"]
    why = f"to make room for experiment {urgent} (priority 10)"
    assert any(one["kind"] == "pause" and one["reason"].endswith(why) for one in decisions), decisions
    trial = service.get(trials)["items"][0]
    segments = service.get(f"/trials/{trial['id']}")["segments"]
    assert [one["cause"] for one in segments] == ["start", "resume"]
    assert segments[1]["start_iteration"] > 0
    assert trial["iteration"] == 150


def test_a_project_runs_no_more_at_once_than_its_quota(service: Service) -> None:
    cpus = service.get("/cluster")["cpus"]
    assert cpus > 1, "otherwise the quota limits nothing"
    one = {"resources_per_worker": {"CPU": 0.5}, "backend": "none"}
    space = {**SLOW["space"], "steps": {"type": "const", "value": 20}}
    spec = {**SLOW, "project": "capped", "space": space, "scaling": one, "limits": {}, "num_samples": 2}
    both = [service.post({**spec, "name": name})["id"] for name in ("first", "second")]
    why = "the quota of the project 'capped' is 1 CPU, of which 1 is in use"
    waiting = until("the quota", lambda: [w for w in service.get("/cluster")["waiting"] if why in w["reason"]])
    assert {one["experiment_id"] for one in waiting} <= set(both)
    free = service.post({**spec, "name": "free", "project": "other", "num_samples": 1})["id"]
    most = 0
    while not all(service.get(f"/experiments/{name}")["ended_at"] for name in both):
        held = [group for group in service.get("/cluster")["groups"] if group["experiment_id"] in both]
        most = max(most, len(held))
    assert most == 2
    ended = {name: service.ended(name) for name in (*both, free)}
    assert {one["state"] for one in ended.values()} == {"completed"}


@pytest.mark.slow
@pytest.mark.long  # test_sizes.py has the decisions, and test_admission.py how many workers an experiment may have
def test_a_grown_trial_gives_workers_back_to_another_experiment_and_grows_again(service: Service) -> None:
    cpus = service.get("/cluster")["cpus"]
    most = int(cpus / 0.5)
    assert most > 1
    half = {"resources_per_worker": {"CPU": 0.5}, "backend": "none"}
    constant = {"type": "const", "value": 200}
    grown = service.post({
        **SLOW,
        "name": "grown",
        "entrypoint": "tests.jobs:shared",
        "num_samples": 1,
        "max_t": 200,
        "space": {**SLOW["space"], "steps": constant},
        "scaling": {**half, "num_workers": 1, "max_workers": most},
    })["id"]  # fmt: skip

    def trial() -> dict[str, Any] | None:
        found = service.get(f"/experiments/{grown}/trials")["items"]
        return dict(service.get(f"/trials/{found[0]['id']}")) if found else None

    def sizes() -> list[int]:
        found = trial()
        return [segment["workers"] for segment in found["segments"]] if found is not None else [0]

    def reports() -> bool:
        found = trial()
        return found is not None and sizes()[-1] == most and int(found["iteration"]) > 3

    until("the trial has all workers", reports)
    before = len(sizes())
    rest = {**half, "num_workers": most - 1}
    space = {**SLOW["space"], "steps": {"type": "const", "value": 30}}
    other = service.post({**SLOW, "name": "other", "num_samples": 1, "space": space, "scaling": rest})["id"]
    trials = f"/experiments/{other}/trials"
    until("the other experiment trains", lambda: any(trial["iteration"] for trial in service.get(trials)["items"]))
    assert sizes()[before] == 1, "the trial trains on with the smallest number"
    assert service.ended(other)["state"] == "completed"
    until("the trial has grown again", lambda: sizes()[-1] > 1)
    assert service.ended(grown)["state"] == "completed"
    ended = trial()
    assert ended is not None
    assert (ended["iteration"], ended["failures"]) == (200, 0)
    segments = ended["segments"]
    assert all(one["cause"] == "resize" and one["start_iteration"] > 0 for one in segments[1:]), (
        "each from a checkpoint"
    )
    reasons = [one["reason"] for one in service.get(f"/experiments/{grown}/decisions?page_size=100")["items"]]
    why = f"from {most} to 1 worker: other work on the cluster needs workers"
    assert any(why in reason and "gives way at iteration" in reason for reason in reasons), reasons
