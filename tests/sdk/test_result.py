"""The result of `tuner.run`."""

from __future__ import annotations

import dataclasses
import functools
import math
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import tuner
from tests.driver.bench import Bench
from tests.driver.core.state.test_leaderboard import CONSTRAINED, exploit
from tests.driver.stored import stored
from tests.store.examples import T0, a_report, begin
from tuner.domain.batch import Batch
from tuner.domain.events import Amended, CheckpointInfo, Failure
from tuner.domain.experiment import Objective
from tuner.domain.states import ExperimentState, TrialState
from tuner.errors import CheckpointError, SpecError, TrialError
from tuner.sdk.result import Result
from tuner.sdk.trial_result import TrialResult
from tuner.space import Space
from tuner.store import Store
from tuner.trials.checkpoints import transfer

NODE = "5f" * 28


def won_by(store: Store, info: CheckpointInfo) -> Result:
    """Return the result of an experiment whose best trial has this checkpoint."""
    made, epoch, trials = begin(store)
    best = {"trial_number": 0, "value": 0.5, "iteration": info.step, "params": {"lr": 0.01}, "checkpoint_id": info.id}
    report = dataclasses.replace(a_report(0, info.step), checkpoint=info)
    trials[0].checkpoint = info
    store.drivers.commit(made.id, epoch, Batch(log=[(4, report)], trials=trials, summary={"best": best}), T0)
    return Result.load(store, made.public_id)


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

    monkeypatch.setattr(transfer, "fetch", fetch)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with result.best_checkpoint.as_directory() as folder:
        assert Path(folder, "from").read_text() == f"{info.uri} {NODE}"


def test_without_that_ray_the_error_names_the_node(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    result = won_by(sqlite_store, elsewhere(tmp_path))
    assert result.best_checkpoint is not None
    with (
        pytest.raises(CheckpointError, match=f"on the disk of node {NODE[:8]}, which can be read only from a process"),
        result.best_checkpoint.as_directory(),
    ):
        pass


def test_each_trial_has_its_newest_checkpoint(sqlite_store: Store, tmp_path: Path) -> None:
    info = CheckpointInfo(id="ckp_1", uri=str(tmp_path), step=2)
    (trial,) = won_by(sqlite_store, info).trials
    assert trial.checkpoint is not None
    assert (trial.checkpoint.info, trial.checkpoint.path) == (info, str(tmp_path))
    assert dataclasses.replace(trial, iterations=7).iteration == 7, "the name that trials have in tuner.simulate"


def diverges(config: dict[str, Any], data: None) -> float:
    return float("nan")


def test_a_search_without_output_says_that_it_found_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    options: dict[str, Any] = {"metric": "loss", "mode": "min", "num_samples": 2, "executor": "local", "verbose": 0}
    result = tuner.run(functools.partial(diverges, data=None), {"x": tuner.uniform(0, 1)}, **options)
    assert (result.state, result.best_config, result.name) == ("completed", None, "diverges")
    assert capfd.readouterr().err.startswith("warning: the search has no best trial: no trial reported a finite 'loss'")
    tuner.run(lambda config: 1.0, {"x": tuner.uniform(0, 1)}, **options)
    assert capfd.readouterr().err == ""
    tuner.shutdown()


def test_a_trial_that_an_earlier_version_has_pickled_can_be_read(sqlite_store: Store, tmp_path: Path) -> None:
    """A pickle has the values of the fields in their order, without their names, and that version had no `waiting`."""
    trial = dataclasses.replace(won_by(sqlite_store, elsewhere(tmp_path)).trials[0], waiting="for a GPU")
    assert pickle.loads(pickle.dumps(trial)).waiting == "for a GPU"
    names = [one.name for one in dataclasses.fields(trial)]
    read = object.__new__(TrialResult)
    read.__setstate__([getattr(trial, name) for name in names if name != "waiting"])
    assert (read.repeat_of, read.history, read.waiting) == (trial.repeat_of, trial.history, None)
    assert read == dataclasses.replace(trial, waiting=None)


def test_a_result_that_an_earlier_version_has_pickled_can_be_plotted(sqlite_store: Store, tmp_path: Path) -> None:
    """An earlier version did not store which parameters the training code had asked for."""
    result = won_by(sqlite_store, elsewhere(tmp_path))
    del result._draws
    with pytest.raises(SpecError, match="parameter importance needs parameters"):
        pickle.loads(pickle.dumps(result)).plot("importance")


def test_what_other_libraries_results_have_is_named(sqlite_store: Store, tmp_path: Path) -> None:
    result = won_by(sqlite_store, elsewhere(tmp_path))
    with pytest.raises(AttributeError, match=r"a Result has no 'get_best_result'; it has best_trial, best_config"):
        result.get_best_result()
    with pytest.raises(AttributeError, match=r"a Result has no 'get_dataframe'; it has dataframe\(\)"):
        result.get_dataframe()
    with pytest.raises(AttributeError, match=r"a trial of a Result has no 'user_attrs'; it has notes"):
        _ = result.trials[0].user_attrs
    with pytest.raises(
        AttributeError, match=r"a trial of a Result has no 'best_checkpoints'; it has checkpoint, the newest"
    ):
        _ = result.trials[0].best_checkpoints
    with pytest.raises(AttributeError, match=r"a trial of a Result has no 'last_result'; it has metrics"):
        _ = result.trials[0].last_result
    with pytest.raises(AttributeError, match=r"a trial of a Result has no 'intermediate_values'; it has history"):
        _ = result.trials[0].intermediate_values
    with pytest.raises(AttributeError, match=r"a Result has no 'num_terminated'; it has trials, each with its state"):
        _ = result.num_terminated
    assert not hasattr(result, "trails")
    for ask in (lambda: result[0], lambda: list(result)):
        with pytest.raises(TypeError, match=r"its trials are in result\.trials"):
            ask()


def test_the_best_configuration_is_that_of_the_best_report_and_not_a_later_one(sqlite_store: Store) -> None:
    bench = Bench()
    exploit(bench)
    first = dict(bench.core.trials[0].segments[0].params)
    bench.core.trials[0].segments.pop()
    result = Result.load(sqlite_store, stored(bench, sqlite_store).public_id)
    assert (result.best_value, result.best_config) == (0.1, first)
    assert (result.trials[0].config, result.trials[0].best_config) == ({"x": 0.9}, first)


def test_the_frame_of_all_reports_has_the_configuration_with_which_each_was_trained(sqlite_store: Store) -> None:
    bench = Bench()
    exploit(bench)
    first = bench.core.trials[0].segments[0].params["x"]
    assert first != 0.9
    result = Result.load(sqlite_store, stored(bench, sqlite_store).public_id)
    assert result.dataframe(history=True)["config/x"].tolist() == [first]
    assert result.dataframe()["config/x"].tolist()[0] == 0.9, "the last one"


def test_configurations_have_the_constants_of_the_space_from_which_the_trial_is(sqlite_store: Store) -> None:
    """The best one, and those in the frame of all reports, had those of the newest space."""
    bench = Bench(num_samples=1, space={"x": tuner.uniform(0, 1), "optimizer": "sgd"})
    bench.started(0)
    bench.reported(0)
    space = Space.from_python({"x": tuner.uniform(0, 1), "optimizer": "adam"}).to_json()
    changes = {"space": space, "former_spaces": [bench.spec.space], "assumed": {}}
    bench.feed(Amended(time=bench.tick(), changes=changes))
    bench.spec = bench.core.spec
    result = Result.load(sqlite_store, stored(bench, sqlite_store).public_id)
    for history in (False, True):
        assert result.dataframe(history)["config/optimizer"].tolist() == ["sgd"]
    assert result.best_config == result.trials[0].best_config == result.trials[0].config


def test_a_printed_result_shortens_a_long_constant(sqlite_store: Store) -> None:
    """It was printed in full, which hid the rest."""
    for text, shown in (("sgd", "'text': 'sgd'}"), ("n" * 10_000, f"text={'n' * 37}...")):
        bench = Bench(num_samples=1, space={"x": tuner.uniform(0, 1), "text": text})
        bench.started(0)
        bench.reported(0)
        assert repr(Result.load(sqlite_store, stored(bench, sqlite_store).public_id)).endswith(f"{shown})")


def test_feasibility_is_a_column_of_the_frame(sqlite_store: Store) -> None:
    bench = Bench(**CONSTRAINED)
    for number, size in ((0, 1.0), (1, 0.2)):
        bench.started(number)
        bench.reported(number, 0.1 + number, size=size)
    bench.reported(1, 0.3, size=0.4)
    result = Result.load(sqlite_store, stored(bench, sqlite_store).public_id)
    assert result.best_trial is result.trials[1]
    assert (result.best_value, result.trials[1].best_iteration) == (1.1, 1)
    frame = result.dataframe()
    assert frame["feasible"].tolist() == [False, True]
    assert frame["best_value"].tolist() == [0.1, 1.1]
    assert result.dataframe(history=True)["feasible"].tolist() == [False, True, False]
    plain = Result.load(sqlite_store, stored(Bench(), sqlite_store).public_id)
    assert "feasible" not in plain.dataframe()


def test_metrics_with_the_names_of_fields_replace_no_field(sqlite_store: Store) -> None:
    names = ("trial", "state", "reason", "time", "segment", "training_iteration", "feasible")
    values = dict.fromkeys(names, 77.0)
    bench = Bench(**CONSTRAINED)
    bench.started(0)
    bench.reported(0, 0.1, size=1.0, **values)
    result = Result.load(sqlite_store, stored(bench, sqlite_store).public_id)
    (report,) = result.trials[0].history
    assert (report["training_iteration"], report["segment"], report["time"] != 77.0) == (1, 1, True)
    assert {report[f"metrics/{name}"] for name in ("time", "segment", "training_iteration")} == {77.0}
    row = result.dataframe().to_dict("records")[0]
    assert (row["trial"], row["state"], row["feasible"]) == (0, "running", False)
    assert row["reason"] != 77.0
    assert {row[f"metrics/{name}"] for name in ("trial", "state", "reason", "feasible")} == {row["time"]} == {77.0}
    (row,) = result.dataframe(history=True).to_dict("records")
    assert (row["trial"], row["state"], row["training_iteration"], row["feasible"]) == (0, "running", 1, False)
    assert {row[f"metrics/{name}"] for name in names if name != "reason"} == {row["reason"]} == {77.0}


def test_the_frame_of_a_long_search_takes_time_linear_in_its_trials(sqlite_store: Store) -> None:
    """Each row had looked at all trials, which took over half a minute for 8,000."""

    class Counted(list[TrialResult]):
        walks = 0

        def __iter__(self) -> Iterator[TrialResult]:
            self.walks += 1
            return super().__iter__()

    result = Result.load(sqlite_store, stored(Bench(), sqlite_store).public_id)
    trials = result.trials = Counted(result.trials * 4)  # type: ignore[assignment]
    assert len(result.dataframe()) == 8
    assert trials.walks < 3


def test_an_objective_with_the_name_of_a_field_is_drawn(sqlite_store: Store) -> None:
    pytest.importorskip("plotly")
    bench = Bench(objectives=(Objective("time", "max"),))
    bench.started(0)
    for value in (3.0, 2.0):
        bench.reported(0, 0.1, time=value)
    result = Result.load(sqlite_store, stored(bench, sqlite_store).public_id)
    (line,) = result.plot("curves").data
    assert list(line.y) == [3.0, 2.0]


def test_the_result_knows_the_best_trial_that_was_trained_to_its_end(sqlite_store: Store) -> None:
    bench = Bench(max_t=2)
    bench.started(0)
    bench.started(1)
    bench.reported(1, 0.1)
    assert Result.load(sqlite_store, stored(bench, sqlite_store).public_id).best_finished is None
    bench.reported(0, 0.4)
    bench.reported(0, 0.5)
    result = Result.load(sqlite_store, stored(bench, sqlite_store).public_id)
    assert (result.best_trial, result.best_value) == (result.trials[1], 0.1)
    assert (result.best_finished, result.best_finished_value) == (result.trials[0], 0.5)


def test_a_search_without_any_finite_value_says_why_it_has_no_result(sqlite_store: Store) -> None:
    bench = Bench(num_samples=1)
    bench.started(0)
    bench.reported(0, math.nan)
    bench.ended(0)
    result = Result.load(sqlite_store, stored(bench, sqlite_store).public_id)
    assert (result.state, result.best_trial) == ("completed", None)
    assert result.error == "no trial reported a finite 'loss': 1 trial reported NaN or infinity, first at iteration 1"


def test_reading_results_needs_no_ray() -> None:
    check = "import sys; import tuner.sdk.result, tuner.trials.checkpoints.checkpoints; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_the_errors_of_failed_trials_can_be_raised(sqlite_store: Store) -> None:
    made, epoch, trials = begin(sqlite_store, 2)
    failure = Failure(kind="user", cause="exception", message="KeyError: 'x'", rank=1, node="n1", traceback="File a.py")
    trials[0].state = TrialState.COMPLETED
    trials[1].state, trials[1].failure, trials[1].reason = TrialState.FAILED, failure, failure.headline(1)
    end = Batch(log=[], trials=trials, state=ExperimentState.FAILED, summary={"error": "1 of 2 trials failed"})
    sqlite_store.drivers.commit(made.id, epoch, end, T0)
    result = Result.load(sqlite_store, made.public_id)
    [error] = result.errors
    assert (result.num_errors, error.failure, "File a.py" in error.__notes__) == (1, failure, True)
    assert "(1 failed)" in repr(result)
    with pytest.raises(TrialError, match="has no best trial: 1 of 2 trials failed") as caught:
        _ = result.best
    assert caught.value.__cause__ is error
    assert "trial 1, rank 1 on n1: KeyError: 'x'" in str(error)


def test_the_best_trial_is_returned_by_its_other_name(sqlite_store: Store, tmp_path: Path) -> None:
    result = won_by(sqlite_store, elsewhere(tmp_path))
    assert result.best is result.best_trial
