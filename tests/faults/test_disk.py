"""The disk with the checkpoints becomes full in the middle of a search: a real file system of half a megabyte."""

from __future__ import annotations

import contextlib
import csv
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import tuner
from tests import invariants
from tests.store.examples import T0
from tests.web.searches import Search, digits
from tuner.cli.service.experiments import export
from tuner.domain.events import SegmentEnded
from tuner.domain.keys import trial_id
from tuner.errors import SpecError
from tuner.experiment.operations.trials import enqueue
from tuner.experiment.operations.verbs import act_on_trial
from tuner.settings import Settings
from tuner.store import Store
from tuner.trials.checkpoints import checkpoints
from tuner.trials.checkpoints.checkpoints import Checkpoint
from tuner.trials.checkpoints.saver import Saver
from tuner.trials.runtime.errors import describe

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks would import this module, with all that it imports

WEIGHTS = 50_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a file system")
    try:
        yield folder
    finally:
        tuner.shutdown()
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb") as file:
        while True:
            os.write(file.fileno(), bytes(4096))


def train(config: dict[str, Any]) -> None:
    """Train for six iterations. Once a checkpoint is whole, another program fills the disk.

    If the configuration says so, the next attempt makes room.
    """
    disk, name = Path(config["disk"]), tuner.get_context().get_trial_name()
    if config["makes_room"]:
        (disk / "filler").unlink(missing_ok=True)
    start = 0
    if (checkpoint := tuner.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            start = len(Path(folder, "weights").read_bytes()) - WEIGHTS

    for step in range(start, 6):
        if step == 3 and start == 0:
            while not list(disk.glob(f"storage/*/{name}/*.committed")):
                time.sleep(0.01)
            fill(disk)

        def save(folder: str, step: int = step) -> None:
            Path(folder, "weights").write_bytes(bytes(WEIGHTS + step + 1))

        tuner.report({"loss": 1.0 / (step + 1)}, checkpoint=save)


def search(disk: Path, makes_room: bool, **options: Any) -> tuner.Result:
    return tuner.run(
        train,
        {"disk": str(disk), "makes_room": makes_room},
        metric="loss",
        mode="min",
        max_t=6,
        scheduler="fifo",
        max_concurrent_trials=1,
        checkpoint={"frequency": 1},
        storage=str(disk / "storage"),
        executor="local",
        verbose=0,
        **options,
    )


def test_a_full_disk_fails_a_trial_in_words_and_it_goes_on_when_there_is_room(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    result = search(small_disk, makes_room=True, num_samples=2, max_failures=1)
    assert result.state == "completed", result.error
    assert [trial.iterations for trial in result.trials] == [6, 6]
    with Store.open(Settings.from_env().database_url) as store:
        record = store.experiments.get(result.experiment_id)
        ends = [entry for _, entry in store.drivers.load(record.id) if isinstance(entry, SegmentEnded)]
        for trial, segments in store.trials.segments(record.id).items():
            [failure] = [end.failure for end in ends if end.trial == trial and end.failure is not None]
            assert "No space left on device" in failure.message
            begin, again = [segment.start_iteration for segment in segments]
            assert begin == 0 < again < 6, "it continued from its newest checkpoint that was whole"
        kept = {row.uri for row in store.trials.checkpoints(record.id) if row.state == "ready"}
        assert list(invariants.broken(store, record)) == []
    assert all(checkpoints.is_committed(uri) for uri in kept)
    there = {str(path) for path in small_disk.glob("storage/*/trial_*/*") if path.is_dir()}
    assert there == kept, "nothing is left of the checkpoint that could not be saved"


def test_a_full_disk_pauses_a_search_without_retries_and_it_goes_on_when_there_is_room(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every trial failed, one after the other within seconds."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    result = search(small_disk, makes_room=False, num_samples=1)
    assert (result.state, [str(trial.state) for trial in result.trials]) == ("paused", ["pending"])
    assert "the experiment is paused, because a disk is full: trial 0, rank 0" in capsys.readouterr().err
    (small_disk / "filler").unlink()
    result = tuner.resume(result.experiment_id, verbose=0)
    assert result.state == "completed", result.error
    assert [trial.iterations for trial in result.trials] == [6]
    with Store.open(Settings.from_env().database_url) as store:
        record = store.experiments.get(result.experiment_id)
        begin, again = [segment.start_iteration for segment in store.trials.segments(record.id)[0]]
        assert begin == 0 < again < 6, "it continued from its newest checkpoint that was whole"
        assert list(invariants.broken(store, record)) == []


def leaves_its_share(config: dict[str, Any]) -> None:
    """Save a checkpoint, take the share with it away, as if it was not mounted any more, and fail. Then continue."""
    share, start = Path(config["share"]), 0
    if (checkpoint := tuner.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            start = int(Path(folder, "step").read_text())
    for step in range(start, 3):

        def save(folder: str, step: int = step) -> None:
            Path(folder, "step").write_text(str(step + 1))

        tuner.report({"loss": 1.0 / (step + 1)}, checkpoint=save)
        if start == 0:
            while not list(share.glob("storage/*/*/*.committed")):
                time.sleep(0.01)
            share.rename(share.with_name("elsewhere"))
            share.mkdir()
            raise RuntimeError("the machine starts again")


def test_a_share_that_is_not_mounted_pauses_the_search_instead_of_starting_its_trials_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All trials started over without a word, and the checkpoints on the share were given up."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    share = tmp_path / "share"
    result = tuner.run(
        leaves_its_share,
        {"share": str(share)},
        metric="loss",
        mode="min",
        max_t=3,
        scheduler="fifo",
        checkpoint={"frequency": 1},
        storage=str(share / "storage"),
        executor="local",
        num_samples=1,
        max_failures=1,
        verbose=0,
    )
    assert result.state == "paused"
    assert f"there is nothing in {share}/storage: is a disk or a share not mounted?" in capsys.readouterr().err
    share.rmdir()
    share.with_name("elsewhere").rename(share)
    result = tuner.resume(result.experiment_id, verbose=0)
    tuner.shutdown()
    assert (result.state, [trial.iterations for trial in result.trials]) == ("completed", [3])
    with Store.open(Settings.from_env().database_url) as store:
        record = store.experiments.get(result.experiment_id)
        starts = [segment.start_iteration for segment in store.trials.segments(record.id)[0]]
    assert starts == [0, 1, 1]


def saves(config: dict[str, Any]) -> None:
    """Save a checkpoint at the first report. Fail at the next one, unless the trial continues from a checkpoint."""
    start = 0 if tuner.get_checkpoint() is None else 1
    if not start:
        tuner.report({"loss": 1.0, "start": start}, checkpoint=lambda folder: Path(folder, "step").touch())
        assert not config["fails"], "it fails once"
    tuner.report({"loss": 0.5, "start": start})


@pytest.mark.long  # the test above has a single search
def test_a_share_that_is_not_mounted_is_noticed_although_another_search_has_saved_in_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All trials started over without a word, and the checkpoints on the share were given up."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    share = tmp_path / "share"
    options: dict[str, Any] = {
        "metric": "loss",
        "mode": "min",
        "scheduler": "fifo",
        "checkpoint": {"frequency": 1},
        "storage": str(share),
        "executor": "local",
        "num_samples": 1,
        "verbose": 0,
    }
    failed = tuner.run(saves, {"fails": True}, **options)
    assert failed.state == "failed"
    share.rename(tmp_path / "elsewhere")
    assert tuner.run(saves, {"fails": False}, **options).state == "completed"
    with Store.open(Settings.from_env().database_url) as store:
        act_on_trial(store, "retry", trial_id(failed.experiment_id, 0))
        enqueue(store, failed.experiment_id, [{}])  # it would save its checkpoints in the place of the share
    result = tuner.resume(failed.experiment_id, verbose=0)
    assert result.state == "paused"
    folder = share / failed.experiment_id
    assert f"there is no folder {folder}: is a disk or a share not mounted? If you" in capsys.readouterr().err
    assert not folder.exists()
    (tmp_path / "elsewhere" / failed.experiment_id).rename(folder)
    result = tuner.resume(failed.experiment_id, verbose=0)
    tuner.shutdown()
    assert [str(trial.state) for trial in result.trials][:2] == ["failed", "completed"]
    assert [row["start"] for row in result.trials[1].history][-1] == 1, "it continued from the checkpoint on the share"


def test_a_checkpoint_of_torch_that_finds_no_room_says_so(small_disk: Path) -> None:
    """It said only "unexpected pos 576 vs 534"."""
    import torch

    saver = Saver(
        storage=str(small_disk), segment_id="seg", trial_number=0, rank=0, world_size=1, committed=lambda info: None
    )
    with pytest.raises(RuntimeError) as raised:
        saver.take(lambda folder: torch.save(torch.zeros(200_000), Path(folder, "weights.pt")), 1, 1)
    described = describe(raised.value, "")
    assert described.cause == "disk_full"
    assert "No space left on device: 0 bytes are left on the disk of" in described.message


def test_a_write_that_finds_no_room_names_the_disk(small_disk: Path) -> None:
    """The error of a write has no path."""
    saver = Saver(
        storage=str(small_disk), segment_id="seg", trial_number=0, rank=0, world_size=1, committed=lambda info: None
    )
    with pytest.raises(OSError, match="No space left on device") as raised:
        saver.take(lambda folder: Path(folder, "weights").write_bytes(bytes(10**6)), 1, 1)
    assert f"0 bytes are left on the disk of {small_disk}" in describe(raised.value, "").message


def test_an_export_that_finds_no_room_names_its_folder_and_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    """`tuner export-model` ended with a traceback of the library that wrote the file."""
    import torch

    (tmp_path / "checkpoint").mkdir()
    torch.save({"weight": torch.zeros(200_000)}, tmp_path / "checkpoint" / "model.pt")
    with pytest.raises(tuner.TunerError, match=f"cannot write {small_disk}/exported: No space left on device"):
        tuner.export(Checkpoint(tmp_path / "checkpoint"), small_disk / "exported")
    assert list(small_disk.iterdir()) == []


def test_a_table_that_finds_no_room_leaves_the_earlier_one(
    small_disk: Path, tmp_path: Path, sqlite_store: Store
) -> None:
    """A nightly `tuner export NAME table.csv` had emptied the table of the day before."""
    result = Search(sqlite_store, digits("halved", 6), start=T0)
    result.advance()
    table = small_disk / "table.csv"
    table.write_text("yesterday")
    fill(small_disk)
    with pytest.raises(SpecError, match=f"cannot write {table}: No space left on device"):
        export(tuner.Result.load(sqlite_store, result.public_id), table, None, history=True)
    assert table.read_text() == "yesterday"
    (small_disk / "filler").unlink()
    export(tuner.Result.load(sqlite_store, result.public_id), table, None, history=True)
    assert table.read_text().startswith("trial,")
    assert list(small_disk.iterdir()) == [table]


def test_a_row_that_finds_no_room_is_no_part_of_the_next_one(small_disk: Path) -> None:
    logger = tuner.callbacks.CSVLoggerCallback(small_disk)
    logger.setup(folder=str(small_disk), name="n", experiment_id="e", metric="loss", mode="min")
    trial = tuner.callbacks.ObservedTrial(number=0, trial_id="t", experiment_id="e", config={}, params={})
    logger.on_trial_result(trial=trial, result={"loss": "x" * 4000}, event_seq=1)
    fill(small_disk)
    with pytest.raises(OSError, match="No space left on device"):
        logger.on_trial_result(trial=trial, result={"loss": "y" * 4000}, event_seq=2)
    (small_disk / "filler").unlink()
    logger.on_trial_result(trial=trial, result={"loss": "z"}, event_seq=3)
    with (small_disk / "trial_00000" / "progress.csv").open(newline="") as file:
        assert [(row["event_seq"], row["loss"][:2]) for row in csv.DictReader(file)] == [("1", "xx"), ("3", "z")]
