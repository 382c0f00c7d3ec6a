"""The rounds in which ranks agree on the report at which they all leave, with sessions in this process for ranks."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from tests.trials.training.test_session import make
from tuner.domain.experiment import Limits
from tuner.domain.segments import Verdict
from tuner.trials.groups.segments.interrupts import Interrupts
from tuner.trials.groups.segments.manager import GroupManager
from tuner.trials.groups.segments.segment_run import SegmentRun
from tuner.trials.messages.launch import CodeRef, Launch
from tuner.trials.messages.protocol import Progress
from tuner.trials.training.session import LeaveTrial

UNAVAILABLE = ray.exceptions.ActorUnavailableError("a connection broke", None)


@pytest.fixture(autouse=True)
def _without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask no Ray on which node this is: it would be started for that."""
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "here"))


class Actor:
    """A rank's session behind the calls of an actor, and what they are to fail of; None: they never answer."""

    def __init__(self, *troubles: Exception | None) -> None:
        self.session, self.memory, _ = make(lambda n: Verdict(action="pause"), first_milestone=None)
        self.troubles = {"hold": list(troubles), "release": []}
        self.released: list[int | None] = []
        self.hold = SimpleNamespace(remote=self._hold)
        self.release = SimpleNamespace(remote=self._release)
        self.progress = SimpleNamespace(remote=self._progress)

    async def _hold(self, segment_id: str, interrupt: str) -> int:
        count = self.session.hold(interrupt)  # takes effect even if the answer is lost
        await self._trouble("hold")
        return count

    async def _release(self, segment_id: str, interrupt: str, milestone: int | None) -> None:
        await self._trouble("release")
        self.released.append(milestone)
        self.session.release(interrupt, milestone)

    async def _progress(self) -> Progress:
        return Progress(reports=self.session.count, idle_s=0.0, waiting=False)

    async def _trouble(self, method: str) -> None:
        await asyncio.sleep(0)
        if self.troubles[method]:
            trouble = self.troubles[method].pop(0)
            if trouble is None:
                await asyncio.Event().wait()
            else:
                raise trouble

    def train(self, reports: int) -> None:
        """Report until a verdict or to the end, beside the loop."""
        try:
            for _ in range(reports):
                self.session.report({"a": 1})
        except LeaveTrial:
            pass


def running_on(*actors: Actor, limits: Limits | None = None) -> SegmentRun:
    launch = Launch(
        experiment_id="e",
        trial_id="t",
        segment_id="seg",
        trial_number=0,
        code=CodeRef(hash="h"),
        storage="s",
        log_dir="l",
        limits=limits or Limits(),
    )
    group: Any = SimpleNamespace(actors=list(actors))
    return SegmentRun(launch, asyncio.get_running_loop().create_future(), group=group, training=True)


async def test_a_rank_that_cannot_be_reached_for_a_moment_lets_nobody_slip_past() -> None:
    zero, one = Actor(), Actor(UNAVAILABLE)
    one.troubles["release"] = [UNAVAILABLE]
    zero.train(5)
    await asyncio.wait_for(Interrupts().interrupt(running_on(zero, one)), 30)
    assert (zero.released, one.released) == ([None, 6], [None, 6]), "released without a milestone, then with one"
    for actor in (zero, one):
        actor.train(100)
        assert actor.session.count == 6


async def test_ranks_are_released_when_another_one_has_died() -> None:
    zero, one = Actor(), Actor(ray.exceptions.ActorDiedError())
    interrupts = Interrupts()
    await asyncio.wait_for(interrupts.interrupt(running_on(zero, one)), 30)
    await interrupts.settle()
    assert zero.released == [None]
    zero.train(3)
    assert [m.waits for m in zero.memory.sent] == [False] * 3


async def test_an_interrupt_that_is_given_up_releases_all_ranks_even_one_that_has_not_answered() -> None:
    zero, one = Actor(), Actor(None)
    interrupts = Interrupts()
    agreeing = asyncio.create_task(interrupts.interrupt(running_on(zero, one)))
    while not (zero.session._holds and one.session._holds):
        await asyncio.sleep(0)
    thread = threading.Thread(target=zero.train, args=(3,))
    thread.start()
    agreeing.cancel()
    await asyncio.gather(agreeing, return_exceptions=True)
    await interrupts.settle()
    await asyncio.to_thread(thread.join, 10)
    assert (zero.released, one.released) == ([None], [None])
    assert zero.session.count == 3


@pytest.mark.parametrize(("action", "ends"), [("pause", False), ("stop", True), ("cancel", True)])
async def test_a_trial_that_is_to_pause_has_all_the_time_until_its_next_report(action: str, ends: bool) -> None:
    """It would lose what it has trained since its last checkpoint."""
    pool: Any = None
    manager, run = GroupManager(pool), running_on(Actor(), limits=Limits(stop_grace_s=0.0))
    manager._running["seg"] = run
    await asyncio.wait_for(manager.interrupt("seg", action), 30)
    for _ in range(50):
        await asyncio.sleep(0)
    assert run.ending.done() is ends
