"""Divide a cluster between the experiments of a host, while experiments end and the cluster fails."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.driver.bench import Bench
from tuner.hosts.upkeep import room
from tuner.hosts.upkeep.room import Room


class Groups:
    """Worker groups of an idle cluster, which raise at their first call if they are told to."""

    def __init__(self, breaks: bool = False) -> None:
        self.breaks, self.asked, self.again = breaks, 0, asyncio.Event()

    async def leaving(self) -> dict[str, str]:
        return {}

    def granted(self, *_: Any) -> None:
        return None

    def make_room(self, may_end: Any) -> list[tuple[str, str, int]]:
        self.asked += 1
        if self.breaks and self.asked == 1:
            raise RuntimeError("a bug")
        self.again.set()
        return []


def driven() -> Any:
    """Return an experiment that a host drives, with the slots that it is told of."""
    told: list[int] = []
    bench = Bench(num_samples=2, limits={}, room={"slots": 4})
    loop = SimpleNamespace(put=lambda event: told.append(event.slots))
    return SimpleNamespace(core=bench.core, record=bench, loop=loop, told=told, slots=8, granted=None)


def of(groups: Groups, named: dict[str, Any], executor: Any) -> Room:
    executors: Any = SimpleNamespace(groups_in_use=groups)
    return Room(executor, executors, named, {})


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
