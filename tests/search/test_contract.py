"""Test what every searcher promises: the same trials give the same suggestion, even after a restart; values stay in the space."""

from __future__ import annotations

import json
import pickle
from typing import Any

import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.search.driving import CONDITIONAL, FLAT, TWO, Drive, make, task
from tuner.domain.experiment import Objective
from tuner.search import Searcher, from_argument
from tuner.search.optuna_samplers.silence import quiet
from tuner.space import Space

Given = dict[str, Any] | Searcher
SEARCHERS: dict[str, dict[str, Any]] = {
    "random": {"type": "random"},
    "grid": {"type": "grid"},
    "qmc": {"type": "qmc"},
    "bohb": {"type": "bohb", "min_points_in_model": 3, "random_fraction": 0.2},
    "tpe": {"type": "tpe", "n_startup_trials": 5},
    "tpe, independent": {"type": "tpe", "multivariate": False, "n_startup_trials": 3},
    "tpe, constrained": {"type": "tpe", "n_startup_trials": 3, "constraints": {"cost": {"max": 0.5}}},
    "gp": {"type": "gp", "n_startup_trials": 12},
    "cmaes": {"type": "cmaes", "popsize": 4},
    "nsgaii": {"type": "nsgaii", "population_size": 4},
    "optuna, by name": {"type": "optuna", "sampler": "NSGAIIISampler", "options": {"population_size": 4}},
    "optuna, quasi-random": {"type": "optuna", "sampler": "RandomSampler"},
}


with quiet():
    FIXED = optuna.samplers.PartialFixedSampler({"x": 0.5}, optuna.samplers.RandomSampler())
OBJECTS: dict[str, Searcher] = {
    "optuna, an object": from_argument(optuna.samplers.TPESampler(n_startup_trials=4)),
    "optuna, one inside another": from_argument(FIXED),
}


@pytest.fixture(params=[*SEARCHERS, *OBJECTS], name="options")
def _options(request: pytest.FixtureRequest) -> Given:
    return SEARCHERS[request.param] if request.param in SEARCHERS else OBJECTS[request.param]


@pytest.mark.parametrize("space", [CONDITIONAL, FLAT], ids=["conditional", "flat"])
@pytest.mark.filterwarnings("error")
def test_rebuilt_before_every_ask_it_suggests_the_same(options: Given, space: Space) -> None:
    of = task(space, points_to_evaluate=({"x": 0.25, "k": 3},))
    count = 15 if make(options, of).TYPE == "gp" else 20
    kept, rebuilt = Drive(of), Drive(of)
    kept.run(make(options, of), count)
    while len(rebuilt.trials) < count and rebuilt.step(make(options, of)):
        pass
    assert rebuilt.suggestions == kept.suggestions
    assert kept.suggestions[0].params["x"] == 0.25
    assert kept.suggestions[0].params["k"] == 3
    for suggestion in kept.suggestions:
        assert space.check(suggestion.params) == suggestion.params
        active = [p.path for p, on in zip(space.parameters, space.active(suggestion.params), strict=True) if on]
        assert list(suggestion.params) == active


@pytest.mark.parametrize("name", sorted(SEARCHERS.keys() - {"bohb", "cmaes"}))
def test_several_objectives(name: str) -> None:
    options = SEARCHERS[name]
    of = task(CONDITIONAL, TWO)
    kept, rebuilt = Drive(of), Drive(of)
    kept.run(make(options, of), 15)
    while len(rebuilt.trials) < 15 and rebuilt.step(make(options, of)):
        pass
    assert rebuilt.suggestions == kept.suggestions


@pytest.mark.parametrize("name", SEARCHERS)
def test_json_round_trip(name: str) -> None:
    options = SEARCHERS[name]
    searcher = make(options, task(FLAT))
    data = searcher.to_json()
    assert json.loads(json.dumps(data)) == data
    assert make(data, task(FLAT)).to_json() == data


def test_another_seed_gives_other_suggestions(options: Given) -> None:
    seeds = [task(FLAT, seed=seed) for seed in (1, 2)]
    runs = [Drive(of, parallel=1).run(make(options, of), 6) for of in seeds]
    assert [s.params for s in runs[0]] != [s.params for s in runs[1]]


def test_it_travels_to_another_process(options: Given) -> None:
    of = task(FLAT)
    drive = Drive(of)
    drive.run(make(options, of), 8)
    here = make(options, of)
    there = pickle.loads(pickle.dumps(here))
    trials = pickle.loads(pickle.dumps(drive.trials))
    assert there.suggest(8, trials) == here.suggest(8, drive.trials)
    assert pickle.loads(pickle.dumps(here)).suggest(8, drive.trials) == here.suggest(8, drive.trials)


@pytest.mark.parametrize("kind", ["random", "grid", "qmc", "bohb", "tpe", "cmaes", "nsgaii"])
@settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1000),
    cuts=st.sets(st.integers(0, 15), max_size=6),
    parallel=st.integers(1, 6),
    stops=st.floats(0, 0.4),
    mode=st.sampled_from(["min", "max"]),
    scope=st.sampled_from(["all", "last"]),
)
def test_killed_at_any_time_it_goes_on_as_if_nothing_had_been(
    kind: str, seed: int, cuts: set[int], parallel: int, stops: float, mode: Any, scope: str
) -> None:
    options = {"tpe": {"n_startup_trials": 4}, "cmaes": {"popsize": 3}, "nsgaii": {"population_size": 3}}.get(kind, {})
    of = task(CONDITIONAL, (Objective("score", mode),), seed=seed, scope=scope)
    straight = Drive(of, seed=seed, stops=stops, parallel=parallel)
    straight.run(make({"type": kind, **options}, of), 16)
    cut = Drive(of, seed=seed, stops=stops, parallel=parallel)
    searcher = make({"type": kind, **options}, of)
    for number in range(16):
        if number in cuts:
            searcher = make({"type": kind, **options}, of)
        if not cut.step(searcher):
            break
    assert cut.suggestions == straight.suggestions


def test_a_space_without_parameters() -> None:
    of = task(Space.from_python({"epochs": 3}))
    for kind in ("random", "qmc", "tpe", "nsgaii"):
        first, second = Drive(of, score=lambda p: 0.0).run(make({"type": kind}, of), 2)
        assert first.params == second.params == {}
        assert "repeats trial 0" in second.note
