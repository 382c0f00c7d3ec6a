"""Test how configurations are ranked by their runs, and which one is run again, against slow computations."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from tuner.schedulers.shared import repeats
from tuner.schedulers.shared.repeats import Ranking, Runs, ranking


def several(rng: np.random.Generator, noise: float, count: int = 8) -> list[Runs]:
    truth = rng.normal(size=count)
    sizes = rng.integers(1, 5, size=count)
    return [Runs(i, tuple(truth[i] + noise * rng.normal(size=n)), pending=int(i == 3)) for i, n in enumerate(sizes)]


def priors(runs: list[Runs]) -> tuple[float, float, float]:
    """Return the noise, the prior mean and the prior spread, from the definitions in the module's docstring."""
    first = [one.scores[0] for one in runs]
    middle = float(np.median(first))
    whole = float(np.mean([(x - middle) ** 2 for x in first if x > middle]))
    squares = sum(float(np.var(one.scores)) * len(one.scores) for one in runs)
    pairs = sum(len(one.scores) - 1 for one in runs)
    noise = (repeats.PRIOR_WEIGHT * repeats.PRIOR_SHARE * whole + squares) / (repeats.PRIOR_WEIGHT + pairs)
    return math.sqrt(noise), middle, math.sqrt(max(whole - noise, repeats.LEAST_SPREAD * noise))


@pytest.mark.parametrize("seed", range(4))
def test_the_posterior_is_that_of_a_joint_normal_distribution(seed: int) -> None:
    runs = several(np.random.default_rng(seed), noise=0.5)
    found = ranking(runs)
    noise, middle, spread = priors(runs)
    assert found.noise == pytest.approx(noise)
    for place in found.estimates:
        count = len(place.runs.scores)
        # Condition the joint normal distribution of the expected score and its runs on the runs.
        joint = np.full((count + 1, count + 1), spread**2) + np.diag([0.0] + [noise**2] * count)
        weights = np.linalg.solve(joint[1:, 1:], joint[1:, 0])
        assert place.mean == pytest.approx(middle + weights @ (np.array(place.runs.scores) - middle))
        if not place.runs.pending:
            assert place.sd == pytest.approx(math.sqrt(joint[0, 0] - joint[0, 1:] @ weights))
    assert [place.mean for place in found.estimates] == sorted((p.mean for p in found.estimates), reverse=True)


def gain_by_sampling(found: Ranking, at: int, runs: int, rng: np.random.Generator) -> float:
    """Return the expected increase of the best posterior mean by `runs` more runs of one configuration, for each run."""
    place = found.estimates[at]
    truth = place.mean + place.sd * rng.normal(size=400_000)
    mean = truth + found.noise / math.sqrt(runs) * rng.normal(size=len(truth))
    precision, more = 1 / place.sd**2, runs / found.noise**2
    after = (precision * place.mean + more * mean) / (precision + more)
    others = max(one.mean for i, one in enumerate(found.estimates) if i != at)
    return float(np.mean(np.maximum(after, others)) - found.leader.mean) / runs


@pytest.mark.parametrize("seed", range(3))
def test_the_next_repeat_has_the_greatest_knowledge_gradient(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = ranking(several(rng, noise=0.5, count=5))
    gains = [
        max(gain_by_sampling(found, at, runs, rng) for runs in (1, 2, 4, repeats.MOST_AT_ONCE))
        for at in range(len(found.estimates))
    ]
    chosen, gain = found.next()
    assert gain == pytest.approx(max(gains), rel=0.1, abs=2e-3)
    assert gains[found.estimates.index(chosen)] >= 0.9 * max(gains) - 2e-3


def test_more_runs_are_worth_more_together_than_one_alone_if_the_leader_is_far_ahead() -> None:
    ahead = [Runs(0, (3.0, 3.0, 3.1, 2.9)), *(Runs(i, (-0.1 * i,)) for i in range(1, 8))]
    _, gain = ranking(ahead).next()
    close = [Runs(0, (0.02, 0.0, 0.1, -0.1)), *(Runs(i, (-0.01 * i,)) for i in range(1, 8))]
    _, better = ranking(close).next()
    assert 0 <= gain < better


def test_one_lucky_pair_does_not_decide_that_there_is_no_noise() -> None:
    scores = [1.0, 0.9, 0.8, 0.5, 0.2, 0.1, 0.0]
    lucky = [Runs(0, (1.0, 1.0 + 1e-9)), *(Runs(i, (score,)) for i, score in enumerate(scores[1:], 1))]
    assert ranking(lucky).noise > 0.05
    sure = [Runs(i, (score,) * 6) for i, score in enumerate(scores)]
    assert ranking(sure).noise < ranking(lucky).noise / 4


def test_the_best_of_many_noisy_results_is_drawn_towards_the_others() -> None:
    rng = np.random.default_rng(5)
    found = ranking([Runs(i, tuple(rng.normal(size=2))) for i in range(40)])
    assert found.leader.mean < 0.5 * found.leader.runs.mean
    assert found.noise == pytest.approx(1.0, rel=0.25)


def test_bad_scores_do_not_change_how_the_good_ones_are_ranked() -> None:
    good = [Runs(i, (score,)) for i, score in enumerate([1.0, 0.9, 0.8, 0.6])]
    few = ranking([*good, *(Runs(10 + i, (0.5 - 0.1 * i,)) for i in range(5))])
    bad = ranking([*good, *(Runs(10 + i, (0.5 - 1e6 * i,)) for i in range(5))])
    assert [place.mean for place in bad.estimates[:4]] == pytest.approx([place.mean for place in few.estimates[:4]])


def test_only_configurations_trained_as_long_as_the_leader_make_the_prior() -> None:
    full = [Runs(i, (score,), length=9) for i, score in enumerate([1.0, 0.9, 0.8, 0.6, 0.5, 0.4])]
    stopped = [Runs(10 + i, (-5.0 - i,), length=1) for i in range(20)]
    means = {place.runs.number: place.mean for place in ranking([*full, *stopped]).estimates}
    assert [means[i] for i in range(6)] == pytest.approx([place.mean for place in ranking(full).estimates])
    assert statistics.fmean(means[i] for i in range(10, 30)) < 0


def test_a_single_configuration_is_ranked_and_gains_nothing() -> None:
    found = ranking([Runs(0, (0.3,))])
    assert (found.leader.mean, found.noise) == (0.3, 0.0)
    assert found.next() == (found.leader, 0.0)
