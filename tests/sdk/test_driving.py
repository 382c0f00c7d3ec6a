"""Let a script follow a search that another driver has taken over."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorUnavailableError, RayActorError

from tests.store.examples import a_spec
from tuner.domain.batch import Batch
from tuner.domain.states import ExperimentState
from tuner.errors import Conflict, LostLease, StoreError, TunerError
from tuner.hosts.scripts import kept, local_host
from tuner.sdk import driving
from tuner.sdk.executors import Choice
from tuner.sdk.live.interrupts import Interrupts
from tuner.sdk.run import _drive
from tuner.settings import Settings
from tuner.store import Store


class Told(contextlib.nullcontext[None]):
    """A progress display that keeps what it is told."""

    show = False

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)

    def update(self) -> None:
        pass


def ended(store: Store) -> str:
    """Return an experiment that another driver has ended."""
    made = store.experiments.create(a_spec())
    epoch = store.drivers.claim(made.id, "another", 60.0, 0.0)
    store.drivers.commit(made.id, epoch, Batch(log=[], state=ExperimentState.RUNNING), 1.0)
    store.drivers.commit(made.id, epoch, Batch(log=[], state=ExperimentState.COMPLETED), 2.0)
    return made.public_id


@pytest.mark.parametrize("error", [LostLease("taken"), Conflict("driven")])
def test_a_search_that_another_driver_takes_is_followed(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch, error: TunerError
) -> None:
    done: Future[str] = Future()
    done.set_exception(error)

    @contextlib.contextmanager
    def borrow(settings: Settings, *, keep: bool) -> Iterator[Any]:
        yield SimpleNamespace(drive=lambda *_: done, poke=lambda: None)

    monkeypatch.setattr(local_host, "borrow", borrow)
    progress: Any = Told()
    name = ended(sqlite_store)
    driving.drive_here(sqlite_store, Settings(), name, progress, Interrupts(lambda name: None), "", True)
    assert ["following it" in line for line in progress.said] == [True]


@pytest.mark.parametrize("taken", [LostLease("taken"), Conflict("driven")])
def test_on_ray_it_is_followed_after_a_restart_of_the_driver_too(
    taken: Exception, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a Conflict, the script slept for the length of a lease, without progress, and did not hear Ctrl-C."""
    errors: list[Exception] = [RayActorError(), taken]

    def wait(*_: Any) -> None:
        raise errors.pop(0)

    @contextlib.contextmanager
    def borrow(*_: Any, keep: bool) -> Iterator[Any]:
        yield None

    monkeypatch.setattr(kept, "borrow", borrow)
    monkeypatch.setattr(driving, "_wait", wait)
    progress: Any = Told()
    name = ended(sqlite_store)
    driving.drive_on_ray(
        sqlite_store, Settings(lease_s=0.01), name, None, progress, Interrupts(lambda name: None), "", True
    )
    assert ["following it" in line for line in progress.said] == [False, True]


class Unreachable:
    """A driver on Ray. The first calls to it, or their answers, are lost: each after so many seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lost: list[float]) -> None:
        self.drive = self.poke = self
        self._now, self._lost, self.calls = 0.0, lost, 0
        monkeypatch.setattr(driving, "time", SimpleNamespace(monotonic=lambda: self._now, sleep=lambda seconds: None))
        monkeypatch.setattr(ray, "wait", lambda refs, timeout: (refs, []))
        monkeypatch.setattr(ray, "get", self._answer)

    def remote(self, *arguments: str) -> str:
        self.calls += bool(arguments)
        return "ref"

    def _answer(self, ref: str) -> str:
        if self._lost:
            self._now += self._lost.pop(0)
            raise ActorUnavailableError("a connection broke", None)
        return "completed"


@pytest.mark.parametrize("lost", [[1.0, 1.0], [20.0, 5.0], [3600.0, 1.0, 3600.0, 1.0, 3600.0]])
def test_on_ray_a_driver_that_cannot_be_reached_for_a_moment_is_not_ended(
    lost: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script closed the driver, so all trials lost their training since the last checkpoint."""
    host, calls = Unreachable(monkeypatch, lost), len(lost) + 1
    progress: Any = Told()
    driving._wait(host, "exp", progress, Interrupts(lambda name: None), "")
    assert (host.calls, progress.said) == (calls, [])


def test_on_ray_a_driver_that_cannot_be_reached_for_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Unreachable(monkeypatch, [5.0] * 99)
    progress: Any = Told()
    with pytest.raises(ActorUnavailableError):
        driving._wait(host, "exp", progress, Interrupts(lambda name: None), "")
    assert host.calls == 7


@pytest.fixture
def left(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an experiment whose driver has died. Nothing may wait for that driver."""

    def sleep(seconds: float) -> None:
        raise AssertionError("waits for a driver that has died")

    made = sqlite_store.experiments.create(a_spec())
    epoch = sqlite_store.drivers.claim(made.id, "another", 60.0, 0.0)
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], state=ExperimentState.RUNNING), 1.0)
    monkeypatch.setattr(driving, "UNDRIVEN_S", 0.0)
    monkeypatch.setattr(driving, "time", SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=sleep))
    return made.public_id


def test_a_search_whose_other_driver_dies_is_continued(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """The script waited forever."""
    answers: list[Future[str]] = [Future(), Future()]
    answers[0].set_exception(LostLease("taken"))
    answers[1].set_result("completed")

    @contextlib.contextmanager
    def borrow(settings: Settings, *, keep: bool) -> Iterator[Any]:
        yield SimpleNamespace(drive=lambda *_: answers.pop(0), poke=lambda: None)

    monkeypatch.setattr(local_host, "borrow", borrow)
    progress: Any = Told()
    driving.drive_here(sqlite_store, Settings(), left, progress, Interrupts(lambda name: None), "", True)
    assert answers == []
    assert progress.said[-1] == "no driver runs this experiment any more; continuing it here"


def test_a_search_of_a_service_that_restarts_is_left_to_it(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """After ten seconds, a script that only followed the search took it from the service, which was still starting."""
    record = sqlite_store.experiments.get(left)
    sqlite_store.drivers.adopt(record.id)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += 1.0
        if now[0] == 60.0:  # the service has started again, and ends the search
            epoch = sqlite_store.drivers.claim(record.id, "another", 60.0, 70.0)
            sqlite_store.drivers.commit(record.id, epoch, Batch(log=[], state=ExperimentState.COMPLETED), 71.0)

    @contextlib.contextmanager
    def borrow(settings: Settings, *, keep: bool) -> Iterator[Any]:
        yield SimpleNamespace(drive=lambda *_: answers.pop(), poke=lambda: None)

    answers: list[Future[str]] = [Future()]
    answers[0].set_exception(Conflict("driven"))
    monkeypatch.setattr(driving, "time", SimpleNamespace(time=time.time, monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(local_host, "borrow", borrow)
    progress: Any = Told()
    driving.drive_here(sqlite_store, Settings(), left, progress, Interrupts(lambda name: None), "", True)
    assert progress.said == [driving.FOLLOWED]


def test_on_ray_it_is_continued_too_however_often_others_take_it(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """After the second conflict, `tuner.run` returned while the search was still running."""
    errors: list[Exception | None] = [RayActorError(), Conflict("driven"), Conflict("driven"), LostLease("taken"), None]

    def wait(*_: Any) -> None:
        if (error := errors.pop(0)) is not None:
            raise error

    @contextlib.contextmanager
    def borrow(*_: Any, keep: bool) -> Iterator[Any]:
        yield None

    monkeypatch.setattr(kept, "borrow", borrow)
    monkeypatch.setattr(driving, "_wait", wait)
    progress: Any = Told()
    driving.drive_on_ray(sqlite_store, Settings(), left, None, progress, Interrupts(lambda name: None), "", True)
    assert errors == []


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("chosen", [None, Choice(local=True, why="")])
def test_a_search_that_another_process_drives_is_not_called_stopped(
    sqlite_store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    chosen: Choice | None,
    paused: bool,
) -> None:
    """Ctrl-C cannot pause it, or pauses it and is pressed again."""
    made = sqlite_store.experiments.create(a_spec())
    epoch = sqlite_store.drivers.claim(made.id, "another", 60.0, time.time())
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], state=ExperimentState.RUNNING), time.time())
    done: Future[str] = Future()
    done.set_exception(Conflict("driven"))

    @contextlib.contextmanager
    def borrow(settings: Settings, *, keep: bool) -> Iterator[Any]:
        yield SimpleNamespace(drive=lambda *_: done, poke=lambda: None)

    def sleep(seconds: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def full(*_: Any, **__: Any) -> None:
        raise StoreError("sqlite: database or disk is full (/home/me/.tuner/tuner.db)")

    monkeypatch.setattr(local_host, "borrow", borrow)
    monkeypatch.setattr(driving, "time", SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=sleep))
    if not paused:
        monkeypatch.setattr(type(sqlite_store.commands), "add", full)
    with pytest.raises(KeyboardInterrupt) as stopped:
        _drive(sqlite_store, Settings(), made.public_id, chosen, None, 0, True, ())
    said = capsys.readouterr().err
    [note] = stopped.value.__notes__
    if paused:
        assert [command.command for command in sqlite_store.commands.pending([made.id])] == ["pause"]
        assert "leaving the search to the process that drives it" in said
        assert note.startswith("The process that drives the search pauses it; continue with: ")
        return
    assert (
        "it continues, since another process drives it, and `tuner pause` can pause it later: sqlite: database" in said
    )
    assert note == f"The search continues, since another process drives it. To pause it: tuner pause {made.public_id}"
