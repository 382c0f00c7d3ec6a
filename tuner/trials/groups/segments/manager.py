"""Run segments on worker groups, in the driver host's event loop.

`GroupManager.run` turns every failure of a segment into an `Outcome`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tuner.domain.experiment import Scaling
from tuner.domain.logs import LogChunk
from tuner.domain.segments import CheckpointInfo, Failure, Outcome
from tuner.errors import PlacementError
from tuner.trials.checkpoints.staging import clear
from tuner.trials.groups.pools.admission import HeldGroup, WaitingGroup
from tuner.trials.groups.pools.group import Group
from tuner.trials.groups.segments.interrupts import Interrupts
from tuner.trials.groups.segments.segment_run import ANSWER_S, LOOK_S, EndedEarly, LogFile, SegmentRun, answer
from tuner.trials.groups.segments.uploads import Uploads
from tuner.trials.groups.segments.watch import Watch, failed
from tuner.trials.messages.launch import Inbox, Launch
from tuner.trials.messages.lost import LostAtStart, NoRoom
from tuner.trials.messages.profiling import ProfileRequest
from tuner.trials.messages.protocol import NotReusable

log = logging.getLogger(__name__)

_CLEAR_S = 60.0  # seconds that a node may take to delete what a segment has left
_URGENT = ("stop", "cancel")
_SOUND = (
    "exception",
    "script",
    "script_signal",
    "oom",
    "spec",
    "no_report",
    "checkpoint",
    "disk_full",
    "storage",
    "checkpoint_lost",
    "disk_lost",
    "checkpoint_unreachable",
)
"""Causes of failures after which uploads of earlier segments can still finish, if all the group's processes are still running.

With "oom", that is the case if only a script was killed.
"""


class Logs(Protocol):
    """Stores the output of the ranks."""

    def end(
        self,
        segment_id: str,
        files: Sequence[LogFile],
        gone: Awaitable[Any] | None,
        rest: Sequence[LogChunk] = (),
    ) -> None:
        """Store the rest of the logs of a segment that has ended. This method must not block.

        Args:
            segment_id: the segment that has ended.
            files: the log files of the segment's ranks.
            gone: completes once the ranks' processes have exited; None if the processes are kept for another segment.
            rest: log chunks that the ranks sent with their results.
        """


class GroupPool(Protocol):
    """Finds a worker group for each segment: `pool.Pool` on Ray, `local_pool.LocalPool` on this machine."""

    @property
    def idle(self) -> int:
        """Return how many warm groups are kept."""

    async def acquire(self, launch: Launch, waiting: Callable[[str], None]) -> tuple[Group, bool]:
        """Wait for a group of the kind that the launch needs. Return it, and whether it is warm. The call can be cancelled.

        waiting: called with the reason, in words, if the launch has to wait.

        Raises:
            NoRoom: no resources became free in time.
            LostAtStart: the workers died while they were being started.
            PlacementError: the group can never be placed, or its workers cannot be started.
        """

    def release(self, group: Group, reusable: bool) -> asyncio.Future[None] | None:
        """Keep the group for another segment if it is reusable and may be needed, else shut it down.

        Return None if the group is kept, else a future that is done once its processes have exited.
        """

    async def on_node(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function, such as those in the module `nodes`, on a node, and return its value."""

    async def rest(self, keep: bool) -> None:
        """Shut down the idle groups, and wait until they have exited. If `keep` is true, idle groups without GPUs may stay."""

    def trim(self, scaling: Scaling, count: int | None) -> None:
        """Shut down all idle groups except the newest `count` with this scaling. A `count` of None keeps all of these."""

    async def close(self) -> None:
        """Shut down all groups, and wait until they have exited."""

    async def settle(self) -> None:
        """Wait until every group that is shutting down has exited."""

    def cut(self, rank: bytes, silent: bool) -> None:
        """Place no groups on a rank's node while the node cannot be reached. If `silent` is False, place none for some time.

        rank: the token of the rank's process.
        """

    def held(self) -> list[HeldGroup]:
        """Return the groups that hold resources, oldest first."""

    def waiting(self) -> list[WaitingGroup]:
        """Return the groups that wait, in the order in which they will be served."""

    def share(self, experiment: str) -> float:
        """Return the largest fraction of any resource that the experiment holds."""

    def make_room(self, may_end: Callable[[str], bool]) -> list[tuple[str, str, int]]:
        """Return the segments that should end: (segment, the experiment that gets the resources, its priority).

        may_end: a function that returns whether a segment can end without losing work, and is not ending yet.
        """

    async def leaving(self) -> Mapping[str, str]:
        """Return the segments that have a rank on a node that is about to be taken away, each with the reason in words."""

    def granted(self, experiment: str, bundle: Mapping[str, float]) -> int | None:
        """Return how many workers with these resources the elastic trials of an experiment may have together.

        Return None if that is not known.
        """

    def forget(self, experiment: str) -> None:
        """Forget the past usage of an experiment that has ended."""


class GroupManager:
    """Runs segments on worker groups.

    Args:
        pool: the pool that finds a group for each segment.
        logs: the object that stores the ranks' logs; None if logs are not stored.
    """

    def __init__(self, pool: GroupPool, *, logs: Logs | None = None) -> None:
        self._logs, self._pool = logs, pool
        self._running: dict[str, SegmentRun] = {}
        self._uploads = Uploads()
        self._interrupts = Interrupts()
        self._clearing: set[asyncio.Task[None]] = set()

    async def run(self, launch: Launch, *, inbox: Inbox) -> Outcome:
        """Run one segment until it has ended, and return its outcome.

        inbox: the object to notify when the segment has to wait for resources, and when its ranks start.
        """
        running = SegmentRun(launch, asyncio.get_running_loop().create_future())
        self._running[launch.segment_id] = running
        try:
            return await self._run(running, inbox)
        except NoRoom as error:
            return failed(Failure(kind="system", cause="placement_timeout", message=str(error)))
        except LostAtStart as error:
            return failed(Failure(kind="system", cause="lost_at_start", message=str(error)))
        except PlacementError as error:
            return failed(Failure(kind="placement", cause="placement", message=str(error)))
        except EndedEarly as ended:
            if ended.ending.how == "left":
                return Outcome(kind="left")
            killed = Failure(kind="system", cause="killed", message=ended.ending.reason)
            return failed(ended.ending.failure or killed)
        finally:
            del self._running[launch.segment_id]
            running.over = True
            if self._logs is not None:
                self._logs.end(launch.segment_id, running.log_files, running.gone, running.log_rest)
            if running.gone is not None:
                clearing = asyncio.create_task(self._clear(running, running.gone))
                self._clearing.add(clearing)
                clearing.add_done_callback(self._clearing.discard)
            for task in (running.grace, running.interrupting, *running.measuring.values()):
                if task is not None:
                    task.cancel()

    async def interrupt(self, segment_id: str, action: str) -> None:
        """Make all ranks of a segment wait for a verdict at the next report that no rank has begun.

        A segment whose ranks have not been placed yet ends at once. A "kill" kills the group at once. After "stop" or
        "cancel", the group is killed if the segment does not end within `limits.stop_grace_s` seconds, counted from now
        even if its ranks are still starting. After "stop", the group gets more time while it is saving a last
        checkpoint, unless a "cancel" follows. No other action kills the group: all others wait for the report, because
        training up to it would otherwise be lost.

        If the segment has already ended, a "kill" aborts its uploads, and their checkpoints are lost.
        """
        running = self._running.get(segment_id)
        if running is None:
            if action == "kill":
                self._uploads.give_up(segment_id, "killed by a user")
            return
        if running.group is None or action == "kill":
            running.end("left", action)
            return
        if action in _URGENT and running.grace is None:
            running.grace = asyncio.create_task(self._grace(running))
        running.may_save = running.may_save and action != "cancel"
        if running.training:
            await self._interrupts.interrupt(running)
        else:
            running.interrupt = action

    def reported(self, segment_id: str) -> None:
        """Record the time at which a report of a segment arrives or is answered, so that the segment does not count as hung."""
        if (running := self._running.get(segment_id)) is not None:
            running.reported_at = time.monotonic()

    async def _grace(self, running: SegmentRun) -> None:
        grace = running.launch.limits.stop_grace_s
        await asyncio.sleep(grace)
        until = time.monotonic() + running.saving_s
        while running.may_save and time.monotonic() < until and await running.saves():
            await asyncio.sleep(LOOK_S)
        running.end("left", f"no report within {grace:g} s of the {'stop' if running.may_save else 'cancel'}")

    async def upload_end(self, segment_id: str, checkpoint: str) -> CheckpointInfo | str:
        """Wait until an upload that `Outcome.uploading` names has finished or failed.

        Return the checkpoint, or why it is lost. Call this once for each upload.
        """
        return await self._uploads.end(segment_id, checkpoint)

    def abandon(self, experiment: str, reason: str) -> None:
        """Abort an experiment's uploads that have outlived their segments, because its driver is shutting down."""
        self._uploads.abandon(experiment, reason)

    async def kill(self, segment_id: str, reason: str) -> None:
        """End a segment now, as a failure with this reason, and shut down its group."""
        running = self._running.get(segment_id)
        if running is not None:
            running.end("failed", reason)

    def cut(self, rank: bytes, why: str, silent: bool) -> None:
        """End the segment of a rank that can no longer be reached, or that cannot reach another rank.

        Args:
            rank: the token of the rank's process.
            why: what was noticed, in words.
            silent: True if the rank's node can no longer be reached.
        """
        for running in self._running.values():
            workers = running.group.workers if running.group is not None else ()
            for place, worker in zip(running.group.placed() if running.group is not None else (), workers, strict=True):
                if worker.token == rank:
                    failure = Failure(
                        kind="system",
                        cause="node_unreachable",
                        message=why,
                        rank=place.rank,
                        node=place.host,
                        pid=place.pid,
                    )
                    running.end("failed", why, failure)
        self._pool.cut(rank, silent)

    async def rest(self, keep: bool) -> None:
        """Shut down the idle groups, and wait until they have exited. If `keep` is true, idle groups without GPUs may stay."""
        await self._pool.rest(keep)

    def trim(self, scaling: Scaling, count: int | None) -> None:
        """Shut down all idle groups except the newest `count` with this scaling. A `count` of None keeps all of these."""
        self._pool.trim(scaling, count)

    async def close(self) -> None:
        """End all segments, shut down all groups, and wait until their processes and placement groups are gone."""
        for running in self._running.values():
            running.end("failed", "the driver is shutting down")
        self._uploads.abandon(None, "the driver is shutting down")
        while self._running:
            await asyncio.sleep(0.01)
        await self._pool.rest(keep=False)
        await self.settle()
        await self._pool.close()

    def held(self) -> list[tuple[HeldGroup, list[Mapping[str, Any]]]]:
        """Return the groups that hold resources, oldest first, each with the node, process and GPUs of its ranks."""
        found = []
        for held in self._pool.held():
            running = self._running.get(held.segment_id)
            group = running.group if running is not None else None
            found.append((held, list(_placement(group)["ranks"]) if group is not None else []))
        return found

    def waiting(self) -> list[WaitingGroup]:
        """Return the groups that wait, in the order in which they will be served."""
        return self._pool.waiting()

    def share(self, experiment: str) -> float:
        """Return the largest fraction of any cluster resource that the experiment holds."""
        return self._pool.share(experiment)

    def make_room(self, may_end: Callable[[str], bool]) -> list[tuple[str, str, int]]:
        """Return the segments that should end to make room for other experiments; see `GroupPool.make_room`."""
        return self._pool.make_room(may_end)

    async def leaving(self) -> Mapping[str, str]:
        """Return the segments that have a rank on a node that is about to be taken away; see `GroupPool.leaving`."""
        return await self._pool.leaving()

    def granted(self, experiment: str, bundle: Mapping[str, float]) -> int | None:
        """Return how many workers an experiment's elastic trials may have together; see `GroupPool.granted`."""
        return self._pool.granted(experiment, bundle)

    def forget(self, experiment: str) -> None:
        """Forget the past usage of an experiment that has ended."""
        self._pool.forget(experiment)

    async def settle(self) -> None:
        """Wait until every group that is shutting down has exited and its leftovers have been deleted."""
        await self._pool.settle()
        while self._clearing:
            await asyncio.wait(self._clearing)

    def stats(self) -> dict[str, int]:
        """Return the numbers of running segments, waiting segments and warm groups."""
        training = sum(running.training for running in self._running.values())
        return {"running": training, "waiting": len(self._running) - training, "idle": self._pool.idle}

    def training(self) -> list[str]:
        """Return the ids of the segments whose ranks are training."""
        return [name for name, running in self._running.items() if running.training]

    async def stacks(self, segment_id: str) -> dict[str, str]:
        """Return the current Python stacks of all ranks, by rank. A rank that cannot answer has a note instead."""
        running = self._running.get(segment_id)
        return await running.stacks() if running is not None else {}

    async def data_sets(self, segment_id: str) -> list[dict[str, Any]]:
        """Return the state of the Ray Data data sets that rank 0 of a segment reads."""
        running = self._running.get(segment_id)
        return await running.data_sets() if running is not None else []

    async def profile(self, segment_id: str, rank: int, request: ProfileRequest) -> dict[str, Any] | None:
        """Profile a rank; see `SegmentRun.profile`. Return None if the segment is not running here."""
        running = self._running.get(segment_id)
        return await running.profile(rank, request) if running is not None else None

    async def usage(self, segment_id: str) -> dict[str, dict[str, float]]:
        """Return the CPU seconds, memory and GPU memory of each rank that answers, by rank."""
        running = self._running.get(segment_id)
        answers = await running.ask("usage") if running is not None else {}
        return {str(rank): found for rank, found in answers.items() if isinstance(found, dict)}

    async def measure(self, segment_ids: Iterable[str]) -> dict[str, dict[int, dict[str, float]]]:
        """Return the current resource usage of all training ranks that answer in time, by segment and rank.

        A rank that has not answered an earlier request is not asked again. Otherwise, requests to a rank that hangs in
        C code would pile up.
        """
        asked = [self._running[name] for name in segment_ids if name in self._running and self._running[name].training]
        for running in asked:
            assert running.group is not None
            for rank, actor in enumerate(running.group.actors):
                if rank not in running.measuring:
                    task = running.measuring[rank] = asyncio.create_task(answer(actor.usage.remote()))
                    task.add_done_callback(_heard)
        waiting = [task for running in asked for task in running.measuring.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=ANSWER_S)
        return {running.launch.segment_id: _answers(running) for running in asked if running.training}

    # -- one segment

    async def _run(self, running: SegmentRun, inbox: Inbox) -> Outcome:
        launch = running.launch
        begun = time.monotonic()
        told: list[str] = []

        def waiting(reason: str) -> None:
            told.append(reason)
            inbox.waiting(launch.segment_id, reason)

        while True:
            group, warm = await self._unless_ended(running, self._pool.acquire(launch, waiting))
            running.group = group
            if told and not warm:
                waiting("waits until its new processes have loaded its code")
            running.log_files = [
                LogFile(rank, worker.node, running.log_path(rank)) for rank, worker in enumerate(group.workers)
            ]
            reusable, sound = False, False
            try:
                ready = self._prepare(group, launch)
                trained = self._train(group) if _may_train_at_once(group) else []
                watch = Watch(running, group, self._pool)
                problem = await watch.until_ready(ready, trained)
                # A process may have died while its group was idle. The trial is not to blame: it runs in another group.
                died_idle = warm and watch.lost_before_training
                if isinstance(problem, NotReusable) or (died_idle and problem is not None):
                    sound = not died_idle
                    why = problem.reason if isinstance(problem, NotReusable) else problem.message
                    log.info("a warm worker group cannot be reused: %s", why)
                    if running.interrupt is not None:
                        return Outcome(kind="left")
                    continue
                if problem is not None:
                    sound = problem.cause in _SOUND and not watch.lost_rank
                    return failed(problem)
                trained = trained or self._train(group)
                running.training = True
                now = time.monotonic()
                inbox.started(launch.segment_id, _placement(group), now - begun, warm, now - group.held_since)
                if running.interrupt is not None:
                    running.interrupting = asyncio.create_task(self._interrupts.interrupt(running))
                outcome = await watch.until_ended(trained)
                reusable = launch.scaling.reuse_workers and (outcome.failure is None or _only_raised(outcome, launch))
                sound = outcome.failure is None or (outcome.failure.cause in _SOUND and not watch.lost_rank)
                self._uploads.begin(launch, group, outcome.uploading, running.saving_s)
                return outcome
            finally:
                group.sound = sound
                if not sound:
                    self._uploads.lose(group, "its worker process had to be stopped before the upload was complete")
                running.training = False
                running.group = None
                running.gone = self._pool.release(group, reusable)

    async def _clear(self, running: SegmentRun, gone: asyncio.Future[None]) -> None:
        """Delete the parts of unsaved checkpoints that a segment has left. gone: done once its processes have exited."""
        await asyncio.wait({gone})
        launch = running.launch

        async def clear_on(node: str) -> None:
            work = self._pool.on_node(node, clear, launch.storage, launch.trial_number, launch.segment_id)
            try:
                await asyncio.wait_for(work, _CLEAR_S)
            except Exception as error:  # the parts are deleted when the trial or its experiment continues
                log.info("node %s may still have parts of checkpoints of %s: %s", node[:8], launch.segment_id, error)

        await asyncio.gather(*map(clear_on, {file.node for file in running.log_files}))

    def _prepare(self, group: Group, launch: Launch) -> list[Any]:
        """Ask all ranks to prepare for the training function. Return their pending answers, by rank."""
        code = None
        if launch.code.entrypoint is None and launch.code.hash not in group.codes:
            code = launch.code.blob
            group.codes = {launch.code.hash}
        # `code` has the pickled function. A second reference to it in `launch` would cost Ray more bookkeeping.
        launch = replace(launch, code=replace(launch.code, blob=None))
        ready = [
            actor.prepare.remote(launch, None if group.assigned else assignment, code)
            for actor, assignment in zip(group.actors, group.assignments, strict=True)
        ]
        group.assigned = True
        group.runs += 1
        return ready

    def _train(self, group: Group) -> list[Any]:
        """Ask each rank to call the training function once it is ready. Return the pending answers, by rank."""
        return [actor.train.remote() for actor in group.actors]

    async def _unless_ended(self, running: SegmentRun, work: Any) -> Any:
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, running.ending}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise EndedEarly(running.ending.result())
        finally:
            if not task.done():
                task.cancel()
                with contextlib.suppress(BaseException):
                    await task


def _placement(group: Group) -> Mapping[str, Any]:
    """Return the placement of a group's ranks.

    To save memory, all the group's segments share one object, because the driver keeps the placement of each segment.
    """
    if not group.placement_shown:
        group.placement_shown = {
            "ranks": [
                {"rank": p.rank, "node": p.node, "host": p.host, "pid": p.pid, "gpus": list(p.gpus)}
                for p in group.placed()
            ]
        }
    return group.placement_shown


def _may_train_at_once(group: Group) -> bool:
    """Return whether each rank may call the training function as soon as it is ready itself, which saves the driver's wait.

    Any rank of a warm group may turn out not to be reusable, and the segment then runs in another group. Until that is known, no
    rank may train, or its reports would count. With a process group, the ranks wait for each other anyway.
    """
    return group.runs == 1 or len(group.actors) == 1 or group.assignments[0].backend != "none"


def _only_raised(outcome: Outcome, launch: Launch) -> bool:
    """Return whether the worker process can be reused after this failure.

    The failure must be a Python exception or a failed script, before the first report. The worker must be the only
    rank, since another rank might still be waiting for it, and must have no GPU, since the error may have broken the
    GPU's context. Even then, the worker is reused only if its cleanup succeeds.
    """
    failure, scaling = outcome.failure, launch.scaling
    if failure is None or failure.kind != "user" or outcome.reports:
        return False
    if failure.cause not in ("exception", "script", "script_signal"):
        return False
    return scaling.num_workers == 1 and not scaling.bundle().get("GPU")


def _answers(running: SegmentRun) -> dict[int, dict[str, float]]:
    """Return the measurements that have arrived, by rank, and remove their tasks from `measuring`."""
    done = {rank: task for rank, task in running.measuring.items() if task.done()}
    for rank in done:
        del running.measuring[rank]
    return {rank: task.result() for rank, task in done.items() if not task.cancelled() and task.exception() is None}


def _heard(task: asyncio.Task[Any]) -> None:
    """Ignore an error from the task: if it means that a rank has died, the segment's `Watch` notices that too."""
    if not task.cancelled():
        task.exception()
