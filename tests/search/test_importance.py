from __future__ import annotations

import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
import pytest
from optuna.importance import PedAnovaImportanceEvaluator

from tests.search.driving import CONDITIONAL, FLAT
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.search.importance import TOP_RECORDS, TOP_SHARE, importance, records_of
from tuner.search.optuna_samplers.study import direction, distribution, quiet, to_optuna
from tuner.space import Space, choice, loguniform, quniform, randint, uniform


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


def by_optuna(space: Space, mode: Any, records: Sequence[tuple[Mapping[str, Any], float]]) -> dict[str, float]:
    """Return the shares as Optuna computes them."""
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(direction=direction(mode))
        for params, value in records:
            study.add_trial(
                optuna.trial.create_trial(
                    value=value,
                    params={path: to_optuna(space[path], v) for path, v in params.items()},
                    distributions={path: distribution(space[path]) for path in params},
                )
            )
        top = max(TOP_SHARE, TOP_RECORDS / len(records))
        shares = PedAnovaImportanceEvaluator(target_quantile=top).evaluate(study)
    total = sum(shares.values())
    return {path: share / total for path, share in shares.items()}


@pytest.mark.parametrize("count", [10, 37, 150, 600])
@pytest.mark.parametrize("name", ["flat", "conditional", "steps"])
def test_the_shares_are_those_of_optuna(name: str, count: int) -> None:
    steps = {
        "q": quniform(0, 1, 0.25),
        "n": randint(0, 3),
        "rate": loguniform(1e-4, 1),
        "one": choice(["only"]),
        "ordered": choice([16, 32, 64, 128]),
        "deep": choice([{"a": uniform(0, 1)}, {"b": choice([{"c": uniform(0, 1)}, "none"])}]),
    }
    space = {"flat": FLAT, "conditional": CONDITIONAL, "steps": Space.from_python(steps)}[name]
    for seed in range(3):
        rng = random.Random(f"{name} {count} {seed}")
        points = [space.sample(random.Random(f"{seed} {number}")) for number in range(count)]
        weights = {p.path: rng.uniform(-1, 1) for p in space.parameters}

        def value(point: Mapping[str, Any], weights: dict[str, float] = weights, rng: random.Random = rng) -> float:
            found = sum(weights[path] * space[path].unit(v) for path, v in point.items())
            return round(found + rng.gauss(0, 0.1), 2)  # so that some results are equal

        records = [(point, value(point)) for point in points]
        for mode in ("min", "max"):
            wanted = by_optuna(space, mode, records)
            found = importance(space, mode, records)  # type: ignore[arg-type]
            assert {path: found[path] for path in wanted} == pytest.approx(wanted, abs=1e-9)
            assert all(share == 0 for path, share in found.items() if path not in wanted)


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


def test_records_of_trials() -> None:
    trials = Population()
    for number, state in enumerate([TrialState.COMPLETED, TrialState.STOPPED, TrialState.RUNNING, TrialState.FAILED]):
        trials.add(Trial(number, {"x": number}, best_value=2.0, last_value=1.0 if number != 3 else None))
        trials.move(number, TrialState.RUNNING)
        if state is not TrialState.RUNNING:
            trials.move(number, state)
    assert records_of(trials) == [({"x": 0}, 2.0), ({"x": 1}, 2.0), ({"x": 3}, 2.0)]
    assert records_of(trials, "last") == [({"x": 0}, 1.0), ({"x": 1}, 1.0)]


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
