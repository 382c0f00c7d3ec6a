"""Names that are nearly right are answered with the one that was meant."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import tuner
from tuner.names import did_you_mean, keywords_explained

OBJECTIVE: dict[str, Any] = {"metric": "loss", "mode": "min"}


@pytest.mark.parametrize("function", [tuner.run, tuner.simulate])
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("num_sample", "; did you mean 'num_samples'?"),
        ("Max_T", "; did you mean 'max_t'?"),
        ("n_trials", "; did you mean 'num_samples'?"),
        ("sampler", "; did you mean 'search_alg'?"),
        ("zzzz", ""),
    ],
)
def test_an_unknown_keyword_names_the_one_that_was_meant(function: Any, name: str, meant: str) -> None:
    with pytest.raises(TypeError) as caught:
        function(lambda config: None, {}, **OBJECTIVE, **{name: 3})
    assert str(caught.value) == f"{function.__name__}() has no parameter {name!r}{meant}"


def test_every_unknown_keyword_is_named_at_once() -> None:
    with pytest.raises(
        TypeError, match=r"'num_sample'; did .*; run\(\) has no parameter 'schedular'; did you mean 'scheduler'"
    ):
        tuner.run(lambda config: None, {}, **OBJECTIVE, num_sample=3, schedular="asha")  # type: ignore[call-arg]


def test_resume_too() -> None:
    with pytest.raises(TypeError, match="did you mean 'ray_address'"):
        tuner.resume("exp_1", rayaddress="auto")  # type: ignore[call-arg]


def test_options_of_schedulers_too() -> None:
    with pytest.raises(TypeError, match=r"ASHAScheduler\(\) has no parameter 'max_T'; did you mean 'max_t'"):
        tuner.ASHAScheduler(max_T=27)  # type: ignore[call-arg]
    with pytest.raises(
        TypeError, match=r"PopulationBasedTraining\(\) has no parameter 'quantile'; did you mean 'quantile_"
    ):
        tuner.PopulationBasedTraining(quantile=0.25)  # type: ignore[call-arg]


def test_a_name_from_elsewhere_is_only_suggested_where_it_exists() -> None:
    @keywords_explained
    def small(space: Any = None) -> Any:
        return space

    assert small(space=1) == 1
    with pytest.raises(TypeError, match=r"no parameter 'config'; did you mean 'space'"):
        small(config=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"no parameter 'pruner'$"):
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
