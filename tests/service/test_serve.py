"""Test what `tuner serve` prints when it starts."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tuner.api import server
from tuner.errors import SpecError
from tuner.service import serve
from tuner.service.early import answering
from tuner.service.supervisor import Supervisor
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.service.access import Role
from tuner.telemetry import log_format


class NoSupervisor(nullcontext[None]):
    """A supervisor without Ray."""

    poke = problem = look = cluster = metrics = agents = profile = driver_log = None


class NoServer:
    """A server that ends at once."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def run(self, **_: Any) -> None: ...


@pytest.mark.parametrize(
    ("host", "shown"), [("0.0.0.0", "localhost"), ("127.0.0.1", "127.0.0.1"), ("::", "localhost"), ("::1", "[::1]")]
)
def test_the_address_that_is_printed_works_in_a_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str, shown: str
) -> None:
    monkeypatch.setattr(server, "Server", NoServer)
    monkeypatch.setattr(serve, "_load_ahead", lambda _: None)
    monkeypatch.setattr(log_format, "configure", lambda *_: None)
    settings = Settings(home=tmp_path, host=host)
    with Store.open(settings.database_url) as store:
        store.migrate()
        store.access.create_token("me", Role.ADMIN)
    with answering("127.0.0.1", 0) as early:  # the machine of the test may have no IPv6
        port = early.listening.getsockname()[1]
        supervisor: Any = NoSupervisor()
        serve._serve(settings, early, supervisor)
    assert f"tuner is at http://{shown}:{port}   (database" in capsys.readouterr().out


def test_a_service_does_not_start_with_an_address_of_ray_client(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", port=0, ray_address="ray://head:10001")
    with answering(settings.host, settings.port) as early, pytest.raises(SpecError, match="Ray Client"):
        serve.serve(settings, early)


def test_a_service_does_not_start_in_a_folder_that_has_been_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    settings = Settings(home=tmp_path / "home", port=0)
    with (
        answering(settings.host, settings.port) as early,
        pytest.raises(SpecError, match="the current folder of this process has been deleted"),
    ):
        serve.serve(settings, early)


@pytest.mark.parametrize("ignored", [False, True], ids=["in a terminal", "under nohup"])
def test_a_terminal_that_is_closed_during_the_start_ends_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignored: bool
) -> None:
    def loading(*_: Any) -> Any:
        os.kill(os.getpid(), signal.SIGHUP)
        raise SpecError("it goes on")

    monkeypatch.setattr(Supervisor, "loading", loading)
    monkeypatch.setattr(serve, "leave_lost_terminal", lambda: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        with answering("127.0.0.1", 0) as early, pytest.raises(SpecError) if ignored else nullcontext():
            serve.serve(Settings(home=tmp_path, port=0), early)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, "a second SIGHUP changes nothing"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
