"""Parameters that are drawn one by one, when a trial asks for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

import tuner
from tests.driver.bench import Bench
from tuner.domain.decisions import Note
from tuner.domain.events import Drawn
from tuner.domain.experiment import Objective
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Segment, Trial
from tuner.errors import SpecError
from tuner.search import DefineByRunSearch, GPSearch, TPESearch, from_json
from tuner.search.base import SearcherContext, Suggestion
from tuner.search.optuna_samplers.silence import quiet
from tuner.space import Space

Asked = Callable[[str, BaseDistribution], Any]
X = FloatDistribution(-5.0, 5.0)


def task(space: dict[str, Any] | None = None, **changes: Any) -> SearcherContext:
    return SearcherContext(
        **{"space": Space(space or {}), "objectives": (Objective("y", "min"),), "seed": 3, **changes}
    )


class Study:
    """Runs trials that ask the searcher for parameters, as the driver does."""

    def __init__(self, searcher: DefineByRunSearch, the_task: SearcherContext | None = None) -> None:
        self.searcher = searcher
        searcher.setup(the_task or task())
        self.trials = Population()
        self.suggested = 0

    def begin(self, asked: bool = False) -> int:
        """Begin a trial. asked: whether a user has enqueued it."""
        number = len(self.trials)
        suggestion = Suggestion({}) if asked else self.searcher.suggest(self.suggested, self.trials)
        assert suggestion is not None
        self.suggested += not asked
        trial = Trial(number, suggestion.params, searcher_state=suggestion.state)
        trial.segments.append(Segment(1, "start", trial.params, 0, None))
        self.trials.add(trial)
        self.trials.move(number, TrialState.RUNNING)
        return number

    def ask(self, number: int, name: str, distribution: BaseDistribution) -> Any:
        value, state = self.searcher.draw(number, name, distribution_to_json(distribution), self.trials)
        trial = self.trials[number]
        if name not in trial.params:
            trial.params = {**trial.params, name: value}
            trial.searcher_state = {**trial.searcher_state, **state}
        return value

    def end(self, number: int, value: float, state: TrialState = TrialState.COMPLETED) -> None:
        trial = self.trials[number]
        trial.last_value = trial.best_value = value
        trial.last, trial.iteration, trial.reports = {"y": value}, 1, 1
        self.trials.move(number, state)

    def optimize(self, objective: Callable[[Asked], float], trials: int) -> list[float]:
        values = []
        for _ in range(trials):
            number = self.begin()
            values.append(objective(lambda name, distribution, n=number: self.ask(n, name, distribution)))  # type: ignore[misc]
            self.end(number, values[-1])
        return values


def bowl(ask: Asked) -> float:
    if ask("kind", CategoricalDistribution(("shifted", "plain"))) == "shifted":
        return float((ask("x", X) - 2) ** 2)
    return float(ask("n", IntDistribution(5, 50)))


@pytest.mark.parametrize("search", ["random", "tpe", "gp", {"type": "optuna", "sampler": "TPESampler"}])
def test_the_same_seed_draws_the_same_and_another_does_not(search: Any) -> None:
    trials = 14 if search != "gp" else 12
    first = Study(DefineByRunSearch(search))
    first.optimize(bowl, trials)
    again = Study(DefineByRunSearch(search))
    again.optimize(bowl, trials)
    other = Study(DefineByRunSearch(search), task(seed=4))
    other.optimize(bowl, trials)
    assert [t.params for t in again.trials] == [t.params for t in first.trials]
    assert [t.params for t in other.trials] != [t.params for t in first.trials]


def test_it_learns() -> None:
    random = Study(DefineByRunSearch("random")).optimize(bowl, 60)
    tpe = Study(DefineByRunSearch("tpe")).optimize(bowl, 60)
    assert sum(tpe[30:]) / 30 < sum(random[30:]) / 30 / 2


def test_a_restart_in_the_middle_of_a_trial_changes_nothing() -> None:
    whole = Study(DefineByRunSearch("tpe"))
    whole.optimize(bowl, 25)
    broken = Study(DefineByRunSearch("tpe"))
    broken.optimize(bowl, 24)
    number = broken.begin()

    def asked(name: str, distribution: BaseDistribution) -> Any:
        broken.searcher = from_json(broken.searcher.to_json())  # type: ignore[assignment]
        broken.searcher.setup(task())
        return broken.ask(number, name, distribution)

    bowl(asked)
    assert broken.trials[24].params == whole.trials[24].params
    assert broken.trials[24].searcher_state == whole.trials[24].searcher_state


def test_what_was_drawn_stays() -> None:
    study = Study(DefineByRunSearch("tpe"))
    number = study.begin()
    value = study.ask(number, "x", X)
    assert study.ask(number, "x", X) == value
    assert study.searcher.draw(number, "x", distribution_to_json(X), study.trials) == (value, {})


def test_parameters_that_went_together_before_are_drawn_together() -> None:
    study = Study(DefineByRunSearch("tpe"))

    def both(ask: Asked) -> float:
        return float((ask("a", X) - ask("b", X)) ** 2)

    study.optimize(both, 20)
    state = study.trials[19].searcher_state
    assert set(state["relative"]) == {"a", "b"}
    assert {name: study.trials[19].params[name] for name in "ab"} == state["relative"]


def test_a_value_that_was_drawn_with_others_is_drawn_again_if_its_range_has_changed() -> None:
    study = Study(DefineByRunSearch("tpe"))
    study.optimize(lambda ask: float((ask("a", X) - ask("b", X)) ** 2), 12)
    number = study.begin()
    study.ask(number, "a", X)
    before = study.trials[number].searcher_state["relative"]["b"]
    assert before < study.ask(number, "b", FloatDistribution(before + 0.5, 6.0)) <= 6.0


def test_a_given_space_is_proposed_by_its_searcher_and_not_drawn_again() -> None:
    from tuner import uniform

    study = Study(DefineByRunSearch("random"), task({"lr": uniform(0, 1)}))
    number = study.begin()
    assert set(study.trials[number].params) == {"lr"}
    assert study.ask(number, "lr", FloatDistribution(0, 1)) == study.trials[number].params["lr"]
    with pytest.raises(SpecError, match=r"lr is .* outside FloatDistribution\(high=9"):
        study.ask(number, "lr", FloatDistribution(8, 9))


def test_other_choices_under_the_same_name_are_refused() -> None:
    study = Study(DefineByRunSearch("random"))
    study.ask(study.begin(), "kind", CategoricalDistribution(("a", "b")))
    with pytest.raises(SpecError, match=r"kind was .*'a', 'b'.* in an earlier trial"):
        study.ask(study.begin(), "kind", CategoricalDistribution(("a", "c")))
    with pytest.raises(SpecError, match="kind was"):
        study.ask(study.begin(), "kind", X)


def test_points_to_evaluate_come_first_as_far_as_they_are_asked_for() -> None:
    study = Study(DefineByRunSearch("random"), task(points_to_evaluate=({"x": 1.5, "never": 3},)))
    number = study.begin()
    assert study.ask(number, "x", X) == 1.5
    assert study.ask(study.begin(), "x", X) != 1.5
    beyond = Study(DefineByRunSearch("random"), task(points_to_evaluate=({"x": 15},)))
    with pytest.raises(SpecError, match="outside"):
        beyond.ask(beyond.begin(), "x", X)


def test_a_given_value_for_which_the_code_does_not_ask_is_warned_of() -> None:
    """A misspelled name in `points_to_evaluate` had no effect, and nothing said so."""
    bench = Bench(
        space={}, search={"type": "define_by_run", "search": {"type": "random"}},
        points_to_evaluate=({"lrr": 0.1, "x": 1.5}, {"x": 0.5}),
    )  # fmt: skip
    searcher = bench.core.searcher
    assert isinstance(searcher, DefineByRunSearch)

    def told() -> list[str]:
        return [entry.reason for _, entry in bench.log if isinstance(entry, Note) and entry.warning]

    for number in (0, 1):
        bench.started(number)
        for name in ("lr", "x"):
            value, state = searcher.draw(number, name, distribution_to_json(X), bench.core.trials)
            bench.feed(Drawn(time=bench.tick(), trial=number, segment=1, name=name, value=value, state=state))
        bench.reported(number)
        bench.reported(number)
    assert told() == [
        "trial 0 made its first report without asking for 'lrr', which points_to_evaluate/0 gives: the value has had no effect; "
        "the trial has asked for 'lr', 'x'; did you mean 'lr'?"
    ]
    assert bench.core.trials[0].params["x"] == 1.5


def test_each_point_to_evaluate_is_used_once_if_a_user_adds_a_trial() -> None:
    points = tuple({"x": x} for x in (0.25, 0.5, 0.75))
    run = Study(DefineByRunSearch("random"), task(points_to_evaluate=points))
    drawn = [run.ask(run.begin(asked), "x", X) for asked in (False, True, False, False, False)]
    assert [drawn[0], drawn[2], drawn[3]] == [0.25, 0.5, 0.75]
    assert drawn[1] not in (0.25, 0.5, 0.75)
    assert drawn[4] not in (0.25, 0.5, 0.75)


def test_a_single_value_needs_no_drawing() -> None:
    study = Study(DefineByRunSearch("tpe"))
    number = study.begin()
    assert study.ask(number, "only", CategoricalDistribution(("sgd",))) == "sgd"
    assert study.ask(number, "point", FloatDistribution(2.0, 2.0)) == 2.0


def test_a_study_as_a_warm_start() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    earlier = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    earlier.optimize(lambda trial: (trial.suggest_float("x", -5, 5) - 2) ** 2, n_trials=60)
    warm = DefineByRunSearch("tpe", warm_start=earlier)
    assert len(warm.warm_start) == 60
    again = from_json(warm.to_json())
    assert again.to_json() == warm.to_json()

    def square(ask: Asked) -> float:
        return float((ask("x", X) - 2) ** 2)

    with_it = Study(again).optimize(square, 10)  # type: ignore[arg-type]
    without = Study(DefineByRunSearch("tpe")).optimize(square, 10)
    assert sum(with_it) < sum(without) / 4

    two = optuna.create_study(directions=["minimize", "minimize"])
    two.optimize(lambda trial: (trial.suggest_float("x", 0, 1),) * 2, n_trials=2)
    with pytest.raises(SpecError, match="expected one value for each of the 1 objectives, got 2"):
        Study(DefineByRunSearch("tpe", warm_start=two))


def test_a_study_warms_up_our_own_searchers_too() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    earlier = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    earlier.optimize(lambda trial: (trial.suggest_float("x", -5, 5) - 2) ** 2, n_trials=3)
    assert [set(r["params"]) for r in TPESearch(warm_start=earlier).warm_start] == [{"x"}] * 3  # type: ignore[arg-type]
    earlier.optimize(lambda trial: math.copysign(math.inf, trial.suggest_float("x", -5, 5)), n_trials=2)
    assert len(TPESearch(warm_start=earlier).warm_start) == 3, "an infinite value is no result"  # type: ignore[arg-type]
    assert len(DefineByRunSearch("tpe", warm_start=earlier).warm_start) == 3


def test_results_for_parameters_that_are_not_declared_are_refused_unless_they_have_distributions() -> None:
    searcher = DefineByRunSearch(TPESearch(warm_start=[({"x": 1.0}, 0.5)]))
    with pytest.raises(
        SpecError, match=r"search.search.warm_start: .* pass DefineByRunSearch\('tpe', warm_start=study\)"
    ):
        searcher.setup(task())
    searcher.setup(task({"x": tuner.uniform(-5, 5)}))


def test_the_options_of_the_given_searcher_hold() -> None:
    with quiet():
        found: Any = DefineByRunSearch(GPSearch(n_startup_trials=3, deterministic_objective=True))._sampler(1)
    assert (found._n_startup_trials, found._deterministic) == (3, True)


@pytest.mark.parametrize("search", ["grid", "qmc", "cmaes", "nsgaii"])
def test_searchers_that_want_the_whole_space_at_once_are_refused(search: str) -> None:
    with pytest.raises(SpecError, match="one at a time"):
        DefineByRunSearch(search)


def test_a_sampler_of_a_grid_needs_a_space() -> None:
    grid = {"x": [0.0, 1.0]}
    with pytest.raises(SpecError, match=r"search.search: GridSampler cannot draw .* declare them in the space"):
        DefineByRunSearch(optuna.samplers.GridSampler(grid)).setup(task())
    study = Study(DefineByRunSearch(optuna.samplers.GridSampler(grid)), task({"x": tuner.uniform(-5, 5)}))
    assert sorted(study.optimize(lambda ask: ask("x", X), 2)) == [0.0, 1.0]


@pytest.mark.parametrize("kind", ["random", "tpe"])
def test_the_constraints_of_the_given_searcher_hold(kind: str) -> None:
    """They had been ignored, so the best trial could be one that violates them."""
    searcher = DefineByRunSearch({"type": kind, "constraints": {"size": {"max": 5}}})
    [constraint] = searcher.metric_constraints()
    assert (constraint.metric, constraint.side, constraint.bound) == ("size", "max", 5)
    assert list(DefineByRunSearch(kind).metric_constraints()) == []
