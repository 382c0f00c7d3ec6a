"""Test the worker groups that are kept for the next segment, without Ray."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.trials.groups.pools.asking import asking_for
from tests.trials.groups.pools.test_admission import placed
from tuner.trials.groups.pools.admission import WaitingSegment
from tuner.trials.groups.pools.group import Group, group_key
from tuner.trials.groups.pools.warm import WarmGroups
from tuner.trials.messages.launch import Launch


def empty(launch: Launch, experiment: str = "") -> Group:
    return Group(group_key(launch), placement=None, experiment=experiment)  # type: ignore[arg-type]


def test_a_search_that_is_alone_keeps_the_idle_groups_that_it_can_use(tmp_path: Path) -> None:
    small, large = asking_for(0.5, tmp_path), asking_for(1, tmp_path)

    async def scenario() -> None:
        warm = WarmGroups(60.0, lambda group: None)
        groups = [empty(launch) for launch in (small, large, small, small)]
        for group in groups:
            warm.add(group)
        assert warm.useless(small.scaling, None) == [groups[1]]
        assert warm.useless(small.scaling, 2) == groups[:2]
        assert warm.useless(large.scaling, 1) == [groups[0], groups[2], groups[3]]
        for group in groups:
            warm.take(group)

    asyncio.run(scenario())


def test_a_group_that_is_idle_for_long_enough_expires_and_one_that_was_taken_does_not(tmp_path: Path) -> None:
    launch = asking_for(1, tmp_path)

    async def scenario() -> None:
        expired: asyncio.Queue[Group] = asyncio.Queue()
        warm = WarmGroups(0.0, expired.put_nowait)
        taken, idle = empty(launch), empty(launch)
        warm.add(taken)
        warm.take(taken)
        assert taken.expiry is not None
        assert taken.expiry.cancelled(), "it would end the group early when it is idle again"
        warm.add(idle)
        assert await expired.get() is idle
        assert warm.idle == []
        assert expired.empty()

    asyncio.run(scenario())


async def test_a_segment_gets_the_newest_idle_group_of_its_kind_or_one_where_it_was_admitted(tmp_path: Path) -> None:
    launch, other = asking_for(1, tmp_path), asking_for(1, tmp_path, env={"TOKEN": "of another user"})
    warm = WarmGroups(60.0, lambda group: None)
    groups = [placed(launch), empty(launch), empty(other)]
    for group in groups:
        warm.add(group)
    future = asyncio.get_running_loop().create_future
    segment = WaitingSegment(launch, 0.0, future(), future())
    assert warm.usable(segment, ("there",)) is groups[1]
    assert warm.usable(segment, ("here",)) is groups[0]
    segment.launch = replace(launch, scaling=replace(launch.scaling, reuse_workers=False))
    assert warm.usable(segment, ("here",)) is None
    for group in groups:
        warm.take(group)
    segment.launch = launch
    assert warm.usable(segment, ("here",)) is None


def test_a_group_is_kept_for_a_moment_for_the_experiment_that_used_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = asking_for(1, tmp_path)

    async def scenario() -> None:
        unclaimed: asyncio.Queue[Group] = asyncio.Queue()
        warm = WarmGroups(60.0, lambda group: None)
        group = empty(launch, "ours")
        warm.keep(group, unclaimed.put_nowait)
        assert warm.take_kept("theirs", group.key) is None
        assert warm.take_kept("ours", group_key(asking_for(2, tmp_path))) is None
        assert warm.take_kept("ours", group.key) is group
        assert not warm.drop_kept(group)
        monkeypatch.setattr("tuner.trials.groups.pools.warm._ASK_AGAIN_S", 0.0)
        warm.keep(group, unclaimed.put_nowait)
        assert warm.kept == [group]
        assert await unclaimed.get() is group
        assert warm.drop_kept(group)

    asyncio.run(scenario())
