"""Turn the messages of ranks and agents into events for the loop of an experiment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.driver.bench import Bench
from tuner.domain.segments import CheckpointInfo, SegmentRef
from tuner.errors import CheckpointUnreachable, LostLease
from tuner.hosts.driven import HostGroups, RankInbound


async def test_who_waits_for_the_end_of_a_segment_learns_that_its_loop_has_stopped() -> None:
    """An agent has completed a trial, and another driver has taken the experiment over before that is committed."""
    bench, loop = Bench(), SimpleNamespace(stopped=None)
    bench.started(0)
    untold: Any = None
    given: Any = loop
    inbound = RankInbound(bench.core, given, {}, untold, untold, lambda *_: None)
    waits = asyncio.create_task(inbound.settled(SegmentRef(0, 1)))
    await asyncio.sleep(0)
    assert not waits.done()
    loop.stopped = LostLease("another driver has claimed it")
    with pytest.raises(RuntimeError, match="another driver has claimed it"):
        await asyncio.wait_for(waits, 10)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("AWS Error SLOW_DOWN during DeleteObjects operation", CheckpointUnreachable),
        ("AWS Error ACCESS_DENIED", OSError),
    ],
)
async def test_a_storage_that_does_not_delete_now_is_told_from_one_that_refuses(
    said: str, kind: type[Exception]
) -> None:
    """The loop repeats the deletion only if that can help."""

    async def delete(info: CheckpointInfo) -> None:
        raise OSError(said)

    given: Any = SimpleNamespace(
        settings=SimpleNamespace(storage="s3://bucket"),
        executors=SimpleNamespace(of=lambda spec: SimpleNamespace(delete_checkpoint=delete)),
    )
    spec = SimpleNamespace(executor="local", checkpoint=SimpleNamespace(storage=None))
    record: Any = SimpleNamespace(spec=spec, public_id="exp_1")
    untold: Any = None
    groups = HostGroups(given, record, untold, untold, untold, untold)
    with pytest.raises(kind, match=said) as raised:
        await groups.delete_checkpoint(CheckpointInfo(id="ckp_1", uri="s3://bucket/exp_1/trial_00000/a", step=1))
    assert raised.type is kind
