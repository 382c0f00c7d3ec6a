from __future__ import annotations

from typing import Any

import pytest
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

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
