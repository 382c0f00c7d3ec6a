"""Wait for a segment's ranks, and find the cause if a rank fails, hangs or does not leave."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from tuner.domain.segments import CheckpointInfo, Failure, Outcome
from tuner.plurals import counted
from tuner.trials.groups import failures
from tuner.trials.groups.cluster import nodes
from tuner.trials.groups.failures import Findings
from tuner.trials.groups.pools.group import Group
from tuner.trials.groups.segments.segment_run import ANSWER_S, LOOK_S, SAVING_S, EndedEarly, SegmentRun, answer
from tuner.trials.messages.launch import Launch
from tuner.trials.messages.lost import lost_errors, unavailable_errors
from tuner.trials.messages.protocol import NotReusable, Progress, RankError, RankResult

log = logging.getLogger(__name__)

_CAUSE_S = 10.0  # seconds to wait for the error that caused a communication error or a death; it arrives late on a busy machine
_AGAIN_S = 0.2  # seconds between two questions to a rank that cannot be reached
_READY_S = 120.0  # seconds that imports and the rendezvous may take, even if `hang_timeout_s` is shorter
# seconds for which all ranks may fail to answer; they may be in C code that holds the GIL, or the machine may be swapping
_UNRESPONSIVE_S = 20.0
# If the watch wakes up this many seconds late, its process was stopped, for example by SIGSTOP or `docker pause`.
_STOPPED_S = 5.0
_STEPS = 20  # a stop is noticed if it is longer than this part of `hang_timeout_s`


class Nodes(Protocol):
    """An object, such as a pool, that can run functions on the nodes of a group."""

    async def on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function, such as those in the module `nodes`, on a node, and return its value."""


class Watch:
    """Watches the ranks of one segment.

    Args:
        run: the state of the segment.
        group: the worker group that runs the segment.
        pool: the object that runs functions on the group's nodes.
    """

    def __init__(self, run: SegmentRun, group: Group, pool: Nodes) -> None:
        self._run, self._group, self._pool = run, group, pool
        self.lost_rank = False  # True once a rank's process has died
        self.lost_before_training = False  # True if one has died when no rank can have called the training function yet
        self._limits = run.launch.limits
        self._placed = group.placed()
        # The OOM kills on each rank's node before the segment. If the count has grown later, the kernel has killed a process.
        self._oom_kills = [worker.oom_kills for worker in group.workers]
        self._results: dict[int, RankResult] = {}
        self._communication: Failure | None = None  # an error most likely caused by another rank's exit
        # When each stop of this process ended, by the monotonic clock, and its seconds:
        self._stops: list[tuple[float, float]] = []
        # Points in time by `_now`, or None:
        self._unresponsive_since: float | None = None  # since when no rank answers; None if any rank does
        self._cause_until: float | None = None  # when to stop waiting for the cause of the communication error
        self._leave_until: float | None = None  # once a rank has left: the time by which all ranks must have left
        self._save_until = 0.0  # once a rank has left: the time by which all ranks must have saved their checkpoints
        self._check_at: float | None = None  # when to check next whether the ranks make progress

    async def until_ready(self, ready: Sequence[Any], trained: Sequence[Any]) -> Failure | NotReusable | None:
        """Wait until all ranks are ready to call the training function, or until it is clear that one will not be.

        Return None if all ranks are ready, else the failure or the reason why a warm process cannot be reused.

        ready, trained: the ranks' answers once they are ready, and once they have called the training function.
        """
        tasks = _tasks(ready)
        pending = set(tasks)
        communication: Failure | None = None
        until = self._now() + _ready_s(self._run.launch)
        try:
            while pending:
                done = await self._next(pending, until)
                if not done:
                    break
                for task in done:
                    pending.discard(task)
                    found = await self._result(task, tasks[task])
                    if isinstance(found, (NotReusable, Failure)):
                        return found
                    if isinstance(found, int):
                        self._oom_kills[tasks[task]] = found
                    if isinstance(found, RankError):
                        failure = failures.from_error(found, self._placed[tasks[task]])
                        if not self._is_from_peer(found):
                            return failure
                        communication = communication or failure
                        until = self._now() + _CAUSE_S
            if communication is not None:
                return await self._behind(communication, trained)
            return await self._never_ready(min(tasks[task] for task in pending)) if pending else None
        finally:
            # The ranks that have been asked to train do so as soon as they are ready.
            self.lost_before_training = self.lost_rank and not (trained and _any_ready(tasks))
            _forget(tasks)

    async def _behind(self, communication: Failure, trained: Sequence[Any]) -> Failure:
        """Return the failure of the rank that another rank missed while it got ready.

        If none is found, return `communication`, which is not the fault of the user's code unless that was being loaded.

        A rank that is ready calls the training function at once. It may fail there while another rank still connects to it.
        """
        tasks = _tasks(trained)
        pending = set(tasks)
        until = self._now() + _CAUSE_S
        try:
            while pending and (done := await self._next(pending, until)):
                pending -= done
                for task in done:
                    outcome = await self._ended(task, tasks[task])
                    if outcome is not None and outcome.failure is not None:
                        return outcome.failure
            return communication if communication.kind == "spec" else _peer_lost(communication)
        finally:
            _forget(tasks)

    async def until_ended(self, refs: Sequence[Any]) -> Outcome:
        """Wait until all ranks have ended, or it is clear that some never will. Return the segment's outcome."""
        hang_timeout = self._limits.hang_timeout_s
        self._check_at = None if hang_timeout is None else self._now() + hang_timeout
        tasks = _tasks(refs)
        pending = set(tasks)
        try:
            outcome = await self._first_known(tasks, pending)
            if outcome.failure is None:
                return outcome
            return dataclasses.replace(outcome, uploading=await self._last_uploads(tasks, pending))
        except EndedEarly as ended:
            if ended.ending.failure is not None:
                await self._last_uploads(tasks, pending)
            raise
        finally:
            _forget(tasks)

    async def _last_uploads(
        self, tasks: Mapping[asyncio.Task[Any], int], pending: Iterable[asyncio.Task[Any]]
    ) -> tuple[CheckpointInfo, ...]:
        """Let rank 0 of a segment that has failed send its last reports, and return the checkpoints whose upload continues."""
        if not any(tasks[task] == 0 for task in pending):  # rank 0 has ended
            return tuple(self._results[0].uploading) if 0 in self._results else ()
        # It trains, and will be stopped.
        asked = asyncio.ensure_future(answer(self._group.actors[0].send_reports.remote()))
        until = time.monotonic() + self._run.saving_s
        try:
            await asyncio.wait({asked}, timeout=ANSWER_S)
            # It may take its time to save checkpoints, unless a user kills the trial.
            while (
                not (asked.done() or self._run.ending.done())
                and time.monotonic() < until
                and await self._run.saves([0])
            ):
                await asyncio.wait({asked, self._run.ending}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            return tuple(asked.result()) if asked.done() and asked.exception() is None else ()
        finally:
            asked.cancel()

    async def _first_known(self, tasks: Mapping[asyncio.Task[Any], int], pending: set[asyncio.Task[Any]]) -> Outcome:
        """Return the segment's outcome as soon as it is known. Remove the tasks of ranks that have ended from `pending`."""
        while pending:
            due = (self._cause_until, self._leave_until, self._check_at)
            for task in await self._next(pending, min((t for t in due if t is not None), default=None)):
                pending.discard(task)
                if (failed := await self._ended(task, tasks[task])) is not None:
                    return failed
            if pending and (failed := await self._overdue([tasks[task] for task in pending])) is not None:
                return failed
        return await self._outcome()

    # -- waiting

    def _now(self) -> float:
        """Return the time of a clock that stands still while this process is stopped, since the ranks may be stopped with it."""
        return time.monotonic() - sum(seconds for _, seconds in self._stops)

    async def _next(self, pending: Iterable[asyncio.Task[Any]], until: float | None) -> set[asyncio.Task[Any]]:
        """Wait until at least one rank has answered, and return the tasks of the ranks that have answered.

        Return an empty set if no rank has answered by the time `until`.

        Raises:
            EndedEarly: the segment has to end now.
        """
        ending = self._run.ending
        step = max(1.0, (self._limits.hang_timeout_s or 0.0) / _STEPS)
        while True:
            timeout = None if until is None else min(max(0.0, until - self._now()), step)
            begun = time.monotonic()
            done, _ = await asyncio.wait({*pending, ending}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            woken = time.monotonic()
            if timeout is not None and (late := woken - begun - timeout) >= _STOPPED_S:
                log.info("this process was stopped for %.0f s, which does not count towards a hang of its trials", late)
                self._stops.append((woken, late))
            if ending.done():
                raise EndedEarly(ending.result())
            if done or (until is not None and self._now() >= until):
                return {task for task in done if isinstance(task, asyncio.Task)}

    async def _result(self, task: asyncio.Task[Any], rank: int) -> Any:
        """Return a rank's answer, or a `Failure` if the rank's process has died."""
        try:
            return task.result()
        except lost_errors() as error:
            self.lost_rank = True
            found = await self._inspect(rank)
            final = await self._final(error, rank) if found.node_alive else error
            return failures.from_death(final, self._placed[rank], self._oom_kills[rank], found)

    async def _final(self, error: BaseException, rank: int) -> BaseException:
        """Return the error that says how a rank's process died, if Ray learns of its death soon, else `error`.

        Ray waits for news of a death for only one second, which is too short on a busy machine. It then says that the process
        cannot be reached, as if a connection had broken. If the segment has to end now, do not wait for the news.
        """
        until = time.monotonic() + _CAUSE_S
        while isinstance(error, unavailable_errors()) and time.monotonic() < until and not self._run.ending.done():
            now = (await self._run.ask("progress", [rank])).get(rank)
            if isinstance(now, lost_errors()):
                error = now
            elif not isinstance(now, TimeoutError):  # it lives
                break
            await asyncio.sleep(_AGAIN_S)
        return error

    async def _ended(self, task: asyncio.Task[Any], rank: int) -> Outcome | None:
        """Record how one rank has ended. Return the segment's outcome if it is now known, else None."""
        result = await self._result(task, rank)
        if isinstance(result, Failure):
            return failed(result, self._reports())
        self._results[rank] = result
        self._run.log_rest += result.log
        if result.error is not None:
            failure = failures.from_error(result.error, self._placed[rank])
            if result.error.cause == "stop_ignored":
                failure = dataclasses.replace(failure, stacks=await self._run.stacks())
            if not self._is_from_peer(result.error):
                return failed(failure, result.reports)
            self._communication = self._communication or failure
            self._cause_until = self._cause_until or self._now() + _CAUSE_S
        elif result.kind == "left" and self._leave_until is None:
            self._leave_until = self._now() + self._limits.stop_grace_s
            self._save_until = self._now() + self._run.saving_s
        return None

    async def _overdue(self, missing: Sequence[int]) -> Outcome | None:
        """Return the segment's outcome if the ranks that have not ended are past a deadline, else None."""
        now = self._now()
        if self._communication is not None and self._cause_until is not None and now >= self._cause_until:
            return failed(_peer_lost(self._communication), self._reports())
        if self._leave_until is not None and now >= self._leave_until:
            if await self._run.saves(missing, too_long=now >= self._save_until):
                self._leave_until = now + min(LOOK_S, self._limits.stop_grace_s)
                return None
            return failed(await self._stayed(missing), self._reports())
        hang_timeout = self._limits.hang_timeout_s
        if self._check_at is not None and hang_timeout is not None and now >= self._check_at:
            rank, idle = await self._idle(missing)
            idle -= sum(seconds for ended, seconds in self._stops if ended > time.monotonic() - idle)
            if idle >= hang_timeout:
                return failed(await self._hung(rank), self._reports())
            self._check_at = now + (hang_timeout - idle if self._unresponsive_since is None else LOOK_S)
        return None

    async def _outcome(self) -> Outcome:
        """Return the outcome after all ranks have ended."""
        if self._communication is not None:
            return failed(_peer_lost(self._communication), self._reports())
        results = self._results
        reports = results[0].reports
        warning = "; ".join(
            filter(None, (failures.unequal_reports(results), *(result.warning for result in results.values())))
        )
        uploading = tuple(results[0].uploading)
        if any(result.kind == "left" for result in results.values()):
            return Outcome(kind="left", reports=reports, warning=warning, uploading=uploading)
        if reports == 0 and not self._run.launch.start_iteration:  # a later segment may have had nothing to do
            return failed(await self._no_report())
        return Outcome(kind="returned", reports=reports, warning=warning, uploading=uploading)

    def _is_from_peer(self, error: RankError) -> bool:
        """Return whether another rank most likely caused this error. If there is only one rank, none can have."""
        return error.communication and len(self._placed) > 1

    def _reports(self) -> int:
        return max((result.reports for result in self._results.values()), default=0)

    async def _idle(self, ranks: Sequence[int]) -> tuple[int, float]:
        """Return the rank that most likely holds up the others, and the number of seconds since any rank made progress.

        That rank is one that does not answer or, if all answer, the one with the fewest reports.
        """
        asked_at = self._now()
        answers = await self._run.ask("progress", ranks)
        known = {rank: answer for rank, answer in answers.items() if isinstance(answer, Progress)}
        unresponsive = [rank for rank in ranks if rank not in known]
        if unresponsive and len(unresponsive) == len(ranks):
            since = self._unresponsive_since = self._unresponsive_since or asked_at
            silent_s = self._now() - since
            return unresponsive[0], time.monotonic() - self._run.reported_at if silent_s >= _UNRESPONSIVE_S else 0.0
        self._unresponsive_since = None
        limit = self._run.saving_s
        excused = [
            # Rank 0 may wait for the driver for any length of time, while the other ranks wait for rank 0.
            (rank == 0 and answer.waiting) or (answer.saving and answer.idle_s < limit)
            for rank, answer in known.items()
        ]
        idle = 0.0 if any(excused) else min(answer.idle_s for answer in known.values())
        return unresponsive[0] if unresponsive else min(known, key=lambda r: (known[r].reports, known[r].waiting)), idle

    # -- failures in detail

    async def _inspect(self, rank: int) -> Findings:
        """Collect evidence about a rank from its node: the end of the rank's log, and the node's count of OOM kills."""
        node = self._group.workers[rank].node
        try:
            found: Findings = await asyncio.wait_for(
                self._pool.on_node(node, nodes.inspect, self._run.log_path(rank)), 10 * ANSWER_S
            )
            return found
        except Exception as error:
            log.info("node %s does not respond: %s", node[:8], error)
            return Findings(node_alive=False)

    async def _hung(self, rank: int) -> Failure:
        limit = self._limits.hang_timeout_s
        return await self._failure(rank, "hang", f"no report for {limit:g} s; the stacks of all ranks are stored")

    async def _never_ready(self, rank: int) -> Failure:
        message = f"the rank was not ready to train within {_ready_s(self._run.launch):g} s"
        return await self._failure(rank, "hang", message)

    async def _stayed(self, ranks: Sequence[int]) -> Failure:
        answers = await self._run.ask("progress", ranks)
        known = [
            f"rank {r} has made {counted(a.reports, 'report')}" for r, a in answers.items() if isinstance(a, Progress)
        ]
        message = (
            f"the rank did not leave within {self._limits.stop_grace_s:g} s of the other ranks"
            + (f" ({', '.join(known)})" if known else "")
            + ": every rank must call tuner.report the same number of times and must not catch its exceptions"
        )
        return await self._failure(ranks[0], "stop_ignored", message)

    async def _no_report(self) -> Failure:
        message = "the training function returned without calling tuner.report"
        return await self._failure(0, "no_report", message, stacks=False)

    async def _failure(self, rank: int, cause: str, message: str, stacks: bool = True) -> Failure:
        place = self._placed[rank]
        found = await self._inspect(rank)
        return Failure(
            kind="user",
            cause=cause,
            message=message,
            rank=rank,
            node=place.host,
            pid=place.pid,
            log_tail=found.log_tail,
            stacks=await self._run.stacks() if stacks else {},
        )


def failed(failure: Failure, reports: int = 0) -> Outcome:
    """Return the outcome of a segment with this failure."""
    return Outcome(kind="failed", failure=failure, reports=reports)


def _ready_s(launch: Launch) -> float:
    # A checkpoint on another node's disk has to be copied first.
    maybe_elsewhere = launch.checkpoint is not None and launch.checkpoint.node is not None
    return max(SAVING_S if maybe_elsewhere else _READY_S, launch.limits.hang_timeout_s or 0.0)


def _peer_lost(communication: Failure) -> Failure:
    """Turn a communication error into a failure with the cause `peer_lost`, because no other rank reported an error.

    Another rank or its connection was lost, which is not the fault of the user's code.
    """
    return dataclasses.replace(communication, kind="system", cause="peer_lost")


def _tasks(refs: Sequence[Any]) -> dict[asyncio.Task[Any], int]:
    return {asyncio.create_task(answer(ref)): rank for rank, ref in enumerate(refs)}


def _any_ready(tasks: Iterable[asyncio.Task[Any]]) -> bool:
    return any(task.done() and task.exception() is None and isinstance(task.result(), int) for task in tasks)


def _forget(tasks: Mapping[asyncio.Task[Any], int]) -> None:
    """Cancel tasks whose answers are no longer needed, and ignore their errors."""
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()
        task.cancel()
