"""Names that are nearly right are answered with the one that was meant."""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy
import pytest

import tuner
from tuner import schedulers, search
from tuner.errors import SpecError
from tuner.experiment.specs.model import OPTIONS
from tuner.names import ELSEWHERE, did_you_mean, keywords_explained, printable

OBJECTIVE: dict[str, Any] = {"metric": "loss", "mode": "min"}


@pytest.mark.parametrize("function", [tuner.run, tuner.simulate])
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("num_sample", "; did you mean 'num_samples'?"),
        ("Max_T", "; did you mean 'max_t'?"),
        ("n_trials", "; did you mean 'num_samples'?"),
        ("sampler", "; did you mean 'search_alg'?"),
        ("algo", "; did you mean 'search_alg'?"),
        ("max_evals", "; did you mean 'num_samples'?"),
        ("direction", "; did you mean 'mode'?"),
        ("timeout", "; did you mean 'time_budget_s'?"),
        ("n_jobs", "; did you mean 'max_concurrent_trials'?"),
        ("pruner", "; did you mean 'scheduler'?"),
        ("max_resource", "; did you mean 'max_t'?"),
        ("load_if_exists", "; tuner.resume(experiment_id) continues an earlier search"),
        ("constraints", "; a searcher takes them: search_alg={'type': 'tpe', 'constraints': {'size': {'max': 0.25}}}"),
        ("raise_on_failed_trial", "; a failed trial raises no exception; see result.errors"),
        ("failure_config", "; did you mean 'max_failures'?"),
        ("restore", "; tuner.resume(experiment_id) continues an earlier search"),
        ("parameters", "; did you mean 'space'?"),
        ("param_grid", "; did you mean 'space'?"),
        ("scoring", "; did you mean 'metric'?"),
        ("num_epochs", "; did you mean 'max_t'?"),
        ("zzzz", ""),
    ],
)
def test_an_unknown_keyword_names_the_one_that_was_meant(function: Any, name: str, meant: str) -> None:
    with pytest.raises(TypeError) as caught:
        function(lambda config: None, {}, **OBJECTIVE, **{name: 3})
    assert str(caught.value) == f"{function.__name__}() has no parameter {name!r}{meant}"


def test_bounds_have_rays_names() -> None:
    with pytest.raises(TypeError, match="'low'; did you mean 'lower'.*'high'; did you mean 'upper'"):
        tuner.loguniform(low=1e-4, high=1e-1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'high'; did you mean 'upper'\? The largest integer is upper - 1"):
        tuner.randint(low=1, high=8)  # type: ignore[call-arg]


@pytest.mark.parametrize("function", [tuner.choice, tuner.grid_search])
def test_categories_are_one_list(function: Any) -> None:
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) takes one list, as in {function.__name__}\(\["):
        function("adam", "sgd")


def test_every_unknown_keyword_is_named_at_once() -> None:
    with pytest.raises(
        TypeError, match=r"'num_sample'; did .*; run\(\) has no parameter 'schedular'; did you mean 'scheduler'"
    ):
        tuner.run(lambda config: None, {}, **OBJECTIVE, num_sample=3, schedular="asha")  # type: ignore[call-arg]


@pytest.mark.parametrize("function", [tuner.run, tuner.simulate, tuner.create_study])
@pytest.mark.parametrize(
    ("parts", "name", "meant"),
    [
        ({"scheduler": "asha"}, "brackets", "scheduler: scheduler={'type': 'asha', 'brackets': 3}"),
        ({"scheduler": "pbt_replay"}, "schedule", "scheduler: scheduler={'type': 'pbt_replay', 'schedule': 3}"),
        (
            {"scheduler": {"type": "asha", "grace_period": 2}},
            "brackets",
            "scheduler: scheduler={'type': 'asha', 'grace_period': 2, 'brackets': 3}",
        ),
        ({"scheduler": tuner.ASHAScheduler()}, "brackets", "scheduler: scheduler=ASHAScheduler(brackets=3)"),
        (
            {"scheduler": "asha", "search_alg": "tpe"},
            "n_startup_trials",
            "searcher: search_alg={'type': 'tpe', 'n_startup_trials': 3}",
        ),
    ],
)
def test_an_option_of_the_scheduler_is_passed_in_the_scheduler(
    function: Any, parts: dict[str, Any], name: str, meant: str
) -> None:
    with pytest.raises(TypeError) as caught:
        function(lambda config: None, {}, **OBJECTIVE, **parts, **{name: 3})
    assert str(caught.value) == f"{function.__name__}() has no parameter {name!r}; it is an option of the {meant}"


@pytest.mark.parametrize("scheduler", ["median", {"type": []}, {"type": "ash"}, None, 3])
def test_an_option_of_another_scheduler_is_no_hint(scheduler: Any) -> None:
    with pytest.raises(TypeError, match=r"run\(\) has no parameter 'brackets'; did you mean 'backend'\?(?m:$)"):
        tuner.run(lambda config: None, {}, **OBJECTIVE, scheduler=scheduler, brackets=3)  # type: ignore[call-arg]


def test_resume_too() -> None:
    with pytest.raises(TypeError, match="did you mean 'ray_address'"):
        tuner.resume("exp_1", rayaddress="auto")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"no parameter 'resume_errored'; tuner.resume\(experiment_id, retry="):
        tuner.resume("exp_1", resume_errored=True)  # type: ignore[call-arg]


def test_a_study_names_the_database_in_place_of_a_storage() -> None:
    with pytest.raises(TypeError, match="no parameter 'storage'; everything is in one database"):
        tuner.create_study({}, storage="sqlite:///optuna.db", **OBJECTIVE)  # type: ignore[call-arg]


def test_options_may_be_integers_of_numpy() -> None:
    three: Any = numpy.int64(3)
    given = tuner.ASHAScheduler(max_t=numpy.int32(27), grace_period=three, reduction_factor=three)  # type: ignore[arg-type]
    plain = tuner.ASHAScheduler(max_t=27, grace_period=3, reduction_factor=3)
    assert json.dumps(given.to_json()) == json.dumps(plain.to_json())
    assert search.TPESearch(n_startup_trials=three).to_json() == search.TPESearch(n_startup_trials=3).to_json()
    pbt = tuner.PopulationBasedTraining(
        hyperparam_mutations={"width": [three, 5], "lr": tuner.uniform(0, 1)}, perturbation_factors=(three, 0.5)
    )
    assert json.loads(json.dumps(pbt.to_json()))["hyperparam_mutations"]["width"] == [3, 5]
    assert pbt.to_json()["perturbation_factors"] == [3, 0.5]
    with pytest.raises(SpecError, match="expected a number, got ndarray"):
        tuner.ASHAScheduler(max_t=numpy.array([27, 9]))  # type: ignore[arg-type]


def test_options_of_schedulers_too() -> None:
    with pytest.raises(TypeError, match=r"ASHAScheduler\(\) has no parameter 'max_T'; did you mean 'max_t'"):
        tuner.ASHAScheduler(max_T=27)  # type: ignore[call-arg]
    with pytest.raises(
        TypeError, match=r"PopulationBasedTraining\(\) has no parameter 'quantile'; did you mean 'quantile_"
    ):
        tuner.PopulationBasedTraining(quantile=0.25)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("make", "name", "hint"),
    [
        (tuner.ASHAScheduler, "eta", "did you mean 'reduction_factor'?"),
        (tuner.ASHAScheduler, "max_resource", "did you mean 'max_t'?"),
        (tuner.ASHAScheduler, "min_resource", "did you mean 'grace_period'?"),
        (tuner.HyperBandScheduler, "max_iter", "did you mean 'max_t'?"),
        (tuner.MedianStoppingRule, "n_warmup_steps", "did you mean 'grace_period'?"),
        (tuner.FreezeThawScheduler, "max_epochs", "did you mean 'max_t'?"),
        (tuner.ASHAScheduler, "metric", "it belongs to the experiment"),
        (tuner.ASHAScheduler, "direction", "it belongs to the experiment, as mode"),
        (search.TPESearch, "n_startup", "did you mean 'n_startup_trials'?"),
        (search.TPESearch, "n_trials", "it belongs to the experiment, as num_samples"),
        (search.TPESearch, "seed", "it belongs to the experiment"),
    ],
)
def test_what_others_call_an_option(make: Any, name: str, hint: str) -> None:
    with pytest.raises(TypeError) as caught:
        make(**{name: 3})
    assert str(caught.value) == f"{make.__name__}() has no parameter {name!r}; {hint}"


def test_every_name_of_ours_in_the_table_is_one_that_somebody_takes() -> None:
    """No hint repeats the name that was given."""
    taken = {name for part in (tuner.run, tuner.simulate, tuner.uniform) for name in inspect.signature(part).parameters}
    for module in (schedulers, search):
        taken |= set(module.REGISTRY)
        for name in module._MODULE_OF:
            taken |= set(inspect.signature(getattr(module, name)).parameters)
    for section, options in OPTIONS.items():
        taken |= {f"{section}.{option}" if section else option for option in options}
    assert {ours for known in ELSEWHERE.values() for ours in known} <= taken
    assert not [name for name, known in ELSEWHERE.items() if name in known or name != name.lower()]


def test_a_name_from_elsewhere_is_only_suggested_where_it_exists() -> None:
    @keywords_explained
    def small(space: Any = None) -> Any:
        return space

    assert small(space=1) == 1
    with pytest.raises(TypeError, match=r"no parameter 'config'; did you mean 'space'"):
        small(config=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"no parameter 'pruner'(?m:$)"):
        small(pruner=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("function", [tuner.run, tuner.simulate, tuner.resume])
def test_the_signature_is_still_there_to_be_read(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    assert not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters.values())
    assert function.__doc__


def test_capitals_do_not_matter() -> None:
    assert did_you_mean("MAX_T", ["max_t", "mode"]) == "; did you mean max_t?"
    assert did_you_mean("acuracy", ["loss", "Accuracy"]) == "; did you mean Accuracy?"
    assert did_you_mean("other", ["loss"]) == ""


def test_nothing_that_a_terminal_obeys_is_printed() -> None:
    assert printable("\x1b]0;owned\x07\x1b[31mred\x9b0m\r") == "\ufffd]0;owned\ufffd\ufffd[31mred\ufffd0m\ufffd"
    assert printable("Straße, 時間\n\tof two lines") == "Straße, 時間\n\tof two lines"
