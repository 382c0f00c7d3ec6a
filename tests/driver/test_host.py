"""The host without Ray: what it keeps of an experiment, and for how long."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from tests.store.examples import a_spec
from tuner.domain.events import Reported, SegmentStarted
from tuner.domain.states import ExperimentState
from tuner.driver import host as module
from tuner.driver.host import Driven, Host
from tuner.settings import Settings
from tuner.trials.launch import ReportMsg, Resend


async def test_an_experiment_that_has_ended_is_let_go_of_at_once(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven: list[weakref.ref[Driven]] = []
    trials: list[Any] = []

    async def run(self: Driven, number: int, ordinal: int, milestone: int | None) -> tuple[str, None, str]:
        if not driven:
            driven.append(weakref.ref(self))
        trials.append(number)
        await self.loop.put(SegmentStarted(time=time.time(), trial=number, segment=ordinal))
        return "returned", None, ""

    monkeypatch.setattr(module, "capacity", lambda scaling: 2)
    monkeypatch.setattr(Driven, "run", run)
    host = Host(Settings(home=tmp_path, database_url=sqlite_url), "host")
    made = host.store.create_experiment(a_spec(num_samples=3, search={"type": "random"}, scheduler={"type": "fifo"}))
    gc.collect()
    gc.disable()
    try:
        host._begin(made)
        assert await asyncio.wait_for(asyncio.shield(host.tasks[made.id]), 30) is ExperimentState.COMPLETED
        await asyncio.sleep(0)
        assert sorted(trials) == [0, 1, 2]
        assert driven[0]() is None
    finally:
        gc.enable()
        host.store.close()


async def test_reports_that_are_missing_are_asked_for_again_and_times_are_the_hosts(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = []

    async def run(self: Driven, number: int, ordinal: int, milestone: int | None) -> tuple[str, None, str]:
        await self.loop.put(SegmentStarted(time=time.time(), trial=number, segment=ordinal))
        for numbers, age in (
            ([2], 0.0),
            ([1, 2], 0.0),
            ([1, 2, 3], 3600.0),
            ([5], 0.0),
            ([3, 4, 6], 0.0),
            ([4], -3600.0),
        ):
            messages = [ReportMsg(report_no=n, metrics={"accuracy": n / 100}, time=9e9, age=age) for n in numbers]
            answers.append(await self.report(number, ordinal, 0, messages))
        return "returned", None, ""

    monkeypatch.setattr(module, "capacity", lambda scaling: 1)
    monkeypatch.setattr(Driven, "run", run)
    host = Host(Settings(home=tmp_path, database_url=sqlite_url), "host")
    made = host.store.create_experiment(a_spec(num_samples=1, search={"type": "random"}, scheduler={"type": "fifo"}))
    try:
        host._begin(made)
        assert await asyncio.wait_for(asyncio.shield(host.tasks[made.id]), 30) is ExperimentState.COMPLETED
        reports = [entry for _, entry in host.store.load(made.id) if isinstance(entry, Reported)]
    finally:
        host.store.close()
    assert answers == [Resend(after=0), None, None, Resend(after=3), Resend(after=3), None]
    assert [report.report_no for report in reports] == [1, 2, 3, 4]
    times = [report.time for report in reports]
    assert times == sorted(times), "an hour of age does not put a report before the one before it"
    assert times[-1] <= time.time(), "nor does a rank's clock put one ahead of the host's"
