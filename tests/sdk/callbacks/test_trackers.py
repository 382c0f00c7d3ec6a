"""MLflow and Weights & Biases get a run for each trial. Users install them; the extra `dev` has both."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tuner
from tests.driver.stored import stored_simulation
from tests.sdk.callbacks.test_files import scalars
from tests.sdk.callbacks.test_observers import committed, observed, search
from tuner.domain.experiment import Objective, Spec
from tuner.errors import MissingPackage
from tuner.sdk.callbacks import observers
from tuner.space import Space
from tuner.store import Store

__all__ = ["search"]


@pytest.fixture
def _mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setattr(observers, "PATIENCE_S", 300.0)


@pytest.mark.usefixtures("_mlflow")
def test_mlflow_has_a_run_for_each_trial(sqlite_store: Store, search: str, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    uri = (tmp_path / "mlruns").as_uri()
    assert observed(sqlite_store, search, tmp_path, tuner.callbacks.MLflowLoggerCallback(uri)) == []
    observed(sqlite_store, search, tmp_path / "again", tuner.callbacks.MLflowLoggerCallback(uri))  # the same runs
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("s")
    assert experiment is not None
    runs = {run.data.tags["tuner.trial_id"]: run for run in client.search_runs([experiment.experiment_id])}
    trials = tuner.Result.load(sqlite_store, search).trials
    assert set(runs) == {trial.id for trial in trials}
    log = sqlite_store.log.events_after(sqlite_store.experiments.get(search).id, 0, 1000)
    for trial in trials:
        run = runs[trial.id]
        assert run.info.status == "FINISHED"
        assert run.data.params == {"x": str(trial.config["x"]), "net/width": str(trial.config["net"]["width"])}
        values = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "loss")}
        assert values == {i + 1: report["loss"] for i, report in enumerate(trial.history)}
        # The time of the end is that of the trial, in the virtual time of the simulation; it was that of the callback.
        assert (
            int(trial.history[-1]["time"] * 1000) <= run.info.end_time <= max(int(event.time * 1000) for event in log)
        )


@pytest.mark.usefixtures("_mlflow")
def test_mlflow_gets_metrics_and_params_whose_names_it_refuses(sqlite_store: Store, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    def train(config: dict[str, Any], checkpoint: Any) -> Any:
        yield tuner.Step({"loss": 1.0, "recall@5": 0.5, "top-1: acc/café (%)": 0.25, "/a//b/": 0.5, "./..": 0.5})

    space = {"drop[0]": tuner.uniform(0, 1), "lr": 0.1}
    found = tuner.simulate(
        train, space, metric="loss", mode="min", num_samples=1, scheduler="fifo", search_alg="random"
    )
    form = Space.from_python(space).to_json()
    spec = Spec(name="odd", space=form, objectives=(Objective("loss", "min"),), entrypoint="module:train")
    search = stored_simulation(found, spec, sqlite_store).public_id
    uri = (tmp_path / "mlruns").as_uri()
    assert observed(sqlite_store, search, tmp_path, tuner.callbacks.MLflowLoggerCallback(uri)) == []
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("odd")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    named = {"recall_5": 0.5, "top-1: acc/café ___": 0.25, "_/a/_/b/_": 0.5, "_/_": 0.5}
    assert run.data.metrics == {"loss": 1.0, **named}
    [trial] = tuner.Result.load(sqlite_store, search).trials
    assert run.data.params == {"drop_0_": str(trial.config["drop[0]"])}


@pytest.mark.usefixtures("_mlflow")
def test_mlflow_has_the_values_that_an_objective_draws_after_its_start(tmp_path: Path) -> None:
    """The runs of an Optuna objective had no params, or only those drawn before the callback read the start of the trial."""
    from mlflow.tracking import MlflowClient

    uri = (tmp_path / "mlruns").as_uri()
    trial = tuner.callbacks.ObservedTrial(number=0, trial_id="t", experiment_id="e", config={}, params={})
    result = {"loss": 1.0, "training_iteration": 1, "timestamp": 1e9, "trial_id": "t"}
    for drawn in ({"x": 1.5, "kind@2": "a"}, {"x": 1.5, "kind@2": "a", "late": None}):
        callback: Any = tuner.callbacks.MLflowLoggerCallback(uri)  # a new one, as after a resume
        callback.setup(name="n", experiment_id="e")
        callback.on_trial_start(trial=trial, timestamp=1e9 - 5)
        trial.params = drawn
        callback.on_trial_result(trial=trial, result=result)
    callback.on_trial_error(trial=trial, timestamp=1e9 + 3)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("n")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert run.data.params == {"x": "1.5", "kind_2": "a", "late": "None"}
    assert (run.info.status, run.info.start_time, run.info.end_time) == ("FAILED", 999_999_995_000, 1_000_000_003_000)


@pytest.mark.usefixtures("_mlflow")
def test_mlflow_has_no_run_that_ended_before_it_began(tmp_path: Path) -> None:
    """The run of a trial that failed before its start, such as for lack of a GPU, began when the callback read of its end."""
    from mlflow.tracking import MlflowClient

    uri = (tmp_path / "mlruns").as_uri()
    callback: Any = tuner.callbacks.MLflowLoggerCallback(uri)
    callback.setup(name="n", experiment_id="e")
    trial = tuner.callbacks.ObservedTrial(number=0, trial_id="t", experiment_id="e", config={}, params={})
    callback.on_trial_error(trial=trial, timestamp=1e9)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("n")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.start_time == run.info.end_time == 1_000_000_000_000


@pytest.mark.usefixtures("_mlflow")
def test_mlflow_and_tensorboard_have_every_metric_and_param_although_their_new_names_are_equal(
    sqlite_store: Store, tmp_path: Path
) -> None:
    """The later ones had been lost, in MLflow with all params after them; in TensorBoard, their values had been mixed."""
    from mlflow.tracking import MlflowClient

    long = "a" * 300

    def train(config: dict[str, Any], checkpoint: Any) -> Any:
        yield tuner.Step({"loss": 1.0, "recall@5": 0.5})
        yield tuner.Step({"loss": 0.5, "recall#5": 0.25, "recall@5": 0.75, "recall_6": 0.0, "recall@6": 1.0, long: 2.0})

    space = {"lr@x": tuner.uniform(0, 1), "lr_x": tuner.uniform(0, 1), "z": tuner.uniform(0, 1)}
    found = tuner.simulate(
        train, space, metric="loss", mode="min", num_samples=1, scheduler="fifo", search_alg="random"
    )
    form = Space.from_python(space).to_json()
    spec = Spec(name="alike", space=form, objectives=(Objective("loss", "min"),), entrypoint="module:train")
    search = stored_simulation(found, spec, sqlite_store).public_id
    uri = (tmp_path / "mlruns").as_uri()
    folder = tmp_path / "tb"
    assert observed(sqlite_store, search, tmp_path, tuner.callbacks.MLflowLoggerCallback(uri)) == []
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("alike")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    [trial] = tuner.Result.load(sqlite_store, search).trials
    config = trial.config
    assert run.data.params == {"lr_x": str(config["lr_x"]), "lr_x_2": str(config["lr@x"]), "z": str(config["z"])}
    named = {"loss": 0.5, "recall_5": 0.75, "recall_5_2": 0.25, "recall_6": 0.0, "recall_6_2": 1.0}
    assert run.data.metrics == {**named, "a" * 240: 2.0}
    pytest.importorskip("tensorboardX")
    assert observed(sqlite_store, search, tmp_path, tuner.callbacks.TBXLoggerCallback(folder)) == []
    (events,) = (folder / "trial_00000").glob("events.*")
    assert scalars(events)[:2] == [("loss", 1), ("recall_5", 1)]
    assert sorted(scalars(events)[2:]) == sorted((name, 2) for name in [*named, long])


class _Client:
    """A client of MLflow that notes the calls. It refuses the first value of the param "huge"."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id=f"of {name}")

    def search_runs(self, experiments: list[str], **options: Any) -> list[Any]:
        self.calls.append(("search_runs", *experiments))
        return []

    def create_run(self, experiment: str, start: int | None, *, run_name: str, tags: dict[str, str]) -> Any:
        self.calls.append(("create_run", start, run_name, tags))
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def log_batch(self, run: str, metrics: list[Any]) -> None:
        self.calls.append(("log_batch", *metrics))

    def log_param(self, run: str, name: str, value: Any) -> None:
        self.calls.append(("log_param", name, value))
        if name == "huge":
            raise ValueError("too long")

    def __getattr__(self, method: str) -> Any:
        return lambda *given, **options: self.calls.append((method, *given, *options.items()))


def test_what_mlflow_is_told_of_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    client = _Client()
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "mlflow.tracking", SimpleNamespace(MlflowClient=lambda tracking_uri: client))
    monkeypatch.setitem(sys.modules, "mlflow.entities", SimpleNamespace(Metric=lambda *given: given))
    callback: Any = tuner.callbacks.MLflowLoggerCallback(tags={"team": "vision"})
    callback.setup(name="n", experiment_id="e")
    trial = tuner.callbacks.ObservedTrial(number=3, trial_id="t", experiment_id="e", config={}, params={"x": 1})
    tags = {"team": "vision", "tuner.experiment_id": "e", "tuner.trial_id": "t"}

    def told(method: str, **given: Any) -> list[tuple[Any, ...]]:
        client.calls.clear()
        getattr(callback, method)(trial=trial, **given)
        return client.calls

    begun = [("search_runs", "of n"), ("create_run", 10_500, "trial_00003", tags), ("log_param", "x", 1)]
    assert told("on_trial_start", timestamp=10.5) == begun
    result = {"loss": 0.5, "training_iteration": 2, "timestamp": 11.5}
    assert told("on_trial_result", result=result) == [("log_batch", ("loss", 0.5, 11_500, 2))], "it has the param"
    trial.params = {"x": 1, "huge": "9"}
    with pytest.raises(ValueError, match="too long"):  # the metrics of this report are lost, but no others
        told("on_trial_result", result=result)
    assert told("on_trial_result", result=result) == [("log_batch", ("loss", 0.5, 11_500, 2))]
    assert told("on_trial_restore") == [("update_run", "r", ("status", "RUNNING"))]
    trial.reason = "why"
    for status, theirs in (("cancelled", "KILLED"), ("stopped", "FINISHED")):
        trial.status = status
        ended = [("set_tag", "r", "tuner.reason", "why"), ("set_terminated", "r", theirs, 20_000)]
        assert told("on_trial_complete", timestamp=20.0) == ended
    callback.setup(name="other", experiment_id="e")
    trial.params = {"x": 1}
    begun = [("search_runs", "of other"), ("create_run", None, "trial_00003", tags), ("log_param", "x", 1)]
    assert told("on_trial_start") == begun, "what is known of the runs is that of one experiment"


def test_wandb_has_a_run_for_each_trial(sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = committed(sqlite_store, 3)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setattr(observers, "PATIENCE_S", 300.0)  # on a busy machine, a run may take seconds
    quick = {"x_disable_stats": True, "disable_git": True, "console": "off"}
    callback: Any = tuner.callbacks.WandbLoggerCallback("project", mode="offline", settings=quick)
    assert observed(sqlite_store, search, tmp_path, callback) == []
    runs = list((tmp_path / "callbacks" / search / "wandb").glob("offline-run-*/*.wandb"))
    trials = tuner.Result.load(sqlite_store, search).trials
    assert {path.stem.removeprefix("run-") for path in runs} == {trial.id for trial in trials}


class _Run:
    """A run of Weights & Biases that, like a real one, ignores reports whose step is not larger than those before."""

    def __init__(self, **given: Any) -> None:
        self.config, self.summary = _Config(given.get("config", {})), dict[str, Any]()
        self.over, self.rows, self._newest = "", list[dict[str, Any]](), 0
        self.given, self.ended = given, list[int]()

    def define_metric(self, name: str, step_metric: str) -> None:
        assert name == "*"
        self.over = step_metric

    def log(self, row: dict[str, Any], step: int) -> None:
        if step > self._newest:
            self._newest = step
            self.rows.append(row)

    def finish(self, exit_code: int = 0) -> None:
        self.ended.append(exit_code)


class _Config(dict[str, Any]):
    """A configuration of Weights & Biases, which refuses other values unless it is told to take them."""

    def update(self, values: dict[str, Any], allow_val_change: bool = False) -> None:  # type: ignore[override]
        assert allow_val_change
        super().update(values)


def test_wandb_has_the_values_that_an_objective_draws_after_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs of an Optuna objective had no configuration, or only the values that were drawn first."""
    run = _Run(config={})
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **given: run))
    callback: Any = tuner.callbacks.WandbLoggerCallback()
    callback.setup(folder=str(tmp_path), name="n", experiment_id="e")
    trial = tuner.callbacks.ObservedTrial(number=0, trial_id="t", experiment_id="e", config={}, params={})
    callback.on_trial_start(trial=trial)
    trial.config = {"x": 1.5}
    callback.on_trial_result(trial=trial, result={"loss": 1.0, "training_iteration": 1, "timestamp": 1e9}, event_seq=5)
    assert run.config == {"x": 1.5}
    trial.config = {"x": 1.5, "kind": "a"}
    callback.on_trial_error(trial=trial)
    assert run.config == trial.config


def test_what_wandb_is_told_of_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[_Run] = []
    monkeypatch.setitem(
        sys.modules, "wandb", SimpleNamespace(init=lambda **given: runs.append(_Run(**given)) or runs[-1])
    )
    callback: Any = tuner.callbacks.WandbLoggerCallback(mode="offline", tags=["one"])
    callback.setup(folder=str(tmp_path), name="n", experiment_id="e")
    trials = [
        tuner.callbacks.ObservedTrial(number=n, trial_id=f"t{n}", experiment_id="e", config={"x": n}, params={})
        for n in range(3)
    ]
    for trial in trials:
        callback.on_trial_start(trial=trial)
    search = {"project": "n", "group": "e", "mode": "offline", "dir": str(tmp_path), "tags": ["one"]}
    kept = {"config": {"x": 1}, "resume": "allow", "reinit": "create_new"}
    assert runs[1].given == {"id": "t1", "name": "trial_00001", **kept, **search}
    trials[0].config = {"x": 9}
    callback.on_trial_restore(trial=trials[0])
    assert runs[0].config == {"x": 9}, "an exploit has changed it"
    trials[0].status, trials[0].reason = "stopped", "why"
    callback.on_trial_complete(trial=trials[0])
    callback.on_trial_error(trial=trials[1])
    callback.close()
    assert [run.ended for run in runs] == [[0], [1], [0]], "each run ends once"
    assert runs[0].summary == {"status": "stopped", "reason": "why"}


def test_wandb_keeps_the_reports_of_a_trial_that_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _Run()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **given: run))
    callback = tuner.callbacks.WandbLoggerCallback()
    callback.setup(folder=str(tmp_path), name="n", experiment_id="e")
    trial = tuner.callbacks.ObservedTrial(number=0, trial_id="t", experiment_id="e", config={}, params={})
    # A retry continues from the checkpoint of iteration 1, and the entry 9 is passed again after a kill.
    reports = [(5, 1, 0.9), (6, 2, 0.8), (7, 3, 0.7), (8, 2, 0.6), (9, 3, 0.5), (9, 3, 0.5)]
    for entry, iteration, loss in reports:
        result = {"loss": loss, "training_iteration": iteration, "timestamp": 1e9 + entry, "trial_id": "t"}
        callback.on_trial_result(trial=trial, result=result, event_seq=entry)
    assert run.rows == [
        {"loss": loss, "training_iteration": iteration, "_timestamp": 1e9 + entry}
        for entry, iteration, loss in reports[:-1]
    ]
    assert run.over == "training_iteration"


@pytest.mark.parametrize(
    ("module", "callback", "package"),
    [
        ("mlflow.tracking", tuner.callbacks.MLflowLoggerCallback(), "mlflow-skinny"),
        ("wandb", tuner.callbacks.WandbLoggerCallback(), "wandb"),
    ],
)
def test_what_is_missing_is_named(
    sqlite_store: Store,
    search: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    callback: Any,
    package: str,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    said = observed(sqlite_store, search, tmp_path, callback)
    assert f"pip install {package}" in said[0]


@pytest.mark.parametrize(
    ("folder", "callback", "package"),
    [
        ("mlflow", tuner.callbacks.MLflowLoggerCallback(), "mlflow-skinny"),
        ("wandb", tuner.callbacks.WandbLoggerCallback(), "wandb"),
        ("tensorboardX", tuner.callbacks.TBXLoggerCallback(), "tensorboardX"),
    ],
)
@pytest.mark.parametrize("line", ["import protobuf_gone", "int.no_attribute"])
def test_a_library_that_is_installed_but_broken_is_not_called_missing(
    sqlite_store: Store,
    search: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: str,
    callback: Any,
    package: str,
    line: str,
) -> None:
    """The user was told to install it, or only "has no attribute", by TensorBoard once for each report."""
    for name in [name for name in sys.modules if name.partition(".")[0] == folder]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "__init__.py").write_text(line)
    [said] = observed(sqlite_store, search, tmp_path, callback)
    assert "which is installed, but cannot be imported (" in said
    assert ("protobuf_gone" if "gone" in line else "no_attribute") in said
    assert f"`pip install {package} --upgrade`" in said
    assert " more" not in said


def test_the_folder_that_wandb_makes_is_not_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "wandb"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(MissingPackage, match="pip install wandb"):
        tuner.callbacks.WandbLoggerCallback().setup(name="n", experiment_id="e", folder=str(tmp_path))
