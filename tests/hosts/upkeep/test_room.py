"""Divide a cluster between the experiments of a host, while experiments end and the cluster fails."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.driver.bench import Bench
from tuner.domain.events import WorkersChanged
from tuner.domain.experiment import Scaling
from tuner.domain.segments import SegmentRef
from tuner.hosts.upkeep import room
from tuner.hosts.upkeep.room import Room


class Groups:
    """Worker groups of an idle cluster, which raise at their first call if they are told to.

    Args:
        breaks: whether the first call raises.
        leave: the segments on nodes that are about to be taken away, with the reasons. An error is raised.
        workers: how many workers each experiment may have.
        preempt: the segments whose resources another experiment should get.
    """

    def __init__(
        self,
        breaks: bool = False,
        leave: dict[str, str] | Exception | None = None,
        workers: dict[str, int] | None = None,
        preempt: tuple[str, ...] = (),
    ) -> None:
        self.breaks, self.asked, self.again = breaks, 0, asyncio.Event()
        self.leave, self.workers, self.preempt = leave or {}, workers or {}, preempt

    async def leaving(self) -> dict[str, str]:
        if isinstance(self.leave, Exception):
            raise self.leave
        return self.leave

    def granted(self, experiment: str, bundle: Any) -> int | None:
        return self.workers.get(experiment)

    def make_room(self, may_end: Any) -> list[tuple[str, str, int]]:
        self.asked += 1
        if self.breaks and self.asked == 1:
            raise RuntimeError("a bug")
        self.again.set()
        return [(name, "exp_1", 10) for name in self.preempt if may_end(name)]


def driven(limits: dict[str, Any] | None = None, **spec: Any) -> Any:
    """Return an experiment that a host drives, with the slots or workers that it is told of."""
    told: list[int] = []
    bench = Bench(num_samples=2, limits=limits or {}, room={"slots": 4, "workers": 4}, **spec)
    loop = SimpleNamespace(put=lambda e: told.append(e.workers if isinstance(e, WorkersChanged) else e.slots))
    return SimpleNamespace(core=bench.core, record=bench, loop=loop, told=told, slots=8, granted=None)


def segment(trial: int, may_yield: bool, told: list[tuple[int, int, str]]) -> Any:
    """Return a running segment, which adds to `told` which trials are asked for their room, and why."""
    core = SimpleNamespace(may_yield=lambda ref: may_yield)
    loop = SimpleNamespace(put=lambda event: told.append((event.trial, event.segment, event.reason)))
    return SimpleNamespace(ref=SegmentRef(trial, 1), inbound=SimpleNamespace(core=core, loop=loop))


def of(groups: Groups | None, named: dict[str, Any], executor: Any, segments: dict[str, Any] | None = None) -> Room:
    executors: Any = SimpleNamespace(groups_in_use=groups)
    return Room(executor, executors, named, segments or {})


async def test_an_experiment_that_ends_while_slots_are_counted_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SLOTS_S", 0.0)
    counting, go_on = threading.Event(), threading.Event()

    def capacity(scaling: Any) -> int:
        counting.set()
        assert go_on.wait(20)
        return 8

    named = {"a": driven(), "b": driven()}
    last = named["b"]
    count = asyncio.create_task(of(Groups(), named, SimpleNamespace(capacity=capacity)).count_slots())
    assert await asyncio.to_thread(counting.wait, 20)
    ended = named.pop("a")  # as `Driving` does it, and `Driven.close`
    del ended.loop
    go_on.set()
    await asyncio.wait_for(count, 20)
    assert (ended.told, last.told) == ([], [8])


async def test_a_round_that_fails_is_not_the_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(room, "ROOM_S", 0.0)
    groups = Groups(breaks=True)
    named = {"a": driven(), "b": driven()}
    keep = asyncio.create_task(of(groups, named, SimpleNamespace(capacity=lambda scaling: 4)).keep())
    try:
        again = asyncio.create_task(groups.again.wait())
        await asyncio.wait({keep, again}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert not keep.done()
        assert again.done()
    finally:
        keep.cancel()
        again.cancel()
    assert "could not be divided" in caplog.text


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("leave", [{"leaves": "its node leaves", "starts": "its node leaves"}, RuntimeError("Ray")])
async def test_a_round_asks_trials_that_can_be_paused_for_their_room(leave: Any, others: int) -> None:
    told: list[tuple[int, int, str]] = []
    segments = {
        name: segment(trial, name != "starts", told) for trial, name in enumerate(("leaves", "starts", "makes room"))
    }
    groups = Groups(leave=leave, preempt=("starts", "makes room", "has ended"))
    named = {str(i): driven(limits={"max_concurrent_trials": 2}) for i in range(1 + others)}
    await of(groups, named, None, segments)._check()
    leaving = [(0, 1, "its node leaves")] * isinstance(leave, dict)
    preempted = [(2, 1, "to make room for experiment exp_1 (priority 10)")] * others
    assert told == leaving + preempted, "an only experiment makes no room"


async def test_a_host_without_worker_groups_divides_nothing() -> None:
    await of(None, {"a": driven(), "b": driven()}, None)._check()


async def test_a_change_of_the_cluster_counts_once_two_rounds_have_found_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not count for experiments whose room is set by their limits, by agents or by this machine."""
    now, asked = [0.0], []

    def capacity(scaling: Scaling) -> int:
        asked.append(scaling)
        if now[0] == 0.0:
            raise RuntimeError("Ray")
        return 6

    elastic, fixed = Scaling(num_workers=1, max_workers=8), {"max_concurrent_trials": 2}
    named = {
        "cluster": driven(),
        "limited": driven(limits=fixed),
        "elastic": driven(limits=fixed, scaling=elastic),
        "as before": driven(limits=fixed, scaling=elastic),
        **{where: driven(executor=where, scaling=elastic) for where in ("agents", "local")},
    }
    monkeypatch.setattr(room, "time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: 0.0))
    workers = {**dict.fromkeys(named, 6), "as before": 4}
    watched = of(Groups(workers=workers), named, SimpleNamespace(capacity=capacity))
    told = {name: one.told for name, one in named.items()}
    nothing: dict[str, list[int]] = {name: [] for name in named}
    await watched._check()
    assert told == nothing, "Ray has not answered"
    await watched._check()
    assert (told, len(asked)) == ({**nothing, "elastic": [6]}, 1)
    now[0] = room.SLOTS_S
    await watched._check()
    now[0] += room.SLOTS_S - 0.01
    await watched._check()
    assert (told["cluster"], len(asked)) == ([], 2), "one round may err"
    now[0] += 0.01
    await watched._check()
    assert told == {**nothing, "cluster": [6], "elastic": [6] * 4}
    assert asked == [Scaling()] * 3
