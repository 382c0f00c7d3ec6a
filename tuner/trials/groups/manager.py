"""Run segments on worker groups, on the driver host's event loop. Whatever happens, `run` returns an `Outcome`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

import ray

from tuner.domain.events import Failure
from tuner.domain.experiment import Scaling
from tuner.domain.logs import LogLimit
from tuner.domain.segments import Outcome
from tuner.errors import PlacementError
from tuner.trials.groups import failures, nodes
from tuner.trials.groups.failures import Findings
from tuner.trials.groups.pool import RESERVE_AFTER_S, Group, LostAtStart, NoRoom, Pool
from tuner.trials.messages.launch import Inbox, Launch
from tuner.trials.messages.protocol import Progress, RankError, RankResult, Recycle
from tuner.trials.messages.report_socket import Address

log = logging.getLogger(__name__)

_ECHO_S = 10.0  # how long to wait for the error behind a communication error; a busy machine takes seconds
_READY_S = 120.0  # imports and the rendezvous may take this long, even if reports must come faster
_ANSWER_S = 2.0  # how long a rank may take to answer a question
_MUTE_S = 20.0  # how long no rank may answer: it may be in C code that holds the GIL, or on a machine that swaps
_SAVING_S = 600.0  # a rank's last checkpoint may take this long, even if reports must come faster
_LOOK_S = 1.0  # how often a rank that saves is checked
_AGAIN_S = 0.2  # between two attempts to reach a rank

_URGENT = ("stop", "cancel")


@dataclass(frozen=True, slots=True)
class _Ending:
    """Why a segment must end now, whatever its ranks do."""

    how: Literal["left", "failed"]
    reason: str


class _Ended(Exception):
    def __init__(self, ending: _Ending) -> None:
        super().__init__(ending.reason)
        self.ending = ending


class LogFile(NamedTuple):
    """Where a rank has written its log."""

    rank: int
    node: str  # Ray's id
    path: str


class Logs(Protocol):
    """Keeps what the ranks print."""

    def end(self, segment_id: str, files: Sequence[LogFile], gone: Awaitable[Any] | None) -> None:
        """Complete the logs of a segment that has ended. Must not block.

        Args:
            segment_id: the segment that has ended.
            files: where its ranks have written their logs.
            gone: returns once the processes of the ranks are gone; None if they stay for another segment.
        """


@dataclass(slots=True, eq=False)
class _Running:
    launch: Launch
    ending: asyncio.Future[_Ending]
    group: Group | None = None
    training: bool = False
    interrupt: str | None = None  # an interrupt that came while the ranks were getting ready
    measuring: dict[int, asyncio.Task[dict[str, float]]] = field(default_factory=dict)  # questions under way, by rank
    mute_since: float | None = None  # since when no rank has answered
    grace: asyncio.Task[None] | None = None
    interrupting: asyncio.Task[None] | None = None
    log_files: Sequence[LogFile] = ()
    gone: Awaitable[Any] | None = None  # returns once the processes of its ranks are gone, if they are being ended

    def end(self, how: Literal["left", "failed"], reason: str) -> None:
        if not self.ending.done():
            self.ending.set_result(_Ending(how, reason))

    def log_path(self, rank: int) -> str:
        return os.path.join(self.launch.log_dir, self.launch.segment_id, f"rank{rank}.log")


class GroupManager:
    """Runs segments on worker groups.

    Args:
        driver: the actor that ranks report to, see `launch.Driver`.
        name: a prefix for the names of placement groups.
        autoscaling: the cluster may still grow, so a group that does not fit now waits instead of being refused.
        idle_timeout_s: how long a warm group is kept for another trial.
        report_address: where the driver listens for reports; None if they can only go through Ray.
        reserve_after_s: how long a group waits for room before groups that ask later must wait for it.
        logs: is told of the end of each segment.
        log_limit: how much of each log the ranks send to the driver; None if they send nothing.
    """

    def __init__(
        self,
        driver: Any,
        *,
        name: str = "",
        autoscaling: bool = False,
        idle_timeout_s: float = 60.0,
        report_address: Address | None = None,
        reserve_after_s: float = RESERVE_AFTER_S,
        logs: Logs | None = None,
        log_limit: LogLimit | None = None,
    ) -> None:
        self._logs = logs
        self._pool = Pool(
            driver,
            name=name,
            autoscaling=autoscaling,
            idle_timeout_s=idle_timeout_s,
            report_address=report_address,
            reserve_after_s=reserve_after_s,
            log_limit=log_limit,
        )
        self._running: dict[str, _Running] = {}
        self._releases: set[asyncio.Task[None]] = set()

    async def run(self, launch: Launch, *, inbox: Inbox) -> Outcome:
        """Run one segment to its end."""
        running = _Running(launch, asyncio.get_running_loop().create_future())
        self._running[launch.segment_id] = running
        try:
            return await self._run(running, inbox)
        except NoRoom as error:
            return _failed(Failure(kind="system", cause="placement_timeout", message=str(error)))
        except LostAtStart as error:
            return _failed(Failure(kind="system", cause="lost_at_start", message=str(error)))
        except PlacementError as error:
            return _failed(Failure(kind="placement", cause="placement", message=str(error)))
        except _Ended as ended:
            if ended.ending.how == "left":
                return Outcome(kind="left")
            return _failed(Failure(kind="system", cause="killed", message=ended.ending.reason))
        finally:
            del self._running[launch.segment_id]
            if self._logs is not None:
                self._logs.end(launch.segment_id, running.log_files, running.gone)
            for task in (running.grace, running.interrupting, *running.measuring.values()):
                if task is not None:
                    task.cancel()

    async def interrupt(self, segment_id: str, action: str) -> None:
        """Make all ranks wait for a verdict at the same report, the next one that none of them has begun.

        A segment whose ranks have not been placed yet ends at once. For "stop" and "cancel", the group is killed if
        it is still there after `limits.stop_grace_s`, counted from now even if its ranks are still getting ready.
        Other actions wait for the next report, as the training up to it would be lost otherwise. A "stop" waits
        longer while a last checkpoint is being saved. A "kill" ends the group at once.
        """
        running = self._running.get(segment_id)
        if running is None:
            return
        if running.group is None or action == "kill":
            running.end("left", action)
            return
        if action in _URGENT and running.grace is None:
            running.grace = asyncio.create_task(self._grace(running, action))
        if running.training:
            await self._agree(running)
        else:
            running.interrupt = action

    async def _agree(self, running: _Running) -> None:
        """Find the next report that no rank has begun, and make it a milestone of all ranks.

        No rank ends a hold by itself. So every round ends with a release of all ranks: with the milestone if all have
        answered, without one if not. Then the next round begins, unless the segment has ended.
        """
        while running.training and running.group is not None:
            actors, interrupt = running.group.actors, secrets.token_hex(8)
            milestone: int | None = None
            try:
                milestone = await self._hold(running, actors, interrupt)
            except ray.exceptions.ActorUnavailableError as error:
                log.info(
                    "segment %s: a rank could not be reached for an interrupt: %s", running.launch.segment_id, error
                )
            except ray.exceptions.RayError as error:
                log.info("segment %s ended while it was interrupted: %s", running.launch.segment_id, error)
                return  # the segment ends, and its ranks with it
            finally:
                release = asyncio.create_task(self._release(running, actors, interrupt, milestone))
                self._releases.add(release)  # goes on if this task is cancelled
                release.add_done_callback(self._releases.discard)
            await asyncio.shield(release)
            if milestone is not None:
                return
            await asyncio.sleep(_AGAIN_S)

    async def _hold(self, running: _Running, actors: list[Any], interrupt: str) -> int | None:
        """Hold all ranks and return the next report that none has begun.

        Return None if some rank is not running this segment any more.
        """
        segment_id = running.launch.segment_id
        counts = await asyncio.gather(*(_get(actor.hold.remote(segment_id, interrupt)) for actor in actors))
        known = [count for count in counts if count is not None]
        return max(known) + 1 if running.training and len(known) == len(actors) else None

    async def _release(self, running: _Running, actors: list[Any], interrupt: str, milestone: int | None) -> None:
        """Release all ranks. Keep trying to reach each rank until it, or the segment, has ended."""
        segment_id = running.launch.segment_id

        async def release(actor: Any) -> None:
            while True:
                try:
                    await _get(actor.release.remote(segment_id, interrupt, milestone))
                    return
                except ray.exceptions.ActorUnavailableError:
                    if segment_id not in self._running:
                        return
                    await asyncio.sleep(_AGAIN_S)
                except ray.exceptions.RayError:
                    return  # its process is gone

        await asyncio.gather(*(release(actor) for actor in actors))

    async def _grace(self, running: _Running, action: str) -> None:
        grace = running.launch.limits.stop_grace_s
        await asyncio.sleep(grace)
        until = time.monotonic() + _saving_s(running.launch)
        while action == "stop" and time.monotonic() < until and await self._saves(running):
            await asyncio.sleep(_LOOK_S)
        running.end("left", f"no report within {grace:g} s of the {action}")

    async def kill(self, segment_id: str, reason: str) -> None:
        """End a segment and its group now."""
        running = self._running.get(segment_id)
        if running is not None:
            running.end("failed", reason)

    async def rest(self, keep: bool) -> None:
        """End the idle groups, and return once they are gone. With `keep` end only those that have GPUs."""
        await self._pool.rest(keep)

    def trim(self, scaling: Scaling, count: int | None) -> None:
        """End the idle groups of other kinds, and those of this kind above `count`, which nobody here will use."""
        self._pool.trim(scaling, count)

    async def close(self) -> None:
        """End everything, and leave no process, placement group or port behind."""
        for running in self._running.values():
            running.end("failed", "the driver is shutting down")
        while self._running:
            await asyncio.sleep(0.01)
        await self._pool.close()

    async def settle(self) -> None:
        """Wait until groups that are being ended are gone."""
        await self._pool.settle()

    def stats(self) -> dict[str, int]:
        """Return how many segments run and wait, and how many warm groups are kept."""
        training = sum(running.training for running in self._running.values())
        return {"running": training, "waiting": len(self._running) - training, "idle": self._pool.idle}

    async def stacks(self, segment_id: str) -> dict[str, str]:
        """Return rank -> its Python stacks now, or a note that the rank cannot answer."""
        answers = await self._ask(segment_id, "stacks")
        silent = "no answer: the process is stopped, or a C call holds the GIL"
        return {str(rank): answer if isinstance(answer, str) else silent for rank, answer in answers.items()}

    async def usage(self, segment_id: str) -> dict[str, dict[str, float]]:
        """Return rank -> its CPU seconds, memory and GPU memory now, for the ranks that answer."""
        answers = await self._ask(segment_id, "usage")
        return {str(rank): answer for rank, answer in answers.items() if isinstance(answer, dict)}

    async def measure(self, segment_ids: Iterable[str]) -> dict[str, dict[int, dict[str, float]]]:
        """Return segment -> rank -> its resource usage now, for the ranks that train and answer soon.

        A rank that has not answered an earlier question is not asked again: questions to a rank that hangs in C code
        for hours would pile up.
        """
        asked = [self._running[name] for name in segment_ids if name in self._running and self._running[name].training]
        for running in asked:
            assert running.group is not None
            for rank, actor in enumerate(running.group.actors):
                if rank not in running.measuring:
                    task = running.measuring[rank] = asyncio.create_task(_get(actor.usage.remote()))
                    task.add_done_callback(_heard)
        waiting = [task for running in asked for task in running.measuring.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=_ANSWER_S)
        return {running.launch.segment_id: _answers(running) for running in asked if running.training}

    # -- one segment

    async def _run(self, running: _Running, inbox: Inbox) -> Outcome:
        launch = running.launch
        begun = time.monotonic()
        while True:
            group, warm = await self._unless_ended(
                running, self._pool.acquire(launch, lambda reason: inbox.waiting(launch.segment_id, reason))
            )
            running.group = group
            running.log_files = [
                LogFile(rank, member.node, running.log_path(rank)) for rank, member in enumerate(group.members)
            ]
            reusable = False
            try:
                ready, trained = self._start(group, launch)
                answer = await self._get_ready(running, ready)
                if isinstance(answer, Recycle):
                    log.info("a warm worker group cannot be used again: %s", answer.reason)
                    if running.interrupt is not None:
                        return Outcome(kind="left")
                    continue
                if answer is not None:
                    return _failed(answer)
                running.training = True
                inbox.started(launch.segment_id, _placement(group), time.monotonic() - begun, warm)
                if running.interrupt is not None:
                    running.interrupting = asyncio.create_task(self._agree(running))
                outcome = await self._watch(running, trained)
                reusable = launch.scaling.reuse_workers and (outcome.failure is None or _only_raised(outcome, launch))
                return outcome
            finally:
                running.training = False
                running.group = None
                running.gone = self._pool.release(group, reusable)

    def _start(self, group: Group, launch: Launch) -> tuple[list[Any], list[Any]]:
        """Tell all ranks to get ready and to train, in one go. Return references to both answers of each."""
        code = None
        if launch.code.entrypoint is None and launch.code.hash not in group.codes:
            code = launch.code.blob
            group.codes = {launch.code.hash}
        ready, trained = [], []
        for actor, assignment in zip(group.actors, group.assignments, strict=True):
            ready.append(actor.prepare.remote(launch, None if group.assigned else assignment, code))
            trained.append(actor.train.remote())
        group.assigned = True
        group.runs += 1
        return ready, trained

    async def _get_ready(self, running: _Running, refs: list[Any]) -> Failure | Recycle | None:
        """Wait until all ranks are about to enter the function, or one cannot.

        Return None, or the failure, or the reason why a warm process cannot be used again.
        """
        group = running.group
        assert group is not None
        tasks: dict[asyncio.Future[Any], int] = {asyncio.create_task(_get(ref)): rank for rank, ref in enumerate(refs)}
        pending = set(tasks)
        echo: Failure | None = None
        until = time.monotonic() + _ready_s(running.launch)
        try:
            while pending:
                timeout = max(0.0, until - time.monotonic())
                done, _ = await asyncio.wait(
                    {*pending, running.ending}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                if running.ending.done():
                    raise _Ended(running.ending.result())
                if not done:
                    return echo or await self._never_ready(running, min(tasks[task] for task in pending))
                for task in done:
                    pending.discard(task)
                    answer = await self._settled(running, task, tasks[task])
                    if isinstance(answer, Recycle):
                        return answer
                    if isinstance(answer, RankError):
                        failure = failures.from_error(answer, group.placed()[tasks[task]])
                        if not answer.communication:
                            return failure
                        echo = echo or failure
                        until = time.monotonic() + _ECHO_S
                    elif isinstance(answer, Failure):
                        return answer
            return echo
        finally:
            _forget(tasks)

    async def _watch(self, running: _Running, refs: list[Any]) -> Outcome:
        """Wait until all ranks have ended, or until it is clear that not all will, and return the outcome."""
        group, limits = running.group, running.launch.limits
        assert group is not None
        placed = group.placed()
        tasks: dict[asyncio.Future[Any], int] = {asyncio.create_task(_get(ref)): rank for rank, ref in enumerate(refs)}
        pending = set(tasks)
        results: dict[int, RankResult] = {}
        echo: Failure | None = None
        echo_until = leave_until = None
        save_until = 0.0
        check_at = time.monotonic() + limits.hang_timeout_s if limits.hang_timeout_s is not None else None
        try:
            while pending:
                until = min((t for t in (echo_until, leave_until, check_at) if t is not None), default=None)
                timeout = None if until is None else max(0.0, until - time.monotonic())
                done, _ = await asyncio.wait(
                    {*pending, running.ending}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                if running.ending.done():
                    raise _Ended(running.ending.result())
                for task in done:
                    pending.discard(task)
                    rank = tasks[task]
                    result = await self._settled(running, task, rank)
                    if isinstance(result, Failure):
                        return _failed(result, _reports(results))
                    results[rank] = result
                    if result.error is not None:
                        failure = failures.from_error(result.error, placed[rank])
                        if result.error.cause == "stop_ignored":
                            failure = await self._with_stacks(running, failure)
                        if not result.error.communication:
                            return _failed(failure, result.reports)
                        echo = echo or failure
                        echo_until = echo_until or time.monotonic() + _ECHO_S
                    elif result.kind == "left" and leave_until is None:
                        leave_until = time.monotonic() + limits.stop_grace_s
                        save_until = time.monotonic() + _saving_s(running.launch)
                now, missing = time.monotonic(), [tasks[task] for task in pending]
                if not missing:
                    break
                if echo is not None and echo_until is not None and now >= echo_until:
                    return _failed(_lost(echo), _reports(results))
                if leave_until is not None and now >= leave_until:
                    if await self._saves(running, missing, too_long=now >= save_until):
                        leave_until = now + min(_LOOK_S, limits.stop_grace_s)
                        continue
                    return _failed(await self._stayed(running, missing), _reports(results))
                if check_at is not None and limits.hang_timeout_s is not None and now >= check_at:
                    rank, idle = await self._silence(running, missing)
                    if idle >= limits.hang_timeout_s:
                        return _failed(await self._hung(running, rank), _reports(results))
                    check_at = now + (limits.hang_timeout_s - idle if running.mute_since is None else _LOOK_S)
        finally:
            _forget(tasks)
        if echo is not None:
            return _failed(_lost(echo), _reports(results))
        reports = results[0].reports
        warning = "; ".join(filter(None, (failures.uneven(results), *(result.warning for result in results.values()))))
        if any(result.kind == "left" for result in results.values()):
            return Outcome(kind="left", reports=reports, warning=warning)
        if reports == 0 and not running.launch.start_iteration:  # otherwise it continued from its own end
            return _failed(await self._silent(running))
        return Outcome(kind="returned", reports=reports, warning=warning)

    async def _settled(self, running: _Running, task: asyncio.Future[Any], rank: int) -> Any:
        """Return a rank's answer, or the failure if its process has died."""
        try:
            return task.result()
        except ray.exceptions.RayError as error:
            group = running.group
            assert group is not None
            member = group.members[rank]
            found = await self._inspect(running, rank)
            return failures.from_death(error, group.placed()[rank], member.oom_kills, found)

    async def _unless_ended(self, running: _Running, work: Any) -> Any:
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, running.ending}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise _Ended(running.ending.result())
        finally:
            if not task.done():
                task.cancel()
                with contextlib.suppress(BaseException):
                    await task

    # -- failures in detail

    async def _saves(self, running: _Running, ranks: list[int] | None = None, *, too_long: bool = False) -> bool:
        """Return whether one of these ranks is leaving and has a checkpoint that is not committed yet.

        A rank that has only just finished counts, too.

        too_long: count only ranks that wait for the driver, as they do while it cannot commit.
        """
        answers = await self._ask(running.launch.segment_id, "progress", ranks)
        if too_long:
            return any(isinstance(a, Progress) and a.saving and a.waiting for a in answers.values())
        return any(a is None or (isinstance(a, Progress) and a.saving) for a in answers.values())

    async def _inspect(self, running: _Running, rank: int) -> Findings:
        """Return what a dead rank has left on its node."""
        assert running.group is not None
        node = running.group.members[rank].node
        try:
            found: Findings = await asyncio.wait_for(
                self._pool.on_node(node, nodes.inspect, running.log_path(rank)), 10 * _ANSWER_S
            )
            return found
        except Exception as error:
            log.info("node %s does not answer: %s", node[:8], error)
            return Findings(node_alive=False)

    async def _silence(self, running: _Running, ranks: list[int]) -> tuple[int, float]:
        """Return the rank that most likely holds up the others, and for how long no rank has made progress.

        It is the rank that has reported least.
        """
        asked_at = time.monotonic()
        answers = await self._ask(running.launch.segment_id, "progress", ranks)
        known = {rank: answer for rank, answer in answers.items() if isinstance(answer, Progress)}
        mute = [rank for rank in ranks if rank not in known]
        if mute and len(mute) == len(ranks):
            running.mute_since = running.mute_since or asked_at
            return mute[0], float("inf") if time.monotonic() - running.mute_since >= _MUTE_S else 0.0
        running.mute_since = None
        saving_s = _saving_s(running.launch)
        excused = [
            # Rank 0 waits for the driver, however long that takes; the other ranks wait for rank 0.
            (rank == 0 and answer.waiting) or (answer.saving and answer.idle_s < saving_s)
            for rank, answer in known.items()
        ]
        idle = 0.0 if any(excused) else min(answer.idle_s for answer in known.values())
        return mute[0] if mute else min(known, key=lambda r: (known[r].reports, known[r].waiting)), idle

    async def _hung(self, running: _Running, rank: int) -> Failure:
        limit = running.launch.limits.hang_timeout_s
        return await self._complain(
            running, rank, "hang", f"no report for {limit:g} s; the stacks of all ranks are kept"
        )

    async def _never_ready(self, running: _Running, rank: int) -> Failure:
        message = f"did not get ready to train within {_ready_s(running.launch):g} s"
        return await self._complain(running, rank, "hang", message)

    async def _stayed(self, running: _Running, ranks: list[int]) -> Failure:
        answers = await self._ask(running.launch.segment_id, "progress", ranks)
        known = [f"rank {r} has made {a.reports} reports" for r, a in answers.items() if isinstance(a, Progress)]
        message = (
            f"did not leave within {running.launch.limits.stop_grace_s:g} s of the other ranks"
            + (f" ({', '.join(known)})" if known else "")
            + ": every rank must call tuner.report equally often and must not catch what it raises"
        )
        return await self._complain(running, ranks[0], "stop_ignored", message)

    async def _silent(self, running: _Running) -> Failure:
        message = "the training function returned without calling tuner.report"
        return await self._complain(running, 0, "no_report", message, stacks=False)

    async def _complain(self, running: _Running, rank: int, cause: str, message: str, stacks: bool = True) -> Failure:
        assert running.group is not None
        place = running.group.placed()[rank]
        found = await self._inspect(running, rank)
        return Failure(
            kind="user",
            cause=cause,
            message=message,
            rank=rank,
            node=place.host,
            pid=place.pid,
            log_tail=found.log_tail,
            stacks=await self.stacks(running.launch.segment_id) if stacks else {},
        )

    async def _with_stacks(self, running: _Running, failure: Failure) -> Failure:
        return replace(failure, stacks=await self.stacks(running.launch.segment_id))

    async def _ask(self, segment_id: str, question: str, ranks: list[int] | None = None) -> dict[int, Any]:
        """Return rank -> its answer, or the exception that came instead."""
        running = self._running.get(segment_id)
        if running is None or running.group is None:
            return {}
        actors = running.group.actors
        ranks = list(range(len(actors))) if ranks is None else ranks
        answers = await asyncio.gather(
            *(asyncio.wait_for(_get(getattr(actors[rank], question).remote()), _ANSWER_S) for rank in ranks),
            return_exceptions=True,
        )
        return dict(zip(ranks, answers, strict=True))


def _ready_s(launch: Launch) -> float:
    travels = (
        launch.checkpoint is not None and launch.checkpoint.node is not None
    )  # it may have to be copied from another node
    return max(_SAVING_S if travels else _READY_S, launch.limits.hang_timeout_s or 0.0)


def _saving_s(launch: Launch) -> float:
    return max(_SAVING_S, launch.limits.hang_timeout_s or 0.0)


def _placement(group: Group) -> Mapping[str, Any]:
    return {
        "ranks": [
            {"rank": p.rank, "node": p.node, "host": p.host, "pid": p.pid, "gpus": list(p.gpus)} for p in group.placed()
        ]
    }


def _lost(echo: Failure) -> Failure:
    """Turn an error that only follows from another one into the failure `peer_lost`.

    Nobody has seen what happened first: a rank or its connection was lost, which is not an error in the user's code.
    """
    return dataclasses.replace(echo, kind="system", cause="peer_lost")


def _only_raised(outcome: Outcome, launch: Launch) -> bool:
    """Return whether the worker is as usable after this failure as after a trial that ended well.

    It is after a Python exception before the first report, if the rank is alone (no other rank may still wait for it)
    and has no GPU, whose context the error may have broken. The clean-up of the process still has to succeed.
    """
    failure, scaling = outcome.failure, launch.scaling
    if failure is None or failure.kind != "user" or failure.cause != "exception" or outcome.reports:
        return False
    return scaling.num_workers == 1 and not scaling.bundle().get("GPU")


def _failed(failure: Failure, reports: int = 0) -> Outcome:
    return Outcome(kind="failed", failure=failure, reports=reports)


def _reports(results: Mapping[int, RankResult]) -> int:
    return max((result.reports for result in results.values()), default=0)


def _forget(tasks: Mapping[asyncio.Future[Any], int]) -> None:
    """Drop answers that nobody waits for any more, including errors."""
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()
        task.cancel()


def _answers(running: _Running) -> dict[int, dict[str, float]]:
    """Return rank -> the usage that has arrived, and take it out of `measuring`."""
    done = {rank: task for rank, task in running.measuring.items() if task.done()}
    for rank in done:
        del running.measuring[rank]
    return {rank: task.result() for rank, task in done.items() if not task.cancelled() and task.exception() is None}


def _heard(task: asyncio.Task[Any]) -> None:
    """Ignore an error: whoever watches the rank learns of its end in another way."""
    if not task.cancelled():
        task.exception()


async def _get(ref: Any) -> Any:
    return await ref
