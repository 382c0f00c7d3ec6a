"""The log of the driver host: what goes into the files of which experiments, and what happens if a file cannot be written."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.store.examples import a_spec
from tuner.domain.states import ExperimentState
from tuner.errors import Conflict, LostLease
from tuner.experiment.logs import driver_log, driver_log_path
from tuner.hosts import driving
from tuner.hosts.host import Host
from tuner.hosts.measures.driver_log import NAME, DriverLogs
from tuner.settings import Settings
from tuner.store import ExperimentRecord, StoreUnavailable
from tuner.telemetry import log_format
from tuner.trials.groups.cluster import cut_nodes

log = logging.getLogger("tuner.trials.groups.watch")
of_cluster = logging.getLogger(cut_nodes.__name__)


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[DriverLogs]:
    """Yield the logs of a host that drives two experiments in its own process."""
    level = logging.getLogger(NAME).level
    logs = DriverLogs(tmp_path, 4000, own_process=True)
    for name in ("exp_a", "exp_b"):
        logs.begin(name)
    yield logs
    for name in ("exp_a", "exp_b"):
        logs.end(name)
    logging.getLogger(NAME).setLevel(level)


def text(home: Path, name: str, tail: int = 100, search: str | None = None) -> str:
    found = driver_log(home, name, tail, search)
    return found.text if found is not None else ""


def test_each_experiment_has_its_own_messages_and_those_about_the_cluster(logs: DriverLogs, tmp_path: Path) -> None:
    with log_format.about(experiment="exp_a"):
        log.info("rank %d is slow", 3)
    of_cluster.info("node n1 is dead for Ray as well")
    log.error("the private search of exp_c failed")
    logging.getLogger("tuner.trials.groups.cluster_of_exp_c").error("failed, too")
    logs.say("exp_b", "trial %d, segment %d: %s", 4, 1, "returned")
    logs.say("exp_b", "no %s", "\udce9.txt")
    logs.say("exp_c", "is driven elsewhere")
    with log_format.about(experiment="exp_c"):
        log.info("is driven elsewhere")
    logging.getLogger("urllib3").warning("not ours")
    a, b = text(tmp_path, "exp_a"), text(tmp_path, "exp_b")
    assert [line.partition(": ")[2] for line in a.splitlines()] == ["rank 3 is slow", "node n1 is dead for Ray as well"]
    assert [line.partition(": ")[2] for line in b.splitlines()] == [
        "node n1 is dead for Ray as well",
        "trial 4, segment 1: returned",
        r"no \udce9.txt",
    ]
    assert driver_log(tmp_path, "exp_c", 10) is None


def test_a_traceback_is_kept_and_a_token_is_not(logs: DriverLogs, tmp_path: Path) -> None:
    try:
        raise ValueError("tns_abcdefghijklmnopqrstuvwxyz")
    except ValueError:
        with log_format.about(experiment="exp_a"):
            log.exception("failed")
    found = text(tmp_path, "exp_a")
    assert "Traceback" in found
    assert "ValueError: tns_***" in found
    assert "abcdefghij" not in found


def test_only_the_newest_part_is_kept_and_shown(logs: DriverLogs, tmp_path: Path) -> None:
    for number in range(200):
        logs.say("exp_a", "line %d", number)
    path = driver_log_path(tmp_path, "exp_a")
    size = sum(part.stat().st_size for part in path.parent.iterdir())
    assert size <= 4000
    found = driver_log(tmp_path, "exp_a", 3)
    assert found is not None
    assert [line.rpartition(" ")[2] for line in found.text.splitlines()] == ["197", "198", "199"]
    assert found.left_out > 10
    assert text(tmp_path, "exp_a", search="LINE 19").count("\n") == 10


def test_a_driver_adds_to_the_log_of_the_one_before(logs: DriverLogs, tmp_path: Path) -> None:
    logs.say("exp_a", "one")
    logs.end("exp_a")
    logs.say("exp_a", "nobody drives it")
    again = DriverLogs(tmp_path, 4000, own_process=False)
    again.begin("exp_a")
    again.say("exp_a", "caf\udce9")  # from the name of a file that is not UTF-8
    again.end("exp_a")
    assert [line.rpartition(" ")[2] for line in text(tmp_path, "exp_a").splitlines()] == ["one", "caf\\udce9"]


def test_a_host_without_experiments_takes_no_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(NAME), "level", logging.NOTSET)  # an earlier test may have set it
    logs = DriverLogs(tmp_path, 4000, own_process=False)
    logs.begin("exp_a")
    assert logs in logging.getLogger(NAME).handlers
    assert logging.getLogger(NAME).level == logging.NOTSET, "the level of a script is its own"
    logs.end("exp_a")
    assert logs not in logging.getLogger(NAME).handlers


def test_warnings_still_go_to_stderr_if_logging_is_not_configured(
    logs: DriverLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = logging.getLogger(NAME)
    monkeypatch.setattr(ours, "propagate", False)  # the handlers of pytest are at the root
    other_host = DriverLogs(tmp_path / "other", 4000, own_process=False)
    other_host.begin("exp_c")
    configured = logging.NullHandler()
    try:
        log.warning("the commit failed")
        log.info("a detail")
        assert capsys.readouterr().err == "the commit failed\n"
        ours.addHandler(configured)
        log.warning("the commit failed again")
        ours.removeHandler(configured)
        monkeypatch.undo()
        log.warning("the root has handlers")
        assert capsys.readouterr().err == ""
    finally:
        ours.removeHandler(configured)
        other_host.end("exp_c")


def test_an_experiment_is_driven_without_a_log_if_there_can_be_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").write_text("not a directory")
    logs = DriverLogs(tmp_path, 4000, own_process=False)
    for name in ("exp_a", "exp_b"):
        logs.begin(name)
        logs.say(name, "is driven")
    with log_format.about(experiment="exp_a"):
        log.warning("a node is gone")
    for name in ("exp_a", "exp_b"):
        logs.end(name)
    assert [message.partition(": ")[0] for message in caplog.messages] == [
        f"the driver's logs in {tmp_path / 'logs'} are not complete",
        "a node is gone",
    ]
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_disk_that_fills_up_costs_lines_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    path = driver_log_path(tmp_path, "exp_a")
    path.parent.mkdir(parents=True)
    path.symlink_to("/dev/full")
    logs = DriverLogs(tmp_path, 4000, own_process=False)
    logs.begin("exp_a")
    try:
        logs.say("exp_a", "one")
        logs.say("exp_a", "two")
    finally:
        logs.end("exp_a")
    assert len(caplog.messages) == 1
    assert "No space left" in caplog.text
    assert capsys.readouterr().err == ""


class Drives:
    """A host that drives two experiments. What is done in place of driving the first one is set by the test."""

    def __init__(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = host
        self.first, self.second = (host.store.experiments.create(a_spec()) for _ in range(2))
        self.end = asyncio.Event()
        monkeypatch.setattr(host.driving, "_drive_claimed", self._drive_claimed)

    async def first_drives(self) -> None:
        await self.end.wait()

    async def _drive_claimed(self, record: ExperimentRecord, epoch: int, executor: str) -> ExperimentState:
        try:
            await (self.first_drives() if record.id == self.first.id else self.end.wait())
        finally:
            self.host.driving.claimed.pop(record.id)
        return ExperimentState.COMPLETED

    async def until_first_ends(self) -> None:
        """Drive both experiments until the first one is not driven any more, then end the second one."""
        self.host.driving.begin(self.second)
        self.host.driving.begin(self.first)
        ended = self.host.driving.tasks[self.first.id]
        other = self.host.driving.tasks[self.second.id]
        await asyncio.wait({ended}, timeout=10)
        assert ended.done()
        self.end.set()
        assert await asyncio.wait_for(other, 10) is ExperimentState.COMPLETED

    def texts(self) -> tuple[str, str]:
        home = self.host.settings.home
        return text(home, self.first.public_id), text(home, self.second.public_id)


@pytest.fixture
def host(tmp_path: Path, sqlite_url: str) -> Iterator[Host]:
    level = logging.getLogger(NAME).level
    host = Host(Settings(home=tmp_path, database_url=sqlite_url, lease_s=1.0), "host")
    yield host
    host.writer.close()
    host.store.close()
    logging.getLogger(NAME).setLevel(level)


async def test_a_crash_is_in_the_log_of_its_experiment_only(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    drives = Drives(host, monkeypatch)

    async def crash() -> None:
        await asyncio.sleep(0)
        raise RuntimeError("the private reason")

    monkeypatch.setattr(drives, "first_drives", crash)
    await drives.until_first_ends()
    first, second = drives.texts()
    assert f"experiment {drives.first.public_id} is no longer driven: RuntimeError: the private reason" in first
    assert first.count("Traceback (most recent call last)") == 1
    assert first.endswith("RuntimeError: the private reason\n")
    assert [line.partition(": ")[2] for line in second.splitlines()] == [
        "no longer driven here: the experiment is completed"
    ]


async def test_an_experiment_that_another_driver_holds_is_no_error(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    record = host.store.experiments.create(a_spec())
    host.store.drivers.claim(record.id, "another", lease_s=60, now=time.time())
    host.driving.begin(record)
    with pytest.raises(Conflict, match="is driven by another, whose lease has not expired"):
        await host.driving.tasks[record.id]
    assert not [message for message in caplog.records if message.levelno >= logging.WARNING]
    assert "is driven by another, whose lease" in text(host.settings.home, record.public_id)


async def test_a_lost_lease_is_in_the_log_of_its_experiment_only(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    drives = Drives(host, monkeypatch)

    def renew(experiment: int, *args: Any) -> None:
        if experiment == drives.first.id:
            raise LostLease(f"{drives.first.public_id} has another driver now")

    monkeypatch.setattr(host.store.drivers, "renew", renew)
    keeping = asyncio.create_task(host.driving.keep_leases())
    try:
        await drives.until_first_ends()
    finally:
        keeping.cancel()
    first, second = drives.texts()
    assert f"WARNING tuner.hosts.driving: {drives.first.public_id} has another driver now" in first
    assert "another driver" not in second


async def test_an_outage_is_once_in_the_logs_of_all_experiments(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    drives = Drives(host, monkeypatch)
    tried: list[int] = []
    renewed = 3, 4  # of the attempts: in between, each of the two leases is renewed

    def renew(experiment: int, *args: Any) -> None:
        tried.append(experiment)
        if len(tried) not in renewed:
            raise StoreUnavailable("no route to host")

    def pending(*args: Any) -> None:
        raise StoreUnavailable("no route to host")

    monkeypatch.setattr(driving, "RENEW_S", 0.01)
    monkeypatch.setattr(host.store.commands, "pending", pending)
    monkeypatch.setattr(host.store.drivers, "renew", renew)
    host.driving.begin(drives.first)
    host.driving.begin(drives.second)
    tasks = list(host.driving.tasks.values())
    host._poked = asyncio.Event()
    background = [asyncio.create_task(host.driving.keep_leases()), asyncio.create_task(host._watch())]
    async with asyncio.timeout(60):
        while len(tried) < 8 or "could not be read" not in caplog.text:
            await asyncio.sleep(0.01)
    await host._end_tasks(background)
    counts = [found.count("a lease could not be renewed: no route to host") for found in (*drives.texts(), caplog.text)]
    assert counts == [2, 2, 2], "one line says enough about each of the two outages"
    assert caplog.text.count("the database could not be read: no route to host") == 1
    assert "Traceback" not in caplog.text
    drives.end.set()
    await asyncio.gather(*tasks)


async def test_what_the_writer_thread_logs_is_about_the_experiment(host: Host) -> None:
    with log_format.about(experiment="exp_a"):
        assert await host.writer.write(log_format.ids) == {"experiment": "exp_a"}
    assert await host.writer.write(log_format.ids) == {}
