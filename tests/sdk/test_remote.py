"""`tuner.run(..., address=...)`: a service runs the search, and this process follows it."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import tuner
from tests.api.conftest import app, poked, server
from tests.services import Service, until
from tests.store.examples import T0
from tests.web.searches import Search, steady
from tuner.client.synchronous import Client, ExperimentHandle
from tuner.domain.batch import Batch
from tuner.domain.events import DriverStarted
from tuner.domain.states import ExperimentState
from tuner.errors import NotAllowed, ServiceUnreachable, SpecError
from tuner.experiment.code import by_value
from tuner.sdk.remote import _is_over, _Served
from tuner.store import Store

__all__ = ["app", "poked", "server"]

SPACE = {"lr": tuner.loguniform(1e-4, 1e-1), "width": tuner.choice([16, 32, 64])}
WAYS: dict[str, Any] = {
    "metric": "accuracy", "mode": "max", "num_samples": 6, "search_alg": "random", "scheduler": "fifo", "max_t": 4,
}  # fmt: skip


class Loaded:
    """An object that says so if it is unpickled in this process."""

    def __reduce__(self) -> Any:
        return os.environ.__setitem__, ("TUNER_TEST_UNPICKLED", "yes")


def driven(store: Store, stop: threading.Event, held: threading.Event | None = None) -> threading.Thread:
    """Drive whatever is created in the database, as a driver host does, until `stop` is set, but not while `held` is set."""

    def drive() -> None:
        search = None
        while not stop.wait(0.02):
            if held is not None and held.is_set():
                continue
            if search is None:
                for record in store.experiments.page(state="pending").items:
                    search = Search(store, record.spec, start=T0, record=record, curve=steady)
            else:
                search.obey()
                search.advance(3)

    thread = threading.Thread(target=drive, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def driver(sqlite_store: Store) -> Iterator[None]:
    stop = threading.Event()
    thread = driven(sqlite_store, stop)
    yield
    stop.set()
    thread.join(timeout=20)


def test_it_ships_the_function_and_returns_the_result(
    server: str, sqlite_store: Store, driver: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TUNER_TEST_UNPICKLED", raising=False)
    found = Loaded()

    def train(config: dict[str, Any]) -> None:
        tuner.report({"accuracy": config["lr"] + (found is not None)})

    result = tuner.run(train, SPACE, **WAYS, address=server)
    assert (result.state, len(result.trials), result.name) == ("completed", 6, "train")
    assert result.best_config is not None
    assert result.best_config["width"] in (16, 32, 64)
    assert len(result.dataframe(history=True)) == 24
    record = sqlite_store.experiments.get(result.experiment_id)
    assert record.source == "api"
    assert record.spec.code is not None
    code = sqlite_store.code.get(record.spec.code)
    assert code.blob is not None
    assert b"accuracy" in code.blob
    assert "TUNER_TEST_UNPICKLED" not in os.environ, "the service unpickled the function"
    shown = capsys.readouterr().out
    assert f"{result.experiment_id} runs at {server}" in shown
    assert "completed, 6/6 trials" in shown


def train(config: dict[str, Any]) -> None:
    tuner.report({"accuracy": config["lr"]})


def test_the_first_ctrl_c_pauses_it(server: str, driver: None, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        until("the progress", lambda: "runs at" in capsys.readouterr().out)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = tuner.run(train, SPACE, **{**WAYS, "num_samples": 3000}, address=server)
    thread.join()
    assert result.state == "paused"
    with tuner.connect(server) as client:
        client.experiment(result.experiment_id).cancel()


def test_the_second_ctrl_c_leaves_it_to_the_service(
    server: str, sqlite_store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody drives it, so it stays pending."""

    def interrupt() -> None:
        until("the progress", lambda: "runs at" in capsys.readouterr().out)
        [made] = sqlite_store.experiments.page().items
        os.kill(os.getpid(), signal.SIGINT)
        until("the pause", lambda: sqlite_store.commands.pending([made.id]))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        tuner.run(train, SPACE, **WAYS, address=server)
    thread.join()
    [made] = sqlite_store.experiments.page().items
    assert made.state == "pending"


def test_ctrl_c_while_it_is_being_cancelled_waits_for_its_end(
    server: str, sqlite_store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """Conflict was raised in the script, and the result was lost."""

    def cancel() -> None:
        until("the search", lambda: sqlite_store.experiments.page().items)
        [made] = sqlite_store.experiments.page().items
        epoch = sqlite_store.drivers.claim(made.id, "driver", 60.0, T0)
        started = DriverStarted(time=T0, epoch=epoch)
        sqlite_store.drivers.commit(made.id, epoch, Batch(log=[(1, started)], state=ExperimentState.CANCELLING), T0)
        shown = [capsys.readouterr().out]
        until("the progress", lambda: shown.append(capsys.readouterr().out) or "runs at" in "".join(shown))
        os.kill(os.getpid(), signal.SIGINT)
        until("the answer", lambda: shown.append(capsys.readouterr().out) or "cannot be paused" in "".join(shown))
        sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], state=ExperimentState.CANCELLED), T0)

    thread = threading.Thread(target=cancel)
    thread.start()
    result = tuner.run(train, SPACE, **WAYS, address=server)
    thread.join()
    assert result.state == "cancelled"


def test_only_new_notes_are_read() -> None:
    """All notes of a search were read twice a second."""
    read: list[int] = []

    def decisions(kind: str) -> Iterator[SimpleNamespace]:
        for seq in (9, 7, 5, 3):
            read.append(seq)
            yield SimpleNamespace(seq=seq, payload={"warning": seq != 7})

    served = _Served(cast(ExperimentHandle, SimpleNamespace(decisions=decisions)))
    assert [note.seq for note in served.warnings(5)] == [9]
    assert read == [9, 7, 5]


def test_more_trials_do_not_show_the_end_from_before(
    server: str, sqlite_store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """The driver takes the experiment up again only after the first lines were shown."""
    stop, held = threading.Event(), threading.Event()
    driver = driven(sqlite_store, stop, held)
    result = tuner.run(train, SPACE, **WAYS, address=server)
    held.set()
    shown = [capsys.readouterr().out]

    def begins() -> bool:
        shown.append(capsys.readouterr().out)
        return "runs at" in "".join(shown[1:])

    def let_go() -> None:
        until("the first lines", begins)
        held.clear()

    watcher = threading.Thread(target=let_go)
    watcher.start()
    more = result.add(num_samples=2)
    watcher.join()
    stop.set()
    driver.join(timeout=20)
    assert (more.state, len(more.trials)) == ("completed", 8)
    assert "pending, 6/8 trials" in "".join(shown[1:])
    assert "not started" not in "".join(shown[1:])


def test_more_trials_resume_a_search_that_is_paused(server: str, sqlite_store: Store) -> None:
    """`add` returned at once, and ran nothing."""
    stop, held = threading.Event(), threading.Event()
    held.set()
    driver = driven(sqlite_store, stop, held)

    def interrupt() -> None:
        until("the search", lambda: sqlite_store.experiments.page().items)
        [made] = sqlite_store.experiments.page().items
        sqlite_store.commands.add(made.id, "pause")
        held.clear()

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = tuner.run(train, SPACE, **WAYS, address=server, verbose=0)
    thread.join()
    assert result.state == "paused"
    more = result.add(num_samples=2, verbose=0)
    stop.set()
    driver.join(timeout=20)
    assert (more.state, len(more.trials)) == ("completed", 8)


def test_an_entrypoint_is_left_to_the_service(server: str, sqlite_store: Store, driver: None) -> None:
    with tuner.connect(server) as client:
        result = tuner.run("tests.api.trainables:train", SPACE, **WAYS, address=client, verbose=0)
        assert client.experiment(result.experiment_id).get().entrypoint == "tests.api.trainables:train"


def test_the_walk_of_the_examples(server: str, driver: None, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "service_client.py"))["main"](server)
    shown = capsys.readouterr().out
    assert "trial 0: start: " in shown
    assert "best accuracy 0." in shown
    assert "config/width" in shown


def test_mistakes_are_those_of_the_service(server: str) -> None:
    with pytest.raises(SpecError, match=r"scheduler\.reduction_factor"):
        tuner.run(train, SPACE, **{**WAYS, "scheduler": {"type": "asha", "reduction_factor": 1}}, address=server)


def test_what_cannot_be_sent_is_said(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Mine(tuner.FIFOScheduler):
        pass

    with pytest.raises(SpecError, match="scheduler: it is an object from your own code"):
        tuner.run(train, SPACE, **{**WAYS, "scheduler": Mine()}, address=server)
    with pytest.raises(SpecError, match="space: it has choices or functions that are Python objects"):
        tuner.run(train, {"act": tuner.choice([print, len])}, **WAYS, address=server)
    with pytest.raises(
        SpecError, match="trainable: the workers of the service have to read objects of tuner.with_parameters"
    ):
        tuner.run(tuner.with_parameters(lambda config, data: None, data=[1]), SPACE, **WAYS, address=server)
    with pytest.raises(SpecError, match="runtime_env: the workers of the service have to read local directories"):
        tuner.run(train, SPACE, **WAYS, runtime_env={"working_dir": str(tmp_path)}, address=server)
    large = bytearray(by_value.MAX_BYTES)
    with pytest.raises(SpecError, match="trainable: the pickled function is 10 MB, but a service takes at most 10 MB"):
        tuner.run(lambda config: len(large), SPACE, **WAYS, address=server)
    with pytest.raises(SpecError, match="closure variable 'lock'"):
        lock = threading.Lock()
        tuner.run(lambda config: lock.acquire(), SPACE, **WAYS, address=server)
    with tuner.connect(server) as client:
        assert list(client.experiments()) == []


def test_without_a_service_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client.__init__, "__kwdefaults__", {**Client.__init__.__kwdefaults__, "patience_s": 0.0})
    with pytest.raises(ServiceUnreachable):
        tuner.run(train, SPACE, **WAYS, address="http://127.0.0.1:9")


@pytest.mark.long  # the tests above have a real API, and tests/test_running_service.py a real driver
@pytest.mark.ray
@pytest.mark.slow
def test_on_a_real_service(tmp_path: Path) -> None:
    """The ranks of the service unpickle the function, and a viewer may not send one."""
    service = Service(tmp_path, f"sqlite:///{tmp_path / 'tuner.db'}", TUNER_AUTH="on")
    store = Store.open(f"sqlite:///{tmp_path / 'tuner.db'}")
    store.migrate()
    tokens = {role: store.access.create_token("ci", role)[0] for role in ("admin", "viewer", "editor")}  # type: ignore[arg-type]
    offset = 5.0

    def train(config: dict[str, Any]) -> None:
        for epoch in range(3):
            with contextlib.suppress(TypeError):
                tuner.report({"accuracy": offset - config["lr"] / (epoch + 1)}, checkpoint=lambda folder: None)

    service.start()
    try:
        address = str(service.client.base_url)
        with tuner.connect(address, token=tokens["viewer"]) as viewer, pytest.raises(NotAllowed, match="role editor"):
            tuner.run(train, SPACE, **WAYS, address=viewer)
        with tuner.connect(address, token=tokens["editor"]) as editor:
            result = tuner.run(train, SPACE, **WAYS, num_workers=2, resources_per_worker={"CPU": 0.5}, address=editor)
            assert result.state == "completed", result.error
            assert [trial.iterations for trial in result.trials] == [3] * 6
            assert result.best_value == pytest.approx(offset, abs=0.2)
            assert result.best_checkpoint is not None
            with result.best_checkpoint.as_directory() as folder:
                assert Path(folder).is_dir()
            more = result.add(num_samples=2)
            assert ([trial.iterations for trial in more.trials], more.state) == ([3] * 8, "completed")
    finally:
        service.end()
        service.stop()


class _Looks:
    """An experiment that has ended, and that a service takes up again only at the third look."""

    def __init__(self) -> None:
        self.looks = 0

    def get(self) -> SimpleNamespace:
        self.looks += 1
        running = 3 <= self.looks < 5
        state = ExperimentState.RUNNING if running else ExperimentState.COMPLETED
        return SimpleNamespace(state=state, last_event_seq=7 if self.looks < 3 else 7 + self.looks)


def test_the_end_from_before_more_trials_were_asked_for_is_not_their_end() -> None:
    looks = _Looks()
    assert [_is_over(cast(ExperimentHandle, looks), 7) for _ in range(5)] == [False] * 4 + [True]
