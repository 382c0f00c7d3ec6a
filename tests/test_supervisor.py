"""The driver host is started again when it is gone, whichever way it went."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from tests.store.examples import a_spec
from tuner import service
from tuner.driver import host as driver_host
from tuner.driver import kept
from tuner.errors import DriverSilent
from tuner.sdk import run as runner
from tuner.sdk.progress import Progress
from tuner.service import Supervisor
from tuner.settings import Settings
from tuner.store import Store

NEWS: Any = ["exp_1 (digits) is taken up: it was given to this service"]
DEATHS = [
    ray.exceptions.ActorDiedError(),
    ray.exceptions.OutOfMemoryError("2 worker(s) were killed due to the node running low on memory."),
]


@pytest.mark.parametrize("death", DEATHS, ids=["killed", "for memory"])
def test_by_the_service(
    death: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[int] = []
    calls: list[Any] = []
    again = threading.Event()

    class Ended(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            calls.append("wait")
            return super().wait(timeout)

    def start_host(settings: Settings, *, shared: bool) -> Any:
        number = len(started)
        started.append(number)
        return SimpleNamespace(
            start=SimpleNamespace(remote=lambda serve, adopt: number), news=SimpleNamespace(remote=lambda: NEWS)
        )

    def get(number: int, timeout: float) -> Any:
        if number is NEWS:
            return NEWS
        calls.append(number)
        if number == 0 and calls.count(0) > 1:
            raise death
        if number == 1:
            again.set()
        return "owner"

    monkeypatch.setattr(driver_host, "start_host", start_host)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(service, "CHECK_S", 0.01)
    supervisor = Supervisor(Settings(home=tmp_path))
    supervisor._ended = Ended()
    with caplog.at_level("INFO"), supervisor:
        assert again.wait(20)
    assert started == [0, 1]
    assert NEWS[0] in [record.getMessage() for record in caplog.records]
    assert calls[:4] == [0, "wait", 0, 1], "another one is started at once"


def test_the_service_asks_the_driver_for_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = Supervisor(Settings(home=tmp_path))
    with pytest.raises(DriverSilent, match="the driver is starting"):
        supervisor.look("seg")
    supervisor._host = SimpleNamespace(look=SimpleNamespace(remote=lambda segment: segment))
    monkeypatch.setattr(ray, "get", lambda segment, timeout: {"0": {"stack": segment}})
    assert supervisor.look("seg") == {"0": {"stack": "seg"}}

    def late(segment: str, timeout: float) -> None:
        raise ray.exceptions.GetTimeoutError

    monkeypatch.setattr(ray, "get", late)
    with pytest.raises(DriverSilent, match="GetTimeoutError"):
        supervisor.look("seg")


@pytest.mark.parametrize("death", DEATHS, ids=["killed", "for memory"])
def test_by_tuner_run(death: Exception, sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sqlite_store.experiments.create(a_spec())
    hosts: list[int] = []

    @contextmanager
    def borrow(*_: Any, **__: Any) -> Iterator[int]:
        hosts.append(len(hosts))
        yield hosts[-1]

    def wait(host: int, *_: Any) -> None:
        if host == 0:
            raise death

    said: list[str] = []
    monkeypatch.setattr(kept, "borrow", borrow)
    monkeypatch.setattr(runner, "_wait", wait)
    monkeypatch.setattr(Progress, "say", lambda self, text, *_: said.append(text))
    runner._drive(sqlite_store, Settings(home=tmp_path), made.public_id, None, 0, keep=False)
    assert hosts == [0, 1]
    assert "the driver was killed; a new one continues from the last commit" in said
