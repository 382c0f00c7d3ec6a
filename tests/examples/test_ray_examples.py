"""Ray's own published examples, imported unchanged from the installed Ray: only the call that runs them is ours.

Each runs on two ranks. The space and `max_t` make them small. Examples that sleep do sleep.
"""

from __future__ import annotations

from typing import Any

import pytest

import tuner

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("private_ray")]

TWO_RANKS: dict[str, Any] = {
    "num_workers": 2,
    "resources_per_worker": {"CPU": 0.5},
    "max_concurrent_trials": 1,  # one group, which stays warm
    "search_alg": "random",
    "verbose": 0,
}


def asha(max_t: int) -> dict[str, Any]:
    return {"scheduler": tuner.ASHAScheduler(grace_period=1, reduction_factor=2), "max_t": max_t}


def ended_well(result: Any, trials: int) -> None:
    assert result.state == "completed", (result.state, result.error)
    assert [t.error for t in result.trials] == [None] * trials
    assert all(t.iterations > 0 for t in result.trials)
    assert result.best_value is not None


@pytest.mark.long  # test_foreign_forms.py has functions of Ray under PBT
def test_a_function_that_reports() -> None:
    from ray import tune
    from ray.tune.examples.tune_basic_example import easy_objective

    result = tuner.run(
        easy_objective,
        {
            "steps": 4,
            "width": tune.uniform(0, 20),
            "height": tune.uniform(-100, 100),
            "activation": tune.grid_search(["relu", "tanh"]),
        },
        metric="mean_loss",
        mode="min",
        num_samples=2,
        **asha(4),
        **TWO_RANKS,
    )
    ended_well(result, 4)
    assert sorted(t.config["activation"] for t in result.trials) == ["relu", "relu", "tanh", "tanh"]
    assert {t.iterations for t in result.trials} > {4} or {t.iterations for t in result.trials} == {4}


@pytest.mark.long  # test_ray_compat.py has the resources and tests/schedulers/test_registry.py the scheduler
def test_resources_and_a_scheduler_of_tune() -> None:
    from ray import tune
    from ray.tune.examples.async_hyperband_example import easy_objective
    from ray.tune.schedulers import AsyncHyperBandScheduler

    result = tuner.run(
        tune.with_resources(easy_objective, {"cpu": 0.25}),
        {"steps": 4, "width": tune.uniform(10, 100), "height": tune.uniform(0, 100)},
        metric="mean_loss",
        mode="min",
        num_samples=3,
        scheduler=AsyncHyperBandScheduler(grace_period=1, max_t=4),
        run_config=tune.RunConfig(name="asynchyperband_test", stop={"training_iteration": 4}),
        num_workers=2,
        max_concurrent_trials=1,
        verbose=0,
    )
    ended_well(result, 3)
    assert result.name == "asynchyperband_test"


@pytest.mark.long  # test_foreign_forms.py has such a function under PBT
def test_a_function_with_checkpoints() -> None:
    from ray import tune
    from ray.tune.examples.custom_func_checkpointing import train_func

    result = tuner.run(
        train_func,
        {"steps": 10, "width": tune.randint(10, 100), "height": tune.loguniform(10, 100)},
        metric="mean_loss",
        mode="min",
        num_samples=3,
        scheduler="asha_promotion",
        max_t=4,
        **TWO_RANKS,
    )
    ended_well(result, 3)
    assert result.best_checkpoint is not None
    with result.best_checkpoint.as_directory() as folder:
        assert (__import__("pathlib").Path(folder) / "checkpoint.json").is_file()


@pytest.mark.long  # tests/schedulers/test_registry.py converts it, and test_contract.py pauses and resumes
def test_hyperband_pauses_and_resumes() -> None:
    from ray import tune
    from ray.tune.examples.hyperband_function_example import train_func
    from ray.tune.schedulers import HyperBandScheduler

    result = tuner.run(
        train_func,
        {"height": tune.uniform(0, 100)},
        metric="episode_reward_mean",
        mode="max",
        num_samples=4,
        scheduler=HyperBandScheduler(max_t=9),
        **TWO_RANKS,
    )
    ended_well(result, 4)


@pytest.mark.long  # test_foreign_forms.py has a class under PBT
def test_pbt_with_a_class() -> None:
    from ray.tune.examples.pbt_example import PBTBenchmarkExample

    result = tuner.run(
        PBTBenchmarkExample,
        {"lr": tuner.uniform(0.0001, 0.02), "some_other_factor": tuner.choice([1, 2])},
        metric="mean_accuracy",
        mode="max",
        num_samples=4,
        scheduler=tuner.PopulationBasedTraining(
            perturbation_interval=4,
            hyperparam_mutations={"lr": tuner.uniform(0.0001, 0.02), "some_other_factor": [1, 2]},
        ),
        max_t=16,
        **TWO_RANKS,
    )
    ended_well(result, 4)
    assert all(t.iterations == 16 for t in result.trials)
    # the class reports the lr that it was set up with: after an exploit it is the new one, and not the checkpoint's
    for trial in result.trials:
        assert trial.metrics["cur_lr"] == pytest.approx(trial.config["lr"])


@pytest.mark.long  # test_foreign_forms.py has such a function under PBT
def test_pbt_with_a_function() -> None:
    from ray.tune.examples.pbt_function import pbt_function

    result = tuner.run(
        pbt_function,
        {"lr": tuner.uniform(0.0001, 0.02), "checkpoint_interval": 4},
        metric="mean_accuracy",
        mode="max",
        num_samples=4,
        scheduler=tuner.PopulationBasedTraining(
            perturbation_interval=4, hyperparam_mutations={"lr": tuner.uniform(0.0001, 0.02)}
        ),
        max_t=16,
        **TWO_RANKS,
    )
    ended_well(result, 4)
    for trial in result.trials:
        assert trial.metrics["cur_lr"] == pytest.approx(trial.config["lr"])


@pytest.mark.long  # test_foreign_forms.py has a class that saves and loads
def test_a_class_that_asks_for_checkpoints() -> None:
    from ray import tune
    from ray.tune.examples.custom_checkpointing_with_callback import OptimizationTrainable

    result = tuner.run(
        OptimizationTrainable,
        {"width": tune.randint(10, 100), "height": tune.loguniform(10, 100)},
        metric="mean_loss",
        mode="min",
        num_samples=3,
        run_config=tune.RunConfig(checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True)),
        **asha(4),
        **TWO_RANKS,
    )
    ended_well(result, 3)
    assert all(t.metrics["step"] == t.iterations for t in result.trials)
    assert result.best_checkpoint is not None


@pytest.mark.long  # test_foreign_forms.py has classes under PBT
def test_a_class_of_tunes_own() -> None:
    from ray import tune
    from ray.tune.utils.mock_trainable import MyTrainableClass

    result = tuner.run(
        MyTrainableClass,
        {"width": tune.randint(10, 90), "height": tune.randint(0, 100)},
        metric="episode_reward_mean",
        mode="max",
        num_samples=4,
        scheduler="asha_promotion",
        max_t=8,
        **TWO_RANKS,
    )
    ended_well(result, 4)


@pytest.mark.long  # test_data_sets.py runs a TorchTrainer, and test_foreign_forms.py its functions on two ranks
def test_a_torch_trainer() -> None:
    from ray import train, tune
    from ray.train.examples.pytorch.torch_linear_example import train_func
    from ray.train.torch import TorchTrainer

    trainer = TorchTrainer(
        train_loop_per_worker=train_func,
        train_loop_config={"lr": 1e-2, "hidden_size": 1, "batch_size": 32, "epochs": 4},
        scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=train.RunConfig(
            name="linear",
            failure_config=train.FailureConfig(max_failures=1),
            checkpoint_config=train.CheckpointConfig(num_to_keep=2),
        ),
    )
    result = tuner.run(
        trainer,
        {"train_loop_config": {"lr": tune.loguniform(1e-4, 1e-2)}},
        metric="loss",
        mode="min",
        num_samples=3,
        search_alg="random",
        verbose=0,
        **asha(4),
    )
    ended_well(result, 3)
    assert result.name == "linear"
    assert result.best_checkpoint is not None


@pytest.mark.long  # test_a_torch_trainer runs the same function
def test_the_training_function_of_a_trainer_alone() -> None:
    from ray.train.examples.pytorch.torch_linear_example import train_func

    result = tuner.run(
        train_func,
        {"lr": tuner.loguniform(1e-4, 1e-2), "epochs": 3, "batch_size": 64},
        metric="loss",
        mode="min",
        num_samples=2,
        **asha(3),
        **TWO_RANKS,
    )
    ended_well(result, 2)
