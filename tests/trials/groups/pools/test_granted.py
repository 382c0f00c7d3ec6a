"""Elastic trials may have the workers that no other experiment waits for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.trials.groups.pools.asking import asking_for
from tests.trials.groups.pools.test_admission import enqueue, loop, placed
from tuner.trials.groups.pools.admission import Admission, Entitlement
from tuner.trials.groups.pools.fair_share import Room

__all__ = ["loop"]  # a fixture
CPU = {"CPU": 1.0}


def test_workers_fit_into_what_is_free_on_each_node() -> None:
    room = Room({"a": {"CPU": 3.0, "GPU": 2.0}, "b": {"CPU": 1.5}})
    assert room.count(CPU) == 4
    assert room.count({"CPU": 1.0, "GPU": 1.0}) == 2
    assert Room({"a": {"CPU": 4.0}}, {"CPU": 1.5}).count(CPU) == 2, (
        "other programs use two workers' CPUs, on unknown nodes"
    )
    assert Room({"a": {"CPU": 1.0}}, {"CPU": 2.0}).count(CPU) == 0


@pytest.mark.parametrize(("priority", "granted"), [(0, 0), (1, 0), (-1, 3)])
def test_a_waiting_group_of_another_experiment_takes_them_back(
    priority: int, granted: int, tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    found = Admission(entitlement=lambda name: Entitlement(priority=priority if name == "other" else 0))
    found.set_nodes({"here": {"CPU": 3.0}}, {})
    mine = asking_for(1, tmp_path)
    segment = enqueue(found, mine, loop)
    found.remove(segment)
    found.give(placed(mine), segment)
    assert found.granted("exp", CPU) == 3, "one that it holds, and two that are free"
    other = asking_for(2, tmp_path, experiment_id="other")
    enqueue(found, other, loop)
    assert found.granted("exp", CPU) == 3, "it has not waited for long"
    enqueue(found, mine, loop, waited_s=10.0)
    assert found.granted("exp", CPU) == 3, "its own trials do not count"
    found = Admission(entitlement=lambda name: Entitlement(priority=priority if name == "other" else 0))
    found.set_nodes({"here": {"CPU": 3.0}}, {})
    found.give(placed(mine), segment)
    enqueue(found, other, loop, waited_s=10.0)
    assert found.granted("exp", CPU) == granted
