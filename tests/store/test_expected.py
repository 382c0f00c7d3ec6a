"""Test what is expected of trials after repeats, against the values that the driver's model itself has."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.store.test_columns import REPEATS, RUNS, VALUES
from tuner.store.expected import Expected

NUMBERS = np.arange(len(VALUES))
BEST = np.array([math.nan if value is None else value for value in VALUES])
REPEAT_OF = np.array([float(REPEATS.get(number, math.nan)) for number in range(len(VALUES))])


def test_configurations_with_several_runs_have_their_own_value_and_the_others_that_of_the_model() -> None:
    """`web/src/curves/expected.test.ts` expects the same of the page."""
    expected = Expected.of({"runs": RUNS})
    assert expected is not None
    found = expected.values(NUMBERS, BEST, REPEAT_OF).tolist()
    assert found[:2] == [0.28, 0.15]
    assert found[2:4] == [pytest.approx(0.1825), pytest.approx(0.1375)]
    assert found[4:6] == [0.28, 0.15]
    assert math.isnan(found[6]), "a repeat without a result"
    assert expected.is_dropped(NUMBERS, REPEAT_OF).tolist() == [False, False, False, True, False, False, False]


@pytest.mark.parametrize("best", [None, {}, {"runs": None}, {"runs": {**RUNS, "single": None, "repeated": []}}])
def test_there_is_nothing_without_repeats_or_if_an_older_version_has_not_said_it(best: dict[str, Any] | None) -> None:
    assert Expected.of(best) is None


def test_values_that_are_not_finite_count_as_none() -> None:
    runs = {**RUNS, "repeated": [{"trials": [0, 4], "mean": math.inf, "expected": math.inf}], "dropped": []}
    expected = Expected.of({"runs": {**runs, "single": {"middle": 0.4, "weight": None}}})
    assert expected is not None
    found = expected.values(NUMBERS, BEST, REPEAT_OF)
    assert np.isnan(found).tolist() == [True, False, False, False, True, True, True]
    assert found[1] == pytest.approx(0.12), "without a weight, a single run counts in full"
    assert not expected.is_dropped(NUMBERS, REPEAT_OF).any()
