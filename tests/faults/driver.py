"""A driver in a process of its own, which is killed at a chosen place: the real loop, core and store, without Ray.

Its groups train in the process itself and keep checkpoints as files. So a run takes a fraction of a second, and every place
can be tried: before and after each statement of a transaction, each commit, each action, and each file of a checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.disk import Disk
from tuner.domain import events as e
from tuner.domain.batch import Batch
from tuner.domain.segments import CheckpointInfo, Failure, Interruption, Outcome, Report, SegmentRef
from tuner.domain.trial import Population
from tuner.driver.assemble import assemble
from tuner.driver.commands import as_event
from tuner.driver.core import Core
from tuner.driver.loop import ExperimentLoop
from tuner.errors import CheckpointError, Conflict, LostLease
from tuner.search.base import Searcher, Suggestion
from tuner.space import Space
from tuner.store import Store, StoreUnavailable
from tuner.store.records import ExperimentRecord
from tuner.store.sql import connect
from tuner.store.sql.cursor import Cursor
from tuner.trials.checkpoints import checkpoints
from tuner.trials.checkpoints.storage import join

ENDED, REFUSED, LOST_LEASE = 0, 2, 3
"""Exit statuses of a driver that was not killed."""


class How(enum.Enum):
    """The fault at the chosen place.

    KILL and SLEEP are signals to the process. POWER is a kill after which only those files are sure to be there that were
    flushed. CLOCK sets the clock. FULL and LOCKED are states of an SQLite database: its disk is full, or another process holds
    its lock.
    """

    KILL = "kill"
    SLEEP = "sleep"
    POWER = "power"
    CLOCK = "clock"
    FULL = "full"
    LOCKED = "locked"


IMPOSSIBLE = -1e9
"""The loss of reports that must not count."""

REFUSALS = 2
"""The number of commits that fail because the disk of the database is full."""

STEP_S = 10.0
"""The time that an iteration seems to take. The default search decides otherwise if training takes less time than its model."""

LOCKED_S = 0.3
"""Seconds for which another process holds the lock of the database."""


@dataclass(frozen=True)
class Orders:
    """The task of a driver process.

    Attributes:
        url: the database.
        experiment: the public id.
        folder: where checkpoints are, and the list of places.
        at: the number of the place, counted from 1, at which something happens; None: nowhere.
        how: what happens there.
        lease_s: for how long the driver claims the experiment.
        command: given as soon as a report of this iteration of this trial is committed, as (name, trial, iteration).
        durable: True if checkpoints are flushed to the disk, as with TUNER_DURABILITY=FULL.
        seed: what is lost with the power.
        jump_s: by how much the clock is set.
        noise: True to send reports twice, late, too early, and for segments that have ended.
    """

    url: str
    experiment: str
    folder: str
    at: int | None = None
    how: How = How.KILL
    lease_s: float = 0.0
    command: tuple[str, int, int] | None = None
    durable: bool = False
    seed: int = 0
    jump_s: float = 0.0
    noise: bool = False

    @property
    def storage(self) -> str:
        return str(Path(self.folder, "checkpoints"))


@dataclass
class Places:
    """Counts the places that the process passes, and does at one of them what was ordered."""

    orders: Orders
    passed: list[str] = field(default_factory=list)
    disk: Disk | None = None
    refuse: int = 0  # how many commits are still to fail

    def __call__(self, name: str) -> None:
        self.passed.append(name)
        if len(self.passed) == self.orders.at:
            self._fail()

    def _fail(self) -> None:
        match self.orders.how:
            case How.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case How.SLEEP:
                os.kill(os.getpid(), signal.SIGSTOP)
            case How.POWER:
                assert self.disk is not None
                Path(self.orders.folder, "lost").write_text(str(self.disk.lose_power(self.orders.seed)))
                os.kill(os.getpid(), signal.SIGKILL)
            case How.CLOCK:
                really, jump = time.time, self.orders.jump_s
                time.time = lambda: really() + jump
            case How.FULL:
                self.refuse = REFUSALS
            case How.LOCKED:
                held = threading.Event()
                threading.Thread(target=_hold_the_lock, args=(self.orders.url, held)).start()
                held.wait()

    def write(self) -> None:
        """Tell the test which places there are."""
        Path(self.orders.folder, "places.json").write_text(json.dumps(self.passed))


def _hold_the_lock(url: str, held: threading.Event) -> None:
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        held.set()
        time.sleep(LOCKED_S)
        other.execute("ROLLBACK")
    finally:
        held.set()
        other.close()


def advance(state: float, x: float, iteration: int) -> float:
    """Train for one iteration. The new state depends on every iteration before, so nothing can be left out or done twice."""
    return (state * 1.618 + x * iteration + 0.1) % 1.0


def loss(state: float, x: float, iteration: int) -> float:
    return (x - 0.3) ** 2 + 0.2 * state + 1.0 / iteration


def curve(params: Sequence[tuple[int, float]], length: int) -> list[float]:
    """Return the losses of an undisturbed training; `params` says from which iteration on which x is in force."""
    state, values = 0.0, []
    for iteration in range(1, length + 1):
        x = [value for begin, value in params if begin < iteration][-1]
        state = advance(state, x, iteration)
        values.append(loss(state, x, iteration))
    return values


class FileGroups:
    """Groups that train in this process, one report after the other, with checkpoints as files."""

    inbound: Inbound

    def __init__(self, core: Core, orders: Orders, place: Places, length: int) -> None:
        self._core, self._orders, self._place, self._length = core, orders, place, length
        self._experiment, self._storage = orders.experiment, orders.storage
        self._leaving: set[SegmentRef] = set()
        self._sent: list[e.Reported] = []
        self._ahead = max(0.0, core.experiment.now - time.time())

    async def run(self, segment: SegmentRef, milestone: int | None) -> Outcome:
        self._place("launch")
        mine = self._core.trials[segment.trial].segments[segment.ordinal - 1]
        try:
            iteration, state = self._load(mine.source)
        except CheckpointError as error:
            failure = Failure(kind="system", cause="checkpoint_lost", message=str(error))
            return Outcome(kind="failed", failure=failure)
        assert iteration == mine.start_iteration
        self.inbound.loop.put(e.SegmentStarted(time=self._now(), trial=segment.trial, segment=segment.ordinal))
        x, report_no = mine.params["x"], 0
        while iteration < self._length:
            await asyncio.sleep(0)
            iteration, report_no = iteration + 1, report_no + 1
            state = advance(state, x, iteration)
            info = self._save(segment, iteration, state)
            waits = segment in self._leaving or (milestone is not None and report_no >= milestone)
            value = loss(state, x, iteration)
            report = Report(report_no=report_no, metrics={"loss": value}, time=0.0, checkpoint=info, waits=waits)
            self._ahead += STEP_S
            event = e.Reported.of(report, segment, mine.start_iteration, self._now())
            if self._orders.noise:
                await self._make_noise(event)
            verdict = await self.inbound.report(event)
            if verdict is not None and verdict.action != "continue":
                return Outcome(kind="left")
            milestone = verdict.next_milestone if verdict is not None else milestone
        return Outcome(kind="returned")

    def _now(self) -> float:
        return time.time() + self._ahead

    async def _make_noise(self, event: e.Reported) -> None:
        """Send the report after this one too early, and all earlier ones again, also those of segments that have ended."""
        one_later = {"report_no": event.report_no + 1, "iteration": event.iteration + 1}
        for earlier in [dataclasses.replace(event, **one_later), *self._sent]:
            wrong = dataclasses.replace(earlier, metrics={"loss": IMPOSSIBLE}, checkpoint=None, waits=False)
            await self.inbound.loop.report([wrong])
        ended = [other for other in self._sent if other.ref != event.ref]
        for other in ended[-1:]:  # its process went on after it was told to end
            later = {"report_no": other.report_no + 1, "iteration": other.iteration + 1}
            wrong = dataclasses.replace(other, metrics={"loss": IMPOSSIBLE}, checkpoint=None, waits=False, **later)
            await self.inbound.loop.report([wrong])
        self._sent.append(event)

    def _save(self, segment: SegmentRef, iteration: int, state: float) -> CheckpointInfo:
        name = f"{self._experiment}-{segment.trial}-{segment.ordinal}-{iteration}"
        uri = join(self._storage, f"trial_{segment.trial:05d}", f"iteration_{iteration:08d}_{segment.ordinal}")
        os.makedirs(uri)
        self._place("checkpoint, folder made")
        Path(uri, "state.json").write_text(json.dumps([iteration, state]))
        self._place("checkpoint, file written")
        below = self._storage if self._orders.durable else None
        checkpoints.commit(uri, checkpoints.digest(uri), {"iteration": iteration}, below)
        self._place("checkpoint, committed")
        return CheckpointInfo(id=name, uri=uri, step=iteration)

    def _load(self, info: CheckpointInfo | None) -> tuple[int, float]:
        if info is None:
            return 0, 0.0
        checkpoint = checkpoints.Checkpoint(info.uri, info=info)
        checkpoint.verify()
        with checkpoint.as_directory() as folder:
            iteration, state = json.loads(Path(folder, "state.json").read_text())
        return int(iteration), float(state)

    async def interrupt(self, segment: SegmentRef, why: Interruption) -> None:
        self._place("interrupt")
        self._leaving.add(segment)

    async def delete_checkpoint(self, info: CheckpointInfo) -> None:
        self._place("before a deletion")
        checkpoints.delete(info.uri)
        self._place("after a deletion")

    async def offload(self, function: Callable[..., Any], *args: Any) -> Any:
        self._place("fit")
        return function(*args)

    async def suggest(self, searcher: Searcher, number: int, trials: Population) -> Suggestion | None:
        return searcher.suggest(number, trials)

    async def judge(self, number: int, metrics: Mapping[str, float]) -> list[dict[str, Any]]:
        return []


OF_TRIALS = ("stop",)
"""Commands that are about a trial."""


class Inbound:
    """Passes reports to the loop, and gives the command of the orders once its report is committed."""

    def __init__(self, loop: ExperimentLoop, store: Store, record: ExperimentRecord, orders: Orders) -> None:
        self.loop, self._store, self._record, self._orders = loop, store, record, orders

    async def report(self, event: e.Reported) -> Any:
        verdict = await self.loop.report([event])
        if self._orders.command is not None:
            name, trial, iteration = self._orders.command
            if (event.trial, event.iteration) == (trial, iteration):
                self._store.commands.add(self._record.id, name, trial if name in OF_TRIALS else None)
                for command in self._store.commands.pending([self._record.id]):
                    await self.loop.put(as_event(command), command=command.id)
        return verdict


class StoreJournal:
    def __init__(self, store: Store, experiment: int, epoch: int, place: Places) -> None:
        self._store, self._experiment, self._epoch, self._place = store, experiment, epoch, place

    async def commit(self, batch: Batch) -> Collection[str]:
        self._place("before a commit")
        with statements(self._place), self._full_disk():
            pinned = self._store.drivers.commit(self._experiment, self._epoch, batch, time.time())
        self._place("after a commit")
        return pinned

    @contextmanager
    def _full_disk(self) -> Iterator[None]:
        """Let the disk be full from the second statement of a transaction on, if that is ordered."""
        if not self._place.refuse:
            yield
            return
        with self._store._database.write() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS filler (bytes BLOB)")
            cursor.rows(f"PRAGMA max_page_count = {cursor.value('PRAGMA page_count')}")
        done = 0

        def fill(execute: Callable[..., Any]) -> None:
            nonlocal done
            done += 1
            if done == 2:
                execute("INSERT INTO filler VALUES (zeroblob(1000000))")

        try:
            with before_statements(fill):
                yield
        except StoreUnavailable:
            self._place.refuse -= 1
            raise
        finally:
            with self._store._database.write() as cursor:
                cursor.rows("PRAGMA max_page_count = 1000000")


def statements(place: Places) -> AbstractContextManager[None]:
    """Count each statement of a transaction as a place."""
    return before_statements(lambda _: place("statement"))


@contextmanager
def before_statements(call: Callable[[Callable[..., Any]], None]) -> Iterator[None]:
    """Call a function before each statement of a transaction. It gets the function that executes a statement."""
    really = Cursor.__init__

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any) -> Any:
            call(function)
            return function(*args)

        return count

    def init(self: Cursor, raw: Any, backend: str) -> None:
        really(self, raw, backend)
        self.execute, self.executemany = counted(self.execute), counted(self.executemany)

    Cursor.__init__ = init  # type: ignore[method-assign]
    try:
        yield
    finally:
        Cursor.__init__ = really  # type: ignore[method-assign]


def drive(orders: Orders) -> None:
    """Claim the experiment, fold its log, and drive it. Exit with ENDED, REFUSED or LOST_LEASE, unless something is ordered."""
    place = Places(orders)
    if orders.how is How.LOCKED:
        connect.BUSY_TIMEOUT_MS = 20
    with contextlib.ExitStack() as stack:
        if orders.how is How.POWER:
            place.disk = stack.enter_context(Disk(orders.folder).watched())
        try:
            sys.exit(asyncio.run(_drive(orders, place)))
        finally:
            place.write()


async def _drive(orders: Orders, place: Places) -> int:
    with Store.open(orders.url) as store:
        record = store.experiments.get(orders.experiment)
        try:
            epoch = store.drivers.claim(record.id, f"driver {os.getpid()}", orders.lease_s, time.time())
        except Conflict:
            return REFUSED
        place("after the claim")
        core = assemble(record.first_spec, Space.from_json(record.spec.space))
        for seq, entry in store.drivers.load(record.id):
            core.fold(seq, entry)
        os.makedirs(orders.storage, exist_ok=True)
        if epoch > 1:
            rows = store.trials.checkpoints(record.id)
            checkpoints.sweep(orders.storage, {row.uri for row in rows if row.state != "deleted"})
        groups = FileGroups(core, orders, place, int(record.spec.max_t or 0))
        loop = ExperimentLoop(core, StoreJournal(store, record.id, epoch, place), groups)
        groups.inbound = Inbound(loop, store, record, orders)
        pending = {command.id: as_event(command) for command in store.commands.pending([record.id])}
        try:
            await loop.run(epoch, 1, pending)
        except LostLease:
            return LOST_LEASE
        with contextlib.suppress(StoreUnavailable):  # as the host does; the next one releases it
            store.drivers.release(record.id, epoch)
        return ENDED
