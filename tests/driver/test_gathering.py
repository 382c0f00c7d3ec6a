"""Reports that nobody waits for share commits if many arrive, and nothing else waits."""

from __future__ import annotations

import asyncio

import pytest

from tests.driver.test_loop import Memory, driven
from tuner.domain import events as e
from tuner.domain.segments import Outcome, SegmentRef
from tuner.driver import gathering as module
from tuner.driver.gathering import FEW, GATHER_S, MANY, Gathering


def test_a_few_events_are_committed_at_once_and_many_are_gathered() -> None:
    gathering = Gathering()
    now = 100.0
    for _ in range(MANY):  # a tenth of the rate
        gathering.committing(1, now)
        assert gathering.pause_s(now) == 0
        now += 10 / MANY
    for _ in range(2 * MANY):  # twice the rate
        gathering.committing(1, now)
        now += 0.5 / MANY
    assert gathering.pause_s(now) == pytest.approx(GATHER_S - 0.5 / MANY)
    assert gathering.pause_s(now + GATHER_S) == 0
    gathering.paused(FEW)
    assert gathering.pause_s(now) > 0
    gathering.paused(FEW - 1)
    assert gathering.pause_s(now) == 0, "the pause brought next to nothing"


class OneOfMany(Memory):
    """A segment that makes five reports between milestones, in a host that gets many reports, and then reaches a milestone."""

    async def run(self, segment: SegmentRef, milestone: int | None) -> Outcome:
        await self.loop.put(e.SegmentStarted(time=1.0, trial=segment.trial, segment=segment.ordinal))
        self.loop._gathering._many = True
        for number in range(1, 6):
            self.loop.put(self.report(segment, number, waits=False))
        for _ in range(100):
            await asyncio.sleep(0)
        self.early = self.committed
        verdict = await self.loop.report([self.report(segment, 6, waits=True)])
        assert verdict is not None
        return Outcome(kind="returned")

    @staticmethod
    def report(segment: SegmentRef, number: int, waits: bool) -> e.Reported:
        return e.Reported(time=1.0, trial=segment.trial, segment=segment.ordinal, report_no=number, iteration=number,
                          metrics={"loss": 1.0}, waits=waits)  # fmt: skip


async def test_reports_that_nobody_waits_for_are_gathered_and_a_milestone_ends_the_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "GATHER_S", 60.0)
    memory = OneOfMany()
    await asyncio.wait_for(driven(memory, num_samples=1).run(epoch=1, slots=None), 30)
    assert memory.early == set(), "committed before there were others"
    [batch] = [batch for batch in memory.batches if any(isinstance(entry, e.Reported) for _, entry in batch.log)]
    assert sum(isinstance(entry, e.Reported) for _, entry in batch.log) == 6
