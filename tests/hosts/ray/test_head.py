"""Ray's head without Ray: its commands, and the search for its processes."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from tests.open_files import many_open_files
from tuner import __version__
from tuner.errors import ClusterUnreachable
from tuner.hosts.ray import head, ray_start

WAITS = "import sys; sys.stdin.read()"


def without_ray(environments: list[Mapping[str, str]]) -> head.RunRay:
    """Return a function in the place of `run_ray` that starts nothing, and adds the environment of each command to a list."""

    def run(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        environments.append(environment)
        return subprocess.CompletedProcess(arguments, 1, "", "no Ray here")

    return run


def test_a_command_of_ray_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hangs))
    monkeypatch.setattr(head, "COMMAND_S", 0.2)
    with pytest.raises(ClusterUnreachable, match=r"`ray start` did not finish within 0.2 s and was killed"):
        head.run_ray(["start", "--head"], {})


@contextmanager
def process(*arguments: str, **environment: str) -> Iterator[int]:
    """Start a Python process that waits for the end of its input."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, **environment}) as started:
        try:
            with suppress(psutil.ZombieProcess):  # it may be killed at once
                while not psutil.Process(started.pid).environ():
                    pass  # it is empty for a moment while the program is loaded
            yield started.pid
        finally:
            started.kill()


def test_a_process_that_only_reads_the_logs_of_a_head_is_not_of_that_head(tmp_path: Path) -> None:
    monitor = tmp_path / "ray" / "_private" / "log_monitor.py"
    monitor.parent.mkdir(parents=True)
    monitor.write_text(WAITS)
    scratch = str(head._scratch(tmp_path))
    logs = f"{scratch}/session_latest/logs"
    with (
        process("-c", WAITS, f"{logs}/raylet.out") as reader,
        process("-u", str(monitor), f"--logs-dir={logs}") as part,
        process("-c", WAITS, **{head.MARK: scratch}) as worker,
    ):
        found = {one.pid for one in head._processes(tmp_path)}
        assert found == {part, worker}
        assert reader not in found


def test_the_end_of_a_process_is_noticed_at_once() -> None:
    with process("-c", WAITS) as first, process("-c", WAITS) as second, head.exits([first, second]) as wait:
        assert not wait(0.0)
        os.kill(second, signal.SIGKILL)
        begun = time.monotonic()
        wait(60.0)
        assert time.monotonic() < begun + 30


def test_the_end_of_a_process_is_noticed_by_a_service_with_more_than_a_thousand_clients() -> None:
    """The supervisor failed, and started Ray and the driver again without end."""
    with process("-c", WAITS) as one, many_open_files(), head.exits([one]) as wait:
        assert not wait(0.0)
        os.kill(one, signal.SIGKILL)
        assert wait(60.0)


def test_a_new_head_does_not_wait_for_the_processes_of_the_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a token")
    seen: list[int | None] = []

    def run(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        seen.append(old.wait(timeout=30))
        return subprocess.CompletedProcess(arguments, 1, "", "no Ray here")

    with process("-c", WAITS, **{head.MARK: str(head._scratch(tmp_path))}) as left:
        old = psutil.Process(left)
        with pytest.raises(ClusterUnreachable, match="no Ray here"):
            head.start_head(tmp_path, run)
        assert seen == [-signal.SIGKILL], "it was killed before the start"


@pytest.mark.parametrize(("version", "stays"), [(None, False), ("0.0.9", False), (__version__, True), ("999.0", True)])
def test_a_head_of_an_earlier_version_is_replaced(
    version: str | None, stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers are forked from a process that has loaded that version, so an upgrade would have had no effect on them."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a token")
    environments: list[Mapping[str, str]] = []
    run = without_ray(environments)

    variables = {head.MARK: str(head._scratch(tmp_path)), **({} if version is None else {head.VERSION: version})}
    with process("-c", WAITS, **variables) as part:
        found = head.Head("127.0.0.1:6379", (psutil.Process(part), psutil.Process(part)))
        monkeypatch.setattr(head, "find_head", lambda _: found)
        if stays:
            assert head.start_head(tmp_path, run) is found
            assert found.dead() is None
        else:
            with pytest.raises(ClusterUnreachable, match="no Ray here"):
                head.start_head(tmp_path, run)
            found.parts[0].wait(timeout=30)
            assert [one[head.VERSION] for one in environments] == [__version__]


@pytest.mark.parametrize(
    ("code", "later", "stays"),
    [("ours", True, True), ("other", True, False), ("other", False, True)],
    ids=["the same code", "changed code", "the code of another service, which began later"],
)
def test_a_head_of_changed_code_is_replaced_even_if_the_version_is_the_same(
    code: str, later: bool, stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an upgrade of a checkout, the driver and the trials went on with the code of before until Ray was shut down."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a token")
    environments: list[Mapping[str, str]] = []
    run = without_ray(environments)

    variables = {head.MARK: str(head._scratch(tmp_path)), head.VERSION: __version__}
    variables[head.SOURCES] = head.sources() if code == "ours" else "0123456789abcdef"
    with process("-c", WAITS, **variables) as part:
        found = head.Head("127.0.0.1:6379", (psutil.Process(part), psutil.Process(part)))
        ours = psutil.Process().create_time()
        monkeypatch.setattr(found.parts[-1], "create_time", lambda: ours - 1 if later else ours + 1)
        monkeypatch.setattr(head, "find_head", lambda _: found)
        if stays:
            assert head.start_head(tmp_path, run) is found
            assert found.dead() is None
        else:
            with pytest.raises(ClusterUnreachable, match="no Ray here"):
                head.start_head(tmp_path, run)
            found.parts[0].wait(timeout=30)
            assert [one[head.SOURCES] for one in environments] == [head.sources()]


def test_the_lock_of_an_editor_does_not_count_as_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray could not be started while a file of a checkout was being edited in Emacs: such a link leads nowhere."""
    monkeypatch.setattr(head, "__file__", str(tmp_path / "hosts" / "ray" / "head.py"))
    (tmp_path / "driver.py").write_text("trials = 1\n")
    before = head.sources.__wrapped__()
    (tmp_path / ".#driver.py").symlink_to("ada@laptop.1234:1700000000")
    assert head.sources.__wrapped__() == before
    (tmp_path / "driver.py").write_text("trials = 2\n")
    assert head.sources.__wrapped__() != before


@pytest.mark.parametrize("later", [True, False], ids=["after an upgrade of Python", "beside another service"])
def test_a_head_of_another_python_is_replaced_once(
    later: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service could not join it, and replaced it after several attempts. The other one said that a user had stopped Ray."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a token")
    environments: list[Mapping[str, str]] = []
    run = without_ray(environments)

    variables = {head.MARK: str(head._scratch(tmp_path)), head.VERSION: __version__}
    variables[head.RUNTIME] = "Python 3.11.0 and Ray 2.40.0"
    with process("-c", WAITS, **variables) as part:
        found = head.Head("127.0.0.1:6379", (psutil.Process(part), psutil.Process(part)))
        ours = psutil.Process().create_time()
        monkeypatch.setattr(found.parts[-1], "create_time", lambda: ours - 1 if later else ours + 1)
        monkeypatch.setattr(head, "find_head", lambda _: found)
        if later:
            with pytest.raises(ClusterUnreachable, match="no Ray here"):
                head.start_head(tmp_path, run)
            found.parts[0].wait(timeout=30)
            assert (
                environments[0][head.RUNTIME] == f"Python {platform.python_version()} and Ray {metadata.version('ray')}"
            )
        else:
            with pytest.raises(head.OtherRuntime, match=r"with Python 3\.11\.0 and Ray 2\.40\.0, .*a home of its own"):
                head.start_head(tmp_path, run)
            assert found.dead() is None


def test_a_head_that_a_service_replaces_does_not_look_stopped_to_another_service(tmp_path: Path) -> None:
    """The other service said that Ray was shut down by `tuner serve --stop`, and did nothing more."""
    (tmp_path / "ray_address").write_text("127.0.0.1:6379")
    head.stop_head(tmp_path, keep_logs=True)
    assert not head.was_stopped(tmp_path)
    assert head.find_head(tmp_path) is None
    head.stop_head(tmp_path)
    assert head.was_stopped(tmp_path)


def test_the_head_is_found_by_a_process_with_another_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tuner serve --stop` in another terminal stopped nothing, and a new service started a second Ray."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a token")
    home, marks = tmp_path / "home", []

    def run(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        marks.append(environment[head.MARK])
        return subprocess.CompletedProcess(arguments, 1, "", "no Ray here")

    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    with pytest.raises(ClusterUnreachable):
        head.start_head(home, run)
    with process("-c", WAITS, **{head.MARK: marks[0]}) as part:
        monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
        assert [one.pid for one in head._processes(home)] == [part]
        assert head.stop_head(home)


@pytest.mark.parametrize("code", [0, 1, None], ids=["Ray has started", "Ray could not start", "Ray is taking too long"])
def test_a_head_that_is_stopped_while_it_starts_stays_stopped(
    code: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service showed Ray's traceback and started Ray again, or `tuner serve --stop` said that there was nothing to stop."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a token")
    with ThreadPoolExecutor() as threads, ExitStack() as stack:

        def run(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
            stopping.append(threads.submit(head.stop_head, tmp_path))
            end = time.monotonic() + 30
            while not head.was_stopped(tmp_path):
                assert time.monotonic() < end
            scratch = str(head._scratch(tmp_path))  # not known before: the temporary directory may be too long
            parts.append(psutil.Process(stack.enter_context(process("-c", WAITS, **{head.MARK: scratch}))))
            if code is None:
                raise head.too_slow(arguments)
            return subprocess.CompletedProcess(arguments, code, "--address='127.0.0.1:6379'", "a traceback")

        stopping: list[Future[bool]] = []
        parts: list[psutil.Process] = []
        with pytest.raises(head.HeadStopped):
            head.start_head(tmp_path, run)
        assert stopping[0].result(timeout=60) is True
        assert not psutil.wait_procs(parts, timeout=30)[1]
        assert head.was_stopped(tmp_path)


def test_a_head_that_is_stopped_before_it_starts_is_not_started(tmp_path: Path) -> None:
    """A service that `tuner serve --stop` met between its start and that of Ray had started Ray all the same."""

    def run(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        raise AssertionError("Ray is started")

    begun = head.stops_of(tmp_path)
    assert not head.stop_head(tmp_path, keep_logs=True)
    assert head.stops_of(tmp_path) == begun, "the service itself ends a head to replace it"
    assert not head.stop_head(tmp_path)
    with pytest.raises(head.HeadStopped, match="before it was started"):
        head.start_head(tmp_path, run, begun)
    assert head.was_stopped(tmp_path)
    with pytest.raises(AssertionError, match="Ray is started"):
        head.start_head(tmp_path, run, head.stops_of(tmp_path))


def test_the_path_of_a_home_need_not_be_utf_8() -> None:
    names = {head._scratch_name(Path(os.fsdecode(home))) for home in (b"/b\xfcro", b"/b\xfdro", "/büro".encode())}
    assert len(names) == 3


def test_the_head_that_an_earlier_version_has_started_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in any temporary directory in which its sockets had room, not only where those of every head have."""
    monkeypatch.setattr(tempfile, "tempdir", "/scratch/123456")
    folder = f"/scratch/123456/{head._scratch_name(tmp_path)}"
    assert ray_start.temporary(head._scratch_name(tmp_path)) == "/tmp"
    with process("-c", WAITS, **{head.MARK: folder}) as part:
        assert [one.pid for one in head._processes(tmp_path)] == [part]
