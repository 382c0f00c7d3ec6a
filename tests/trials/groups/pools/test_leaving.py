"""Test what the pool does with groups on nodes that are about to be taken away, without Ray."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.trials.groups.pools.asking import asking_for
from tuner.telemetry import log_format
from tuner.trials.groups.cluster.cut_nodes import CutNodes
from tuner.trials.groups.cluster.growth import NodeType
from tuner.trials.groups.pools.builder import GroupBuilder
from tuner.trials.groups.pools.group import Group
from tuner.trials.groups.pools.pool import Pool
from tuner.trials.messages.protocol import WorkerMetadata

NODES = {"a": {"CPU": 1.0}, "b": {"CPU": 1.0}}


class Builder(GroupBuilder):
    """Builds groups on nodes that only it knows, one on each node."""

    def __init__(self, *_: Any, **options: Any) -> None:
        self._background: set[asyncio.Future[Any]] = set()
        self._threads = self._here = ThreadPoolExecutor(1)
        self.ending, self.uploading, self._free_placements = 0, set(), {}
        self.cut = CutNodes(self.blocking, lambda node: None)
        self.draining: dict[str, float | None] = {}
        self.free = list(NODES)
        self.ended: list[str] = []

    async def build(self, launch: Any, key: Any, waiting: Any, placed: asyncio.Event) -> Group:
        while not (usable := [node for node in self.free if node not in self.draining]):
            await asyncio.sleep(0.01)
        self.free.remove(usable[0])
        placed.set()
        worker = WorkerMetadata(
            node=usable[0], host=f"host-{usable[0]}", ip="10.0.0.1", pid=1, gpus=(), channel_address=None, token=b"",
            oom_kills=0,
        )  # fmt: skip
        return Group(key, usable[0], workers=[worker])

    async def check(self, launch: Any) -> None:
        pass

    async def nodes(self) -> dict[str, dict[str, float]]:
        return {node: dict(resources) for node, resources in NODES.items()}

    async def node_types(self) -> Sequence[NodeType]:
        return ()

    async def leaving_nodes(self) -> Mapping[str, float | None]:
        return self.draining

    async def free_resources(self) -> dict[str, float]:
        return {"CPU": float(len(self.free))}

    async def _end(self, group: Group, hand_on: bool = False) -> None:
        self.ended.append(group.placement)
        self.free.append(group.placement)


async def _acquired(pool: Pool, path: Path, segment: str) -> Group:
    group, _ = await pool.acquire(asking_for(1, path, segment_id=segment), lambda reason: None)
    return group


async def test_its_segments_are_named_and_its_groups_are_not_kept(tmp_path: Path) -> None:
    builders: list[Builder] = []

    def builder(*arguments: Any, **options: Any) -> Builder:
        builders.append(Builder(*arguments, **options))
        return builders[0]

    pool = Pool(None, idle_timeout_s=60.0, builder=builder)
    (made,) = builders
    first, second = await _acquired(pool, tmp_path, "one"), await _acquired(pool, tmp_path, "two")
    assert await pool.leaving() == {}
    made.draining = {"b": None}
    assert set(await pool.leaving()) == {"two"}, "the others go on"
    made.draining = {}
    await pool.leaving()
    pool.release(second, reusable=True)
    made.draining = {"a": None}
    await pool.leaving()
    await pool.settle()
    assert made.ended == [], "an idle group on another node is kept"
    made.draining = {"a": time.time() + 100.5, "b": None}
    assert await pool.leaving() == {"one": "because its node host-a (10.0.0.1) is about to be taken away, in 100 s"}
    await pool.settle()
    assert made.ended == ["b"], "an idle group is ended"
    first.workers.append(replace(first.workers[0], node="c"))
    pool.release(first, reusable=True)
    await pool.settle()
    assert made.ended == ["b", "a"], "a group that becomes free is not kept"

    made.draining = {"a": None}
    await pool.leaving()
    pool._nodes_read_at = float("-inf")
    third = await _acquired(pool, tmp_path, "three")
    assert third.nodes() == ("b",)
    waiting = asyncio.ensure_future(_acquired(pool, tmp_path, "four"))
    await asyncio.sleep(0.7)
    assert not waiting.done(), "no new group is placed on a node that leaves"
    made.draining = {}
    await pool.leaving()
    assert (await asyncio.wait_for(waiting, 10)).nodes() == ("a",)
    await pool.close()


async def test_a_group_that_a_cancelled_segment_has_got_goes_to_the_next_one(tmp_path: Path) -> None:
    pool = Pool(None, idle_timeout_s=60.0, builder=Builder)
    group, other = [await _acquired(pool, tmp_path, segment) for segment in ("one", "two")]
    cancelled = asyncio.ensure_future(_acquired(pool, tmp_path, "three"))
    while not pool.waiting():
        await asyncio.sleep(0)
    pool.release(group, reusable=True)
    assert not pool.waiting(), "it has got the group, and does not know it yet"
    cancelled.cancel()
    assert await asyncio.wait_for(_acquired(pool, tmp_path, "four"), 10) is group
    for each in (group, other):
        pool.release(each, reusable=False)
    await pool.close()


async def test_what_a_group_holds_that_still_uploads_is_free_once_its_processes_have_exited(tmp_path: Path) -> None:
    pool = Pool(None, idle_timeout_s=60.0, builder=Builder)
    for uploads, held in ((set(), 0.0), ({asyncio.get_running_loop().create_future()}, 0.5)):
        group = await _acquired(pool, tmp_path, "one")
        group.uploads = uploads
        ended = pool.release(group, reusable=False)
        assert ended is not None
        assert pool.share("exp") == held
        await ended
        assert pool.share("exp") == 0.0
    await pool.close()


async def test_a_segment_that_waits_for_a_node_to_join_says_so(tmp_path: Path) -> None:
    class Growing(Builder):
        """Has one node now, and a second one may join. It says like the real builder what it waits for."""

        async def nodes(self) -> dict[str, dict[str, float]]:
            return {"a": {"CPU": 1.0}}

        async def node_types(self) -> Sequence[NodeType]:
            return (NodeType({"CPU": 1.0}, 2),)

        async def build(self, launch: Any, key: Any, waiting: Any, placed: asyncio.Event) -> Group:
            waiting("waits for a worker with 1 CPU")
            return await super().build(launch, key, waiting, placed)

    pool = Pool(None, idle_timeout_s=60.0, builder=Growing)
    said: dict[str, list[str]] = {"one": [], "two": []}
    for name, reasons in said.items():
        await pool.acquire(asking_for(1, tmp_path, segment_id=name), reasons.append)
    assert said == {
        "one": ["waits for a worker with 1 CPU"],
        "two": ["waits for nodes that can hold a worker with 1 CPU to join the cluster"],
    }
    await pool.close()


async def test_what_is_logged_about_all_that_wait_is_not_taken_for_the_first_experiments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.trials.groups.pools.pool._LOOK_S", 0.01)
    pool = Pool(None, idle_timeout_s=60.0, builder=Builder)
    groups = [await _acquired(pool, tmp_path, name) for name in ("one", "two")]
    about: list[Mapping[str, str]] = []
    dispatch, looked = pool._dispatch, asyncio.Event()

    def looks() -> None:
        about.append(log_format.ids())
        if len(about) == 2:
            looked.set()
        dispatch()

    monkeypatch.setattr(pool, "_dispatch", looks)
    with log_format.about(experiment="exp_first"):
        waiting = asyncio.ensure_future(_acquired(pool, tmp_path, "three"))
    await asyncio.wait_for(looked.wait(), 10)
    assert about[:2] == [{"experiment": "exp_first"}, {}], "its own look, and that of the pool"
    pool.release(groups[0], reusable=False)
    await asyncio.wait_for(waiting, 10)
    await pool.close()


async def test_a_group_is_not_kept_waiting_by_a_ray_that_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray places nothing for one segment, so another one gets its turn. It had not got it while a reading of the nodes hung."""
    monkeypatch.setattr("tuner.trials.groups.pools.pool._READ_S", 0.1)
    silent = asyncio.Event()

    class Silent(Builder):
        async def nodes(self) -> dict[str, dict[str, float]]:
            if silent.is_set():
                await asyncio.Event().wait()
            return {"a": {"CPU": 1.0}}

        async def build(self, launch: Any, key: Any, waiting: Any, placed: asyncio.Event) -> Group:
            if launch.segment_id == "one":
                await asyncio.Event().wait()
            return await super().build(launch, key, waiting, placed)

    pool = Pool(None, idle_timeout_s=60.0, builder=Silent)
    first = asyncio.ensure_future(_acquired(pool, tmp_path, "one"))
    await asyncio.sleep(0.01)
    silent.set()
    other = asking_for(1, tmp_path, segment_id="two", experiment_id="other")
    group, _ = await asyncio.wait_for(pool.acquire(other, lambda reason: None), 20)
    assert group.nodes() == ("a",)
    first.cancel()
    pool.release(group, reusable=False)
    await pool.close()
