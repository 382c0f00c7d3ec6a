"""Test the estimate of how likely a new configuration is to repeat another."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.schedulers.freeze_thaw.decisions.novelty import (
    DISTANCES,
    MOST,
    Novelty,
    distance_to_nearest,
    log_apart,
    log_new,
)
from tuner.schedulers.freeze_thaw.model.curve_model import Floats

Result = tuple[int, int, float | None]


def cells(count: int, width: float) -> tuple[list[Result], Floats]:
    """Trials on a line that is cut into cells of this width; within one all results are the same."""
    x = np.random.default_rng(0).random((count, 1))
    return [(n, 0, float(np.floor(x[n, 0] / width))) for n in range(count)], x


def followed(results: list[Result], x: Floats) -> Novelty:
    novelty = Novelty()
    novelty.follow(results, lambda n: x[n])
    return novelty


def test_without_repeats_nothing_is_said() -> None:
    x = np.random.default_rng(0).random((30, 2))
    assert followed([(n, 0, float(x[n, 0])) for n in range(30)], x).chance() is None
    assert Novelty().chance() is None


def test_the_chance_falls_with_the_distance_and_follows_the_size_of_the_cells() -> None:
    found = []
    for width in (0.02, 0.1):
        chance = followed(*cells(200, width)).chance()
        assert chance is not None
        assert (np.diff(chance) <= 0).all()
        assert 0 <= chance[-1] <= chance[0] <= MOST
        found.append(chance)
    small, large = found
    assert np.interp(0.004, DISTANCES, large) > 0.8
    assert np.interp(0.02, DISTANCES, small) < np.interp(0.02, DISTANCES, large) - 0.2


def test_crashes_repeat_nothing() -> None:
    x = np.random.default_rng(0).random((30, 1))
    assert followed([(n, 0, None) for n in range(30)], x).chance() is None


def test_only_the_nearest_earlier_trial_counts() -> None:
    x = np.array([[0.1], [0.9], [0.85]])
    assert followed([(0, 0, 1.0), (1, 0, 2.0), (2, 0, 1.0)], x).chance() is None, "the same as the far one, by chance"
    assert followed([(0, 0, 1.0), (1, 0, 2.0), (2, 0, 2.0)], x).chance() is not None


def test_bit_by_bit_is_at_once() -> None:
    results, x = cells(60, 0.1)
    results += [(n, 1, 0.5) for n in range(60)]
    bits = Novelty()
    for k in range(len(results) + 1):
        bits.follow(results[:k], lambda n: x[n])
        bits.chance()
    assert np.array_equal(bits.chance(), followed(results, x).chance())  # type: ignore[arg-type]


def test_log_new_is_the_logarithm_of_what_is_left() -> None:
    chance = np.where(DISTANCES < 0.3, 0.75, 0.0)
    known = np.array([[0.5, 0.5], [0.9, 0.9]])
    nearest = distance_to_nearest(np.array([[0.5, 0.5], [0.55, 0.5], [0.0, 0.0]]), known)
    assert nearest == pytest.approx([0.0, 0.05, np.sqrt(0.5)])
    assert log_new(chance, nearest) == pytest.approx([np.log(0.25), np.log(0.25), 0.0])


def test_a_copy_counts_for_a_hundredth_and_what_is_far_away_for_itself() -> None:
    found = np.exp(log_apart(np.array([0.0, 0.025, 0.05, 0.1, 0.3])))
    assert found == pytest.approx(
        [0.01, 1 - 0.99 * np.exp(-0.125), 1 - 0.99 * np.exp(-0.5), 1 - 0.99 * np.exp(-2), 1.0]
    )
