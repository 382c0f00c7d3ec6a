"""Test the hypervolume, and how it grew."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest

from tuner.domain.experiment import Objective
from tuner.experiment.analysis import pareto
from tuner.experiment.analysis.pareto import front, growth, hypervolume

BOTH = (Objective("accuracy", "max"), Objective("latency", "min"))


def test_the_hypervolume_is_the_area_under_a_staircase() -> None:
    assert hypervolume(np.empty((0, 2))) == 0
    assert hypervolume(np.array([[0.5, 0.5]])) == pytest.approx(0.25)
    points = np.array([[1, 0.2], [0.5, 0.5], [0.2, 1], [0.4, 0.4]])
    assert hypervolume(points) == pytest.approx(0.2 + 0.5 * 0.3 + 0.2 * 0.5)


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4])
def test_the_hypervolume_is_what_counting_cells_gives(dimensions: int) -> None:
    random = np.random.default_rng(dimensions)
    size = 6
    for _ in range(5):
        points = random.integers(0, size + 1, (8, dimensions)) / size
        corners = [(np.array(cell) + 0.5) / size for cell in itertools.product(range(size), repeat=dimensions)]
        cells = sum(bool((points >= corner).all(axis=1).any()) for corner in corners)
        assert hypervolume(points) == pytest.approx(cells / size**dimensions)


def test_the_hypervolume_grows_with_the_trials_as_they_end() -> None:
    values = np.array([[0.9, 9.0], [0.5, 10.0], [0.4, 1.0], [0.9, 1.0]])
    ends = [40.0, 30.0, 20.0, 10.0]
    assert growth(values, ends, BOTH) == [(10.0, 1.0)]
    [(when, share)] = growth(values[:3], ends[:3], BOTH)
    assert (when, share) == (40.0, pytest.approx(1 / 9)), "the other two are on the edge of the box"
    assert growth(values[:3], [None, 30.0, 20.0], BOTH) == [], "a running trial does not count yet"
    assert growth(np.array([[math.nan, 1.0]]), [3.0], BOTH) == []
    assert growth(np.array([[2.0, 1.0], [3.0, 1.0]]), [1.0, 2.0], BOTH) == [(2.0, 1.0)], "an objective of one value"


@pytest.mark.parametrize("objectives", [1, 2, 3])
def test_the_growth_is_what_the_front_after_each_trial_gives(objectives: int) -> None:
    generator = np.random.default_rng(objectives)
    highest = tuple(Objective(f"m{number}", "max") for number in range(objectives))
    for _ in range(30):
        # Each objective ranges from 0 to 1, and all volumes are exact numbers.
        values = generator.integers(0, 4, (generator.integers(2, 40), objectives)) / 4
        values = np.vstack([np.zeros(objectives), np.eye(objectives), values])
        order = [int(row) for row in generator.permutation(len(values))]
        ends = [float(order.index(row)) for row in range(len(values))]
        expected: list[tuple[float, float]] = []
        for count in range(1, len(order) + 1):
            ended = values[order[:count]]
            volume = hypervolume(ended[front(ended, highest)])
            if volume > (expected[-1][1] if expected else 0.0):
                expected.append((float(count - 1), volume))
        assert growth(values, ends, highest) == expected


def test_a_front_of_thousands_of_trials_takes_little_memory() -> None:
    at = np.linspace(0, 1, 3000)
    tracemalloc.start()
    try:
        growth(np.column_stack([at, at**3]), [float(row) for row in range(3000)], BOTH)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * 2**20, "a copy of the front for each trial on it took 70 MiB"


def test_of_many_points_the_first_and_the_last_remain() -> None:
    count = 1000
    at = np.linspace(0, 1, count)
    values = np.column_stack([at, at**3])
    ends = [float(time) for time in np.random.default_rng(1).permutation(count)]
    found = growth(values, ends, BOTH)
    assert 100 < len(found) <= pareto.MOST_POINTS
    assert found == sorted(found, key=lambda pair: (pair[0], pair[1]))
    assert found[-1][1] == pytest.approx(hypervolume(np.column_stack([at, 1 - at**3])))


def test_there_is_no_hypervolume_if_it_would_take_too_long() -> None:
    values = np.random.default_rng(2).random((600, 6))
    objectives = tuple(Objective(name, "min") for name in "abcdef")
    assert growth(values, [float(row) for row in range(600)], objectives) == []
