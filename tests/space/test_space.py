from __future__ import annotations

import functools
import json
import math
import random
import subprocess
import sys
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
import ray

from tuner.errors import SpecError
from tuner.space import (
    Space,
    choice,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)
from tuner.space.parameter import config_as_json


class Widget:
    """A category that is no JSON value."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Widget) and other.size == self.size

    def __hash__(self) -> int:
        return hash(self.size)

    def __repr__(self) -> str:
        return f"Widget({self.size})"


OPTIMIZER = choice([{"name": "sgd", "momentum": uniform(0, 1)}, {"name": "adam", "beta": loguniform(0.1, 1)}, None])


def draws(domain: Any, count: int = 2000) -> list[Any]:
    space = Space.from_python({"x": domain})
    rng = random.Random(0)
    return [space.sample(rng)["x"] for _ in range(count)]


def errors_of(data: Any, **kwargs: Any) -> list[tuple[str, str]]:
    with pytest.raises(SpecError) as caught:
        Space.from_json(data, **kwargs)
    return caught.value.errors


# -- bounds, as Ray Tune has them ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("domain", "values"),
    [
        (randint(2, 5), [2, 3, 4]),
        (lograndint(1, 5), [1, 2, 3, 4]),
        (qrandint(2, 10, 4), [4, 8]),
        (qrandint(4, 12, 4), [4, 8, 12]),
        (qrandint(0, 3), [0, 1, 2]),
        (qlograndint(2, 8, 2), [2, 4, 6, 8]),
        (quniform(0, 0.3, 0.1), [0.0, 0.1, 0.2, 0.3]),
        (quniform(0, 1, 1 / 3), [0.0, 1 / 3, 2 / 3, 1.0]),
        (qloguniform(0.1, 0.3, 0.1), [0.1, 0.2, 0.3]),
        (choice(["a", None, True, 1]), ["a", None, True, 1]),
    ],
)
def test_every_value_of_a_discrete_domain_and_no_other_is_drawn(domain: Any, values: list[Any]) -> None:
    assert {(type(v), v) for v in draws(domain)} == {(type(v), v) for v in values}


@pytest.mark.parametrize(
    "domain", [randint(0, 10), qrandint(0, 45, 5), quniform(0, 0.9, 0.1), choice(list("abcdefghij"))]
)
def test_discrete_values_are_equally_likely(domain: Any) -> None:
    counts = Counter(draws(domain, 20_000))
    assert len(counts) == 10
    assert max(counts.values()) / min(counts.values()) < 1.2


def test_log_domains_are_uniform_in_the_logarithm() -> None:
    logs = [np.log10(x) for x in draws(loguniform(1e-4, 1), 20_000)]
    assert np.histogram(logs, bins=4, range=(-4, 0))[0] == pytest.approx([5000] * 4, rel=0.06)
    small = sum(x < 10 for x in draws(lograndint(1, 101), 20_000)) / 20_000
    assert small == pytest.approx(np.log(9.5 / 0.5) / np.log(100.5 / 0.5), abs=0.02)


def test_normal_domains() -> None:
    values = draws(randn(3, 2), 20_000)
    assert np.mean(values) == pytest.approx(3, abs=0.05)
    assert np.std(values) == pytest.approx(2, abs=0.05)
    rounded = draws(qrandn(0, 1, 0.5))
    assert all(v * 2 == int(v * 2) for v in rounded)
    assert min(rounded) < -1 < 1 < max(rounded)


def test_steps_have_no_dust_of_binary_fractions() -> None:
    assert set(map(str, draws(quniform(0, 1, 0.1)))) == {f"{i / 10}" for i in range(11)}


def test_the_bounds_of_a_stepped_domain_are_values_of_it() -> None:
    for q in (1 / 3, 0.3333333333):
        space = Space.from_python({"x": quniform(0, 1, q)})
        assert space.check({"x": 1})["x"] == space.parameters[0].upper
        for value in (0.9999999999999999, 2 * q):
            assert space.parameters[0].contains(value)
        for value in (1 + q, 1.001, -q, 0.5, math.inf, math.nan):
            assert not space.parameters[0].contains(value)
    far = Space.from_python({"x": quniform(0, 1e12, 1)}).parameters[0]
    assert far.contains(1e12)
    assert not far.contains(1e12 + 1)


@pytest.mark.parametrize("domain", [quniform(0, 1, 0.001), qrandn(0, 1, 0.001)])
def test_a_number_that_is_too_large_to_be_divided_by_the_step_is_outside_of_a_stepped_domain(domain: Any) -> None:
    [parameter] = Space.from_python({"x": domain}).parameters
    assert not parameter.contains(1e308)
    assert not parameter.contains(-1e308)


def test_objects_of_ray_tune_have_the_same_bounds() -> None:
    from ray import tune

    ours = {
        "a": uniform(1, 2), "b": loguniform(1e-3, 1), "c": quniform(1, 2, 0.5), "d": qloguniform(0.5, 8, 0.5),
        "e": randint(1, 9), "f": lograndint(1, 9), "g": qrandint(2, 10, 2), "h": qlograndint(2, 10, 2), "i": randn(1, 2),
        "j": qrandn(1, 2, 0.5), "k": choice([1, "x"]), "l": grid_search([3, 1]), "m": {"n": qrandint(0, 4)},
    }  # fmt: skip
    theirs = {
        "a": tune.uniform(1, 2), "b": tune.loguniform(1e-3, 1), "c": tune.quniform(1, 2, 0.5),
        "d": tune.qloguniform(0.5, 8, 0.5), "e": tune.randint(1, 9), "f": tune.lograndint(1, 9),
        "g": tune.qrandint(2, 10, 2), "h": tune.qlograndint(2, 10, 2), "i": tune.randn(1, 2), "j": tune.qrandn(1, 2, 0.5),
        "k": tune.choice([1, "x"]), "l": tune.grid_search([3, 1]), "m": {"n": tune.qrandint(0, 4)},
    }  # fmt: skip
    assert Space.from_python(theirs).parameters == Space.from_python(ours).parameters
    np.random.seed(0)
    for name, domain in theirs.items():
        if name in "lm":
            continue
        p = Space.from_python({name: ours[name]})[name]
        assert all(p.contains(domain.sample()) for _ in range(300)), name


def test_functions_of_ray_tune() -> None:
    from ray import tune

    space = Space.from_python(
        {
            "a": tune.choice([2, 3]),
            "b": tune.sample_from(lambda spec: spec.config.a * 10),
            "c": tune.sample_from(lambda: 7),
        }
    )
    assert space.config({"a": 3}) == {"a": 3, "b": 30, "c": 7}


# -- forms -----------------------------------------------------------------------------------------------------------


def test_the_json_of_the_issue() -> None:
    space = Space.from_json(
        {
            "lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1},
            "width": {"type": "choice", "categories": [16, 32, 64]},
            "nested": {"deep": {"type": "randint", "lower": 0, "upper": 3}, "fixed": 27},
        }
    )
    assert [p.path for p in space.parameters] == ["lr", "width", "nested/deep"]
    assert space["width"].ordered
    assert space["lr"].log
    config = space.config({"lr": 0.01, "width": 32, "nested/deep": 2})
    assert config == {"lr": 0.01, "width": 32, "nested": {"deep": 2, "fixed": 27}}


def test_python_objects_travel_in_the_blob() -> None:
    space = Space.from_python(
        {
            "act": choice([Widget(1), Widget(2), len]),
            "shape": choice([(1, 2), (3,)]),
            "double": sample_from(lambda c: c["n"] * 2),
            "n": randint(1, 5),
            "const": Widget(9),
        }
    )
    data = json.loads(json.dumps(space.to_json()))
    assert data["const"] == {"type": "python", "index": 4, "repr": "Widget(9)"}
    again = Space.from_json(data, space.blob())
    params = {"act": 1, "shape": 0, "n": 4}
    expected = {"act": Widget(2), "shape": (1, 2), "double": 8, "n": 4, "const": Widget(9)}
    assert space.config(params) == again.config(params) == expected
    assert again.parameters == space.parameters
    assert errors_of(data)[0][0] == "/space/act/categories/0"
    seen = Space.from_json(data, opaque=True)
    assert seen["act"].labels == ["Widget(1)", "Widget(2)", "len"]
    assert seen.readable(params) == {"act": "Widget(2)", "shape": "(1, 2)", "n": 4}
    shown = {name: str(value) for name, value in seen.config(params).items()}
    assert "lambda" in shown.pop("double")
    assert shown == {"act": "Widget(2)", "shape": "(1, 2)", "n": "4", "const": "Widget(9)"}
    assert seen.to_json() == data
    with pytest.raises(SpecError):
        seen.blob()


def test_references_into_rays_store_are_refused() -> None:
    reference = ray.ObjectRef.from_random()
    space = Space.from_python({"model": grid_search([reference, None]), "data": reference, "lr": uniform(0, 1)})
    with pytest.raises(SpecError, match=r"pass the objects to the function with tuner.with_parameters") as caught:
        space.blob()
    assert [pointer for pointer, _ in caught.value.errors] == ["/space/model/values/0", "/space/data"]


def test_what_cannot_be_pickled_is_named_with_its_parameter() -> None:
    lock = threading.Lock()

    def draws(config: dict[str, Any]) -> bool:
        return lock.locked()

    space = Space.from_python(
        {
            "optimizer": {"lr": sample_from(draws), "b/c": lock},
            "act": choice([len, lock]),
            "good": sample_from(lambda: 3),
        }
    )
    with pytest.raises(SpecError) as caught:
        space.blob()
    found = dict(caught.value.errors)
    assert list(found) == ["/space/optimizer/lr", "/space/optimizer/b~1c", "/space/act/categories/1"]
    of_the_function = found["/space/optimizer/lr"]
    assert (
        "draws cannot be pickled for other processes because of the closure variable 'lock' (lock): TypeError"
        in of_the_function
    )
    assert found["/space/optimizer/b~1c"].startswith("lock <unlocked _thread.lock")


def test_numpy_values_are_python_values() -> None:
    space = Space.from_python(
        {"lr": choice(np.logspace(-3, -1, 3)), "k": randint(np.int64(1), np.int64(4)), "c": np.int32(3)}
    )
    assert space.to_json()["lr"]["categories"] == [0.001, 0.01, 0.1]
    assert space.config({"lr": 0.01, "k": 2}) == {"lr": 0.01, "k": 2, "c": 3}
    assert space.blob() is None


def test_a_generator_of_grid_values_is_read_once() -> None:
    space = Space.from_python({"x": grid_search(i * i for i in range(3))})
    assert space.grid() == [{"x": 0}, {"x": 1}, {"x": 4}]
    assert space.to_json() == {"x": {"type": "grid_search", "values": [0, 1, 4]}}


def test_importing_the_space_loads_nothing_heavy() -> None:
    code = "import sys, tuner.space; print([m for m in ('numpy', 'ray', 'torch', 'optuna', 'sqlalchemy') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"


# -- conditional parameters ------------------------------------------------------------------------------------------


def test_parameters_of_branches_are_named_by_branch() -> None:
    space = Space.from_python({"optimizer": OPTIMIZER, "lr": uniform(0, 1)})
    assert [p.path for p in space.parameters] == ["optimizer", "optimizer/0/momentum", "optimizer/1/beta", "lr"]
    assert space["optimizer/1/beta"].condition == ("optimizer", 1)
    assert space["optimizer"].labels == ["sgd", "adam", None]
    params = {"optimizer": 1, "optimizer/1/beta": 0.9, "lr": 0.1}
    assert space.active(params) == [True, False, True, True]
    assert space.config(params) == {"optimizer": {"name": "adam", "beta": 0.9}, "lr": 0.1}
    assert space.to_unit(params)[1] == 0.5
    assert space.from_unit([0.99, 0.2, 0.3, 0.25]) == {"optimizer": 2, "lr": 0.25}


def test_parameters_described_for_a_page() -> None:
    space = Space.from_python({"optimizer": OPTIMIZER, "k": lograndint(1, 9), "n": randn(1, 2), "o": choice([1, 2.5])})
    about = [p.describe() for p in space.parameters]
    assert json.loads(json.dumps(about)) == about
    assert about[0] == {
        "path": "optimizer", "type": "choice", "kind": "choice", "categories": ["sgd", "adam", None], "ordered": False,
    }  # fmt: skip
    assert about[1]["condition"] == {"path": "optimizer", "index": 0}
    assert about[3] == {
        "path": "k",
        "type": "lograndint",
        "kind": "int",
        "lower": 1,
        "upper": 8,
        "log": True,
        "step": 1,
    }
    assert about[4]["sd"] == 2
    assert about[5]["ordered"]


def test_branches_within_branches() -> None:
    inner = choice([{"k": randint(0, 3)}, "none"])
    space = Space.from_python({"a": choice([{"b": inner}, randint(5, 7)])})
    assert [p.path for p in space.parameters] == ["a", "a/0/b", "a/0/b/0/k", "a/1"]
    assert space.config({"a": 0, "a/0/b": 0, "a/0/b/0/k": 2}) == {"a": {"b": {"k": 2}}}
    assert space.config({"a": 1, "a/1": 6}) == {"a": 6}
    assert space.cardinality() == 3 + 1 + 2
    assert len(space.grid(choices=True)) == 3


# -- configurations --------------------------------------------------------------------------------------------------


def test_sample_from_is_keyed_by_trial_and_path() -> None:
    space = Space.from_python(
        {
            "a": sample_from(lambda c: random.random()),
            "b": sample_from(lambda c: float(np.random.uniform())),
            "c": sample_from(lambda spec: (spec.config.a, spec["b"])),
        }
    )
    state, np_state = random.getstate(), np.random.get_state()[1].tolist()
    first, again, other = space.config({}, 1, 0), space.config({}, 1, 0), space.config({}, 1, 1)
    assert first == again
    assert first["a"] != other["a"]
    assert first["b"] != other["b"]
    assert first["c"] == (first["a"], first["b"])
    assert random.getstate() == state
    assert np.random.get_state()[1].tolist() == np_state


@pytest.mark.parametrize(
    "function",
    [
        lambda spec: spec.config.m.k,
        lambda spec: spec["config"]["m"]["k"],
        lambda spec: spec.get("config").m["k"],
        lambda spec: spec["config"]["m"].get("other", 3),
    ],
)
def test_sample_from_reads_the_configuration_in_each_form_of_ray_tune(function: Any) -> None:
    space = Space.from_python({"m": {"k": randint(0, 5)}, "copy": sample_from(function)})
    assert space.config({"m/k": 3}) == {"m": {"k": 3}, "copy": 3}
    own = Space.from_python({"config": randint(0, 5), "copy": sample_from(lambda spec: spec["config"])})
    assert own.config({"config": 2}) == {"config": 2, "copy": 2}


def test_sample_from_may_return_a_part_of_the_configuration() -> None:
    space = Space.from_python(
        {"m": {"k": randint(0, 5)}, "copy": sample_from(lambda c: c.m), "l": [sample_from(lambda c: c["copy"])]}
    )
    config = space.config({"m/k": 3})
    assert config == {"m": {"k": 3}, "copy": {"k": 3}, "l": [{"k": 3}]}
    assert type(config["copy"]) is dict
    with pytest.raises(SpecError, match="depend on each other"):
        Space.from_python({"all": sample_from(lambda c: c)}).config({})


def test_sample_from_that_cannot_be_resolved() -> None:
    circle = Space.from_python({"a": sample_from(lambda c: c["b"]), "b": sample_from(lambda c: c["a"])})
    with pytest.raises(SpecError, match="depend on each other: a, b"):
        circle.config({})
    assert all("<lambda>" in str(value) for value in circle.config({}, to_show=True).values())
    broken = Space.from_python({"a": sample_from(lambda c: 1 // 0)})
    with pytest.raises(SpecError, match=r"space\.a: .*ZeroDivisionError"):
        broken.config({})
    with pytest.raises(SpecError, match="must take no argument, or one: the configuration"):
        Space.from_python({"a": sample_from(lambda x, y: 0)})


def test_scalars_of_numpy_are_written_as_json_values() -> None:
    drawn = Space.from_python({name: sample_from(functools.partial(SCALARS.get, name)) for name in SCALARS}).config({})
    assert json.dumps(config_as_json(drawn)) == '{"int": 32, "float": 0.5, "bool": true, "text": "adam", "array": 3}'


SCALARS = {
    "int": np.int64(32), "float": np.float32(0.5), "bool": np.True_, "text": np.str_("adam"), "array": np.array(3),
}  # fmt: skip


def test_constants_of_a_configuration_are_its_own() -> None:
    space = Space.from_python({"layers": [1, {"k": 2}], "pair": (1, [uniform(0, 1)])})
    one, two = space.config({"pair/1/0": 0.5}), space.config({"pair/1/0": 0.5})
    one["layers"][1]["k"] = 99
    assert two == {"layers": [1, {"k": 2}], "pair": (1, [0.5])}


def test_constants_of_a_space() -> None:
    space = Space.from_python(
        {
            "env": "CartPole-v1",
            "net": {"layers": [8, 8], "width": choice([8, 16]), "of": {"depth": 2}},
            "sizes": [1, randint(1, 4)],
            "seed": grid_search([1, 2]),
            "drawn": sample_from(lambda config: 1),
        }
    )
    assert space.constants() == {"env": "CartPole-v1", "net": {"layers": [8, 8], "of": {"depth": 2}}}


def test_params_that_do_not_fit_are_refused() -> None:
    space = Space.from_python({"x": uniform(0, 1)})
    with pytest.raises(SpecError, match="x has no value"):
        space.config({})
    with pytest.raises(SpecError, match="from 0 to 1"):
        space.config({"x": 3})


def test_points_nested_and_flat() -> None:
    space = Space.from_python({"m": {"k": randint(0, 5), "lr": uniform(0, 1)}, "optimizer": OPTIMIZER, "n": 3})
    nested = {"m": {"k": 3.0}, "optimizer": {"name": "adam", "beta": 0.5}, "n": 3}
    assert space.check(nested) == {"m/k": 3, "optimizer": 1, "optimizer/1/beta": 0.5}
    assert space.check({"m/k": 3, "optimizer": 1}) == {"m/k": 3, "optimizer": 1}
    assert space.check({"optimizer": None}) == {"optimizer": 2}


def test_categories_with_the_key_type_are_the_same_when_they_are_read() -> None:
    space = Space.from_python(
        {
            "opt": choice([{"type": "adam", "beta": uniform(0, 1)}, {"type": "sgd"}]),
            "layers": choice([[{"type": "x"}], [1]]),
        }
    )
    read = Space.from_json(json.loads(json.dumps(space.to_json())))
    config = {"opt": {"type": "sgd"}, "layers": [{"type": "x"}]}
    for one in (space, read):
        assert [p.labels for p in one.parameters if not p.numeric] == [
            ["adam", "{'type': 'sgd'}"],
            ["[{'type': 'x'}]", "[1]"],
        ]
        assert one.check(config) == {"opt": 1, "layers": 0}
        assert one.config({"opt": 1, "layers": 0}) == config
    assert read.to_json() == space.to_json()


def test_tuples_among_the_categories_are_found_by_their_lists() -> None:
    space = Space.from_python({"hidden": choice([(64, 64), (128,)]), "both": choice([(1, 2), [1, 2], {"k": (3, [4])}])})
    for index, both in enumerate([(1, 2), [1, 2], {"k": (3, [4])}]):
        config = space.config({"hidden": 1, "both": index})
        assert config == {"hidden": (128,), "both": both}
        assert space.check(config) == {"hidden": 1, "both": index}
        sent = json.loads(json.dumps(config))
        assert space.check(sent) == {"hidden": 1, "both": max(index, 1)}, "an equal list comes before a tuple"


@pytest.mark.parametrize(
    ("point", "pointer", "words"),
    [
        ({"m": {"kk": 1}}, "/p/m/kk", "did you mean k?"),
        ({"m": {"k": 5}}, "/p/m/k", "integers from 0 to 4"),
        ({"m": {"k": True}}, "/p/m/k", "integers from 0 to 4"),
        ({"n": 4}, "/p/n", "constant 3 in the search space"),
        ({"optimizer/1/beta": 0.5}, "/p/optimizer~11~1beta", "give optimizer too"),
        ({"optimizer": 0, "optimizer/1/beta": 0.5}, "/p/optimizer~11~1beta", "only if optimizer has index 1"),
        ({"optimizer": {"name": "adam", "beta": 2}}, "/p/optimizer", "one of [sgd, adam, None]"),
        (3, "/p", "a dict of values"),
    ],
)
def test_points_that_do_not_fit(point: Any, pointer: str, words: str) -> None:
    space = Space.from_python({"m": {"k": randint(0, 5)}, "optimizer": OPTIMIZER, "n": 3})
    with pytest.raises(SpecError) as caught:
        space.check(point, "/p")
    assert [p for p, _ in caught.value.errors] == [pointer]
    assert words in caught.value.errors[0][1]


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("domain", "pointer", "words"),
    [
        ({"type": "choice", "categories": []}, "categories", "the choice is empty"),
        ({"type": "grid_search", "values": []}, "values", "the grid_search is empty"),
        ({"type": "choice", "categories": "abc"}, "categories", "expected a list"),
        ({"type": "choice", "categories": [1], "ordered": 1}, "ordered", "true or false"),
        ({"type": "uniform", "lower": 2, "upper": 1}, "lower", "the bounds are reversed"),
        (
            {"type": "randint", "lower": 1_234_568, "upper": 1_234_567},
            "lower",
            "lower (1234568) is above upper (1234567)",
        ),
        ({"type": "uniform", "lower": 1, "upper": 1}, "upper", "write a value that does not vary as a constant"),
        ({"type": "randint", "lower": 1, "upper": 1}, "upper", "exclusive"),
        ({"type": "loguniform", "lower": 0, "upper": 1}, "lower", "above zero"),
        ({"type": "loguniform", "lower": -5, "upper": -1}, "lower", "not their logarithms"),
        ({"type": "lograndint", "lower": 0, "upper": 8}, "lower", "above zero"),
        ({"type": "uniform", "lower": float("nan"), "upper": 1}, "lower", "finite"),
        ({"type": "uniform", "lower": 0, "upper": float("inf")}, "upper", "finite"),
        ({"type": "uniform", "lower": "0", "upper": 1}, "lower", "expected a number, got str '0'"),
        ({"type": "uniform", "lower": 0, "upper": True}, "upper", "expected a number"),
        ({"type": "uniform", "lower": 0, "upper": None}, "upper", "expected a number, got nothing"),
        ({"type": "randint", "lower": 0.5, "upper": 2}, "lower", "expected an integer"),
        ({"type": "randint", "lower": 0, "upper": 2**60}, "upper", "2**53"),
        ({"type": "quniform", "lower": 0, "upper": 1, "q": 0}, "q", "above zero"),
        ({"type": "quniform", "lower": 0, "upper": 1, "q": -1}, "q", "above zero"),
        ({"type": "quniform", "lower": 0, "upper": 1, "q": 0.3}, "upper", "not a multiple of q"),
        ({"type": "qrandint", "lower": 11, "upper": 19, "q": 10}, "q", "no multiple of 10"),
        ({"type": "randn", "mean": 0, "sd": 0}, "sd", "above zero"),
        ({"type": "unifrom", "lower": 0, "upper": 1}, "type", "did you mean uniform?"),
        ({"type": "adam"}, "type", '"const"'),
        ({"type": "uniform", "lower": 0, "uper": 1, "upper": 2}, "uper", "did you mean upper?"),
        ({"type": "uniform", "lower": 0}, "upper", "uniform needs upper"),
        ({"type": "tuple", "items": 3}, "items", "expected a list"),
        ({"type": "python", "index": 0}, "", "run this space from Python"),
        ({"type": "python", "index": -1}, "index", "expected an index"),
    ],
)
def test_what_is_wrong_and_where(domain: dict[str, Any], pointer: str, words: str) -> None:
    found = errors_of({"model": {"lr": domain}})
    assert found[0][0] == "/space/model/lr" + (f"/{pointer}" if pointer else "")
    assert words in found[0][1]


def test_all_errors_are_told_at_once() -> None:
    data = {"a": {"type": "choice", "categories": []}, "b": {"type": "uniform", "lower": 1, "upper": 0}}
    assert [p for p, _ in errors_of(data)] == ["/space/a/categories", "/space/b/lower"]
    assert [p for p, _ in errors_of({"a": {"type": "x"}, "b/c": {"type": "y"}})] == [
        "/space/a/type",
        "/space/b~1c/type",
    ]


def test_errors_of_branches_point_into_the_categories() -> None:
    data = {"o": {"type": "choice", "categories": [1, {"m": {"type": "uniform", "lower": 1, "upper": 0}}]}}
    assert errors_of(data)[0][0] == "/space/o/categories/1/m/lower"


def test_not_a_space() -> None:
    assert errors_of([1, 2])[0][0] == "/space"
    deep: Any = 1
    for _ in range(100):
        deep = {"a": deep}
    assert "deep" in errors_of(deep)[0][1]
    with pytest.raises(SpecError, match="not a string"):
        Space.from_python({"a": {1: uniform(0, 1)}})
    assert "cannot be loaded" in errors_of({}, blob=b"garbage")[0][1]


# -- moves -----------------------------------------------------------------------------------------------------------


def test_perturbing_moves_away_from_zero() -> None:
    space = Space.from_python({"n": randint(0, 10), "q": quniform(-1, 1, 0.25), "x": uniform(0, 1)})
    assert [space["n"].perturb(0, factor) for factor in (1.2, 0.8, 1)] == [1, 0, 0]
    assert [space["q"].perturb(0.0, factor) for factor in (1.2, 0.8)] == [0.25, -0.25]
    assert space["x"].perturb(0.0, 1.2) == 0.0


def test_perturbing() -> None:
    space = Space.from_python(
        {
            "lr": loguniform(1e-3, 1),
            "k": randint(1, 10),
            "q": quniform(0, 1, 0.25),
            "o": choice([16, 32, 64]),
            "u": choice(["a", "b"]),
            "w": choice(["s", "m", "l"], ordered=True),
        }
    )
    assert space["lr"].perturb(0.01, 1.2) == pytest.approx(0.012)
    assert space["lr"].perturb(0.9, 1.2) == 1.0
    assert space["k"].perturb(2, 1.2) == 3
    assert type(space["k"].perturb(2, 1.2)) is int
    assert space["k"].perturb(2, 0.8) == 1
    assert space["k"].perturb(1, 0.8) == 1
    assert space["k"].perturb(9, 1.2) == 9
    assert space["q"].perturb(0.5, 1.2) == 0.75
    assert space["o"].perturb(32, 1.2) == 64
    assert space["o"].perturb(32, 0.8) == 16
    assert space["o"].perturb(64, 1.2) == 64
    assert space["u"].perturb("a", 1.2) == "a"


def test_kinds_of_scalars_are_told_apart() -> None:
    p = Space.from_python({"x": choice([True, 1, 0, False, "1", None])})["x"]
    assert [p.index(v) for v in (True, 1, 0, False, "1", None)] == [0, 1, 2, 3, 4, 5]
    assert p.index(1.0) == 1
    q = Space.from_python({"x": choice([1.0, 1, 2, 0.5])})["x"]
    assert [q.index(v) for v in (1.0, 1, 2.0, 2, np.float64(0.5), np.int64(2))] == [0, 1, 2, 2, 3, 2]
    assert not q.contains([1])
    assert not q.contains(True)
    assert not q.contains(10**400)
    assert not p.contains("0")


def test_the_same_json_gives_the_same_space_and_the_same_mistakes() -> None:
    data = {"lr": {"type": "uniform", "lower": 0, "upper": 1}, "fixed": [1, {"a": None}]}
    first = Space.from_json(data)
    assert Space.from_json(json.loads(json.dumps(data))) is first
    for other in (
        {**data, "fixed": [1, {"a": 1}]},
        {**data, "fixed": [1.0, {"a": None}]},
        dict(reversed(data.items())),
    ):
        assert Space.from_json(other) is not first
        assert Space.from_json(other).to_json() == other
    first.config({"lr": 0.5})["fixed"][1]["a"] = "changed by a training function"
    data["fixed"] = [2]
    assert first.config({"lr": 0.5})["fixed"] == [1, {"a": None}]
    for pointer in ("/space", "/space", "/changes/space"):
        with pytest.raises(SpecError) as caught:
            Space.from_json({"lr": {"type": "uniform", "lower": 1, "upper": 0}}, pointer=pointer)
        assert [where for where, _ in caught.value.errors] == [f"{pointer}/lr/lower"]
