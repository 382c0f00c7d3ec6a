"""One decision of the freeze-thaw search: of the trials that could go on and of all new ones, which shall train next?

MFPI-random (Rakotoarison et al., "In-Context Freeze-Thaw Bayesian Optimization", 2024): a horizon and a goal above the best
score so far are drawn at random, and the winner is who most probably passes the goal within the horizon. Where no started trial
could, the horizon is that of full training. Now and then the question is instead which started trial has the highest expected
improvement at full training, so that some are finished; unless a new one promises far more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tuner.schedulers.cube import Cube, key
from tuner.schedulers.curve_model import (
    Floats,
    Ints,
    Posterior,
    Rows,
    Warp,
    log_expected_improvement,
    log_probability_of_improvement,
)
from tuner.schedulers.novelty import distance_to_nearest, log_apart, log_new

MAX_ROWS = 320  # results that the model looks at; its cost grows with the cube
TOP_TRIALS = 40  # whose whole curves are kept longest,
TOP_RESULTS = 180  # in so many results besides their newest
MAX_STARTED = 150  # started trials that a decision weighs one by one
RIVAL = 10  # a new trial that promises so many times the improvement of every started one is not put off for them
HOPELESS = math.log(1e-3)  # no question is a horizon within which no started trial is likelier to pass the goal
SCATTERED, AROUND_BEST, CLIMBERS, TRIES = 500, 20, 6, 10
FEW = 30  # uniform points, where that is all there is to choose from
STEPS = (0.1, 0.05, 0.025, 0.012)  # of the climbs


@dataclass(frozen=True, slots=True)
class Results:
    """All results at levels, in the order in which they came. Trials are counted in the order of their numbers.

    slot, level, score (n,): of each result; the score of a crash is -inf. number, best, newest (k,): of each trial that has
    results, its number, its best score, and which result is its newest. points (k, p): realised. repeat (k,): whether it is
    known to repeat another trial, of which the model is told nothing.
    """

    slot: Ints
    level: Ints
    score: Floats
    number: Ints
    best: Floats
    newest: Ints
    points: Floats
    repeat: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        results: Sequence[tuple[int, int, float | None]],
        point: Callable[[int], Floats],
        repeats: Callable[[int], bool] = lambda number: False,
    ) -> Results:
        """From (trial, level, score or None for a crash), a trial's point, and whether it repeats another; not empty."""
        numbers, slot = np.unique(np.array([r[0] for r in results], dtype=np.int64), return_inverse=True)
        score = np.array([-np.inf if r[2] is None else r[2] for r in results])
        best = np.full(len(numbers), -np.inf)
        np.maximum.at(best, slot, score)
        newest: Ints = np.zeros(len(numbers), dtype=np.int64)
        newest[slot] = np.arange(len(slot))
        level: Ints = np.array([r[1] for r in results], dtype=np.int64)
        points = np.array([point(int(n)) for n in numbers])
        repeat = np.array([repeats(int(n)) for n in numbers], dtype=bool)
        return cls(slot, level, score, numbers, best, newest, points, repeat)

    def thinned(self, generator: np.random.Generator, always: int | None = None) -> Ints:
        """Which results the model sees, at most MAX_ROWS, among them the newest of the trial of slot `always`.

        Those of repeats are left out: the same again says nothing new, and that copies agree says nothing of how alike
        neighbours are. The newest of the best trials come first, then their earlier ones, from which it learns how curves go
        on, the newest of the others, and the rest; at random where not all of a kind fit.
        """
        own = np.flatnonzero(~self.repeat[self.slot])
        if len(own) <= MAX_ROWS:
            return own
        place = np.full(len(self.best), TOP_TRIALS)
        top = self.top(TOP_TRIALS)
        place[top] = np.arange(len(top))
        place = place[self.slot[own]]
        best, last = place < TOP_TRIALS, np.isin(own, self.newest)
        kind = np.where(best, np.where(last, 0, 3), np.where(last, 2, 3))
        earlier = np.flatnonzero(best & ~last)
        kind[earlier[np.argsort(place[earlier], kind="stable")[:TOP_RESULTS]]] = 1
        if always is not None:
            kind[own == self.newest[always]] = 0
        return np.sort(own[np.argsort(kind + generator.random(len(own)), kind="stable")[:MAX_ROWS]])

    def top(self, count: int) -> Ints:
        """The best trials' slots, best first, without repeats."""
        order: Ints = np.lexsort((-self.best, self.repeat))
        return order[: min(count, int((~self.repeat).sum()))]


@dataclass(frozen=True, slots=True)
class Question:
    """Everything that a decision depends on.

    started: numbers of the trials that could go on, each with results; the one that has just reported, if it is among them,
    last (`held`). waste (m,): what each of these would spend before it trains on, in units of time. running (r,): the others.
    """

    results: Results
    levels: Floats
    theta: Floats
    best: float
    started: Ints
    held: bool
    waste: Floats
    running: Ints
    start_cost: float  # of a new trial, in units of time
    may_start: bool
    thaw: float  # how often only started trials are asked about
    repeats: Floats | None = None  # the chance of a repeat at novelty.DISTANCES, where there were any
    few: bool = False  # whether a new trial is the best of a few uniform points


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the model expects of a trial at a time, as scores.

    chance: the probability of passing the goal by then or, when thawing, the expected improvement upon it, in units of the
    score. counted: the same as it is weighed, less for what a start costs and for being
    close to another, which may make it a repeat.
    """

    until: float
    mean: float
    sd: float
    chance: float
    counted: float


@dataclass(frozen=True, slots=True)
class Winner:
    """Who shall train next, and the question and the answers that made it so.

    goal: the score to be passed; when thawing, the best one. rival: who comes next, None being a new trial, and what is
    expected of it; None where there was nobody else.
    """

    trial: int | None  # None: a new one at `point`
    point: Floats | None
    forecast: Forecast
    held: Forecast | None  # of the trial that has just reported
    goal: float
    thaw: bool
    rival: tuple[int | None, Forecast] | None
    weighed: int  # started trials, of
    of: int
    new: bool  # whether new ones were weighed, too


@dataclass(frozen=True, slots=True)
class _Draw:
    """The random part of a decision."""

    horizon: float
    goal: float
    thaw: bool

    def score(self, mean: Floats, sd: Floats) -> Floats:
        """`goal` is what improves upon the best score: by how much is drawn, but when thawing any improvement counts."""
        if self.thaw:
            return log_expected_improvement(mean, sd, self.goal)
        return log_probability_of_improvement(mean, sd, self.goal)


def tau(levels: Floats, t: Floats) -> Floats:
    """ln(t / first) / ln(last / first): 0 at the first level, 1 at the last."""
    if len(levels) == 1:
        return np.ones(np.shape(t))
    out: Floats = np.log(np.maximum(t, levels[0]) / levels[0]) / math.log(levels[-1] / levels[0])
    return out


def weigh(
    question: Question, cube: Cube, point: Callable[[int], Floats], generator: np.random.Generator
) -> Winner | None:
    """The winner; None where no trial is started and none may be started. `point` gives the realised point of a trial."""
    q, end = question, float(question.levels[-1])
    horizon = end * generator.random()
    horizon = max(math.ceil(horizon) if end >= 2 else horizon, float(q.levels[0]))
    daring = 10 ** generator.uniform(-4, 0)
    thaw = bool(generator.random() < q.thaw)

    slots = np.searchsorted(q.results.number, q.started)
    kept = q.results.thinned(generator, int(slots[-1]) if q.held else None)
    warp = Warp.of(q.results.score[kept])
    incumbent = warp.forward(q.best)
    draw = _Draw(end if thaw else horizon, incumbent if thaw else incumbent + daring, thaw)

    # of the others the model would not know how they went, and expect too much of them
    which = np.flatnonzero(np.isin(q.results.newest[slots], kept))
    if not len(which):
        which = np.argsort(-q.results.best[slots], kind="stable")[:MAX_STARTED]
    seen = q.results.number[q.results.slot[kept]]
    numbers = np.unique(np.concatenate([seen, q.started[which], q.running]))
    x = cube.features(np.array([point(int(n)) for n in numbers]).reshape(-1, cube.dims))
    rows = Rows(x, np.searchsorted(numbers, seen), tau(q.levels, q.levels[q.results.level[kept]]))
    posterior = Posterior(q.theta, cube.group, rows, warp.z, np.searchsorted(numbers, q.running))

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
    return rival if rival is not None and rival[1].counted >= new.forecast.counted else (None, new.forecast)


def _first(best_first: Ints, count: int, held_among: int | None) -> Ints:
    """The first `count`, in ascending order; where a trial is held it is the last of all and is always among them."""
    kept = np.sort(best_first[:count])
    if held_among is not None and kept[-1] != held_among - 1:
        kept[-1] = held_among - 1
    return kept


def _best_started(
    q: Question, draw: _Draw, posterior: Posterior, warp: Warp, which: Ints, rows: Ints
) -> tuple[Winner, float]:
    numbers = q.started[which]
    last = len(q.levels) - 1
    slots = np.searchsorted(q.results.number, numbers)
    reached = q.results.level[q.results.newest[slots]]
    now, following = q.levels[reached], q.levels[np.minimum(reached + 1, last)]
    until = np.minimum(now + draw.horizon, q.levels[-1])
    mean, sd = posterior.of_trials(rows, tau(q.levels, until))
    # what is wasted is weighed against the training that surely follows it: up to the next decision
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
        weighed=len(which),
        of=len(q.started),
        new=False,
    )
    return winner, float(values[k])


def _best_new(
    q: Question,
    draw: _Draw,
    posterior: Posterior,
    warp: Warp,
    cube: Cube,
    point: Callable[[int], Floats],
    generator: np.random.Generator,
    stay: Winner | None,
) -> tuple[Winner | None, float]:
    """Scattered points, neighbours of the best trials, then hill climbs from the best of these; or the best of a few points.

    The model expects of a configuration what it would expect if it were none of those that were tried. One that is close to
    a configuration that has been tried counts for less, and for less still by the chance that it repeats it exactly.
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
        points, values = _climbed(q.results.points[q.results.top(5)], cube, value, generator)
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
        weighed=stay.weighed if stay else 0,
        of=stay.of if stay else 0,
        new=True,
    )
    return winner, float(values[best])


def _climbed(
    top: Floats, cube: Cube, value: Callable[[Floats], Floats], generator: np.random.Generator
) -> tuple[Floats, Floats]:
    """The ends of hill climbs that begin at scattered points and at neighbours of the best trials' points, and their values."""
    scale = np.exp(generator.uniform(math.log(0.02), math.log(0.3), (AROUND_BEST * len(top), 1)))
    near = cube.perturb(np.repeat(top, AROUND_BEST, 0), scale, generator)
    points = np.concatenate([cube.scatter(SCATTERED, generator), near])
    values = value(points)
    k = np.argsort(-values, kind="stable")[:CLIMBERS]
    points, values = points[k], values[k]
    for step in STEPS:
        tries = cube.perturb(np.repeat(points, TRIES, 0), step, generator)
        all_points = np.concatenate([points[:, None], tries.reshape(len(points), TRIES, -1)], 1)
        all_values = np.concatenate([values[:, None], value(tries).reshape(len(points), TRIES)], 1)
        k = all_values.argmax(1)
        points, values = all_points[np.arange(len(points)), k], all_values[np.arange(len(points)), k]
    return points, values


def _forecast(warp: Warp, draw: _Draw, until: float, mean: float, sd: float, score: float, value: float) -> Forecast:
    """`score` and `value` are logarithms: of the chance, and of what is counted."""
    low, high = warp.back(float(mean - sd)), warp.back(float(mean + sd))
    unit = warp.scale if draw.thaw else 1.0  # above the best score, and so above the median, the warp is linear
    chance, counted = unit * math.exp(score), unit * math.exp(value)
    return Forecast(until, warp.back(float(mean)), (high - low) / 2, chance, counted)
