"""Schedulers by name, from JSON, from Python, and from Ray Tune's objects."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest

import tuner
from tests.fuzz import world
from tests.schedulers import examples
from tests.schedulers.driving import context
from tests.schedulers.oracles import ray_schedulers
from tuner import schedulers
from tuner.errors import SpecError
from tuner.schedulers import ASHAScheduler, AsyncHyperBandScheduler, FIFOScheduler, from_argument, from_json
from tuner.schedulers.from_ray import objective_of

ROOT = Path(__file__).parents[2]


def test_public_names_are_sorted_and_there() -> None:
    assert schedulers.__all__ == sorted(
        schedulers.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name)
    )
    assert all(getattr(schedulers, name) is not None for name in schedulers.__all__)
    assert tuner.ASHAScheduler is ASHAScheduler is AsyncHyperBandScheduler
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        schedulers.Nothing  # noqa: B018


@pytest.mark.parametrize("name", sorted(schedulers.REGISTRY))
def test_every_scheduler_is_in_every_list(name: str) -> None:
    """The steps of CONTRIBUTING.md for a new scheduler."""
    cls = schedulers.REGISTRY[name][1]
    source = (ROOT / "tuner" / "schedulers" / "__init__.py").read_text()
    folded = {data["type"] for data in examples.SCHEDULERS.values()}
    folded |= {"async_hyperband", "freeze_thaw"}  # another name of asha; its own tests fold it
    places = {
        "tuner.schedulers.__all__": cls in schedulers.__all__,
        "tuner.__all__": cls in tuner.__all__,
        "for type checkers": re.search(rf"^    from .* import .*\b{cls}\b", source, re.MULTILINE),
        "docs/schedulers.md": f"`{name}`" in (ROOT / "docs" / "schedulers.md").read_text(),
        "tests/schedulers/examples.py": name in folded,
    }
    missing = [place for place, is_there in places.items() if not is_there]
    assert missing == [], f"{cls} is missing in {', '.join(missing)}"


def test_the_fuzzer_takes_its_schedulers_from_the_examples() -> None:
    fuzzed = {data["type"] for kinds in world.SCHEDULERS.values() for data in kinds}
    assert fuzzed | {"async_hyperband"} == schedulers.REGISTRY.keys()


def needed_by(name: str) -> list[str]:
    """Return the options without a default."""
    parameters = inspect.signature(getattr(schedulers, schedulers.REGISTRY[name][1])).parameters
    return [parameter.name for parameter in parameters.values() if parameter.default is parameter.empty]


@pytest.mark.parametrize("name", schedulers.REGISTRY)
def test_every_type_is_built_with_its_defaults(name: str) -> None:
    if needed := needed_by(name):
        with pytest.raises(SpecError) as caught:
            from_argument(name)
        assert [pointer for pointer, _ in caught.value.errors] == [f"/scheduler/{option}" for option in needed]
        return
    scheduler = from_json({"type": name})
    scheduler.setup(context(max_t=27, num_samples=10))
    assert from_json(scheduler.to_json()).to_json() == scheduler.to_json()
    assert from_argument(name).to_json() == scheduler.to_json()
    assert from_argument(scheduler) is scheduler


@pytest.mark.parametrize(
    ("data", "pointer", "says"),
    [
        ({"type": "ashaa"}, "/scheduler/type", "unknown scheduler 'ashaa'; did you mean asha?"),
        ({}, "/scheduler/type", "unknown scheduler None"),
        ({"type": "asha", "max_T": 3}, "/scheduler/max_T", "unknown option; did you mean max_t?"),
        ({"type": "asha", "metric": "m"}, "/scheduler/metric", "it belongs to the experiment"),
        ({"type": "asha", "max_t": 2, "grace_period": 4}, "/scheduler/max_t", "at least grace_period"),
        ({"type": "pbt", "quantile": 0.1}, "/scheduler/quantile", "did you mean quantile_fraction?"),
        (
            {"type": "hyperband", "reduction_factor": True},
            "/scheduler/reduction_factor",
            "expected a number, got bool True",
        ),
        ({"type": "fifo", "max_t": 3}, "/scheduler/max_t", "unknown option; there are none"),
        ([], "/scheduler", 'expected {"type": ..., ...}'),
    ],
)
def test_errors_say_where_and_what_is_near(data: Any, pointer: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        from_json(data)
    assert caught.value.errors[0][0] == pointer
    assert says in caught.value.errors[0][1]


def test_several_errors_come_together() -> None:
    with pytest.raises(SpecError) as caught:
        from_json({"type": "asha", "max_T": 3, "grace": 1})
    assert [pointer for pointer, _ in caught.value.errors] == ["/scheduler/max_T", "/scheduler/grace"]


def test_rays_schedulers_are_understood() -> None:
    asha = ray_schedulers.ASHAScheduler(
        metric="m", mode="min", max_t=27, grace_period=3, reduction_factor=3, brackets=2
    )
    assert from_argument(asha).to_json() == {
        "type": "asha",
        "max_t": 27,
        "grace_period": 3,
        "reduction_factor": 3,
        "brackets": 2,
        "time_attr": "training_iteration",
    }
    assert objective_of(asha) == ("m", "min")
    assert objective_of(None) == objective_of("asha") == (None, None)
    assert isinstance(from_argument(ray_schedulers.FIFOScheduler()), FIFOScheduler)
    assert from_argument(ray_schedulers.HyperBandScheduler(max_t=9)).to_json()["max_t"] == 9
    median = from_argument(ray_schedulers.MedianStoppingRule(grace_period=5, hard_stop=False)).to_json()
    assert (median["grace_period"], median["hard_stop"], median["time_attr"]) == (5, False, "time_total_s")
    pbt = from_argument(
        ray_schedulers.PopulationBasedTraining(
            time_attr="training_iteration", perturbation_interval=4, hyperparam_mutations={"lr": [0.01, 0.1]}
        )
    ).to_json()
    assert (pbt["perturbation_interval"], pbt["hyperparam_mutations"]) == (4, {"lr": [0.01, 0.1]})
    assert from_argument(ray_schedulers.HyperBandForBOHB(max_t=9)).to_json()["type"] == "hyperband"
    with pytest.raises(SpecError, match="pass the base_scheduler of the ResourceChangingScheduler, and num_workers="):
        from_argument(ray_schedulers.ResourceChangingScheduler())
    with pytest.raises(SpecError, match="stop_last_trials=False"):
        from_argument(ray_schedulers.ASHAScheduler(stop_last_trials=False))
    with pytest.raises(SpecError, match="expected a scheduler"):
        from_argument(3)


def test_rays_domains_are_understood_as_mutations() -> None:
    from ray import tune

    theirs = ray_schedulers.PopulationBasedTraining(
        time_attr="training_iteration",
        hyperparam_mutations={"lr": tune.loguniform(1e-4, 1e-2), "opt": {"0": {"momentum": tune.uniform(0, 0.9)}}},
    )
    ours = from_argument(theirs)
    ours.setup(context(num_samples=4))
    assert ours.to_json()["hyperparam_mutations"]["lr"] == {"type": "loguniform", "lower": 1e-4, "upper": 1e-2}


def test_importing_the_registry_loads_no_scheduler_and_no_ray() -> None:
    code = "import sys, tuner.schedulers; print([m for m in sys.modules if m.split('.')[0] in ('ray', 'torch', 'sqlalchemy')"
    code += " or m.startswith('tuner.schedulers.') and m.rsplit('.', 1)[1] in ('asha', 'pbt', 'freeze_thaw')])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


@pytest.mark.parametrize(
    ("pruner", "instead"),
    [
        (optuna.pruners.MedianPruner(), "Optuna's MedianPruner is not supported; use scheduler='median'"),
        (optuna.pruners.HyperbandPruner(), "use scheduler='hyperband'"),
        (optuna.pruners.ThresholdPruner(lower=0), "use stop={metric: value}"),
    ],
)
def test_a_pruner_of_optuna_is_no_scheduler(pruner: object, instead: str) -> None:
    with pytest.raises(SpecError, match=instead):
        from_argument(pruner)
