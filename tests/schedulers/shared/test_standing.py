"""Test that results are ranked by Deb's rules."""

from __future__ import annotations

import math

import pytest

from tests.schedulers.driving import Feed, context
from tuner.domain.decisions import Stop
from tuner.schedulers import MedianStoppingRule
from tuner.schedulers.moasha import MOASHAScheduler
from tuner.schedulers.shared.standing import standing, violates
from tuner.search.constraints import read

LIMITS = {"constraints": tuple(read({"size": {"max": 5}, "recall": {"min": -1e308}}))}


def test_results_within_the_constraints_come_first_and_then_smaller_violations() -> None:
    fits = {"size": 5.0, "recall": 1.0}
    worst_first = [
        (9.0, {"size": 1e308, "recall": -1.7e308}),  # the violation is infinite in floating point
        (9.0, {"size": 1.0}),
        (9.0, {"size": 7.0, "recall": 1.0}),
        (1.0, {"size": 6.0, "recall": 1.0}),
        (-1e200, fits),
        (2.0, fits),
    ]
    found = [standing(score, metrics, context(**LIMITS)) for score, metrics in worst_first]
    assert found == sorted(found)
    assert all(map(math.isfinite, found))
    assert [violates(one) for one in found] == [True] * 4 + [False] * 2
    assert standing(2.0, {"size": 9.0}, context()) == 2.0


@pytest.mark.parametrize(
    ("others", "own", "why"),
    [
        ((1, 2, 9), 7, "most of 3 other trials have"),
        ((1, 2, 9, 9), 7, None),  # the median lies between a trial that satisfies the constraint and one that does not
        ((6, 7, 8), 9, "the median of 3 other trials violates them less"),
        ((7, 8, 9), 6, None),
    ],
)
def test_median_stopping_compares_trials_by_their_reports_within_the_constraints(
    others: tuple[float, ...], own: float, why: str | None
) -> None:
    feed = Feed(MedianStoppingRule(), context(constraints=tuple(read({"size": {"max": 5}}))))
    for size in others:
        feed.report(feed.start(), 1, 0.1, {"size": size})
    decided = feed.report(feed.start(), 1, 0.9, {"size": own})
    said = f"stopped at iteration 1: no report of it has satisfied the constraints, and {why}"
    assert decided == ([Stop(trial=len(others), reason=said)] if why else [])


def test_reports_outside_the_constraints_do_not_count_in_the_mean_of_a_trial_that_has_others() -> None:
    feed = Feed(MedianStoppingRule(min_samples_required=1), context(constraints=tuple(read({"size": {"max": 5}}))))
    first = feed.start()
    for t, (value, size) in enumerate([(0.9, 9), (0.2, 1), (0.8, 9), (0.4, 1)], 1):
        assert feed.report(first, t, value, {"size": size}) == []
    second = feed.start()
    [stopped] = feed.report(second, 4, 0.25, {"size": 1})
    assert "its best value 0.25 is below 0.3, the median" in stopped.reason


def test_with_several_objectives_a_front_within_the_constraints_comes_first() -> None:
    objectives = (context().objective, context().objective.__class__("speed", "max"))
    limits = tuple(read({"size": {"max": 5}}))
    feed = Feed(MOASHAScheduler(reduction_factor=2), context(objectives=objectives, constraints=limits))
    assert feed.report(feed.start(), 1, 0.1, {"size": 1.0}) == [], "it is the only one, without a speed"
    [tempting] = feed.report(feed.start(), 1, 0.9, {"speed": 9.0, "size": 6.0})
    assert "it violates the constraints, and trials that satisfy them come first; rank 2 of 2 there" in tempting.reason
    [further] = feed.report(feed.start(), 1, 0.9, {"speed": 9.0, "size": 7.0})
    assert "rank 3 of 3" in further.reason
    assert feed.report(feed.start(), 1, 0.05, {"speed": 0.1, "size": 1.0}) == []
