"""Points of mixed and conditional spaces: realised points stand for configurations one to one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedulers.driving import SPACE
from tuner.schedulers.freeze_thaw.model.unit_cube import Cube, key
from tuner.space import Space, choice, lograndint, loguniform, quniform, randint, randn, uniform

MIXED = Space(
    {
        "lr": loguniform(1e-4, 1e-1),
        "momentum": quniform(0.0, 0.9, 0.1),
        "units": lograndint(8, 257),
        "layers": randint(1, 5),
        "width": choice([16, 32, 64]),  # in ascending order: ordered
        "act": choice(["relu", "tanh", "gelu"]),
        "init": randn(0.0, 2.0),
    }
)
NESTED = Space(
    {
        "model": choice(
            [
                {"depth": randint(1, 9)},
                {
                    "heads": choice([2, 4, 8]),
                    "norm": choice([{"eps": loguniform(1e-8, 1e-3)}, {"groups": randint(1, 5)}]),
                },
                {"k": randint(1, 30)},
            ]
        )
    }
)
SPACES = {"mixed": MIXED, "nested": NESTED, "driving": SPACE}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_a_realised_point_and_its_params_stand_for_each_other(space: Space) -> None:
    cube, g = Cube(space), np.random.default_rng(0)
    points = cube.realise(g.random((200, cube.dims)))
    assert cube.realise(points) == pytest.approx(points, abs=0), "realised once and for all"
    for point in points:
        params = cube.params(point)
        assert cube.point(params) == pytest.approx(point, abs=1e-9)
        assert cube.params(cube.point(params)) == pytest.approx(params)
        on = space.active(params)
        assert all(u == 0.5 for u, active in zip(point, on, strict=True) if not active)
        assert set(params) == {p.path for p, active in zip(space.parameters, on, strict=True) if active}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_new_points_are_realised_and_reach_every_category(space: Space) -> None:
    cube, g = Cube(space), np.random.default_rng(1)
    scattered = cube.scatter(300, g)
    made = {
        "scatter": scattered,
        "spread": cube.spread(64, g.random(cube.dims)),
        "perturb": cube.perturb(scattered, 0.1, g),
    }
    for points in made.values():
        assert ((points >= 0) & (points <= 1)).all()
        assert cube.realise(points) == pytest.approx(points, abs=0)
        for number, axis in enumerate(cube.axes):
            if axis.kind == "choice" and axis.parent is None:
                assert set(points[:, number].round(6)) == set(axis.positions.round(6))


def test_two_configurations_have_one_key_only_where_they_are_equal() -> None:
    cube, g = Cube(NESTED), np.random.default_rng(2)
    params: dict[bytes, object] = {}
    for point in cube.scatter(400, g):
        known = params.setdefault(key(point), cube.params(point))
        assert known == cube.params(point)
    assert len({str(p) for p in params.values()}) == len(params) > 20


def test_integers_and_ordered_choices_are_numbers_and_categories_are_not() -> None:
    cube = Cube(Space({"n": randint(1, 5), "w": choice([16, 32, 64, 128]), "act": choice(["a", "b", "c"])}))
    assert [axis.kind for axis in cube.axes] == ["grid", "grid", "choice"]
    assert list(cube.group) == [0, 1, 2, 2, 2]
    features = {
        name: cube.features(cube.point({"n": n, "w": w, "act": act})[None])[0]
        for name, (n, w, act) in {
            "origin": (1, 16, "a"),
            "one up": (2, 16, "a"),
            "two up": (3, 16, "a"),
            "b": (1, 16, "b"),
            "c": (1, 16, "c"),
        }.items()
    }
    away = {name: float(np.linalg.norm(f - features["origin"])) for name, f in features.items()}
    assert away["two up"] == pytest.approx(2 * away["one up"])
    assert away["b"] == pytest.approx(away["c"]) == pytest.approx(1.0)
    assert np.linalg.norm(features["b"] - features["c"]) == pytest.approx(1.0)


def test_edges_are_tried_where_they_are_values() -> None:
    cube = Cube(MIXED)
    points = cube.scatter(400, np.random.default_rng(3))
    at_edge = ((points == points.min(0)) | (points == points.max(0))).mean(0)
    names = [p.path for p in MIXED.parameters]
    assert at_edge[names.index("lr")] > 0.3
    assert at_edge[names.index("init")] < 0.02, "a normal has no edge worth trying"


def test_inactive_parameters_keep_no_configurations_apart() -> None:
    cube = Cube(NESTED)
    g = np.random.default_rng(4)
    points = g.random((50, cube.dims))
    points[:, 0] = 0.9  # the third model, which has k only
    names = [p.path for p in NESTED.parameters]
    realised = cube.realise(points)
    inactive = [i for i, name in enumerate(names) if name not in ("model", names[-1])]
    assert (realised[:, inactive] == 0.5).all()


def test_a_huge_range_of_integers_is_no_table() -> None:
    cube = Cube(Space({"n": randint(0, 10**9)}))
    assert cube.axes[0].kind == "continuous"
    assert isinstance(cube.params(np.array([0.123]))["n"], int)


def test_low_discrepancy_points_fill_the_space_more_evenly_than_random_ones() -> None:
    cube = Cube(Space({name: uniform(0, 1) for name in "abc"}))
    g = np.random.default_rng(5)

    def widest_gap(points: np.ndarray) -> float:
        probes = np.random.default_rng(6).random((2000, 3))
        return float(np.linalg.norm(probes[:, None] - points, axis=2).min(1).max())

    spread = np.mean([widest_gap(cube.spread(32, g.random(3))) for _ in range(10)])
    independent = np.mean([widest_gap(g.random((32, 3))) for _ in range(10)])
    assert spread < 0.92 * independent
