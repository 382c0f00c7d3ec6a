"""Ray's own functions, talking to a session of ours in this process."""

from __future__ import annotations

import ast
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import ray.train
import ray.tune
import ray.util
from ray.train.torch import TorchTrainer
from ray.tune.integration.ray_train import TuneReportCallback

from tuner.domain.events import CheckpointInfo
from tuner.domain.segments import Report, Verdict
from tuner.errors import NotHere, TunerError
from tuner.trials.checkpoints.checkpoints import Checkpoint
from tuner.trials.compat import datasets, ray_compat
from tuner.trials.compat.class_form import ClassForm
from tuner.trials.compat.datasets import Shards
from tuner.trials.compat.ray_compat import Finished
from tuner.trials.training.session import Context, LeaveTrial, Session, activate

PACKAGE = Path(ray_compat.__file__).resolve().parents[1]


class Driver:
    """Both ends of a session's ports, in memory."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.saved: list[dict[str, str]] = []
        self.verdict = Verdict()

    def put(self, message: Report) -> None:
        self.reports.append(message)

    def ask(self, message: Report) -> Verdict:
        self.reports.append(message)
        return self.verdict

    def take(self, source: Any, report_no: int, iteration: int, *, at_end: bool = False) -> CheckpointInfo | None:
        assert isinstance(source, str)
        self.saved.append({path.name: path.read_text() for path in Path(source).iterdir()})
        return None

    def passed(self, report_no: int) -> None:
        return


@pytest.fixture
def driver() -> Driver:
    return Driver()


def begin(driver: Driver, *, first_milestone: int | None = None, **options: Any) -> Session:
    context = Context(
        experiment_id="exp_1",
        trial_id="trl_7",
        trial_number=7,
        segment_id="seg_9",
        world_size=2,
        world_rank=1,
        local_rank=1,
        local_world_size=2,
        node_rank=0,
        resources={"CPU": 0.5},
        trial_dir="/somewhere",
    )
    return Session(context, reports=driver, peers=None, saver=driver, first_milestone=first_milestone, **options)


@pytest.fixture
def installed(driver: Driver) -> Iterator[Session]:
    session = begin(driver)
    remove = ray_compat.install(session)
    yield session
    remove()


def test_this_ray_has_every_private_name_that_is_used() -> None:
    """A new Ray has moved what `tuner/trials/compat/ray_compat.py` relies on if this fails. Each line says what and where."""
    assert ray_compat.missing() == []


def test_every_function_that_ray_train_may_be_asked_for_is_answered() -> None:
    """Ray Train has a new function if this fails. Give `ray_compat.TrainFunctions` or `TrainContext` an answer to it."""
    from ray.train.v2._internal.execution.train_fn_utils import TrainFnUtils

    functions = {name for name in vars(TrainFnUtils) if not name.startswith("_")}
    assert functions - set(vars(ray_compat.TrainFunctions)) == set()
    context = {name for name in dir(ray.train.TrainContext) if not name.startswith("_")}
    assert context - set(vars(ray_compat.TrainContext)) == set()


def test_no_other_module_imports_a_private_name_of_ray() -> None:
    """Ray has no public functions for the state of nodes and that of Ray Data's operators."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        if path.name in ("ray_compat.py", "ray_nodes.py", "preemption.py", "datasets.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            private = [m for m in modules if m.split(".")[0] == "ray" and any(p.startswith("_") for p in m.split("."))]
            found += [f"{path.relative_to(PACKAGE)}: {module}" for module in private]
    assert found == []


def test_the_resources_of_a_trial_are_those_of_its_ranks_and_start_no_ray(
    installed: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial without Ray may ask for them too. Many functions of Ray start a Ray if there is none."""
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("a Ray is started"))
    assert ray.tune.get_context().get_trial_resources().bundles == [{"CPU": 0.5}, {"CPU": 0.5}]


def test_ranks_that_ask_for_nothing_have_no_resources_that_ray_could_hold(
    installed: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Context, "get_trial_resources", lambda self: [{"CPU": 0}, {"CPU": 0}])
    with pytest.raises(NotHere, match=r"tuner\.get_context\(\)\.get_trial_resources\(\) returns them"):
        ray.tune.get_context().get_trial_resources()


@pytest.mark.parametrize("report", [ray.tune.report, ray.train.report])
def test_a_report_of_either_library(installed: Session, driver: Driver, report: Any) -> None:
    report({"loss": 0.5, "inner": {"acc": 1}})
    assert [m.metrics for m in driver.reports] == [{"loss": 0.5, "inner/acc": 1.0}]


def test_what_is_no_number_is_left_out_and_named_once(
    installed: Session, driver: Driver, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        ray.tune.report({"loss": 0.5, "note": "words", "list": [1, 2]})
    assert [m.metrics for m in driver.reports] == [{"loss": 0.5}] * 2
    said = capsys.readouterr().err
    assert said.count("'note'") == 1
    assert said.count("'list'") == 1


def test_the_objective_must_be_a_number(installed: Session) -> None:
    installed.objective = "loss"
    with pytest.raises(TypeError, match="metric 'loss' must be a number"):
        ray.tune.report({"loss": "small", "note": "words"})


@pytest.mark.parametrize("kind", [bool, np.bool_])
def test_done_ends_the_function_after_its_report(installed: Session, driver: Driver, kind: type) -> None:
    with pytest.raises(Finished):
        ray.tune.report({"loss": 0.5, "done": kind(True)})
    assert [report.last for report in driver.reports] == [True], (
        "a scheduler would pause it, and it would train on later"
    )
    ray.tune.report({"loss": 0.4, "done": kind(False)})


@pytest.mark.parametrize(
    ("library", "checkpoint"), [(ray.tune, ray.tune.Checkpoint), (ray.train, ray.train.Checkpoint)]
)
def test_a_checkpoint_is_copied_and_stays_the_users(
    installed: Session, driver: Driver, library: Any, checkpoint: Any
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "state").write_text("1")
        library.report({"loss": 1.0}, checkpoint=checkpoint.from_directory(folder))
        assert os.listdir(folder) == ["state"], "other ranks may report the same directory"
    assert driver.saved == [{"state": "1"}]


def test_no_directory_of_a_reported_checkpoint_is_left_behind(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that reported a checkpoint of Ray left a directory in /tmp for each, and with files if none was due."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "state").write_text("1")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    driver.verdict = Verdict(next_milestone=3)
    remove = ray_compat.install(begin(driver, first_milestone=2))
    try:
        for _ in range(2):
            ray.train.report({"loss": 1.0}, checkpoint=ray.train.Checkpoint.from_directory(own))
        driver.verdict = Verdict(action="stop", reason="cut")
        with pytest.raises(LeaveTrial):
            ray.tune.report({"loss": 1.0}, checkpoint=ray.tune.Checkpoint.from_directory(own))
    finally:
        remove()
    assert driver.saved == [{"state": "1"}] * 3
    assert list((tmp_path / "temp").iterdir()) == []


def test_a_directory_that_is_to_be_deleted_after_its_report(installed: Session, driver: Driver, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "state").write_text("2")
    ray.train.report(
        {"loss": 1.0},
        checkpoint=ray.train.Checkpoint.from_directory(tmp_path / "own"),
        checkpoint_dir_name="mine",
        delete_local_checkpoint_after_upload=True,
    )
    assert driver.saved == [{"state": "2"}]
    assert not (tmp_path / "own").exists()


def test_a_verdict_leaves_the_function_through_rays_own_layers(driver: Driver) -> None:
    remove = ray_compat.install(begin(driver, first_milestone=1))
    driver.verdict = Verdict(action="stop", reason="cut")
    try:
        for report in (ray.tune.report, ray.train.report):
            with pytest.raises(LeaveTrial, match="stop: cut"):
                report({"loss": 1.0})
    finally:
        remove()


def test_the_checkpoint_to_start_from(driver: Driver, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("old")
    remove = ray_compat.install(begin(driver, checkpoint=Checkpoint(tmp_path)))
    try:
        for found in (ray.tune.get_checkpoint(), ray.train.get_checkpoint()):
            assert isinstance(found, ray.train.Checkpoint)
            with found.as_directory() as folder:
                assert Path(folder, "state").read_text() == "old"
    finally:
        remove()


@pytest.mark.parametrize("storage", ["~/of mine", "$RESULTS/of mine", "file://{}/of mine"])
def test_the_checkpoint_to_start_from_is_found_in_any_storage_on_a_disk(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RESULTS", str(tmp_path))
    (tmp_path / "of mine").mkdir()
    (tmp_path / "of mine" / "state").write_text("5")
    remove = ray_compat.install(begin(driver, checkpoint=Checkpoint(storage.format(tmp_path))))
    try:
        with ray.tune.get_checkpoint().as_directory() as folder:
            assert Path(folder, "state").read_text() == "5"
    finally:
        remove()


def test_the_context_of_either_library(installed: Session) -> None:
    train, tune = ray.train.get_context(), ray.tune.get_context()
    assert tune.get_experiment_name() == "exp_1"
    assert train.get_experiment_name() == "exp_1-trial_00007", "RayTrainReportCallback names its folder after it"
    for context in (train, tune):
        assert context.get_trial_name() == "trial_00007"
        assert context.get_trial_id() == "trl_7"
        assert context.get_trial_dir() == "/somewhere"
        assert (context.get_world_rank(), context.get_world_size(), context.get_local_rank()) == (1, 2, 1)
        assert (context.get_local_world_size(), context.get_node_rank()) == (2, 0)
    assert ray.train.get_preemption_info() is None
    assert ray.train.get_dataset_shard("train") is None


def test_what_a_trial_has_no_answer_to_says_so(installed: Session) -> None:
    with pytest.raises(NotHere, match="get_storage"):
        ray.train.get_context().get_storage()
    with pytest.raises(NotHere, match="result.best_checkpoint"):
        ray.train.get_all_reported_checkpoints()
    with tempfile.TemporaryDirectory() as folder, pytest.raises(NotHere, match="validation"):
        ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(folder), validation=True)


def loop(config: dict[str, Any]) -> str:
    for epoch in range(2):
        ray.train.report({"loss": config["lr"] / (epoch + 1), "rank": ray.train.get_context().get_world_rank()})
    return "weights"


def trainer(workers: int, use_gpu: bool = False) -> TorchTrainer:
    """Return a trainer as functions for Ray Tune create it: with the callback that reports to Ray Tune."""
    return TorchTrainer(
        loop,
        train_loop_config={"lr": 0.5},
        scaling_config=ray.train.ScalingConfig(num_workers=workers, use_gpu=use_gpu),
        run_config=ray.train.RunConfig(callbacks=[TuneReportCallback()]),
    )


def test_a_trainer_fits_on_the_ranks_that_are_there(installed: Session, driver: Driver) -> None:
    result = trainer(workers=2).fit()
    assert [m.metrics for m in driver.reports] == [{"loss": 0.5, "rank": 1.0}, {"loss": 0.25, "rank": 1.0}]
    assert isinstance(result, ray.train.Result)
    assert result.metrics == {"loss": 0.25, "rank": 1}
    assert (result.return_value, result.error, result.checkpoint) == ("weights", None, None)


def test_a_trainer_that_wants_other_ranks_says_what_to_ask_for(installed: Session) -> None:
    with pytest.raises(NotHere, match=r"The trial has 2, but this trainer asks for 4: pass num_workers=4 to tuner.run"):
        trainer(workers=4).fit()
    with pytest.raises(NotHere, match=r"pass use_gpu=True to tuner.run"):
        trainer(workers=2, use_gpu=True).fit()


def test_nothing_is_left_behind(driver: Driver) -> None:
    fit, made = TorchTrainer.fit, TuneReportCallback.__init__
    remove = ray_compat.install(begin(driver))
    assert fit is not TorchTrainer.fit
    assert made is not TuneReportCallback.__init__
    remove()
    assert fit is TorchTrainer.fit
    assert made is TuneReportCallback.__init__
    with pytest.raises(RuntimeError, match="cannot be used outside"):
        ray.train.get_context()
    with pytest.warns(UserWarning, match="only be called inside"):
        ray.tune.report({"loss": 1.0})


def test_wrappers_of_tune_are_taken_off() -> None:
    def train(config: Mapping[str, Any], data: Any) -> None: ...

    class Trainable(ray.tune.Trainable):
        def setup(self, config: dict[str, Any], data: Any) -> None: ...

    for form in (train, Trainable):
        assert ray_compat.without_parameters(ray.tune.with_parameters(form, data=[1])) == (form, {"data": [1]})
        assert ray_compat.without_parameters(form) is None
    outer = ray.tune.with_resources(ray.tune.with_parameters(Trainable, data=[1]), {"cpu": 2})
    assert ray_compat.without_parameters(outer) == (Trainable, {"data": [1]})
    assert ray_compat.without_resources(outer)[1].bundles == [{"CPU": 2.0}]

    asked = ray.tune.with_resources(train, {"cpu": 2, "gpu": 1})
    bare, request = ray_compat.without_resources(asked)
    assert request.bundles == [{"CPU": 2.0, "GPU": 1.0}]
    assert bare.__code__ is train.__code__
    assert ray_compat.without_resources(bare) == (bare, None)


def test_data_sets_need_a_name_when_there_are_several() -> None:
    with Shards({"train": object(), "val": object()}) as shards:
        assert Shards.of_this_trial() is shards
        with pytest.raises(TunerError, match="there are train, val"):
            shards.get(None)
        with pytest.raises(KeyError, match="no data set is named 'test'; the trial has train, val"):
            shards.get("test")
    assert Shards.of_this_trial().get("train") is None


@pytest.mark.parametrize(
    ("bundles", "error"),
    [
        ({0: ("left", 1.0)}, None),
        ({0: ("left", 1.0), 1: ("right", 1.0)}, r"hold 2 of the cluster's 2: lower"),
        (
            {0: ("left", 0.5), 1: ("right", 0.5)},
            r"hold 1 of the cluster's 2, and no node has a whole CPU left",
        ),
    ],
    ids=["room", "full", "halves of two nodes"],
)
def test_ray_data_needs_a_whole_cpu_of_one_node(
    bundles: dict[int, tuple[str, float]], error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = {
        "state": "CREATED",
        "bundles": {index: {"CPU": cpus} for index, (_, cpus) in bundles.items()},
        "bundles_to_node_id": {index: node for index, (node, _) in bundles.items()},
    }
    nodes = [{"NodeID": name, "Alive": True, "Resources": {"CPU": 1.0}} for name in ("left", "right")]
    gone = {"NodeID": "gone", "Alive": False, "Resources": {"CPU": 8.0}}
    monkeypatch.setattr(ray, "nodes", lambda: [*nodes, gone])
    monkeypatch.setattr(ray.util, "placement_group_table", lambda: {"a": group, "b": {"state": "REMOVED"}})
    if error is None:
        datasets._check_room()
    else:
        with pytest.raises(TunerError, match=error):
            datasets._check_room()


class OfRay(ray.tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.count = 0

    def step(self) -> dict[str, Any]:
        self.count += 1
        return {"loss": 1.0 / self.count, "done": self.count == 3}


class Ours:
    def setup(self, config: dict[str, Any]) -> None:
        self.count = 0

    step = OfRay.step


def _step_of_numpy(self: Any) -> dict[str, Any]:
    self.count += 1
    assert self.count <= 3
    return {"loss": 1.0 / self.count, "done": np.int64(self.count) == 3}


class OfRayWithNumPy(OfRay):
    step = _step_of_numpy


class OursWithNumPy(Ours):
    step = _step_of_numpy


@pytest.mark.parametrize("cls", [OfRay, Ours, OfRayWithNumPy, OursWithNumPy])
def test_a_class_without_a_way_to_save_trains_all_the_same(cls: type, driver: Driver) -> None:
    driver.verdict = Verdict(next_milestone=1, save_checkpoint=True)
    activate(begin(driver, first_milestone=1))
    try:
        ClassForm(cls)({})
    finally:
        activate(None)
    assert [(m.metrics["loss"], m.last) for m in driver.reports] == [(1.0, False), (1 / 2, False), (1 / 3, True)]
    assert driver.saved == []


def _save_count(self: Any, folder: str) -> None:
    Path(folder, "count").write_text(str(self.count))


def _free_count(self: Any) -> None:
    del self.count


class Asking(Ours):
    """A class that asks for a checkpoint at every step."""

    save_on_every_rank = True
    save = _save_count

    def step(self) -> dict[str, Any]:
        return {**super().step(), "should_checkpoint": True}


def test_no_directory_of_a_checkpoint_that_a_class_asks_for_is_left_behind(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    activate(begin(driver))
    try:
        ClassForm(Asking)({})
    finally:
        activate(None)
    assert driver.saved == [{"count": "1"}, {"count": "2"}, {"count": "3"}]
    assert list(tmp_path.iterdir()) == []


class Freeing(Ours):
    save_on_every_rank, save, cleanup = True, _save_count, _free_count


class FreeingOfRay(OfRay):
    save_on_every_rank, save_checkpoint, cleanup = True, _save_count, _free_count


@pytest.mark.parametrize("cls", [Freeing, FreeingOfRay])
def test_the_last_checkpoint_of_a_class_is_saved_before_it_cleans_up(
    cls: type, driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial had failed in its last save, if its class says itself that it is done."""

    def take(source: Any, report_no: int, iteration: int, *, at_end: bool = False) -> None:
        source(str(tmp_path))

    monkeypatch.setattr(driver, "take", take)
    running = begin(driver, checkpoint_at_end=True)
    activate(running)
    try:
        ClassForm(cls)({})
        running.finish()
    finally:
        activate(None)
    assert (tmp_path / "count").read_text() == "3"


class Pickled(ray.tune.Trainable):
    """Saves its type, as the algorithms of RLlib do."""

    def setup(self, config: dict[str, Any], data: list[int]) -> None:
        self.started_as = (config, data, self.trial_id, self.trial_name, self.logdir)

    def step(self) -> dict[str, Any]:
        return {"loss": 1.0, "done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        content = ray.cloudpickle.dumps({"class": type(self), "as": self.started_as})
        Path(checkpoint_dir, "state.pkl").write_bytes(content)

    def load_checkpoint(self, checkpoint: Any) -> None: ...


def test_a_class_of_ray_is_pickled_as_itself_and_knows_its_trial(driver: Driver, tmp_path: Path) -> None:
    session = begin(driver)
    trial = ray_compat.Trial(session)
    steps = ray_compat.RayTrainable(Pickled, {"lr": 1.0}, {"data": [1]}, trial)
    steps.save(str(tmp_path))
    saved = ray.cloudpickle.loads((tmp_path / "state.pkl").read_bytes())
    assert saved["class"] is Pickled
    assert saved["as"] == ({"lr": 1.0}, [1], "trl_7", "trial_00007", trial.directory())
    steps.close()
