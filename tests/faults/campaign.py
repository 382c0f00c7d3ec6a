"""Run a search again and again, kill its driver at another place each time, and compare the outcome with the undisturbed run."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import struct
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

import tuner
from tests import invariants
from tests.faults.driver import ENDED, LOST_LEASE, REFUSED, How, Orders, curve, drive
from tests.faults.proxy import proxy
from tests.faults.service import Served, free_port, serve
from tests.store.examples import a_report, begin
from tuner.client.synchronous import Client
from tuner.domain import events as e
from tuner.domain.batch import Batch
from tuner.domain.decisions import Note
from tuner.domain.experiment import CheckpointPolicy, Limits, Objective, Spec
from tuner.domain.segments import CheckpointInfo
from tuner.domain.states import ExperimentState
from tuner.driver.assemble import assemble
from tuner.space import Space
from tuner.store import Store
from tuner.store.records import ExperimentRecord
from tuner.trials.checkpoints.checkpoints import Checkpoint

LENGTH = 4
DEADLINE_S = 120.0
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.faults.driver", "tests.faults.service"])


@dataclass(frozen=True)
class Scenario:
    """A search, and a command that users give in the middle of it."""

    scheduler: dict[str, Any]
    num_samples: int = 4
    command: tuple[str, int, int] | None = None
    same: bool = True  # a command may come one report later or earlier after a restart


SCENARIOS = {
    "fifo": Scenario({"type": "fifo"}, 3),
    "asha": Scenario({"type": "asha", "reduction_factor": 2}, 6),
    "promotion": Scenario({"type": "asha_promotion", "reduction_factor": 2}),
    "hyperband": Scenario({"type": "hyperband", "reduction_factor": 2}),
    "median": Scenario({"type": "median", "min_samples_required": 2}, 6),
    "pbt": Scenario({"type": "pbt", "perturbation_interval": 1, "quantile_fraction": 0.5}, 2),
    "freeze_thaw": Scenario({"type": "freeze_thaw", "budget": 3}, 6),
    "pause": Scenario({"type": "fifo"}, 3, ("pause", 1, 2)),
    "stop": Scenario({"type": "fifo"}, 3, ("stop", 1, 2), same=False),
    "cancel": Scenario({"type": "fifo"}, 3, ("cancel", 1, 2), same=False),
    "kill": Scenario({"type": "fifo"}, 3, ("kill", 1, 2), same=False),
}


@dataclass
class Counts:
    """The outcome of a campaign.

    faults: how many of each kind were injected.
    lost: names and contents of files that were lost with the power.
    reports: reports whose values were checked.
    outcomes: searches whose outcome was that of the undisturbed run.
    invariants: experiments in which all invariants held.
    """

    runs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    reports: int = 0
    outcomes: int = 0
    invariants: int = 0

    def __str__(self) -> str:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.faults.items()))
        return (
            f"{sum(self.faults.values()):,} faults ({kinds}; {self.lost:,} names and contents of files lost with the "
            f"power) · {self.reports:,} reports checked · {self.outcomes:,} outcomes equal to the undisturbed run · "
            f"{self.invariants:,} experiments with all invariants"
        )


def outcome(store: Store, record: ExperimentRecord) -> dict[str, Any]:
    """Return what a user gets from a search, without times and without how often it was interrupted."""
    trials = sorted(store.trials.newest(record.id, 1000), key=lambda trial: trial.number)
    best = store.experiments.get(record.public_id).best or {}
    return {
        "state": str(store.experiments.get(record.public_id).state),
        "best": {name: best.get(name) for name in ("trial_number", "value", "params")},
        "trials": [(t.number, str(t.state), t.iteration, dict(t.params), t.best_value, t.failures) for t in trials],
    }


def _without_values(outcome: dict[str, Any]) -> Any:
    """Return how each trial of an outcome ended, and after how many reports and failures."""
    return outcome["state"], [
        (number, state, iteration, failures) for number, state, iteration, _, _, failures in outcome["trials"]
    ]


class Run:
    """One search in a database, with drivers that come and go."""

    def __init__(self, scenario: Scenario, url: str, counts: Counts) -> None:
        self.scenario, self.url, self.counts = scenario, url, counts
        self.folder = Path(tempfile.mkdtemp(prefix="tuner-fault-"))
        space = Space.from_python({"x": tuner.uniform(0, 1)})
        spec = Spec(
            name="faults",
            space=space.to_json(),
            objectives=(Objective("loss", "min"),),
            num_samples=scenario.num_samples,
            search={"type": "random"},
            scheduler=scenario.scheduler,
            max_t=LENGTH,
            seed=3,
            limits=Limits(max_concurrent_trials=1),
            checkpoint=CheckpointPolicy(interval_s=None),
        )
        with Store.open(url) as store:
            self.experiment = store.experiments.create(spec).public_id
        counts.runs += 1

    def orders(self, **changes: Any) -> Orders:
        given = {"url": self.url, "experiment": self.experiment, "folder": str(self.folder), **changes}
        return Orders(command=self.scenario.command, **given)

    def begin(self, orders: Orders) -> Any:
        process = _processes.Process(target=drive, args=(orders,))
        process.start()
        return process

    def drive(self, at: int | None = None, **orders: Any) -> int:
        """Let a driver drive until it ends or is killed. Return its exit status."""
        process = self.begin(self.orders(at=at, **orders))
        process.join(DEADLINE_S)
        assert process.exitcode is not None, "the driver hangs"
        if process.exitcode == -signal.SIGKILL and "how" not in orders:
            self.counts.faults["kills"] += 1
        return int(process.exitcode)

    def places(self) -> list[str]:
        return list(json.loads((self.folder / "places.json").read_text()))

    def finish(self, files: bool = True) -> dict[str, Any]:
        """Drive to the end, through a pause if there is one, check everything, and return the outcome."""
        for _ in range(5):
            with Store.open(self.url) as store:
                record = store.experiments.get(self.experiment)
                if record.state.ended and record.driver_owner is None:
                    self.check(store, record, files)
                    return outcome(store, record)
                if record.state is ExperimentState.PAUSED:
                    store.commands.add(record.id, "resume")
            assert self.drive() == ENDED
        raise AssertionError("the search does not end")

    def check(self, store: Store, record: ExperimentRecord, files: bool = True) -> None:
        """Check the invariants, each report against the curve of its trial, and that nothing is left over."""
        problems = list(invariants.broken(store, record))
        assert problems == []
        assert store.commands.pending([record.id]) == []
        segments = store.trials.segments(record.id)
        for _, entry in store.drivers.load(record.id):
            if isinstance(entry, e.Reported):
                self.counts.reports += 1
                assert entry.metrics["loss"] == curve(_params(segments, *entry.ref), entry.iteration)[-1]
        kept = {c.uri for c in store.trials.checkpoints(record.id) if c.state == "ready"}
        there = {str(folder) for folder in (self.folder / "checkpoints").glob("trial_*/*") if folder.is_dir()}
        if files:
            assert sorted(there - kept) == [], "files without a row"
            assert sorted(kept - there) == [], "rows without files"
        self.counts.invariants += 1

    def went_back(self) -> list[int]:
        """Return the trials that continued from their own checkpoint because the one that they were to copy was lost.

        Each of them must start from its newest whole checkpoint of before, and never from the beginning.
        """
        with Store.open(self.url) as store:
            record = store.experiments.get(self.experiment)
            log = [entry for _, entry in store.drivers.load(record.id)]
            notes = [entry for entry in log if isinstance(entry, Note) and "it was to copy is lost" in entry.reason]
            segments = store.trials.segments(record.id)
        for note in notes:
            assert note.trial is not None
            later = segments[note.trial][1:]
            assert all(segment.source_checkpoint for segment in later), f"trial {note.trial} began anew: {later}"
            reports = [
                entry.iteration
                for entry in log[: log.index(note)]
                if isinstance(entry, e.Reported) and entry.trial == note.trial
            ]
            assert f"its own checkpoint of iteration {reports[-1]}," in note.reason
        return [note.trial for note in notes if note.trial is not None]

    def close(self) -> None:
        shutil.rmtree(self.folder)


def _params(segments: dict[int, Any], trial: int, ordinal: int) -> list[tuple[int, float]]:
    """Return from which iteration on which x was in force in the training that led to this segment, and in it."""
    segment = segments[trial][ordinal - 1]
    if segment.source_checkpoint is None:
        return [(0, segment.params["x"])]
    donor, before, begin = map(int, segment.source_checkpoint.split("-")[1:])
    earlier = [(at, x) for at, x in _params(segments, donor, before) if at < begin]
    return [*earlier, (begin, segment.params["x"])]


def undisturbed(scenario: Scenario, url: str, counts: Counts) -> tuple[dict[str, Any], list[str]]:
    """Return the outcome of a run without a fault, and the places that its first driver passed."""
    with running(scenario, url, counts) as run:
        assert run.drive() == ENDED
        places = run.places()
        return run.finish(), places


@contextmanager
def running(scenario: Scenario, url: str, counts: Counts) -> Iterator[Run]:
    run = Run(scenario, url, counts)
    try:
        yield run
    finally:
        run.close()


class Campaign:
    """Runs of one scenario with faults, each compared with the undisturbed one."""

    def __init__(self, name: str, url: str, counts: Counts) -> None:
        self.name, self.scenario, self.url, self.counts = name, SCENARIOS[name], url, counts
        self.expected, self.places = undisturbed(self.scenario, url, counts)
        self.gone_back = 0  # runs in which the checkpoint that a trial was to copy was torn

    def new(self) -> AbstractContextManager[Run]:
        return running(self.scenario, self.url, self.counts)

    def compare(self, run: Run, what: str, same: bool = True) -> None:
        """Drive to the end, and compare the outcome, if it is known."""
        self.equal(run.finish(), what, same)

    def equal(self, found: dict[str, Any], what: str, same: bool = True) -> None:
        if self.scenario.same and same:
            assert found == self.expected, f"{self.name}: {what}"
            self.counts.outcomes += 1

    def kill_at(self, place: int) -> None:
        with self.new() as run:
            run.drive(at=place)
            self.compare(run, f"killed at place {place}, {self.places[place - 1]}")

    def kill_again_and_again(self, seed: int) -> None:
        """Kill one driver after the other, each after it has come a bit further."""
        draw = random.Random(seed)
        with self.new() as run:
            for _ in range(12):
                if run.drive(at=draw.randint(3, len(self.places))) == ENDED:
                    break
            self.compare(run, f"killed again and again, seed {seed}")

    def tear_after(self, place: int) -> None:
        """Kill the driver, and damage the newest checkpoint."""
        with self.new() as run:
            run.drive(at=place)
            folders = list((run.folder / "checkpoints").glob("trial_*/*/state.json"))
            if folders:
                newest = max(folders, key=lambda path: path.stat().st_mtime_ns)
                newest.write_text(newest.read_text()[:-3])
                self.counts.faults["torn checkpoints"] += 1
            found = run.finish()
            # Training that is repeated counts for the budget of freeze-thaw.
            same, what = self.name != "freeze_thaw", f"killed at place {place}, and the newest checkpoint torn"
            if not run.went_back():
                self.equal(found, what, same)
            else:  # nobody else has the weights that were to be copied, so the values differ, but nothing else
                self.gone_back += 1
                assert _without_values(found) == _without_values(self.expected), f"{self.name}: {what}"
                self.counts.outcomes += 1

    def lose_power_at(self, place: int, seed: int = 0, durable: bool = True) -> None:
        """Let the power fail. Each checkpoint that the database calls ready must be whole, if checkpoints are flushed."""
        with self.new() as run:
            if run.drive(at=place, how=How.POWER, durable=durable, seed=seed) == -signal.SIGKILL:
                self.counts.faults["losses of power"] += 1
                self.counts.lost += int(Path(run.folder, "lost").read_text())
                with Store.open(self.url) as store:
                    _check_ready(store, store.experiments.get(run.experiment))
            self.compare(run, f"power lost at place {place}, {self.places[place - 1]}, seed {seed}")

    def set_the_clock_at(self, place: int, seconds: float) -> None:
        """Set the clock in the middle of a search, forwards or backwards."""
        with self.new() as run:
            assert run.drive(at=place, how=How.CLOCK, jump_s=seconds) == ENDED
            self.counts.faults["jumps of the clock"] += 1
            # freeze-thaw decides by a simpler rule while reports take milliseconds, so it may decide otherwise
            same = self.name != "freeze_thaw"
            self.compare(run, f"the clock jumped by {seconds:g} s at place {place}", same)

    def refuse_writes_at(self, place: int, how: How) -> None:
        """Let the disk of an SQLite database be full for a moment, or its lock held by another process."""
        with self.new() as run:
            assert run.drive(at=place, how=how) == ENDED
            self.counts.faults["full disks of the database" if how is How.FULL else "locks of the database"] += 1
            self.compare(run, f"the database refused writes ({how.value}) from place {place} on")

    def make_noise(self, place: int | None = None) -> None:
        """Send reports twice, late, too early and for segments that have ended, with wrong values. Kill the driver once."""
        with self.new() as run:
            run.drive(at=place, noise=True)
            run.drive(noise=True)
            self.counts.faults["searches with reports that must not count"] += 1
            self.compare(run, f"noise, killed at {place}")

    def outside_of_transactions(self) -> list[int]:
        """Return the places at which a driver that sleeps does not hold SQLite's lock."""
        return [number for number, kind in enumerate(self.places, 1) if kind != "statement"]

    def sleep_at(self, place: int) -> None:
        """Stop a driver, let another one take over and finish, and let the first one wake up."""
        with self.new() as run:
            asleep = run.begin(run.orders(at=place, how=How.SLEEP))
            until("the driver to stop or end", lambda: asleep.exitcode is not None or _is_stopped(asleep.pid))
            if asleep.exitcode is None:
                self.counts.faults["holders that slept"] += 1
            found = run.finish(files=False)
            if asleep.exitcode is None:
                os.kill(asleep.pid, signal.SIGCONT)
            asleep.join(DEADLINE_S)
            assert asleep.exitcode in (LOST_LEASE, ENDED)
            with Store.open(self.url) as store:
                record = store.experiments.get(run.experiment)
                run.check(store, record, files=False)
                assert outcome(store, record) == found, "the one that woke up has written something"
            if self.scenario.same:
                assert found == self.expected
                self.counts.outcomes += 1

    def claim_at_once(self, drivers: int = 3) -> None:
        """Let several drivers claim the experiment at the same time."""
        with self.new() as run:
            both = [run.begin(run.orders(lease_s=60.0)) for _ in range(drivers)]
            for process in both:
                process.join(DEADLINE_S)
            assert sorted(process.exitcode for process in both) == [ENDED] + [REFUSED] * (drivers - 1)
            self.counts.faults["claims at once"] += drivers - 1
            self.compare(run, "claimed by several")


def _check_ready(store: Store, record: ExperimentRecord) -> None:
    """Read each checkpoint from which a trial may be started. A deletion may have begun that the database does not know of."""
    core = assemble(record.first_spec, Space.from_json(record.spec.space))
    for seq, entry in store.drivers.load(record.id):
        core.fold(seq, entry)
    for row in store.trials.checkpoints(record.id):
        if row.state == "ready" and row.public_id not in core.experiment.checkpoints.deleting:
            info = CheckpointInfo(id=row.public_id, uri=row.uri, step=row.step)
            Checkpoint(row.uri, info=info).verify()


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def until(what: str, happened: Callable[[], Any]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < end, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(0.01)


def lose_answers(url: str, counts: Counts, name: str = "asha", every: int = 4) -> None:
    """Drive a search over connections that are reset after a commit and before its answer."""
    campaign = Campaign(name, url, counts)
    with campaign.new() as run, proxy(url, range(4, 10_000, every)) as between:
        process = run.begin(run.orders(url=between.url))
        process.join(DEADLINE_S)
        assert process.exitcode == ENDED
        assert between.cuts > 3
        counts.faults["lost answers of the database"] += between.cuts
        campaign.compare(run, "answers to commits were lost")


def slow_database(url: str, counts: Counts, away_s: float, delay_s: float = 0.005, name: str = "promotion") -> None:
    """Drive a search over a slow connection to the database, which is then away for a while."""
    campaign = Campaign(name, url, counts)
    with campaign.new() as run, proxy(url, delay_s=delay_s) as between:
        process = run.begin(run.orders(url=between.url))
        until("a third of the commits", lambda: between.commits > campaign.places.count("before a commit") / 3)
        between.is_away = True
        time.sleep(away_s)  # the length of the outage
        between.is_away = False
        process.join(DEADLINE_S)
        assert process.exitcode == ENDED
        assert between.refused, "it has tried to connect"
        counts.faults["outages of a slow database"] += 1
        campaign.compare(run, "the database was slow, and away")


def kill_the_api(url: str, counts: Counts, moment: str, spec: dict[str, Any]) -> None:
    """Kill the API while it creates an experiment. The client tries again, and one experiment exists."""
    mark, port = uuid.uuid4().hex, free_port()
    with tempfile.TemporaryDirectory() as home, Store.open(url) as store:
        before = {record.public_id for record in store.experiments.page().items}
        orders = Served(url, home, port, moment, mark)
        servers = [_processes.Process(target=serve, args=(orders,))]
        servers[0].start()
        until("the service", lambda: _answers(port))

        def start_again() -> None:
            servers[0].join(DEADLINE_S)
            servers.append(_processes.Process(target=serve, args=(orders,)))
            servers[1].start()

        again = threading.Thread(target=start_again)
        again.start()
        try:
            with Client(f"http://127.0.0.1:{port}", patience_s=DEADLINE_S) as client:
                client.request("GET", "/experiments")  # a client that has reached a service waits longer for it
                made = client.create(spec)
            again.join(DEADLINE_S)
            assert servers[0].exitcode == -signal.SIGKILL
            now = {record.public_id for record in store.experiments.page().items}
            assert now - before == {made.id}, "one experiment exists, and the client knows it"
            counts.faults["kills of the API"] += 1
        finally:
            for server in servers:
                server.kill()
                server.join(DEADLINE_S)
            again.join(DEADLINE_S)
        until("the helper processes of the killed service to end", lambda: not _marked(mark))


def _marked(mark: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TUNER_FAULT_MARK") == mark:
                found.append(process.pid)
    return found


@contextmanager
def served(url: str) -> Iterator[tuple[int, psutil.Process]]:
    """Run a service without a driver. Yield its port and its process."""
    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        server = _processes.Process(target=serve, args=(Served(url, home, port, "never", uuid.uuid4().hex),))
        server.start()
        try:
            until("the service", lambda: _answers(port))
            yield port, psutil.Process(server.pid)
        finally:
            server.kill()
            server.join(DEADLINE_S)


def _stream(port: int, path: str, after: int = 0) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
    head = f"GET /api/v1{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nLast-Event-ID: {after}\r\n\r\n"
    connection.sendall(head.encode())
    return connection


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def streams_that_vanish(url: str, experiment: str, counts: Counts, count: int) -> None:
    """Open event streams of a service and reset them without a word. Nothing of them stays."""
    with served(url) as (port, process):
        connections = [_stream(port, f"/experiments/{experiment}/changes") for _ in range(count)]
        for connection in connections:
            assert connection.recv(200).startswith(b"HTTP/1.1 200")
        assert _connections(process) >= count
        for connection in connections:
            _reset(connection)
        counts.faults["streams that vanished"] += count
        until("the connections of the streams to be closed", lambda: _connections(process) == 0)
        assert _answers(port)


def streams_that_break_off(url: str, counts: Counts, readers: int, idle: int) -> None:
    """Follow a search with clients that break off all the time, among others that never read. Each gets each entry once."""
    campaign = Campaign("asha", url, counts)
    with campaign.new() as run, served(url) as (port, process):
        path = f"/experiments/{run.experiment}/events"
        mute = [_stream(port, path) for _ in range(idle)]
        found: dict[int, list[int]] = {number: [] for number in range(readers)}
        threads = [threading.Thread(target=_read_in_parts, args=(port, path, n, seqs)) for n, seqs in found.items()]
        for thread in threads:
            thread.start()
        campaign.compare(run, "followed by clients that break off")
        for thread in threads:
            thread.join(DEADLINE_S)
        with Store.open(url) as store:
            last = store.experiments.get(run.experiment).last_event_seq
        assert all(seqs == list(range(1, last + 1)) for seqs in found.values()), (
            "each client has each entry once, in order"
        )
        counts.faults["streams that broke off"] += readers
        counts.faults["streams that nobody read"] += idle
        for connection in mute:
            _reset(connection)
        until("the connections of the streams to be closed", lambda: _connections(process) == 0)


def streams_that_nobody_reads(url: str, counts: Counts, mute: int, reports: int) -> None:
    """Commit a long log while many clients are connected and read nothing. The service neither keeps it for them nor slows down.

    Args:
        url: the database.
        counts: where faults are counted.
        mute: the number of clients that never read.
        reports: the number of reports, of about 2 KB each.
    """
    with Store.open(url) as store, served(url) as (port, process):
        made, epoch, trials = begin(store)
        path, first = f"/experiments/{made.public_id}/events", made.last_event_seq
        idle = []
        for _ in range(mute):
            idle.append(_stream(port, path, first))
            idle[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        seen: list[int] = []
        reading = threading.Thread(target=_read_all, args=(port, path, first, first + reports, seen))
        reading.start()
        until("all streams", lambda: _connections(process) > mute)
        before = process.memory_info().rss
        for begun in range(0, reports, 50):
            numbers = range(begun + 1, min(begun + 50, reports) + 1)
            log = [(first + n, a_report(0, n, **{f"metric_{i}": n / (i + 1) for i in range(60)})) for n in numbers]
            store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), time.time())
        reading.join(DEADLINE_S)
        assert seen == list(range(first + 1, first + reports + 1)), "who reads has everything, although others do not"
        grown, kept_for_all = process.memory_info().rss - before, mute * reports * 2000
        assert grown < kept_for_all / 3, (
            f"{grown >> 20} MiB for a log of {reports * 2000 >> 20} MiB, and {mute} clients"
        )
        assert _answers(port)
        counts.faults["streams that nobody read"] += mute
        for connection in idle:
            _reset(connection)
        until("the connections of the streams to be closed", lambda: _connections(process) == 0)


def _read_all(port: int, path: str, after: int, last: int, seqs: list[int]) -> None:
    """Follow the events of an experiment up to the entry `last`."""
    connection = _stream(port, path, after)
    with connection.makefile("rb") as file:
        number, kind = after, b""
        while not seqs or seqs[-1] < last:
            name, _, content = file.readline().strip().partition(b": ")
            if name == b"id":
                number = int(content)
            elif name == b"event":
                kind = content
            elif name == b"data" and kind != b"experiment":
                seqs.append(number)
    _reset(connection)


def _read_in_parts(port: int, path: str, seed: int, seqs: list[int]) -> None:
    """Follow the events of an experiment to its end, over a new connection after each few messages."""
    draw, after, ended = random.Random(seed), 0, False
    while not ended:
        connection, left = _stream(port, path, after), draw.randint(1, 12)
        with connection.makefile("rb") as file:
            message: dict[bytes, bytes] = {}
            while left and not ended:
                line = file.readline().strip()
                name, mark, content = line.partition(b": ")
                if mark and name in (b"id", b"event", b"data"):
                    message[name] = content
                elif not line and b"data" in message:
                    data, left = json.loads(message[b"data"]), left - 1
                    after = int(message[b"id"])
                    if message[b"event"] == b"experiment":
                        ended = ExperimentState(data["state"]).ended and after == data["seq"]
                    else:
                        seqs.append(after)
                    message = {}
        _reset(connection)


def _answers(port: int) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    return False


def _connections(process: psutil.Process) -> int:
    return len([one for one in process.net_connections("tcp") if one.status != psutil.CONN_LISTEN])
