"""Searches with a slow storage: uploads go on after their trial's segment, and only what needs them waits."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import tuner
from tests.slow_storage import SlowStorage
from tuner.domain import decisions as d
from tuner.errors import StoreError
from tuner.sdk.callbacks import Callback
from tuner.settings import Settings
from tuner.store import Store

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks would import this module, with all that it imports


@pytest.fixture(autouse=True)
def _home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if "private_ray" in request.fixturenames:  # this Ray has the home of the tests that share it
        yield
        return
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    yield
    tuner.shutdown()


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowStorage]:
    storage = SlowStorage(tmp_path / "slow")
    yield storage
    storage.let_go()


def search(slow: SlowStorage, train: Any, **options: Any) -> Any:
    given = {"num_samples": 2, "max_concurrent_trials": 1, "scheduler": "fifo", "search_alg": "random"} | options
    return tuner.run(
        train, {"x": tuner.uniform(0, 1)}, metric="loss", mode="min", storage=slow.uri, verbose=0,
        **given,
    )  # fmt: skip


def entries() -> list[Any]:
    """Return the log of the newest experiment; an empty list if there is none yet."""
    with contextlib.suppress(StoreError), Store.open(Settings.from_env().database_url) as store:
        found = store.experiments.page().items
        return [entry for _, entry in store.drivers.load(found[0].id)] if found else []
    return []


def warnings() -> list[str]:
    return [entry.reason for entry in entries() if isinstance(entry, d.Note) and entry.warning]


def saves(config: dict[str, Any], slow: SlowStorage) -> None:
    """Report once, with a checkpoint. The first trial holds its own upload up, and the second one lets it go on."""
    from tests import slow_storage

    slow_storage.install()
    first = tuner.get_context().get_trial_number() == 0
    if not first:
        slow.let_go()
    tuner.report({"loss": 0.0 if first else 1.0}, checkpoint=lambda folder: Path(folder, "weights").write_text("w"))


def test_the_next_trial_starts_before_the_upload_has_ended(slow: SlowStorage) -> None:
    slow.hold("trial_00000")
    result = search(slow, lambda config: saves(config, slow), executor="local")
    assert [trial.state for trial in result.trials] == ["completed", "completed"], "the second one had to let it go on"
    assert result.best_trial.number == 0
    assert result.best_checkpoint is not None, "the search has waited for it"
    with result.best_checkpoint.as_directory() as folder:
        assert Path(folder, "weights").read_text() == "w"


@pytest.mark.ray
def test_trials_of_two_ranks_on_ray_do_not_wait_for_uploads_either(private_ray: Path, slow: SlowStorage) -> None:
    def shards(config: dict[str, Any]) -> None:
        from tests import slow_storage

        slow_storage.install()
        context = tuner.get_context()
        if context.get_trial_number():
            slow.let_go()
        rank = context.get_world_rank()
        tuner.report({"loss": 1.0}, checkpoint=lambda folder: Path(folder, f"rank{rank}").write_text("w"))

    slow.hold("trial_00000")
    result = search(slow, shards, num_workers=2, backend="none")
    assert [trial.state for trial in result.trials] == ["completed", "completed"]
    first = result.trials[0].checkpoint
    with first.as_directory() as folder:
        assert sorted(os.listdir(folder)) == ["rank0", "rank1"]


class _Fails(Callback):
    """Let the storage fail as soon as the second trial is complete."""

    def __init__(self, slow: SlowStorage) -> None:
        self._slow = slow

    def on_trial_complete(self, *, trial: Any, **info: Any) -> None:
        if trial.number == 1:
            self._slow.fail()


def test_an_upload_that_fails_after_its_trial_has_completed_is_named(slow: SlowStorage) -> None:
    def train(config: dict[str, Any]) -> None:
        if tuner.get_context().get_trial_number():
            tuner.report({"loss": 1.0})
        else:
            saves(config, slow)

    slow.hold("trial_00000")
    result = search(slow, train, executor="local", callbacks=[_Fails(slow)])
    assert [trial.state for trial in result.trials] == ["completed", "completed"]
    assert result.best_trial.number == 0
    assert result.best_checkpoint is None
    assert warnings() == [
        "the checkpoint of trial 0 at iteration 1 is lost: OSError: the bucket is gone; checkpoints cannot be written to "
        f"{slow.uri}/{result.experiment_id}"
    ]


def test_a_late_upload_that_fails_pauses_the_search_while_another_trial_runs(slow: SlowStorage, tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        if tuner.get_context().get_trial_number():
            slow.fail()
            while not (tmp_path / "paused").exists():
                time.sleep(0.01)
            tuner.report({"loss": 1.0})
        else:
            saves(config, slow)

    def note_the_pause() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and len(warnings()) < 2:
            time.sleep(0.02)
        (tmp_path / "paused").touch()

    slow.hold("trial_00000")
    watching = threading.Thread(target=note_the_pause)
    watching.start()
    result = search(slow, train, executor="local", num_samples=3)
    watching.join()
    assert result.state == "paused"
    assert [trial.number for trial in result.trials] == [0, 1], "no trial starts while the storage cannot be written"
    lost = "OSError: the bucket is gone; checkpoints cannot be written to "
    where = f"{slow.uri}/{result.experiment_id}"
    assert warnings() == [
        f"the checkpoint of trial 0 at iteration 1 is lost: {lost}{where}",
        "the experiment is paused, because the storage of the checkpoints cannot be used: trial 0: "
        f"{lost}{where}; repair it, then resume the experiment",
    ]


def test_an_upload_dies_with_its_process_and_is_named(slow: SlowStorage, tmp_path: Path) -> None:
    def dies_once(config: dict[str, Any]) -> None:
        died = tmp_path / "died"
        if tuner.get_context().get_trial_number() and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        saves(config, slow)

    slow.hold("trial_00000")
    result = search(slow, dies_once, executor="local", max_failures=1)
    assert [trial.state for trial in result.trials] == ["completed", "completed"]
    (said,) = warnings()
    assert said.startswith("the checkpoint of trial 0 at iteration 1 is lost: its worker process")


def test_an_exploit_waits_for_the_last_checkpoint_of_its_donor(slow: SlowStorage) -> None:
    def steps(config: dict[str, Any]) -> None:
        from tests import slow_storage

        slow_storage.install()
        begin = 0
        if (found := tuner.get_checkpoint()) is not None:
            with found.as_directory() as folder:
                begin = int(Path(folder, "step").read_text())
        for step in range(begin + 1, 7):
            loss = tuner.get_context().get_trial_number() + 1 / step
            tuner.report(
                {"loss": loss}, checkpoint=lambda folder, step=step: Path(folder, "step").write_text(str(step))
            )

    def let_go_once_it_waits() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not any(
            isinstance(entry, d.Pause) and entry.then is not None for entry in entries()
        ):
            time.sleep(0.02)
        slow.let_go()

    slow.hold("iteration_00000004")
    watching = threading.Thread(target=let_go_once_it_waits)
    watching.start()
    scheduler = tuner.PopulationBasedTraining(perturbation_interval=2, synch=True, quantile_fraction=0.5)
    result = search(slow, steps, executor="local", scheduler=scheduler, max_t=6)
    watching.join()
    assert [trial.state for trial in result.trials] == ["completed", "completed"]
    exploited = [entry for entry in entries() if isinstance(entry, d.Exploit)]
    begins = [segment.start_iteration for segment in result._segments[1] if segment.cause == "exploit"]
    assert [entry.donor for entry in exploited] == [0, 0]
    assert begins == [2, 4], "the donor's newest checkpoint, although an older one was there"
    assert warnings() == []
