"""Trials on agents: programs on other machines that get trials over HTTP and report their metrics.

A segment waits here until an agent asks for one. The agent then holds the segment under a *lease*. The lease ends when the
segment ends. It also ends if the agent sends nothing for too long; the trial is then started again from its newest checkpoint.
The API passes the requests of agents on (`AgentGroups.answer`); requests and answers are JSON. An agent repeats a request whose
answer was lost, so a request may arrive twice but takes effect once.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import posixpath
import re
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args
from urllib.parse import unquote

from tuner.domain.experiment import Scaling
from tuner.domain.keys import checkpoint_id
from tuner.domain.logs import CHUNK_BYTES, LogChunk
from tuner.domain.segments import (
    CAUSES,
    CheckpointInfo,
    Failure,
    FailureKind,
    Outcome,
    Report,
    SegmentRef,
    Verdict,
)
from tuner.driver.hosts.executor import Executor, GroupOptions, SegmentGroups, SegmentInbox
from tuner.errors import Conflict, DriverSilent, Gone, NotFound, Retryable, SpecError, StoreError, TunerError
from tuner.trials.groups.manager import Logs
from tuner.trials.messages.launch import Launch, Resend
from tuner.trials.messages.profiling import ProfileRequest
from tuner.trials.runtime.code import resolve

LEASE_S = 60.0
"""The default number of seconds after which a lease ends if its agent sends nothing."""
LOOK_S = 0.5
"""Seconds between two checks for expired leases."""
FEWER_AFTER_S = 120.0
"""Seconds for which there must be fewer agents before fewer trials may run at once."""
REMEMBER_S = 600.0
"""Seconds for which the ended leases of an experiment that has ended are remembered, to answer repeated requests."""
_ENDED = 2000  # the number of ended leases that are remembered for each experiment
_ANSWERS = 64  # the number of answers to reports that are remembered for each lease
_END_S = 0.002

_URGENT = ("stop", "cancel")
_ENDS = ("complete", "fail", "release")


@dataclass(slots=True, eq=False)
class _Lease:
    """A segment that waits for an agent or runs on one."""

    launch: Launch
    inbox: SegmentInbox
    storage: str
    end: asyncio.Future[Outcome]
    name: str = ""  # empty until an agent gets the segment
    agent: str = ""
    request: str = ""
    lease_s: float = LEASE_S
    # Whether the lease stays valid after a verdict that ends the segment, until the agent ends the lease.
    late: bool = False
    until: float = 0.0
    lent: float = 0.0  # when an agent got the segment, which is before the segment's first report
    report_no: int = 0
    logged: int = 0
    wanted: str = "continue"
    left: bool = False  # whether a verdict has ended the segment
    answers: OrderedDict[int, dict[str, Any]] = field(default_factory=OrderedDict)
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    grace: asyncio.TimerHandle | None = None
    over: str = ""  # why the lease has ended, in words

    @property
    def ref(self) -> SegmentRef:
        return SegmentRef(self.launch.trial_number, self.launch.segment)

    def renew(self) -> None:
        self.until = time.monotonic() + self.lease_s

    def finish(self, outcome: Outcome, why: str) -> None:
        """End the segment, unless it has ended already."""
        if not self.end.done():
            self.over = why
            self.end.set_result(outcome)


@dataclass(slots=True)
class _Ended:
    """A lease that has ended, kept to answer repeated requests."""

    how: str  # the request that ended the lease; empty if no request did
    why: str
    answers: Mapping[int, dict[str, Any]]


@dataclass(slots=True, eq=False)
class _Queue:
    """The segments and the agents of one experiment."""

    ready: deque[_Lease] = field(default_factory=deque)
    leases: dict[str, _Lease] = field(default_factory=dict)
    asking: deque[tuple[asyncio.Future[_Lease | None], Mapping[str, Any]]] = field(default_factory=deque)
    ended: OrderedDict[str, _Ended] = field(default_factory=OrderedDict)
    room: int = 1
    fewer_since: float | None = None
    over_since: float | None = None  # when the experiment ended; the answers are remembered for a while

    def agents(self) -> int:
        """Return the number of agents that train a trial or wait for one."""
        return len(self.leases) + sum(not one.done() for one, _ in self.asking)


class AgentGroups(SegmentGroups):
    """Lends segments to agents. Belongs to the event loop of a host.

    Args:
        room_for: called with an experiment and the number of trials that its agents can train at once, if the number changes.
        attended: a function that returns whether agents can reach this host. While they cannot, no lease expires.
        logs: completes the stored log of a segment that has ended.
        take_logs: stores the output that agents send.
    """

    def __init__(
        self,
        room_for: Callable[[str, int], None],
        attended: Callable[[], bool] = lambda: True,
        logs: Logs | None = None,
        take_logs: Callable[[str, Sequence[LogChunk]], Awaitable[None]] | None = None,
    ) -> None:
        self._room_for, self._attended, self._logs, self._take_logs = room_for, attended, logs, take_logs
        self._queues: dict[str, _Queue] = {}
        self._segments: dict[str, _Lease] = {}
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    # -- segments --------------------------------------------------------------------------------------------------------

    async def run(self, launch: Launch, *, inbox: SegmentInbox) -> Outcome:
        """Offer a segment to the agents that ask for one, wait until the segment has ended, and return its outcome."""
        lease = _Lease(launch, inbox, launch.storage, asyncio.get_running_loop().create_future())
        queue = self._queue(launch.experiment_id)
        queue.over_since = None
        self._segments[launch.segment_id] = lease
        queue.ready.append(lease)
        self._hand_out(queue)
        if not lease.name:
            inbox.waiting(
                launch.segment_id, "waits for an agent: run `tuner agent`, or a program of your own, on any machine"
            )
        self._room_for(launch.experiment_id, queue.room)
        if self._closed:
            lease.finish(Outcome(kind="left"), "the driver is shutting down")
        try:
            return await lease.end
        finally:
            self._segments.pop(launch.segment_id, None)
            self._forget_lease(queue, lease)

    def _forget_lease(self, queue: _Queue, lease: _Lease) -> None:
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

    def _remember(self, queue: _Queue, lease: _Lease, how: str) -> None:
        queue.ended[lease.name] = _Ended(how, lease.over or "it has ended", lease.answers)
        while len(queue.ended) > _ENDED:
            queue.ended.popitem(last=False)

    async def interrupt(self, segment_id: str, action: str) -> None:
        """End a segment that waits for an agent. If an agent has the segment, tell the agent to report soon.

        The agent learns of `action` from its next heartbeat, and gets the verdict when it reports. After "stop" and "cancel",
        it must report within `limits.stop_grace_s`.
        """
        if (lease := self._segments.get(segment_id)) is None:
            return
        if not lease.name or action == "kill":
            lease.finish(Outcome(kind="left"), "the trial was killed" if action == "kill" else f"interrupted: {action}")
            return
        lease.wanted = "stop" if action in _URGENT else action
        if action in _URGENT and lease.grace is None:
            grace = lease.launch.limits.stop_grace_s
            why = f"the trial was stopped, and no report came within {grace:g} s"
            lease.grace = asyncio.get_running_loop().call_later(grace, lambda: lease.finish(Outcome(kind="left"), why))

    async def kill(self, segment_id: str, reason: str) -> None:
        """End a segment at once, as failed. The agent learns of this from the answer to its next request."""
        if (lease := self._segments.get(segment_id)) is not None:
            failure = Failure(kind="system", cause="killed", message=reason)
            lease.finish(Outcome(kind="failed", failure=failure), reason)

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
        """Tell the agents that wait for a trial of this experiment, which has ended, that there is none.

        Requests that agents repeat are still answered for `REMEMBER_S`.
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

    async def stacks(self, segment_id: str) -> dict[str, str]:
        """Return a note in place of Python stacks, because the host has no access to the processes of an agent."""
        lease = self._segments.get(segment_id)
        return {"0": f"this trial runs on the agent {lease.agent}, which shows no stacks"} if lease is not None else {}

    async def profile(self, segment_id: str, rank: int, request: ProfileRequest) -> dict[str, Any] | None:
        """Raise Conflict if a segment runs on an agent, which this host cannot profile. Return None for other segments."""
        lease = self._segments.get(segment_id)
        if lease is None:
            return None
        if not lease.name:
            raise Conflict("the trial does not train yet: it waits for an agent")
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
            return await self._about_lease(question, experiment, arguments)
        except REFUSALS as error:
            return refusal(error)

    async def _ask(self, experiment: str, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """Lend a segment and return it as JSON; None if none is ready within `wait_s`.

        If an agent repeats a request, which it identifies by `request`, it gets the same segment again.
        """
        queue = self._queue(experiment)
        if (request := given.get("request")) and (again := self._lent(queue, request)) is not None:
            again.renew()
            return _assignment(again)
        found: asyncio.Future[_Lease | None] = asyncio.get_running_loop().create_future()
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
        return _assignment(lease) if lease is not None else None

    @staticmethod
    def _lent(queue: _Queue, request: str) -> _Lease | None:
        return next((lease for lease in queue.leases.values() if lease.request == request), None)

    def _hand_out(self, queue: _Queue) -> None:
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

    def _lend(self, queue: _Queue, lease: _Lease, given: Mapping[str, Any]) -> None:
        launch = lease.launch
        lease.name = f"{launch.trial_number}-{launch.segment}-{secrets.token_hex(8)}"
        lease.agent, lease.request = given["agent"], given.get("request") or ""
        lease.lease_s, lease.late = given["lease_s"], given["late_checkpoints"]
        queue.leases[lease.name] = lease
        lease.lent = time.monotonic()
        lease.renew()
        placement = {"ranks": [{"rank": 0, "node": lease.agent, "host": lease.agent, "pid": 0, "gpus": []}]}
        lease.inbox.started(launch.segment_id, placement, 0.0, False, 0.0)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    async def _about_lease(self, question: str, experiment: str, given: Mapping[str, Any]) -> dict[str, Any]:
        queue = self._queues.get(experiment, _Queue())
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
        self, queue: _Queue, question: str, name: str, given: Mapping[str, Any], lease: _Lease | None
    ) -> dict[str, Any]:
        """Return the answer to a request about a lease that has ended, if the request was answered before; else raise Gone."""
        ended = queue.ended.get(name)
        if ended is None and lease is not None:
            ended = _Ended("", lease.over, lease.answers)
        if ended is None:
            raise Gone(f"lease {name} has ended, or a new driver has restarted its trial; ask for another trial")
        if question == "report":
            last = given["reports"][-1]["iteration"]
            if (answer := ended.answers.get(last)) is not None:
                return answer
        if question == ended.how or (question in _ENDS and ended.how == "verdict"):
            return {"ended": True}
        raise Gone(f"lease {name} has ended: {ended.why}")

    async def _of_lease(self, question: str, queue: _Queue, lease: _Lease, given: Mapping[str, Any]) -> dict[str, Any]:
        match question:
            case "heartbeat":
                return {"wanted": lease.wanted, "lease_s": lease.lease_s}
            case "report":
                async with lease.asking:
                    if lease.end.done():  # while this request waited for an earlier one
                        return self._of_ended(queue, question, lease.name, given, lease)
                    return await self._report(queue, lease, given["reports"])
            case "checkpoint":
                info = _checkpoint(lease, given["iteration"], given["checkpoint"])
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
                        last = {"iteration": _next_iteration(lease), **_last_report(given)}
                        await self._report(queue, lease, [last], last=True)
                    elif why := lease.inbox.unusable(lease.ref, {}, True):
                        raise SpecError(why, "/metrics")
                    return await self._end(queue, lease, question, Outcome(kind="returned", reports=lease.report_no))
            case "fail":
                failure = _failure(lease, given)
                return await self._end(queue, lease, question, Outcome(kind="failed", failure=failure))
            case "release":
                lease.over = "the agent has released the lease"
                return await self._end(queue, lease, question, Outcome(kind="left"))
            case _:
                raise NotFound(f"agents cannot call {question!r}")

    async def _report(
        self, queue: _Queue, lease: _Lease, reports: Sequence[Mapping[str, Any]], last: bool = False
    ) -> dict[str, Any]:
        """Commit the new ones among the reports, and return the verdict on the last one as JSON.

        last: True if the trial ends with the last report.
        """
        start = lease.launch.start_iteration
        newest = reports[-1]["iteration"]
        fresh = [one for one in reports if one["iteration"] - start > lease.report_no]
        if not fresh:
            return lease.answers.get(newest, _verdict(lease, Verdict()))
        if lease.left:
            raise Conflict("a verdict has ended this segment, so no more reports are accepted under its lease")
        for number, one in enumerate(fresh, lease.report_no + 1):
            if one["iteration"] != start + number:
                raise Conflict(
                    f"expected iteration {start + number}, because the newest stored report is that of iteration "
                    f"{start + number - 1}; got {one['iteration']}"
                )
        made = []
        for one in fresh:
            metrics = {name: float("nan") if value is None else float(value) for name, value in one["metrics"].items()}
            if why := lease.inbox.unusable(lease.ref, metrics, last):
                raise SpecError(why, "/metrics")
            number = one["iteration"] - start
            made.append(
                Report(
                    report_no=number,
                    metrics=metrics,
                    time=time.monotonic(),
                    step=one.get("step"),
                    checkpoint=_checkpoint(lease, one["iteration"], one.get("checkpoint")),
                    waits=one.get("waits", True),
                    offer=one["offer"] - start if one.get("offer") is not None else None,
                    age=min(one.get("age_s", 0.0), time.monotonic() - lease.lent),
                )
            )
        verdict = await lease.inbox.report(lease.ref, start, made)
        if isinstance(verdict, Resend):
            raise Conflict(f"expected the report of iteration {start + verdict.after + 1}")
        lease.report_no = made[-1].report_no
        answer = _verdict(lease, verdict or Verdict())
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

    async def _end(self, queue: _Queue, lease: _Lease, how: str, outcome: Outcome) -> dict[str, Any]:
        """End a segment, and return the answer for its agent once the end is committed. `how` is the agent's request."""
        lease.over = lease.over or f"the agent has called {how}"
        self._remember(queue, lease, how)
        lease.finish(outcome, lease.over)
        with contextlib.suppress(RuntimeError):  # the experiment ended with the segment
            await lease.inbox.settled(lease.ref)
        return {"ended": True}

    async def _log(self, lease: _Lease, given: Mapping[str, Any]) -> None:
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
    def _expire(lease: _Lease) -> None:
        why = f"the agent {lease.agent} has sent nothing for {lease.lease_s:g} s"
        if lease.left:  # a verdict has ended the segment
            lease.finish(Outcome(kind="left"), why)
            return
        failure = Failure(kind="system", cause="agent_lost", message=why, node=lease.agent)
        lease.finish(Outcome(kind="failed", failure=failure), why)

    def _count(self, experiment: str, queue: _Queue) -> None:
        """Tell the driver how many trials the agents can train at once: of an increase at once, of a decrease after a while."""
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

    def _queue(self, experiment: str) -> _Queue:
        return self._queues.setdefault(experiment, _Queue())


class AgentExecutor:
    """The `Executor` of experiments whose trials run on agents.

    Args:
        own: the host's own executor, which does everything except running trials.
        groups: lends the segments to agents.
    """

    name: Literal["ray", "local", "agents"] = "agents"
    own_process = False

    def __init__(self, own: Executor, groups: AgentGroups) -> None:
        self._own, self._groups = own, groups

    @property
    def node(self) -> str | None:
        """Return the id of the node that the host runs on."""
        return self._own.node

    def listen_at(self) -> str:
        """Return the address at which the host's own executor lets ranks reach the host. Agents do not use it."""
        return self._own.listen_at()

    def groups(self, options: GroupOptions) -> SegmentGroups:
        """Return the groups that lend segments to agents."""
        return self._groups

    def clean_up(self) -> None:
        """Do nothing, because the host does not control the agents."""

    def capacity(self, scaling: Scaling) -> int | None:
        """Return 1, the number of trials that run at once until more agents ask for trials."""
        return 1

    def workers(self, scaling: Scaling) -> int | None:
        """Return None, because the trials of this executor are not elastic."""
        return None

    async def nodes(self) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, float]]:
        """Return the nodes of the host's own executor."""
        return await self._own.nodes()

    async def on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function on a node of the host's own executor."""
        return await self._own.on_node(node, function, *args)

    def share(self, value: Any) -> Any:
        """Return the value unchanged, because agents bring their own code."""
        return value

    def offload(self, sys_path: Sequence[str], function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        """Call the function with the host's own executor."""
        return self._own.offload(sys_path, function, *args)

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        """Delete a checkpoint. The driver requests this only for checkpoints in the storage of their experiment."""
        await self._own.delete_checkpoint(info)


# -- messages ----------------------------------------------------------------------------------------------------------------


REFUSALS = (SpecError, Gone, NotFound, Conflict, DriverSilent)
"""The errors that a host answers to a request that a service passes on."""


def refusal(error: Exception) -> dict[str, Any]:
    """Return the answer that contains an error, from which `raised` makes the error again."""
    if isinstance(error, SpecError):
        return {"error": "SpecError", "errors": error.errors}
    return {"error": type(error).__name__, "detail": str(error)}


def raised(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the answer that `AgentGroups.answer` or `Host.profile` gave. If it contains an error, raise that error instead."""
    match answer.get("error"):
        case None:
            return answer
        case "SpecError":
            raise SpecError([(str(pointer), str(message)) for pointer, message in answer["errors"]])
        case "NotFound":
            raise NotFound(answer["detail"])
        case "Gone":
            raise Gone(answer["detail"])
        case "DriverSilent":
            raise DriverSilent(answer["detail"])
        case _:
            raise Conflict(answer["detail"])


def is_within(storage: str, uri: str) -> bool:
    """Return whether a URI is below an experiment's storage. Return False for one that leads out of it with dots or escapes."""
    plain = unquote(uri.partition("?")[0])
    below = storage.partition("?")[0].rstrip("/") + "/"
    parts = re.split(r"[/\\]", plain)
    return plain.startswith(below) and ".." not in parts and "." not in parts and posixpath.basename(plain) != ""


def _assignment(lease: _Lease) -> dict[str, Any]:
    launch = lease.launch
    source = launch.checkpoint
    first = launch.first_milestone
    return {
        "lease": lease.name,
        "lease_s": lease.lease_s,
        "experiment_id": launch.experiment_id,
        "trial_id": launch.trial_id,
        "segment_id": launch.segment_id,
        "trial": launch.trial_number,
        "segment": launch.segment,
        "config": resolve(launch),
        "params": dict(launch.params),
        "iteration": launch.start_iteration,
        "checkpoint": None if source is None else {"id": source.id, "uri": source.uri, "iteration": source.step},
        "next_milestone": None if first is None else launch.start_iteration + first,
        "seed": launch.seed,
        "metric": launch.metric,
        "entrypoint": launch.code.entrypoint,
        "storage": lease.storage,
        "space": None if launch.space is None else dict(launch.space),
        "stop_grace_s": launch.limits.stop_grace_s,
        "hang_timeout_s": launch.limits.hang_timeout_s,
        "checkpoint_every": launch.checkpoint_every,
        "checkpoint_at_milestones": launch.milestone_checkpoints,
        "checkpoint_at_end": launch.checkpoint_policy.at_end,
    }


def _verdict(lease: _Lease, verdict: Verdict) -> dict[str, Any]:
    following = verdict.next_milestone
    return {
        "verdict": verdict.action,
        "reason": verdict.reason,
        "save_checkpoint": verdict.save_checkpoint,
        "next_milestone": None if following is None else lease.launch.start_iteration + following,
        "wanted": lease.wanted,
    }


def _next_iteration(lease: _Lease) -> int:
    return lease.launch.start_iteration + lease.report_no + 1


def _last_report(given: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: given[name] for name in ("metrics", "checkpoint", "step") if given.get(name) is not None}
    return {**named, **({"iteration": given["iteration"]} if given.get("iteration") is not None else {})}


def _checkpoint(lease: _Lease, iteration: int, given: str | Mapping[str, Any] | None) -> CheckpointInfo | None:
    """Return the checkpoint that an agent sent for an iteration; None if it sent none.

    The iteration determines the id of the checkpoint, so that a checkpoint that is sent twice is stored once.
    """
    if given is None:
        return None
    parts: Mapping[str, Any] = {"uri": given} if isinstance(given, str) else given
    number = iteration - lease.launch.start_iteration
    if not 0 <= number <= lease.report_no + 1_000_000:
        raise SpecError(f"expected an iteration after {lease.launch.start_iteration}, got {iteration}", "/iteration")
    return CheckpointInfo(
        id=checkpoint_id(lease.launch.segment_id, number),
        uri=parts["uri"],
        step=iteration,
        bytes=parts.get("bytes", 0),
        ready=parts.get("ready", True),
    )


def _failure(lease: _Lease, given: Mapping[str, Any]) -> Failure:
    kind: FailureKind = given["kind"] if given.get("kind") in get_args(FailureKind) else "user"
    cause = given.get("cause")
    return Failure(
        kind="system" if kind == "placement" else kind,
        message=given["message"],
        cause=cause if cause in CAUSES else "exception",
        rank=0,
        node=lease.agent,
        traceback=given.get("traceback", ""),
        log_tail=given.get("log_tail", ""),
    )
