"""Judge how much the early reports of trials say about their later ones."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from tuner.schedulers.freeze_thaw.model.results import Result

LATER = 2.5  # reports are compared with those at a level at least this many times as high
# the prior rank correlation, and how many results it counts as
USUAL_ORDER, USUAL_WEIGHT = 0.7, 20
DISORDER = 0.4  # below this rank correlation, early reports say little
MOST = 200  # at each level, at most this many of the newest trials are compared
# a plateau is judged by trials with results at GAINED_LEVELS levels, if there are at least FEWEST such trials
GAINED_LEVELS, FEWEST = 4, 5
LITTLE_GAIN, LITTLE_LEAD = 0.3, 0.2
STEP = 1.1  # the judgment is made anew when the number of results has grown by this factor


def mislead(results: Sequence[Result], levels: Sequence[float]) -> bool:
    """Return True if early reports say little about later ones: trials change their order, or hardly any has improved."""
    curves: dict[int, dict[int, float]] = defaultdict(dict)
    for trial, level, score in results:
        if score is not None:
            curves[trial][level] = score
    return order(curves, levels) < DISORDER or plateau(curves)


def settled(count: int) -> int:
    """Return how many of the first `count` results to judge: the greatest power of `STEP` up to `count`, rounded down.

    So one judgment serves for many decisions. It depends on the results alone, so a driver that continues a search
    reaches the same judgment.
    """
    return min(int(STEP ** int(math.log(count) / math.log(STEP) + 1e-9)), count) if count else 0


def order(curves: dict[int, dict[int, float]], levels: Sequence[float]) -> float:
    """Return how well trials keep their order: 1 if they always do, 0 if the order of early reports is no better than random.

    Each level is paired with an earlier one: the highest level that is at most 1/`LATER` of it. Kendall's rank correlation
    compares the scores at the two levels. The result is the mean over the levels, weighted by their numbers of trials, and
    shrunk towards `USUAL_ORDER` while there are few trials.
    """
    total, weight = USUAL_ORDER * USUAL_WEIGHT, float(USUAL_WEIGHT)
    for late, end in enumerate(levels):
        early = sum(level * LATER <= end for level in levels) - 1
        if early < 0:
            continue
        both = [(curve[early], curve[late]) for curve in curves.values() if early in curve and late in curve][-MOST:]
        if len(both) < 2:
            continue
        before, after = np.array(both).T
        first, second = np.sign(before[:, None] - before), np.sign(after[:, None] - after)
        differ = (first != 0) | (second != 0)
        if differ.any():
            total += len(both) * float((first * second)[differ].mean())
            weight += len(both)
    return total / weight


def plateau(curves: dict[int, dict[int, float]]) -> bool:
    """Return True if trials have hardly improved since their first reports, compared with how much first reports differ.

    Two things must be true. The median gain of trials with results at `GAINED_LEVELS` levels is below `LITTLE_GAIN` median
    absolute deviations of the first reports. And the best score leads the best first report by less than `LITTLE_LEAD` of the
    difference between that report and the median first report.
    """
    gains = [max(curve.values()) - curve[min(curve)] for curve in curves.values() if len(curve) >= GAINED_LEVELS][
        -MOST:
    ]
    if len(gains) < FEWEST:
        return False
    firsts = np.array([curve[min(curve)] for curve in curves.values()])
    middle, best = float(np.median(firsts)), float(firsts.max())
    lead = max(max(curve.values()) for curve in curves.values()) - best
    spread = float(np.median(np.abs(firsts - middle)))
    return float(np.median(gains)) <= LITTLE_GAIN * spread and lead <= LITTLE_LEAD * (best - middle)
