"""Working directories of ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tuner.domain.experiment import Scaling
from tuner.trials.messages.launch import CodeRef, Launch
from tuner.trials.runtime.function.directories import enter, explain_missing


def launch(folder: Path, **changes: object) -> Launch:
    return Launch(
        **{  # type: ignore[arg-type]
            "experiment_id": "e",
            "trial_id": "t",
            "segment_id": "s",
            "trial_number": 4,
            "code": CodeRef(hash="1", working_dir=str(folder)),
            "storage": "",
            "log_dir": str(folder / "logs"),
            **changes,
        }
    )


def test_each_rank_of_a_trial_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TUNE_ORIG_WORKING_DIR", raising=False)
    own = [enter(launch(tmp_path), rank) for rank in (0, 1)]
    assert os.environ["TUNE_ORIG_WORKING_DIR"] == str(tmp_path), "what scripts for Ray Tune ask for"
    assert own[0] != own[1]
    assert os.getcwd() == own[1]
    Path("kept").write_text("")
    assert enter(launch(tmp_path, segment_id="later"), 1) == own[1]
    assert Path("kept").exists()


def test_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNE_ORIG_WORKING_DIR", "")
    monkeypatch.chdir("/")
    own = enter(launch(tmp_path, scaling=Scaling(working_dir="caller")), 0)
    assert os.getcwd() == str(tmp_path)
    assert os.path.isdir(own)
    monkeypatch.chdir("/")
    enter(launch(tmp_path, scaling=Scaling(working_dir="caller"), runtime_env={"working_dir": "s3://x.zip"}), 0)
    assert os.getcwd() == "/", "where Ray has unpacked the directory"
    assert os.environ["TUNE_ORIG_WORKING_DIR"] == "/"


def test_a_relative_path_that_the_caller_has_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNE_ORIG_WORKING_DIR", str(tmp_path))
    (tmp_path / "data.csv").write_text("")
    (tmp_path / "plots").mkdir()
    cases = {"data.csv": True, "plots/new.png": True, "other.csv": False, "others/new.png": False, "/data.csv": False}
    for name, explained in cases.items():
        try:
            with Path(name).open("r+"):
                raise AssertionError(name)
        except FileNotFoundError as error:
            explain_missing(error)
            notes = getattr(error, "__notes__", [])
            assert bool(notes) is explained
            assert all("working_dir='caller'" in note for note in notes)
