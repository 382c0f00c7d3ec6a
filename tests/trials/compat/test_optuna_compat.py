"""An objective's `trial`, against a session and a driver in memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.artifacts import FileSystemArtifactStore, upload_artifact
from optuna.distributions import json_to_distribution
from optuna.terminator.erroreval import report_cross_validation_scores

from tuner.domain.events import CheckpointInfo
from tuner.domain.experiment import Mode
from tuner.domain.segments import Report, Verdict
from tuner.errors import EntrypointError, OutsideTrial, TunerError, WrongArgument
from tuner.trials.compat.optuna_compat import Objective, Trial
from tuner.trials.training import driver_calls, session
from tuner.trials.training.session import Context, LeaveTrial, Session


class Driver:
    """Stands for the driver that a rank reports to and asks."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.verdicts: dict[int, Verdict] = {}
        self.notes: dict[str, Any] = {}
        self.asked: list[str] = []
        self.ended: list[str] = []

    def put(self, message: Report) -> None:
        self.reports.append(message)

    def ask(self, message: Report) -> Verdict:
        self.reports.append(message)
        return self.verdicts.get(message.report_no, Verdict(next_milestone=message.report_no + 1))

    def take(self, source: Any, report_no: int, iteration: int, *, at_end: bool = False) -> CheckpointInfo | None: ...

    def passed(self, report_no: int) -> None: ...

    def draw(self, name: str, distribution: str) -> Any:
        self.asked.append(name)
        wanted: Any = json_to_distribution(distribution)
        return wanted.choices[-1] if hasattr(wanted, "choices") else wanted.high

    def note(self, notes: dict[str, Any]) -> None:
        self.notes |= notes

    def end(self, reason: str) -> None:
        self.ended.append(reason)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    driver = Driver()
    context = Context(
        experiment_id="e",
        trial_id="t",
        trial_number=5,
        segment_id="s",
        world_size=1,
        world_rank=0,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
    )
    monkeypatch.setattr(driver_calls, "_here", driver)
    session.activate(Session(context, reports=driver, peers=None, saver=driver))
    yield driver
    session.activate(None)


def trial(config: dict[str, Any] | None = None, metrics: tuple[str, ...] = ("loss",)) -> Trial:
    here = session.current()
    assert here is not None
    return Trial(here, config or {}, metrics)


def test_suggestions_are_asked_for_once_and_come_in_their_types(driver: Driver) -> None:
    t = trial()
    assert t.suggest_float("lr", 1e-5, 1.0, log=True) == 1.0
    assert t.suggest_int("n", 2, 8, step=2) == 8
    assert isinstance(t.suggest_int("n", 2, 8, step=2), int)
    assert t.suggest_categorical("kind", ["a", None]) is None
    assert t.suggest_uniform("u", 0, 2) == 2.0
    assert t.suggest_loguniform("v", 1, 2) == 2.0
    assert t.suggest_discrete_uniform("w", 0, 2, 0.5) == 2.0
    assert driver.asked == ["lr", "n", "kind", "u", "v", "w"]
    assert t.params["n"] == 8
    assert set(t.distributions) == set(driver.asked)
    assert t.number == 5


def test_a_name_stands_for_one_parameter_as_in_optuna(driver: Driver) -> None:
    t = trial({"given": 0.25})
    for name in ("x", "given"):
        t.suggest_float(name, 0, 1)
        for other in (
            lambda name=name: t.suggest_int(name, 0, 8),
            lambda name=name: t.suggest_categorical(name, ["a"]),
        ):
            with pytest.raises(ValueError, match="Cannot set different distribution kind"):
                other()
    t.suggest_categorical("kind", ["a", "b"])
    with pytest.raises(ValueError, match="dynamic value space"):
        t.suggest_categorical("kind", ["a", "c"])
    assert isinstance(t.distributions["x"], optuna.distributions.FloatDistribution)


def test_a_suggestion_that_failed_leaves_nothing_behind(driver: Driver) -> None:
    t = trial({"given": 0.25})
    with pytest.raises(WrongArgument, match="which is outside"):
        t.suggest_float("given", 1, 2)
    assert t.distributions == t.params == {}
    assert t.suggest_categorical("given", [0.25, 0.5]) == 0.25


def test_what_the_space_has_fixed_is_not_asked_for(driver: Driver) -> None:
    t = trial({"lr": 0.25, "nested": {"x": 1}})
    assert t.suggest_float("lr", 0, 1) == 0.25
    assert t.suggest_float("nested", 0, 1) == 1.0
    assert driver.asked == ["nested"]
    with pytest.raises(WrongArgument, match=r"lr is 0.25 in this trial, which is outside"):
        trial({"lr": 0.25}).suggest_float("lr", 1, 2)


def test_choices_that_could_not_be_stored_are_refused(driver: Driver) -> None:
    with pytest.raises(EntrypointError, match=r"choice \[1\] of layers"):
        trial().suggest_categorical("layers", [[1], [2]])  # type: ignore[list-item]


def test_reports_once_a_step(driver: Driver) -> None:
    t = trial()
    t.report(1.0, 0)
    t.report(9.0, 0)
    t.report(0.5, 1)
    assert [(m.metrics, m.step) for m in driver.reports] == [({"loss": 1.0}, 0), ({"loss": 0.5}, 1)]
    assert not t.should_prune()


def test_a_stopped_trial_learns_it_from_should_prune(driver: Driver) -> None:
    driver.verdicts[1] = Verdict(action="stop", reason="cut")
    seen: list[str] = []

    def objective(trial: optuna.Trial) -> float:
        trial.report(1.0, 0)
        assert trial.should_prune()
        seen.append("cleaned up")
        raise optuna.TrialPruned

    with pytest.raises(LeaveTrial, match="cut"):
        Objective(objective, ("loss",))({})
    assert seen == ["cleaned up"]
    assert driver.ended == []


@pytest.mark.parametrize("goes_on", ["report", "return"])
def test_a_completed_trial_is_not_pruned(driver: Driver, goes_on: str) -> None:
    driver.verdicts[2] = Verdict(action="stop", reason="reached max_t", completed=True)
    seen: list[bool] = []

    def objective(trial: optuna.Trial) -> float:
        for step in range(3 if goes_on == "report" else 2):
            trial.report(1.0, step)
            seen.append(trial.should_prune())
        return 1.0

    with pytest.raises(LeaveTrial, match="reached max_t"):
        Objective(objective, ("loss",))({})
    assert seen == [False, False]
    assert len(driver.reports) == 2


@pytest.mark.parametrize("goes_on", ["report", "return"])
def test_an_objective_that_does_not_look_leaves_all_the_same(driver: Driver, goes_on: str) -> None:
    driver.verdicts[1] = Verdict(action="stop")

    def objective(trial: optuna.Trial) -> float:
        trial.report(1.0, 0)
        if goes_on == "report":
            trial.report(0.5, 1)
            raise AssertionError("it should have left")
        return 0.5

    with pytest.raises(LeaveTrial):
        Objective(objective, ("loss",))({})
    assert len(driver.reports) == 1


def test_a_pause_leaves_at_once(driver: Driver) -> None:
    driver.verdicts[1] = Verdict(action="pause")
    with pytest.raises(LeaveTrial, match="pause"):
        trial().report(1.0, 0)


def test_an_objective_that_prunes_itself(driver: Driver) -> None:
    def objective(trial: optuna.Trial) -> float:
        raise optuna.TrialPruned("no memory")

    Objective(objective, ("loss",))({})
    assert driver.ended == ["because the objective raised TrialPruned: no memory"]


def test_the_returned_value_is_the_last_report(driver: Driver) -> None:
    def objective(trial: optuna.Trial) -> float:
        trial.report(1.0, 0)
        return 0.5

    Objective(objective, ("loss",))({})
    assert [(m.metrics, m.last) for m in driver.reports] == [({"loss": 1.0}, False), ({"loss": 0.5}, True)]


def test_several_values(driver: Driver) -> None:
    Objective(lambda trial: (1, 2.5), ("a", "b"))({})
    assert [m.metrics for m in driver.reports] == [{"a": 1.0, "b": 2.5}]
    with pytest.raises(NotImplementedError, match="multi-objective"):
        trial(metrics=("a", "b")).report(1.0, 0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "returned None, which is not a number"),
        ("good", "returned 'good'"),
        ((1.0, 2.0), "returned 2 values for the 1 objective loss"),
    ],
)
def test_what_is_no_result_is_named(driver: Driver, value: Any, message: str) -> None:
    with pytest.raises(WrongArgument, match=message):
        Objective(lambda trial: value, ("loss",))({})


def test_user_attributes_are_kept(driver: Driver) -> None:
    t = trial()
    t.set_user_attr("classes", [1, 2])
    t.set_user_attr("worst", float("inf"))
    t.set_user_attr("counts", {"all": np.int64(3)})
    t.set_constraint("size", 3)
    assert driver.notes == {"classes": [1, 2], "worst": "inf", "counts": {"all": 3}, "constraint/size": 3.0}
    t.set_user_attr("scores", {"f1": float("nan"), "all": np.array([1.0, -np.inf])})  # it had failed the trial
    assert driver.notes["scores"] == {"f1": "nan", "all": [1.0, "-inf"]}
    assert t.user_attrs["classes"] == [1, 2]
    assert t.constraints == {"size": 3.0}
    with pytest.raises(WrongArgument, match="'model' must be JSON"):
        t.set_user_attr("model", object())


@pytest.mark.filterwarnings("ignore::FutureWarning")  # Optuna will remove its terminator
def test_helpers_of_optuna_keep_what_they_keep_with_the_trial(driver: Driver, tmp_path: Path) -> None:
    t = trial()
    report_cross_validation_scores(t, np.array([0.5, 0.75]))  # type: ignore[arg-type]
    assert driver.notes == {"terminator:cv_scores": [0.5, 0.75]}
    (tmp_path / "plot.txt").write_text("a picture")
    store = FileSystemArtifactStore(str(tmp_path))
    name = upload_artifact(artifact_store=store, file_path=str(tmp_path / "plot.txt"), study_or_trial=t)
    assert (tmp_path / name).read_text() == "a picture"
    assert json.loads(driver.notes[f"artifacts:{name}"])["filename"] == "plot.txt"
    with pytest.raises(AttributeError, match=r"no Optuna storage here, so there is no get_trial: tuner.run stores"):
        t.storage.get_trial(0)


def test_the_wrapper_for_several_ranks_is_the_trial_itself(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank has its trial here: that of Optuna's integration, which wants None on all ranks but one, is not needed."""
    folder = tmp_path / "optuna_integration" / "pytorch_distributed"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").write_text("from .pytorch_distributed import TorchDistributedTrial")
    (folder / "pytorch_distributed.py").write_text(
        "class TorchDistributedTrial:\n"
        "    def __init__(self, trial, group=None):\n"
        "        if trial is not None:\n"
        "            raise ValueError('Non-rank 0 node is supposed to receive None')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[Any] = []

    def objective(single_trial: Any) -> float:
        from optuna_integration.pytorch_distributed import TorchDistributedTrial  # type: ignore[import-not-found]

        wrapped = TorchDistributedTrial(single_trial, group=None)
        assert wrapped is single_trial
        assert TorchDistributedTrial(None) is not None
        seen.append(wrapped)
        return 1.0

    for _ in range(2):  # the second time in the same process
        Objective(objective, ("loss",))({})
    assert all(isinstance(t, optuna.Trial) for t in seen)
    for name in [name for name in sys.modules if name.startswith("optuna_integration")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_study_has_the_directions_that_callbacks_compare(driver: Driver, mode: Mode) -> None:
    """LightGBMPruningCallback asks for them. Its trials failed with "there is no optuna.Study here"."""
    here = session.current()
    assert here is not None
    here.modes = (mode,)
    study = trial().study
    assert (
        study.direction
        is {"min": optuna.study.StudyDirection.MINIMIZE, "max": optuna.study.StudyDirection.MAXIMIZE}[mode]
    )
    with pytest.raises(AttributeError, match=r"no optuna.Study here.* it has no best_value"):
        _ = study.best_value
    assert not hasattr(study, "best_trial")
    here.modes = (mode, "min")
    assert trial().study.directions == [study.direction, optuna.study.StudyDirection.MINIMIZE]
    with pytest.raises(RuntimeError, match="use directions"):
        _ = trial().study.direction


def test_what_is_not_here_says_so(driver: Driver) -> None:
    with pytest.raises(TunerError, match=r"no optuna.Study here"):
        _ = trial().study


def test_outside_a_trial() -> None:
    with pytest.raises(OutsideTrial, match="pass it to tuner.run"):
        Objective(lambda trial: 1.0, ("loss",))({})
