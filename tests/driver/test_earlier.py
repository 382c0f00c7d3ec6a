"""Searches that learn from earlier experiments: which trials count, how the search begins, and what its log says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import tuner
from tuner.domain.decisions import Note, Start
from tuner.domain.experiment import Objective, Spec
from tuner.driver.assemble import assemble
from tuner.driver.earlier import EarlierExperiment, learn, mapped, may_fit
from tuner.driver.recording import recording
from tuner.driver.virtual import Simulation, Step, simulate
from tuner.search.constraints import read
from tuner.space import Space

SPACE = {"x": tuner.uniform(0, 1), "y": tuner.uniform(0, 1)}


def towards(*peak: float) -> Any:
    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        for step in range((checkpoint or 0) + 1, 10):
            far = math.dist((config["x"], config["y"]), peak)
            yield Step({"loss": far + 1 / step}, checkpoint=step)

    return evaluate


def search(peak: tuple[float, float], space: Any = SPACE, **options: Any) -> Simulation:
    given: dict[str, Any] = {"max_t": 9, "budget": 8, "num_samples": 60, **options}
    return simulate(towards(*peak), space, metric="loss", mode="min", **given)


def earlier(name: str, peak: tuple[float, float], space: Any = SPACE, **options: Any) -> EarlierExperiment:
    found = search(peak, space, **options)
    return EarlierExperiment(name, Objective("loss", "min"), Space.from_python(space), recording(found.log))


@pytest.fixture(scope="module")
def two() -> list[EarlierExperiment]:
    return [earlier("first", (0.2, 0.8), seed=1), earlier("second", (0.25, 0.7), seed=2)]


def test_the_search_begins_with_what_was_good_and_says_so(two: list[EarlierExperiment]) -> None:
    found = search((0.22, 0.75), warm_start=two)
    notes = [d.reason for d in found.decisions if isinstance(d, Note)]
    counts = [len(each.recording.trials) for each in two]
    assert f"learns from 2 earlier experiments: first ({counts[0]} trials), second ({counts[1]} trials)" in notes
    starts = [d for d in found.decisions if isinstance(d, Start)]
    assert "cover the earlier experiments" in starts[0].reason
    assert "first" in " ".join(s.reason for s in starts[:4])
    later = [s.reason for s in starts if "that the model chose" in s.reason]
    assert any(
        "earlier experiments, weighted by how well they predict this one (0 to 1): first 0." in reason
        for reason in later
    )
    assert starts[0].params is not None
    assert math.dist((starts[0].params["x"], starts[0].params["y"]), (0.22, 0.75)) < 0.2


def test_it_is_better_at_once_and_repeats_to_the_bit(two: list[EarlierExperiment]) -> None:
    alone, warm, again = (search((0.22, 0.75), budget=3, warm_start=w) for w in ((), two, two))
    assert warm.best_value is not None
    assert alone.best_value is not None
    assert warm.best_value <= alone.best_value
    assert warm.history == again.history


def test_points_of_the_user_come_first(two: list[EarlierExperiment]) -> None:
    found = search((0.2, 0.8), warm_start=two, points_to_evaluate=[{"x": 0.5, "y": 0.5}])
    starts = [d for d in found.decisions if isinstance(d, Start)]
    assert starts[0].params == {"x": 0.5, "y": 0.5}
    assert "cover the earlier experiments" in starts[1].reason


@pytest.mark.parametrize(("scheduler", "searcher"), [("asha", "random"), ("fifo", "tpe")])
def test_other_schedulers_begin_with_the_same_configurations(
    two: list[EarlierExperiment], scheduler: str, searcher: str
) -> None:
    learned = learn(Space.from_python(SPACE), two)
    found = search((0.2, 0.8), scheduler=scheduler, search_alg=searcher, budget=None, num_samples=10, warm_start=two)
    assert [t.params for t in found.trials[: len(learned["portfolio"])]] == [p["params"] for p in learned["portfolio"]]


def test_a_spec_with_what_was_learned_survives_json(two: list[EarlierExperiment]) -> None:
    space = Space.from_python(SPACE)
    spec = Spec(
        name="s",
        space=space.to_json(),
        objectives=(Objective("loss", "min"),),
        max_t=9,
        warm_start=["first"],
        earlier=learn(space, two),
    )
    again = Spec.from_json(spec.to_json())
    assert again.earlier == spec.earlier
    assert assemble(again, space).notes[0].startswith("scheduler auto") or "learns from" in " ".join(
        assemble(again, space).notes
    )


def test_trials_are_matched_by_names_ranges_and_categories() -> None:
    theirs = {"x": tuner.uniform(0, 2), "kind": tuner.choice(["sgd", "adam", "lion"]), "only_here": tuner.uniform(0, 1)}
    mine = Space.from_python({"x": tuner.uniform(0, 1), "kind": tuner.choice(["adam", "sgd"], ordered=False)})

    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        yield Step({"loss": config["x"]})

    found = simulate(evaluate, theirs, metric="loss", mode="min", num_samples=40, scheduler="fifo", search_alg="random")
    old = EarlierExperiment("old", Objective("loss", "min"), Space.from_python(theirs), recording(found.log))
    trials = mapped(mine, old)
    expected = [c for c in found.configs if c["x"] <= 1 and c["kind"] != "lion"]
    assert [(t.params["x"], t.params["kind"]) for t in trials] == [(c["x"], c["kind"]) for c in expected]
    assert [t.scores for t in trials] == [(-c["x"],) for c in expected], "a lower loss is a higher score"


def test_branches_and_lists_are_matched_wherever_they_are() -> None:
    sgd, adam = {"name": "sgd", "momentum": tuner.uniform(0, 1)}, {"name": "adam", "beta": tuner.uniform(0, 1)}
    theirs = {"opt": tuner.choice([sgd, adam]), "layers": tuner.choice([[16], [32, 32]])}
    mine = Space.from_python({"opt": tuner.choice([adam, sgd]), "layers": tuner.choice([[32, 32], [16]])})

    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        yield Step({"loss": len(config["layers"])})

    found = simulate(evaluate, theirs, metric="loss", mode="min", num_samples=9, scheduler="fifo", search_alg="random")
    old = EarlierExperiment("old", Objective("loss", "min"), Space.from_python(theirs), recording(found.log))
    assert [mine.config(trial.params) for trial in mapped(mine, old)] == found.configs


def test_a_score_that_is_not_finite_or_outside_the_constraints_is_not_good() -> None:
    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        yield Step({"loss": config["x"], "size": 1 - config["x"]})
        yield Step({"loss": -math.inf if config["x"] > 0.8 else config["x"]})

    space = {"x": tuner.uniform(0, 1)}
    found = simulate(evaluate, space, metric="loss", mode="min", num_samples=20, scheduler="fifo", search_alg="random")
    old = EarlierExperiment("old", Objective("loss", "min"), Space.from_python(space), recording(found.log))
    (learned,) = learn(Space.from_python(space), [old])["experiments"]
    drawn = sorted(config["x"] for config in found.configs)
    assert [each["x"] for each in learned["best"]] == drawn[:3]
    (learned,) = learn(Space.from_python(space), [replace(old, constraints=read({"size": {"max": 0.5}}))])[
        "experiments"
    ]
    assert [each["x"] for each in learned["best"]] == [x for x in drawn if x >= 0.5][:3]


def test_a_space_with_a_parameter_that_was_not_there_does_not_fit() -> None:
    old = Space.from_python({"x": tuner.uniform(0, 1), "kind": tuner.choice(["a", "b"])})
    assert may_fit(Space.from_python({"x": tuner.loguniform(0.1, 1)}), old)
    assert not may_fit(Space.from_python({"x": tuner.uniform(0, 1), "z": tuner.uniform(0, 1)}), old)
    assert not may_fit(Space.from_python({"kind": tuner.uniform(0, 1)}), old)
    assert not may_fit(Space.from_python({}), old)


def test_too_few_trials_teach_nothing_and_the_log_says_so() -> None:
    few = earlier("few", (0.5, 0.5), scheduler="fifo", search_alg="random", budget=None, num_samples=4)
    learned = learn(Space.from_python(SPACE), [few])
    assert learned["experiments"] == learned["portfolio"] == []
    assert learned["notes"] == ["did not learn from few: 4 of its trials fit this space, but 5 are needed"]
