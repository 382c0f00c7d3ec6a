"""Recorded problems: what is written is read again, and every one that ships is fit to be tuned."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks.learning_curves import RECORDED, Problem, load, problems, recorded, save
from tuner.space import Space, choice, uniform

SPACE = Space({"x": uniform(0, 1), "kind": choice(["a", {"name": "b", "y": uniform(0, 1)}])})


def written(folder: Path, mode: str = "min") -> Problem:
    rng = random.Random(0)
    points = [SPACE.to_unit(SPACE.sample(rng)) for _ in range(20)]
    values = np.arange(20.0)[:, None] + np.array([3.0, 2.0, 1.0])
    values[7, 1:] = np.nan
    return load(save(folder, "made/up", mode, SPACE, points, values, np.full(20, 6.0)))


def test_a_recorded_configuration_has_its_own_curve(tmp_path: Path) -> None:
    problem, rng = written(tmp_path), random.Random(0)
    for k in range(20):
        values, seconds = problem.curve(SPACE.config(SPACE.sample(rng)))
        assert values[0] == k + 3
        assert seconds == pytest.approx([1, 2, 3])
    assert (problem.name, problem.family, problem.max_t, problem.full_seconds) == ("made/up", "made", 3, 3.0)
    assert problem.regret(problem.best) == 0
    assert problem.regret(problem.median) == 1


def test_a_diverged_configuration_is_as_bad_as_no_training_at_all(tmp_path: Path) -> None:
    rng = random.Random(0)
    config = [SPACE.config(SPACE.sample(rng)) for _ in range(20)][7]
    assert written(tmp_path).curve(config)[0] == pytest.approx([10, 22, 22])
    assert written(tmp_path, "max").curve(config)[0] == pytest.approx([10, 3, 3])


def test_a_configuration_is_looked_up_among_those_of_its_category(tmp_path: Path) -> None:
    problem, rng = written(tmp_path), random.Random(0)
    kinds = {k: SPACE.sample(rng)["kind"] for k in range(20)}
    for x in (0.0, 0.5, 1.0):
        for kind in (0, 1):
            params = {"x": x, "kind": kind, **({"kind/1/y": 0.5} if kind else {})}
            found = int(problem.curve(SPACE.config(params))[0][0]) - 3
            assert kinds[found] == kind


def test_without_the_shared_folder_there_are_the_projects_own(tmp_path: Path) -> None:
    assert [p.name for p in problems(tmp_path)] == [p.name for p in recorded()]


@pytest.mark.parametrize("file", sorted(RECORDED.glob("*.npz")), ids=lambda file: file.stem)
def test_what_ships_can_be_tuned(file: Path) -> None:
    problem, rng = load(file), random.Random(1)
    final = []
    for _ in range(100):
        values, seconds = problem.curve(problem.space.config(problem.space.sample(rng)))
        assert values.shape == seconds.shape == (problem.max_t,)
        assert np.isfinite(values).all()
        assert (np.diff(seconds, prepend=0.0) > 0).all()
        final.append(problem.regret(values[-1]))
    assert 0.5 < np.median(final) < 2, "half of the configurations are worse than the median one"
    assert np.mean(np.array(final) < 0.1) < 0.25, "good configurations are rare"


def test_what_ships_is_small_and_of_every_kind() -> None:
    found = recorded()
    assert sum(file.stat().st_size for file in RECORDED.glob("*.npz")) < 2_000_000
    assert len({problem.family for problem in found}) >= 3
    assert any(p.condition is not None for problem in found for p in problem.space.parameters)
