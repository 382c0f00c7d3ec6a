"""Implement ask and tell: the driver's loop runs in a thread of the caller's process, and the caller runs the trials.

The loop and the core are the same as for other experiments. Only the groups differ. A segment waits until the caller
asks for it. It then runs until the caller reports its end or a verdict ends it. The methods of `AskedDriver` can be
called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Collection, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from tuner.domain import events as e
from tuner.domain.batch import Batch
from tuner.domain.keys import checkpoint_id, segment_id
from tuner.domain.segments import CheckpointInfo, Interruption, Outcome, SegmentRef, Verdict
from tuner.domain.trial import Segment, Trial
from tuner.driver.commands import as_event
from tuner.driver.core import Core
from tuner.driver.core.rules.reports import unusable
from tuner.driver.loop import ExperimentLoop, Stopped
from tuner.driver.ports import CallsHere
from tuner.errors import Conflict, Retryable, SpecError, StoreError, TunerError
from tuner.store import ExperimentRecord, Store

T = TypeVar("T")

LEASE_S = 15.0
KEEP_S = 1.0
"""Seconds between lease renewals. The driver looks for new commands at each renewal."""
LOOK_S = 0.005
"""Seconds between checks of the loop's state while a call waits for the loop."""


class Closed(TunerError):
    """Raised when the loop has ended without an error: the experiment has ended or is paused, or the study was closed."""


class AskedGroups(CallsHere):
    """The segments of ask and tell: the caller is training some of them; the others wait until the caller asks for one."""

    def __init__(self) -> None:
        self.ready: deque[SegmentRef] = deque()
        self.taken: set[SegmentRef] = set()
        self._ends: dict[SegmentRef, asyncio.Future[Outcome]] = {}

    async def run(self, segment: SegmentRef, milestone: int | None) -> Outcome:
        end = self._ends[segment] = asyncio.get_running_loop().create_future()
        self.ready.append(segment)
        try:
            outcome: Outcome = await end
            return outcome
        finally:
            self._ends.pop(segment, None)
            self.taken.discard(segment)
            if segment in self.ready:
                self.ready.remove(segment)

    async def interrupt(self, segment: SegmentRef, why: Interruption) -> None:
        """End a segment that nobody has asked for yet, or that must be killed.

        A segment that the caller is training gets the verdict at its next report.
        """
        if segment in self.ready or why == "kill":
            self.end(segment, Outcome(kind="left"))

    async def upload_end(self, segment: SegmentRef, info: CheckpointInfo) -> CheckpointInfo | str:
        """Return an error, because no upload exists: the caller reports a checkpoint only once it is saved."""
        return "its upload is not known"

    def end(self, segment: SegmentRef, outcome: Outcome) -> None:
        """End a segment. Do nothing if it has ended already."""
        if (end := self._ends.get(segment)) is not None and not end.done():
            end.set_result(outcome)

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        """Do nothing, because the checkpoint's files belong to the caller."""


class StoreJournal:
    """Writes each batch to the store immediately."""

    def __init__(self, store: Store, experiment: int, epoch: int) -> None:
        self._store, self._experiment, self._epoch = store, experiment, epoch

    async def commit(self, batch: Batch) -> Collection[str]:
        return self._store.drivers.commit(self._experiment, self._epoch, batch, time.time())


class AskedDriver:
    """Drives one experiment in a thread of this process. It is the experiment's single writer."""

    def __init__(self, store: Store, record: ExperimentRecord, core: Core) -> None:
        """Claim the experiment, fold its log, and start the loop.

        Raises:
            Conflict: another process drives the experiment.
        """
        self._store, self.record, self.core = store, record, core
        self._pid = os.getpid()
        self._epoch = _claimed(store, record)
        try:
            for seq, entry in store.drivers.load(record.id):
                core.fold(seq, entry)
        except BaseException:
            self._release()
            raise
        self.groups = AskedGroups()
        self._over = threading.Event()
        self._closing = False
        self._calls = 0  # calls in progress in the loop's thread
        self._error: BaseException | None = None
        begun: Future[tuple[asyncio.AbstractEventLoop, ExperimentLoop]] = Future()
        self._thread = threading.Thread(
            target=self._main, args=(begun,), name=f"tuner-study-{record.name}", daemon=True
        )
        self._thread.start()
        self._events, self._loop = begun.result()

    # -- the loop's thread -----------------------------------------------------------------------------------------------

    def _main(self, begun: Future[tuple[asyncio.AbstractEventLoop, ExperimentLoop]]) -> None:
        try:
            asyncio.run(self._drive(begun))
        except BaseException as error:
            closed = TunerError("it was closed; tuner.create_study with the same name continues it")
            self._error = self._error or (closed if self._closing else error)
            if not begun.done():
                begun.set_exception(error)
        finally:
            self._release()
            self._over.set()

    def _release(self) -> None:
        """Release the lease, so that the next driver need not wait until it has expired."""
        with contextlib.suppress(StoreError):
            self._store.drivers.release(self.record.id, self._epoch)

    async def _drive(self, begun: Future[tuple[asyncio.AbstractEventLoop, ExperimentLoop]]) -> None:
        store, record = self._store, self.record
        loop = ExperimentLoop(self.core, StoreJournal(store, record.id, self._epoch), self.groups)
        waiting = store.commands.pending([record.id])
        seen = {command.id for command in waiting}
        driving = asyncio.current_task()
        assert driving is not None
        self._driving = driving
        begun.set_result((asyncio.get_running_loop(), loop))
        keeping = asyncio.create_task(self._keep(loop, seen, driving))
        try:
            await loop.run(self._epoch, None, {command.id: as_event(command) for command in waiting})
            while self._calls:
                await asyncio.sleep(0)
        finally:
            keeping.cancel()

    async def _keep(self, loop: ExperimentLoop, seen: set[int], driving: asyncio.Task[Any]) -> None:
        """Renew the lease and pass users' commands on to the loop. End the loop if another process drives the experiment."""
        while True:
            await asyncio.sleep(KEEP_S)
            try:
                self._store.drivers.renew(self.record.id, self._epoch, LEASE_S, time.time())
                for command in self._store.commands.pending([self.record.id]):
                    if command.id not in seen:
                        seen.add(command.id)
                        loop.put(as_event(command), command=command.id)
            except StoreError as error:
                if not isinstance(error, Retryable):
                    self._error = error
                    driving.cancel()

    # -- calls ---------------------------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Return whether the loop has ended."""
        return self._over.is_set()

    def check(self) -> None:
        """Raise the error that ended the loop, if there was one."""
        if self._over.is_set() and self._error is not None:
            raise TunerError(f"the study is no longer driven: {self._error}") from self._error

    def ask(self, timeout_s: float | None) -> tuple[Trial, Segment, SegmentRef] | None:
        """Return a segment to train, with its trial; None once the experiment has ended or is paused.

        Raises:
            Conflict: no segment became available within `timeout_s` (None: no limit), because other trials have to report or end
                first.
            TunerError: `close` was called before the experiment ended, or another process drives it.
        """
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self.check()
            if self._over.is_set():
                return None
            try:
                found = self._call(self._take())
            except Closed:
                return None
            if found is not None:
                return found
            count, slots = len(self.groups.taken), self.core.experiment.slots
            if (count >= slots or time.monotonic() >= until) and not self._over.wait(4 * LOOK_S):
                why = (
                    f"max_concurrent_trials is {slots}"
                    if count >= slots
                    else "the scheduler is waiting for these trials to report"
                )
                trials = "1 trial has" if count == 1 else f"{count} trials have"
                raise Conflict(f"{trials} not ended yet, and no other trial may start: {why}{self._how_to_end()}")

    def _how_to_end(self) -> str:
        """Return a sentence that says how to end the trials that were handed out; "" if there are none."""
        numbers = ", ".join(str(ref.trial) for ref in sorted(self.groups.taken))
        if not numbers:
            return ""
        which = f"trial {numbers}" if len(self.groups.taken) == 1 else f"each of trials {numbers}"
        return (
            f". Call tell() of {which} to end it. If you no longer have it, as after its loop was interrupted in a notebook, "
            "call study.close() and then tuner.create_study with the same name: ask() returns it again"
        )

    async def _take(self) -> tuple[Trial, Segment, SegmentRef] | None:
        """Return the next segment to train; None if the loop has handled all events so far and has none."""
        quiet = 0
        while quiet < 3:
            await asyncio.sleep(LOOK_S if quiet else 0)
            quiet = 0 if self.groups.ready else quiet + 1
            if self.groups.ready:
                ref = self.groups.ready.popleft()
                trial = self.core.trials[ref.trial]
                segment = trial.segments[ref.ordinal - 1]
                if segment.leaving:
                    self.groups.end(ref, Outcome(kind="left"))
                    continue
                self.groups.taken.add(ref)
                await self._loop.put(
                    e.SegmentStarted(time=time.time(), trial=ref.trial, segment=ref.ordinal, warm=ref.ordinal > 1)
                )
                return trial, segment, ref
        return None

    def report(
        self,
        ref: SegmentRef,
        metrics: Mapping[str, float],
        checkpoint: str | None,
        step: int | None,
        last: bool = False,
    ) -> Verdict:
        """Commit a report and return the verdict. A verdict other than "continue" ends the segment.

        last: True if the trial ends with this report.

        Raises:
            SpecError: the report lacks a metric that the search needs. Nothing is committed, and the trial can
                continue.
        """
        try:
            return self._call(self._report(ref, metrics, checkpoint, step, last))
        except Closed:
            return Verdict(action="stop", reason="the study has ended")

    async def _report(
        self, ref: SegmentRef, metrics: Mapping[str, float], checkpoint: str | None, step: int | None, last: bool
    ) -> Verdict:
        segment = self.core.experiment.segment(ref)
        if segment is None or ref not in self.groups.taken:
            return Verdict(action="stop", reason="this trial has ended, or another process has taken it over")
        if why := unusable(self.core.experiment, self.core.trials[ref.trial], metrics, last):
            raise SpecError(why, "/metrics")
        report_no = segment.report_no + 1
        iteration = segment.start_iteration + report_no
        info = None
        if checkpoint is not None:
            name = checkpoint_id(segment_id(self.record.public_id, *ref), report_no)
            info = CheckpointInfo(id=name, uri=checkpoint, step=iteration)
        event = e.Reported(
            time=time.time(),
            trial=ref.trial,
            segment=ref.ordinal,
            report_no=report_no,
            iteration=iteration,
            metrics=dict(metrics),
            checkpoint=info,
            step=step,
            waits=True,
            last=last,
        )
        verdict = await self._loop.report([event]) or Verdict()
        if verdict.action != "continue":
            await self._ended(ref, Outcome(kind="left"))
        return verdict

    def end(self, ref: SegmentRef, outcome: Outcome) -> None:
        """End a segment and wait until its end is committed. Do nothing if it has ended already.

        Raises:
            SpecError: the outcome is "returned", but none of the trial's reports had the objective. The trial can continue.
        """
        with contextlib.suppress(Closed):
            self._call(self._told(ref, outcome))

    async def _told(self, ref: SegmentRef, outcome: Outcome) -> None:
        trial = self.core.trials[ref.trial]
        ends = outcome.kind == "returned" and trial.reports and ref in self.groups.taken
        if ends and (why := unusable(self.core.experiment, trial, {}, last=True)):
            raise SpecError(why, "/metrics")
        await self._ended(ref, outcome)

    async def _ended(self, ref: SegmentRef, outcome: Outcome) -> None:
        self.groups.end(ref, outcome)
        while self.core.experiment.segment(ref) is not None:
            await asyncio.sleep(0)

    def close(self) -> None:
        """Stop driving the experiment. The next driver restarts the unfinished trials. Later calls raise TunerError."""
        self._closing = True
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._events.call_soon_threadsafe(self._driving.cancel)
        self._thread.join()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop's thread and return its result.

        Raises:
            Closed: the loop has ended.
            TunerError: this process is a fork, which does not have the loop's thread.
        """
        if os.getpid() != self._pid:
            work.close()
            raise TunerError(
                f"the study is driven by the process {self._pid}, which has created it, and this is a child of it: let the child "
                "return its results, and report them there"
            )
        self.check()
        counted = self._counted(work)
        try:
            running = asyncio.run_coroutine_threadsafe(counted, self._events)
        except RuntimeError:  # the loop is closed
            counted.close()
            work.close()
            self._over.wait()
            raise self._closed() from None
        while True:
            try:
                return running.result(timeout=0.2)
            except TimeoutError:
                if self._over.is_set() and not running.done():
                    raise self._closed() from None
            except (CancelledError, Stopped):
                self._over.wait()
                raise self._closed() from None
            finally:
                if self._over.is_set():  # the loop may have ended before it began the coroutines
                    counted.close()
                    work.close()

    async def _counted(self, work: Coroutine[Any, Any, T]) -> T:
        self._calls += 1
        try:
            return await work
        finally:
            self._calls -= 1

    def _closed(self) -> Exception:
        self.check()
        return Closed("the study is no longer driven")


def _claimed(store: Store, record: ExperimentRecord) -> int:
    """Claim the experiment's lease and return its epoch.

    If another process holds the lease, wait for the lease to expire, because that process may have been killed.
    """
    owner = f"study:{socket.gethostname()}:{os.getpid()}:{threading.get_ident()}:{time.time_ns()}"
    until = time.monotonic() + LEASE_S + KEEP_S
    while True:
        try:
            return store.drivers.claim(record.id, owner, LEASE_S, time.time())
        except Conflict as error:
            if time.monotonic() >= until:
                raise Conflict(f"{error}; it is released when that process ends or calls close()") from None
            time.sleep(0.1)
