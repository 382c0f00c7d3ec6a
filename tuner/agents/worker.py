"""The loop of an agent: lease a trial, run it in a process on this machine, and send its reports to the service.

Trials run in warm processes under a `GroupManager`, as in the local executor. The driver of the experiment runs in the
service, which the agent reaches over HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.agents.leases import Assignment, Leases
from tuner.domain.experiment import CheckpointPolicy, Limits, Scaling
from tuner.domain.logs import LogChunk, LogLimit
from tuner.domain.segments import CheckpointInfo, Failure, Outcome, Report, Verdict
from tuner.errors import CheckpointError, Gone, ServiceError, SpecError, TunerError
from tuner.names import printable
from tuner.trials.checkpoints.storage import is_local, join, place
from tuner.trials.groups.pools.cpus import cpus_here
from tuner.trials.groups.pools.local_pool import LocalPool
from tuner.trials.groups.pools.local_ranks import RankServer
from tuner.trials.groups.segments.manager import GroupManager
from tuner.trials.groups.segments.segment_run import LogFile
from tuner.trials.messages.launch import CodeRef, Launch
from tuner.trials.messages.report_socket import ReportServer
from tuner.trials.training.script import Script
from tuner.usercode.pickling import dumps

log = logging.getLogger(__name__)

BEAT_S = 5.0
"""The maximum time between two heartbeats, in seconds."""
LAST_WORDS_S = 5.0
"""Seconds that a trial's process may take to send the end of its log after the trial has ended."""
ASKED_S = 1.0
"""Seconds that an agent that stops may take to take its request for a trial back, since the service may not answer."""
GIVE_BACK_S = 20.0
"""Seconds that an agent that stops may take to complete uploads and to give its trials back. The service may not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The function that an agent runs, and where and how it runs it.

    Args:
        make: a function that gets the name of the objective, and returns the training function or the script to run. If
            None, the agent runs the entrypoint of the experiment.
        home: a folder for logs, and for checkpoints if they cannot be stored elsewhere.
        storage: where to store checkpoints. If None, they are stored in the experiment's storage if this machine can
            reach it, else in `home`.
        parallel: how many trials run at the same time.
        say: a function that prints a line.
    """

    make: Callable[[str], Any] | None
    home: Path
    storage: str | None = None
    parallel: int = 1
    say: Callable[[str], None] = print


@dataclass(slots=True, eq=False)
class _Running:
    lease: Assignment
    told: str = "continue"  # the action of the newest interrupt that was sent to the trial's process
    last: Mapping[str, float] = field(default_factory=dict)
    verdict: Verdict | None = None
    gone: bool = False
    ended: bool = False  # whether the segment has ended, so that only its uploads may still continue
    log_complete: asyncio.Event = field(default_factory=asyncio.Event)  # set once the whole log was sent
    sending: set[asyncio.Task[None]] = field(default_factory=set)  # what is done for the trial in the background


class Agent:
    """Runs trials of one experiment until the experiment has ended."""

    def __init__(self, leases: Leases, work: Work) -> None:
        self._leases, self._work = leases, work
        self._running: dict[str, _Running] = {}
        self._server = ReportServer(self._report, self._take_logs, self._called)
        self._stopping = asyncio.Event()
        self._over = False
        self._codes: dict[str, CodeRef] = {}
        self._manager: GroupManager | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._cannot: Exception | None = None  # why this agent cannot continue
        self.trials = 0

    async def run(self) -> None:
        """Run trials until the experiment has ended or `stop` is called.

        Raises:
            ServiceError: the service rejects this agent, or has not answered for an hour.
            TunerError: this agent can run no trial of the experiment, for example because neither of them has a function.

        The trials that it had leased are given back first, unless the service does not answer for `GIVE_BACK_S`.
        """
        address = await self._server.open("127.0.0.1")
        pool = LocalPool(float(self._work.parallel), address, RankServer(gpus=True), log_limit=LogLimit.of(4 << 20))
        self._manager = GroupManager(pool, logs=self)
        loops = [asyncio.create_task(self._work_on()) for _ in range(self._work.parallel)]
        ending = asyncio.create_task(self._end_late(loops))
        try:
            await asyncio.wait(loops)
            if self._cannot is not None:
                raise self._cannot
        finally:
            tasks = [ending, *loops, *self._sending]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._manager.close()
            await self._server.close()
            await self._leases.close()

    async def stop(self) -> None:
        """Stop the running trials, give them back to the service, and make `run` return, after `GIVE_BACK_S` at the latest.

        Uploads of trials that have ended are completed first.
        """
        self._stopping.set()
        if self._manager is not None:
            for name in [name for name, running in self._running.items() if not running.ended]:
                await self._manager.interrupt(name, "kill")

    async def _end_late(self, loops: Sequence[asyncio.Task[None]]) -> None:
        """Once the agent stops, cancel the loops that have not given their trials back within `GIVE_BACK_S`."""
        await self._stopping.wait()
        _, late = await asyncio.wait(loops, timeout=GIVE_BACK_S)
        if late:
            self._work.say(
                "the service does not answer, or an upload takes too long; the trials of this agent start again once their "
                "leases have ended"
            )
        for loop in late:
            loop.cancel()

    async def _work_on(self) -> None:
        try:
            while not self._stopping.is_set():
                lease = await self._ask()
                if lease is None:
                    return
                if lease:
                    await self._train(lease)
        except Exception as error:
            self._cannot = self._cannot or error
            await self.stop()  # the other loops give their trials back before `run` raises the error

    async def _ask(self) -> Assignment | None:
        """Lease a trial. Return an empty dict if the service has none now, or None if this agent should stop."""
        request = uuid.uuid4().hex
        asking = asyncio.create_task(self._leases.ask(request))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not self._stopping.is_set():
                return asking.result() or {}
            await self._take_back(request)
            return None
        except Gone as error:
            if not self._over:  # several requests for trials can end like this; print the error only once
                self._over = True
                self._work.say(str(error))
            return None
        finally:
            asking.cancel()
            stopping.cancel()
            await asyncio.gather(asking, stopping, return_exceptions=True)

    async def _take_back(self, request: str) -> None:
        """Take back a request for a trial. If the service has just leased a trial for it, give the trial back."""
        lease: Assignment | None = None
        with contextlib.suppress(ServiceError, Gone, TimeoutError):
            lease = await asyncio.wait_for(self._leases.ask(request, wait_s=0.0), ASKED_S)
        if lease:
            await self._leases.end(lease, Outcome(kind="left"))

    # -- one trial ---------------------------------------------------------------------------------------------------------

    async def _train(self, lease: Assignment) -> None:
        assert self._manager is not None
        name = lease["segment_id"]
        running = self._running[name] = _Running(lease)
        self.trials += 1
        where = f" from iteration {lease['iteration']}" if lease["iteration"] else ""
        params = " ".join(f"{key}={value}" for key, value in lease["params"].items())
        self._work.say(f"trial {lease['trial']}{where}: {params}")
        beating = asyncio.create_task(self._beat(running))
        try:
            try:
                launch = self._launch(lease)
            except TunerError as error:  # this agent can run no trial of the experiment; another one may
                self._cannot = self._cannot or error
                await self.stop()  # the other loops give their trials back before `run` raises the error
                await self._leases.end(lease, Outcome(kind="left"))
                return
            outcome = await self._manager.run(launch, inbox=self)
            running.ended = True
            for info in outcome.uploading:
                await self._end_upload(running, info)
            while running.sending:
                await asyncio.wait(running.sending)
        finally:
            beating.cancel()
            self._running.pop(name, None)
        how = f"trial {lease['trial']}: {_how(running, outcome)}"
        if outcome.kind != "left":
            self._work.say(how)
        if not running.gone:
            try:
                await self._leases.end(lease, outcome)
            except SpecError as error:  # the trial has never reported the objective
                self._work.say(printable(f"trial {lease['trial']}: failed: {_first_line(error)}"))
                await self._refused(running, _first_line(error))
        if outcome.kind == "left":  # now the trial has been given back; before, the service might not have answered
            self._work.say(how)

    async def _end_upload(self, running: _Running, info: CheckpointInfo) -> None:
        """Wait until an upload that has outlived its segment ends, and tell the service of the checkpoint."""
        assert self._manager is not None
        end = await self._manager.upload_end(running.lease["segment_id"], info.id)
        if isinstance(end, str):
            self._work.say(
                printable(f"trial {running.lease['trial']}: the checkpoint of iteration {info.step} is lost: {end}")
            )
        elif not running.gone:
            with contextlib.suppress(Gone):
                await self._leases.checkpoint(running.lease, end)

    def _launch(self, lease: Assignment) -> Launch:
        source = lease["checkpoint"]
        start = lease["iteration"]
        first = lease["next_milestone"]
        experiment = lease["experiment_id"]
        code = self._code(lease)
        by_script = self._work.make is not None and code.entrypoint is None and code.hash.startswith("script")
        return Launch(
            experiment_id=experiment,
            trial_id=lease["trial_id"],
            segment_id=lease["segment_id"],
            trial_number=lease["trial"],
            segment=lease["segment"],
            params=lease["params"],
            seed=lease["seed"],
            start_iteration=start,
            checkpoint=None
            if source is None
            else CheckpointInfo(id=source["id"], uri=source["uri"], step=source["iteration"]),
            code=code,
            space=lease["space"],
            scaling=Scaling(backend="none" if by_script else "auto", working_dir="caller" if by_script else "trial"),
            limits=Limits(hang_timeout_s=lease["hang_timeout_s"], stop_grace_s=lease["stop_grace_s"]),
            checkpoint_policy=CheckpointPolicy(at_end=lease["checkpoint_at_end"]),
            storage=self._storage(lease),
            log_dir=str(self._work.home / "logs" / experiment),
            first_milestone=None if first is None else max(1, first - start),
            checkpoint_every=lease["checkpoint_every"],
            milestone_checkpoints=lease["checkpoint_at_milestones"],
            metric=lease["metric"],
            env={} if by_script else self._threads(),  # the command may start several processes, as torchrun does
        )

    def _threads(self) -> dict[str, str]:
        """Return the variable by which a function uses its share of this machine's CPUs, unless the user has set a number."""
        name, each = "OMP_NUM_THREADS", max(1, cpus_here() // self._work.parallel)
        return {} if name in os.environ else {name: str(each)}

    def _code(self, lease: Assignment) -> CodeRef:
        """Return the training function of a trial. The function is created only once for each objective."""
        metric = lease["metric"]
        if metric not in self._codes:
            made = self._work.make(metric) if self._work.make is not None else lease["entrypoint"]
            if made is None:
                raise SpecError(
                    "the experiment has no entrypoint; name the function to run: `tuner agent URL module:function`"
                )
            here = os.getcwd()
            if isinstance(made, str):
                self._codes[metric] = CodeRef(
                    hash=f"entrypoint:{made}", entrypoint=made, sys_path=(here,), working_dir=here
                )
            else:
                blob = dumps(made)
                kind = "script" if isinstance(made, Script) else "function"
                name = f"{kind}:{hashlib.blake2b(blob, digest_size=12).hexdigest()}"
                self._codes[metric] = CodeRef(hash=name, blob=blob, sys_path=(here,), working_dir=here)
        return self._codes[metric]

    def _storage(self, lease: Assignment) -> str:
        """Return the folder or URI for the checkpoints of the trial's experiment.

        If possible, other machines can read it too.
        """
        experiment, theirs, own = lease["experiment_id"], str(lease["storage"]), self._work.storage
        if own is None and ("://" in theirs or _is_there(os.path.dirname(theirs))):
            return theirs
        folder = join(str(self._work.home / "checkpoints") if own is None else own, experiment)
        if is_local(folder):
            # A trial whose checkpoint is on another machine starts from the beginning. Without this folder, its rank would take
            # the storage for a share that is not mounted, and the experiment would be paused.
            with contextlib.suppress(OSError, CheckpointError):
                os.makedirs(place(folder).path, exist_ok=True)
        return folder

    async def _beat(self, running: _Running) -> None:
        """Renew the lease of a trial regularly, and interrupt the trial when the service asks for that."""
        every = min(BEAT_S, running.lease["lease_s"] / 4)
        while True:
            await asyncio.sleep(every)
            try:
                self._interrupt_if_wanted(running, await self._leases.heartbeat(running.lease))
            except Gone as error:
                await self._lost(running, str(error))
                return
            except ServiceError as error:
                log.info("the service did not answer a heartbeat: %s", error)

    def _interrupt_if_wanted(self, running: _Running, wanted: str) -> None:
        if wanted not in ("continue", running.told) and self._manager is not None:
            running.told = wanted
            self._later(running, self._manager.interrupt(running.lease["segment_id"], wanted))

    async def _lost(self, running: _Running, why: str) -> None:
        """Kill the process of a trial whose lease has ended, because the trial may continue elsewhere."""
        running.gone = True
        running.verdict = Verdict(action="stop", reason=why)
        if self._manager is not None:
            await self._manager.interrupt(running.lease["segment_id"], "kill")

    async def _refused(self, running: _Running, why: str) -> None:
        """Fail a trial whose report or end the service rejects, for instance because the objective is missing."""
        running.gone = True
        failure = Failure(kind="user", cause="exception", message=why)
        await self._leases.end(running.lease, Outcome(kind="failed", failure=failure))
        await self._lost(running, why)

    # -- messages from a trial's process ------------------------------------------------------------------------------------

    def waiting(self, segment_id: str, reason: str) -> None:
        """Do nothing: the service knows that this agent has the trial."""

    def started(
        self, segment_id: str, placement: Mapping[str, Any], startup_s: float, warm: bool, held_s: float
    ) -> None:
        """Do nothing: the service knows that this agent has the trial."""

    def end(
        self,
        segment_id: str,
        files: Sequence[LogFile],
        gone: Awaitable[Any] | None,
        rest: Sequence[LogChunk] = (),
    ) -> None:
        """Send the part of a trial's log that has not been sent by the time the trial ends.

        If the trial's process is still sending, wait a moment, because the lease must not end before the log is complete.
        """
        running = self._running.get(segment_id)
        if running is None or running.gone:
            return
        if rest:
            self._later(running, self._take_logs(segment_id, rest))
        if files:
            self._later(running, _last_words(running, gone))

    async def _report(self, segment_id: str, reports: list[Report]) -> Verdict | None:
        running = self._running.get(segment_id)
        if running is None or running.gone or self._manager is None:
            return Verdict(action="stop", reason="this trial has ended here")
        self._manager.reported(segment_id)
        try:
            verdict, wanted = await self._leases.report(running.lease, reports)
        except Gone as error:
            self._later(running, self._lost(running, str(error)))
            return Verdict(action="stop", reason=str(error))
        except SpecError as error:
            why = _first_line(error)
            self._later(running, self._refused(running, why))
            return Verdict(action="stop", reason=why)
        self._manager.reported(segment_id)
        running.last, running.verdict = reports[-1].metrics, verdict
        if not reports[-1].waits:
            self._interrupt_if_wanted(running, wanted)
            return None
        return verdict

    async def _take_logs(self, segment_id: str, chunks: Sequence[LogChunk]) -> None:
        if (running := self._running.get(segment_id)) is not None and not running.gone:
            with contextlib.suppress(Gone):
                await self._leases.log(running.lease, chunks)
            if not all(chunk.size for chunk in chunks):
                running.log_complete.set()

    async def _called(self, question: str, arguments: Sequence[Any]) -> Any:
        segment_id, *given = arguments
        match question:
            case "report":
                return await self._report(segment_id, given[0])
            case "take_logs":
                return await self._take_logs(segment_id, given[0])
            case "checkpoint":
                if (running := self._running.get(segment_id)) is not None and not running.gone:
                    with contextlib.suppress(Gone):
                        await self._leases.checkpoint(running.lease, given[0])
                return None
            case _:
                raise NotImplementedError(f"a trial on an agent cannot call {question!r}; run it on Ray or locally")

    def _later(self, running: _Running, work: Any) -> None:
        """Do something for a trial in the background. The trial's lease does not end before this is done."""
        task = asyncio.ensure_future(work)
        for tasks in (self._sending, running.sending):
            tasks.add(task)
            task.add_done_callback(tasks.discard)


async def _last_words(running: _Running, gone: Awaitable[Any] | None) -> None:
    """Wait until a trial's log is complete or the trial's process has ended, but at most `LAST_WORDS_S` seconds."""
    sent = asyncio.ensure_future(running.log_complete.wait())
    waiting = {sent} if gone is None else {sent, asyncio.ensure_future(gone)}
    await asyncio.wait(waiting, timeout=LAST_WORDS_S, return_when=asyncio.FIRST_COMPLETED)
    sent.cancel()


def _is_there(folder: str) -> bool:
    """Return whether this machine has a folder whose path may begin with a variable, such as `$SCRATCH`, or with ``~``."""
    with contextlib.suppress(CheckpointError):  # the variable is not set here
        return os.path.isdir(place(folder).path)
    return False


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _how(running: _Running, outcome: Outcome) -> str:
    """Describe in one line how a trial has ended, with its last metrics."""
    best = " ".join(f"{name}={value:.6g}" for name, value in running.last.items())
    if outcome.failure is not None:
        return printable(f"failed: {outcome.failure.message}")
    verdict = running.verdict
    why = f"{verdict.action}: {verdict.reason}" if verdict is not None and verdict.action != "continue" else "complete"
    if outcome.kind == "left" and (verdict is None or verdict.action == "continue"):
        why = "given back"
    return printable(f"{best}  {why}".strip())
