"""Samples of what ranks use: when ranks are asked, and which samples are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import pytest

from tuner.hosts.measures import usage as module
from tuner.hosts.measures.usage import Place, UsageKeeper
from tuner.store import StoreUnavailable
from tuner.store.records import UsageSample

FIGURES = {"time": 100.0, "cpu_s": 1.5, "rss_bytes": 2e9, "threads": 7.0}


class Cluster:
    """Imitates ranks that answer, and a store that remembers samples."""

    def __init__(self, ranks: int = 2) -> None:
        self.places = {"seg_a": Place(1, 0, 1)}
        self.ranks = ranks
        self.mute: set[str] = set()
        self.figures: dict[str, float] = dict(FIGURES)
        self.asked: list[list[str]] = []
        self.kept: dict[int, list[UsageSample]] = {}
        self.writes = 0

    async def measure(self, segment_ids: Iterable[str]) -> dict[str, dict[int, dict[str, float]]]:
        self.asked.append(list(segment_ids))
        return {
            name: dict.fromkeys(range(self.ranks), self.figures) for name in self.asked[-1] if name not in self.mute
        }

    def add_usage(self, experiment_id: int, samples: list[UsageSample], *, keep: Mapping[tuple[int, int], int]) -> None:
        self.writes += 1
        kept = self.kept.setdefault(experiment_id, [])
        kept[:] = [s for s in kept if s.sample_no % keep.get((s.trial, s.segment), 1) == 0] + samples

    def keeper(self) -> UsageKeeper:
        return UsageKeeper(self, self, lambda: self.places)


async def test_every_rank_of_every_segment_that_runs() -> None:
    cluster = Cluster()
    cluster.places["seg_b"] = Place(1, 3, 2)
    cluster.places["seg_c"] = Place(9, 0, 1)
    await cluster.keeper().sample()
    assert [(s.trial, s.segment, s.rank, s.sample_no) for s in cluster.kept[1]] == [
        (0, 1, 0, 1), (0, 1, 1, 1), (3, 2, 0, 1), (3, 2, 1, 1),
    ]  # fmt: skip
    assert len(cluster.kept[9]) == 2
    assert cluster.writes == 2, "one transaction an experiment"
    [first, *_] = cluster.kept[1]
    assert (first.time, first.cpu_s, first.rss_bytes, first.gpu_bytes) == (100.0, 1.5, 2_000_000_000, None)


async def test_gpus_are_kept_where_there_are_some() -> None:
    cluster = Cluster(ranks=1)
    cluster.figures |= {"gpu_bytes": 5.0, "gpu_reserved_bytes": 8.0, "gpu_percent": 98.5}
    await cluster.keeper().sample()
    [sample] = cluster.kept[1]
    assert (sample.gpu_bytes, sample.gpu_reserved_bytes, sample.gpu_percent) == (5, 8, 98.5)


async def test_long_segments_keep_a_bounded_number_of_evenly_spaced_samples() -> None:
    cluster = Cluster(ranks=1)
    keeper = cluster.keeper()
    most = 0
    for _ in range(module.SAMPLES * 5):
        await keeper.sample()
        most = max(most, len(cluster.kept[1]))
    assert most <= module.SAMPLES
    numbers = [s.sample_no for s in cluster.kept[1]]
    assert numbers == list(range(8, module.SAMPLES * 5 + 1, 8)), (
        "half of the samples, three times over, and none missing"
    )
    assert sum(map(len, cluster.asked)) < module.SAMPLES * 3, "who is not to be kept is not asked"


async def test_each_segment_has_a_pace_of_its_own_and_is_forgotten_with_it() -> None:
    cluster = Cluster(ranks=1)
    keeper = cluster.keeper()
    for _ in range(module.SAMPLES + 2):
        await keeper.sample()
    cluster.places = {"seg_b": Place(1, 1, 1)}
    for _ in range(3):
        await keeper.sample()
    assert [s.sample_no for s in cluster.kept[1] if s.trial == 1] == [1, 2, 3]
    cluster.places = {"seg_a": Place(1, 0, 1)}
    await keeper.sample()
    assert cluster.asked[-1] == ["seg_a"]


async def test_who_does_not_answer_is_left_out() -> None:
    cluster = Cluster()
    cluster.mute.add("seg_a")
    await cluster.keeper().sample()
    assert (cluster.kept, cluster.writes) == ({}, 0)


async def test_many_segments_are_asked_in_slices_and_none_waits_for_a_rank_that_does_not_answer() -> None:
    cluster = Cluster(ranks=1)
    cluster.places = {f"seg_{number}": Place(1, number, 1) for number in range(3 * module.SLICE)}
    asked_last = asyncio.Event()
    measure = cluster.measure

    async def slow_at_first(segment_ids: Iterable[str]) -> dict[str, dict[int, dict[str, float]]]:
        names = list(segment_ids)
        if "seg_0" in names:
            await asyncio.wait_for(asked_last.wait(), 10)
        if len(cluster.asked) == 1:
            asked_last.set()
        return await measure(names)

    cluster.measure = slow_at_first  # type: ignore[method-assign]
    await cluster.keeper().sample(0.03)
    assert sorted(map(len, cluster.asked)) == [module.SLICE] * 3
    assert {s.trial for s in cluster.kept[1]} == set(range(3 * module.SLICE))
    assert cluster.writes == 3


async def test_an_outage_of_the_store_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    tries: list[int] = []
    add_usage = cluster.add_usage

    def add(experiment_id: int, samples: list[UsageSample], *, keep: Mapping[tuple[int, int], int]) -> None:
        tries.append(experiment_id)
        if len(tries) <= 3:
            raise StoreUnavailable("no route to host")
        add_usage(experiment_id, samples, keep=keep)

    cluster.add_usage = add  # type: ignore[method-assign]
    keeping = asyncio.create_task(cluster.keeper().keep(0.01))
    async with asyncio.timeout(30):
        while not cluster.kept:
            await asyncio.sleep(0.01)
    keeping.cancel()
    await asyncio.wait([keeping])
    assert [(r.getMessage(), r.exc_info) for r in caplog.records if r.name == module.log.name] == [
        ("could not store the resource usage of ranks: no route to host", False)
    ]
