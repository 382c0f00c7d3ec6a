"""Choose what trains next: a trial that could continue, or a new configuration.

The rule is MFPI-random of Rakotoarison et al., "In-Context Freeze-Thaw Bayesian Optimization", ICML 2024,
https://arxiv.org/abs/2404.16795. A horizon and a goal above the best score so far are drawn at random. The winner is
the candidate that is most likely to pass the goal within the horizon.

This module adds two rules. If no started trial has a chance within the horizon, the horizon becomes a full training.
In some decisions (`thaw`), the winner is the started trial with the largest expected improvement at the end of a
full training, so that some trials are trained to the end. A new configuration wins such a decision only if it promises
far more than any started trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import log_ndtr

from tuner.schedulers.freeze_thaw.decisions.novelty import distance_to_nearest, log_apart, log_new
from tuner.schedulers.freeze_thaw.model.curve_model import Floats, Ints, Posterior, Rows
from tuner.schedulers.freeze_thaw.model.earlier import Earlier
from tuner.schedulers.freeze_thaw.model.levels import tau
from tuner.schedulers.freeze_thaw.model.results import MAX_ROWS, Results
from tuner.schedulers.freeze_thaw.model.score_warp import Warp
from tuner.schedulers.freeze_thaw.model.unit_cube import Cube, key

MAX_STARTED = 150  # maximum number of started trials that a decision compares exactly
RIVAL = 10  # in a thaw decision, a new configuration must promise this many times the improvement of any started trial
HOPELESS = math.log(1e-3)  # if no started trial has a greater chance than this, the horizon becomes a full training
SCATTERED, AROUND_BEST, CLIMBERS, TRIES = 500, 20, 6, 10
QUICK_ROWS, QUICK_SCATTERED, QUICK_AROUND = 60, 100, 10  # used if `DecisionInputs.quick` is true
AROUND_HINT = 4  # number of neighbors of each hint to try
FEW = 30  # number of uniform points if `DecisionInputs.few` is true
STEPS = (0.1, 0.05, 0.025, 0.012)  # standard deviations of the steps of the hill climbs


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """Everything that a decision depends on.

    Attributes:
        results: all results so far.
        levels: the values of time_attr at which decisions are made (l,).
        theta: the parameters of the curve model.
        best: the best score so far.
        started: numbers (m,) of the trials that could continue. Each of them has results.
        held: True if the last of `started` is the trial that has just reported.
        waste: the cost of resuming each of `started` (m,), in units of time_attr.
        running: numbers (r,) of the other trials that are running.
        start_cost: the cost of starting a new trial, in units of time_attr.
        may_start: True if a new trial is allowed.
        thaw: the share of decisions that compare expected improvements. Usually, only started trials win such decisions.
        repeats: the probability that a new configuration repeats an earlier one, at each distance in `novelty.DISTANCES`; None
            if no trial has repeated another.
        few: True to choose the best of a few uniform points as the new configuration.
        quick: True to use few results in the model, and fewer attempts to find new configurations.
        earlier: maps encoded configurations to the predictions of earlier experiments; None if there are none.
        hints: realized points (h, p) that were good in earlier experiments.
    """

    results: Results
    levels: Floats
    theta: Floats
    best: float
    started: Ints
    held: bool
    waste: Floats
    running: Ints
    start_cost: float
    may_start: bool
    thaw: float
    repeats: Floats | None = None
    few: bool = False
    quick: bool = False
    earlier: Earlier | None = None
    hints: Floats | None = None


@dataclass(frozen=True, slots=True)
class Forecast:
    """The model's forecast of a candidate at time `until`, on the scale of scores.

    Attributes:
        until: the time of the forecast, in units of time_attr.
        mean: the expected score.
        sd: half the width of the interval of ± one standard deviation around the mean.
        chance: the probability of passing the goal by `until` or, in a thaw decision, the expected improvement in units
            of the score.
        adjusted: `chance`, reduced to reflect the cost of starting or resuming and, for a new configuration, its
            closeness to earlier configurations. Candidates are compared by this value.
    """

    until: float
    mean: float
    sd: float
    chance: float
    adjusted: float


@dataclass(frozen=True, slots=True)
class Winner:
    """The candidate that trains next, and the candidates with which it was compared.

    Attributes:
        trial: the number of the trial that trains next; None if a new configuration trains next.
        point: the realized point (p,) of the new configuration; None if `trial` is given.
        forecast: the forecast of the winner.
        held: the forecast of the trial that has just reported; None if no trial has.
        goal: the score that candidates should exceed; in a thaw decision, this is the best score so far.
        thaw: True if candidates were compared by expected improvement.
        rival: (trial number, forecast) of the second best candidate; the number is None if that is a new configuration. The
            whole pair is None if there was no other candidate.
    """

    trial: int | None
    point: Floats | None
    forecast: Forecast
    held: Forecast | None
    goal: float
    thaw: bool
    rival: tuple[int | None, Forecast] | None
    compared: int  # number of started trials that were compared
    started: int  # number of started trials that could continue
    new: bool  # True if new configurations were compared too


@dataclass(frozen=True, slots=True)
class _Draw:
    """The values that are drawn at random for a decision."""

    horizon: float
    goal: float
    thaw: bool

    def score(self, mean: Floats, sd: Floats) -> Floats:
        """Return ln of the probability of passing `goal` or, in a thaw decision, of the expected improvement over it."""
        if self.thaw:
            return log_expected_improvement(mean, sd, self.goal)
        return log_probability_of_improvement(mean, sd, self.goal)


def choose_next(
    inputs: DecisionInputs, cube: Cube, point: Callable[[int], Floats], generator: np.random.Generator
) -> Winner | None:
    """Return the winner, or None if there is neither a started trial nor permission to start a new one.

    Args:
        inputs: everything that the decision depends on.
        cube: the encoding of configurations.
        point: gives the realized point of a trial.
        generator: the only source of randomness.
    """
    q, end = inputs, float(inputs.levels[-1])
    horizon = end * generator.random()
    horizon = max(math.ceil(horizon) if end >= 2 else horizon, float(q.levels[0]))
    daring = 10 ** generator.uniform(-4, 0)
    thaw = bool(generator.random() < q.thaw)

    slots = np.searchsorted(q.results.number, q.started)
    kept = q.results.thinned(generator, int(slots[-1]) if q.held else None, QUICK_ROWS if q.quick else MAX_ROWS)
    warp = Warp.of(q.results.score[kept])
    incumbent = warp.forward(q.best)
    draw = _Draw(end if thaw else horizon, incumbent if thaw else incumbent + daring, thaw)

    # Compare only trials whose newest result is in the model, because the model would expect too much of other trials.
    which = np.flatnonzero(np.isin(q.results.newest[slots], kept))
    if not len(which):
        which = np.argsort(-q.results.best[slots], kind="stable")[:MAX_STARTED]
    seen = q.results.number[q.results.slot[kept]]
    numbers = np.unique(np.concatenate([seen, q.started[which], q.running]))
    x = cube.features(np.array([point(int(n)) for n in numbers]).reshape(-1, cube.dims))
    rows = Rows(x, np.searchsorted(numbers, seen), tau(q.levels, q.levels[q.results.level[kept]]))
    posterior = Posterior(q.theta, cube.group, rows, warp.z, np.searchsorted(numbers, q.running), q.earlier)

    if len(which) > MAX_STARTED:
        mean, sd = posterior.of_trials(np.searchsorted(numbers, q.started[which]), np.ones(len(which)))
        order = np.argsort(-(mean + sd), kind="stable")
        which = which[_first(order, MAX_STARTED, len(which) if q.held else None)]
    stay, value = None, -math.inf
    if len(which):
        rows_of = np.searchsorted(numbers, q.started[which])
        stay, value = _best_started(q, draw, posterior, warp, which, rows_of)
        if not thaw and value < HOPELESS:
            draw = _Draw(end, draw.goal, thaw)
            stay, value = _best_started(q, draw, posterior, warp, which, rows_of)
    if not q.may_start:
        return stay
    new, new_value = _best_new(q, draw, posterior, warp, cube, point, generator, stay)
    if thaw:
        new_value -= math.log(RIVAL)
    if new is not None and new_value > value:
        return new
    return stay if stay is None or new is None else replace(stay, new=True, rival=_likelier(stay.rival, new))


def _likelier(rival: tuple[int | None, Forecast] | None, new: Winner) -> tuple[int | None, Forecast]:
    return rival if rival is not None and rival[1].adjusted >= new.forecast.adjusted else (None, new.forecast)


def _first(best_first: Ints, count: int, held_among: int | None) -> Ints:
    """Return `count` of the indices in `best_first`, in ascending order: the best trials, always including the held trial."""
    kept = np.sort(best_first[:count])
    if held_among is not None and kept[-1] != held_among - 1:
        kept[-1] = held_among - 1
    return kept


def _best_started(
    q: DecisionInputs, draw: _Draw, posterior: Posterior, warp: Warp, which: Ints, rows: Ints
) -> tuple[Winner, float]:
    """Return the best of the started trials with the indices `which`, and the logarithm of its adjusted chance."""
    numbers = q.started[which]
    last = len(q.levels) - 1
    slots = np.searchsorted(q.results.number, numbers)
    reached = q.results.level[q.results.newest[slots]]
    now, following = q.levels[reached], q.levels[np.minimum(reached + 1, last)]
    until = np.minimum(now + draw.horizon, q.levels[-1])
    mean, sd = posterior.of_trials(rows, tau(q.levels, until))
    # Compare the cost with the training that is certain to follow, which lasts until the next level.
    scores = draw.score(mean, sd)
    values = scores - np.log1p(q.waste[which] / np.maximum(following - now, 1e-12))

    def forecast(k: int) -> Forecast:
        return _forecast(warp, draw, float(until[k]), mean[k], sd[k], scores[k], values[k])

    k = int(values.argmax())
    others = values.copy()
    others[k] = -np.inf
    second = int(others.argmax())
    winner = Winner(
        trial=int(numbers[k]),
        point=None,
        forecast=forecast(k),
        held=forecast(-1) if q.held else None,
        goal=warp.back(draw.goal),
        thaw=draw.thaw,
        rival=(int(numbers[second]), forecast(second)) if len(which) > 1 else None,
        compared=len(which),
        started=len(q.started),
        new=False,
    )
    return winner, float(values[k])


def _best_new(
    q: DecisionInputs,
    draw: _Draw,
    posterior: Posterior,
    warp: Warp,
    cube: Cube,
    point: Callable[[int], Floats],
    generator: np.random.Generator,
    stay: Winner | None,
) -> tuple[Winner | None, float]:
    """Return the best new configuration, or None if none is left, and the logarithm of its adjusted chance.

    If `q.few` is true, the candidates are a few uniform points. Otherwise they are scattered points and neighbors of the best
    trials, improved by hill climbing. A candidate is first forecast as if it differed from all earlier configurations. If
    it is close to an earlier configuration, its chance is then reduced, and reduced further by the probability that it
    repeats that configuration exactly.
    """
    until = min(draw.horizon, float(q.levels[-1]))
    at = float(tau(q.levels, np.array([until]))[0])
    toll = math.log1p(q.start_cost / float(q.levels[0]))
    tried: set[bytes] = set()
    if cube.discrete:
        tried = {key(p) for p in q.results.points} | {key(point(int(n))) for n in q.running}
    known = cube.features(np.concatenate([q.results.points, *(point(int(n))[None] for n in q.running)]))

    def value(points: Floats) -> Floats:
        x = cube.features(points)
        nearest = distance_to_nearest(x, known)
        values = draw.score(*posterior.of_new(x, at)) - toll + log_apart(nearest)
        if q.repeats is not None:
            values += log_new(q.repeats, nearest)
        if tried:
            values[[key(p) in tried for p in points]] = -np.inf
        return values

    if q.few:
        points = cube.realise(generator.random((FEW, cube.dims)))
        values = value(points)
    else:
        points, values = _climbed(q.results.points[q.results.top(5)], q.hints, cube, value, generator, q.quick)
    best = int(values.argmax())
    if not math.isfinite(values[best]):
        return None, -math.inf
    mean, sd = posterior.of_new(cube.features(points[best : best + 1]), at)
    score = draw.score(mean, sd)[0]
    winner = Winner(
        trial=None,
        point=points[best],
        forecast=_forecast(warp, draw, until, mean[0], sd[0], score, values[best]),
        held=stay.held if stay else None,
        goal=warp.back(draw.goal),
        thaw=draw.thaw,
        rival=(stay.trial, stay.forecast) if stay else None,
        compared=stay.compared if stay else 0,
        started=stay.started if stay else 0,
        new=True,
    )
    return winner, float(values[best])


def _climbed(
    top: Floats,
    hints: Floats | None,
    cube: Cube,
    value: Callable[[Floats], Floats],
    generator: np.random.Generator,
    quick: bool,
) -> tuple[Floats, Floats]:
    """Return the points at which hill climbs end, and the values of these points.

    The climbs begin at the best of these points: scattered points, neighbors of `top` (the points of the best trials),
    and `hints` with their neighbors. If `quick` is true, there are fewer climbs, and each has two steps.
    """
    around, scattered, steps = (QUICK_AROUND, QUICK_SCATTERED, STEPS[::2]) if quick else (AROUND_BEST, SCATTERED, STEPS)
    scale = np.exp(generator.uniform(math.log(0.02), math.log(0.3), (around * len(top), 1)))
    near = cube.perturb(np.repeat(top, around, 0), scale, generator)
    points = np.concatenate([cube.scatter(scattered, generator), near])
    if hints is not None:
        points = np.concatenate([points, hints, cube.perturb(np.repeat(hints, AROUND_HINT, 0), 0.1, generator)])
    values = value(points)
    k = np.argsort(-values, kind="stable")[:CLIMBERS]
    points, values = points[k], values[k]
    for step in steps:
        tries = cube.perturb(np.repeat(points, TRIES, 0), step, generator)
        all_points = np.concatenate([points[:, None], tries.reshape(len(points), TRIES, -1)], 1)
        all_values = np.concatenate([values[:, None], value(tries).reshape(len(points), TRIES)], 1)
        k = all_values.argmax(1)
        points, values = all_points[np.arange(len(points)), k], all_values[np.arange(len(points)), k]
    return points, values


def _forecast(warp: Warp, draw: _Draw, until: float, mean: float, sd: float, score: float, value: float) -> Forecast:
    """Return a forecast on the scale of scores. `score` and `value` are the logarithms of the chance and the adjusted chance."""
    low, high = warp.back(float(mean - sd)), warp.back(float(mean + sd))
    unit = warp.scale if draw.thaw else 1.0  # above the best score, and so above the median, the warp is linear
    chance, adjusted = unit * math.exp(score), unit * math.exp(value)
    return Forecast(until, warp.back(float(mean)), (high - low) / 2, chance, adjusted)


def log_expected_improvement(mean: Floats, sd: Floats, incumbent: float) -> Floats:
    """Return ln E[max(f - incumbent, 0)], where f is normal with this mean and standard deviation."""
    u = (mean - incumbent) / sd
    x = np.maximum(u, -5)
    near = np.log(np.exp(-x * x / 2) / math.sqrt(2 * math.pi) + x * np.exp(log_ndtr(x)))
    far = -u * u / 2 - 0.5 * math.log(2 * math.pi) - 2 * np.log(np.maximum(-u, 1))
    result: Floats = np.where(u > -5, near, far) + np.log(sd)
    return result


def log_probability_of_improvement(mean: Floats, sd: Floats, goal: float) -> Floats:
    """Return ln P[f > goal], where f is normal with this mean and standard deviation."""
    out: Floats = log_ndtr((mean - goal) / sd)
    return out
