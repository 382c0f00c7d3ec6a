"""Test what each searcher does with a space and with what it has learned."""

from __future__ import annotations

import io
import json
import logging
import math
import random
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from scipy.stats import qmc

from tests.search.driving import CONDITIONAL, FLAT, ONE, TWO, Drive, hill, make, task
from tuner.domain.experiment import Objective
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, ScoredReport, Trial
from tuner.errors import SpecError
from tuner.search import DefineByRunSearch, OptunaSearch, RandomSearch, TPESearch, from_argument, from_json, known_space
from tuner.search.base import SearcherContext
from tuner.search.optuna_samplers.silence import quiet
from tuner.space import Space, choice, grid_search, loguniform, quniform, randint, sample_from, uniform


def params_of(searcher: Any, of: SearcherContext, count: int, **options: Any) -> list[dict[str, Any]]:
    return [s.params for s in Drive(of, **options).run(make(searcher, of), count)]


# -- random, grid, quasi-random ------------------------------------------------------------------------------------------


def test_random_draws_do_not_depend_on_each_other() -> None:
    of = task(FLAT)
    searcher = make({"type": "random"}, of)
    late = searcher.suggest(30, Population())
    assert late is not None
    assert late.params == params_of({"type": "random"}, of, 31)[30]


def test_random_goes_through_a_finite_space_before_it_repeats() -> None:
    space = Space.from_python({"a": choice([1, 2, 3]), "b": quniform(0, 1, 0.5)})
    of = task(space)
    suggestions = Drive(of).run(make({"type": "random"}, of), 30)
    distinct = [i for i, s in enumerate(suggestions) if not s.note]
    assert len(distinct) == 9
    assert max(distinct) < 16
    assert "all 9 configurations have been tried" in suggestions[-1].note
    repeated = int(suggestions[-1].note.removeprefix("repeats trial ").split(";")[0])
    assert suggestions[repeated].params == suggestions[-1].params


def test_a_configuration_whose_functions_draw_anew_is_no_repeat() -> None:
    drawn = sample_from(lambda: random.random())
    for space in ({"x": drawn}, {"x": drawn, "a": choice([1, 2])}, {"x": drawn, "a": grid_search([1, 2])}):
        of = task(Space.from_python(space), num_samples=4)
        assert {s.note for s in Drive(of).run(make({"type": "random"}, of), 4)} == {""}


def test_a_grid_is_run_num_samples_times_and_the_rest_is_drawn() -> None:
    space = Space.from_python(
        {"g": grid_search([1, 2, 3]), "h": grid_search("ab"[i] for i in (0, 1)), "x": uniform(0, 1)}
    )
    for kind in ("random", "grid"):
        of = task(space, num_samples=2)
        searcher = make({"type": kind}, of)
        assert searcher.total() == 12
        found = params_of({"type": kind}, of, 99)
        assert len(found) == 12
        cells = [(p["g"], p["h"]) for p in found]
        assert cells[:6] == cells[6:] == [(1, "a"), (1, "b"), (2, "a"), (2, "b"), (3, "a"), (3, "b")]
        assert len({p["x"] for p in found}) == 12


def test_what_makes_the_grid() -> None:
    space = Space.from_python({"c": choice(["a", {"k": grid_search([1, 2])}]), "x": uniform(0, 1)})
    of = task(space, num_samples=1)
    assert [{k: v for k, v in p.items() if k != "x"} for p in params_of({"type": "grid", "choices": True}, of, 9)] == [
        {"c": 0},
        {"c": 1, "c/1/k": 1},
        {"c": 1, "c/1/k": 2},
    ]
    without = task(
        Space.from_python({"c": choice(["a", "b"]), "d": choice([1, 2, 3]), "x": uniform(0, 1)}), num_samples=1
    )
    assert make({"type": "grid"}, without).total() == 6
    both = task(Space.from_python({"c": choice(["a", "b"]), "g": grid_search([1, 2, 3])}), num_samples=1)
    assert [make({"type": "grid", "choices": c}, both).total() for c in (None, False, True)] == [3, 3, 6]


def test_points_come_before_the_grid() -> None:
    of = task(Space.from_python({"g": grid_search([1, 2])}), num_samples=1, points_to_evaluate=({"g": 2},))
    assert [p["g"] for p in params_of({"type": "grid"}, of, 9)] == [2, 1, 2]


def test_quasi_random_points_fill_the_cube_better_than_random_ones() -> None:
    space = Space.from_python({f"x{i}": uniform(0, 1) for i in range(4)})
    of = task(space)
    spread = {
        kind: qmc.discrepancy([space.to_unit(p) for p in params_of({"type": kind}, of, 64)])
        for kind in ("qmc", "random")
    }
    assert spread["qmc"] < 0.5 * spread["random"]


# -- models --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"type": "tpe"},
        {"type": "cmaes", "popsize": 6},
        {"type": "nsgaii", "population_size": 8},
    ],
    ids=lambda o: o["type"],
)
def test_models_find_the_hill(options: dict[str, Any]) -> None:
    space = Space.from_python({f"x{i}": uniform(0, 1) for i in range(4)})
    of = task(space)
    count = 100
    score = hill(space)

    def best_late(kind: dict[str, Any]) -> float:
        found = params_of(kind, of, count, stops=0.0)
        return sum(score(p) for p in found[-count // 3 :]) / (count // 3)

    assert best_late(options) > best_late({"type": "random"}) + 0.1


def test_a_gp_finds_the_hill_in_a_few_trials() -> None:
    space = Space.from_python({"x": uniform(0, 1), "y": loguniform(1e-4, 1)})
    of = task(space)
    best = {
        kind: max(hill(space)(p) for p in params_of({"type": kind} | options, of, 14, stops=0.0, parallel=1)[6:])
        for kind, options in [("gp", {"n_startup_trials": 6}), ("random", {})]
    }
    assert best["gp"] > -0.005
    assert best["gp"] > best["random"]


def test_a_gp_that_stands_in_needs_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert not make({"type": "gp", "tpe_if_short": True}, task(FLAT)).is_heavy(Population())


def test_tpe_stands_in_for_a_gp_while_trials_are_short() -> None:
    of = task(FLAT)
    gp = make({"type": "gp", "tpe_if_short": True}, of)

    def completed(count: int, seconds: float) -> Population:
        trials = Population()
        for number in range(count):
            trials.add(Trial(number, FLAT.sample(random.Random(number)), state=TrialState.COMPLETED, running_s=seconds))
            trials[number].best_value = trials[number].last_value = float(number)
        return trials

    short, long = completed(12, 0.9), completed(12, 30.0)
    assert not gp.is_heavy(short)
    assert gp.suggest(12, short) == make({"type": "tpe"}, of).suggest(12, completed(12, 0.9))
    assert gp.is_heavy(long)
    assert gp.suggest(12, long) == make({"type": "gp"}, of).suggest(12, completed(12, 30.0))
    assert not gp.is_heavy(completed(9, 30.0)), "the first ones are random"
    assert gp.is_heavy(completed(10, 30.0))
    assert make({"type": "gp"}, of).is_heavy(short), "only if it is asked for"


@pytest.mark.parametrize("objectives", [ONE, TWO])
@pytest.mark.parametrize("space", [FLAT, CONDITIONAL], ids=["flat", "conditional"])
def test_the_fast_tpe_is_optunas_to_the_bit(monkeypatch: pytest.MonkeyPatch, space: Space, objectives: Any) -> None:
    of = task(space, objectives)
    fast = params_of({"type": "tpe"}, of, 40)

    class Plain(optuna.samplers.TPESampler):
        def __init__(self, distributions: Any, matrix: Any, **options: Any) -> None:
            super().__init__(**options)

    monkeypatch.setattr(known_space, "KnownSpaceTPE", Plain)
    assert params_of({"type": "tpe"}, of, 40) == fast


def test_tpe_learns_from_stopped_trials_what_they_had_got_to() -> None:
    of = task(FLAT)
    searcher = make({"type": "tpe", "n_startup_trials": 5}, of)
    drive = Drive(of, stops=0.0)
    drive.run(searcher, 20)
    number = next(t.number for t in drive.trials if t.state is TrialState.COMPLETED)
    before = searcher.suggest(20, drive.trials)
    other = Population()
    for trial in drive.trials:
        state = TrialState.STOPPED if trial.number == number else trial.state
        copy = Trial(**{f: getattr(trial, f) for f in Trial.__dataclass_fields__} | {"state": TrialState.PENDING})
        other.add(copy)
        other.move(copy.number, TrialState.RUNNING)
        if state is not TrialState.RUNNING:
            other.move(copy.number, state)
    mirror = searcher._mirror  # type: ignore[attr-defined]
    searcher.suggest(20, other)
    frozen = mirror.study.get_trials(deepcopy=False)[number]
    assert frozen.state is optuna.trial.TrialState.PRUNED
    assert frozen.intermediate_values == {other[number].iteration: other[number].best_value}
    assert before == make({"type": "tpe", "n_startup_trials": 5}, of).suggest(20, drive.trials)


def test_states_as_optuna_sees_them() -> None:
    of = task(FLAT)
    searcher = make({"type": "tpe"}, of)
    trials = Population()
    rng = random.Random(0)
    cases = [
        (TrialState.PENDING, None, "RUNNING"),
        (TrialState.RUNNING, 0.5, "RUNNING"),
        (TrialState.COMPLETED, 0.5, "COMPLETE"),
        (TrialState.COMPLETED, None, "FAIL"),
        (TrialState.COMPLETED, float("nan"), "FAIL"),
        (TrialState.STOPPED, 0.5, "PRUNED"),
        (TrialState.STOPPED, None, "PRUNED"),
        (TrialState.PAUSED, 0.5, "PRUNED"),
        (TrialState.FAILED, 0.5, "FAIL"),
        (TrialState.CANCELLED, None, "FAIL"),
        (TrialState.CANCELLED, 0.5, "PRUNED"),
    ]
    for number, (state, value, _) in enumerate(cases):
        trials.add(Trial(number, FLAT.sample(rng), best_value=value, last_value=value, iteration=3))
        if state is not TrialState.PENDING:
            trials.move(number, TrialState.RUNNING)
        if state not in (TrialState.PENDING, TrialState.RUNNING):
            trials.move(number, state)
    searcher.suggest(len(cases), trials)
    frozen = searcher._mirror.study.get_trials(deepcopy=False)  # type: ignore[attr-defined]
    assert [t.state.name for t in frozen] == [name for _, _, name in cases]


def test_a_paused_trial_that_goes_on_is_looked_at_again() -> None:
    of = task(FLAT)
    searcher = make({"type": "tpe"}, of)
    trials = Population()
    trials.add(Trial(0, FLAT.sample(random.Random(0)), best_value=1.0, last_value=1.0, iteration=1))
    trials.move(0, TrialState.RUNNING)
    seen = []
    for state in (TrialState.PAUSED, TrialState.RUNNING, TrialState.COMPLETED):
        trials.move(0, state)
        searcher.suggest(1, trials)
        seen.append(searcher._mirror.study.get_trials(deepcopy=False)[0].state.name)  # type: ignore[attr-defined]
    assert seen == ["PRUNED", "RUNNING", "COMPLETE"]


def test_scope_decides_which_value_is_told() -> None:
    within = ScoredReport(0.6, 1, 1)
    for scope, feasible_best, expected in (("all", None, 0.9), ("last", None, 0.4), ("all", within, 0.6)):
        of = task(FLAT, scope=scope)
        searcher = make({"type": "tpe"}, of)
        trials = Population()
        drawn = FLAT.sample(random.Random(0))
        trials.add(Trial(0, drawn, best_value=0.9, last_value=0.4, feasible_best=feasible_best))
        trials.move(0, TrialState.RUNNING)
        trials.move(0, TrialState.COMPLETED)
        searcher.suggest(1, trials)
        assert searcher._mirror.study.get_trials(deepcopy=False)[0].value == expected  # type: ignore[attr-defined]


def test_constraints_keep_the_search_feasible() -> None:
    space = Space.from_python({"x": uniform(0, 1), "y": uniform(0, 1)})
    of = task(space)
    shares = []
    for constraints in (None, {"cost": {"max": 0.4}}):
        drive = Drive(of, score=lambda p: p["x"], stops=0.0)
        searcher = make({"type": "tpe", "constraints": constraints}, of)
        for _ in range(60):
            drive.step(searcher)
            for trial in drive.trials:
                trial.last["cost"] = trial.params["x"]
        late = [s.params["x"] for s in drive.suggestions[30:]]
        shares.append(sum(x <= 0.4 for x in late) / len(late))
    assert shares[0] < 0.3
    assert shares[1] > 0.6


@pytest.mark.parametrize("kind", ["random", "grid", "qmc", "bohb"])
def test_searchers_without_a_model_of_the_constraints_take_them_too(kind: str) -> None:
    limits = {"cost": {"max": 0.4}}
    searcher = make({"type": kind, "constraints": limits}, task(FLAT))
    assert searcher.to_json()["constraints"] == limits
    assert [(c.metric, c.side, c.bound) for c in searcher.metric_constraints()] == [("cost", "max", 0.4)]
    plain = from_json({"type": kind})
    assert "constraints" not in plain.to_json(), "the form that earlier versions have stored"
    assert list(plain.metric_constraints()) == []
    with pytest.raises(SpecError, match=r"constraints.cost.mx: .*did you mean max"):
        from_json({"type": kind, "constraints": {"cost": {"mx": 0.4}}})


def test_bohb_learns_from_trials_within_the_constraints() -> None:
    searcher = make({"type": "bohb", "constraints": {"cost": {"max": 0.5}}}, task(FLAT, (Objective("score", "max"),)))
    trials, params = Population(), FLAT.sample(random.Random(0))
    for number, (score, cost) in enumerate([(9.0, 0.9), (1.0, 0.1), (2.0, 0.5), (8.0, 0.6)]):
        trials.add(Trial(number, params | {"k": number + 1}, last={"score": score, "cost": cost}))
    rows = [(-trial.last["score"], trial.number, trial.params) for trial in trials]
    crashed = (math.inf, 2, params | {"k": 8})
    ranked = searcher._ranked([*rows, crashed], trials)  # type: ignore[attr-defined]
    assert [one["k"] for one in ranked] == [3, 2, 4, 1, 8]


def test_warm_start_is_learned_from() -> None:
    rng = random.Random(5)
    score = hill(FLAT)
    records = [(p, score(p)) for p in (FLAT.sample(rng) for _ in range(60))]
    of = task(FLAT)
    for kind in ("tpe", "cmaes", "nsgaii"):
        cold = params_of({"type": kind}, of, 20)
        warm = params_of({"type": kind, "warm_start": records}, of, 20)
        assert sum(map(score, warm)) > sum(map(score, cold)) + 1, kind


def test_warm_start_of_another_space() -> None:
    of = task(Space.from_python({"x": uniform(0, 1)}))
    records = [({"x": 0.5}, 1), ({"x": 7}, 2), {"params": {}, "value": 3}]
    suggestion = make({"type": "tpe", "warm_start": records}, of).suggest(0, Population())
    assert suggestion is not None
    assert suggestion.note == "2 warm_start records do not fit this space and were left out"
    with pytest.raises(SpecError, match="no record fits this search space: x: 7 is not in x: from 0 to 1"):
        make({"type": "tpe", "warm_start": [({"x": 7}, 2)]}, of)
    with pytest.raises(SpecError, match="expected 1 value, got 2"):
        make({"type": "tpe", "warm_start": [({"x": 0.5}, [1, 2])]}, of)


def test_a_study_with_the_other_direction_is_no_warm_start() -> None:
    space = Space.from_python({"x": uniform(0, 1)})
    for searcher in (TPESearch, OptunaSearch, DefineByRunSearch):
        for direction in ("minimize", "maximize"):
            study = optuna.create_study(direction=direction)
            study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
            sampler = (optuna.samplers.TPESampler(),) if searcher is OptunaSearch else ()
            found = searcher(*sampler, warm_start=study)
            if direction == "maximize":
                make(found, task(space))
                continue
            with pytest.raises(
                SpecError, match="the study minimizes its values, and this search maximizes score; pass a list"
            ):
                found.setup(task(space))
            make(found, task(space, (Objective("score", "min"),)))


def test_tpe_draws_again_where_it_would_repeat() -> None:
    space = Space.from_python({"a": choice([1, 2, 3, 4]), "b": randint(0, 5)})
    of = task(space)
    suggestions = Drive(of, stops=0.0).run(make({"type": "tpe", "n_startup_trials": 3}, of), 15)
    fresh = len({str(s.params) for s in suggestions})
    assert fresh >= 13
    assert sum(bool(s.note) for s in suggestions) == len(suggestions) - fresh


def test_cmaes_spends_generations_on_one_distribution() -> None:
    of = task(FLAT)
    states = [s.state for s in Drive(of, stops=0.0).run(make({"type": "cmaes", "popsize": 4}, of), 40)]
    generations = [s["trial"]["cma:generation"] for s in states if s]
    assert max(generations) >= 4


def test_points_are_the_first_generation_of_a_genetic_search() -> None:
    points = tuple({"x": i / 10, "lr": 0.1, "k": 3, "width": 16, "c": "a"} for i in range(4))
    of = task(FLAT, points_to_evaluate=points)
    drive = Drive(of, stops=0.0, parallel=1)
    drive.run(make({"type": "nsgaii", "population_size": 4}, of), 6)
    assert drive.suggestions[5].state["trial"]["NSGAIISampler:generation"] == 1


# -- warm starts ---------------------------------------------------------------------------------------------------------


class Counting(optuna.samplers.BaseSampler):
    """A user's sampler that has no generator of Optuna and reads only the study."""

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return {}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        return (trial.number % 8) / 8


def test_a_sampler_that_somebody_wrote() -> None:
    of = task(Space.from_python({"x": uniform(0, 1)}))
    searcher = from_argument(Counting())
    assert repr(searcher) == "OptunaSearch(Counting)"
    with pytest.raises(SpecError, match="has no JSON form"):
        searcher.to_json()
    assert [p["x"] for p in params_of(searcher, of, 4)] == [0, 0.125, 0.25, 0.375]


class Halving(Counting):
    """Halves the parameter of the best trial that has completed."""

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        try:
            return study.best_params[param_name] / 2
        except ValueError:  # no trial has completed
            return 1.0


@pytest.mark.parametrize(("mode", "found"), [("max", [1, 0.5, 0.25, 0.125, 0.125]), ("min", [1, 0.5, 0.5])])
def test_a_sampler_that_asks_for_the_best_trial(mode: Any, found: list[float]) -> None:
    of = task(Space.from_python({"x": uniform(0, 1)}), (Objective("score", mode),))
    suggestions = Drive(of, stops=0.0, parallel=1).run(make(from_argument(Halving()), of), len(found))
    assert [s.params["x"] for s in suggestions] == found


class Partly(Drive):
    """Trial 3 does not report the second objective."""

    def _report(self, trial: Trial) -> None:
        super()._report(trial)
        if trial.number == 3:
            del trial.last["cost"]


@pytest.mark.parametrize("options", [{"type": "nsgaii", "population_size": 4}, {"type": "tpe"}])
def test_a_trial_without_one_of_the_objectives_does_not_count(options: dict[str, Any]) -> None:
    of = task(FLAT, TWO)
    drive = Partly(of, stops=0.0)
    assert not [s.note for s in drive.run(make(options, of), 20) if "failed" in s.note]
    assert drive.trials[3].state is TrialState.COMPLETED


class Failing(Counting):
    """Gives up now and then."""

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        if trial.number in (2, 3):
            raise ZeroDivisionError("no luck")
        return 0.5


def test_a_sampler_that_fails_does_not_end_the_search(caplog: pytest.LogCaptureFixture) -> None:
    of = task(Space.from_python({"x": uniform(0, 1)}))
    suggestions = Drive(of).run(make(from_argument(Failing()), of), 5)
    assert [s.params["x"] == 0.5 for s in suggestions] == [True, True, False, False, True]
    assert suggestions[2].note == "drawn at random because optuna failed: ZeroDivisionError: no luck"
    assert "OptunaSearch(Failing) could not propose trial 2" in caplog.text
    assert suggestions == Drive(of).run(make(from_argument(Failing()), of), 5)


def test_a_sampler_that_cannot_take_the_space_says_so_at_once() -> None:
    with pytest.raises(SpecError, match=r"BruteForceSampler does not support this space: .* random, qmc, tpe"):
        make({"type": "optuna", "sampler": "BruteForceSampler"}, task(FLAT))
    branches = Space.from_python({"a": choice([{"b": choice(["x", "y"])}, {"c": choice([16, 32])}])})
    for seed in range(8):  # the first proposal may choose the branch that it supports
        with pytest.raises(SpecError, match=r"it gets a/1/c as floats, .*; the searcher grid tries all choices"):
            make({"type": "optuna", "sampler": "BruteForceSampler"}, task(branches, seed=seed))
    of = task(Space.from_python({"a": choice(["x", "y"]), "b": choice(["z", "w"])}))
    found = params_of({"type": "optuna", "sampler": "BruteForceSampler"}, of, 4, stops=0.0)
    assert len({str(p) for p in found}) == 4


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["TPESampler", "GPSampler", "NSGAIISampler", "NSGAIIISampler"])
def test_a_sampler_with_a_constraints_func_is_refused(kind: str) -> None:
    options = {"constraints_func": lambda trial: [trial.params["x"] - 3]}
    sampler = getattr(optuna.samplers, kind)(**options)
    by_name = {"type": "optuna", "sampler": kind, "options": options}
    for given in (sampler, optuna.samplers.PartialFixedSampler({"c": "b"}, sampler), by_name):
        with pytest.raises(SpecError, match=r"its constraints_func would not be called; .* constraints=") as caught:
            from_argument(given)
        assert caught.value.errors[0][0] == "/search/sampler"
    assert repr(from_argument(getattr(optuna.samplers, kind)())) == f"OptunaSearch({kind})"


def test_a_scrambled_sequence_of_optuna_belongs_to_the_seed_of_the_search() -> None:
    space = Space.from_python({"x": uniform(0, 1), "y": uniform(0, 1)})
    options = {"type": "optuna", "sampler": "QMCSampler", "options": {"scramble": True}}
    first, again = (params_of(options, task(space), 9) for _ in range(2))
    assert first == again
    assert sorted(int(8 * params["x"]) for params in first[1:]) == list(range(8)), "one point in each eighth"
    assert params_of(options, task(space, seed=99), 9) != first


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_samplers_with_values_take_those_of_the_space() -> None:
    of = task(Space.from_python({"x": uniform(0, 10), "lr": loguniform(1e-4, 1e-1), "c": choice(["a", "b"])}))
    grid: dict[str, list[Any]] = {"x": [1.0, 5.0, 10.0], "lr": [1e-3], "c": ["a", "b"]}
    options = {"type": "optuna", "sampler": "GridSampler", "options": {"search_space": grid}}
    for given in (options, from_argument(optuna.samplers.GridSampler(grid, seed=3))):
        found = {(p["x"], round(p["lr"], 12), p["c"]) for p in params_of(given, of, 6, stops=0.0)}
        assert found == {(x, 1e-3, c) for x in grid["x"] for c in grid["c"]}
    inner = optuna.samplers.PartialFixedSampler({"c": "b"}, optuna.samplers.RandomSampler())
    fixed = params_of(from_argument(optuna.samplers.PartialFixedSampler({"x": 5}, inner)), of, 4)
    assert {(p["x"], p["c"]) for p in fixed} == {(5.0, "b")}
    assert len({p["lr"] for p in fixed}) == 4
    with pytest.raises(SpecError, match="GridSampler does not support this space: 11.0 is not in x: from 0 to 10"):
        make(from_argument(optuna.samplers.GridSampler(grid | {"x": [11.0]})), of)


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Redirect Optuna's own handler to a buffer, and yield the buffer.

    `capfd` cannot see what the handler writes, since it keeps the stream that was standard error when Optuna was imported. Set
    Optuna's usual level, since other tests change it.
    """
    (own,) = (h for h in logging.getLogger("optuna").handlers if type(h) is logging.StreamHandler)
    stream = io.StringIO()
    monkeypatch.setattr(own, "stream", stream)
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.INFO)
    yield stream
    optuna.logging.set_verbosity(level)


def test_optuna_stays_quiet(capfd: pytest.CaptureFixture[str], messages: io.StringIO) -> None:
    level = optuna.logging.get_verbosity()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Drive(task(CONDITIONAL)).run(make({"type": "tpe"}, task(CONDITIONAL)), 15)
        Drive(task(CONDITIONAL)).run(make({"type": "cmaes", "lr_adapt": True}, task(CONDITIONAL)), 15)
    assert capfd.readouterr().err + messages.getvalue() == ""
    assert optuna.logging.get_verbosity() == level


def test_only_the_thread_that_asks_optuna_is_quiet(messages: io.StringIO) -> None:
    asks, may_end = threading.Event(), threading.Event()

    def ask() -> None:
        with quiet(), quiet():
            asks.set()
            warnings.warn("of the thread", stacklevel=1)
            assert may_end.wait(60)
            optuna.create_study(study_name="of the thread")

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        asking = threading.Thread(target=ask)
        asking.start()
        assert asks.wait(60)
        with warnings.catch_warnings():  # it outlives the block of the thread
            warnings.warn("of the user", stacklevel=1)
            optuna.create_study(study_name="of the user")
            may_end.set()
            asking.join()
        warnings.warn("of the user, later", stacklevel=1)
    assert [str(each.message) for each in heard] == ["of the user", "of the user, later"]
    assert re.findall("name: (.*)", messages.getvalue()) == ["of the user"]


def test_a_warning_that_is_shown_once_is_not_shown_again_after_each_question_to_optuna() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("default")
        for _ in range(3):
            with quiet():
                warnings.warn("of Optuna", stacklevel=1)
            warnings.warn("of the user", stacklevel=1)
        warnings.simplefilter("error")
        with quiet():
            warnings.warn("of Optuna, after the user has set a filter", stacklevel=1)
    assert [str(each.message) for each in heard] == ["of the user"]


# -- errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "pointer", "words"),
    [
        ({"type": "tpee"}, "/search/type", "did you mean tpe?"),
        ({}, "/search/type", "choose from bohb, cmaes, "),
        ({"type": ["tpe"]}, "/search/type", "unknown searcher"),
        ({"type": "tpe", "n_startup": 3}, "/search/n_startup", "did you mean n_startup_trials?"),
        ({"type": "tpe", "seed": 3}, "/search/seed", "belongs to the experiment"),
        ({"type": "random", "x": 3}, "/search/x", "choose from constraints"),
        ({"type": "tpe", "n_startup_trials": -1}, "/search/n_startup_trials", "at least 0"),
        ({"type": "tpe", "n_startup_trials": True}, "/search/n_startup_trials", "expected an integer"),
        ({"type": "tpe", "multivariate": 1}, "/search/multivariate", "true or false"),
        ({"type": "cmaes", "sigma0": 0}, "/search/sigma0", "above 0"),
        (
            {"type": "cmaes", "constraints": {}},
            "/search/constraints",
            "cmaes takes no constraints; these do: bohb, gp, grid, nsgaii, optuna, qmc, random, tpe",
        ),
        ({"type": "cmaes", "lr_adapt": True, "use_separable_cma": True}, "/search/lr_adapt", "cannot be combined"),
        ({"type": "nsgaii", "crossover_prob": 2}, "/search/crossover_prob", "from 0 to 1"),
        ({"type": "tpe", "constraints": {"a": {"mx": 1}}}, "/search/constraints/a/mx", "did you mean max?"),
        ({"type": "tpe", "constraints": {"a": {"max": "x"}}}, "/search/constraints/a/max", "expected a number"),
        ({"type": "tpe", "constraints": [1]}, "/search/constraints", "expected {metric"),
        ({"type": "tpe", "warm_start": [3]}, "/search/warm_start/0", "params and a value"),
        ({"type": "tpe", "warm_start": [[{}, None]]}, "/search/warm_start/0/value", "finite number"),
        ({"type": "optuna"}, "/search/sampler", "needed"),
        ({"type": "optuna", "sampler": "TPESampl"}, "/search/sampler", "did you mean TPESampler?"),
        ({"type": "optuna", "sampler": "TPESampler", "options": {"n": 1}}, "/search/options/n", "unknown option"),
        ({"type": "optuna", "sampler": "TPESampler", "pickle": "!"}, "/search/pickle", "unknown option"),
        ({"type": "ray"}, "/search/type", "only be passed from Python"),
    ],
)
def test_what_is_wrong_and_where(data: dict[str, Any], pointer: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        from_json(data)
    assert caught.value.errors[0][0] == pointer
    assert words in caught.value.errors[0][1]


@pytest.mark.parametrize(
    ("data", "space", "options", "words"),
    [
        ({"type": "cmaes"}, {"a": choice(["x", "y"]), "b": uniform(0, 1)}, {}, "needs at least two numeric parameters"),
        (
            {"type": "cmaes"},
            {"a": uniform(0, 1), "b": uniform(0, 1)},
            {"objectives": TWO},
            "nsgaii, tpe and gp support several",
        ),
        ({"type": "tpe"}, {"g": grid_search([1, 2])}, {}, r"tpe cannot run a grid \(g\): use choice"),
        ({"type": "grid"}, {"x": uniform(0, 1)}, {"num_samples": None}, "set num_samples"),
        ({"type": "grid"}, {f"g{i}": grid_search(range(100)) for i in range(4)}, {}, "more than 100,000"),
    ],
)
def test_spaces_that_do_not_fit_are_refused_at_setup(data: Any, space: Any, options: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        make(data, task(Space.from_python(space), **options))


def test_points_that_do_not_fit_are_all_named() -> None:
    points = ({"x": 0.5}, {"x": 5}, {"y": 1})
    with pytest.raises(SpecError) as caught:
        make({"type": "random"}, task(FLAT, points_to_evaluate=points))
    assert [p for p, _ in caught.value.errors] == ["/points_to_evaluate/1/x", "/points_to_evaluate/2/y"]


def test_importing_the_searchers_loads_nothing_heavy() -> None:
    code = (
        "import sys, tuner.search; print([m for m in ('numpy', 'scipy', 'optuna', 'ray', 'torch') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"


def test_the_documented_forms_are_the_real_ones() -> None:
    text = (Path(__file__).parents[2] / "docs" / "search.md").read_text()
    spec = json.loads(text.split("```json\n")[1].split("```")[0])
    searcher = from_json(spec["search"])
    searcher.setup(task(Space.from_json(spec["space"])))
    documented = dict(re.findall(r"^\| `(\w+)` \| (`\w+=.*) \|$", text, re.MULTILINE))
    assert documented.keys() == {"grid", "tpe", "bohb", "gp", "cmaes", "nsgaii", "define_by_run"}
    documented.pop("define_by_run")  # its one option is another searcher
    for kind, options in documented.items():
        defaults = {
            k: v
            for k, v in from_json({"type": kind}).to_json().items()
            if k not in ("type", "constraints", "warm_start")
        }
        assert dict(re.findall(r"`(\w+)=(\S+?)`", options)) == {k: _written(v) for k, v in defaults.items()}


def _written(value: Any) -> str:
    """Return a default as the docs write it."""
    return "1/3" if value == 1 / 3 else str(value)


def test_what_a_caller_may_pass() -> None:
    assert isinstance(from_argument("random"), RandomSearch)
    assert isinstance(from_argument({"type": "tpe"}), TPESearch)
    given = TPESearch(n_startup_trials=3)
    assert from_argument(given) is given
    with pytest.raises(SpecError, match=r"not its class; write TPESearch\(\)"):
        from_argument(TPESearch)
    with pytest.raises(SpecError, match="expected a searcher"):
        from_argument(3)


def test_an_exploit_changes_what_is_learned() -> None:
    """A trial that goes on with another configuration is told with that one."""
    of = task(FLAT)
    searcher = make({"type": "tpe"}, of)
    trials = Population()
    trials.add(Trial(0, FLAT.sample(random.Random(0)), best_value=1.0, last_value=1.0, iteration=1))
    trials.move(0, TrialState.RUNNING)
    searcher.suggest(1, trials)
    for seed in (1, 2, 3):
        trials[0].params = FLAT.sample(random.Random(seed))
        searcher.suggest(1, trials)
        frozen = searcher._mirror.study.get_trials(deepcopy=False)[0]  # type: ignore[attr-defined]
        assert frozen.params["x"] == FLAT["x"].unit(trials[0].params["x"])


def test_importing_optuna_prints_no_warning_in_a_notebook_without_ipywidgets() -> None:
    code = """if True:
        import sys
        from types import ModuleType, SimpleNamespace

        ipython = ModuleType("IPython")
        ipython.get_ipython = lambda: SimpleNamespace(config={"IPKernelApp": {}})
        sys.modules.update({"IPython": ipython, "ipykernel.zmqshell": ipython, "ipywidgets": None})

        import tuner.search.importance

        assert "tqdm.notebook" in sys.modules, "tqdm took this for a notebook"
    """
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (out.returncode, out.stderr) == (0, "")
