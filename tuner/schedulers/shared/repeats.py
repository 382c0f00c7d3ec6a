"""Decide which of the leading configurations to evaluate again if results differ from run to run.

Each configuration has an unknown expected score. A run's score is the expected score plus normal noise, whose variance is the
same for all configurations. The expected scores of all configurations have a normal prior, which is estimated from the
scores (empirical Bayes), so the best score of many is shrunk towards the others by as much as luck explains.

The next repeat goes to the configuration with the greatest *knowledge gradient* per run (Frazier, Powell and Dayanik
2009): the expected increase of the best posterior mean. Often, one more run cannot change which configuration leads, although
several could. So the gradients of 1 to `MOST_AT_ONCE` runs are computed, each is divided by the number of runs, and the greatest
quotient counts (KG(*), Frazier and Powell 2010).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

MOST_AT_ONCE = 8
"""The maximum number of runs of one configuration whose joint gain is computed."""
FEWEST_FOR_PRIOR = 5
"""The prior is estimated from at least this many configurations, if there are that many."""
PRIOR_SHARE = 0.25
"""The share of the scores' variance that is assumed to be noise before configurations have been repeated."""
PRIOR_WEIGHT = 1.0
"""The weight of the assumed share, as a number of pairs."""
LEAST_SPREAD = 0.1
"""The minimum variance of the expected scores, as a multiple of the variance of the noise."""
LARGEST, SMALLEST_VARIANCE = 1e70, 1e-290
"""Bounds that keep all figures finite. Scores must lie between -`LARGEST` and `LARGEST`. A variance of the noise below
`SMALLEST_VARIANCE` counts as 0."""

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of one configuration.

    number: the number of its first trial.
    scores: the scores of the runs that have ended; higher is better. The first score is the first trial's.
    length: how long the first trial was trained, in any unit.
    pending: the number of repeats that are running.
    """

    number: int
    scores: Sequence[float]
    length: float = 1.0
    pending: int = 0

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A configuration with the posterior mean and the standard deviation of its expected score."""

    runs: Runs
    mean: float
    sd: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """All configurations, the one with the best posterior mean first.

    noise: the estimated standard deviation of a configuration's scores from run to run.
    pairs: the degrees of freedom of this estimate: the number of runs beyond the first one of each configuration.
    middle: the prior mean.
    weight: how much a single run counts: the posterior mean of a configuration with one run lies at this share of the way
        from the middle to the run's score.
    """

    noise: float
    pairs: int
    estimates: Sequence[Estimate]
    middle: float = 0.0
    weight: float = 1.0

    @property
    def leader(self) -> Estimate:
        return self.estimates[0]

    def next(self) -> tuple[Estimate, float]:
        """Return the configuration to run again, and how much that run is expected to increase the best expected score."""
        best, second = self.leader.mean, self.estimates[1].mean if len(self.estimates) > 1 else -math.inf
        gains = [(self._gain(one, second if i == 0 else best), -i) for i, one in enumerate(self.estimates)]
        gain, place = max(gains)
        return self.estimates[-place], gain

    def _gain(self, one: Estimate, other: float) -> float:
        """Return the knowledge gradient per run. `other` is the best posterior mean of the other configurations."""
        behind = abs(one.mean - other)
        variance, noise = one.sd**2, self.noise**2
        if math.isinf(behind) or variance <= 0:
            return 0.0
        gains = []
        for runs in range(1, MOST_AT_ONCE + 1):
            change = math.sqrt(variance * variance / (variance + noise / runs))
            gains.append(change * _expected_excess(behind / change) / runs)
        return max(gains)


def ranking(configurations: Sequence[Runs]) -> Ranking:
    """Rank configurations by their expected scores. There must be at least one, and each must have a score."""
    leads = max(configurations, key=lambda one: one.scores[0])
    long = [one.scores[0] for one in configurations if one.length >= leads.length]
    if len(long) < FEWEST_FOR_PRIOR:
        longest = sorted(configurations, key=lambda one: (-one.length, -one.scores[0]))
        long = [one.scores[0] for one in longest[:FEWEST_FOR_PRIOR]]
    middle = statistics.median(long)
    # Use only the upper half, because bad scores may be arbitrarily bad.
    above = [score - middle for score in long if score > middle]
    whole = statistics.fmean(x * x for x in above) if above else 0.0
    pairs = sum(len(one.scores) - 1 for one in configurations)
    squares = sum(math.fsum((score - one.mean) ** 2 for score in one.scores) for one in configurations)
    noise = (PRIOR_WEIGHT * PRIOR_SHARE * whole + squares) / (PRIOR_WEIGHT + pairs)
    spread = max(whole - noise, LEAST_SPREAD * noise)
    estimates = [_estimate(one, middle, spread, noise) for one in configurations]
    ranked = sorted(estimates, key=lambda one: (-one.mean, one.runs.number))
    weight = 1.0 if noise < SMALLEST_VARIANCE else spread / (spread + noise)
    return Ranking(math.sqrt(noise), pairs, ranked, middle, weight)


def _estimate(runs: Runs, middle: float, spread: float, noise: float) -> Estimate:
    """Return a configuration's posterior. Pending runs count as if they had the expected score, so they only narrow it."""
    if noise < SMALLEST_VARIANCE:
        return Estimate(runs, runs.mean, 0.0)
    count = len(runs.scores)
    mean = (middle / spread + count * runs.mean / noise) / (1 / spread + count / noise)
    return Estimate(runs, mean, math.sqrt(1 / (1 / spread + (count + runs.pending) / noise)))


def _expected_excess(behind: float) -> float:
    """Return the expected value of max(0, Z - behind) for a standard normal Z."""
    return _NORMAL.pdf(behind) - behind * _NORMAL.cdf(-behind)
