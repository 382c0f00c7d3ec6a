"""Test what holds for every space: values stay inside, forms convert into each other and back, and errors name what is wrong."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.space.spaces import JSON, SPACES
from tuner.errors import SpecError
from tuner.space import Space
from tuner.space.values import same

relaxed = settings(suppress_health_check=[HealthCheck.too_slow])


@relaxed
@given(SPACES, st.integers(0, 2**32))
def test_samples_lie_in_their_domains(data: dict[str, Any], seed: int) -> None:
    space = Space.from_json(data)
    params = space.sample(random.Random(seed))
    active = [p.path for p, on in zip(space.parameters, space.active(params), strict=True) if on]
    assert list(params) == active
    for path, value in params.items():
        assert space[path].contains(value)
        assert space[path].normal_form(value) == value
    assert json.loads(json.dumps(params, allow_nan=False)) == params
    assert space.check(params) == params
    assert isinstance(space.config(params), dict)


@relaxed
@given(SPACES, st.integers(0, 2**32))
def test_unit_cube_and_back(data: dict[str, Any], seed: int) -> None:
    space = Space.from_json(data)
    params = space.sample(random.Random(seed))
    unit = space.to_unit(params)
    assert len(unit) == len(space)
    assert all(0 <= u <= 1 for u in unit)
    again = space.from_unit(unit)
    assert again.keys() == params.keys()
    for path, value in params.items():
        p = space[path]
        if p.kind == "choice":
            assert p.index(again[path]) == p.index(value)
        elif p.size is not None:
            assert again[path] == value
        elif p.step is None:
            assert p.unit(again[path]) == pytest.approx(p.unit(value), rel=1e-9, abs=1e-12)


@relaxed
@given(SPACES)
def test_json_form_round_trip(data: dict[str, Any]) -> None:
    space = Space.from_json(data)
    written = json.loads(json.dumps(space.to_json(), allow_nan=False))
    again = Space.from_json(written)
    assert again.to_json() == written
    assert again.parameters == space.parameters
    assert again.sample(random.Random(1)) == space.sample(random.Random(1))
    assert again.config(again.sample(random.Random(1))) == space.config(space.sample(random.Random(1)))
    assert space.blob() is None


@relaxed
@given(JSON)
@example({"lr": {"type": "uniform", "lower": float("nan"), "upper": 1}})
@example({"lr": {"type": "randint", "lower": 10**400, "upper": 10**401}})
@example({"lr": {"type": "uniform", "lower": -1.7e308, "upper": 1.7e308}})
@example({"lr": {"type": "quniform", "lower": 0, "upper": 1e300, "q": 1e-300}})
@example({"lr": {"type": ["uniform"]}})
@example([])
def test_garbage_is_a_spec_error_or_a_space(data: Any) -> None:
    pointers: list[str] = []
    try:
        space = Space.from_json(data)
    except SpecError as error:
        pointers = [pointer for pointer, _ in error.errors]
    else:
        space.config(space.sample(random.Random(0)))
    assert all(pointer.startswith("/space") for pointer in pointers)


@relaxed
@given(SPACES, JSON)
def test_garbage_points_are_spec_errors(data: dict[str, Any], point: Any) -> None:
    space = Space.from_json(data)
    try:
        params = space.check(point, "/points_to_evaluate/0")
    except SpecError:
        return
    for path, value in params.items():
        assert space[path].contains(value)


@relaxed
@given(SPACES, st.integers(0, 2**32), st.floats(0.1, 5))
@example({"width": {"type": "choice", "categories": [-1.0, 0]}}, 0, 0.5)
def test_moves_never_leave_the_domain(data: dict[str, Any], seed: int, factor: float) -> None:
    space = Space.from_json(data)
    rng = random.Random(seed)
    params = space.sample(rng)
    for path, value in params.items():
        p = space[path]
        moved = p.perturb(value, factor)
        assert p.contains(moved)
        expected = moved if p.kind == "choice" else value  # the categories of a choice may be of several types
        assert type(moved) is type(p.normal_form(expected))
        assert p.contains(p.resample(rng))
        if p.numeric:
            assert p.contains(p.clip(1e30))
            assert p.contains(p.clip(-1e30))
            if p.lower > 0 and p.step is None and p.kind == "float":
                assert moved == pytest.approx(min(max(value * factor, p.lower), p.upper))


@relaxed
@given(SPACES)
def test_grids_enumerate_without_repetition(data: dict[str, Any]) -> None:
    space = Space.from_json(data)
    cells = space.grid(choices=True, limit=500)
    indices = [{k: space[k].index(v) for k, v in cell.items()} for cell in cells]
    pairs = (pair for p in space.parameters for pair in itertools.combinations(p.categories, 2))
    if not any(same(*pair) for pair in pairs):  # such as 0.0 and -0.0
        assert len({json.dumps(i, sort_keys=True) for i in indices}) == len(indices)
    for cell in cells[:50]:
        params = space.sample(random.Random(0), cell)
        assert {k: params[k] for k in cell} == cell


@relaxed
@given(SPACES)
def test_the_number_of_configurations(data: dict[str, Any]) -> None:
    space = Space.from_json(data)
    size = space.cardinality()
    if all(p.kind == "choice" for p in space.parameters) and size is not None and size <= 500:
        assert len(space.grid(choices=True)) == size
