"""Test the pool of worker groups on a real Ray. `test_admission` and `test_warm` test parts of it without Ray."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from tests.local_ray import start_ray
from tests.services import until
from tests.trials.groups.pools.asking import asking_for
from tuner.domain.experiment import Limits
from tuner.errors import PlacementError
from tuner.trials.groups.pools import admission, builder, removal
from tuner.trials.groups.pools import pool as pool_module
from tuner.trials.groups.pools.admission import Entitlement, used_elsewhere
from tuner.trials.groups.pools.group import room_key
from tuner.trials.groups.pools.pool import Pool
from tuner.trials.messages.lost import LostAtStart, NoRoom

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def small_ray(without_ray: None) -> Iterator[None]:
    start_ray(1)
    yield
    ray.shutdown()


def test_a_group_that_is_cancelled_while_ray_is_asked_for_it_is_given_back(
    small_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray may lose the CPU of a placement group that is removed while Ray places it."""
    launch = asking_for(1, tmp_path)
    states: list[str] = []

    def remove(group: Any) -> None:
        states.append(placement_group_table(group)["stats"]["scheduling_state"])
        remove_placement_group(group)

    for module in (builder, removal):
        monkeypatch.setattr(module, "remove_placement_group", remove)

    async def scenario() -> None:
        pool = Pool(None, name="exp_1", idle_timeout_s=60.0)
        await pool._read_nodes()
        pool._builder._placed_before.add(room_key(launch.scaling))  # so that it is not checked first
        acquiring = asyncio.create_task(pool.acquire(launch, lambda reason: None))
        for _ in range(5):  # up to the request, which a thread has in hand by then
            await asyncio.sleep(0)
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        await pool.close()

    for _ in range(5):
        asyncio.run(scenario())
    assert len(states) == 5
    assert set(states) <= {"FINISHED", "NO_RESOURCES"}, "it is placed, or waits for room"
    groups = list(placement_group_table().values())
    assert [(group["name"], group["state"]) for group in groups] == [("exp_1/1", "REMOVED")] * 5
    until("the CPU is free", lambda: ray.available_resources().get("CPU") == 1.0)


def test_what_never_fits_is_refused_and_what_once_did_is_waited_for(small_ray: None, tmp_path: Path) -> None:
    """Ask a cluster of one CPU for two, at once and after a second node has been lost."""
    launch = asking_for(2, tmp_path, limits=Limits(placement_timeout_s=0.5))
    waits: list[str] = []

    async def scenario() -> None:
        pool = Pool(None, name="exp_2", idle_timeout_s=60.0)
        with pytest.raises(PlacementError, match=r"can never run a worker with 2 CPU: 1 × 2 CPU are requested"):
            await pool.acquire(launch, waits.append)
        assert waits == []
        no_longer = r"can no longer run .*: 1 × 2 CPU .* has 1 CPU, for 0.5 s now"
        with pytest.raises(PlacementError, match=no_longer):  # an earlier driver has run a trial of the experiment
            await pool.acquire(dataclasses.replace(launch, placed_before=True), waits.append)
        pool._builder._placed_before.add(room_key(launch.scaling))
        with pytest.raises(PlacementError, match=no_longer):
            await pool.acquire(launch, waits.append)
        await pool.close()

    asyncio.run(scenario())
    assert waits == ["waits for a worker with 2 CPU: 1 × 2 CPU are requested, but the whole cluster has 1 CPU"] * 2


def test_a_group_is_asked_for_while_other_processes_take_long_to_end(small_ray: None, tmp_path: Path) -> None:
    launch, ended = asking_for(1, tmp_path), threading.Event()

    async def scenario() -> None:
        pool = Pool(None, name="exp_0", idle_timeout_s=60.0)
        here = ray.get_runtime_context().get_node_id()
        waits = [asyncio.ensure_future(pool.on_node(here, ended.wait, 60)) for _ in range(8)]
        try:
            group, _ = await asyncio.wait_for(pool.acquire(launch, lambda reason: None), 30)
        finally:
            ended.set()
            await asyncio.gather(*waits)
        pool.release(group, reusable=False)
        await pool.close()

    asyncio.run(scenario())


def test_what_fits_is_remembered(small_ray: None, tmp_path: Path) -> None:
    launch = asking_for(1, tmp_path)

    async def scenario() -> set[tuple[Any, ...]]:
        pool = Pool(None, name="exp_3", idle_timeout_s=60.0)
        group, warm = await pool.acquire(launch, lambda reason: None)
        pool.release(group, reusable=False)
        await pool.close()
        assert not warm
        return pool._builder._placed_before

    assert asyncio.run(scenario()) == {room_key(launch.scaling)}


def test_a_group_that_is_handed_on_often_leaves_no_timers(small_ray: None, tmp_path: Path) -> None:
    launch = asking_for(1, tmp_path)

    async def scenario() -> tuple[int, bool, int]:
        pool = Pool(None, name="exp_4", idle_timeout_s=0.2)
        group, _ = await pool.acquire(launch, lambda reason: None)
        for _ in range(1000):
            pool.release(group, reusable=True)
            again, warm = await pool.acquire(launch, lambda reason: None)
            assert warm
            assert again is group
            await asyncio.sleep(0)
        timers = len(asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]
        await asyncio.sleep(0.3)  # longer than any of those timers
        kept = not pool._builder._background
        pool.release(group, reusable=True)
        while pool.idle:
            await asyncio.sleep(0.01)
        await pool.settle()
        left = len([g for g in placement_group_table().values() if g["name"] == "exp_4/1" and g["state"] != "REMOVED"])
        await pool.close()
        return timers, kept, left

    timers, kept, left = asyncio.run(scenario())
    assert timers < 250
    assert kept, "a group that is in use is not ended for having been idle"
    assert left == 0, "one that stays idle is"


def test_an_idle_group_is_shut_down_although_the_segment_that_needs_its_room_is_cancelled(
    small_ray: None, tmp_path: Path
) -> None:
    """All threads that call Ray are busy, so that the removal of the placement group has not begun. It was then forgotten."""
    ended = threading.Event()

    async def scenario() -> None:
        pool = Pool(None, name="exp_8", idle_timeout_s=60.0)
        first, _ = await pool.acquire(asking_for(1, tmp_path), lambda reason: None)
        pool.release(first, reusable=True)
        build, take_idle, taken = pool._builder, pool._builder._take_idle, asyncio.Event()

        def take() -> Any:
            if (group := take_idle()) is not None:
                for _ in range(build._threads._max_workers):
                    build._threads.submit(ended.wait, 60)
                taken.set()
            return group

        build._take_idle = take
        acquiring = asyncio.create_task(pool.acquire(asking_for(0.5, tmp_path), lambda reason: None))
        await asyncio.wait_for(taken.wait(), 60)
        acquiring.cancel()
        await asyncio.wait({acquiring})
        ended.set()
        await pool.close()

    asyncio.run(scenario())
    until("the CPU is free", lambda: ray.available_resources().get("CPU") == 1.0)


def test_a_group_that_has_its_room_is_built_to_its_end_for_the_next_trial(small_ray: None, tmp_path: Path) -> None:
    """A warm group became free in between: the new one is kept for the next trial."""
    launch = asking_for(0.25, tmp_path)

    async def scenario() -> list[Any]:
        pool = Pool(None, name="exp_5", idle_timeout_s=60.0)
        first, _ = await pool.acquire(launch, lambda reason: None)
        build, placed = pool._builder.build, []

        async def builds(*arguments: Any) -> Any:
            placed.append(arguments[-1])
            return await build(*arguments)

        pool._builder.build = builds  # type: ignore[method-assign]
        acquiring = asyncio.create_task(pool.acquire(launch, lambda reason: None))
        while not placed:
            await asyncio.sleep(0)
        await placed[0].wait()
        pool.release(first, reusable=True)
        second, warm = await acquiring
        third, _ = await pool.acquire(launch, lambda reason: None)
        fourth = asyncio.create_task(pool.acquire(launch, lambda reason: None))
        while len(placed) < 2:
            await asyncio.sleep(0)
        await placed[1].wait()
        pool.release(third, reusable=True)
        fifth, _ = await fourth
        for group in (second, fifth):
            pool.release(group, reusable=True)
        await pool.close()
        return [second is first, warm, third is first, fifth is third, pool._spares, pool._builder._background]

    assert asyncio.run(scenario()) == [True, True, False, True, {}, set()]
    names = [group["name"] for group in placement_group_table().values() if group["name"].startswith("exp_5/")]
    assert sorted(names) == ["exp_5/1", "exp_5/2", "exp_5/3"]
    assert {g["state"] for g in placement_group_table().values() if g["name"] in names} == {"REMOVED"}


def test_a_placement_group_that_ray_has_not_placed_yet_goes_to_the_next_trial(small_ray: None, tmp_path: Path) -> None:
    """Short trials take turns in one warm group, and each begins to build another group, for which Ray takes its time.

    If each requested a placement group of its own, Ray would place none of them, and might lose the CPU of one that is
    removed while it is being placed.
    """
    launch = asking_for(0.5, tmp_path)

    async def scenario() -> None:
        pool = Pool(None, name="exp_short", idle_timeout_s=60.0)
        theirs = placement_group([{"CPU": 0.5}])
        await pool._builder.blocking(theirs.wait, 30)
        warm, _ = await pool.acquire(launch, lambda reason: None)
        for _ in range(10):
            acquiring = asyncio.create_task(pool.acquire(launch, lambda reason: None))
            while not any(segment.admitted_at for segment in pool._admission.admitted):
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)  # the time of a short trial
            pool.release(warm, reusable=True)
            assert await acquiring == (warm, True)
        acquiring = asyncio.create_task(pool.acquire(launch, lambda reason: None))
        remove_placement_group(theirs)
        another, is_warm = await acquiring
        assert not is_warm
        for group in (warm, another):
            pool.release(group, reusable=False)
        await pool.close()

    asyncio.run(asyncio.wait_for(scenario(), 120))
    groups = [group for group in placement_group_table().values() if group["name"].startswith("exp_short/")]
    assert [group["state"] for group in groups] == ["REMOVED"] * 2
    until("the CPU is free", lambda: ray.available_resources().get("CPU") == 1.0)


def test_a_group_that_was_placed_for_another_trial_counts_as_held_from_when_the_trial_got_it(
    small_ray: None, tmp_path: Path
) -> None:
    """Counted from the placement, it would seem to have started for longer than it existed."""
    launch = asking_for(0.25, tmp_path)

    async def scenario() -> tuple[float, float]:
        pool = Pool(None, name="exp_12", idle_timeout_s=60.0)
        first, _ = await pool.acquire(launch, lambda reason: None)
        build, placed, may_end = pool._builder.build, [], asyncio.Event()

        async def builds(*arguments: Any) -> Any:
            placed.append(arguments[-1])
            group = await build(*arguments)
            await may_end.wait()
            return group

        pool._builder.build = builds  # type: ignore[method-assign]
        second = asyncio.create_task(pool.acquire(launch, lambda reason: None))
        while not placed:
            await asyncio.sleep(0)
        await placed[0].wait()
        pool.release(first, reusable=True)
        assert (await second)[0] is first
        assert pool._spares
        asked_at = time.monotonic()
        third = asyncio.create_task(pool.acquire(launch, lambda reason: None))
        while pool._spares:
            await asyncio.sleep(0)
        may_end.set()
        group, warm = await third
        assert not warm
        held_since = group.held_since
        for each in (first, group):
            pool.release(each, reusable=True)
        await pool.close()
        return asked_at, held_since

    asked_at, held_since = asyncio.run(scenario())
    assert held_since >= asked_at


def test_a_large_group_that_has_waited_for_long_is_placed_before_small_ones_that_ask_later(
    small_ray: None, tmp_path: Path
) -> None:
    small, large = asking_for(0.5, tmp_path), asking_for(1, tmp_path)

    async def scenario() -> list[str]:
        pool = Pool(None, name="exp_7", idle_timeout_s=60.0, reserve_after_s=0.1)
        first, _ = await pool.acquire(small, lambda reason: None)
        second, _ = await pool.acquire(small, lambda reason: None)
        said: list[str] = []
        gang = asyncio.create_task(pool.acquire(large, said.append))
        while not said:  # until it has waited for longer than that
            await asyncio.sleep(0.01)
        pool.release(first, reusable=False)
        await pool.settle()
        told: list[str] = []
        later = asyncio.create_task(pool.acquire(small, told.append))
        while not told and not later.done():
            await asyncio.sleep(0.01)
        assert not later.done(), "half of the CPU is free, and kept for the large one"
        pool.release(second, reusable=False)
        placed, _ = await gang
        assert not later.done()
        pool.release(placed, reusable=False)
        third, _ = await later
        pool.release(third, reusable=False)
        await pool.close()
        return told

    told = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert told[0] == "waits until an earlier request for a worker with 1 CPU is placed"


def test_room_that_others_hold_is_waited_for_in_ray(small_ray: None, tmp_path: Path) -> None:
    """Another user of the cluster holds most of the CPU. A group that fits beside it is not held up meanwhile."""
    launch = asking_for(1, tmp_path, limits=Limits(placement_timeout_s=2.0))
    small = dataclasses.replace(asking_for(0.25, tmp_path), experiment_id="other")

    async def scenario() -> str:
        pool = Pool(None, name="exp_8", idle_timeout_s=60.0)
        theirs = placement_group([{"CPU": 0.75}])
        await pool._builder.blocking(theirs.wait, 30)
        waits: list[str] = []
        acquiring = asyncio.create_task(pool.acquire(launch, waits.append))
        while not waits:
            await asyncio.sleep(0.01)
        group, _ = await pool.acquire(small, waits.append)
        pool.release(group, reusable=False)
        with pytest.raises(NoRoom, match=r"no resources became free for a worker with 1 CPU within 2 s"):
            await acquiring
        remove_placement_group(theirs)
        await pool.close()
        return waits[0]

    assert asyncio.run(asyncio.wait_for(scenario(), 60)) == "waits for a worker with 1 CPU"


def test_a_runtime_env_that_cannot_be_set_up_is_refused(small_ray: None, tmp_path: Path) -> None:
    launch = asking_for(1, tmp_path, runtime_env={"conda": "no-such-environment"})

    async def scenario() -> None:
        pool = Pool(None, name="exp_4", idle_timeout_s=60.0)
        with pytest.raises(PlacementError, match="the workers could not be started: ") as caught:
            await pool.acquire(launch, lambda reason: None)
        assert not isinstance(caught.value, LostAtStart | NoRoom)
        assert "conda" in str(caught.value)
        await pool.close()

    asyncio.run(scenario())


def test_experiments_take_turns_and_a_higher_priority_comes_first(
    small_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warm group serves them all, as they run the same code. Each trial takes as long as any other, on a clock of its own."""
    clock = SimpleNamespace(monotonic=lambda: now)
    now = time.monotonic()
    for module in (admission, pool_module):
        monkeypatch.setattr(module, "time", clock)
    entitlements = {"urgent": Entitlement(priority=10), "heavy": Entitlement(weight=2.0)}

    async def scenario() -> list[str]:
        pool = Pool(
            None,
            name="exp_9",
            idle_timeout_s=60.0,
            entitlement=lambda name: entitlements.get(name, Entitlement()),
        )
        served: list[str] = []
        warm = dataclasses.replace(asking_for(1, tmp_path), experiment_id="warm")
        group, _ = await pool.acquire(warm, lambda reason: None)

        async def run(name: str, trials: int) -> None:
            nonlocal now
            for _ in range(trials):
                group, _ = await pool.acquire(dataclasses.replace(warm, experiment_id=name), lambda reason: None)
                served.append(name)
                now += 0.02
                pool.release(group, reusable=True)

        equal = [asyncio.create_task(run(name, 6)) for name in ("a", "b", "c") for _ in range(2)]
        urgent = asyncio.create_task(run("urgent", 2))
        while pool.waiting() == [] or len(pool.waiting()) < 7:
            await asyncio.sleep(0.001)
        assert pool.waiting()[0].experiment == "urgent"
        assert [one.experiment for one in pool.held()] == ["warm"]
        assert pool.share("warm") == 1.0
        pool.release(group, reusable=True)
        await asyncio.gather(urgent, *equal)
        assert pool.held() == pool.waiting() == []
        await pool.close()
        return served

    served = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert served[:2] == ["urgent", "urgent"]
    for at in range(5, 38):
        counts = [served[2:at].count(name) for name in ("a", "b", "c")]
        assert max(counts) - min(counts) <= 1, served


def test_an_experiment_keeps_its_processes_for_a_moment_before_others_get_their_room(
    small_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = dataclasses.replace(asking_for(1, tmp_path), experiment_id="ours")
    theirs = dataclasses.replace(ours, experiment_id="theirs", env={"X": "1"})  # needs processes of its own

    async def scenario() -> tuple[bool, bool, list[str]]:
        pool = Pool(None, name="exp_10", idle_timeout_s=60.0)
        group, _ = await pool.acquire(ours, lambda reason: None)
        waits: list[str] = []
        waiting = asyncio.create_task(pool.acquire(theirs, waits.append))
        while not waits:
            await asyncio.sleep(0.01)
        pool.release(group, reusable=True)
        again, warm = await pool.acquire(ours, lambda reason: None)
        same = again is group and warm and not waiting.done()
        monkeypatch.setattr("tuner.trials.groups.pools.admission.SLICE_S", 0.0)
        pool.release(group, reusable=True)
        late = asyncio.create_task(pool.acquire(ours, lambda reason: None))
        other, _ = await waiting
        turned = not late.done()
        pool.release(other, reusable=False)
        group, _ = await late
        pool.release(group, reusable=False)
        await pool.close()
        return same, turned, waits

    same, turned, waits = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert same, "it asked again at once"
    assert turned, "it has had the group for long enough"
    assert waits[0] == "waits for a worker with 1 CPU; 1 other experiment shares the cluster"


def test_one_look_that_fails_leaves_nobody_waiting_for_ever(
    small_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.trials.groups.pools.pool._LOOK_S", 0.01)

    async def scenario() -> None:
        pool = Pool(None, name="exp_12", idle_timeout_s=60.0)
        dispatch, looks = pool._dispatch, 0

        def fails_once() -> None:
            nonlocal looks
            looks += 1
            if looks == 2:
                raise RuntimeError("no")
            if looks > 2:
                dispatch()

        monkeypatch.setattr(pool, "_dispatch", fails_once)
        group, _ = await asyncio.wait_for(pool.acquire(asking_for(1, tmp_path), lambda reason: None), 30)
        pool.release(group, reusable=False)
        await pool.close()

    asyncio.run(scenario())


def test_what_the_pool_itself_uses_is_not_taken_for_the_use_of_others(
    small_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group has room while its processes start, and while it is kept for the experiment that has just used it."""
    monkeypatch.setattr("tuner.trials.groups.pools.warm._ASK_AGAIN_S", 60.0)
    half = asking_for(0.5, tmp_path)
    theirs = dataclasses.replace(asking_for(1, tmp_path), experiment_id="theirs")

    async def scenario() -> list[dict[str, float]]:
        pool = Pool(None, name="exp_13", idle_timeout_s=60.0)
        nodes = {"here": {"CPU": 1.0}}
        build, started = pool._builder.build, asyncio.Event()

        async def builds(*arguments: Any) -> Any:
            group = await build(*arguments)
            await started.wait()
            return group

        pool._builder.build = builds  # type: ignore[method-assign]
        acquiring = asyncio.create_task(pool.acquire(half, lambda reason: None))
        while not any(segment.placed.is_set() for segment in pool._admission.admitted):
            await asyncio.sleep(0.01)
        while ray.available_resources().get("CPU", 0.0) > 0.5:  # Ray shows what is used only after a moment
            await asyncio.sleep(0.01)
        found = [used_elsewhere(nodes, ray.available_resources(), pool._keys_with_room())]
        started.set()
        group, _ = await acquiring
        waiting = asyncio.create_task(pool.acquire(theirs, lambda reason: None))
        while not pool.waiting():
            await asyncio.sleep(0)
        pool.release(group, reusable=True)
        assert pool._warm.kept == [group]
        found.append(used_elsewhere(nodes, ray.available_resources(), pool._keys_with_room()))
        pool._end_turn(group)
        other, _ = await waiting
        pool.release(other, reusable=False)
        await pool.close()
        return found

    assert asyncio.run(asyncio.wait_for(scenario(), 60)) == [{}, {}]


def test_the_placement_group_of_a_group_that_is_ended_goes_to_the_next_one_of_its_size(
    small_ray: None, tmp_path: Path
) -> None:
    """A group of another size gets its own, as does one after a loss, since its node may be gone. The others are removed."""
    launch = asking_for(1, tmp_path)
    smaller = asking_for(0.5, tmp_path)

    async def scenario() -> None:
        pool = Pool(None, name="exp_hand", idle_timeout_s=60.0)
        first, _ = await pool.acquire(launch, lambda reason: None)
        pool.release(first, reusable=False)
        second, warm = await pool.acquire(launch, lambda reason: None)
        assert not warm
        assert second.placement.id == first.placement.id
        assert second.workers[0].pid != first.workers[0].pid
        pool.release(second, reusable=False)
        third, _ = await pool.acquire(smaller, lambda reason: None)
        assert third.placement.id != second.placement.id
        third.sound = False
        pool.release(third, reusable=False)
        fourth, _ = await pool.acquire(smaller, lambda reason: None)
        assert fourth.placement.id != third.placement.id
        pool.release(fourth, reusable=False)
        await pool.close()
        assert pool._builder._free_placements == {}

    asyncio.run(scenario())
    groups = [group for group in placement_group_table().values() if group["name"].startswith("exp_hand")]
    assert [group["state"] for group in groups] == ["REMOVED"] * 3
