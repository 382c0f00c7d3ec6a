from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from tests.services import DEADLINE_S
from tuner.trials.groups.pools import removal

pytestmark = pytest.mark.ray


def test_a_placement_group_is_not_removed_while_ray_places_it(local_ray: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray may lose the CPU of such a group."""
    states: list[str] = []

    def removed(group: Any) -> None:
        states.append(placement_group_table(group)["stats"]["scheduling_state"])
        remove_placement_group(group)

    monkeypatch.setattr(removal, "remove_placement_group", removed)
    for _ in range(20):
        removal.remove(placement_group([{"CPU": 0.01}]))
    assert set(states) == {"FINISHED"}


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_placement_group_that_ray_is_about_to_place_is_removed_afterwards(
    local_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray lost the CPUs of about one in a hundred groups that were removed when resources for them had just become free."""
    states: list[str] = []

    def state(group: Any) -> str:
        return str(placement_group_table(group)["stats"]["scheduling_state"])

    def removed(group: Any) -> None:
        states.append(state(group))
        remove_placement_group(group)

    monkeypatch.setattr(removal, "remove_placement_group", removed)
    monkeypatch.setattr(removal, "PLACED_WITHIN_S", float("inf"))
    monkeypatch.setattr(removal, "TRIED_WITHIN_S", float("inf"))
    monkeypatch.setattr(removal, "FULL_S", 10.0)  # on a busy machine, Ray takes long to place a group
    for _ in range(3):
        free = ray.available_resources()["CPU"]
        first, second = placement_group([{"CPU": free}]), placement_group([{"CPU": free}])
        assert first.wait(DEADLINE_S)
        until(lambda group=second: state(group) == "NO_RESOURCES")  # type: ignore[misc]
        remove_placement_group(first)
        until(lambda free=free: ray.available_resources().get("CPU", 0.0) >= free)  # type: ignore[misc]
        removal.remove(second)
        until(lambda free=free: ray.available_resources().get("CPU", 0.0) >= free)  # type: ignore[misc]
    assert set(states) == {"FINISHED"}


def test_a_placement_group_that_has_no_room_is_removed_at_once(
    local_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "PLACED_WITHIN_S", float("inf"))
    group = placement_group([{"CPU": 1000.0}])
    removal.remove(group)
    assert placement_group_table(group)["state"] == "REMOVED"


def test_a_placement_group_of_which_ray_tells_nothing_is_removed(
    local_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "placement_group_table", lambda group: {})
    group = placement_group([{"CPU": 0.01}])
    assert group.wait(60), "Ray would keep the CPU, and tests that want the whole machine would wait for it"
    removal.remove(group)
    assert placement_group_table(group)["state"] == "REMOVED"
