"""Forecasts of the best value: how they follow from the improvements so far."""

from __future__ import annotations

import itertools
import math

import pytest

from tuner.domain.experiment import Objective
from tuner.schedulers.shared.forecast import FACTORS, GAINS, STALLS, expected_gain, gain_of_a_doubling, room, stall

WORK, SCORE = [1.0, 2.0, 4.0, 8.0, 15.9], [0.0, 0.4, 0.6, 0.7, 0.75]


def test_the_unit_is_the_gain_of_the_newest_doublings() -> None:
    # Between 8 and 16 it gained .05, between 4 and 8 .1, between 2 and 4 .2, and between 1 and 2 .4.
    assert gain_of_a_doubling(WORK, SCORE, 16.0) == pytest.approx(0.05 + 0.6 * 0.1 + 0.36 * 0.2 + 0.216 * 0.4)


def test_the_figures_are_those_of_the_class_and_the_factor() -> None:
    assert stall(WORK, 16.0) == 0
    found = expected_gain(WORK, SCORE, 16.0, 16.0)
    assert found is not None
    unit = gain_of_a_doubling(WORK, SCORE, 16.0)
    mean, low, middle, high, chance = GAINS[0][FACTORS.index(2.0)]
    assert (found.mean, found.low, found.middle, found.high) == pytest.approx(
        (mean * unit, low * unit, middle * unit, high * unit)
    )
    assert found.chance == pytest.approx(chance)


def test_no_gain_leads_past_the_end_of_the_metric() -> None:
    """After three trials, an outlook said that an accuracy of .989 would improve by .222 on average and at most by .883."""
    accuracy, loss, reward = Objective("accuracy", "max"), Objective("loss", "min"), Objective("reward", "max")
    scores = [0.106, 0.5, 0.989]
    assert room(accuracy, scores) == pytest.approx(0.011)
    assert room(loss, [loss.score(0.7), loss.score(0.3)]) == pytest.approx(0.3)
    assert room(loss, [loss.score(1.0), loss.score(-2.0)]) == math.inf, "a negative log likelihood has no end"
    assert room(reward, [1.0, 57.0]) == math.inf
    assert room(reward, [-21.0, 0.5]) == math.inf, "a value below 0 says that it is no share"
    found = expected_gain([1.0, 2.0, 4.0], scores, 8.0, 16.0, room(accuracy, scores))
    assert found is not None
    assert 0 < found.middle <= found.mean <= found.high == pytest.approx(0.011)


def test_more_training_never_promises_less() -> None:
    for now in (16.0, 20.0, 30.0, 60.0):
        gains = [expected_gain(WORK, SCORE, now, share * now) for share in (0.01, 0.1, 0.2, 0.5, 0.7, 1.0, 1.5, 2.0)]
        for before, after in itertools.pairwise(gains):
            assert before is not None
            assert after is not None
            assert before.mean <= after.mean
            assert before.high <= after.high
            assert before.chance <= after.chance


def test_a_search_that_has_not_improved_for_a_while_is_less_likely_to() -> None:
    chances = []
    for now in (16.0, 20.0, 28.0):
        found = expected_gain(WORK, SCORE, now, 0.1 * now)
        assert found is not None
        chances.append(found.chance)
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.5 > chances[1]


def test_the_unit_of_the_metric_and_of_the_time_make_no_difference() -> None:
    one = expected_gain(WORK, SCORE, 16.0, 8.0)
    other = expected_gain([100 * w for w in WORK], [1e6 * s - 3 for s in SCORE], 1600.0, 800.0)
    assert one is not None
    assert other is not None
    assert other.mean == pytest.approx(1e6 * one.mean)
    assert other.chance == one.chance


def test_nothing_is_forecast_before_the_training_has_doubled() -> None:
    assert expected_gain([], [], 10.0, 1.0) is None
    assert expected_gain([6.0], [0.5], 10.0, 1.0) is None
    assert expected_gain([5.0, 9.0], [0.5, 0.6], 10.0, 1.0) is not None
    assert expected_gain([1.0], [0.5], 10.0, 1.0) is None, "nothing has improved, so there is no scale"
    assert expected_gain(WORK, SCORE, 16.0, 0.0) is None


def test_nothing_is_told_beyond_three_times_the_training() -> None:
    assert expected_gain(WORK, SCORE, 16.0, 32.0) == expected_gain(WORK, SCORE, 16.0, 1e9)


def test_no_gain_is_expected_to_be_greater_than_all_so_far() -> None:
    found = expected_gain([1.0, 7.9], [0.0, 0.01], 20.0, 40.0)
    assert found is not None
    assert found.high == 0.01


def test_there_are_figures_for_every_class() -> None:
    assert len(GAINS) == len(STALLS) + 1
    assert all(len(row) == len(FACTORS) for row in GAINS)
    assert all(low <= middle <= high for row in GAINS for _, low, middle, high, _ in row)
