from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner import log_format
from tuner.driver.hosts.measures.driver_log import NAME, DriverLogs
from tuner.experiment.logs import driver_log, driver_log_path

log = logging.getLogger("tuner.trials.groups.watch")


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


def test_each_experiment_has_its_own_messages_and_those_of_the_host(logs: DriverLogs, tmp_path: Path) -> None:
    with log_format.about(experiment="exp_a"):
        log.info("rank %d is slow", 3)
    log.warning("node n1 does not answer")
    logs.say("exp_b", "trial %d, segment %d: %s", 4, 1, "returned")
    logs.say("exp_c", "is driven elsewhere")
    with log_format.about(experiment="exp_c"):
        log.info("is driven elsewhere")
    logging.getLogger("urllib3").warning("not ours")
    a, b = text(tmp_path, "exp_a"), text(tmp_path, "exp_b")
    assert [line.partition(": ")[2] for line in a.splitlines()] == ["rank 3 is slow", "node n1 does not answer"]
    assert [line.partition(": ")[2] for line in b.splitlines()] == [
        "node n1 does not answer",
        "trial 4, segment 1: returned",
    ]
    assert driver_log(tmp_path, "exp_c", 10) is None


def test_a_traceback_is_kept_and_a_token_is_not(logs: DriverLogs, tmp_path: Path) -> None:
    try:
        raise ValueError("tns_abcdefghijklmnopqrstuvwxyz")
    except ValueError:
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
    again.say("exp_a", "two")
    again.end("exp_a")
    assert [line.rpartition(" ")[2] for line in text(tmp_path, "exp_a").splitlines()] == ["one", "two"]


def test_a_host_without_experiments_takes_no_messages(tmp_path: Path) -> None:
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
