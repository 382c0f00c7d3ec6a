"""The example of every form of training code, on two ranks, under ASHA and PBT."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.examples.scripts import example
from tuner.settings import Settings
from tuner.store import Store

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("private_ray")]

SMALL: dict[str, dict[str, Any]] = {
    "ray_tune_function": {"num_samples": 4, "max_t": 9},
    "ray_train_function": {"num_samples": 4, "max_t": 6},
    "ray_trainable": {"num_samples": 4, "max_t": 6},
    "ray_torch_trainer": {"num_samples": 3},
    "ray_lightning": {"num_samples": 3, "max_t": 4},
    "class_form": {"num_samples": 4, "max_t": 6},
    "optuna_objective": {"num_samples": 4},
    "huggingface_trainer": {"num_samples": 3, "max_t": 4},
    "fsdp_transformer": {"num_samples": 3, "max_t": 4},
}


def warnings(result: Any) -> list[str]:
    """Return the warnings in the log of the experiment, such as that its ranks train separate models."""
    with Store.open(Settings.from_env().database_url) as store:
        return [decision.reason for decision in store.log.warnings(store.experiments.get(result.experiment_id).id)]


IN_SHORT = ("optuna_objective",)
"""The forms that run under ASHA in the suite."""
PBT_IN_SHORT = ("class_form", "ray_train_function", "ray_trainable")
"""The forms that run under PBT in the suite. `test_ray_examples.py` and `test_pages.py` run the others in another way."""


@pytest.mark.parametrize(
    "name", [n if n in IN_SHORT else pytest.param(n, marks=pytest.mark.long) for n in sorted(SMALL)]
)
def test_asha_on_two_ranks(name: str) -> None:
    # one group starts in half the time of two, and stays warm
    result = example(name).main("asha", verbose=0, search_alg="random", max_concurrent_trials=1, **SMALL[name])
    assert result.state == "completed", result.error
    assert [t.error for t in result.trials] == [None] * SMALL[name]["num_samples"]
    assert all(t.iterations > 0 for t in result.trials)
    if name in ("huggingface_trainer", "fsdp_transformer"):
        assert not any("separate models" in warning for warning in warnings(result))
    assert result.best_value is not None
    if name != "optuna_objective":  # which saves nothing
        assert result.best_checkpoint is not None
    else:
        assert all({"alpha", "loss", "penalty"} <= set(t.config) for t in result.trials)
        assert all(t.notes == {"classes": 10} for t in result.trials)


BAD_AND_GOOD = {  # of what PBT changes; the good one within its bounds. And max_t: two intervals
    "ray_tune_function": ("alpha", 1.0, 1e-3, 6),
    "ray_train_function": ("lr", 1e-3, 0.05, 6),
    "ray_trainable": ("lr", 1e-3, 0.05, 6),
    "ray_torch_trainer": ("train_loop_config/lr", 1e-3, 0.05, 4),
    "ray_lightning": ("lr", 1e-3, 0.05, 4),
    "class_form": ("lr", 1e-3, 0.5, 6),
    "optuna_objective": ("alpha", 1.0, 1e-3, 6),
    "huggingface_trainer": ("lr", 1e-4, 5e-3, 6),
    "fsdp_transformer": ("lr", 1e-4, 5e-3, 6),
}


@pytest.mark.parametrize(
    "name", [n if n in PBT_IN_SHORT else pytest.param(n, marks=pytest.mark.long) for n in sorted(SMALL)]
)
def test_pbt_on_two_ranks(name: str) -> None:
    """The worse of two trials continues from the better one's checkpoint, and reports its new value."""
    path, bad, good, max_t = BAD_AND_GOOD[name]
    result = example(name).main(
        "pbt",
        verbose=0,
        search_alg="random",
        num_samples=2,
        max_t=max_t,
        points_to_evaluate=[{path: bad}, {path: good}],
        max_concurrent_trials=1,  # one group, in which they take turns
    )
    assert result.state == "completed", result.error
    assert [t.error for t in result.trials] == [None] * 2
    with Store.open(Settings.from_env().database_url) as store:
        segments = {trial.number: store.trials.get(trial.id).segments for trial in result.trials}
    exploits = [segment for trial in segments.values() for segment in trial if segment.cause == "exploit"]
    assert exploits
    assert all(segment.start_iteration > 0 for segment in exploits)
    assert all(segment.params[path] not in (bad, good) for segment in exploits)
    for trial in result.trials:
        if name == "optuna_objective":
            assert trial.notes["alpha"] == pytest.approx(segments[trial.number][-1].params[path])
            continue
        in_force = [row[path.rpartition("/")[2]] for row in trial.history]
        assert in_force == pytest.approx(
            [segments[trial.number][int(row["segment"]) - 1].params[path] for row in trial.history]
        )
    if name == "huggingface_trainer":  # the Trainer goes on at the epoch of its checkpoint
        assert all(row["epoch"] == row["training_iteration"] for trial in result.trials for row in trial.history)
    if name == "fsdp_transformer":
        assert result.best_checkpoint is not None
        with result.best_checkpoint.as_directory() as folder:
            assert sorted(os.listdir(folder)) == [".metadata", "__0_0.distcp", "__1_0.distcp"]


def test_several_objectives_with_a_warm_start() -> None:
    result = example("optuna_multi_objective").main(verbose=0, num_samples=6)
    assert result.state == "completed", result.error
    assert all(set(t.metrics) == {"cost", "distance"} for t in result.trials)
    assert all(0 <= t.config["x"] <= 5 for t in result.trials)
