"""What `tuner.run` gives back."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from tests.store.examples import T0, a_report, begin
from tuner.domain.batch import Batch
from tuner.domain.events import CheckpointInfo
from tuner.errors import CheckpointError
from tuner.result import Result
from tuner.store import Store
from tuner.trials import travel

NODE = "5f" * 28


def won_by(store: Store, info: CheckpointInfo) -> Result:
    """Of an experiment whose best trial has this checkpoint."""
    made, epoch, trials = begin(store)
    best = {"trial_number": 0, "value": 0.5, "iteration": info.step, "params": {"lr": 0.01}, "checkpoint_id": info.id}
    report = dataclasses.replace(a_report(0, info.step), checkpoint=info)
    trials[0].checkpoint = info
    store.commit(made.id, epoch, Batch(log=[(4, report)], trials=trials, summary={"best": best}), T0)
    return Result(store, made.public_id)


def elsewhere(tmp_path: Path) -> CheckpointInfo:
    return CheckpointInfo(id="ckp_1", uri=str(tmp_path / "not" / "here"), step=2, bytes=9, node=NODE)


def test_a_best_checkpoint_on_the_disk_of_another_node_is_fetched(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = elsewhere(tmp_path)
    result = won_by(sqlite_store, info)
    assert result.best_checkpoint is not None
    assert result.best_checkpoint.info == info

    def fetch(uri: str, node: str, target: str) -> None:
        Path(target).mkdir(parents=True, exist_ok=True)
        Path(target, "from").write_text(f"{uri} {node}")

    monkeypatch.setattr(travel, "fetch", fetch)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with result.best_checkpoint.as_directory() as folder:
        assert Path(folder, "from").read_text() == f"{info.uri} {NODE}"


def test_without_that_ray_the_error_names_the_node(sqlite_store: Store, tmp_path: Path) -> None:
    result = won_by(sqlite_store, elsewhere(tmp_path))
    assert result.best_checkpoint is not None
    with (
        pytest.raises(CheckpointError, match=f"on the disk of node {NODE[:8]}, which only a process connected to that"),
        result.best_checkpoint.as_directory(),
    ):
        pass


def test_each_trial_has_its_newest_checkpoint(sqlite_store: Store, tmp_path: Path) -> None:
    info = CheckpointInfo(id="ckp_1", uri=str(tmp_path), step=2)
    (trial,) = won_by(sqlite_store, info).trials
    assert trial.checkpoint is not None
    assert (trial.checkpoint.info, trial.checkpoint.path) == (info, str(tmp_path))


def test_what_other_libraries_results_have_is_named(sqlite_store: Store, tmp_path: Path) -> None:
    result = won_by(sqlite_store, elsewhere(tmp_path))
    with pytest.raises(AttributeError, match=r"a Result has no 'get_best_result'; it has best_trial, best_config"):
        result.get_best_result()
    with pytest.raises(AttributeError, match=r"a Result has no 'get_dataframe'; it has dataframe\(\)"):
        result.get_dataframe()
    with pytest.raises(AttributeError, match=r"a trial of a Result has no 'user_attrs'; it has notes"):
        _ = result.trials[0].user_attrs
    assert not hasattr(result, "trails")
    for ask in (lambda: result[0], lambda: list(result)):
        with pytest.raises(TypeError, match=r"its trials are in result\.trials"):
            ask()


def test_reading_results_needs_no_ray() -> None:
    check = "import sys; import tuner.result, tuner.trials.checkpoints; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)
