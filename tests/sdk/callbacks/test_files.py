"""CSV files and TensorBoard have every report, once."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tuner
from tests.driver.stored import stored_simulation
from tests.sdk.callbacks.test_observers import observed, search
from tuner.domain.experiment import Objective, Spec
from tuner.sdk.callbacks.files import metrics_of
from tuner.space import Space
from tuner.store import Store

__all__ = ["search"]


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_csv_files_have_every_report(sqlite_store: Store, search: str, tmp_path: Path) -> None:
    assert observed(sqlite_store, search, tmp_path, tuner.callbacks.CSVLoggerCallback()) == []
    folder = tmp_path / "callbacks" / search / "csv"
    for trial in tuner.Result.load(sqlite_store, search).trials:
        found = rows(folder / f"trial_{trial.number:05}" / "progress.csv")
        assert [float(row["loss"]) for row in found] == [report["loss"] for report in trial.history]
        assert [int(row["training_iteration"]) for row in found] == list(range(1, trial.iterations + 1))
        assert json.loads((folder / f"trial_{trial.number:05}" / "params.json").read_text()) == trial.config


@pytest.mark.parametrize("end", ["on_trial_result", "on_trial_error"])
def test_csv_files_have_the_values_that_an_objective_draws_after_its_start(tmp_path: Path, end: str) -> None:
    """The file params.json of a trial of an Optuna objective was empty, or lacked the values drawn after the first ones."""
    callback: Any = tuner.callbacks.CSVLoggerCallback(tmp_path)
    callback.setup(folder=str(tmp_path), experiment_id="e")
    trial = tuner.callbacks.ObservedTrial(number=0, trial_id="t", experiment_id="e", config={}, params={})
    callback.on_trial_start(trial=trial)
    trial.config = {"x": 1.5, "kind": "a"}
    result = {"loss": 1.0, "training_iteration": 1, "timestamp": 1e9, "trial_id": "t"}
    getattr(callback, end)(trial=trial, result=result, event_seq=5)
    assert json.loads((tmp_path / "trial_00000" / "params.json").read_text()) == trial.config


def test_metrics_with_the_names_of_other_fields_are_kept_under_new_names(sqlite_store: Store, tmp_path: Path) -> None:
    """The metrics had been lost, and one called event_seq had taken the place of the numbers by which rows are found."""
    own = dict.fromkeys(("event_seq", "timestamp", "trial_id", "config"), 7.0)

    def train(config: dict[str, Any], checkpoint: Any) -> Any:
        for loss in (2.0, 1.0):
            yield tuner.Step({"loss": loss, **own, "config/x": 7.0})

    space = {"x": tuner.choice([3])}
    found = tuner.simulate(train, space, metric="loss", mode="min", num_samples=1, scheduler="fifo")
    form = Space.from_python(space).to_json()
    spec = Spec(name="own", space=form, objectives=(Objective("loss", "min"),), entrypoint="module:train")
    search = stored_simulation(found, spec, sqlite_store).public_id
    for _ in range(2):  # the second time from the beginning
        assert observed(sqlite_store, search, tmp_path, tuner.callbacks.CSVLoggerCallback(tmp_path)) == []
    [trial] = tuner.Result.load(sqlite_store, search).trials
    written = rows(tmp_path / "trial_00000" / "progress.csv")
    assert [row["loss"] for row in written] == ["2.0", "1.0"]
    assert int(written[0]["event_seq"]) < int(written[1]["event_seq"])
    for row in written:
        assert {row[f"metrics/{name}"] for name in own} == {"7.0"}
        assert row["trial_id"] == trial.id
    for history in (False, True):
        [*_, last] = tuner.Result.load(sqlite_store, search).dataframe(history).to_dict("records")
        assert (last["config/x"], last["metrics/config/x"]) == (3, 7.0)


def test_no_row_is_written_twice_after_a_kill(sqlite_store: Store, search: str, tmp_path: Path) -> None:
    folder = tmp_path / "csv"
    observed(sqlite_store, search, tmp_path / "first", tuner.callbacks.CSVLoggerCallback(folder))
    before = {path: path.read_bytes() for path in folder.glob("*/progress.csv")}
    torn = folder / "trial_00000" / "progress.csv"
    content = torn.read_bytes().splitlines(keepends=True)
    torn.write_bytes(b"".join(content[:3]) + content[3][:5])  # killed while it wrote the third row
    observed(sqlite_store, search, tmp_path / "second", tuner.callbacks.CSVLoggerCallback(folder))  # from the beginning
    assert {path: path.read_bytes() for path in folder.glob("*/progress.csv")} == before


def test_a_second_search_into_a_folder_writes_below_it(sqlite_store: Store, search: str, tmp_path: Path) -> None:
    folder, other = tmp_path / "logs", tuner.callbacks.CSVLoggerCallback(tmp_path / "logs")
    other.setup(folder=str(tmp_path), name="other", experiment_id="exp_other", metric="loss", mode="min")
    trial = tuner.callbacks.ObservedTrial(
        number=0, trial_id="of the other", experiment_id="exp_other", config={"x": 3}, params={"x": 3}
    )
    other.on_trial_start(trial=trial)
    result = {"loss": 1.0, "training_iteration": 1, "timestamp": 0.0, "trial_id": trial.trial_id}
    other.on_trial_result(trial=trial, result=result, event_seq=10**9)
    for _ in range(2):  # the second time, as after a resume
        assert observed(sqlite_store, search, tmp_path, tuner.callbacks.CSVLoggerCallback(folder)) == []
    for each in tuner.Result.load(sqlite_store, search).trials:
        found = rows(folder / search / f"trial_{each.number:05}" / "progress.csv")
        assert [float(row["loss"]) for row in found] == [report["loss"] for report in each.history]
    assert [row["trial_id"] for row in rows(folder / "trial_00000" / "progress.csv")] == [trial.trial_id]
    assert json.loads((folder / "trial_00000" / "params.json").read_text()) == {"x": 3}


def test_tensorboard_has_scalars_and_parameters(sqlite_store: Store, search: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    folder = tmp_path / "tb"
    assert observed(sqlite_store, search, tmp_path, tuner.callbacks.TBXLoggerCallback(folder)) == []
    for trial in tuner.Result.load(sqlite_store, search).trials:
        (events,) = (folder / f"trial_{trial.number:05}").glob("events.*")
        assert scalars(events) == [("loss", i + 1) for i in range(trial.iterations)]
        assert list((folder / f"trial_{trial.number:05}" / "hparams").glob("events.*"))


def scalars(path: Path) -> list[tuple[str, int]]:
    """Return (tag, step) of the scalars in a file of events, read as TensorBoard does: length, checksum, record, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    content, at, found = path.read_bytes(), 0, []
    while at < len(content):
        size = int.from_bytes(content[at : at + 8], "little")
        event: Any = Event.FromString(content[at + 12 : at + 12 + size])
        found += [(value.tag, event.step) for value in event.summary.value if value.HasField("simple_value")]
        at += 16 + size
    return found


def test_python_objects_in_a_configuration_have_the_same_text_in_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Addresses had come into the files, and into the runs of Weights & Biases."""
    config = {"act": rows, "data": [object()], "net": {"width": np.int64(3)}, "lr": 0.1, "bias": True, "seed": None}
    shown = {"act": "rows", "data": ["<object object>"], "net": {"width": 3}, "lr": 0.1, "bias": True, "seed": None}
    trial = tuner.callbacks.ObservedTrial(number=0, trial_id="t", experiment_id="e", config=config, params={})
    started: list[dict[str, Any]] = []

    def init(**given: Any) -> SimpleNamespace:
        started.append(given)
        return SimpleNamespace(define_metric=lambda name, step_metric: None)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    for callback in (tuner.callbacks.CSVLoggerCallback(), tuner.callbacks.WandbLoggerCallback()):
        callback.setup(folder=str(tmp_path), name="n", experiment_id="e", metric="loss", mode="min")
        callback.on_trial_start(trial=trial)
    assert json.loads((tmp_path / "csv" / "trial_00000" / "params.json").read_text()) == shown
    assert started[0]["config"] == shown


LOGGED = """
import sys
import tuner
for number in (1, 2):
    logger = tuner.callbacks.CSVLoggerCallback(sys.argv[1])
    logger.setup(folder=sys.argv[1], name="n", experiment_id="e", metric="loss", mode="min")
    trial = tuner.callbacks.ObservedTrial(number=0, trial_id="t", experiment_id="e", config={}, params={})
    logger.on_trial_result(trial=trial, result={"gr\\xf6\\xdfe": number}, event_seq=number)
"""


def test_a_csv_file_is_utf_8_in_any_locale(tmp_path: Path) -> None:
    """Each call of the logger failed in an ASCII locale if a metric had another character."""
    plain = {**os.environ, "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", LOGGED, str(tmp_path)]
    done = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trial_00000" / "progress.csv").read_bytes() == "event_seq,größe\r\n1,1\r\n2,2\r\n".encode()


def test_what_is_in_the_files_of_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callback: Any = tuner.callbacks.CSVLoggerCallback(tmp_path / "csv")
    trial = tuner.callbacks.ObservedTrial(number=0, trial_id="t", experiment_id="e", config={"x": 1}, params={})
    path = tmp_path / "csv" / "trial_00000" / "progress.csv"

    def report(seq: int, **metrics: float) -> None:
        result = {**metrics, "training_iteration": seq, "timestamp": 1.0, "trial_id": "t", "config": trial.config}
        callback.on_trial_result(trial=trial, result=result, event_seq=seq)

    for _ in range(2):  # as for two callbacks of one search
        callback.setup(folder=str(tmp_path), experiment_id="e")
        assert callback.folder == tmp_path / "csv"
    report(5, loss=0.5)
    report(6, accuracy=0.9)  # a column that the first report has not, and none of its own
    report(6, loss=0.1)
    lines = ["event_seq,loss,training_iteration,timestamp,trial_id", "5,0.5,5,1.0,t", "6,,6,1.0,t"]
    assert path.read_text().splitlines() == lines

    def full(self: object, row: object) -> None:
        with open(path, "a") as file:
            file.write("7,0.")
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="no space"):
        patched.setattr(csv.DictWriter, "writerow", full)
        report(7, loss=0.25)
    report(8, loss=0.125)
    assert path.read_text().splitlines() == [*lines, "8,0.125,8,1.0,t"], "the part of a row is removed"

    for event in ("on_trial_restore", "on_trial_complete", "on_trial_error"):
        trial.config = {"changed": event}
        getattr(callback, event)(trial=trial)
        assert json.loads((path.parent / "params.json").read_text()) == trial.config

    callback.setup(folder=str(tmp_path), experiment_id="e")  # the same search goes on
    report(8, loss=9.0)
    assert len(path.read_text().splitlines()) == 4
    callback.setup(folder=str(tmp_path), experiment_id="other")  # whose log is counted from 1, too
    report(3, loss=9.0)
    below = tmp_path / "csv" / "other" / "trial_00000"
    assert len((below / "progress.csv").read_text().splitlines()) == 2
    assert (below / "params.json").exists()
    (tmp_path / "csv" / "experiment.txt").unlink()
    callback.setup(folder=str(tmp_path), experiment_id="third")
    assert callback.folder == tmp_path / "csv" / "third", "nobody knows whose files these are"


def test_metrics_are_finite_numbers() -> None:
    result = {"loss": 1, "gap": math.inf, "rate": math.nan, "training_iteration": 2, "trial_id": "t", "config": {}}
    assert metrics_of(result) == {"loss": 1}
