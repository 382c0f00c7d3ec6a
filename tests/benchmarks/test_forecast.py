"""The benchmark of forecasts, on searches that take a second: the figures in the code are right as often as they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import forecast
from tuner.experiment.analysis.forecast import ENDS
from tuner.schedulers.shared.forecast import GAINS

PROBLEMS = ("linear/generated", "boosting/friedman", "mlp/digits")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return [forecast.one(name, search, 7, Path("/nowhere")) for name in PROBLEMS for search in ("asha", "random")]


def test_what_a_search_finds_is_within_the_interval_in_most_cases(rows: list[dict[str, Any]]) -> None:
    cases = [case for row in rows for case in forecast.gains_of(row)]
    assert len(cases) > 60
    right = [
        low - 1e-9 <= case[4] <= high + 1e-9 for case in cases for low, high in [forecast.gain_interval(GAINS, case)]
    ]
    assert sum(right) / len(right) >= 0.7


def test_searches_end_within_the_interval_in_most_cases(rows: list[dict[str, Any]]) -> None:
    cases = [case for row in rows for case in forecast.ends_of(row)]
    assert len(cases) > 40
    figures = [ENDS[kind] for kind in forecast.KINDS]
    right = [low <= case[4] <= high for case in cases for low, high in [forecast.end_interval(figures, case)]]
    assert sum(right) / len(right) >= 0.6


def test_no_family_is_judged_by_its_own_figures() -> None:
    """Ten cases of one family with a gain of one unit, and ten of another with none."""
    cases: list[forecast.Case] = [("a", 0, 0, 1.0, 1.0, 1.0, 9.0)] * 10 + [("b", 0, 0, 1.0, 0.0, 1.0, 9.0)] * 10
    found = forecast.judged(cases, forecast.gain_figures, forecast.gain_interval)
    assert (found["a"]["right"], found["a"]["above"]) == ("0%", "100%")
    assert (found["b"]["right"], found["b"]["below"]) == ("0%", "100%")
    assert found["all"]["cases"] == 20
