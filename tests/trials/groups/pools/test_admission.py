"""Test who gets a worker group next, without Ray. `test_fair_share` tests the rule itself."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trials.groups.pools.asking import asking_for
from tuner.trials.groups.pools.admission import Admission, Entitlement, WaitingSegment, used_elsewhere
from tuner.trials.groups.pools.group import Group, group_key
from tuner.trials.messages.launch import Launch
from tuner.trials.messages.protocol import WorkerMetadata


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def admission(**options: Any) -> Admission:
    """Return an empty admission on a cluster of one node with one CPU."""
    found = Admission(**options)
    found.set_nodes({"here": {"CPU": 1.0}}, {})
    return found


def enqueue(
    admission: Admission, launch: Launch, loop: asyncio.AbstractEventLoop, waited_s: float = 0.0
) -> WaitingSegment:
    segment = WaitingSegment(launch, time.monotonic() - waited_s, loop.create_future(), loop.create_future())
    admission.enqueue(segment)
    return segment


def placed(launch: Launch) -> Group:
    """Return a group of one rank that has its room."""
    worker = WorkerMetadata(
        node="here", host="here", ip="10.0.0.1", pid=1, gpus=(), channel_address=("here", 1), token=b"", oom_kills=0
    )
    return Group(group_key(launch), placement=None, workers=[worker])  # type: ignore[arg-type]


def test_a_group_is_admitted_once_there_is_room(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    launch = asking_for(1, tmp_path)
    found = admission()
    first, second = enqueue(found, launch, loop), enqueue(found, launch, loop)
    assert found.queued
    now = time.monotonic()
    assert found.next(now, []) == (first, ("here",))
    found.admit(first, ("here",), now)
    found.ask_ray(first, now)
    assert found.next(now, []) is None
    assert found.why(second) == "waits for a worker with 1 CPU"
    first.placed.set()
    assert found.next(now, []) is None
    assert found.share("exp") == 1.0, "what a group holds counts once while its processes start"
    group = placed(launch)
    found.remove(first)
    found.give(group, first)
    assert [held.nodes for held in found.held()] == [("here",)]
    assert found.share("exp") == 1.0
    assert found.next(now, []) is None
    found.finish(group)
    assert found.next(now, []) is None, "the experiment still holds the room of its group"
    found.free(group)
    assert found.next(now, [group]) == (second, ("here",))


def test_those_that_wait_are_listed_with_what_they_wait_for(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    entitlements = {"urgent": Entitlement(priority=10)}
    found = admission(entitlement=lambda name: entitlements.get(name, Entitlement()))
    admitted = enqueue(found, asking_for(1, tmp_path, experiment_id="first"), loop, waited_s=3600.0)
    now = time.monotonic()
    found.admit(admitted, ("here",), now)
    found.ask_ray(admitted, now)
    for name in ("low", "low", "urgent"):
        enqueue(found, asking_for(1, tmp_path, experiment_id=name), loop)
    waiting = found.waiting()
    assert [one.experiment for one in waiting] == ["first", "urgent", "low", "low"]
    assert [one.priority for one in waiting] == [0, 10, 0, 0]
    assert [one.reserved for one in waiting] == [True, False, False, False]
    assert [one.reason for one in waiting] == [
        "waits for Ray to place a worker with 1 CPU",
        *["waits for a worker with 1 CPU; 2 other experiments share the cluster"] * 3,
    ]
    admitted.placed.set()
    starting = found.waiting()[0]
    assert (starting.reason, starting.reserved) == ("its processes are being started", False)


def test_an_idle_group_is_used_where_it_is(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    launch = asking_for(1, tmp_path)
    found = admission()
    found.set_nodes({"there": {"CPU": 8.0}, "here": {"CPU": 1.0}}, {})
    segment = enqueue(found, launch, loop)
    assert found.next(time.monotonic(), []) == (segment, ("there",)), "the emptiest node"
    assert found.next(time.monotonic(), [placed(launch)]) == (segment, ("here",))
    other_kind = asking_for(1, tmp_path, env={"X": "1"})
    assert found.next(time.monotonic(), [placed(other_kind)]) == (segment, ("there",))


def test_a_group_that_waits_for_long_gets_a_reservation(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    found = admission(reserve_after_s=30.0)
    half = enqueue(found, asking_for(0.5, tmp_path, experiment_id="running"), loop)
    now = time.monotonic()
    found.admit(half, ("here",), now)
    found.ask_ray(half, now)
    enqueue(found, asking_for(1, tmp_path, experiment_id="large"), loop, waited_s=31.0)
    small = enqueue(found, asking_for(0.5, tmp_path, experiment_id="small"), loop)
    assert found.next(now, []) is None, "half of the CPU is free, and kept for the large one"
    assert found.why(small) == "waits until an earlier request for a worker with 1 CPU is placed"
    assert [one.reserved for one in found.waiting() if one.experiment == "large"] == [True]


def test_a_group_that_was_asked_to_make_room_and_goes_on_is_asked_again(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.trials.groups.pools.admission._PENDING_S", 0.0)
    entitlements = {"urgent": Entitlement(priority=10)}
    found = admission(entitlement=lambda name: entitlements.get(name, Entitlement()), preempt_after_s=0.0)
    low = asking_for(1, tmp_path)
    first = enqueue(found, low, loop)
    found.remove(first)
    found.give(placed(low), first)
    enqueue(found, asking_for(1, tmp_path, experiment_id="urgent", segment_id="other"), loop)
    asked = [found.make_room(lambda name, may=may: may) for may in (True, False, True)]  # type: ignore[misc]
    monkeypatch.setattr("tuner.trials.groups.pools.admission._YIELD_AGAIN_S", 0.0)
    asked += [found.make_room(lambda name, may=may: may) for may in (False, True)]  # type: ignore[misc]
    assert asked == [[("seg", "urgent", 10)], [], [], [], [("seg", "urgent", 10)]]


def test_no_other_group_is_asked_while_one_that_was_asked_ends(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.trials.groups.pools.admission._PENDING_S", 0.0)
    monkeypatch.setattr("tuner.trials.groups.pools.admission._YIELD_AGAIN_S", 0.0)
    found = admission(entitlement=lambda name: Entitlement(priority=10 * (name == "urgent")), preempt_after_s=0.0)
    found.set_nodes({"here": {"CPU": 2.0}}, {})
    for name in ("one", "two"):
        launch = asking_for(1, tmp_path, segment_id=name)
        segment = enqueue(found, launch, loop)
        found.remove(segment)
        found.give(placed(launch), segment)
    enqueue(found, asking_for(1, tmp_path, experiment_id="urgent"), loop)
    [(ending, *_)] = found.make_room(lambda name: True)
    assert found.make_room(lambda name: name != ending) == []


def test_an_experiment_may_have_its_group_once_more_before_others_start_processes(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    entitlements: dict[str, Entitlement] = {}
    found = admission(entitlement=lambda name: entitlements.get(name, Entitlement()))
    ours = asking_for(1, tmp_path, experiment_id="ours")
    first = enqueue(found, ours, loop)
    found.remove(first)
    group = placed(ours)
    found.give(group, first)
    assert not found.keeps_turn(group), "nobody else waits"
    other = enqueue(found, asking_for(1, tmp_path, experiment_id="other", env={"X": "1"}), loop)
    assert found.keeps_turn(group)
    entitlements["other"] = Entitlement(priority=1)
    assert not found.keeps_turn(group), "the other one is more urgent"
    entitlements["other"] = Entitlement(priority=-1)
    group.turn_began -= 3600.0
    assert found.keeps_turn(group), "the other one is less urgent"
    entitlements.clear()
    assert not found.keeps_turn(group), "it has had the group for long enough"
    found.remove(other)
    enqueue(found, asking_for(1, tmp_path, experiment_id="same kind"), loop)
    group.turn_began = time.monotonic()
    assert not found.keeps_turn(group), "the other one can use the same processes"


def test_what_others_use_is_what_is_neither_free_nor_ours(tmp_path: Path) -> None:
    nodes = {"a": {"CPU": 4.0, "memory": 1e9}, "b": {"CPU": 2.0, "GPU": 1.0}}
    ours = [group_key(asking_for(1, tmp_path)), group_key(asking_for(0.5, tmp_path))]
    assert used_elsewhere(nodes, {"CPU": 2.5, "GPU": 1.0}, ours) == {"CPU": 2.0}
    assert used_elsewhere(nodes, {"CPU": 4.5, "memory": 1e9}, ours) == {"GPU": 1.0}


def of_project(launch: Launch, experiment: str, workers: int = 1) -> Launch:
    scaling = dataclasses.replace(launch.scaling, num_workers=workers)
    return dataclasses.replace(launch, experiment_id=experiment, scaling=scaling)


def test_a_project_holds_no_more_than_its_quota(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    projects = {"a": "vision", "b": "vision", "c": "speech"}
    quotas = {"vision": {"CPU": 2.0, "GPU": 0.0}, "*": {"CPU": 1.0}}
    found = Admission(entitlement=lambda name: Entitlement(project=projects[name]), quotas=quotas)
    found.set_nodes({"here": {"CPU": 8.0}}, {})
    launch = asking_for(1, tmp_path)
    held = []
    for name in "abc":
        segment = enqueue(found, of_project(launch, name), loop)
        assert found.next(time.monotonic(), []) == (segment, ("here",))
        found.admit(segment, ("here",), time.monotonic())
        found.ask_ray(segment, time.monotonic())
        group = placed(segment.launch)
        found.remove(segment)
        found.give(group, segment)
        held.append(group)
    third, other = enqueue(found, of_project(launch, "a"), loop), enqueue(found, of_project(launch, "c"), loop)
    assert found.next(time.monotonic(), []) is None, "five CPUs are free, but both projects have used their quotas"
    assert found.why(third).endswith("the quota of the project 'vision' is 2 CPU, of which 2 are in use")
    assert found.why(other).endswith("the quota of the project 'speech' is 1 CPU, of which 1 is in use")
    assert found.make_room(lambda name: True) == []
    assert not found.keeps_turn(held[1]), "nobody could use it meanwhile"
    found.finish(held[1])
    found.free(held[1])
    assert found.next(time.monotonic(), []) == (third, ("here",))


def test_a_group_that_ray_has_not_placed_yet_counts_towards_the_quota(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    found = Admission(entitlement=lambda name: Entitlement(project="vision"), quotas={"vision": {"CPU": 1.0}})
    found.set_nodes({"here": {"CPU": 8.0}}, {})
    launch = asking_for(1, tmp_path)
    pending = enqueue(found, of_project(launch, "a"), loop)
    found.admit(pending, ("here",), time.monotonic())
    found.ask_ray(pending, time.monotonic())
    second = enqueue(found, of_project(launch, "b"), loop)
    later = time.monotonic() + 60.0
    for _ in range(3):
        assert found.next(later, []) is None
    assert found.why(second).endswith("the quota of the project 'vision' is 1 CPU, of which 1 is in use")
    assert found.granted("b", {"CPU": 1.0}) == 0
    found.remove(pending)
    assert found.next(later, []) == (second, ("here",))


def test_elastic_trials_are_granted_no_more_than_the_quota_leaves(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    projects = {"a": "vision", "b": "vision", "c": "other"}
    found = Admission(entitlement=lambda name: Entitlement(project=projects[name]), quotas={"vision": {"CPU": 4.0}})
    found.set_nodes({"here": {"CPU": 16.0}}, {})
    assert found.granted("a", {"CPU": 1.0}) == 4
    segment = enqueue(found, of_project(asking_for(1, tmp_path), "b", workers=3), loop)
    found.admit(segment, ("here",) * 3, time.monotonic())
    found.ask_ray(segment, time.monotonic())
    segment.placed.set()
    assert found.granted("a", {"CPU": 1.0}) == 1
    enqueue(found, of_project(asking_for(1, tmp_path), "b", workers=2), loop, waited_s=60.0)
    assert found.granted("c", {"CPU": 1.0}) == 13, "what waits only for its quota takes nothing from others"


def test_a_large_group_gets_its_turn_within_the_quota(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    found = Admission(
        entitlement=lambda name: Entitlement(project="other" if name == "z" else "vision"),
        quotas={"vision": {"CPU": 3.0}},
        reserve_after_s=30.0,
    )
    found.set_nodes({"here": {"CPU": 8.0}}, {})
    launch = asking_for(1, tmp_path)
    first = enqueue(found, of_project(launch, "a"), loop)
    found.admit(first, ("here",), time.monotonic())
    found.ask_ray(first, time.monotonic())
    first.placed.set()
    large = enqueue(found, of_project(launch, "b", workers=3), loop, waited_s=10.0)
    small = enqueue(found, of_project(launch, "c"), loop, waited_s=5.0)
    now = time.monotonic()
    assert found.next(now, []) == (small, ("here",)), "the large one has not waited for long"
    assert found.next(now + 25.0, []) is None, "now the quota is saved for it"
    elsewhere = enqueue(found, of_project(launch, "z"), loop)
    assert found.next(now + 25.0, []) == (elsewhere, ("here",))
    found.remove(elsewhere)
    found.remove(first)
    assert found.next(now + 25.0, []) == (large, ("here",) * 3)
    found.remove(large)
    never = enqueue(found, of_project(launch, "b", workers=4), loop, waited_s=3600.0)
    assert found.why(never) == "cannot start: it needs 4 CPU, and the quota of the project 'vision' is 3 CPU"
    assert found.next(time.monotonic(), []) == (small, ("here",)), "nothing is saved for what can never start"
