"""Profiles of ranks that answer late, or that nobody waits for any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tuner.domain.experiment import Limits
from tuner.errors import Conflict
from tuner.trials.groups.segments import segment_run
from tuner.trials.groups.segments.manager import GroupManager
from tuner.trials.groups.segments.segment_run import SegmentRun
from tuner.trials.messages.profiling import ProfileRequest


class FakeRank:
    """A rank that notes the calls. A question in `mute` is not answered."""

    def __init__(self, *mute: str, taken: dict[str, Any] | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._mute = mute
        self._taken = taken

    def __getattr__(self, question: str) -> Any:
        def remote(*arguments: Any) -> asyncio.Future[Any]:
            self.calls.append((question, *arguments))
            found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            if question not in self._mute:
                found.set_result(self._taken if question == "take_profile" else None)
            return found

        return SimpleNamespace(remote=remote)

    def called(self, question: str) -> list[list[Any]]:
        return [arguments for name, *arguments in self.calls if name == question]


def profiled(rank: FakeRank, use: Callable[[SegmentRun], Any]) -> Any:
    """Return what a coroutine returns that profiles the only rank of a segment."""

    async def run() -> Any:
        ending = asyncio.get_running_loop().create_future()
        group = cast(Any, SimpleNamespace(actors=[rank]))
        launch = cast(Any, SimpleNamespace(segment_id="seg"))
        return await use(SegmentRun(launch, ending, group, training=True))

    return asyncio.run(run())


REQUEST = ProfileRequest(duration_s=0.1)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_run, "ANSWER_S", 0.05)
    monkeypatch.setattr(segment_run, "PROFILE_S", 0.2)


def test_a_profile_that_begins_too_late_is_stopped() -> None:
    rank = FakeRank("start_profile", "stop_profile")
    with pytest.raises(Conflict, match="rank 0 does not answer: the process is stopped, or a C call holds the GIL"):
        profiled(rank, lambda segment: segment.profile(0, REQUEST))
    [[segment_id, profile_id, request]] = rank.called("start_profile")
    assert (segment_id, request) == ("seg", REQUEST)
    assert rank.called("stop_profile") == [[profile_id]]


@pytest.mark.parametrize("mute", [(), ("take_profile",)])
def test_a_profile_that_is_summed_up_too_slowly_says_so(mute: tuple[str, ...]) -> None:
    rank = FakeRank(*mute)
    with pytest.raises(Conflict, match="rank 0 is still summarizing the profile"):
        profiled(rank, lambda segment: segment.profile(0, REQUEST))


def test_a_profile_that_is_cancelled_is_stopped() -> None:
    rank = FakeRank()

    async def cancelled(segment: SegmentRun) -> None:
        making = asyncio.create_task(segment.profile(0, ProfileRequest(duration_s=60)))
        await asyncio.sleep(0.1)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        assert segment.profiling == {}

    profiled(rank, cancelled)
    [[_, profile_id, _]] = rank.called("start_profile")
    assert rank.called("stop_profile") == [[profile_id]]


def test_a_profile_that_is_taken_is_not_stopped() -> None:
    rank = FakeRank(taken={"kind": "cpu"})
    assert profiled(rank, lambda segment: segment.profile(0, REQUEST)) == {"kind": "cpu"}
    assert rank.called("stop_profile") == []


def test_a_second_request_says_what_the_first_one_does() -> None:
    async def twice(segment: SegmentRun) -> None:
        segment.profiling[0] = time.monotonic() + 10
        with pytest.raises(Conflict, match="rank 0 is already being profiled, for 10 s more"):
            await segment.profile(0, REQUEST)
        segment.profiling[0] = time.monotonic()
        with pytest.raises(Conflict, match="rank 0 is still summarizing an earlier profile"):
            await segment.profile(0, REQUEST)

    profiled(FakeRank(), twice)


async def test_a_cancel_takes_the_time_for_a_last_checkpoint_from_a_stop() -> None:
    """The GPU hours of a search are used up while a stopped trial saves its last checkpoint."""
    manager, saving = GroupManager(pool=None), asyncio.Event()  # type: ignore[arg-type]
    ended: list[str] = []

    async def saves() -> bool:
        saving.set()
        return True

    launch = SimpleNamespace(limits=SimpleNamespace(stop_grace_s=0.0))
    run: Any = SimpleNamespace(launch=launch, group=True, training=False, grace=None, may_save=True, saving_s=600.0)
    run.saves, run.end = saves, lambda how, reason: ended.append(how)
    manager._running["seg"] = run
    await manager.interrupt("seg", "stop")
    await asyncio.wait_for(saving.wait(), 20)
    assert ended == []
    await manager.interrupt("seg", "cancel")
    try:
        await asyncio.wait_for(run.grace, 10)
    finally:
        run.grace.cancel()
    assert ended == ["left"]


@pytest.mark.parametrize(("hang_timeout_s", "saving_s"), [(None, 600.0), (60.0, 600.0), (7200.0, 7200.0)])
def test_a_checkpoint_may_take_as_long_as_a_report_if_that_is_longer(
    hang_timeout_s: float | None, saving_s: float
) -> None:
    launch = cast(Any, SimpleNamespace(limits=Limits(hang_timeout_s=hang_timeout_s)))
    assert SegmentRun(launch, cast(Any, None)).saving_s == saving_s
