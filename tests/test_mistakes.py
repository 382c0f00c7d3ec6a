"""Everything that is wrong with the arguments of `tuner.run` is said at once."""

from __future__ import annotations

import functools
from typing import Any

import optuna
import pytest
import scipy.stats

import tuner
from tuner.errors import EntrypointError, ErrorCollector, SpecError
from tuner.sdk import cautions


def run(space: Any = None, **options: Any) -> dict[str, str]:
    """Return pointer -> message."""
    given = {"metric": "loss", "mode": "min", **options}
    with pytest.raises(SpecError) as caught:
        tuner.run(lambda config: None, space if space is not None else {"x": tuner.uniform(0, 1)}, **given)
    found = dict(caught.value.errors)
    assert len(found) == len(caught.value.errors), "each once"
    return found


def test_parts_that_are_wrong_in_python_and_fields_that_are_wrong_in_the_spec() -> None:
    found = run(
        {"x": tuner.choice([])},
        mode="most",
        num_samples=0,
        scheduler={"type": "ash"},
        search_alg="tpee",
        stop=3,
        resources_per_worker={"CPUs": 1},
        points_to_evaluate=[{"y": 1}],
    )
    assert set(found) == {
        "/space/x/categories",
        "/scheduler/type",
        "/search/type",
        "/stop",
        "/mode",
        "/num_samples",
        "/scaling/resources_per_worker/CPUs",
    }, "what lies in the spec itself, and no guesses about what may fit a space that cannot be read"
    assert set(run(scheduler="ash", resources_per_worker={"CPUs": 1}, points_to_evaluate=[{"y": 1}])) == {
        "/scheduler/type",
        "/scaling/resources_per_worker/CPUs",
        "/points_to_evaluate/0/y",
    }


def test_what_users_of_other_libraries_pass() -> None:
    found = run(scheduler=tuner.ASHAScheduler, search_alg="optuna", stop=lambda metrics: True, storage="s3:/bucket")
    assert found["/scheduler"] == "expected a scheduler, not its class; write ASHAScheduler()"
    assert found["/search/sampler"] == 'needed: an option without a default; pass {"type": "optuna", "sampler": ...}'
    assert found["/stop/function"].startswith(
        "expected a function of two arguments, the number of a trial and the metrics"
    )
    assert found["/checkpoint/storage"] == "expected s3://, with two slashes, got 's3:/bucket'"
    assert run(points_to_evaluate={"x": 0.5}) == {"/points_to_evaluate": 'expected a list, got {"x": 0.5}'}
    assert run(points_to_evaluate=[[0.5]]) == {"/points_to_evaluate/0": "expected an object, got [0.5]"}


def test_a_name_alone_is_answered_with_the_form_that_has_the_required_options() -> None:
    needed = "needed: an option without a default"
    found = run(scheduler="pbt_replay", search_alg={"type": "optuna", "sample": "TPE"})
    assert found == {
        "/scheduler/schedule": needed + '; pass {"type": "pbt_replay", "schedule": ...}',
        "/search/sample": "unknown option; did you mean sampler?",
    }


def test_a_part_that_is_right_is_checked_beside_one_that_is_wrong() -> None:
    asha = tuner.ASHAScheduler(grace_period=10)
    assert set(run(scheduler=asha, search_alg="tpee", max_t=5)) == {"/search/type", "/scheduler/max_t"}
    grid = {"x": tuner.grid_search([1, 2])}
    assert set(run(grid, scheduler="ash", search_alg="cmaes")) == {"/search", "/scheduler/type"}


def test_a_list_where_nothing_is_chosen_is_wondered_at() -> None:
    with pytest.warns(UserWarning, match=r"lr has the fixed value \[0.1, 0.2\] in all trials: tuner.choice") as caught:
        cautions.warn_of_lists({"lr": [0.1, 0.2], "width": 32})
    assert len(caught) == 1
    with pytest.warns(UserWarning, match=r"lr has the fixed value range\(0, 3\) in all trials"):
        cautions.warn_of_lists({"lr": range(3)})
    cautions.warn_of_lists({"width": 32})


def test_a_first_argument_that_is_a_parameter_is_wondered_at() -> None:
    def train(lr, width=3):  # type: ignore[no-untyped-def]
        return lr * width

    def whole(lr: dict[str, Any]) -> Any:
        return sorted(lr)

    @functools.wraps(train)
    def unpacking(config: dict[str, Any]) -> Any:
        return train(**config)

    with pytest.warns(UserWarning, match=r"whole configuration.* lr: write def train\(config\), and config\[.lr.\]"):
        cautions.warn_of_first_argument(train, {"lr": tuner.uniform(0, 1)})
    cautions.warn_of_first_argument(train, {"lr": {"start": tuner.uniform(0, 1)}})
    cautions.warn_of_first_argument(train, {"width": tuner.choice([1, 2])})
    cautions.warn_of_first_argument(whole, {"lr": tuner.uniform(0, 1)})
    cautions.warn_of_first_argument(lambda lr: lr["lr"], {"lr": tuner.uniform(0, 1)})
    cautions.warn_of_first_argument(unpacking, {"lr": tuner.uniform(0, 1)})
    cautions.warn_of_first_argument(lambda config: config, {"config": tuner.choice(["a.yaml", "b.yaml"])})


@pytest.mark.parametrize(
    "value",
    [
        {"values": [16, 32]},
        {"min": 0.1, "max": 0.2},
        {"distribution": "log_uniform_values", "min": 1e-4, "max": 0.9},
        {"distribution": "q_uniform", "min": 1, "max": 9, "q": 2},
        {"distribution": "normal", "mu": 0, "sigma": 1},
    ],
)
def test_a_parameter_of_a_sweep_is_wondered_at(value: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match=r"lr has the same value in all trials, .* W&B sweep, write tuner.choice"):
        run({"lr": value}, num_samples=0)


@pytest.mark.parametrize(
    "space", [{"x": tuner.uniform(0, 1), "opt": {"lr": "uniform(0, 1)"}}, {"lr": "tuner.uniform(0, 1)"}]
)
def test_a_text_with_a_domain_is_wondered_at(space: dict[str, Any]) -> None:
    """Only the log of the experiment said so."""
    with pytest.warns(UserWarning, match=r"lr has the same value in all trials, .*write tuner.uniform\(\.\.\.\)"):
        run(space, num_samples=0)


@pytest.mark.parametrize(
    "value",
    [[0.1, 0.2], {"values": [1, 2]}, {"type": "uniform", "lower": 0, "upper": 1}, {"lower": 0, "upper": 1}],
    ids=["list", "sweep", "JSON form", "bounds"],
)
def test_a_constant_in_a_group_is_wondered_at_once(value: Any, recwarn: pytest.WarningsRecorder) -> None:
    run({"opt": {"lr": value, "momentum": 0.9}}, num_samples=0)
    assert [str(warning.message).split(" has the ")[0] for warning in recwarn.list] == ["opt/lr"]


def test_a_group_of_constants_is_not_wondered_at(recwarn: pytest.WarningsRecorder) -> None:
    cautions.warn_of_sweeps({"clip": {"min": 0, "max": 1, "each": True}, "lr": 0.1, "a": {}})
    assert not recwarn.list


def test_a_threshold_of_a_metric_that_is_minimized_is_wondered_at(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.warns(
        UserWarning, match=r"at or above 0.1, though loss is minimized.*metrics\['loss'\] <= 0.1.*Stopper"
    ):
        run(num_samples=0, stop={"loss": 0.1})
    recwarn.clear()
    run(num_samples=0, stop={"loss": 0.1}, mode="max")
    run(
        num_samples=0, stop=tuner.stoppers.ThresholdStopper({"loss": 1e6})
    )  # the warning names it, for trials that diverge
    run(num_samples=0, stop={"accuracy": 0.9, "training_iteration": 3})
    assert not recwarn.list


def test_points_that_no_trial_is_left_for_are_wondered_at(recwarn: pytest.WarningsRecorder) -> None:
    points = [{"x": 0.1}, {"x": 0.2}, {"x": 0.3}]
    with pytest.warns(
        UserWarning, match=r"num_samples is 2, so 1 point of the 3 .* will not be run: pass num_samples=3"
    ):
        run(num_samples=2, points_to_evaluate=points, max_t=-1)
    recwarn.clear()
    run(num_samples=3, points_to_evaluate=points, max_t=-1)
    run(points_to_evaluate=points, max_t=-1)
    run({"x": tuner.grid_search([0.1, 0.2, 0.3])}, num_samples=1, points_to_evaluate=points, max_t=-1)
    run({"x": tuner.choice([0.1, 0.2, 0.3])}, num_samples=1, points_to_evaluate=points, max_t=-1, search_alg="grid")
    assert not recwarn.list


def test_a_metric_as_a_sweep_has_it_is_refused() -> None:
    """Its keys had been taken for the names of two metrics."""
    assert run(metric={"name": "loss", "goal": "minimize"}) == {
        "/metric": 'expected the name of a metric, or a list of names, got {"name": "loss", "goal": "minimize"}'
    }


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ({"type": "loguniform", "lower": 1e-4, "upper": 1}, "loguniform"),
        ({"type": "loguniformm", "lower": 1e-4, "upper": 1}, "loguniform"),
        ({"type": "choice", "categories": [1, 2]}, "choice"),
    ],
)
def test_the_json_form_of_a_domain_is_wondered_at(value: dict[str, Any], meant: str) -> None:
    with pytest.warns(UserWarning, match=rf"lr has the same value in all trials, .*tuner.{meant}\(\.\.\.\)"):
        cautions.warn_of_json_forms({"lr": value, "width": 32})


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (scipy.stats.loguniform(1e-4, 1), "a distribution of SciPy, (log)?uniform|a distribution of SciPy, reciprocal"),
        (scipy.stats.randint(1, 9), "a distribution of SciPy, randint"),
        (optuna.distributions.IntDistribution(1, 9), "Optuna's IntDistribution"),
    ],
    ids=["continuous", "discrete", "optuna"],
)
def test_a_distribution_of_another_library_is_wondered_at(value: Any, meant: str) -> None:
    with pytest.warns(UserWarning, match=rf"svc/C has the same value in all trials, ({meant}).*write tuner.uniform"):
        run({"svc": {"C": value}, "x": tuner.uniform(0, 1)}, num_samples=0)


def test_a_group_of_parameters_with_a_type_is_not_wondered_at(recwarn: pytest.WarningsRecorder) -> None:
    cautions.warn_of_json_forms({"optimizer": {"type": "sgd", "momentum": 0.9}, "init": {"type": "normal", "std": 1}})
    assert not recwarn.list


def test_a_misspelt_name_of_the_package_has_a_suggestion() -> None:
    with pytest.raises(AttributeError) as caught:
        tuner.logunifrom  # type: ignore[attr-defined]  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("logunifrom", tuner)
    with pytest.raises(AttributeError, match=r"no attribute 'CheckpointConfig'; tuner.run takes checkpoint="):
        tuner.CheckpointConfig  # type: ignore[attr-defined]  # noqa: B018


def test_other_errors_pass_through() -> None:
    mistakes = ErrorCollector()
    with mistakes:
        raise SpecError("wrong", "/a")
    with pytest.raises(ZeroDivisionError), mistakes:
        raise ZeroDivisionError
    with pytest.raises(SpecError, match="a: wrong"):
        mistakes.check()
    ErrorCollector().check()


def test_where_a_mistake_came_from_is_kept() -> None:
    mistakes, cause = ErrorCollector(), KeyError("of the user's searcher")
    with mistakes:
        raise EntrypointError("cannot be set up", "/search") from cause
    with pytest.raises(EntrypointError) as alone:
        mistakes.check()
    assert alone.value.__cause__ is cause
    with mistakes:
        raise SpecError("wrong", "/space")
    with pytest.raises(SpecError, match="cannot be set up; space: wrong") as both:
        mistakes.check()
    assert both.value.__cause__ is alone.value
