"""Forecast how much a search will still improve, from how its best value has improved so far.

Improvements are measured in a unit that fits the search. The code looks at the last `OLDEST` doublings of the search's
training, and at how much the best value improved in each. The unit is the weighted sum of these improvements; newer
doublings have higher weights.

`GAINS` is a table made from recorded searches: how many units the best value improved by when the training grew by a
given factor. The table has separate figures for searches that have just improved and for searches that have not improved
for a while (`STALLS`). `python -m benchmarks.forecast` measures these figures and shows how often the intervals are right.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.domain.experiment import Objective

FACTORS = (1.1, 1.25, 1.5, 2.0, 3.0)
"""The factors of training growth in `GAINS`. Between two factors, `GAINS` is interpolated linearly in their logarithm."""

STALLS = (0.02, 0.3, 0.7)
"""The bounds between the classes into which searches are sorted by ln(training so far / training at the last improvement)."""

OLDEST = 8  # this many of the newest doublings are used
FADING = 0.6  # the weight of a doubling, relative to the weight of the next newer doubling


@dataclass(frozen=True, slots=True)
class Gain:
    """The expected improvement of a score.

    Attributes:
        mean: the expected improvement.
        low: with a probability of 90 %, the improvement is at least this.
        middle: the median improvement.
        high: with a probability of 90 %, the improvement is at most this.
        chance: the probability of any improvement.
    """

    mean: float
    low: float
    middle: float
    high: float
    chance: float


# For each class of STALLS and each of FACTORS: mean, low, middle and high in units of the gain of a doubling, and the chance.
GAINS: tuple[tuple[tuple[float, float, float, float, float], ...], ...] = (
    (
        (0.074, 0.0, 0.034, 0.307, 0.828),
        (0.117, 0.0, 0.055, 0.536, 0.888),
        (0.18, 0.005, 0.085, 0.946, 0.922),
        (0.203, 0.009, 0.114, 0.991, 0.941),
        (0.287, 0.02, 0.189, 1.446, 0.965),
    ),
    (
        (0.032, 0.0, 0.0, 0.086, 0.292),
        (0.073, 0.0, 0.0, 0.282, 0.456),
        (0.122, 0.0, 0.011, 0.485, 0.541),
        (0.2, 0.0, 0.083, 0.845, 0.707),
        (0.316, 0.0, 0.17, 1.298, 0.834),
    ),
    (
        (0.02, 0.0, 0.0, 0.007, 0.11),
        (0.061, 0.0, 0.0, 0.231, 0.223),
        (0.142, 0.0, 0.0, 0.78, 0.356),
        (0.236, 0.0, 0.001, 0.932, 0.5),
        (0.348, 0.0, 0.143, 1.748, 0.696),
    ),
    (
        (0.048, 0.0, 0.0, 0.037, 0.126),
        (0.137, 0.0, 0.0, 0.79, 0.271),
        (0.297, 0.0, 0.0, 1.922, 0.437),
        (0.543, 0.0, 0.173, 5.678, 0.655),
        (0.809, 0.0, 0.59, 16.024, 0.853),
    ),
)


def room(objective: Objective, score: Sequence[float]) -> float:
    """Return how much a score can still improve, or infinity if the metric has no known limit.

    Metrics do not state their limits, so this is a guess. A metric to minimize whose best value is not negative is limited by
    0, as losses and errors are. A metric to maximize whose best values have all been between 0 and 1 is limited by 1, as
    accuracies are. If a value passes that limit, the guess was wrong, and there is no limit from then on.

    Args:
        objective: the objective.
        score: the best score after each improvement (n,), ascending.
    """
    if objective.mode == "min":
        return -score[-1] if score[-1] <= 0 else math.inf
    return 1 - score[-1] if score[0] >= 0 and score[-1] <= 1 else math.inf


def expected_gain(
    work: Sequence[float], score: Sequence[float], now: float, more: float, room: float = math.inf
) -> Gain | None:
    """Return how much the best score will improve, or None if too little is known.

    Args:
        work: the training of all trials together at each improvement (n,), ascending.
        score: the best score after each improvement (n,), ascending.
        now: the training of all trials together so far.
        more: the additional training. The forecast reaches up to three times the training so far.
        room: the most by which the score can improve.
    """
    if more <= 0 or not known_enough(work, now):
        return None
    unit = gain_of_a_doubling(work, score, now)
    if unit <= 0:
        return None
    figures = GAINS[stall(work, now)]
    at = math.log(min((now + more) / now, FACTORS[-1]))
    places = [0.0, *(math.log(factor) for factor in FACTORS)]
    right = min(bisect.bisect_left(places, at), len(FACTORS))
    share = (at - places[right - 1]) / (places[right] - places[right - 1])
    before = figures[right - 2] if right > 1 else (0.0,) * 5
    mean, low, middle, high, chance = (a + share * (b - a) for a, b in zip(before, figures[right - 1], strict=True))
    most = min(score[-1] - score[0], room)  # no more gain is forecast than the total of all gains so far
    mean, low, middle, high = (min(figure * unit, most) for figure in (mean, low, middle, high))
    return Gain(mean, low, middle, high, chance)


def known_enough(work: Sequence[float], now: float) -> bool:
    """Return True if the search's training has at least doubled since its first score."""
    return bool(work) and now > 0 and work[0] <= now / 2


def stall(work: Sequence[float], now: float) -> int:
    """Return the class of a search, from 0, by how much it has trained since its last improvement (see `STALLS`)."""
    last = work[bisect.bisect_right(work, now) - 1]
    return bisect.bisect_left(STALLS, math.log(now / last)) if last > 0 else len(STALLS)


def gain_of_a_doubling(work: Sequence[float], score: Sequence[float], now: float) -> float:
    """Return the weighted sum of the gains in score over the past doublings of training; older doublings weigh less."""

    def best(at: float) -> float:
        return score[max(bisect.bisect_right(work, at) - 1, 0)]

    gains = (best(now / 2**k) - best(now / 2 ** (k + 1)) for k in range(OLDEST))
    return sum(FADING**k * gain for k, gain in enumerate(gains))
