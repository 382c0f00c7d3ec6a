"""BOHB's searcher against HpBandSter, its reference implementation, and against the definition computed slowly."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ks_2samp, norm

import tuner
from tests.search.driving import CONDITIONAL, TWO, make, task
from tuner.domain.experiment import Objective
from tuner.domain.segments import Failure
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.search.bohb import BOHBSearch, Density, _imputed, split
from tuner.space import Space, choice, loguniform, uniform

SPACE = Space.from_python({"a": uniform(0, 1), "b": loguniform(1e-3, 1), "c": choice(["u", "v", "w"])})
LEVELS = np.array([0, 0, 3])


@functools.cache
def recorded() -> dict[str, Any]:
    """Return what `record_hpbandster.py` recorded."""
    data: dict[str, Any] = json.loads((Path(__file__).parents[1] / "fixtures" / "hpbandster.json").read_text())
    return data


def points(results: list[dict[str, Any]]) -> np.ndarray:
    configs = [r["config"] for r in sorted(results, key=lambda r: r["loss"])]
    return np.array([[c["a"], 1 + math.log10(c["b"]) / 3, "uvw".index(c["c"])] for c in configs])


def population(results: list[dict[str, Any]]) -> Population:
    """Return trials that were stopped, each at the budget at which HpBandSter was told its result."""
    trials = Population()
    for number, result in enumerate(results):
        budget = result["budget"]
        values = dict.fromkeys(range(1, budget + 1), result["loss"])
        trials.add(Trial(number, dict(result["config"]), TrialState.STOPPED, iteration=budget, values=values))
    return trials


@pytest.mark.parametrize(("kind", "part"), [("good", slice(0, 12)), ("bad", slice(12, None))])
def test_its_densities_are_those_of_hpbandster(kind: str, part: slice) -> None:
    at = [r for r in recorded()["results"] if r["budget"] == 3]
    assert split(len(at), 4, 15) == (12, 68)
    known = points(at)[part]
    assert len(set(known[:, 2])) == 3, "statsmodels counts only the categories that occur"
    density = Density(known, LEVELS, 1e-3)
    assert density.bandwidth == pytest.approx(recorded()[kind]["bandwidth"], rel=1e-6)
    where = np.array(recorded()["at"])
    assert density(where) == pytest.approx(recorded()[kind]["density"], rel=1e-5)


def test_its_proposals_are_distributed_like_those_of_hpbandster() -> None:
    """Both choose the best of 64 random candidates, so single proposals differ. Their distributions must not."""
    results = recorded()["results"]
    theirs = points([{"loss": 0, "config": dict(zip("abc", p, strict=True))} for p in recorded()["proposals"]])
    # HpBandSter counts a result at one budget only, so the trials of budget 3 have no value at 1 here.
    trials = population(results)
    searcher = make({"type": "bohb", "random_fraction": 0.0}, task(SPACE, (Objective("loss", "min"),)))
    found = [searcher.suggest(number, trials) for number in range(len(results), len(results) + 400)]
    ours = points([{"loss": 0, "config": s.params} for s in found if s is not None])
    assert len(ours) == 400
    for column in range(2):
        assert ks_2samp(ours[:, column], theirs[:, column]).pvalue > 0.01
    assert abs((ours[:, 2] == 1).mean() - (theirs[:, 2] == 1).mean()) < 0.1
    assert abs(ours[:, 0].mean() - 0.5) > 0.1, "the model has learned where good results are"


@pytest.mark.parametrize(("count", "by_model"), [(5, False), (6, True)])
def test_the_model_proposes_as_soon_as_a_budget_has_two_results_more_than_it_needs(count: int, by_model: bool) -> None:
    """It needs 4 results for 3 parameters. All are at one place, so that the model proposes only what is near."""
    config = {"a": 0.5, "b": 0.1, "c": "u"}
    trials = population([{"config": config, "budget": 1, "loss": float(number)} for number in range(count)])
    searcher = make({"type": "bohb", "random_fraction": 0.0}, task(SPACE, (Objective("loss", "min"),)))
    found = [searcher.suggest(number, trials) for number in range(count, count + 5)]
    assert all(one is not None and abs(one.params["a"] - 0.5) < 0.05 for one in found) is by_model


def test_a_density_is_the_mean_of_products_of_kernels() -> None:
    """The definition, computed slowly: Gaussian kernels for numbers, Aitchison-Aitken kernels for choices."""
    rng = np.random.default_rng(0)
    known = np.column_stack([rng.random((7, 2)), rng.integers(3, size=7)])
    density = Density(known, LEVELS, 1e-3)
    for x in np.column_stack([rng.random((5, 2)), rng.integers(3, size=5)]):
        total = 0.0
        for point in known:
            kernel = 1.0
            for j, width in enumerate(1.06 * known.std(0) * 7 ** (-1 / 7)):
                if j < 2:
                    kernel *= norm.pdf(x[j], point[j], width)
                else:
                    width = min(width, 2 / 3)
                    kernel *= 1 - width if x[j] == point[j] else width / 2
            total += kernel / 7
        assert density(x[None])[0] == pytest.approx(total)
    everywhere = np.array([[0.5, 0.5, c] for c in range(3)])
    alone = Density(known[:, 2:], LEVELS[2:], 1e-3)
    assert alone(everywhere[:, 2:]).sum() == pytest.approx(1.0)
    for levels in (1, 2):
        alone = Density(rng.integers(levels, size=(7, 1)).astype(float), np.array([levels]), 1e-3)
        assert alone(np.arange(levels)[:, None]).sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("count", "least", "expected"), [(100, 4, (15, 85)), (6, 4, (4, 4)), (4, 4, (4, 4)), (20, 3, (3, 17))]
)
def test_few_results_are_both_good_and_bad(count: int, least: int, expected: tuple[int, int]) -> None:
    assert split(count, least, 15) == expected


def test_it_learns_at_the_largest_budget_that_has_enough_results() -> None:
    searcher = BOHBSearch()
    searcher.setup(task(SPACE, (Objective("loss", "min"),)))
    few = population([{**r, "budget": 9} for r in recorded()["results"][:3]] + recorded()["results"][3:40])
    observed = searcher._observations(few)
    assert {budget: len(rows) for budget, rows in observed.items()} == {1: 40, 3: 16, 9: 3}
    # A trial that still trains has been past budgets too; its own iteration is none.
    few.add(Trial(40, dict(few[0].params), TrialState.RUNNING, iteration=5, values=dict.fromkeys(range(1, 6), 0.1)))
    observed = searcher._observations(few)
    assert {budget: len(rows) for budget, rows in observed.items()} == {1: 41, 3: 17, 9: 3}


def test_a_crash_counts_as_worse_than_all_others_at_the_budget_that_it_did_not_reach() -> None:
    searcher = BOHBSearch()
    searcher.setup(task(SPACE, (Objective("loss", "min"),)))
    trials = population(recorded()["results"][:30])
    failure = Failure(kind="user", message="no")
    failed = Trial(30, dict(trials[0].params), TrialState.FAILED, iteration=2, values={1: 0.0, 2: 0.0}, failure=failure)
    trials.add(failed)
    observed = searcher._observations(trials)
    assert [row for row in observed[1] if row[1] == 30] == [(0.0, 30, failed.params)]
    assert [row for row in observed[3] if row[1] == 30] == [(math.inf, 30, failed.params)]


def test_results_outside_the_constraints_are_learned_from_too() -> None:
    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[tuner.Step]:
        for step in range((checkpoint or 0) + 1, 10):
            yield tuner.Step({"loss": config["x"] / step, "size": config["x"]}, checkpoint=step)

    searcher = BOHBSearch(constraints={"size": {"min": 0.5}})
    found = tuner.simulate(
        evaluate,
        {"x": uniform(0, 1)},
        metric="loss",
        mode="min",
        max_t=9,
        num_samples=9,
        scheduler="hyperband",
        search_alg=searcher,
    )
    trials = Population()
    for trial in found.trials:
        trials.add(trial)
    observed = searcher._observations(trials)[1]
    assert [number for _, number, _ in observed] == list(range(9))
    ranked = [params["x"] >= 0.5 for params in searcher._ranked(observed, trials)]
    assert ranked == sorted(ranked, reverse=True)
    assert {True, False} == set(ranked)


def test_a_parameter_that_no_good_result_has_gets_random_values() -> None:
    points = np.column_stack([np.linspace(0, 1, 50), np.full((50, 2), math.nan)])
    found = _imputed(points, np.array([0, 0, 3]), np.random.default_rng(0))
    assert (found[:, 0] == points[:, 0]).all()
    assert ((found[:, 1] >= 0) & (found[:, 1] < 1)).all()
    assert set(found[:, 2]) == {0, 1, 2}


def test_inactive_parameters_take_the_values_of_other_trials() -> None:
    searcher = make({"type": "bohb", "random_fraction": 0.0}, task(CONDITIONAL))
    drawn = make({"type": "random"}, task(CONDITIONAL))
    trials = Population()
    for number in range(40):
        suggestion = drawn.suggest(number, trials)
        assert suggestion is not None
        params = suggestion.params
        score = -abs(params["x"] - 0.8) - ("branch/1/z" not in params)
        trials.add(Trial(number, params, TrialState.COMPLETED, iteration=1, values={1: score}))
    found = [searcher.suggest(number, trials) for number in range(40, 80)]
    assert sum(s is not None and "branch/1/z" in s.params for s in found) > 25
    assert np.mean([s.params["x"] for s in found if s is not None]) > 0.6


def test_with_hyperband_its_configurations_become_better_than_random_ones() -> None:
    def distance(config: dict[str, Any]) -> float:
        return float((config["x"] - 0.7) ** 2 + (config["y"] - 0.2) ** 2)

    def evaluate(config: dict[str, Any], done: int | None) -> Iterator[tuner.Step]:
        for t in range((done or 0) + 1, 10):
            yield tuner.Step(metrics={"loss": distance(config) + 1 / t}, seconds=1, checkpoint=t)

    space = {"x": tuner.uniform(0, 1), "y": tuner.uniform(0, 1)}
    options: dict[str, Any] = {"metric": "loss", "mode": "min", "max_t": 9, "num_samples": 80, "scheduler": "hyperband"}
    found = [tuner.simulate(evaluate, space, search_alg="bohb", seed=seed, **options) for seed in range(3)]
    late = [distance(config) for result in found for config in result.configs[40:]]
    early = [distance(config) for result in found for config in result.configs[:10]]
    assert np.median(late) < 0.4 * np.median(early)


def test_auto_combines_it_with_hyperband() -> None:
    def evaluate(config: dict[str, Any], done: int | None) -> Iterator[tuner.Step]:
        for t in range((done or 0) + 1, 10):
            yield tuner.Step(metrics={"loss": config["x"]}, seconds=1, checkpoint=t)

    space = {"x": tuner.uniform(0, 1)}
    result = tuner.simulate(evaluate, space, metric="loss", mode="min", max_t=9, num_samples=20, search_alg="bohb")
    assert result.error is None
    assert "hyperband with max_t 9, because bohb learns from its levels" in result.decisions[0].reason


def test_several_objectives_are_refused() -> None:
    with pytest.raises(SpecError, match="bohb supports only one objective; nsgaii, tpe and gp support several"):
        make({"type": "bohb"}, task(SPACE, TWO))
