"""Every form in which training code may come, by its example: on two ranks under ASHA, and two of them under PBT."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from tuner.driver.cluster import connect

pytestmark = [pytest.mark.ray, pytest.mark.slow]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL: dict[str, dict[str, Any]] = {
    "ray_tune_function": {"num_samples": 4, "max_t": 9},
    "ray_train_function": {"num_samples": 4, "max_t": 6},
    "ray_trainable": {"num_samples": 4, "max_t": 6},
    "ray_torch_trainer": {"num_samples": 3},
    "ray_lightning": {"num_samples": 3, "max_t": 4},
    "class_form": {"num_samples": 4, "max_t": 6},
    "optuna_objective": {"num_samples": 4},
}


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    import ray

    connect(cpus=2)
    yield
    ray.shutdown()


def example(name: str) -> Any:
    """The example as a script is: a module that no worker can import, so that its functions travel by value."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)
    return module


CASES = [*((name, "asha") for name in sorted(SMALL)), ("class_form", "pbt"), ("ray_trainable", "pbt")]


@pytest.mark.parametrize(("name", "scheduler"), CASES)
def test_on_two_ranks(name: str, scheduler: str) -> None:
    # one group starts in half the time of two, and stays warm
    alone = {"max_concurrent_trials": 1} if scheduler == "asha" else {}
    result = example(name).main(scheduler, verbose=0, search_alg="random", **alone, **SMALL[name])
    assert result.state == "completed", result.error
    assert [t.error for t in result.trials] == [None] * SMALL[name]["num_samples"]
    assert all(t.iterations > 0 for t in result.trials)
    assert result.best_value is not None
    if (name, scheduler) != ("optuna_objective", "asha"):  # which saves nothing
        assert result.best_checkpoint is not None
    else:
        assert all({"alpha", "loss", "penalty"} <= set(t.config) for t in result.trials)
        assert all(t.notes == {"classes": 10} for t in result.trials)


def test_several_objectives_with_a_warm_start() -> None:
    result = example("optuna_multi_objective").main(verbose=0, num_samples=6)
    assert result.state == "completed", result.error
    assert all(set(t.metrics) == {"cost", "distance"} for t in result.trials)
    assert all(0 <= t.config["x"] <= 5 for t in result.trials)
