"""Test the sorting into fronts against its definition."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.domain import fronts as module
from tuner.domain.fronts import Floats, Fronts, fronts

MODES = [("max", "min"), ("min", "min"), ("max", "min", "max"), ("min", "max", "min", "max")]


def by_definition(values: Floats, modes: Sequence[str]) -> list[float]:
    """Return the front of each row: the next front is those of the remaining rows that no remaining row dominates."""
    costs = values * np.array([1.0 if mode == "min" else -1.0 for mode in modes])
    found = np.full(len(costs), math.nan)
    left = np.isfinite(costs).all(axis=1)
    front = 0
    while left.any():
        front += 1
        rows = costs[left]
        no_worse = (rows[:, None] <= rows).all(axis=2) & (rows[:, None] < rows).any(axis=2)
        first = np.flatnonzero(left)[~no_worse.any(axis=0)]
        found[first], left[first] = front, False
    return found.tolist()


def same(found: Floats, expected: list[float]) -> bool:
    return bool(np.array_equal(found, np.array(expected), equal_nan=True))


@pytest.mark.parametrize("modes", MODES)
def test_fronts_are_those_of_comparing_every_pair(modes: tuple[str, ...]) -> None:
    random = np.random.default_rng(len(modes))
    for width in (3, 12, 1000):  # with many equal values, some, and none
        values = random.integers(0, width, (150, len(modes))).astype(float)
        assert same(fronts(values, modes), by_definition(values, modes))


def test_one_objective_compares_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.array([[0.3], [0.1], [math.nan], [0.3], [math.inf], [0.2]])
    assert same(fronts(values, ["max"]), by_definition(values, ["max"]))
    assert same(fronts(values, ["min"]), by_definition(values, ["min"]))
    # Comparing the rows of a search with 100,000 trials took 16 s.
    monkeypatch.setattr(module, "_placed", None)
    assert same(fronts(values, ["max"]), [1, 3, math.nan, 1, math.nan, 2])


def test_a_row_without_every_value_is_on_no_front() -> None:
    values = np.array([[1.0, 2.0], [math.nan, 0.0], [0.5, math.inf], [0.5, 1.0], [0.4, 1.0]])
    found = fronts(values, ("max", "min"))
    assert np.isnan(found).tolist() == [False, True, True, False, False]
    assert found[[0, 3, 4]].tolist() == [1, 1, 2]
    assert fronts(np.empty((0, 2)), ("max", "min")).tolist() == []


@given(st.data())
def test_fronts_are_those_of_the_definition(data: st.DataObject) -> None:
    modes = data.draw(st.lists(st.sampled_from(["min", "max"]), min_size=1, max_size=5))
    number = st.sampled_from([0.0, -0.0, 1.0, 2.0, 3.0, -1.5, math.inf, math.nan])
    rows = data.draw(st.lists(st.lists(number, min_size=len(modes), max_size=len(modes)), max_size=25))
    values = np.array(rows, np.float64).reshape(len(rows), len(modes))
    assert same(fronts(values, modes), by_definition(values, modes))


@given(st.data())
def test_fronts_that_change_are_those_of_sorting_all_rows(data: st.DataObject) -> None:
    modes = ["min", "max", "min", "min", "max"][: data.draw(st.integers(2, 5))]
    number = st.integers(0, 3).map(float) | st.just(math.nan)
    row = st.lists(number, min_size=len(modes), max_size=len(modes))
    values = np.array(data.draw(st.lists(row, min_size=1, max_size=20)), np.float64)
    kept = Fronts()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "FEW", 0)  # any number of changes is few
        patched.setattr(module, "MANY", 1)
        kept.of(values, modes)
        patched.setattr(module, "_sorted", None)  # nothing is sorted again
        for _ in range(data.draw(st.integers(1, 4))):
            values = np.vstack([values, *data.draw(st.lists(row, max_size=3))])
            for at in data.draw(st.lists(st.integers(0, len(values) - 1), max_size=4)):
                values = values.copy()
                values[at] = data.draw(row)
            assert same(kept.of(values, modes), by_definition(values, modes))


@pytest.mark.parametrize("modes", MODES)
def test_kept_fronts_follow_every_change(modes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 20)
    monkeypatch.setattr(module, "MOST_COMPARED", 1000)  # so that comparisons are divided
    random, kept = np.random.default_rng(len(modes)), Fronts()
    values = random.random((150, len(modes)))
    for _ in range(12):
        before = kept.of(values, modes)
        assert same(before, by_definition(values, modes))
        assert kept.of(values.copy(), modes) is before, "nothing has changed"
        copy = before.copy()
        values = np.vstack([values, random.random((2, len(modes)))])
        values[random.integers(0, 150, 3)] = random.random((3, len(modes)))
        values[random.integers(0, 150)] = math.nan
        kept.of(values, modes)
        assert same(before, copy.tolist()), "an earlier result does not change"
    fewer = values[:100]
    assert same(kept.of(fewer, modes), by_definition(fewer, modes))
    assert same(kept.of(fewer[:, :2], modes[:2]), by_definition(fewer[:, :2], modes[:2]))
