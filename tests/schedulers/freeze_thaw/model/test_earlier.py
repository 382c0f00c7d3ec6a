"""Models of earlier experiments, the portfolio that covers them, and how far the present search follows them."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

import tuner
from tuner.schedulers.freeze_thaw.model.curve_model import Evidence, Floats, Posterior, Prior, Rows
from tuner.schedulers.freeze_thaw.model.earlier import Earlier, EarlierTrial, Surrogate, portfolio, relevance, surrogate
from tuner.schedulers.freeze_thaw.model.learned import Learned
from tuner.schedulers.freeze_thaw.model.unit_cube import Cube
from tuner.space import Space

SPACE = Space.from_python({"x": tuner.uniform(0, 1), "y": tuner.uniform(0, 1), "kind": tuner.choice(["a", "b"])})
CUBE = Cube(SPACE)
NOBODY = np.array([], dtype=np.int64)


def peaked(at: tuple[float, float], count: int = 40, seed: int = 0, kind: str = "a") -> list[EarlierTrial]:
    """Return trials of an experiment whose scores rise towards a peak, most of them stopped early."""
    g = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        params = {"x": float(g.random()), "y": float(g.random()), "kind": str(g.choice(["a", "b"]))}
        final = -math.dist((params["x"], params["y"]), at) - 0.5 * (params["kind"] != kind)
        length = 9 if g.random() < 0.4 else 3
        found.append(EarlierTrial(params, tuple(final - 1 / (r + 1) for r in range(1, length + 1))))
    return found


def features(*params: tuple[float, float, str]) -> Floats:
    points = np.array([CUBE.point({"x": x, "y": y, "kind": kind}) for x, y, kind in params])
    return CUBE.features(CUBE.realise(points))


def test_a_surrogate_is_the_mean_of_the_curve_model_at_the_end() -> None:
    g = np.random.default_rng(3)
    x = CUBE.features(CUBE.realise(g.random((15, 3))))
    trial, tau = np.repeat(np.arange(15), 2), np.tile([0.0, 1.0], 15)
    evidence = Evidence(Rows(x, trial, tau), g.normal(size=30), CUBE.group, Prior())
    theta = evidence.prior.mean(3) + 0.3 * g.normal(size=9)
    posterior = Posterior(theta, CUBE.group, evidence.rows, evidence.z, NOBODY)
    made = Surrogate(x, posterior.end_weights(), np.exp(theta[:3])[CUBE.group], math.exp(theta[6]), math.exp(theta[7]))
    new = CUBE.features(CUBE.realise(g.random((20, 3))))
    assert made(new, CUBE.group) == pytest.approx(posterior.of_new(new, 1.0)[0])


def test_a_surrogate_knows_where_the_peak_is_and_survives_json() -> None:
    made = surrogate(CUBE, peaked((0.2, 0.8)), 9)
    near, far, other = features((0.2, 0.8, "a"), (0.9, 0.1, "a"), (0.2, 0.8, "b"))
    values = made(np.stack([near, far, other]), CUBE.group)
    assert values[0] > values[1] + 1
    assert values[0] > values[2]
    again = Surrogate.from_json(json.loads(json.dumps(made.to_json())))
    assert again(np.stack([near, far]), CUBE.group) == pytest.approx(values[:2], abs=1e-3)


def test_what_is_expected_of_a_trial_without_its_own_results_is_that_of_a_model_without_them() -> None:
    g = np.random.default_rng(3)
    x = CUBE.features(CUBE.realise(g.random((9, 3))))
    trial, tau = np.repeat(np.arange(9), 2), np.tile([0.0, 1.0], 9)
    z = g.normal(size=18)
    theta = Prior().mean(3)
    left_out = Posterior(theta, CUBE.group, Rows(x, trial, tau), z, NOBODY).left_out()
    for number in range(9):
        others = trial != number
        without = Posterior(theta, CUBE.group, Rows(x, trial[others], tau[others]), z[others], NOBODY)
        for row in np.flatnonzero(~others):
            assert left_out[row] == pytest.approx(without.of_new(x[number : number + 1], tau[row])[0][0])


def test_skill_tells_an_experiment_with_a_peak_from_one_of_chance() -> None:
    trials = peaked((0.2, 0.8), 60)
    order = np.random.default_rng(1).permutation(60)
    shuffled = [EarlierTrial(trials[int(k)].params, trial.scores) for k, trial in zip(order, trials, strict=True)]
    assert surrogate(CUBE, trials, 9).skill > 0.8
    assert surrogate(CUBE, shuffled, 9).skill < 0.3


def test_scores_that_are_not_finite_count_as_the_worst() -> None:
    trials = [*peaked((0.2, 0.8)), *(EarlierTrial({"x": 0.9, "y": 0.9, "kind": "a"}, (math.nan,)) for _ in range(3))]
    made = surrogate(CUBE, trials, 9)
    values = made(features((0.2, 0.8, "a"), (0.9, 0.9, "a")), CUBE.group)
    assert np.isfinite(values).all()
    assert values[0] > values[1] + 1


def test_the_portfolio_covers_each_experiment() -> None:
    peaks = [(0.1, 0.1), (0.12, 0.08), (0.9, 0.9)]
    experiments = [peaked(peak, seed=seed) for seed, peak in enumerate(peaks)]
    models = [surrogate(CUBE, trials, 9) for trials in experiments]
    picks = portfolio(CUBE, experiments, models, 2)
    places = [(p.params["x"], p.params["y"]) for p in picks]
    assert sorted(itertools.chain(*(p.covers for p in picks))) == [0, 1, 2]
    assert min(math.dist(place, peaks[0]) for place in places) < 0.3
    assert min(math.dist(place, peaks[2]) for place in places) < 0.3
    assert {0, 1} == set(next(p.covers for p in picks if 0 in p.covers)), "one configuration suits both of these"


def test_the_portfolio_repeats_no_configuration() -> None:
    experiments = [peaked((0.1, 0.1), 6), peaked((0.1, 0.1), 6)]
    picks = portfolio(CUBE, experiments, [surrogate(CUBE, trials, 9) for trials in experiments], 20)
    assert len(picks) == 6


def test_the_model_follows_an_experiment_that_predicts_it_and_ignores_one_that_does_not() -> None:
    models = [surrogate(CUBE, peaked((0.2, 0.8), 60), 9), surrogate(CUBE, peaked((0.8, 0.2), 60, seed=1), 9)]
    here = [trial for trial in peaked((0.2, 0.8), 14, seed=9) if len(trial.scores) == 9]
    points = CUBE.realise(np.array([CUBE.point(trial.params) for trial in here]))
    x, score = CUBE.features(points), np.array([trial.scores[-1] for trial in here])
    z = (score - score.mean()) / score.std()
    rows = Rows(x, np.arange(len(here)), np.ones(len(here)))
    theta = Prior().mean(3)

    def expected(earlier: Earlier | None) -> Floats:
        posterior = Posterior(theta, CUBE.group, rows, z, NOBODY, earlier)
        return posterior.of_new(features((0.2, 0.8, "a"), (0.8, 0.2, "a")), 1.0)[0]

    with_both, alone = expected(Earlier(models, CUBE.group)), expected(None)
    assert with_both[0] - with_both[1] > alone[0] - alone[1], "the related experiment sharpens what is expected"
    assert with_both[0] > with_both[1] + 1
    first, both = Earlier(models[:1], CUBE.group)(x), Earlier(models, CUBE.group)(x)
    assert math.sqrt(2) * both[:, 0] == pytest.approx(first[:, 0]), "several experiments together weigh as much as one"


def test_an_experiment_counts_as_it_has_predicted_the_results() -> None:
    g = np.random.default_rng(0)
    z = g.normal(size=60)
    level = np.repeat([0.0, 1.0, 2.0], 20)
    expected = np.stack([z + 5 * level + 0.3 * g.normal(size=60), g.normal(size=60), -z], axis=1)
    assert relevance(expected[:0], z[:0], level[:0]) == pytest.approx([0.7, 0.7, 0.7])
    few, many = relevance(expected[:4], z[:4], level[:4]), relevance(expected, z, level)
    assert many[0] > 0.9
    assert many[1] < 0.3
    assert many[2] < 0.05, "one that is wrong about everything is ignored, and not read the other way round"
    assert few[2] == pytest.approx(0.35)


def test_nothing_is_learned_from_nothing() -> None:
    for data in (None, {}, {"experiments": [], "portfolio": [], "notes": []}, {"notes": ["x"]}):
        learned = Learned.of(data, CUBE)
        assert learned.earlier is None
        assert learned.start(0) is None
