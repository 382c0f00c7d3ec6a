"""The host without Ray: leases, logs, and what it keeps of an experiment."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import os
import platform
import sqlite3
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from tests.store.examples import T0, a_spec, begin
from tuner.domain.batch import Batch
from tuner.domain.decisions import Complete, Finish
from tuner.domain.events import DriverStarted, Failure, Reported, SegmentEnded, SegmentStarted, StopJudged
from tuner.domain.experiment import Limits
from tuner.domain.keys import segment_id, trial_id
from tuner.domain.logs import LogChunk
from tuner.domain.segments import CheckpointInfo, Outcome, Report, SegmentRef
from tuner.domain.states import ExperimentState, TrialState
from tuner.driver.assemble import assemble
from tuner.errors import LostLease, NewerLog
from tuner.experiment.operations import verbs
from tuner.hosts import driven as driven_module
from tuner.hosts import driving
from tuner.hosts.driven import Driven, HostGroups
from tuner.hosts.helpers.judge import Judge
from tuner.hosts.host import Host
from tuner.hosts.owners import owner_name
from tuner.hosts.ray_executor import RayExecutor
from tuner.hosts.upkeep import candidates, room
from tuner.hosts.upkeep.garbage import ShortCollections
from tuner.hosts.upkeep.leftovers import find_logs
from tuner.schedulers import FIFOScheduler
from tuner.settings import Settings
from tuner.space import Space
from tuner.store import CodeRecord, ExperimentRecord, Store, StoreUnavailable
from tuner.store.removal import LEASE_S
from tuner.trials.checkpoints import checkpoints, objects
from tuner.trials.messages.launch import Resend
from tuner.usercode.pickling import dumps


async def test_an_experiment_that_has_ended_is_let_go_of_at_once(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven: list[weakref.ref[HostGroups]] = []
    trials: list[Any] = []

    async def run(self: HostGroups, segment: SegmentRef, milestone: int | None) -> Outcome:
        if not driven:
            driven.append(weakref.ref(self))
        trials.append(segment.trial)
        await self.inbound.loop.put(SegmentStarted(time=time.time(), trial=segment.trial, segment=segment.ordinal))
        return Outcome(kind="returned")

    monkeypatch.setattr(RayExecutor, "capacity", lambda self, scaling: 2)
    monkeypatch.setattr(HostGroups, "run", run)
    host = Host(Settings(home=tmp_path, database_url=sqlite_url), "host")
    made = host.store.experiments.create(a_spec(num_samples=3, search={"type": "random"}, scheduler={"type": "fifo"}))
    gc.collect()
    gc.disable()
    try:
        host.driving.begin(made)
        assert await asyncio.wait_for(asyncio.shield(host.driving.tasks[made.id]), 30) is ExperimentState.COMPLETED
        await asyncio.sleep(0)
        assert sorted(trials) == [0, 1, 2]
        async with asyncio.timeout(10):  # the threads that it worked in let go of it too
            while driven[0]() is not None:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
        host.store.close()


async def test_nodes_that_join_let_more_trials_run_at_once(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change counts once two looks have found it."""
    slots, started, end = [1], [], asyncio.Event()

    async def run(self: HostGroups, segment: SegmentRef, milestone: int | None) -> Outcome:
        await self.inbound.loop.put(SegmentStarted(time=time.time(), trial=segment.trial, segment=segment.ordinal))
        started.append(segment.trial)
        await end.wait()
        return Outcome(kind="returned")

    async def until_started(count: int) -> None:
        while len(started) < count:
            await asyncio.sleep(0.01)

    monkeypatch.setattr(RayExecutor, "capacity", lambda self, scaling: slots[0])
    monkeypatch.setattr(HostGroups, "run", run)
    monkeypatch.setattr(room, "SLOTS_S", 0.0)
    host = Host(Settings(home=tmp_path, database_url=sqlite_url), "host")
    try:
        made = host.store.experiments.create(
            a_spec(num_samples=4, search={"type": "random"}, scheduler={"type": "fifo"}, limits=Limits())
        )
        host.driving.begin(made)
        await asyncio.wait_for(until_started(1), 30)
        slots[0] = 3
        await host.room.count_slots()
        assert host.driving.driven[made.id].core.experiment.room == 1
        await host.room.count_slots()
        await asyncio.wait_for(until_started(3), 30)
        assert host.driving.driven[made.id].core.experiment.room == 3
        end.set()
        assert await asyncio.wait_for(asyncio.shield(host.driving.tasks[made.id]), 30) is ExperimentState.COMPLETED
    finally:
        end.set()
        host.store.close()
    assert sorted(started) == [0, 1, 2, 3]


async def test_workers_get_the_packages_of_local_directories(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []

    async def run(self: HostGroups, segment: SegmentRef, milestone: int | None) -> Outcome:
        sent.append(self._launch(segment, milestone).runtime_env)
        await self.inbound.loop.put(SegmentStarted(time=time.time(), trial=segment.trial, segment=segment.ordinal))
        return Outcome(kind="returned")

    monkeypatch.setattr(RayExecutor, "capacity", lambda self, scaling: 2)
    monkeypatch.setattr(HostGroups, "run", run)
    host = Host(Settings(home=tmp_path, database_url=sqlite_url), "host")
    shipped = {"working_dir": "s3://bucket/code.zip"}
    spec = a_spec(
        num_samples=1, search={"type": "random"}, scheduler={"type": "fifo"}, runtime_env={"working_dir": "/code"}
    )
    try:
        made = host.store.experiments.create(dataclasses.replace(spec, resolved={"runtime_env": shipped}))
        host.driving.begin(made)
        await asyncio.wait_for(asyncio.shield(host.driving.tasks[made.id]), 30)
    finally:
        host.store.close()
    assert sent == [shipped]


async def test_reports_that_are_missing_are_asked_for_again_and_times_are_the_hosts(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = []

    async def run(self: HostGroups, segment: SegmentRef, milestone: int | None) -> Outcome:
        await self.inbound.loop.put(SegmentStarted(time=time.time(), trial=segment.trial, segment=segment.ordinal))
        for numbers, age in (
            ([2], 0.0),
            ([1, 2], 0.0),
            ([1, 2, 3], 3600.0),
            ([5], 0.0),
            ([3, 4, 6], 0.0),
            ([4], -3600.0),
        ):
            messages = [Report(report_no=n, metrics={"accuracy": n / 100}, time=9e9, age=age) for n in numbers]
            answers.append(await self.inbound.report(segment, 0, messages))
        return Outcome(kind="returned")

    monkeypatch.setattr(RayExecutor, "capacity", lambda self, scaling: 1)
    monkeypatch.setattr(HostGroups, "run", run)
    host = Host(Settings(home=tmp_path, database_url=sqlite_url), "host")
    made = host.store.experiments.create(a_spec(num_samples=1, search={"type": "random"}, scheduler={"type": "fifo"}))
    try:
        host.driving.begin(made)
        assert await asyncio.wait_for(asyncio.shield(host.driving.tasks[made.id]), 30) is ExperimentState.COMPLETED
        reports = [entry for _, entry in host.store.drivers.load(made.id) if isinstance(entry, Reported)]
    finally:
        host.store.close()
    assert answers == [Resend(after=0), None, None, Resend(after=3), Resend(after=3), None]
    assert [report.report_no for report in reports] == [1, 2, 3, 4]
    times = [report.time for report in reports]
    assert times == sorted(times), "an hour of age does not put a report before the one before it"
    assert times[-1] <= time.time(), "nor does a rank's clock put one ahead of the host's"


@pytest.fixture
def host(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """Yield a host without a cluster. Each trial starts, and ends at once."""

    async def run(self: HostGroups, segment: SegmentRef, milestone: int | None) -> Outcome:
        await self.inbound.loop.put(SegmentStarted(time=time.time(), trial=segment.trial, segment=segment.ordinal))
        return Outcome(kind="returned")

    async def interrupt(self: HostGroups, segment: SegmentRef, why: str) -> None:
        pass

    monkeypatch.setattr(RayExecutor, "capacity", lambda self, scaling: 2)
    monkeypatch.setattr(HostGroups, "run", run)
    monkeypatch.setattr(HostGroups, "interrupt", interrupt)
    host = Host(Settings(home=tmp_path, database_url=sqlite_url), "host")
    yield host
    host.store.close()


async def test_logs_that_a_killed_host_has_not_written_are_read_from_the_files(
    sqlite_store: Store, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, epoch, [trial] = begin(sqlite_store, spec=a_spec(**SMALL))
    placement = {"ranks": [{"rank": rank, "node": "a node"} for rank in (0, 1)]}
    trial.segments[0].placement, trial.segments[0].ended_at = placement, T0 + 5
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], trials=[trial]), T0 + 5)
    sqlite_store.logs.add(made.id, {(0, 1): [LogChunk.of(0, 0, b"kept\n", T0), LogChunk.of(0, 5, b"", T0)]})
    folder = tmp_path / "logs" / made.public_id / segment_id(made.public_id, 0, 1)
    folder.mkdir(parents=True)
    (folder / "rank0.log").write_text("kept\nand read by nobody\n")
    (folder / "rank1.log").write_text("not sent\n")
    nodes: list[str] = []

    async def on_node(self: Host, node: str, function: Any, *args: Any) -> Any:
        nodes.append(node)
        return function(*args)

    async def run(self: HostGroups, segment: SegmentRef, milestone: int | None) -> Outcome:
        return Outcome(kind="returned")

    monkeypatch.setattr(Host, "_on_node", on_node)
    monkeypatch.setattr(HostGroups, "run", run)
    monkeypatch.setattr(RayExecutor, "capacity", lambda self, scaling: 1)
    sqlite_store.drivers.release(made.id, epoch)
    host = Host(Settings(home=tmp_path, database_url=sqlite_url), "host")
    try:
        host.driving.begin(sqlite_store.experiments.get(made.public_id))
        await asyncio.wait_for(asyncio.shield(host.driving.tasks[made.id]), 30)
    finally:
        host.store.close()
    assert nodes == ["a node"], "the log of rank 0 is complete"
    found = [log for log in sqlite_store.logs.of_trial(trial_id(made.public_id, 0)) if log.segment == 1]
    assert [(log.rank, log.text, log.complete) for log in found] == [(0, "kept\n", True), (1, "not sent\n", True)]


async def test_logs_that_are_being_completed_are_not_read_twice(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, epoch, [trial] = begin(host.store)
    trial.segments[0].placement, trial.segments[0].ended_at = {"ranks": [{"rank": 0, "node": "a node"}]}, T0 + 5
    host.store.drivers.commit(made.id, epoch, Batch(log=[], trials=[trial]), T0 + 5)
    reading, go_on = asyncio.Event(), asyncio.Event()
    nodes: list[str] = []

    async def on_node(node: str, function: Any, *args: Any) -> list[LogChunk]:
        nodes.append(node)
        reading.set()
        await go_on.wait()
        return [LogChunk.of(0, 0, b"", T0)]

    assert host.logs is not None
    monkeypatch.setattr(host.logs, "_on_node", on_node)
    driven: Any = SimpleNamespace(record=made, groups=SimpleNamespace(log_dir=str(tmp_path)))
    await find_logs(host.store, host.logs, driven)
    await asyncio.wait_for(reading.wait(), 10)
    await find_logs(host.store, host.logs, driven)
    go_on.set()
    await host.logs.flush(timeout=10)
    assert nodes == ["a node"]
    assert not host.logs.is_closing(segment_id(made.public_id, 0, 1))


SMALL: dict[str, Any] = {"num_samples": 3, "search": {"type": "random"}, "scheduler": {"type": "fifo"}}


async def test_a_locked_database_does_not_block_the_event_loop(host: Host, sqlite_url: str) -> None:
    made = host.store.experiments.create(a_spec(**SMALL))
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        host.driving.begin(made)
        asked: list[Any] = []
        write = host.writer.write

        async def watched(function: Any, *args: Any) -> Any:
            asked.append(function)
            return await write(function, *args)

        host.writer.write = watched  # type: ignore[method-assign]
        async with asyncio.timeout(10):  # a blocked loop would only come round once SQLite gives up, after 30 s
            while not asked:
                await asyncio.sleep(0.001)
            for _ in range(100):
                await asyncio.sleep(0.001)
        assert not host.driving.tasks[made.id].done()
    finally:
        other.rollback()
        other.close()
    assert await asyncio.wait_for(asyncio.shield(host.driving.tasks[made.id]), 30) is ExperimentState.COMPLETED


async def test_a_command_that_has_the_id_of_a_deleted_one_is_given_to_its_experiment(
    host: Host, sqlite_url: str
) -> None:
    """A backup that is restored may give the id of a deleted row to another one."""
    going_on, deleted = (host.store.experiments.create(a_spec(**SMALL)) for _ in range(2))
    given: list[tuple[str, int]] = []
    for record in (going_on, deleted):

        def put(event: Any, command: int, of: str = record.public_id) -> None:
            given.append((of, command))

        driven: Any = SimpleNamespace(loop=SimpleNamespace(put=put))
        host.driving.driven[record.id] = driven
    first = host.store.commands.add(deleted.id, "pause")
    await host.driving.take_commands()
    host.store.experiments.remove(deleted.id)
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as database:
        database.execute("DELETE FROM sqlite_sequence WHERE name = 'command'")
    second = host.store.commands.add(going_on.id, "pause")
    assert second == first, "otherwise this test shows nothing"
    await host.driving.take_commands()
    await host.driving.take_commands()
    assert given == [(deleted.public_id, first), (going_on.public_id, second)]


async def test_commands_are_given_to_an_experiment_only_once_it_takes_them(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = host.store.experiments.create(a_spec(**SMALL))
    old = host.store.drivers.claim(made.id, "another", 60.0, time.time())
    host.store.drivers.release(made.id, old)
    swept = threading.Event()
    monkeypatch.setattr(checkpoints, "sweep", lambda *_: swept.wait(10))
    host.driving.begin(made)
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        while host.driving.claimed.get(made.id) is None:
            await asyncio.sleep(0.001)
    host.store.commands.add(made.id, "cancel", reason="by a test")
    await host.driving.take_commands()
    assert not host.driving.given
    swept.set()
    assert await asyncio.wait_for(asyncio.shield(host.driving.tasks[made.id]), 30) is ExperimentState.CANCELLED
    assert not host.store.commands.pending([made.id])
    first, *_ = host.store.drivers.load(made.id)
    assert isinstance(first[1], DriverStarted)


async def test_no_decision_stays_pending_once_an_experiment_has_ended(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(self: HostGroups, segment: SegmentRef, milestone: int | None) -> Outcome:
        if segment.ordinal == 1:  # it never starts
            return Outcome(kind="failed", failure=Failure(kind="system", message="the node went away"))
        await self.inbound.loop.put(SegmentStarted(time=time.time(), trial=segment.trial, segment=segment.ordinal))
        return Outcome(kind="returned")

    monkeypatch.setattr(HostGroups, "run", run)
    made = host.store.experiments.create(a_spec(**SMALL))
    host.driving.begin(made)
    await asyncio.wait_for(asyncio.shield(host.driving.tasks[made.id]), 30)
    states = {(d.kind, d.state) for d in host.store.log.decisions(made.id, page_size=1000).items}
    assert ("start", "superseded") in states
    assert ("retry", "done") in states
    assert not [state for _, state in states if state == "pending"]


def left_behind(host: Host, source: str = "python", age: float = 3600.0) -> ExperimentRecord:
    """Return an experiment that has no driver, created by a script or posted to a service."""
    return host.store.experiments.create(a_spec(**SMALL), source=source, now=time.time() - age)


async def ended(host: Host, record: ExperimentRecord) -> ExperimentState:
    return await asyncio.wait_for(asyncio.shield(host.driving.tasks[record.id]), 30)


async def test_a_service_runs_what_was_given_to_it_and_offers_what_scripts_left_behind(host: Host) -> None:
    posted, left, young = left_behind(host, "api"), left_behind(host), left_behind(host, age=1.0)
    for _ in range(2):
        await host._take_experiments()
    assert list(host.driving.tasks) == [posted.id]
    news = await host.news()
    assert news[0] == f"{posted.public_id} (digits) is driven here: the experiment was created through the API"
    assert f"`tuner resume {left.public_id}` continues it" in news[1]
    assert len(news) == 2, "each once, and nothing of a script that may be starting"
    assert young.public_id not in " ".join(news)
    assert await ended(host, posted) is ExperimentState.COMPLETED
    assert await host.news() == []
    assert [r.state for r in (host.store.experiments.get(x.public_id) for x in (left, young))] == ["pending", "pending"]


async def test_a_service_that_adopts_takes_up_what_scripts_left_behind(host: Host) -> None:
    host._adopting = True
    left = left_behind(host)
    await host._take_experiments()
    assert await ended(host, left) is ExperimentState.COMPLETED
    assert host.store.experiments.get(left.public_id).source == "adopted"


async def test_an_experiment_whose_deletion_was_killed_trains_no_more_unless_a_user_continues_it(host: Host) -> None:
    """Ten minutes after `tuner delete --force` had been killed, the service trained what it was to delete."""
    posted = left_behind(host, "api")
    host.store.experiments.seize(posted.id, now=time.time() - LEASE_S - 1)
    await host._take_experiments()
    _let_witness_pass(host)
    await host._take_experiments()
    assert host.driving.tasks == {}
    assert host.store.experiments.get(posted.public_id).state is ExperimentState.CANCELLED
    verbs.act(host.store, "continue", posted.public_id)
    await host._take_experiments()
    _let_witness_pass(host)
    await host._take_experiments()
    assert await ended(host, posted) is ExperimentState.COMPLETED


async def test_what_a_user_resumes_over_the_service_is_the_services_from_then_on(host: Host) -> None:
    left = left_behind(host)
    shown = verbs.act(host.store, "resume", left.public_id)
    assert (shown.source, shown.abandoned(time.time())) == ("adopted", False)
    await host._take_experiments()
    assert await ended(host, left) is ExperimentState.COMPLETED


async def test_an_experiment_with_a_log_of_a_newer_version_does_not_fail(host: Host) -> None:
    """After a downgrade, it ended as failed with KeyError: 'moon_rose'."""
    made, _, _ = begin(host.store, spec=a_spec(**SMALL))
    with host.store._database.write() as cursor:
        cursor.execute("UPDATE experiment SET lease_until = NULL, driver_owner = NULL, source = 'api'", ())
        cursor.execute("UPDATE event SET kind = 'moon_rose' WHERE kind = 'driver_started'", ())
    await host._take_experiments()
    with pytest.raises(NewerLog, match="'moon_rose'.* another version"):
        await ended(host, made)
    assert host.store.experiments.get(made.public_id).state == "running"
    assert made.id in host.driving.busy(), "each attempt reads the log, and logs the same error"
    wait = host.driving.not_before[made.id] - time.monotonic()
    assert 10 * driving.AGAIN_S < wait <= driving.NEWER_AGAIN_S, "whatever the machine's clock is set to meanwhile"


async def test_an_experiment_with_a_spec_of_a_newer_version_keeps_no_other_from_being_driven(host: Host) -> None:
    """A field that this version does not know made the search for experiments fail, so that the host drove none at all."""
    newer, other = left_behind(host, "api"), left_behind(host, "api")
    with host.store._database.write() as cursor:
        cursor.execute("UPDATE experiment SET lease_until = NULL, driver_owner = NULL", ())
        cursor.execute("UPDATE experiment SET spec = json_set(spec, '$.limits.hue', 1) WHERE id = ?", (newer.id,))
    await host._take_experiments()
    with pytest.raises(
        NewerLog, match=r"does not know \(limits.hue\), since another version has written it. Nothing is"
    ):
        await ended(host, newer)
    assert list(host.driving.tasks) == [other.id]
    assert host.store.experiments.get(newer.public_id).state == "pending"
    assert newer.id in host.driving.busy()


def _let_witness_pass(host: Host) -> None:
    """Let the expired leases that the host knows have been seen for `WITNESS_S` longer."""
    expired = host._candidates._expired
    for key, (epoch, since) in expired.items():
        expired[key] = (epoch, since - candidates.WITNESS_S)


async def test_the_resume_of_a_script_that_is_gone_again_starts_nothing(host: Host) -> None:
    """A `tuner.resume` whose Ray did not start leaves its command behind."""
    left = left_behind(host)
    host.store.commands.add(left.id, "resume", reason="by a user")
    await host._take_experiments()
    assert not host.driving.tasks


async def test_what_a_dead_driver_holds_is_taken_up_before_its_lease_runs_out(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "LEASES_S", 0.0)
    ended_process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    dead_here, living_here = owner_name(ended_process.pid), owner_name(os.getppid())
    ended_process.communicate()
    elsewhere, told = "another machine:7:1@boot", "another machine:8:1@boot"
    held = {owner: left_behind(host, "api") for owner in (dead_here, living_here, elsewhere, told)}
    for owner, record in held.items():
        host.store.drivers.claim(record.id, owner, 3600.0, time.time())
    host._candidates.add_dead([told])
    await host._take_experiments()
    assert set(host.driving.tasks) == {held[dead_here].id, held[told].id}
    states = await asyncio.gather(*(ended(host, held[owner]) for owner in (dead_here, told)))
    assert states == [ExperimentState.COMPLETED] * 2


async def test_after_an_outage_a_living_driver_has_time_to_renew_its_lease(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "LEASES_S", 0.0)
    monkeypatch.setattr(candidates, "EXPIRED_S", 0.0)
    monkeypatch.setattr(candidates, "WITNESS_S", 0.0)
    theirs, nobodys = left_behind(host, "api"), left_behind(host, "api")
    host.store.drivers.claim(theirs.id, "another machine:7:1@boot", 1.0, time.time() - 60.0)
    host._read_failed_at = time.monotonic()
    await host._take_experiments()
    assert set(host.driving.tasks) == {nobodys.id}, "its lease has run out, but nobody could renew one"
    assert await ended(host, nobodys) is ExperimentState.COMPLETED
    host._read_failed_at -= host.settings.lease_s
    await host._take_experiments()
    assert await ended(host, theirs) is ExperimentState.COMPLETED


async def test_a_host_that_starts_after_an_outage_gives_living_drivers_time_to_renew_their_leases(host: Host) -> None:
    """It knows nothing of the outage; a holder that waits for its database renews within half a second."""
    theirs = left_behind(host, "api")
    epoch = host.store.drivers.claim(theirs.id, "another machine:7:1@boot", 1.0, time.time() - 60.0)
    await host._take_experiments()
    assert not host.driving.tasks
    host.store.drivers.renew(theirs.id, epoch, 60.0, time.time())
    await host._take_experiments()
    host.store.drivers.renew(theirs.id, epoch, 1.0, time.time() - 60.0)
    _let_witness_pass(host)
    await host._take_experiments()
    assert not host.driving.tasks, "it was renewed in between, so it has been expired only now"
    _let_witness_pass(host)
    await host._take_experiments()
    assert await ended(host, theirs) is ExperimentState.COMPLETED


async def test_after_writes_alone_have_failed_a_living_driver_has_time_to_renew_its_lease(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads still work with a full disk, or on a standby server."""
    monkeypatch.setattr(candidates, "LEASES_S", 0.0)
    monkeypatch.setattr(candidates, "EXPIRED_S", 0.0)
    monkeypatch.setattr(candidates, "WITNESS_S", 0.0)
    theirs = left_behind(host, "api")
    host.store.drivers.claim(theirs.id, "another machine:7:1@boot", 1.0, time.time() - 60.0)

    def full(*_: Any) -> None:
        raise StoreUnavailable("sqlite: the disk is full")

    with monkeypatch.context() as outage:
        outage.setattr(host.store.drivers, "claim", full)
        await host._take_experiments()
        with pytest.raises(StoreUnavailable):
            await ended(host, theirs)
    host.driving.not_before.clear()
    await host._take_experiments()
    assert not host.driving.tasks, "the disk has room again, and its driver has had no time to renew the lease"
    host.writer.failed_at -= host.settings.lease_s
    await host._take_experiments()
    assert await ended(host, theirs) is ExperimentState.COMPLETED


async def test_a_host_that_is_told_twice_to_start_keeps_its_leases_once(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service calls again if the first call takes long."""
    first = threading.Event()
    removals: list[int] = []

    def remove_orphans() -> int:
        removals.append(1)
        first.wait(10)
        return 0

    monkeypatch.setattr(RayExecutor, "clean_up", lambda self: remove_orphans())
    monkeypatch.setattr(RayExecutor, "listen_at", lambda self: "127.0.0.1")
    monkeypatch.setattr(ShortCollections, "begin", lambda self: None)
    host.settings = dataclasses.replace(host.settings, usage_every_s=0.0)
    starts = [asyncio.create_task(host.start(serve=True)) for _ in range(2)]
    try:
        async with asyncio.timeout(10):
            while not removals:
                await asyncio.sleep(0.001)
        first.set()
        assert await asyncio.gather(*starts) == [host.owner] * 2
        running = [str(task.get_coro()) for task in asyncio.all_tasks()]
        assert len([name for name in running if "_watch" in name]) == 1
        assert len([name for name in running if "keep_leases" in name]) == 1
        assert removals == [1]
    finally:
        first.set()
        await host.close()


async def test_what_is_to_be_cancelled_is_taken_up_for_that(host: Host) -> None:
    left = left_behind(host)
    verbs.act(host.store, "cancel", left.public_id)
    await host._take_experiments()
    assert await ended(host, left) is ExperimentState.CANCELLED


async def test_a_driver_whose_lease_is_taken_says_so_to_who_waits(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop has slept for longer than the lease, and a service has taken the search over."""

    async def run(self: HostGroups, segment: SegmentRef, milestone: int | None) -> Outcome:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    monkeypatch.setattr(HostGroups, "run", run)
    monkeypatch.setattr(RayExecutor, "clean_up", lambda self: 0)
    monkeypatch.setattr(RayExecutor, "listen_at", lambda self: "127.0.0.1")
    monkeypatch.setattr(ShortCollections, "begin", lambda self: None)
    host.settings = dataclasses.replace(host.settings, usage_every_s=0.0, lease_s=0.3)
    made = host.store.experiments.create(a_spec(**SMALL))
    waits = asyncio.create_task(host.drive(made.public_id))
    try:
        async with asyncio.timeout(20):
            while made.id not in host.driving.driven:
                await asyncio.sleep(0.01)
        host.store.drivers.claim(made.id, "another", 60.0, time.time() + 3600)
        with pytest.raises(LostLease, match="another driver has claimed it"):
            await asyncio.wait_for(waits, 20)
        assert not host.driving.tasks
    finally:
        waits.cancel()
        await host.close()


async def test_a_caller_that_gives_up_ends_no_search(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    made = host.store.experiments.create(a_spec(**SMALL))
    end = asyncio.Event()

    async def drives() -> ExperimentState:
        await end.wait()
        return ExperimentState.COMPLETED

    monkeypatch.setattr(host, "start", AsyncMock())
    host.driving.tasks[made.id] = driving_it = asyncio.create_task(drives())
    caller, other = (asyncio.create_task(host.drive(made.public_id)) for _ in range(2))
    await asyncio.wait({caller}, timeout=0.1)
    caller.cancel()
    await asyncio.wait({caller}, timeout=20)
    assert not driving_it.done()
    end.set()
    assert await asyncio.wait_for(other, 20) == "completed"


async def test_what_a_script_has_ended_but_not_released_is_released(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script was killed after the end of its search, and before it had deleted a checkpoint and released the lease."""
    monkeypatch.setattr(candidates, "LEASES_S", 0.0)
    monkeypatch.setattr(candidates, "EXPIRED_S", 0.0)
    monkeypatch.setattr(candidates, "WITNESS_S", 0.0)

    async def delete(self: RayExecutor, info: CheckpointInfo) -> None:
        checkpoints.delete(info.uri)

    monkeypatch.setattr(RayExecutor, "delete_checkpoint", delete)
    old, kept = (tmp_path / "checkpoints" / name for name in ("old", "kept"))
    found = []
    for spec in (SMALL, {**SMALL, "search": {"type": "gone"}}):  # the second one cannot be driven any more
        made, epoch, [trial] = begin(host.store, spec=a_spec(**spec))
        log: list[Any] = []
        for number, folder in enumerate((old, kept), 1):
            folder.mkdir(parents=True, exist_ok=True)
            saved = CheckpointInfo(id=f"ckp_{made.id}_{number}", uri=str(folder), step=number, bytes=1)
            report = Reported(
                time=T0, trial=0, segment=1, report_no=number, iteration=number, metrics={"accuracy": 0.1 * number},
                checkpoint=saved,
            )  # fmt: skip
            log.append((3 + number, report))
        log.append((6, SegmentEnded(time=T0 + 7, trial=0, segment=1, outcome="returned")))
        log.append((7, Complete(reason="the function returned", trial=0)))
        log.append((8, Finish(reason="all trials are done")))
        trial.state, trial.segments[0].ended_at = TrialState.COMPLETED, T0 + 7
        batch = Batch(
            log=log, trials=[trial], state=ExperimentState.COMPLETED, summary={"reason": "all trials are done"}
        )
        host.store.drivers.commit(made.id, epoch, batch, T0 + 9)
        found.append(made)
    with host.store._database.write() as cursor:
        cursor.execute("UPDATE experiment SET source = 'python'")
    await host._take_experiments()
    assert await asyncio.gather(*(ended(host, made) for made in found)) == [ExperimentState.COMPLETED] * 2
    for made in found:
        after = host.store.experiments.get(made.public_id)
        assert (after.state, after.driver_owner, after.ended_at) == (ExperimentState.COMPLETED, None, T0 + 7)
        assert after.error is None
        assert host.store.drivers.claimable(time.time()) == []
    states = {row.uri: row.state for row in host.store.trials.checkpoints(found[0].id)}
    assert states == {str(old): "deleted", str(kept): "ready"}
    assert [folder.exists() for folder in (old, kept)] == [False, True]


class Reporting:
    """Runs trials that report until they are told to leave, and counts the reports of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int = 50) -> None:
        self.reports: dict[str, int] = {}
        reports = self.reports

        async def run(self: HostGroups, segment: SegmentRef, milestone: int | None) -> Outcome:
            await self.inbound.loop.put(SegmentStarted(time=time.time(), trial=segment.trial, segment=segment.ordinal))
            for count in range(1, most + 1):
                reports[f"{self.record.name} {segment.trial}"] = count
                message = Report(report_no=count, metrics={"accuracy": 0.5}, time=time.time(), waits=True)
                verdict = await self.inbound.report(segment, 0, [message])
                if verdict is None or verdict.action != "continue":
                    return Outcome(kind="left")
            return Outcome(kind="returned")

        monkeypatch.setattr(HostGroups, "run", run)


def stopping(name: str) -> dict[str, Any]:
    return {**SMALL, "stop": {"type": "function", "function": f"tests.driver.stop_functions:{name}"}}


async def test_a_trial_ends_at_the_very_report_that_its_stop_function_ends_it_at(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporting = Reporting(monkeypatch)
    before = set(sys.modules)
    made = host.store.experiments.create(a_spec(**stopping("at_two")))
    host.driving.begin(made)
    assert await ended(host, made) is ExperimentState.COMPLETED
    assert set(reporting.reports.values()) == {2}
    for trial in host.store.trials.page(made.id).items:
        assert (trial.state, trial.reason) == (
            "completed",
            "completed at iteration 2: the stop function at_two returned true",
        )
    assert "tests.driver.stop_functions" not in set(sys.modules) - before
    log = list(host.store.drivers.load(made.id))
    assert len([entry for _, entry in log if isinstance(entry, StopJudged)]) == 3, "only what ends a trial is kept"
    again = await asyncio.to_thread(Driven, host, host.store.experiments.get(made.public_id), 1)
    assert [trial.reason for trial in again.core.trials] == [
        "completed at iteration 2: the stop function at_two returned true"
    ] * 3


async def test_a_stop_function_that_blocks_delays_no_other_experiment(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    reporting = Reporting(monkeypatch)
    environment = {"env_vars": {"MARKER": str(marker)}}
    slow = host.store.experiments.create(a_spec("slow", **stopping("waits_for_the_marker"), runtime_env=environment))
    quick = host.store.experiments.create(a_spec("quick", **SMALL))
    host.driving.begin(slow)
    async with asyncio.timeout(30):
        while len(reporting.reports) < 2:
            await asyncio.sleep(0.001)
    host.driving.begin(quick)
    assert await ended(host, quick) is ExperimentState.COMPLETED
    assert {reporting.reports[f"quick {number}"] for number in range(3)} == {50}
    assert not host.driving.tasks[slow.id].done()
    assert {reporting.reports[f"slow {number}"] for number in range(2)} == {1}, "its report waits for the answer"
    marker.touch()
    assert await ended(host, slow) is ExperimentState.COMPLETED
    assert {reporting.reports[f"slow {number}"] for number in range(3)} == {1}


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("misspelt", "stop raised KeyError: 'los'; the metrics were 'accuracy'"),
        ("ends_its_process", "stop raised RuntimeError: the function ended its process, with exit code 3"),
        ("hangs_for_the_first", "stop raised TimeoutError: the function took longer than 0.3 s"),
    ],
)
async def test_a_stop_function_that_goes_wrong_fails_the_experiment_with_words(
    host: Host, monkeypatch: pytest.MonkeyPatch, function: str, says: str
) -> None:
    Reporting(monkeypatch)
    monkeypatch.setattr(driven_module, "Judge", functools.partial(Judge, call_s=0.3))
    made = host.store.experiments.create(a_spec(**stopping(function)))
    host.driving.begin(made)
    assert await ended(host, made) is ExperimentState.FAILED
    assert says in str(host.store.experiments.get(made.public_id).error)


async def test_objects_to_which_no_experiment_refers_are_deleted_when_an_experiment_ends(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "KEEP_S", -1.0)
    storage, database = host.settings.storage, host.settings.database_url
    needed, left = (objects.store("a", value, storage, database) for value in (1, 2))
    code = CodeRecord(hash="h", blob=dumps(needed))
    ends = host.store.experiments.create(a_spec(**SMALL, entrypoint=None), code=code)
    monkeypatch.setattr(RayExecutor, "share", lambda self, value: None)
    host.driving.begin(ends)
    assert await ended(host, ends) is ExperimentState.COMPLETED
    assert not Path(left.uri).exists()
    assert needed.load() == 1, "users may continue the experiment"


async def test_functions_of_another_python_wait_for_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service is started again with a new version of Python, and later with the old one."""

    def train(config: dict[str, Any]) -> None: ...

    monkeypatch.setattr(RayExecutor, "share", lambda self, value: None)
    old = CodeRecord(hash="old", blob=dumps(train), python="3.1.4")
    made = [host.store.experiments.create(a_spec(**SMALL, entrypoint=None, code="old"), code=old) for _ in range(2)]
    for _ in range(2):
        for experiment in made:
            host.driving.begin(host.store.experiments.get(experiment.public_id))
            assert await ended(host, experiment) is ExperimentState.PAUSED
            held = host.store.experiments.get(experiment.public_id)
            assert "pickled by Python 3.1.4" in held.reason
            assert "continue it with Python 3.1" in held.reason
            assert (held.last_event_seq, held.error, held.driver_owner) == (0, None, None)
            verbs.act(host.store, "resume", experiment.public_id)
    verbs.act(host.store, "cancel", made[0].public_id)
    host.driving.begin(host.store.experiments.get(made[0].public_id))
    assert await ended(host, made[0]) is ExperimentState.CANCELLED

    monkeypatch.setattr(platform, "python_version", lambda: "3.1.5")
    host.driving.begin(host.store.experiments.get(made[1].public_id))
    assert await ended(host, made[1]) is ExperimentState.COMPLETED
    assert host.store.experiments.get(made[1].public_id).reason == "all 3 trials ended"


def runs_in_another_python(store: Store) -> ExperimentRecord:
    """Return an experiment with a scheduler of the user's own, whose first trial has reported and whose driver is dead."""

    def fails() -> None:
        raise AssertionError("unpickled by a Python that cannot run it")

    class Own(FIFOScheduler):
        def __reduce__(self) -> Any:
            return fails, ()

    parts = dumps({"scheduler": Own()})
    code = CodeRecord(hash="own", blob=dumps(lambda config: None), parts_blob=parts, python="3.1.4")
    own = {"type": "python", "name": "own", "repr": "Own()"}
    spec = a_spec(**{**SMALL, "entrypoint": None, "code": "own", "scheduler": own})
    made = store.experiments.create(spec, code=code)
    core = assemble(dataclasses.replace(spec, scheduler={"type": "fifo"}), Space.from_json(spec.space))
    out = core.handle(DriverStarted(time=100.0, epoch=1))
    out.absorb(core.handle(SegmentStarted(time=101.0, trial=0, segment=1)))
    report = {"report_no": 1, "iteration": 1, "metrics": {spec.objective.metric: 0.5}}
    out.absorb(core.handle(Reported(time=102.0, trial=0, segment=1, **report)))
    epoch = store.drivers.claim(made.id, "another", 60.0, time.time())
    trials = [core.trials[number] for number in out.touched]
    store.drivers.commit(
        made.id, epoch, Batch(log=out.log, trials=trials, state=core.state, summary=core.summary()), time.time()
    )
    store.drivers.release(made.id, epoch)
    return store.experiments.get(made.public_id)


async def test_the_trials_of_a_search_that_waits_for_another_python_are_paused(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RayExecutor, "share", lambda self, value: None)
    made = runs_in_another_python(host.store)
    assert TrialState.RUNNING in {one.state for one in host.store.trials.newest(made.id, 9)}
    host.driving.begin(made)
    assert await ended(host, made) is ExperimentState.PAUSED
    held = host.store.experiments.get(made.public_id)
    assert "continue it with Python 3.1" in held.reason
    assert {one.state for one in host.store.trials.newest(made.id, 9)} == {TrialState.PAUSED}
    seq = held.last_event_seq
    verbs.act(host.store, "resume", made.public_id)
    host.driving.begin(host.store.experiments.get(made.public_id))
    assert await ended(host, made) is ExperimentState.PAUSED
    assert host.store.experiments.get(made.public_id).last_event_seq == seq, "nothing is left to pause"


async def test_a_service_leaves_a_search_of_another_python_to_a_service_that_has_it_before_it_is_paused(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RayExecutor, "share", lambda self, value: None)
    old = CodeRecord(hash="old", blob=dumps(lambda config: None), python="3.1.4")
    code = {"entrypoint": None, "code": "old"}
    made, ends = (host.store.experiments.create(a_spec(**SMALL, **code), code=old, source="api") for _ in range(2))
    verbs.act(host.store, "cancel", ends.public_id)
    for _ in range(2):
        await host._take_experiments()
    assert made.id not in host.driving.tasks
    assert await ended(host, ends) is ExperimentState.CANCELLED, "any service can cancel it"
    monkeypatch.setattr(driving, "OTHERS_S", 0.0)
    await host._take_experiments()
    assert await ended(host, made) is ExperimentState.PAUSED
    monkeypatch.setattr(driving, "OTHERS_S", 10.0)
    verbs.act(host.store, "resume", made.public_id)
    await host._take_experiments()
    assert made.id not in host.driving.tasks, "the other service gets the same time again"


async def test_an_experiment_that_is_deleted_just_now_keeps_no_other_one_from_being_driven(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as an outage of the database as well."""
    monkeypatch.setattr(RayExecutor, "share", lambda self, value: None)
    code = CodeRecord(hash="own", blob=dumps(lambda config: None))
    gone = host.store.experiments.create(a_spec(**SMALL, entrypoint=None, code="own"), code=code, source="api")
    made = host.store.experiments.create(a_spec(**SMALL), source="api")
    find = candidates.Candidates.find

    def delete_after(self: candidates.Candidates, *args: Any, **named: Any) -> candidates.Found:
        found = find(self, *args, **named)
        host.store.experiments.remove(gone.id)
        return found

    monkeypatch.setattr(candidates.Candidates, "find", delete_after)
    await host._take_experiments()
    assert list(host.driving.tasks) == [made.id]
    assert await ended(host, made) is ExperimentState.COMPLETED


@pytest.mark.parametrize("verb", ["cancel", "kill"])
@pytest.mark.parametrize("held", [True, False])
async def test_a_search_with_a_scheduler_of_another_python_can_be_cancelled(
    host: Host, monkeypatch: pytest.MonkeyPatch, verb: Any, held: bool
) -> None:
    monkeypatch.setattr(RayExecutor, "share", lambda self, value: None)
    made = runs_in_another_python(host.store)
    before = len(host.store.trials.newest(made.id, 9))
    if held:
        host.driving.begin(made)
        assert await ended(host, made) is ExperimentState.PAUSED
    verbs.act(host.store, verb, made.public_id)
    host.driving.begin(host.store.experiments.get(made.public_id))
    assert await ended(host, made) is ExperimentState.CANCELLED
    assert host.store.experiments.get(made.public_id).error is None
    assert [one.state for one in host.store.trials.newest(made.id, 9)] == [TrialState.CANCELLED] * before
    assert not host.store.commands.pending([made.id])


@pytest.mark.parametrize("end", ["rest", "close"])
async def test_the_end_of_a_host_waits_for_a_start_that_is_under_way(host: Host, end: str) -> None:
    begun, gate, background = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def begin() -> None:
        begun.set()
        await gate.wait()
        host._background = [asyncio.create_task(background.wait(), name="begun")]  # type: ignore[list-item]

    host._begin_background = begin  # type: ignore[method-assign]
    starting = asyncio.create_task(host.start())
    await begun.wait()
    ending = asyncio.create_task(host.rest(keep_groups=False) if end == "rest" else host.close())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not ending.done()
    gate.set()
    await asyncio.gather(starting, ending)
    assert host._background == [], "nothing that the start began is left"
