"""Lend segments to agents, and answer their requests."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from tuner.domain.logs import CHUNK_BYTES, LogChunk
from tuner.domain.segments import CheckpointInfo, Failure, Outcome, Report, Verdict
from tuner.errors import Conflict, DriverSilent, Gone, NotFound, Retryable, SpecError, StoreError, TunerError
from tuner.hosts.agents.leases import EndedLease, Lease, Queue
from tuner.hosts.agents.messages import (
    assignment,
    checkpoint_of,
    failure_of,
    last_report,
    next_iteration,
    verdict_under,
)
from tuner.hosts.executor import SegmentGroups, SegmentInbox
from tuner.hosts.refusals import REFUSALS, refusal
from tuner.trials.groups.pools.admission import Entitlement, HeldGroup, WaitingGroup, ordinary
from tuner.trials.groups.segments.manager import Logs
from tuner.trials.messages.launch import Launch, Resend
from tuner.trials.messages.profiling import ProfileRequest

LOOK_S = 0.5
"""Seconds between two checks for expired leases."""
FEWER_AFTER_S = 120.0
"""Seconds for which a decrease in the number of agents must last before fewer trials may run at once."""
REMEMBER_S = 600.0
"""Seconds for which an ended experiment's leases are remembered, to answer repeated requests."""
_ENDED = 2000  # the maximum number of ended leases that are remembered for each experiment
_ANSWERS = 64  # the maximum number of answers to reports that are remembered for each lease
_END_S = 0.002

_URGENT = ("stop", "cancel")
_ENDS = ("complete", "fail", "release")
_BUNDLE = {"agent": 1.0}  # the resources that the API shows for a segment, which holds none of the cluster's
_WAITS = "waits for an agent: run `tuner agent`, or a program of your own, on any machine"


class AgentGroups(SegmentGroups):
    """Lends segments to agents. Use it in the event loop of a host.

    Args:
        room_for: called with an experiment and the number of trials that its agents can train at once, whenever this number
        changes.
        attended: a function that returns whether agents can reach this host. While they cannot, no lease expires.
        logs: completes the stored log of a segment that has ended.
        take_logs: stores the output that agents send.
        entitlement: a function that returns an experiment's priority, weight and project.
    """

    def __init__(
        self,
        room_for: Callable[[str, int], None],
        attended: Callable[[], bool] = lambda: True,
        logs: Logs | None = None,
        take_logs: Callable[[str, Sequence[LogChunk]], Awaitable[None]] | None = None,
        entitlement: Callable[[str], Entitlement] = ordinary,
    ) -> None:
        self._room_for, self._attended, self._logs, self._take_logs = room_for, attended, logs, take_logs
        self._entitlement = entitlement
        self._queues: dict[str, Queue] = {}
        self._segments: dict[str, Lease] = {}
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    # -- segments --------------------------------------------------------------------------------------------------------

    async def run(self, launch: Launch, *, inbox: SegmentInbox) -> Outcome:
        """Offer a segment to the agents that ask for one, wait until the segment has ended, and return its outcome."""
        lease = Lease(launch, inbox, launch.storage, asyncio.get_running_loop().create_future())
        queue = self._queue(launch.experiment_id)
        queue.over_since = None
        self._segments[launch.segment_id] = lease
        queue.ready.append(lease)
        self._hand_out(queue)
        if not lease.name:
            inbox.waiting(launch.segment_id, _WAITS)
        self._room_for(launch.experiment_id, queue.room)
        if self._closed:
            lease.finish(Outcome(kind="left"), "the driver is shutting down")
        try:
            return await lease.end
        finally:
            self._segments.pop(launch.segment_id, None)
            self._forget_lease(queue, lease)

    def _forget_lease(self, queue: Queue, lease: Lease) -> None:
        if lease.grace is not None:
            lease.grace.cancel()
        if lease in queue.ready:
            queue.ready.remove(lease)
        if lease.name:
            queue.leases.pop(lease.name, None)
            if lease.name not in queue.ended:
                self._remember(queue, lease, "")
        if self._logs is not None:
            mark = [LogChunk.of(0, lease.logged, b"", time.time())] if lease.logged else []
            self._logs.end(lease.launch.segment_id, [], None, mark)

    def _remember(self, queue: Queue, lease: Lease, how: str) -> None:
        queue.ended[lease.name] = EndedLease(how, lease.over or "it has ended", lease.answers)
        while len(queue.ended) > _ENDED:
            queue.ended.popitem(last=False)

    async def interrupt(self, segment_id: str, action: str) -> None:
        """End a segment that waits for an agent. If an agent has the segment, tell the agent to report soon.

        The agent learns of `action` from its next heartbeat, and gets the verdict when it reports. After "stop" and "cancel",
        it must report within `limits.stop_grace_s`. After "stop", it may then take its time to save a last checkpoint.
        """
        if (lease := self._segments.get(segment_id)) is None:
            return
        if not lease.name or action == "kill":
            lease.finish(Outcome(kind="left"), "the trial was killed" if action == "kill" else f"interrupted: {action}")
            return
        lease.wanted = "stop" if action in _URGENT else action
        lease.may_save = lease.may_save and action != "cancel"
        if action in _URGENT and lease.grace is None:
            grace = lease.launch.limits.stop_grace_s
            lease.grace = asyncio.get_running_loop().call_later(grace, self._end_grace, lease)

    @staticmethod
    def _end_grace(lease: Lease) -> None:
        """End the lease of a trial that was stopped, unless its agent has reported and is saving a last checkpoint."""
        lease.grace = None
        if not (lease.left and lease.may_save):
            what = "was not released" if lease.left else "made no report"
            grace = lease.launch.limits.stop_grace_s
            lease.finish(Outcome(kind="left"), f"the trial was stopped, and {what} within {grace:g} s")

    async def kill(self, segment_id: str, reason: str) -> None:
        """End a segment at once, as failed. The agent learns of this from the answer to its next request."""
        if (lease := self._segments.get(segment_id)) is not None:
            failure = Failure(kind="system", cause="killed", message=reason)
            lease.finish(Outcome(kind="failed", failure=failure), reason)

    async def upload_end(self, segment_id: str, checkpoint: str) -> CheckpointInfo | str:
        """Return an error, because no upload exists: an agent completes its uploads before it ends its segment."""
        return "its upload is not known"

    def abandon(self, experiment: str, reason: str) -> None:
        """Do nothing: an agent completes its uploads before it ends its segment."""

    async def rest(self, keep: bool) -> None:
        """Do nothing, because the host does not control the agents."""

    async def close(self) -> None:
        """End all segments and their leases. The next driver starts the trials again."""
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
        for lease in list(self._segments.values()):
            await self.kill(lease.launch.segment_id, "the driver is shutting down")
        while self._segments:
            await asyncio.sleep(_END_S)
        for experiment in list(self._queues):
            self.forget(experiment)

    def forget(self, experiment: str) -> None:
        """Tell the agents that wait for a trial of this ended experiment that there are no more.

        Repeated requests are still answered for `REMEMBER_S`.
        """
        queue = self._queues.get(experiment)
        if queue is None:
            return
        for waiting, _ in queue.asking:
            if not waiting.done():
                waiting.set_result(None)
        queue.asking.clear()
        queue.over_since = time.monotonic()

    def stats(self) -> dict[str, int]:
        """Return how many segments run on agents ("running"), and how many wait for an agent ("waiting")."""
        leased = sum(bool(lease.name) for lease in self._segments.values())
        return {"running": leased, "waiting": len(self._segments) - leased, "idle": 0}

    def training(self) -> list[str]:
        """Return the ids of the segments that run on agents."""
        return [name for name, lease in self._segments.items() if lease.name]

    def held(self) -> list[tuple[HeldGroup, list[Mapping[str, Any]]]]:
        """Return the segments that run on agents, each with its rank. They hold no resources of the cluster."""
        return [
            (
                HeldGroup(
                    experiment=lease.launch.experiment_id,
                    trial=lease.launch.trial_id,
                    segment_id=segment_id,
                    nodes=(lease.agent,),
                    bundle=_BUNDLE,
                    since=lease.lent,
                ),
                _ranks(lease),
            )
            for segment_id, lease in self._segments.items()
            if lease.name
        ]

    def waiting(self) -> list[WaitingGroup]:
        """Return the segments that wait for an agent. Each experiment has a queue of its own."""
        return [
            WaitingGroup(
                experiment=experiment,
                trial=lease.launch.trial_id,
                segment_id=lease.launch.segment_id,
                workers=1,
                bundle=_BUNDLE,
                since=lease.since,
                priority=self._entitlement(experiment).priority,
                reserved=False,
                reason=_WAITS,
            )
            for experiment, queue in self._queues.items()
            for lease in queue.ready
        ]

    def agents(self) -> list[dict[str, Any]]:
        """Return the agents of each experiment. For each agent, say how many trials it trains and how many it asks for."""
        found = []
        for experiment, queue in self._queues.items():
            training = Counter(lease.agent for lease in queue.leases.values())
            asking = Counter(queue.free_agents())
            found += [
                {"name": name, "experiment_id": experiment, "running": training[name], "asking": asking[name]}
                for name in sorted({*training, *asking})
            ]
        return found

    async def stacks(self, segment_id: str) -> dict[str, str]:
        """Return a note in place of Python stacks, because the host has no access to the processes of an agent."""
        lease = self._segments.get(segment_id)
        return {"0": f"this trial runs on the agent {lease.agent}, which shows no stacks"} if lease is not None else {}

    async def data_sets(self, segment_id: str) -> list[dict[str, Any]]:
        """Return an empty list, because agents do not read Ray Data datasets."""
        return []

    async def profile(self, segment_id: str, rank: int, request: ProfileRequest) -> dict[str, Any] | None:
        """Raise Conflict if a segment runs on an agent, which this host cannot profile. Return None for other segments."""
        lease = self._segments.get(segment_id)
        if lease is None:
            return None
        if not lease.name:
            raise Conflict("the trial is not training yet: it is waiting for an agent")
        raise Conflict(
            f"this trial runs on the agent {lease.agent}, and ranks of agents cannot be profiled from here; on the agent's "
            "machine, py-spy can profile the process"
        )

    async def usage(self, segment_id: str) -> dict[str, dict[str, float]]:
        """Return nothing: agents do not report their resource usage."""
        return {}

    async def measure(self, segment_ids: Iterable[str]) -> dict[str, dict[int, dict[str, float]]]:
        """Return nothing: agents do not report their resource usage."""
        return {}

    # -- agents ----------------------------------------------------------------------------------------------------------

    async def answer(self, question: str, experiment: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to an agent's request about an experiment, or {"error": ...}, from which `raised` raises."""
        try:
            if question == "ask":
                return {"assignment": await self._ask(experiment, arguments)}
            if question == "withdraw":
                self._withdraw(experiment, arguments["call"])
                return {"ended": True}
            return await self._about_lease(question, experiment, arguments)
        except REFUSALS as error:
            return refusal(error)

    async def _ask(self, experiment: str, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """Lend a segment and return it as JSON; None if none is ready within `wait_s`.

        If an agent repeats a request, which it identifies by `request`, it gets the same segment again. If the first request
        still waits, it ends with None, since the agent no longer reads its answer.
        """
        queue = self._queue(experiment)
        if request := given.get("request"):
            if (again := self._lent(queue, request)) is not None:
                again.renew()
                return assignment(again)
            _end_waiting(queue, "request", request)
        found: asyncio.Future[Lease | None] = asyncio.get_running_loop().create_future()
        queue.asking.append((found, given))
        self._count(experiment, queue)
        self._hand_out(queue)
        try:
            await asyncio.wait({found}, timeout=given["wait_s"])
            lease = found.result() if found.done() else None
        finally:
            if not found.done():
                found.cancel()
            queue.asking = deque(one for one in queue.asking if one[0] is not found)
            self._count(experiment, queue)
        return assignment(lease) if lease is not None else None

    def _withdraw(self, experiment: str, call: str) -> None:
        """End a waiting request with None, because its connection was cut. `call` is the service's name for the request."""
        if (queue := self._queues.get(experiment)) is not None:
            _end_waiting(queue, "call", call)

    @staticmethod
    def _lent(queue: Queue, request: str) -> Lease | None:
        return next((lease for lease in queue.leases.values() if lease.request == request), None)

    def _hand_out(self, queue: Queue) -> None:
        """Lend the segments that are ready to the agents that wait for one, first to the agent that has waited longest."""
        while queue.ready and queue.asking:
            waiting, given = queue.asking.popleft()
            if waiting.done():
                continue
            if (request := given.get("request")) and (again := self._lent(queue, request)) is not None:
                waiting.set_result(again)  # an agent repeats a request whose answer was lost while it waited
                continue
            lease = queue.ready.popleft()
            if lease.end.done():
                queue.asking.appendleft((waiting, given))
                continue
            self._lend(queue, lease, given)
            waiting.set_result(lease)

    def _lend(self, queue: Queue, lease: Lease, given: Mapping[str, Any]) -> None:
        launch = lease.launch
        lease.name = f"{launch.trial_number}-{launch.segment}-{secrets.token_hex(8)}"
        lease.agent, lease.request = given["agent"], given.get("request") or ""
        lease.lease_s, lease.late = given["lease_s"], given["late_checkpoints"]
        queue.leases[lease.name] = lease
        lease.lent = time.monotonic()
        lease.renew()
        lease.inbox.started(launch.segment_id, {"ranks": _ranks(lease)}, 0.0, False, 0.0)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    async def _about_lease(self, question: str, experiment: str, given: Mapping[str, Any]) -> dict[str, Any]:
        queue = self._queues.get(experiment, Queue())
        name = given["lease"]
        if (lease := queue.leases.get(name)) is None or lease.end.done():
            return self._of_ended(queue, question, name, given, lease)
        lease.renew()
        try:
            return await self._of_lease(question, queue, lease, given)
        except (RuntimeError, StoreError) as error:  # the experiment has ended, or another driver has it
            if isinstance(error, TunerError) and isinstance(error, Conflict | NotFound):
                raise
            if isinstance(error, Retryable):  # the database is unreachable; the agent asks again
                raise DriverSilent(str(error)) from error
            raise Gone(f"lease {name} has ended: {error}") from error
        finally:
            lease.renew()

    def _of_ended(
        self, queue: Queue, question: str, name: str, given: Mapping[str, Any], lease: Lease | None
    ) -> dict[str, Any]:
        """Return the answer to a request about a lease that has ended, if the request was answered before; else raise Gone."""
        ended = queue.ended.get(name)
        if ended is None and lease is not None:
            ended = EndedLease("", lease.over, lease.answers)
        if ended is None:
            raise Gone(f"lease {name} has ended, or a new driver has restarted its trial; ask for another trial")
        if question == "report":
            last = given["reports"][-1]["iteration"]
            if (answer := ended.answers.get(last)) is not None:
                return answer
        if question == ended.how or (question in _ENDS and ended.how == "verdict"):
            return {"ended": True}
        raise Gone(f"lease {name} has ended: {ended.why}")

    async def _of_lease(self, question: str, queue: Queue, lease: Lease, given: Mapping[str, Any]) -> dict[str, Any]:
        match question:
            case "heartbeat":
                return {"wanted": lease.wanted, "lease_s": lease.lease_s}
            case "report":
                async with lease.asking:
                    if lease.end.done():  # while this request waited for an earlier one
                        return self._of_ended(queue, question, lease.name, given, lease)
                    return await self._report(queue, lease, given["reports"])
            case "checkpoint":
                info = checkpoint_of(lease, given["iteration"], given["checkpoint"])
                if info is None:
                    raise SpecError("is required", "/checkpoint")
                await lease.inbox.checkpoint(lease.ref, info)
                return {"ended": False}
            case "log":
                await self._log(lease, given)
                return {"ended": False}
            case "complete":
                async with lease.asking:
                    if lease.end.done():
                        return self._of_ended(queue, question, lease.name, given, lease)
                    if given.get("metrics") is not None:
                        last = {"iteration": next_iteration(lease), **last_report(given)}
                        await self._report(queue, lease, [last], last=True)
                    elif why := lease.inbox.unusable(lease.ref, {}, True):
                        raise SpecError(why, "/metrics")
                    return await self._end(queue, lease, question, Outcome(kind="returned", reports=lease.report_no))
            case "fail":
                failure = failure_of(lease, given)
                return await self._end(queue, lease, question, Outcome(kind="failed", failure=failure))
            case "release":
                lease.over = "the agent has released the lease"
                return await self._end(queue, lease, question, Outcome(kind="left"))
            case _:
                raise NotFound(f"agents cannot call {question!r}")

    async def _report(
        self, queue: Queue, lease: Lease, reports: Sequence[Mapping[str, Any]], last: bool = False
    ) -> dict[str, Any]:
        """Commit those reports that are new, and return the verdict on the last report as JSON.

        last: True if the trial ends with the last report.
        """
        start = lease.launch.start_iteration
        newest = reports[-1]["iteration"]
        fresh = [one for one in reports if one["iteration"] - start > lease.report_no]
        if not fresh:
            return lease.answers.get(newest, verdict_under(lease, Verdict()))
        if lease.left:
            raise Conflict("a verdict has ended this segment, so no more reports are accepted under its lease")
        for number, one in enumerate(fresh, lease.report_no + 1):
            if one["iteration"] != start + number:
                raise Conflict(
                    f"expected iteration {start + number}, because the newest stored report is that of iteration "
                    f"{start + number - 1}; got {one['iteration']}"
                )
        made, named = [], set[str]()
        for one in fresh:
            metrics = {name: float("nan") if value is None else float(value) for name, value in one["metrics"].items()}
            if why := lease.inbox.unusable(lease.ref, metrics, last, named):
                raise SpecError(why, "/metrics")
            named |= metrics.keys()
            number = one["iteration"] - start
            made.append(
                Report(
                    report_no=number,
                    metrics=metrics,
                    time=time.monotonic(),
                    step=one.get("step"),
                    checkpoint=checkpoint_of(lease, one["iteration"], one.get("checkpoint")),
                    waits=one.get("waits", True),
                    last=last or one.get("last", False),
                    offer=one["offer"] - start if one.get("offer") is not None else None,
                    age=min(one.get("age_s", 0.0), time.monotonic() - lease.lent),
                )
            )
        verdict = await lease.inbox.report(lease.ref, start, made)
        if isinstance(verdict, Resend):
            raise Conflict(f"expected the report of iteration {start + verdict.after + 1}")
        lease.report_no = made[-1].report_no
        answer = verdict_under(lease, verdict or Verdict())
        lease.answers[newest] = answer
        while len(lease.answers) > _ANSWERS:
            lease.answers.popitem(last=False)
        if answer["verdict"] != "continue":
            lease.left = True
            if not lease.late:
                lease.over = f"the verdict was {answer['verdict']}: {answer['reason']}"
                if not last:
                    await self._end(queue, lease, "verdict", Outcome(kind="left"))
        return answer

    async def _end(self, queue: Queue, lease: Lease, how: str, outcome: Outcome) -> dict[str, Any]:
        """End a segment, and return the answer for its agent once the end is committed. `how` is the agent's request."""
        lease.over = lease.over or f"the agent has called {how}"
        self._remember(queue, lease, how)
        lease.finish(outcome, lease.over)
        with contextlib.suppress(RuntimeError):  # the experiment ended with the segment
            await lease.inbox.settled(lease.ref)
        return {"ended": True}

    async def _log(self, lease: Lease, given: Mapping[str, Any]) -> None:
        if self._take_logs is None:
            return
        try:
            content = base64.b64decode(given["data"], validate=True) if "data" in given else given["text"].encode()
        except binascii.Error as error:
            raise SpecError(f"not base64: {error}", "/data") from error
        start = given["start"] if given.get("start") is not None else lease.logged
        now = time.time()
        chunks = [
            LogChunk.of(0, start + at, content[at : at + CHUNK_BYTES], now)
            for at in range(0, len(content), CHUNK_BYTES)
        ]
        await self._take_logs(lease.launch.segment_id, chunks)
        lease.logged = max(lease.logged, start + len(content))

    # -- time --------------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """End the leases of silent agents, and update the number of trials that may run at once."""
        while self._queues:
            await asyncio.sleep(LOOK_S)
            now, reachable = time.monotonic(), self._attended()
            for experiment, queue in list(self._queues.items()):
                for lease in list(queue.leases.values()):
                    if not reachable or lease.asking.locked():
                        lease.renew()
                    elif now > lease.until:
                        self._expire(lease)
                self._count(experiment, queue)
                if queue.over_since is not None and now > queue.over_since + REMEMBER_S and not queue.asking:
                    del self._queues[experiment]

    @staticmethod
    def _expire(lease: Lease) -> None:
        why = f"the agent {lease.agent} has sent nothing for {lease.lease_s:g} s"
        if lease.left:  # a verdict has ended the segment
            lease.finish(Outcome(kind="left"), why)
            return
        failure = Failure(kind="system", cause="agent_lost", message=why, node=lease.agent)
        lease.finish(Outcome(kind="failed", failure=failure), why)

    def _count(self, experiment: str, queue: Queue) -> None:
        """Tell the driver how many trials the agents can train at once.

        Report an increase immediately, a decrease after a while.
        """
        agents, now = max(1, queue.agents()), time.monotonic()
        if agents == queue.room:
            queue.fewer_since = None
            return
        if agents < queue.room:
            queue.fewer_since = queue.fewer_since or now
            if now < queue.fewer_since + FEWER_AFTER_S:
                return
        queue.room, queue.fewer_since = agents, None
        self._room_for(experiment, agents)

    def _queue(self, experiment: str) -> Queue:
        return self._queues.setdefault(experiment, Queue())


def _end_waiting(queue: Queue, key: str, value: str) -> None:
    """End the waiting requests in which `key` has this value, with None."""
    for found, given in queue.asking:
        if given.get(key) == value and not found.done():
            found.set_result(None)


def _ranks(lease: Lease) -> list[Mapping[str, Any]]:
    """Return the only rank of a segment that runs on an agent, whose process and GPUs are not known."""
    return [{"rank": 0, "node": lease.agent, "host": lease.agent, "pid": 0, "gpus": []}]
