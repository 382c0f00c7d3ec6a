from __future__ import annotations

import random
import warnings

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution, distribution_to_json

from tests.search.driving import CONDITIONAL, FLAT
from tuner.domain.states import TrialState
from tuner.search.importance import Outcome, drawn_of, importance, merged
from tuner.space import Space, choice, uniform

X = FloatDistribution(-1.0, 1.0)


def drawn(space: Space, count: int = 150) -> list[dict[str, object]]:
    return [space.sample(random.Random(i)) for i in range(count)]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("path", ["x", "k", "c"])
def test_the_parameter_that_matters_comes_first(mode: str, path: str) -> None:
    sign = 1 if mode == "min" else -1
    records = [(p, sign * abs(FLAT[path].unit(p[path]) - 0.2)) for p in drawn(FLAT)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shares = importance(FLAT, mode, records)  # type: ignore[arg-type]
    assert next(iter(shares)) == path
    assert shares[path] > 0.5
    assert shares.keys() == {p.path for p in FLAT.parameters}
    assert sum(shares.values()) == pytest.approx(1)


def test_the_best_results_are_those_of_the_mode() -> None:
    """Let `x` decide which values are high, and `y` which are low."""
    space = Space.from_python({"x": uniform(0, 1), "y": uniform(0, 1)})
    records = [(p, max(0.0, p["x"] - 0.7) - max(0.0, p["y"] - 0.7)) for p in drawn(space)]  # type: ignore[operator]
    assert [next(iter(importance(space, mode, records))) for mode in ("max", "min")] == ["x", "y"]  # type: ignore[arg-type]


def test_what_cannot_be_compared_is_left_out() -> None:
    points = drawn(FLAT, 30)
    assert importance(FLAT, "min", [(p, 0.5) for p in points[:10]]), "ten are enough"
    moved = Space.from_python({"x": uniform(0, 1)})
    outside: list[tuple[dict[str, object], float]] = [({"x": 2.0 + i}, float(i)) for i in range(9)]
    inside = [({"x": i / 10}, float(i)) for i in range(9)]
    assert importance(moved, "min", [*inside, *outside]) == {}, "a user has changed the space"
    asked = {"x": FloatDistribution(5.0, 9.0), "z": X}  # the space has this x, too
    within = [({"x": i / 9, "z": i / 10}, float(i)) for i in range(10)]
    assert importance(moved, "min", within, asked).keys() == {"x", "z"}
    assert (
        importance(moved, "min", [({**p, "z": 7.0 if i == 9 else p["z"]}, v) for i, (p, v) in enumerate(within)], asked)
        == {}
    )


def test_conditional_parameters_have_shares_too() -> None:
    records = [(p, float(p.get("branch/1/z", 2))) for p in drawn(CONDITIONAL, 300)]  # type: ignore[arg-type]
    shares = importance(CONDITIONAL, "min", records)
    assert set(list(shares)[:2]) == {"branch", "branch/1/z"}


def test_too_few_or_equal_results() -> None:
    points = drawn(FLAT, 30)
    assert importance(FLAT, "min", [(p, 0.5) for p in points[:9]]) == {}
    assert importance(FLAT, "min", [(p, float("nan")) for p in points]) == {}
    assert importance(Space.from_python({}), "min", [({}, 0.5)] * 30) == {}
    one = Space.from_python({"x": choice(["a"]), "y": uniform(0, 1)})
    assert importance(one, "min", [(p, float(p["y"])) for p in drawn(one)]) == {"y": 1, "x": 0}  # type: ignore[arg-type]


def test_parameters_that_the_code_asks_for_while_it_runs_have_shares() -> None:
    """They had none, so a search with an Optuna objective showed no importance."""
    states: list[dict[str, object]] = [{}]
    for low, high in ((2, 6), (1, 8)):
        found = {"n": IntDistribution(low, high, log=True), "kind": CategoricalDistribution(("a", "b")), "x": X}
        states.append(
            {"distributions": {name: distribution_to_json(one) for name, one in found.items()}, "relative": {}}
        )
    drawn = drawn_of(states)
    assert drawn == {"n": IntDistribution(1, 8, log=True), "kind": CategoricalDistribution(("a", "b")), "x": X}
    rng = random.Random(1)
    records = []
    for _ in range(100):
        params = {"kind": rng.choice("ab"), "n": rng.randint(1, 8), "y": rng.random()}
        if params["kind"] == "a":
            params["x"] = rng.uniform(-1, 1)
        records.append((params, 10 * params["n"] + params["y"]))
    space = Space.from_python({"y": uniform(0, 1)})
    shares = importance(space, "min", records, drawn)
    assert next(iter(shares)) == "n"
    assert shares.keys() == {"y", "n", "kind", "x"}
    assert sum(shares.values()) == pytest.approx(1)
    assert importance(Space.from_python({}), "min", records, drawn).keys() == drawn.keys()


def test_repeats_are_merged_with_the_trial_that_they_repeat() -> None:
    done, stopped = TrialState.COMPLETED, TrialState.STOPPED
    outcomes = [
        Outcome(0, None, stopped, {"x": 0}, 1.0),
        Outcome(1, None, done, {"x": 1}, 2.0),
        Outcome(2, 1, done, {"x": 1}, 4.0),
        Outcome(3, 1, TrialState.CANCELLED, {"x": 1}, 90.0),
        Outcome(4, 1, done, {"x": 1}, 9.0),
        Outcome(5, 1, done, {"x": 1}, float("nan")),
        Outcome(6, 70, done, {"x": 2}, 5.0),
    ]
    assert merged(outcomes) == [outcomes[0], Outcome(1, None, done, {"x": 1}, 5.0, runs=3)]


def test_two_results_do_not_decide() -> None:
    """Give the two best of twenty results the best category, which says little about `x`, which matters more."""
    effect = {"a": 0.02, "b": 0.01, "c": 0.0}
    space = Space.from_python({"x": uniform(0, 1), "c": choice(list(effect))})
    for seed in range(40):
        rng = random.Random(seed)
        points = []
        for number in range(20):  # half of them drawn where the results are good, as a searcher does
            x = rng.random() if number < 10 else rng.uniform(0.25, 0.55)
            points.append({"x": x, "c": rng.choice("abc")})
        records = [
            (p, 0.9 * max(0.0, abs(p["x"] - 0.4) - 0.1) + effect[p["c"]] + 0.01 * rng.random())  # type: ignore[arg-type, index]
            for p in points
        ]
        assert next(iter(importance(space, "min", records))) == "x", seed
