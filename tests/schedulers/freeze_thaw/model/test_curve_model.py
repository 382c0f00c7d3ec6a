"""The curve model: the prototype's figures on the same inputs, finite differences, and a naive implementation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from tuner.schedulers.freeze_thaw.decisions.acquisition import log_expected_improvement, log_probability_of_improvement
from tuner.schedulers.freeze_thaw.model import curve_model
from tuner.schedulers.freeze_thaw.model.curve_model import (
    JITTER,
    LINEAR,
    Evidence,
    Floats,
    Posterior,
    Prior,
    Rows,
    centred,
    matern52,
)
from tuner.schedulers.freeze_thaw.model.score_warp import Warp

# Computed by the prototype (two parameters; three trials with results at 1, 3, 9; at 1, 3; and at 27 of 27).
X = np.array([[0.1, 0.2], [0.9, 0.4], [0.5, 0.7]])
TRIAL = np.array([0, 0, 0, 1, 1, 2])
TAU = np.log([1, 3, 9, 1, 3, 27]) / math.log(27)
SCORES = np.array([0.2, 0.5, 0.7, 0.1, 0.3, 0.9])
THETA = np.log([0.5, 0.8, 0.6, 0.25, 0.02])  # two lengths, lambda, s, sigma^2
PRIOR_Z = [-0.7356594031464332, 0.2316003680770655, 0.8171404101318996, -1.4441637800509897, -0.27159804719827624]
LOSS = -1.0562487154888274
SLOPES = [-1.359581661669993, -0.024992416707693532, -0.08339486903797583, -0.045005717241941356, 0.35792842891396703]
NEW_POINT = (0.9248497509578116, 0.7217076215439615)  # at (.2, .3), tau 1, with another trial running at (.3, .9)
STARTED = (0.7411326214437404, 0.8223817828692171)  # trial 1 at tau 1


def as_the_prototype(theta: Floats, prior: Prior) -> Floats:
    """Return theta as the prototype, which had no second term and whose curves did not fan out, would have it.

    The second term gets next to no weight, and its other parameters the medians of their priors.
    """
    return np.concatenate([theta, np.log([prior.local[0], prior.radius[0] * math.sqrt(2)]), [0.0]])


def prototype() -> tuple[Evidence, Floats]:
    prior = Prior(local=(1e-14, 1.0))
    z = Warp.of(SCORES).z
    return Evidence(Rows(X, TRIAL, TAU), z, np.array([0, 1]), prior), as_the_prototype(THETA, prior)


@pytest.fixture
def no_linear_trend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the linear trend out, which the prototype did not have."""
    monkeypatch.setattr(curve_model, "LINEAR", 0.0)


def test_warp_as_the_prototype() -> None:
    warp = Warp.of(SCORES)
    assert warp.z[:5] == pytest.approx(PRIOR_Z, abs=1e-7)  # it had 1e-9 added to the scale
    assert (warp.centre, warp.scale) == pytest.approx((0.42089341413293924, 0.3415650265319866), abs=1e-8)


@pytest.mark.usefixtures("no_linear_trend")
def test_loss_and_slopes_as_the_prototype() -> None:
    evidence, theta = prototype()
    value, slopes = evidence.loss(theta)
    assert value == pytest.approx(LOSS, abs=1e-8)
    assert slopes[:5] == pytest.approx(SLOPES, abs=1e-8)


@pytest.mark.usefixtures("no_linear_trend")
def test_posterior_as_the_prototype() -> None:
    evidence, theta = prototype()
    rows = Rows(np.concatenate([X, [[0.3, 0.9]]]), TRIAL, TAU)
    posterior = Posterior(theta, evidence.group, rows, evidence.z, np.array([3]))
    mean, sd = posterior.of_new(np.array([[0.2, 0.3]]), 1.0)
    assert (mean[0], sd[0]) == pytest.approx(NEW_POINT, abs=1e-8)
    mean, sd = posterior.of_trials(np.array([1]), np.ones(1))
    assert (mean[0], sd[0]) == pytest.approx(STARTED, abs=1e-8)


def test_expected_improvement_as_the_prototype_far_into_the_tail() -> None:
    u = np.array([-40.0, -6, -5, 0, 2])
    found = log_expected_improvement(u, np.ones(5), 0.0)
    assert found == pytest.approx(
        [-808.2966974414326, -22.502457471660783, -16.637814358072873, -0.9189385332046727, 0.6973835457882284]
    )


def test_improvements_scale_with_the_uncertainty() -> None:
    mean, sd = np.array([0.5, -1.0]), np.array([2.0, 0.3])
    draws = np.random.default_rng(0).normal(size=(400_000, 2)) * sd + mean
    assert np.exp(log_expected_improvement(mean, sd, 0.2))[0] == pytest.approx(
        np.maximum(draws - 0.2, 0).mean(0)[0], rel=0.01
    )
    assert np.exp(log_probability_of_improvement(mean, sd, -0.9)) == pytest.approx((draws > -0.9).mean(0), rel=0.02)


# -- an example of every kind: five parameters, one of them a choice of two


GROUP = np.array([0, 1, 2, 3, 3])


def some_evidence(seed: int = 0, trials: int = 12) -> tuple[Evidence, Floats]:
    g = np.random.default_rng(seed)
    choice = np.eye(2)[g.integers(2, size=trials)] * math.sqrt(0.5)
    x = np.concatenate([g.random((trials, 3)), choice], axis=1)
    trial = np.repeat(np.arange(trials), g.integers(1, 5, trials))
    tau = np.concatenate([np.array([0, 0.3, 0.6, 1])[: (trial == k).sum()] for k in range(trials)])
    evidence = Evidence(Rows(x, trial, tau), g.normal(size=len(trial)), GROUP, Prior())
    return evidence, evidence.prior.mean(4) + 0.4 * g.normal(size=10)


def waves(x: Floats) -> Floats:
    """Return what two earlier experiments expect of configurations (n, 5)."""
    return np.stack([np.sin(5 * x[:, 0] + x[:, 3]), x[:, 1] * x[:, 2]], axis=1)


EARLIER = pytest.mark.parametrize("earlier", [None, waves], ids=["alone", "with earlier experiments"])


def naive_kernel(
    theta: Floats,
    a: list[tuple[Floats, int, float]],
    b: list[tuple[Floats, int, float]],
    earlier: Callable[[Floats], Floats] | None = None,
) -> Floats:
    """Compute the kernel by the formula, pair by pair. Rows are (x, trial, tau)."""

    def m52(r: float) -> float:
        return (1 + math.sqrt(5) * r + 5 * r * r / 3) * math.exp(-math.sqrt(5) * r)

    lengths = np.exp(theta[:4])[GROUP]
    scale, own, _, local, radius = np.exp(theta[4:-1])
    out = np.empty((len(a), len(b)))
    for i, (x, trial, tau) in enumerate(a):
        for j, (y, other, upsilon) in enumerate(b):
            trend = m52(float(np.linalg.norm((x - y) / lengths)))
            near = local * math.exp(-(float(np.linalg.norm(x - y)) ** 2) / (2 * radius**2))
            line = LINEAR * float((x[:3] - 0.5) @ (y[:3] - 0.5))  # the fourth parameter is a choice
            if earlier is not None:
                line += float(earlier(x[None])[0] @ earlier(y[None])[0])
            grown = math.exp(theta[-1] * (tau - 1) + theta[-1] * (upsilon - 1))
            out[i, j] = (trend + line + near + own * (trial == other)) * grown * m52(abs(tau - upsilon) / scale)
    return out


@EARLIER
@pytest.mark.parametrize("seed", range(3))
def test_slopes_are_those_of_finite_differences(seed: int, earlier: Callable[[Floats], Floats] | None) -> None:
    evidence, theta = some_evidence(seed)
    evidence = replace(evidence, earlier=None if earlier is None else earlier(evidence.rows.x))
    _, slopes = evidence.loss(theta)
    assert slopes == pytest.approx(approx_fprime(theta, lambda t: evidence.loss(t)[0], 1e-6), rel=1e-4, abs=1e-4)


@EARLIER
def test_loss_is_the_negative_log_density(earlier: Callable[[Floats], Floats] | None) -> None:
    evidence, theta = some_evidence()
    evidence = replace(evidence, earlier=None if earlier is None else earlier(evidence.rows.x))
    n, rows = len(evidence.z), evidence.rows
    listed = [(rows.x[k], int(k), float(t)) for k, t in zip(rows.trial, rows.tau, strict=True)]
    k = naive_kernel(theta, listed, listed, earlier) + (math.exp(theta[6]) + JITTER) * np.eye(n)
    amplitude = evidence.z @ np.linalg.solve(k, evidence.z) / n
    log_density = -0.5 * n * math.log(2 * math.pi) - 0.5 * np.linalg.slogdet(amplitude * k)[1] - 0.5 * n
    t = (theta - evidence.prior.mean(4)) / evidence.prior.sd(4)
    constant = 0.5 * n * (1 + math.log(2 * math.pi))
    assert evidence.loss(theta)[0] == pytest.approx(-log_density - constant + 0.5 * t @ t, rel=1e-9)


@EARLIER
def test_posterior_is_the_textbooks(earlier: Callable[[Floats], Floats] | None) -> None:
    evidence, theta = some_evidence(1)
    n, rows, g = len(evidence.z), evidence.rows, np.random.default_rng(5)
    running = np.array([2, 7])
    listed = [(rows.x[k], int(k), float(t)) for k, t in zip(rows.trial, rows.tau, strict=True)]
    everything = listed + [(rows.x[k], int(k), 1.0) for k in running]
    noise = math.exp(theta[6]) + JITTER
    real = naive_kernel(theta, listed, listed, earlier) + noise * np.eye(n)
    full = naive_kernel(theta, everything, everything, earlier) + noise * np.eye(n + 2)
    amplitude = evidence.z @ np.linalg.solve(real, evidence.z) / n
    posterior = Posterior(theta, GROUP, rows, evidence.z, running, earlier)
    assert posterior.amplitude == pytest.approx(amplitude)

    new = np.concatenate([g.random((6, 3)), np.eye(2)[g.integers(2, size=6)] * math.sqrt(0.5)], axis=1)
    asked = {
        "new": ([(x, -1, 0.8) for x in new], posterior.of_new(new, 0.8)),
        "started": (
            [(rows.x[k], k, t) for k, t in ((0, 1.0), (3, 0.5), (7, 1.0))],
            posterior.of_trials(np.array([0, 3, 7]), np.array([1.0, 0.5, 1.0])),
        ),
    }
    for points, (mean, sd) in asked.values():
        to_real, to_full = (
            naive_kernel(theta, points, listed, earlier),
            naive_kernel(theta, points, everything, earlier),
        )
        prior = np.diag(naive_kernel(theta, points, points, earlier))
        assert mean == pytest.approx(to_real @ np.linalg.solve(real, evidence.z))
        explained = np.einsum("ij,ji->i", to_full, np.linalg.solve(full, to_full.T))
        assert sd == pytest.approx(np.sqrt(amplitude * (prior - explained)))


def test_a_running_trial_narrows_the_variance_and_leaves_the_mean_alone() -> None:
    evidence, theta = some_evidence(2)
    alone = Posterior(theta, GROUP, evidence.rows, evidence.z, np.array([], dtype=np.int64))
    beside = Posterior(theta, GROUP, evidence.rows, evidence.z, np.array([4]))
    at = (evidence.rows.x[4:5] + 0.01, 1.0)
    assert beside.of_new(*at)[0] == pytest.approx(alone.of_new(*at)[0])
    assert beside.of_new(*at)[1] < 0.9 * alone.of_new(*at)[1]


def test_a_fit_improves_and_finds_what_made_the_data() -> None:
    """The curves depend only on the first parameter, so its fitted length is shorter than the others'."""
    g = np.random.default_rng(3)
    x = g.random((40, 3))
    trial = np.repeat(np.arange(40), 3)
    tau = np.tile([0.0, 0.5, 1.0], 40)
    z = np.sin(7 * x[trial, 0]) * (0.5 + tau) + 0.01 * g.normal(size=120)
    evidence = Evidence(Rows(x, trial, tau), Warp.of(z).z, np.arange(3), Prior())
    start = evidence.prior.mean(3)
    theta = evidence.fit([(start, 40)])
    assert evidence.loss(theta)[0] < evidence.loss(start)[0] - 20
    assert np.exp(theta[0]) < 0.5 * np.exp(theta[1:3]).min()


def test_curves_that_fan_out_are_told_from_those_that_do_not() -> None:
    """A small lead at the first level promises a large one at the last, if the effects of parameters grow."""
    g = np.random.default_rng(4)
    trial, tau = np.repeat(np.arange(40), 3), np.tile([0.0, 0.5, 1.0], 40)
    height = g.normal(size=40)
    x = g.random((41, 3))
    growth = {}
    for name, grown in (("fan", np.exp(2 * (tau - 1))), ("level", np.ones(120))):
        z = height[trial] * grown + 0.01 * g.normal(size=120)
        evidence = Evidence(Rows(x[:40], trial, tau), z, np.arange(3), Prior())
        theta = evidence.fit([(evidence.prior.mean(3), 60)])
        growth[name] = theta[-1]
        rows = Rows(x, np.append(trial, 40), np.append(tau, 0.0))
        lead = 0.2 if name == "fan" else 1.5
        posterior = Posterior(theta, np.arange(3), rows, np.append(z, lead), np.array([], dtype=np.int64))
        mean, _ = posterior.of_trials(np.array([40]), np.ones(1))
        assert mean[0] == pytest.approx(1.5, abs=0.5)
    assert growth["fan"] > 1.5
    assert 0 <= growth["level"] < 0.3


def test_a_linear_trend_reaches_the_corners(monkeypatch: pytest.MonkeyPatch) -> None:
    """The corner that is far from all results promises the most, if scores grow along every parameter."""
    x = np.random.default_rng(6).random((40, 6))
    theta = np.concatenate([np.log([0.3] * 6 + [1.0, 0.01, 1e-3, 1e-6, 0.1]), [0.0]])
    score = (x - 0.5).sum(1)

    def expected() -> float:
        nobody = np.array([], dtype=np.int64)
        posterior = Posterior(theta, np.arange(6), Rows(x, np.arange(40), np.ones(40)), score, nobody)
        return float(posterior.of_new(np.ones((1, 6)), 1.0)[0][0])

    assert expected() > score.max()
    monkeypatch.setattr(curve_model, "LINEAR", 0.0)
    assert expected() < 0.5 * score.max()


def test_categories_have_no_linear_trend() -> None:
    assert centred(np.array([[0.1, 0.7, 0.0, 0.9]]), np.array([0, 1, 1, 2])) == pytest.approx(np.array([[-0.4, 0.4]]))


# -- warp


def test_warp_is_linear_above_the_median_and_bounded_below() -> None:
    scores = np.array([3.0, -50, 1, -7, 2, 2.5, -60, 4, 0, 1.5])
    warp = Warp.of(scores)
    expected = [
        1.0582230336918925,
        -1.071426688339213,
        -0.16065464570049715,
        -0.7094830490415048,
        0.43352798652771213,
        0.7458755101098024,
        -1.679846925796896,
        1.6829180808560729,
        -0.42031376525299086,
        0.12118046294562196,
    ]
    assert warp.z == pytest.approx(expected, abs=1e-8)
    assert warp.z.mean() == pytest.approx(0, abs=1e-12)
    assert list(np.argsort(warp.z)) == list(np.argsort(scores))
    assert warp.forward(4.0) == pytest.approx(warp.z[7])
    much_worse = Warp.of(np.where(scores < -20, -1e12, scores))
    assert much_worse.scale == pytest.approx(warp.scale), "failures set no scale"


@pytest.mark.parametrize("score", [4.0, 2.5, 1.5, 0.0, -7.0, -60.0])
def test_warp_finds_the_way_back(score: float) -> None:
    warp = Warp.of(np.array([3.0, -50, 1, -7, 2, 2.5, -60, 4, 0, 1.5]))
    z = dict(zip([3.0, -50, 1, -7, 2, 2.5, -60, 4, 0, 1.5], warp.z, strict=True))[score]
    assert warp.back(float(z)) == pytest.approx(score)


def test_warp_goes_on_above_the_best() -> None:
    warp = Warp.of(np.array([0.1, 0.2, 0.4]))
    assert warp.back(warp.forward(0.7)) == pytest.approx(0.7)


@pytest.mark.parametrize(
    "scores",
    [[1.0], [2.0, 2.0, 2.0], [-np.inf, 1.0], [-np.inf, -np.inf, -np.inf, 5.0, 6.0], [-np.inf], [1e300, -1e300, 0.0]],
    ids=["one", "equal", "a crash", "mostly crashes", "only a crash", "huge"],
)
def test_warp_of_odd_data_is_finite_and_ordered(scores: list[float]) -> None:
    warp = Warp.of(np.array(scores))
    assert np.isfinite(warp.z).all()
    order = np.argsort(scores, kind="stable")
    assert (np.diff(warp.z[order]) >= -1e-12).all()
    assert math.isfinite(warp.back(0.0))
    assert math.isfinite(warp.back(10.0))


def test_equal_scores_have_equal_ranks() -> None:
    warp = Warp.of(np.array([0.0, 5, 0, 6, 0, 7, 8, 0, 9]))
    assert len({round(float(z), 12) for z in warp.z[[0, 2, 4, 7]]}) == 1


def test_matern_at_known_distances() -> None:
    assert matern52(np.array([0.0, 1.0])) == pytest.approx([1.0, (1 + math.sqrt(5) + 5 / 3) * math.exp(-math.sqrt(5))])
