"""A small driver host for tests: a GroupManager, verdicts by a table, and a memory. It is a real async Ray actor, or local."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import ray

from tuner.domain.events import CheckpointInfo
from tuner.domain.segments import Outcome, Report, Verdict
from tuner.trials.groups.pools.local_pool import LocalPool
from tuner.trials.groups.pools.local_ranks import RankServer
from tuner.trials.groups.pools.pool import Pool
from tuner.trials.groups.segments.manager import GroupManager
from tuner.trials.messages.call_lines import CallLines
from tuner.trials.messages.launch import Launch
from tuner.trials.messages.report_socket import Address, ReportServer


class _Inbox:
    def __init__(self) -> None:
        self.waits: list[str] = []
        self.waiting_now: dict[str, asyncio.Event] = {}
        self.starts: list[dict[str, Any]] = []

    def waiting(self, segment_id: str, reason: str) -> None:
        self.waits.append(reason)
        self.waiting_now.setdefault(segment_id, asyncio.Event()).set()

    def started(
        self, segment_id: str, placement: Mapping[str, Any], startup_s: float, warm: bool, held_s: float
    ) -> None:
        self.starts.append({"segment": segment_id, **placement, "startup_s": startup_s, "warm": warm, "held_s": held_s})


class AnyHost:
    def __init__(self, manager: GroupManager) -> None:
        self.manager = manager
        self.inbox = _Inbox()
        self.reports: dict[str, list[Report]] = {}
        self.checkpoints: dict[str, list[CheckpointInfo]] = {}
        self.came: dict[str, list[tuple[str, int]]] = {}  # what came in which order, by report_no or step
        self.verdicts: dict[str, dict[int, Verdict]] = {}
        self.commands: dict[str, str] = {}
        self.delays: dict[str, float] = {}
        self.commits: dict[str, float] = {}
        self.reported: dict[str, asyncio.Event] = {}

    async def report(self, segment_id: str, reports: list[Report]) -> Verdict | None:
        self.reports.setdefault(segment_id, []).extend(reports)
        self.came.setdefault(segment_id, []).extend(("report", report.report_no) for report in reports)
        self._event(segment_id).set()
        last = reports[-1]
        if not last.waits:
            return None
        await asyncio.sleep(self.delays.pop(segment_id, 0.0))
        if segment_id in self.commands:
            return Verdict(action=self.commands[segment_id], save_checkpoint=True)
        table = self.verdicts.get(segment_id, {})
        return table.get(last.report_no, Verdict(next_milestone=last.report_no + 1))

    async def checkpoint(self, segment_id: str, info: CheckpointInfo) -> None:
        self.came.setdefault(segment_id, []).append(("checkpoint", info.step))
        await asyncio.sleep(self.commits.get(segment_id, 0.0))
        self.checkpoints.setdefault(segment_id, []).append(info)

    async def run(self, launch: Launch, verdicts: dict[int, Verdict] | None = None) -> Outcome:
        self.verdicts[launch.segment_id] = verdicts or {}
        return await self.manager.run(launch, inbox=self.inbox)

    async def interrupt(self, segment_id: str, action: str) -> None:
        self.commands[segment_id] = action
        await self.manager.interrupt(segment_id, action)

    async def cut(self, segment_id: str, rank: int, why: str) -> None:
        """Let the line to the node of a rank be cut."""
        group = self.manager._running[segment_id].group
        assert group is not None
        self.manager.cut(group.workers[rank].token, why, True)

    async def call(self, name: str, *args: Any) -> Any:
        if name == "pid":
            return os.getpid()
        result = getattr(self.manager, name)(*args)
        return await result if asyncio.iscoroutine(result) else result

    def _event(self, segment_id: str) -> asyncio.Event:
        return self.reported.setdefault(segment_id, asyncio.Event())

    async def descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd"))

    async def delay(self, segment_id: str, seconds: float) -> None:
        """Let the segment's first verdict take this long."""
        self.delays[segment_id] = seconds

    async def delay_commits(self, segment_id: str, seconds: float) -> None:
        """Let each checkpoint of the segment take this long to be committed."""
        self.commits[segment_id] = seconds

    async def hold(self, segment_id: str, other: str) -> list[int | None]:
        """Return what the first segment's ranks answer to an interrupt that is meant for another segment."""
        running = self.manager._running[segment_id]
        assert running.group is not None
        actors = running.group.actors
        counts = await asyncio.gather(*(actor.hold.remote(other, "i") for actor in actors))
        await asyncio.gather(*(actor.release.remote(other, "i", 1) for actor in actors))
        return counts

    async def first_report(self, segment_id: str) -> None:
        await self._event(segment_id).wait()

    async def until_waiting(self, segment_id: str) -> None:
        await self.inbox.waiting_now.setdefault(segment_id, asyncio.Event()).wait()

    async def seen(self, segment_id: str) -> list[Report]:
        return self.reports.get(segment_id, [])

    async def saved(self, segment_id: str) -> list[CheckpointInfo]:
        return self.checkpoints.get(segment_id, [])

    async def order(self, segment_id: str) -> list[tuple[str, int]]:
        return self.came.get(segment_id, [])

    async def events(self) -> tuple[list[str], list[dict[str, Any]]]:
        return self.inbox.waits, self.inbox.starts


@ray.remote(num_cpus=0)
class Host(AnyHost):
    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(GroupManager(Pool(ray.get_runtime_context().current_actor, **(options or {}))))
        self.lines = CallLines()

    async def listen(self) -> None:
        """Listen for reports and for the lines of ranks, as the driver host does. Call this before the first segment."""
        server = ReportServer(self.report, lines=self.lines)
        address = await server.open("127.0.0.1")
        pool = Pool(ray.get_runtime_context().current_actor, report_address=address, lines=self.lines)
        self.manager = GroupManager(pool)

    async def break_lines(self, segment_id: str) -> int:
        """Break the lines to a segment's ranks. Return how many calls wait for an answer over them."""
        group = self.manager._running[segment_id].group
        assert group is not None
        waiting = 0
        for handle in group.actors:
            waiting += len(handle._unanswered)
            handle._line.cut()
        return waiting


class LocalHost(AnyHost):
    """A host whose trials are processes of this machine. It is made on its event loop."""

    def __init__(self, cpus: float, address: Address, server: RankServer, **options: Any) -> None:
        self.pool = LocalPool(cpus, address, server, **options)
        super().__init__(GroupManager(self.pool))

    @classmethod
    async def begin(cls, cpus: float, **options: Any) -> LocalHost:
        server = ReportServer(
            lambda *args: host.report(*args), None, lambda question, args: getattr(host, question)(*args)
        )
        host = cls(cpus, await server.open("127.0.0.1"), RankServer(1), **options)
        host.server = server
        return host

    server: ReportServer

    async def end(self) -> None:
        await self.manager.close()
        await self.server.close()
