"""Test the judgment of how widely reports fluctuate."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tuner.schedulers.freeze_thaw.model.swings import Swing, are_large, swing


def judged(score: Callable[[int, int], float], trials: int = 20, reports: int = 12) -> bool:
    curves = [[score(trial, t) for t in range(reports)] for trial in range(trials)]
    swings: list[Swing] = [
        swing(*three) for curve in curves for three in zip(curve, curve[1:], curve[2:], strict=False)
    ]
    return are_large(swings, [score for curve in curves for score in curve])


def learning(trial: int, t: int) -> float:
    """Improve steadily, with a final score that depends on the trial."""
    return trial * (1 - math.exp(-(t + 1) / 4))


def noise(trial: int, t: int) -> float:
    return float(np.random.default_rng([trial, t]).normal())


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ((0.0, 3.0, 2.0), (3.0, 2.0)),  # the second change is the smaller one
        ((0.0, -1.0, 5.0), (-1.0, 0.0)),  # the first one is
        ((0.0, 1.0, 2.0), (1.0, 1.0)),  # both have the same direction
        ((0.0, 1.0, 1.0), (1.0, 1.0)),
    ],
)
def test_a_swing_is_the_smaller_one_of_two_opposite_changes(
    reports: tuple[float, float, float], expected: Swing
) -> None:
    assert swing(*reports) == expected


def test_curves_that_only_rise_or_only_fall_do_not_swing() -> None:
    assert not judged(learning)
    assert not judged(lambda trial, t: -learning(trial, t))
    assert not judged(lambda trial, t: -((t - 4.0) ** 2) * trial), "each turns once"


def test_noise_is_compared_with_the_differences_between_trials() -> None:
    assert judged(lambda trial, t: learning(trial, t) + 6 * noise(trial, t))
    assert not judged(lambda trial, t: learning(trial, t) + 0.3 * noise(trial, t))


def test_a_few_large_swings_are_enough() -> None:
    def falls_back(trial: int, t: int) -> float:
        return learning(trial, t) - (9.0 if t in (3, 8) else 0.0)

    def hesitates(trial: int, t: int) -> float:
        return learning(trial, t) - (0.4 if t in (3, 8) else 0.0)

    assert judged(falls_back)
    assert not judged(hesitates)


def test_neither_the_unit_of_the_metric_nor_a_diverging_trial_matters() -> None:
    for unit in (1e-6, 1e6):
        assert judged(lambda trial, t, unit=unit: unit * (learning(trial, t) + 6 * noise(trial, t)) + 5.0)  # type: ignore[misc]
        assert not judged(lambda trial, t, unit=unit: unit * learning(trial, t) + 5.0)  # type: ignore[misc]
    assert not judged(lambda trial, t: -(10.0 ** (t % 3 * 9)) if trial == 0 else learning(trial, t))


def test_nothing_is_said_of_a_few_reports() -> None:
    assert not are_large([], [1.0])
    assert not judged(noise, trials=1, reports=4)
