"""The leases of agents in this process, without a service. `tests/agents` tests them over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trials.groups.pools.asking import asking_for
from tuner.domain.segments import CheckpointInfo, Outcome, Report, Verdict
from tuner.errors import Conflict, DriverSilent, Gone, NotFound
from tuner.hosts.agents import groups as module
from tuner.hosts.agents import leases
from tuner.hosts.agents.groups import AgentGroups
from tuner.hosts.refusals import raised
from tuner.store import StoreUnavailable
from tuner.trials.messages.launch import Launch, Resend
from tuner.trials.messages.profiling import ProfileRequest

ASK = {"agent": "far", "request": "r1", "call": "c1", "lease_s": 60.0, "late_checkpoints": False, "wait_s": 20.0}


class Inbox:
    """Takes what the groups tell a driver, and answers each report with this verdict."""

    def __init__(self, verdict: Verdict | Resend | Exception | None = None) -> None:
        self.verdict = verdict or Verdict()
        self.said: list[str] = []
        self.reports: list[Report] = []

    def waiting(self, segment_id: str, reason: str) -> None:
        self.said.append("waits")

    def started(self, segment_id: str, *_: Any) -> None:
        self.said.append("started")

    def unusable(self, *_: Any) -> None:
        return None

    async def report(self, segment: Any, start_iteration: int, reports: list[Report]) -> Verdict | Resend:
        if isinstance(self.verdict, Exception):
            raise self.verdict
        self.reports += reports
        return self.verdict

    async def checkpoint(self, segment: Any, info: CheckpointInfo) -> None: ...

    async def settled(self, segment: Any) -> None:
        self.said.append("settled")


class Logs:
    """Notes which logs are completed, and at which offset."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, list[int]]] = []

    def end(self, segment_id: str, files: Any, gone: Any, marks: Any) -> None:
        self.ended.append((segment_id, [mark.start for mark in marks]))


@pytest.fixture
async def agents() -> AsyncIterator[AgentGroups]:
    logs: Any = Logs()

    async def take_logs(segment_id: str, chunks: Any) -> None: ...

    groups = AgentGroups(lambda experiment, room: None, logs=logs, take_logs=take_logs)
    yield groups
    await groups.close()


def launch_of(path: Path, **more: Any) -> Launch:
    made = asking_for(1, path)
    return replace(made, code=replace(made.code, entrypoint=""), **more)


async def lent(agents: AgentGroups, launch: Launch, inbox: Any) -> tuple[asyncio.Task[Outcome], dict[str, Any]]:
    """Return the run of a segment, and what the agent gets that it is lent to."""
    running = asyncio.create_task(agents.run(launch, inbox=inbox))
    return running, (await asked(agents, "ask", **ASK))["assignment"]


async def asked(agents: AgentGroups, question: str, **arguments: Any) -> Any:
    return raised(await asyncio.wait_for(agents.answer(question, "exp", arguments), 20))


async def test_an_agent_learns_why_its_trial_was_killed(agents: AgentGroups, tmp_path: Path) -> None:
    running, got = await lent(agents, launch_of(tmp_path), Inbox())
    assert (agents.stats(), agents.training()) == ({"running": 1, "waiting": 0, "idle": 0}, ["seg"])
    assert await agents.stacks("seg") == {"0": "this trial runs on the agent far, which shows no stacks"}
    with pytest.raises(Conflict, match="this trial runs on the agent far"):
        await agents.profile("seg", 0, ProfileRequest(duration_s=1.0))
    assert await agents.profile("another", 0, ProfileRequest(duration_s=1.0)) is None
    await agents.kill("seg", "the search has ended")
    outcome = await asyncio.wait_for(running, 20)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.cause, outcome.failure.message) == (
        "system",
        "killed",
        "the search has ended",
    )
    with pytest.raises(Gone, match="has ended: the search has ended"):
        await asked(agents, "heartbeat", lease=got["lease"])
    assert agents.stats() == {"running": 0, "waiting": 0, "idle": 0}
    assert agents.agents() == []


async def test_a_segment_that_ends_before_an_agent_asks_is_lent_to_nobody(agents: AgentGroups, tmp_path: Path) -> None:
    running = asyncio.create_task(agents.run(launch_of(tmp_path), inbox=Inbox()))
    await asyncio.sleep(0)
    assert [one.segment_id for one in agents.waiting()] == ["seg"]
    await agents.interrupt("seg", "pause")
    assert (await asyncio.wait_for(running, 20)).kind == "left"
    assert agents.waiting() == []
    assert await asked(agents, "ask", **{**ASK, "wait_s": 0.0}) == {"assignment": None}


@pytest.mark.parametrize(
    ("error", "raises", "says"),
    [
        (Resend(after=0), Conflict, "expected the report of iteration 6"),
        (StoreUnavailable("the disk is full"), DriverSilent, "the disk is full"),
        (RuntimeError("the experiment has ended"), Gone, "has ended: the experiment has ended"),
        (NotFound("no such trial"), NotFound, "no such trial"),
    ],
)
async def test_a_report_that_is_not_stored_may_be_sent_again(
    error: Any, raises: type[Exception], says: str, agents: AgentGroups, tmp_path: Path
) -> None:
    inbox = Inbox(error)
    _, got = await lent(agents, launch_of(tmp_path, start_iteration=5), inbox)
    report = {"lease": got["lease"], "reports": [{"iteration": 6, "metrics": {"loss": 1.0}}]}
    with pytest.raises(raises, match=says):
        await asked(agents, "report", **report)
    inbox.verdict, inbox.reports = Verdict(), []
    assert (await asked(agents, "report", **report))["verdict"] == "continue"
    assert len(inbox.reports) == 1


async def test_iterations_go_on_where_the_last_segment_ended(agents: AgentGroups, tmp_path: Path) -> None:
    inbox = Inbox(Verdict(next_milestone=3))
    running, got = await lent(agents, launch_of(tmp_path, start_iteration=5, first_milestone=2), inbox)
    assert (got["iteration"], got["next_milestone"]) == (5, 7)
    checkpoint = {"uri": "s3://bucket/ckp", "ready": False}
    first = {"iteration": 6, "metrics": {"loss": 1.0}, "waits": False}
    second = {"iteration": 7, "metrics": {"loss": None}, "checkpoint": checkpoint, "offer": 6}
    for _ in range(2):  # the answer to the first request was lost
        answer = await asked(agents, "report", lease=got["lease"], reports=[first, second])
        assert (answer["verdict"], answer["next_milestone"]) == ("continue", 8)
    assert [(one.report_no, one.waits, one.offer) for one in inbox.reports] == [(1, False, None), (2, True, 1)]
    info = inbox.reports[1].checkpoint
    assert info is not None
    assert (info.uri, info.step, info.ready) == ("s3://bucket/ckp", 7, False)
    with pytest.raises(Conflict, match="expected iteration 8, because the newest stored report is that of iteration 7"):
        await asked(agents, "report", lease=got["lease"], reports=[{**first, "iteration": 9}])
    await asked(agents, "log", lease=got["lease"], text="out of memory\n")
    failure = {"message": "out of memory", "kind": "user", "cause": "oom"}
    assert await asked(agents, "fail", lease=got["lease"], **failure) == {"ended": True}
    outcome = await asyncio.wait_for(running, 20)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.cause, outcome.failure.rank) == ("user", "oom", 0)
    assert inbox.said == ["waits", "started", "settled"]
    assert agents._logs.ended == [("seg", [14])], "its log is complete"  # type: ignore[union-attr]
    assert await asked(agents, "fail", lease=got["lease"], **failure) == {"ended": True}, "sent again"


async def test_a_driver_that_ends_keeps_no_agent_waiting(agents: AgentGroups, tmp_path: Path) -> None:
    waiting = asyncio.create_task(agents.answer("ask", "other", {**ASK, "wait_s": 3600.0}))
    running, got = await lent(agents, launch_of(tmp_path), Inbox())
    await asyncio.wait_for(agents.close(), 20)
    assert await asyncio.wait_for(waiting, 20) == {"assignment": None}
    assert (await running).kind == "failed"
    with pytest.raises(Gone, match="the driver is shutting down"):
        await asked(agents, "heartbeat", lease=got["lease"])
    late = await asyncio.wait_for(agents.run(launch_of(tmp_path, segment_id="late"), inbox=Inbox()), 20)
    assert late.kind == "left", "nobody would end it"


async def test_a_silent_agent_loses_its_lease_unless_it_cannot_reach_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looks, reachable = [0.0], [0], [True]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0])
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(leases, "time", clock)
    monkeypatch.setattr(module, "LOOK_S", 0.0)

    def attended() -> bool:
        looks[0] += 1
        return reachable[0]

    async def ended_at(seconds: float, attends: bool = True) -> bool:
        """Return whether the segment has ended when the host has looked at its leases at this time."""
        now[0], looks[0], reachable[0] = seconds, 0, attends
        while looks[0] < 3:
            await asyncio.sleep(0)
        return running.done()

    agents = AgentGroups(lambda experiment, room: None, attended)
    running, _ = await lent(agents, launch_of(tmp_path), Inbox())
    assert not await ended_at(59.0)
    assert not await ended_at(100.0, attends=False)
    assert not await ended_at(159.0), "it has its whole time again to come back"
    assert await ended_at(161.0)
    failure = (await running).failure
    assert failure is not None
    assert (failure.kind, failure.cause, failure.node) == ("system", "agent_lost", "far")
    agents.forget("exp")
    async with asyncio.timeout(20):
        now[0] += module.REMEMBER_S + 1
        while agents._queues:  # nothing is kept of an experiment that has ended
            await asyncio.sleep(0)
