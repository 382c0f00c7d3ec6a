"""Turn the messages of ranks and agents into events for the loop of an experiment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.driver.bench import Bench
from tuner.domain.segments import SegmentRef
from tuner.errors import LostLease
from tuner.hosts.driven import RankInbound


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
