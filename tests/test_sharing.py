"""Experiments that share the cluster of a service: room is made for the urgent one, and the API shows who waits for what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services import SLOW, Service, until

pytestmark = pytest.mark.ray


@pytest.fixture
def service(tmp_path: Path, sqlite_url: str) -> Iterator[Service]:
    service = Service(tmp_path / "home", sqlite_url, TUNER_PREEMPT_AFTER_S="1")
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
