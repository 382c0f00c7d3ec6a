"""Test how `tuner.run` translates what users pass to it."""

from __future__ import annotations

import datetime
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import ray.train
import ray.tune
import ray.tune.schedulers
from ray.train.backend import BackendConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater
from ray.tune.search.bohb import TuneBOHB, bohb_search
from ray.tune.search.optuna import OptunaSearch

import tuner
from tuner.errors import EntrypointError, SpecError
from tuner.sdk.arguments import adapted
from tuner.sdk.run import _earlier
from tuner.search import DefineByRunSearch
from tuner.trials.checkpoints.objects import Parameterized, Stored
from tuner.trials.compat.class_form import ClassForm
from tuner.trials.compat.forms import is_objective
from tuner.trials.compat.optuna_compat import Objective
from tuner.trials.compat.train_loop import TrainLoop


def run(
    trainable: Any,
    space: Mapping[str, Any] | None = None,
    *,
    metric: Any = None,
    mode: Any = None,
    num_samples: int | None = None,
    scheduler: Any = None,
    search_alg: Any = None,
    max_workers: int | None = None,
    num_workers: int = 1,
    use_gpu: bool = False,
    resources_per_worker: Mapping[str, float] | None = None,
    placement_strategy: str = "PACK",
    backend: str = "auto",
    working_dir: str = "trial",
    time_budget_s: float | None = None,
    max_concurrent_trials: int | None = None,
    max_failures: int = 0,
    name: str | None = None,
    stop: Any = None,
    storage: str | None = None,
    checkpoint: Mapping[str, Any] | None = None,
    scope: str = "all",
    runtime_env: Mapping[str, Any] | None = None,
    scaling_config: Any = None,
    run_config: Any = None,
    tune_config: Any = None,
    callbacks: Any = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Adapt the arguments as `tuner.run` does."""
    return adapted(run, dict(locals()))


def train(config: Mapping[str, Any]) -> None: ...


def loop() -> None: ...


def loop_of(config: dict[str, Any]) -> dict[str, Any]:
    return config


def trainer(function: Any = loop_of, **options: Any) -> TorchTrainer:
    return TorchTrainer(function, **options)


def test_the_arguments_here_are_those_of_tuner_run() -> None:
    import inspect

    real = inspect.signature(tuner.run).parameters
    for name, parameter in inspect.signature(run).parameters.items():
        assert name in real
        assert parameter.default == real[name].default, name


@pytest.mark.parametrize("plain", [train, "module:train"])
def test_what_is_plain_stays_as_it_is(plain: Any) -> None:
    given = {**run(train), "trainable": plain}
    assert adapted(run, given) == given


def test_trials_of_a_trainer_with_data_sets_leave_a_cpu_for_ray_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of the trainer had counted as one worker with one CPU."""
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 9.0})

    def at_once(workers: int, cpus: float | None = None, **options: Any) -> int | None:
        scaling = ray.train.ScalingConfig(num_workers=workers, resources_per_worker=cpus and {"CPU": cpus})
        made = trainer(scaling_config=scaling, datasets={"train": lambda: None})
        return run(made, **options)["max_concurrent_trials"]  # type: ignore[no-any-return]

    assert (at_once(1), at_once(4), at_once(5), at_once(2, 2)) == (8, 2, 1, 2)
    assert at_once(4, num_workers=2) == at_once(4, scaling_config=ray.train.ScalingConfig(num_workers=2)) == 4
    assert at_once(2, resources_per_worker={"CPU": 0.5}) == 8
    assert at_once(4, max_concurrent_trials=5) == 5


def test_a_trainer_is_unpacked() -> None:
    got = run(
        trainer(
            train_loop_config={"lr": 1.0, "model": {"width": 8, "depth": 2}},
            scaling_config=ray.train.ScalingConfig(
                num_workers=3, resources_per_worker={"CPU": 2}, placement_strategy="SPREAD"
            ),
            run_config=ray.train.RunConfig(
                name="mine",
                storage_path="/data",
                failure_config=ray.train.FailureConfig(max_failures=4),
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=3, checkpoint_score_attribute="loss"),
                worker_runtime_env={"env_vars": {"A": "1"}},
            ),
            torch_config=TorchConfig(backend="gloo"),
        ),
        {"train_loop_config": {"lr": tuner.uniform(0, 1)}},
    )
    function = got.pop("trainable")
    assert isinstance(function, TrainLoop)
    assert function({"train_loop_config": {"lr": 0.5, "model": {"depth": 3}}}) == {
        "lr": 0.5,
        "model": {"width": 8, "depth": 3},
    }
    assert function({"lr": 0.25}) == {"lr": 0.25, "model": {"width": 8, "depth": 2}}
    assert {k: got[k] for k in ("num_workers", "resources_per_worker", "placement_strategy", "backend")} == {
        "num_workers": 3,
        "resources_per_worker": {"CPU": 2},
        "placement_strategy": "SPREAD",
        "backend": "gloo",
    }
    assert (got["name"], got["storage"], got["max_failures"]) == ("mine", "/data", 4)
    assert got["checkpoint"] == {"keep_best": 3, "keep_last": 1}
    assert got["runtime_env"] == {"env_vars": {"A": "1"}}


def test_a_loop_without_arguments() -> None:
    called: list[int] = []
    function = run(trainer(lambda: called.append(1)))["trainable"]
    function({"anything": 1})
    assert called == [1]


def test_what_the_caller_says_comes_first() -> None:
    got = run(
        trainer(
            scaling_config=ray.train.ScalingConfig(num_workers=3),
            run_config=ray.train.RunConfig(
                failure_config=ray.train.FailureConfig(max_failures=4),
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=3),
            ),
        ),
        num_workers=5,
        max_failures=1,
        checkpoint={"keep_last": 9, "frequency": 2},
    )
    assert (got["num_workers"], got["max_failures"]) == (5, 1)
    assert got["checkpoint"] == {"keep_last": 9, "keep_best": 1, "frequency": 2}


def test_configs_beside_a_function() -> None:
    got = run(
        train,
        scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=True, accelerator_type="A100"),
        run_config=ray.tune.RunConfig(
            stop={"training_iteration": 9},
            failure_config=ray.tune.FailureConfig(max_failures=-1),
            checkpoint_config=ray.tune.CheckpointConfig(checkpoint_frequency=5, checkpoint_at_end=False),
        ),
    )
    assert (got["num_workers"], got["use_gpu"]) == (2, True)
    assert got["resources_per_worker"] == {"accelerator_type:A100": 0.001}
    assert got["stop"] == {"training_iteration": 9}
    assert got["max_failures"] > 10**9
    assert got["checkpoint"] == {"frequency": 5, "at_end": False}


def test_a_range_of_workers() -> None:
    got = run(train, scaling_config=ray.train.ScalingConfig(num_workers=(2, 4)))
    assert (got["num_workers"], got["max_workers"]) == (2, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scaling_config": ray.train.ScalingConfig(num_workers=1, label_selector={"a": "b"})}, "label_selector"),
    ],
)
def test_what_has_no_counterpart_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        run(train, **options)


def test_a_tune_config() -> None:
    scheduler = ray.tune.schedulers.ASHAScheduler()
    config = ray.tune.TuneConfig(
        metric="acc",
        mode="max",
        scheduler=scheduler,
        max_concurrent_trials=2,
        time_budget_s=datetime.timedelta(minutes=2),
        reuse_actors=True,
    )
    got = run(train, tune_config=config)
    assert (got["metric"], got["mode"], got["scheduler"]) == ("acc", "max", scheduler)
    assert (got["num_samples"], got["max_concurrent_trials"], got["time_budget_s"]) == (1, 2, 120.0)
    assert got["tune_config"] is None
    assert run(train, metric="loss", num_samples=4, tune_config=config)["metric"] == "loss"
    assert run(train, num_samples=4, tune_config=config)["num_samples"] == 4
    assert run(train, tune_config=ray.tune.TuneConfig(num_samples=-1))["num_samples"] is None
    searcher = OptunaSearch()
    assert run(train, tune_config=ray.tune.TuneConfig(search_alg=searcher))["search_alg"] is searcher


def test_an_objective_of_optuna_with_a_tune_config() -> None:
    got = run(objective, tune_config=ray.tune.TuneConfig(metric="acc", mode="max"))
    assert got["trainable"] == Objective(objective, ("acc",))
    assert isinstance(got["search_alg"], DefineByRunSearch)


@pytest.mark.parametrize(
    "options",
    [
        {"scheduler": ray.tune.schedulers.HyperBandScheduler(metric="acc", mode="max")},
        {"search_alg": ConcurrencyLimiter(OptunaSearch(metric="acc", mode="max"), 2)},
        {"tune_config": ray.tune.TuneConfig(search_alg=OptunaSearch(metric="acc", mode="max"))},
    ],
    ids=["scheduler", "searcher", "tune_config"],
)
def test_the_objective_may_be_said_to_a_part_of_ray_tunes(options: dict[str, Any]) -> None:
    got = run(train, **options)
    assert (got["metric"], got["mode"]) == ("acc", "max")
    said = run(train, metric="loss", mode="min", **options)
    assert (said["metric"], said["mode"]) == ("loss", "min")


class Derived(TuneBOHB):
    """A user's own searcher."""


class OwnLimiter(ConcurrencyLimiter):
    """A user's own limiter."""


def test_the_seed_of_a_tune_bohb_is_that_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was ignored, so that all of them proposed the same configurations."""
    monkeypatch.setattr(bohb_search, "BOHB", object)  # HpBandSter need not be installed
    for searcher in (Derived(seed=7), ConcurrencyLimiter(TuneBOHB(seed=7), 2)):
        assert run(train, search_alg=searcher)["seed"] == 7
        assert run(train, tune_config=ray.tune.TuneConfig(search_alg=searcher))["seed"] == 7
        assert run(train, search_alg=searcher, seed=3)["seed"] == 3
    assert run(train, search_alg=TuneBOHB())["seed"] == 0


@pytest.mark.parametrize(
    ("searcher", "limit"),
    [
        (ConcurrencyLimiter(OptunaSearch(), 2), 2),
        (OwnLimiter(OptunaSearch(), 2), 2),
        (Repeater(ConcurrencyLimiter(OptunaSearch(), 3), 2), 3),
        (BasicVariantGenerator(max_concurrent=4), 4),
        (BasicVariantGenerator(), None),
        (5, 5),
        (-1, None),
        (OptunaSearch(), None),
    ],
    ids=[
        "limiter",
        "derived",
        "inside a repeater",
        "generator",
        "generator without one",
        "bohb",
        "bohb without one",
        "plain",
    ],
)
def test_a_searcher_may_limit_how_many_trials_run_at_once(
    searcher: Any, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(searcher, int):
        monkeypatch.setattr(bohb_search, "BOHB", object)  # HpBandSter need not be installed
        searcher = Derived(max_concurrent=searcher)
    assert run(train, search_alg=searcher)["max_concurrent_trials"] == limit
    for theirs in (1, 9):
        config = ray.tune.TuneConfig(search_alg=searcher, max_concurrent_trials=theirs)
        assert run(train, tune_config=config)["max_concurrent_trials"] == min(theirs, limit or theirs)
    assert run(train, search_alg=searcher, max_concurrent_trials=7)["max_concurrent_trials"] == 7


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            {"run_config": ray.tune.RunConfig(callbacks=[ray.tune.logger.CSVLoggerCallback()])},
            "CSVLoggerCallback of RunConfig.callbacks is not used: tuner.callbacks has a logger of this name",
        ),
        (
            {"run_config": ray.tune.RunConfig(callbacks=[ray.tune.logger.JsonLoggerCallback()])},
            "JsonLoggerCallback of RunConfig.callbacks is not used: it needs trials of Ray Tune; use a logger of tuner.callbacks",
        ),
        ({"run_config": ray.tune.RunConfig(log_to_file=True)}, "RunConfig.log_to_file"),
        (
            {"run_config": ray.tune.RunConfig(failure_config=ray.tune.FailureConfig(fail_fast=True))},
            "FailureConfig.fail_fast is not used: trials that fail",
        ),
        ({"tune_config": ray.tune.TuneConfig(trial_name_creator=str)}, "TuneConfig.trial_name_creator"),
        (
            {"search_alg": ConcurrencyLimiter(OptunaSearch(), 2, batch=True)},
            "ConcurrencyLimiter.batch is not used: a trial starts",
        ),
    ],
)
def test_what_is_not_used_is_said(options: dict[str, Any], named: str) -> None:
    with pytest.warns(UserWarning, match=named) as caught:
        run(train, **options)
    assert [warning.filename for warning in caught] == [__file__], "where it was said"


def test_a_timeout_of_the_process_group_is_not_used() -> None:
    with pytest.warns(
        UserWarning, match=r"TorchConfig.timeout_s is not used: .* 30 minutes.*init_process_group"
    ) as caught:
        run(trainer(torch_config=TorchConfig(timeout_s=7200)))
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings(action="error"):
        run(trainer(torch_config=TorchConfig(backend="gloo")))


@pytest.mark.parametrize(
    ("score", "said"),
    [
        (
            {"checkpoint_score_attribute": "acc"},
            "attribute='acc' is not used: the checkpoints with the best loss are kept",
        ),
        (
            {"checkpoint_score_attribute": "loss"},
            "order='max' is not used: .* loss are kept .mode 'min'.; .*'keep_last': None",
        ),
        ({"checkpoint_score_attribute": "loss", "checkpoint_score_order": "min"}, None),
        ({"checkpoint_score_attribute": "acc", "num_to_keep": None}, None),
        ({}, None),
    ],
)
def test_checkpoints_are_kept_by_the_objective(score: dict[str, Any], said: str | None) -> None:
    for library in (ray.train, ray.tune):
        run_config = library.RunConfig(checkpoint_config=library.CheckpointConfig(**{"num_to_keep": 2, **score}))
        code: Any = trainer(run_config=run_config) if library is ray.train else train
        options = {} if library is ray.train else {"run_config": run_config}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(code, tune_config=ray.tune.TuneConfig(metric="loss", mode="min"), **options)
        found = [str(warning.message) for warning in caught if warning.filename == __file__]
        assert len(found) == (said is not None)
        if said is not None:
            assert re.search(said, found[0])


def test_callbacks_of_a_run_config_are_taken_over() -> None:
    own = ray.tune.Callback()
    assert run(train, run_config=ray.tune.RunConfig(callbacks=[own]))["callbacks"] == [own]
    with pytest.warns(
        UserWarning, match=r"UserCallback of RunConfig.callbacks is not used: .* trial callbacks, not worker callbacks"
    ):
        got = run(train, run_config=ray.train.RunConfig(callbacks=[ray.train.UserCallback()]))
    assert not got["callbacks"]


def test_a_name_that_ray_made_up_is_none() -> None:
    assert run(trainer())["name"] is None
    assert run(trainer(run_config=ray.train.RunConfig(name="mine")))["name"] == "mine"


@pytest.mark.parametrize(
    ("thing", "instead"),
    [
        (lambda: ray.tune.Tuner(train), r"tuner.run\(trainable, param_space, tune_config=..., run_config=...\)"),
        (lambda: __import__("optuna").create_study(), "pass the objective"),
        (lambda: __import__("sklearn.svm").svm.SVC(), "pass a function of the configuration that calls its fit"),
    ],
    ids=["tuner", "study", "estimator"],
)
def test_what_holds_the_training_code_is_not_the_training_code(thing: Any, instead: str) -> None:
    with pytest.raises(EntrypointError, match=instead):
        run(thing())


def test_a_space_with_more_than_the_loops_configuration() -> None:
    with pytest.raises(SpecError, match="scaling_config"):
        run(trainer(), {"train_loop_config": {}, "scaling_config": {}})


def test_a_trainer_of_another_framework() -> None:
    class TensorflowConfig(BackendConfig):
        backend = None

    with pytest.raises(SpecError, match=r"sets up Tensorflow .* a model of its own\. Pass .* with num_workers=1"):
        run(trainer(torch_config=TensorflowConfig()))  # type: ignore[arg-type]


class Steps:
    def setup(self, config: dict[str, Any], data: Any = None) -> None: ...

    def step(self) -> dict[str, Any]:
        return {}


class Trainable(ray.tune.Trainable):
    def setup(self, config: dict[str, Any], data: Any = None) -> None: ...

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:
        return ray.tune.PlacementGroupFactory([{"CPU": 3.0}])


def test_classes() -> None:
    assert run(Steps)["trainable"] == ClassForm(Steps)
    got = run(Trainable)
    assert got["trainable"] == ClassForm(Trainable)
    assert got["resources_per_worker"] == {"CPU": 3.0}
    with pytest.raises(EntrypointError, match="Path cannot be tuned"):
        run(Path)


class WithHelpers(ray.tune.Trainable):
    """Requests resources as the algorithms of RLlib do."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:
        assert "lr" not in config
        return ray.tune.PlacementGroupFactory([{"CPU": 2.0}, *[{"CPU": 1.0}] * config.get("helpers", 2)])


class AlgorithmConfig:
    """Has the public attributes of RLlib's class, whose libraries are not always there. `test_libraries.py` uses RLlib's."""

    algo_class = WithHelpers

    def env_runners(self) -> None: ...

    def to_dict(self) -> dict[str, Any]:
        return {"helpers": 0, "lr": tuner.uniform(0, 1)}


def test_a_configuration_of_rllib_is_a_space() -> None:
    got = run(WithHelpers, AlgorithmConfig())  # type: ignore[arg-type]
    assert list(got["space"]) == ["helpers", "lr"]
    assert got["resources_per_worker"] == {"CPU": 2.0}
    with pytest.raises(EntrypointError, match=r"pass the algorithm, .*tuner\.run\(PPO, config\)"):
        run(AlgorithmConfig())


def test_a_request_may_depend_on_the_constants_of_the_space() -> None:
    alone = {"helpers": 0, "lr": tuner.uniform(0, 1)}
    assert run(WithHelpers, alone)["resources_per_worker"] == {"CPU": 2.0}
    with pytest.raises(SpecError, match=r"3 bundles are not supported.*max_concurrent_trials.*num_env_runners=0"):
        run(WithHelpers, {"lr": tuner.uniform(0, 1)})
    assert run(WithHelpers, {}, resources_per_worker={"CPU": 5.0})["resources_per_worker"] == {"CPU": 5.0}
    with pytest.raises(SpecError, match="3 bundles"):  # the check of the spec names the mistake in the space
        run(WithHelpers, {"lr": tuner.uniform(1, 0)})


@pytest.mark.parametrize("wrap", [ray.tune.with_parameters, tuner.with_parameters])
@pytest.mark.parametrize("trainable", [train, Steps, Trainable])
def test_objects_are_stored_and_handed_over(wrap: Any, trainable: Any, tmp_path: Path) -> None:
    if trainable is Steps and wrap is ray.tune.with_parameters:
        return  # Ray does not know our classes
    got = run(wrap(trainable, data=[1, 2]), storage=str(tmp_path))["trainable"]
    whole = got if isinstance(got, Parameterized) else got.given
    assert whole.trainable is trainable
    assert isinstance(whole.objects["data"], Stored)
    assert whole.given() == {"data": [1, 2]}


def test_objects_of_a_relative_storage_lie_where_the_caller_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    got = run(tuner.with_parameters(train, data=[1, 2]), run_config=ray.train.RunConfig(storage_path="ckpts"))[
        "trainable"
    ]
    monkeypatch.chdir("/")
    assert got.given() == {"data": [1, 2]}


def test_resources_of_tune() -> None:
    def train(config: dict[str, Any]) -> None:
        """Be a function of this test alone: Ray notes the resources at the function."""

    got = run(ray.tune.with_resources(train, {"cpu": 2, "gpu": 0.5}))
    assert got["resources_per_worker"] == {"CPU": 2.0, "GPU": 0.5}
    assert got["use_gpu"] is True
    with pytest.raises(SpecError, match="2 bundles"):
        run(ray.tune.with_resources(train, ray.tune.PlacementGroupFactory([{"CPU": 1.0}] * 2)))
    with pytest.raises(SpecError, match="depend on the configuration"):
        run(ray.tune.with_resources(train, lambda config: ray.tune.PlacementGroupFactory([{"CPU": 1.0}])))


def objective(trial: Any) -> float:
    return 0.0


def annotated(t: Objective) -> float:
    return 0.0


class Objector:
    def __call__(self, trial: Any) -> float:
        return 0.0


def test_objectives_are_told_by_their_first_argument() -> None:
    import optuna

    def by_type(t: optuna.Trial) -> float:
        return 0.0

    def on_each_rank(single_trial: Any) -> float:
        return 0.0

    assert is_objective(objective)
    assert is_objective(on_each_rank)
    assert is_objective(Objector())
    assert is_objective(by_type)
    assert is_objective(tuner.with_parameters(objective, data=1))
    assert not is_objective(train)
    assert not is_objective(annotated)
    assert not is_objective(Objector)


def test_an_objective_draws_its_own_parameters() -> None:
    got = run(objective, metric=["a", "b"])
    assert got["trainable"] == Objective(objective, ("a", "b"))
    assert got["scope"] == "last"
    assert isinstance(got["search_alg"], DefineByRunSearch)
    assert got["search_alg"].search.TYPE == "tpe"
    assert run(objective, search_alg="random")["search_alg"].search.TYPE == "random"
    mine = DefineByRunSearch("gp")
    assert run(objective, search_alg=mine)["search_alg"] is mine
    with pytest.raises(SpecError, match="one at a time"):
        run(objective, search_alg="cmaes")


@pytest.mark.parametrize(
    ("warm_start", "in_the_spec"), [(None, None), ("auto", "auto"), ("digits", ["digits"]), (["a", "b"], ["a", "b"])]
)
def test_one_name_of_an_earlier_experiment_is_enough(warm_start: Any, in_the_spec: Any) -> None:
    assert _earlier(warm_start) == in_the_spec


@pytest.mark.parametrize("space", [[1], "x", 3])
def test_a_space_that_is_no_dict_is_named(space: Any) -> None:
    with pytest.raises(SpecError, match="space: expected a search space, which is a dict of parameters"):
        tuner.run(train, space, metric="acc", mode="max")
