"""Test the judgement of how much early reports say about later ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import kendalltau

from tuner.schedulers.freeze_thaw.model.early_reports import (
    USUAL_ORDER,
    USUAL_WEIGHT,
    mislead,
    order,
    plateau,
    settled,
)
from tuner.schedulers.freeze_thaw.model.results import Result

LEVELS = [1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 18.0, 27.0]


def results(score: Callable[[int, float], float], trials: int = 40) -> list[Result]:
    return [(n, i, score(n, level)) for n in range(trials) for i, level in enumerate(LEVELS)]


def curves(score: Callable[[int, float], float], trials: int = 40) -> dict[int, dict[int, float]]:
    return {n: {i: score(n, level) for i, level in enumerate(LEVELS)} for n in range(trials)}


def quality(trial: int) -> float:
    return float(np.random.default_rng(trial).random())


def noise(trial: int, t: float) -> float:
    return float(np.random.default_rng([trial, int(t)]).random())


def learning(trial: int, t: float) -> float:
    """Improve from a first score by an amount that follows from it, as most trainings do."""
    return quality(trial) * (1 - 0.5 / t)


def test_curves_that_keep_their_order_and_improve_do_not_mislead() -> None:
    assert not mislead(results(learning), LEVELS)
    assert order(curves(learning), LEVELS) > 0.9


def test_curves_that_are_mostly_noise_mislead() -> None:
    assert order(curves(noise), LEVELS) < 0.2
    assert mislead(results(lambda n, t: noise(n, t) + 0.1 * t), LEVELS), "although all of them improve"


def test_a_plateau_misleads_until_a_trial_leaves_it() -> None:
    def flat(n: int, t: float) -> float:
        return quality(n) + 0.001 * t

    def one_leaves(n: int, t: float) -> float:
        return flat(n, t) + (3.0 if n == 7 and t >= 8 else 0.0)

    assert mislead(results(flat), LEVELS)
    assert not mislead(results(one_leaves), LEVELS)


def test_nothing_is_said_of_a_few_results() -> None:
    assert not mislead([], LEVELS)
    assert not mislead(results(noise, trials=1), LEVELS)
    assert not plateau(curves(lambda n, t: quality(n), trials=4))
    assert not mislead([(n, 0, quality(n)) for n in range(100)], LEVELS), "no trial has a later report"


def test_equal_scores_and_failures_are_no_reason_to_doubt() -> None:
    assert not mislead([(n, i, None) for n in range(40) for i in range(8)], LEVELS)
    assert order(curves(lambda n, t: 1.0), LEVELS) == pytest.approx(USUAL_ORDER)


def test_the_order_is_kendalls_correlation_drawn_towards_the_usual_one() -> None:
    rng = np.random.default_rng(0)
    early, late = rng.random(30), rng.random(30)
    mine = {n: {0: float(early[n]), 2: float(late[n])} for n in range(30)}  # levels 1 and 3 only
    tau = float(kendalltau(early, late).statistic)
    expected = (USUAL_ORDER * USUAL_WEIGHT + 30 * tau) / (USUAL_WEIGHT + 30)
    assert order(mine, LEVELS) == pytest.approx(expected)


def test_a_judgement_serves_until_the_results_have_grown_by_a_tenth() -> None:
    counts = [settled(count) for count in range(1, 2000)]
    assert all(0.9 * count - 1 <= kept <= count for count, kept in enumerate(counts, 1))
    assert counts == sorted(counts)
    assert len(set(counts)) < 80
    assert settled(0) == 0
