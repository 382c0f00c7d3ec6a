"""Drive experiments on a host: claim each, fold its log, run its loop in an asyncio task, and renew its lease."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from tuner import __version__
from tuner.domain.batch import Batch
from tuner.domain.events import Commanded, DriverStarted
from tuner.domain.segments import CheckpointInfo
from tuner.domain.states import ExperimentState
from tuner.driver.commands import as_event
from tuner.errors import Conflict, LostLease, NewerLog, NotFound, StoreError, TunerError
from tuner.experiment.code.by_value import needs_other_python
from tuner.hosts.driven import Driven, DriverHost
from tuner.hosts.upkeep.candidates import Candidates
from tuner.hosts.upkeep.leftovers import ended_uploads, find_logs, sweep_after, sweep_checkpoints, sweep_objects
from tuner.store.records import CommandRecord, ExperimentRecord
from tuner.telemetry import log_format

log = logging.getLogger(__name__)

AGAIN_S = 5.0
"""Seconds to wait, after an experiment's driver has crashed, before the experiment is driven again."""
NEWER_AGAIN_S = 600.0
"""The same, in seconds, if this version cannot read the experiment's log. That is unlikely to change while the host runs."""
RENEW_S = 0.5
"""Seconds until the next attempt to renew leases, after one has failed."""
LOGS_S = 10.0
"""Seconds for which the host waits for ranks' logs when an experiment ends. Logs that arrive later are still stored."""
OTHERS_S = 10.0
"""Seconds for which an experiment that needs another Python is left to a service that may have it, before it is paused here."""
CRASHES, PROGRESS = 3, 20
"""An experiment fails if its driver crashes CRASHES times, with at most PROGRESS log entries between two crashes."""

CommandKey = tuple[int, int, float]
"""The id, the experiment and the time of a command. The id alone may occur twice after a backup has been restored."""


class Driving:
    """The experiments that a host drives, with the task, the lease and the commands of each.

    Args:
        host: the host, which has the database, the executors and the logs.
        candidates: knows which drivers are dead.
    """

    def __init__(self, host: DriverHost, candidates: Candidates) -> None:
        self._host, self._candidates = host, candidates
        self.tasks: dict[int, asyncio.Task[ExperimentState]] = {}
        self.driven: dict[int, Driven] = {}
        self.named: dict[str, Driven] = {}  # the values of `driven`, by public id
        self.claimed: dict[int, int] = {}  # experiment -> our epoch, from the claim to the release
        self.given: set[CommandKey] = set()  # the commands that have been passed to an experiment's loop
        # experiment -> the time of the monotonic clock before which it is not driven again
        self.not_before: dict[int, float] = {}
        self._lost: dict[int, LostLease] = {}  # experiment -> why its task is being cancelled
        # experiment that needs another Python -> (epoch, seen since when)
        self._foreign: dict[int, tuple[int, float]] = {}
        self._crashes: dict[str, tuple[int, int]] = {}  # public id -> (event_seq reached, crashes since)

    def begin(self, record: ExperimentRecord, executor: str = "") -> None:
        """Drive an experiment in a task, until it has ended or is paused.

        executor: a sentence on where the trials run and why, for the experiment's log.
        """
        task = asyncio.create_task(self._drive(record, executor), name=record.public_id)
        self.tasks[record.id] = task
        task.add_done_callback(lambda done: self._forget(record, done))

    def busy(self) -> Collection[int]:
        """Return the ids of the experiments that are being driven, or whose driver has just crashed."""
        now = time.monotonic()
        return {*self.tasks, *(key for key, until in self.not_before.items() if now < until)}

    async def leaves(self, record: ExperimentRecord) -> bool:
        """Return True if an experiment is not to be driven here now.

        One that needs another version of Python is left to a service that may have it, for `OTHERS_S`.
        """
        try:
            foreign = await self._why_not_here(record) is not None and await self._goes_on(record)
        except NotFound:  # it has just been deleted, and its code with it
            return True
        if not foreign:
            self._foreign.pop(record.id, None)
            return False
        now, (epoch, since) = time.monotonic(), self._foreign.get(record.id, (-1, 0.0))
        if epoch != record.driver_epoch:
            epoch, since = self._foreign[record.id] = (record.driver_epoch, now)
        return now < since + OTHERS_S

    async def is_to_continue(self, experiment: int, state: ExperimentState) -> bool:
        """Return whether a paused or ended experiment has a pending command that lets it run again."""
        wanted = "continue" if state.ended else "resume"
        commands = await asyncio.to_thread(self._host.store.commands.pending, [experiment])
        return any(command.command == wanted and command.trial is None for command in commands)

    async def take_commands(self) -> None:
        """Give each experiment the commands that users have written for it since the last call."""
        for command in await asyncio.to_thread(self._host.store.commands.pending, list(self.driven)):
            driven = self.driven.get(command.experiment_id)
            if driven is not None and _key(command) not in self.given:
                self.given.add(_key(command))
                driven.loop.put(as_event(command), command=command.id)

    async def keep_leases(self) -> None:
        """Renew the leases of all experiments forever. Stop driving an experiment if another driver has taken its lease."""
        lease_s = self._host.settings.lease_s
        wait, failing = lease_s / 3, False
        while True:
            await asyncio.sleep(wait)
            wait, failed_before, failing = lease_s / 3, failing, False
            for key, epoch in list(self.claimed.items()):
                task = self.tasks.get(key)
                with log_format.about(experiment=task.get_name() if task is not None else None):
                    try:
                        await self._host.writer.write(self._host.store.drivers.renew, key, epoch, lease_s, time.time())
                    except LostLease as error:
                        if self.claimed.get(key) != epoch:
                            continue  # the lease was released in the meantime
                        log.warning("%s", error)
                        if (task := self.tasks.get(key)) is not None:
                            self._lost[key] = error
                            task.cancel()
                    except Exception as error:
                        failing = True
                        if not failed_before:  # log an outage only once, since it may last
                            log.warning("a lease could not be renewed: %s", error)
                            for other in self.tasks.values():  # the database has failed for all of them
                                if other is not task:
                                    self._host.driver_logs.say(
                                        other.get_name(), "a lease could not be renewed: %s", error
                                    )
                        wait = min(wait, RENEW_S)  # another host may claim expired leases once the database is back
                        break

    def _forget(self, record: ExperimentRecord, task: asyncio.Task[ExperimentState]) -> None:
        self.tasks.pop(record.id, None)
        if not task.cancelled() and (error := task.exception()) is not None:  # `_drive` has logged it
            self.not_before[record.id] = time.monotonic() + (NEWER_AGAIN_S if isinstance(error, NewerLog) else AGAIN_S)

    async def _drive(self, record: ExperimentRecord, executor: str) -> ExperimentState:
        """Drive an experiment, and write to its driver's log how that ends.

        Raises:
            Conflict: the experiment has ended, or another driver has claimed it first.
            LostLease: another driver has claimed the experiment since.
        """
        logs = self._host.driver_logs
        epoch: int | None = None
        with log_format.about(experiment=record.public_id):
            try:
                if self._host.settings.log_bytes:
                    logs.begin(record.public_id)
                epoch = await self._claim(record)
                state = await self._drive_claimed(record, epoch, executor)
                logs.say(record.public_id, "no longer driven here: the experiment is %s", state)
                return state
            except asyncio.CancelledError:
                if (lost := self._lost.get(record.id)) is None:
                    raise
                logs.say(record.public_id, "no longer driven here: %s", lost)
                raise lost from None
            except Exception as error:
                # The experiment has ended, or another driver was quicker.
                if epoch is None and isinstance(error, Conflict):
                    logs.say(record.public_id, "not driven by process %d: %s", os.getpid(), error)
                    raise
                # This is not left to `_forget`: the experiment's log is closed by then.
                what = f"{type(error).__name__}: {error}"
                log.error("experiment %s is no longer driven: %s", record.public_id, what, exc_info=error)
                raise
            finally:
                self._lost.pop(record.id, None)
                logs.end(record.public_id)

    async def _drive_claimed(self, record: ExperimentRecord, epoch: int, executor: str) -> ExperimentState:
        """Run the loop of an experiment that this host has claimed, and leave nothing of it behind on this host."""
        executor = self._executor(record, executor)
        self._host.driver_logs.say(
            record.public_id,
            "driver %d of this experiment: tuner %s in process %d on %s, host %s, executor %s",
            epoch, __version__, os.getpid(), socket.gethostname(), self._host.owner, executor or self._host.executor.name,
        )  # fmt: skip
        driven: Driven | None = None
        try:
            try:
                why = await self._why_not_here(record)
                if why is not None and await self._goes_on(record):
                    return await self._hold(record, epoch, why)
                driven = await asyncio.to_thread(Driven, self._host, record, epoch)  # reads and folds the whole log
                if why is not None:
                    await self._cancel_first(driven)
            except StoreError:
                raise
            except Exception as error:
                return await self._refuse(record, epoch, error)
            uploaded: list[CheckpointInfo] = []
            if epoch > 1:  # an earlier driver and its ranks may have been killed
                uploaded = await self._clean_up_before(driven)
            state = await self._run(driven, epoch, executor, uploaded)
            self._crashes.pop(record.public_id, None)
            if state.ended:
                await self._clean_up_after(driven)
            return state
        except StoreError:
            raise
        except Exception as error:
            if driven is None or not self._crashes_again(record, driven.core.seq):
                raise
            return await self._refuse(record, epoch, error)
        finally:
            self.driven.pop(record.id, None)
            self.named.pop(record.public_id, None)
            await self._end_segments(record)
            if self._host.logs is not None:
                await self._host.logs.flush(record.id, timeout=LOGS_S)
            self.claimed.pop(record.id, None)
            with contextlib.suppress(Exception):
                await self._host.writer.write(self._host.store.drivers.release, record.id, epoch)
            if driven is not None:
                await driven.close()

    async def _claim(self, record: ExperimentRecord) -> int:
        """Take the lease of an experiment, even if a driver that is known to be dead still holds it. Return the epoch."""
        host, drivers = self._host, self._host.store.drivers
        if record.lease_until and record.lease_until > time.time() and self._candidates.is_dead(record.driver_owner):
            await host.writer.write(drivers.release, record.id, record.driver_epoch)
        epoch = await host.writer.write(drivers.claim, record.id, host.owner, host.settings.lease_s, time.time())
        self.claimed[record.id] = epoch
        return epoch

    def _executor(self, record: ExperimentRecord, said: str) -> str:
        """Return the sentence for the experiment's log on where the trials run: from the spec, or else `said`."""
        if record.spec.executor == "agents":
            return "trials run on agents, which ask for them over HTTP: executor is 'agents'"
        if record.spec.executor == "local" and self._host.executor.name != "local":
            return "trials run in processes of the driver's machine, because executor is 'local'"
        return said

    async def _clean_up_before(self, driven: Driven) -> list[CheckpointInfo]:
        """Clean up after an earlier driver of an experiment. Return the checkpoints that it had uploaded; see `ended_uploads`."""
        uploaded: list[CheckpointInfo] = []
        if driven.record.spec.executor != "agents":  # an agent may be writing a checkpoint now
            uploaded = await asyncio.to_thread(ended_uploads, driven)
            await asyncio.to_thread(sweep_checkpoints, self._host.store, driven)
        if self._host.logs is not None:
            await find_logs(self._host.store, self._host.logs, driven)
        return uploaded

    async def _run(
        self, driven: Driven, epoch: int, executor: str, uploaded: Sequence[CheckpointInfo]
    ) -> ExperimentState:
        """Run the loop of an experiment until it has ended or is paused, and return its state."""
        host, record = self._host, driven.record
        scaling, limits = record.spec.scaling, record.spec.limits
        place = host.executors.of(record.spec)
        slots = place.capacity(scaling)
        workers = place.workers(scaling) if scaling.elastic else None
        if len(self.tasks) == 1 and (groups := host.executors.groups_in_use) is not None:
            groups.trim(scaling, limits.max_concurrent_trials or slots)
        pending = await asyncio.to_thread(host.store.commands.pending, [record.id])
        commands = {c.id: as_event(c) for c in pending}
        self.given |= {_key(c) for c in pending}
        host.driver_logs.say(
            record.public_id, "the log has %d entries about %d trials; room for %s trials at once",
            driven.core.seq, len(driven.core.trials), "any number of" if slots is None else slots,
        )  # fmt: skip
        self.named[record.public_id] = driven
        # From now on the experiment gets commands, but its loop handles DriverStarted first.
        self.driven[record.id] = driven
        return await driven.loop.run(epoch, slots, commands, executor, workers, uploaded)

    async def _clean_up_after(self, driven: Driven) -> None:
        """Release what an experiment that has ended no longer needs."""
        record = driven.record
        self._host.executors.forget(record.public_id)
        try:
            await asyncio.to_thread(sweep_after, self._host.store, driven)
        except Exception as error:  # the files are deleted when the experiment is deleted or continues
            log.warning("parts of checkpoints of %s could not be deleted: %s", record.public_id, error)
        storage = record.spec.checkpoint.storage or self._host.settings.storage
        await sweep_objects(self._host.store, storage, self._host.settings.database_url)

    async def _end_segments(self, record: ExperimentRecord) -> None:
        mine = [name for name, running in self._host.segments.items() if running.experiment == record.id]
        await self._host.executors.kill(mine, "the driver stopped driving the experiment")
        self._host.executors.abandon(record.public_id, "the driver stopped driving the experiment")

    def _crashes_again(self, record: ExperimentRecord, seq: int) -> bool:
        """Count a crash of this experiment's driver. Return True after CRASHES crashes without enough progress in between."""
        reached, times = self._crashes.get(record.public_id, (-1, 0))
        times = 1 if seq > reached + PROGRESS else times + 1
        self._crashes[record.public_id] = (max(seq, reached), times)
        return times >= CRASHES

    async def _why_not_here(self, record: ExperimentRecord) -> str | None:
        """Return why the trials of an experiment cannot run in this host's version of Python; None if they can, or need not."""
        code = await asyncio.to_thread(self._host.store.code.get, record.spec.code) if record.spec.code else None
        return needs_other_python(record.spec, code)

    async def _goes_on(self, record: ExperimentRecord) -> bool:
        """Return whether trials of an experiment are to run, since nobody has cancelled it and it has not ended for good."""
        if record.state is ExperimentState.CANCELLING:
            return False
        pending = await asyncio.to_thread(self._host.store.commands.pending, [record.id])
        asked = {command.command for command in pending if command.trial is None}
        return not (asked & {"cancel", "kill"} or (record.state.ended and "continue" not in asked))

    async def _cancel_first(self, driven: Driven) -> None:
        """Let a user's command to cancel the experiment take effect before a takeover would start trials."""
        pending = await asyncio.to_thread(self._host.store.commands.pending, [driven.record.id])
        ends = {c.id: as_event(c) for c in pending if c.command in ("cancel", "kill") and c.trial is None}
        if ends and not driven.core.state.ended:
            events = [replace(event, time=driven.core.experiment.now or event.time) for event in ends.values()]
            await driven.loop.handle_first(events, list(ends))

    async def _hold(self, record: ExperimentRecord, epoch: int, why: str) -> ExperimentState:
        """Pause an experiment whose trials cannot run here, and store the reason. One that has ended stays so."""
        log.error("experiment %s cannot be driven here: %s", record.public_id, why)
        pending = await asyncio.to_thread(self._host.store.commands.pending, [record.id])
        if record.last_event_seq and record.state in (ExperimentState.RUNNING, ExperimentState.PAUSING):
            await self._pause_trials(record, epoch, why)
        batch = Batch(
            log=[],
            state=record.state if record.state.ended else ExperimentState.PAUSED,
            summary={"reason": why},
            commands=[c.id for c in pending if c.command in ("resume", "continue") and c.trial is None],
        )
        await self._host.writer.write(self._host.store.drivers.commit, record.id, epoch, batch, time.time())
        assert batch.state is not None
        return batch.state

    async def _pause_trials(self, record: ExperimentRecord, epoch: int, why: str) -> None:
        """Pause the trials that an earlier driver has left running. Do nothing if that is not possible here."""
        driven: Driven | None = None
        try:
            driven = await asyncio.to_thread(Driven, self._host, record, epoch)
            last = driven.core.experiment.now  # the time without a driver must not count
            pause = Commanded(time=last, command="pause", reason=why)
            await driven.loop.handle_first([pause, DriverStarted(time=time.time(), epoch=epoch)], reason=why)
        except StoreError:
            raise
        except Exception:
            log.exception("the trials of %s are shown as running", record.public_id)
        finally:
            if driven is not None:
                await driven.close()

    async def _refuse(self, record: ExperimentRecord, epoch: int, error: Exception) -> ExperimentState:
        """Fail an experiment that cannot be driven, and store the reason as its error.

        An experiment that had already ended keeps its state: its driver only had to delete checkpoints.
        """
        log.error("experiment %s cannot be driven", record.public_id, exc_info=error)
        if record.state.ended and not await self.is_to_continue(record.id, record.state):
            return record.state
        what = str(error) if isinstance(error, TunerError) else f"{type(error).__name__}: {error}"
        summary = {"error": what, "reason": "the experiment cannot be driven"}
        batch = Batch(log=[], state=ExperimentState.FAILED, summary=summary)
        await self._host.writer.write(self._host.store.drivers.commit, record.id, epoch, batch, time.time())
        return ExperimentState.FAILED


def _key(command: CommandRecord) -> CommandKey:
    return command.id, command.experiment_id, command.created_at
