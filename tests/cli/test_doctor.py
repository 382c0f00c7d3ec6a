"""`tuner doctor`: each check finds what it is there for, and says what to do."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from tuner.cli import doctor
from tuner.cli.commands import app
from tuner.cli.doctor import Finding, examine
from tuner.service.page import Page
from tuner.settings import Settings
from tuner.store import Store, StoreUnavailable


def only(findings: Iterator[Finding]) -> Finding:
    (found,) = findings
    assert bool(found.advice) == (found.level != "ok"), "each trouble comes with advice, and nothing else does"
    return found


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return Settings(home=tmp_path / "home", port=port)


def test_this_machine_passes_the_quick_checks(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_HOME", str(settings.home))
    monkeypatch.setenv("TUNER_PORT", str(settings.port))
    done = CliRunner().invoke(app, ["doctor", "--quick", "--json"])
    found = [json.loads(line) for line in done.output.splitlines()]
    assert done.exit_code == 0, done.output
    assert {each["subject"] for each in found} >= {"python", "packages", "machine", "database", "storage", "port"}
    assert not {each["subject"] for each in found} & {"torch", "ray"}, "their checks are not quick"
    left = [path.name for path in settings.home.rglob("*") if path.is_file()]
    assert all(name.startswith("tuner.db") for name in left), "nothing else is left behind"


def test_an_error_is_the_exit_status(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_HOME", str(settings.home))
    monkeypatch.setenv("TUNER_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/tuner?connect_timeout=1")
    done = CliRunner().invoke(app, ["doctor", "--quick"])
    assert done.exit_code == 1
    assert "ERROR    database: postgresql://nobody@127.0.0.1:1" in done.output
    assert "-> check TUNER_DATABASE_URL" in done.output


def test_a_database_that_this_user_may_only_read_is_an_error(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(store: Store) -> None:
        raise StoreUnavailable("sqlite: attempt to write a readonly database")

    monkeypatch.setattr(Store, "check_write", refused)
    found = only(doctor.check_database(settings))
    assert (found.level, "readonly" in found.what) == ("error", True)
    assert "let this user write to the file" in found.advice


def test_a_postgresql_that_takes_no_writes_is_told_from_one_that_does_not_run(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice was to check that the server runs and lets this user connect."""

    def refused(store: Store) -> None:
        raise StoreUnavailable("postgresql: cannot execute CREATE TABLE in a read-only transaction")

    monkeypatch.setattr(Store, "migrate", refused)
    assert "the server takes no writes, because it is a standby" in only(doctor.check_database(settings)).advice


def test_packages_that_are_missing_or_too_old_are_named() -> None:
    found = list(
        doctor._unmet(
            [
                Requirement("no-such-package>=1"),
                Requirement("pytest>=1"),
                Requirement("pytest<1"),
                Requirement("x; extra=='y'"),
            ]
        )
    )
    assert [what.split(";")[0].split(" is ")[0] for what, _ in found] == ["no-such-package", "pytest"]
    assert found[1][1] == "pytest<1"


def test_a_current_folder_that_has_been_deleted_is_an_error(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    found = {finding.subject: finding for finding in examine(settings)}
    assert found["current folder"].level == "error"
    assert not {"torch", "ray"} & set(found), "they cannot be started, whatever their state is"


def test_few_open_files_are_warned_of(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1_048_576))
    found = {each.subject: each for each in doctor.check_machine(settings)}
    assert found["open files"].level == "warning"
    assert "ulimit -n 65536" in found["open files"].advice


def test_a_full_disk_is_warned_of(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MIN_FREE_BYTES", 2**60)
    found = {each.subject: each for each in doctor.check_machine(settings)}
    assert (found["home"].level, found["temporary directory"].level) == ("warning", "warning")


def test_a_directory_that_this_user_may_not_write_to_is_an_error(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = {each.subject: each for each in doctor.check_machine(settings)}
    assert (found["home"].level, found["temporary directory"].level) == ("error", "error")
    assert "TUNER_HOME" in found["home"].advice
    assert "TMPDIR" in found["temporary directory"].advice


def test_a_home_below_a_folder_that_this_user_may_not_enter_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ended with a traceback."""
    private, stat = tmp_path / "private", os.stat
    private.mkdir()

    def refused(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if isinstance(path, str | Path) and private in Path(path).parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", refused)
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = {each.subject: each for each in doctor.check_machine(Settings(home=private / "a" / "home"))}["home"]
    assert (found.level, found.what) == ("error", f"{private} is not writable")


def test_the_directory_that_is_named_is_looked_at(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Look at TMPDIR itself, which Ray uses even if it is full. `tempfile` would turn to another directory."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = {each.subject: each for each in doctor.check_machine(settings)}
    assert found["temporary directory"].what.startswith(f"{tmp_path}, ")


def test_a_home_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    assert only(doctor.check_database(Settings(home=tmp_path / "home"))).level == "error"


@pytest.mark.parametrize("uri", ["/dev/null/checkpoints", "nonsense://bucket/x"])
def test_storage_that_takes_no_file_is_an_error(tmp_path: Path, uri: str) -> None:
    found = only(doctor.check_storage(Settings(home=tmp_path, storage=uri)))
    assert (found.level, uri in found.what) == ("error", True)


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-OpenSSH_9.2\r\n"], ids=["silent", "other protocol"])
def test_a_port_that_something_else_has_is_warned_of(settings: Settings, greeting: bytes) -> None:
    """The second of them ended the command with a traceback."""
    assert only(doctor.check_port(settings)).level == "ok"
    with socket.socket() as other:  # if it is silent, it does not listen: a service that never answers is waited for
        other.bind(("127.0.0.1", settings.port))
        if greeting:
            other.listen()
            threading.Thread(target=lambda: other.accept()[0].sendall(greeting), daemon=True).start()
        found = only(doctor.check_port(settings))
    assert (found.level, "Address already in use" in found.what) == ("warning", True)


@pytest.mark.parametrize("host", ["300.1.1.1", "192.0.2.123"])
def test_a_host_that_is_not_this_machine_is_not_called_a_port_in_use(
    settings: Settings, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_serves", lambda _: pytest.fail("no tuner of this machine can have this address"))
    found = only(doctor.check_port(replace(settings, host=host)))
    assert (found.level, "name or an address of this machine" in found.advice) == ("warning", True)


def test_a_port_that_a_tuner_has_is_fine(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # is not used, since the service is on this machine
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setattr(urllib.request, "_opener", None)  # an earlier test may have made one with its own environment
    page = Page(settings)
    page.start()
    try:
        found = only(doctor.check_port(settings))
    finally:
        page.stop()
    assert (found.level, found.what.startswith("a tuner service runs")) == ("ok", True)


def told(monkeypatch: pytest.MonkeyPatch, torch: list[object], gpus: int) -> Finding:
    """Return what is found if torch and the driver say this."""
    monkeypatch.setattr(doctor, "_apart", lambda *_: json.dumps(torch))
    monkeypatch.setattr(doctor, "_gpus", lambda: ["GPU"] * gpus)
    return only(doctor.check_torch())


def test_a_cpu_build_of_torch_on_a_machine_with_gpus_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, ["2.13.0+cpu", None, [], None], 2)
    assert (found.level, "it is a CPU build" in found.what) == ("error", True)


def test_gpus_that_are_hidden_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = told(monkeypatch, ["2.13.0", "12.8", ["H100"], "2.27"], 2)
    assert (found.level, "CUDA_VISIBLE_DEVICES is '0'" in found.what) == ("warning", True)


def test_torch_without_nccl_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, ["2.13.0", "12.8", ["H100"], None], 1).level == "error"


def test_a_machine_with_gpus_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, ["2.13.0", "12.8", ["H100", "H100"], "2.27"], 2).level == "ok"


def test_a_machine_without_gpus_is_fine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert told(monkeypatch, ["2.13.0", None, [], None], 0).what == "2.13.0, no GPU"
    monkeypatch.undo()
    program = tmp_path / "nvidia-smi"
    for said, count in (("No devices were found", 0), ("GPU 0: H100 (UUID: x)", 1)):
        program.write_text(f"#!/bin/sh\necho '{said}'\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        assert len(doctor._gpus() or []) == count


def test_a_driver_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(doctor, "DRIVER_S", 0.5)
    monkeypatch.setattr(doctor, "_apart", lambda *_: json.dumps(["2.13.0", "12.8", [], None]))
    found = only(doctor.check_torch())
    assert (found.level, "NVIDIA's driver does not answer" in found.what) == ("error", True)


def test_what_goes_wrong_in_a_process_of_its_own_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._apart("print('noise'); print('last')", 30) == "last"
    colored = doctor._apart("import sys; sys.exit('\x1b[1;35mOSError\x1b[0m: no such device')", 30)
    assert isinstance(colored, Finding)
    assert colored.what == "OSError: no such device"  # as Python 3.13 prints it if FORCE_COLOR is set
    failed = doctor._apart("raise OSError('no such device')", 30)
    assert isinstance(failed, Finding)
    assert failed.what == "OSError: no such device"
    ours = doctor._apart("from tuner.errors import ClusterUnreachable; raise ClusterUnreachable('no room')", 30)
    assert isinstance(ours, Finding)
    assert ours.what == "tuner.errors.ClusterUnreachable: no room"
    killed = doctor._apart("import os; os.kill(os.getpid(), 9)", 30)
    assert isinstance(killed, Finding)
    assert killed.what == "it was killed by signal 9"
    hung = doctor._apart("import time; time.sleep(60)", 0.5)
    assert isinstance(hung, Finding)
    assert "no answer" in hung.what


@pytest.mark.slow
def test_two_ranks_find_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Linux, they are forked. Each rank imported PyTorch by itself, in an interpreter of its own."""
    started = tmp_path / "started"
    (tmp_path / "sitecustomize.py").write_text(f"open({str(started)!r}, 'a').write('an interpreter\\n')")
    monkeypatch.syspath_prepend(tmp_path)
    assert only(doctor.check_ddp()).level == "ok"
    assert sys.platform != "linux" or started.read_text() == "an interpreter\n"


@pytest.mark.ray
def test_ray_starts(settings: Settings) -> None:
    assert only(doctor.check_ray(settings)).level == "ok"


def test_a_cluster_that_is_not_there_is_an_error(settings: Settings) -> None:
    nowhere = f"127.0.0.1:{settings.port}"
    found = only(doctor.check_ray(Settings(home=settings.home, ray_address=nowhere)))
    assert (found.level, f"{nowhere} cannot be reached: " in found.what) == ("error", True)


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.7:6379", "10.0.0.7"),
        ("ray://head:10001", "head"),
        ("[::1]:6379", "::1"),
        ("auto", None),
        (":6379", None),
    ],
)
def test_a_cluster_is_looked_for_where_its_address_says(
    address: str, host: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster at an IPv6 address was never reached."""
    tried: list[str] = []

    def connect(place: tuple[str, int], timeout: float) -> socket.socket:
        tried.append(place[0])
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", connect)
    assert doctor._unreachable(address) is None
    assert tried == ([] if host is None else [host])
    monkeypatch.undo()
    assert doctor._unreachable(f"127.0.0.1:{10**20}") is not None, "it is no port"


@pytest.mark.parametrize(("host", "asked"), [("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("::1", "[::1]")])
def test_a_service_is_asked_at_an_address_that_answers(
    settings: Settings, host: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls: list[str] = []

    def opened(self: object, url: str, **options: object) -> io.BytesIO:
        urls.append(url)
        return io.BytesIO(b'{"role": "admin"}')

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", opened)
    assert doctor._serves(replace(settings, host=host))
    assert urls == [f"http://{asked}:{settings.port}/api/v1/session"]


def test_only_errors_are_failures() -> None:
    fine, odd, wrong = Finding("a", "ok", "x"), Finding("b", "warning", "y", "do z"), Finding("c", "error", "w", "v")
    said: list[str] = []
    assert doctor.report(iter([fine, odd]), said.append)
    assert said == ["ok       a: x", "WARNING  b: y", "         -> do z"]
    assert not doctor.report(iter([wrong, fine]), said.append)


def test_the_command_needs_no_ray_to_say_what_it_finds_first() -> None:
    code = "import sys, tuner.cli.doctor; print(any(name in sys.modules for name in ('ray', 'torch')))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "False"
