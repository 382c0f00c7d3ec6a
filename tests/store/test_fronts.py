"""Test the sorting into fronts against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tuner.schedulers.shared import pareto
from tuner.store.fronts import fronts


@pytest.mark.parametrize("modes", [("max", "min"), ("min", "min"), ("max", "min", "max"), ("min", "max", "min", "max")])
def test_fronts_are_those_of_comparing_every_pair(modes: tuple[str, ...]) -> None:
    random = np.random.default_rng(len(modes))
    for width in (3, 12, 1000):  # with many equal values, some, and none
        values = random.integers(0, width, (150, len(modes))).astype(float)
        scores = values * np.array([1.0 if mode == "max" else -1.0 for mode in modes])
        expected = np.empty(len(values))
        for at, front in enumerate(pareto.fronts(scores.tolist()), 1):
            expected[front] = at
        assert fronts(values, modes).tolist() == expected.tolist()


def test_a_row_without_every_value_is_on_no_front() -> None:
    values = np.array([[1.0, 2.0], [math.nan, 0.0], [0.5, math.inf], [0.5, 1.0], [0.4, 1.0]])
    found = fronts(values, ("max", "min"))
    assert np.isnan(found).tolist() == [False, True, True, False, False]
    assert found[[0, 3, 4]].tolist() == [1, 1, 2]
    assert fronts(np.empty((0, 2)), ("max", "min")).tolist() == []
