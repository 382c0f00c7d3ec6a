"""Methods of successive halving that the product leaves out, and the forms that it has, over the same configurations.

    python -m benchmarks.quality --methods halving-asha halving-brackets halving-ranks halving-hyper-tune --runs 8
    python -m benchmarks.quality --methods halving-promotion halving-pasha --runs 8
    python -m benchmarks.quality --methods halving-hyperband halving-dehb --runs 8
    python -m benchmarks.halving [--samples 64] [--runs 4]

Run directly, the module lets promotion and PASHA search a limited number of configurations to the end, and trains
their winners to the end, too. It prints how much training each needed, in full trainings, and the regret.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks import contenders, learning_curves
from benchmarks.contenders import ETA, History, Setting, Training
from benchmarks.intervals import interval
from benchmarks.learning_curves import SHARED, Floats, Problem, seed_of
from tuner.schedulers.hyperband import Shape, shapes
from tuner.schedulers.shared.rungs import Levels, survivors

PAIRS_FROM = 3  # the brackets are weighed once this many configurations are fully trained
SAMPLES = 100  # how often the ranking losses are sampled
# of the surrogate: the length scale, divided by the square root of the number of dimensions, and the noise's variance
LENGTH, NOISE = 0.3, 0.1
F = CROSSOVER = 0.5  # of differential evolution, as in DEHB's paper
PERCENTILE = 90  # of the distances of configurations that crossed twice, as in PASHA's paper


@dataclass(slots=True)
class Known:
    """A configuration, and its scores so far."""

    point: Floats
    scores: list[float] = field(default_factory=list)


class Halving:
    """Proposes random configurations, the same for every method unless it evolves them."""

    def __init__(self, problem: Problem, seed: int, setting: Setting) -> None:
        self.problem, self.rng = problem, np.random.default_rng([seed, 1])
        self.levels = [int(level) for level in Levels(1, ETA, problem.max_t).all()] + [problem.max_t]
        self.sign = 1.0 if problem.mode == "max" else -1.0
        self.trials: list[Known] = []

    def new(self, point: Floats | None = None) -> int:
        self.trials.append(Known(self.rng.random(len(self.problem.space)) if point is None else point))
        return len(self.trials) - 1

    def train(self, trial: int, until: int, then: Callable[[float], None]) -> Training:
        """Train a trial up to the report `until`, and pass its score there to `then`."""
        known, space = self.trials[trial], self.problem.space

        def report(r: int, value: float) -> bool:
            known.scores.append(self.sign * value)
            if r == until:
                then(self.sign * value)
            return r < until

        return space.config(space.from_unit([float(u) for u in known.point])), len(known.scores), report


# -- brackets of ASHA ----------------------------------------------------------------------------------------------------


class Stopping(Halving):
    """ASHA that stops trials: one bracket."""

    def __init__(self, problem: Problem, seed: int, setting: Setting) -> None:
        super().__init__(problem, seed, setting)
        self.rungs: dict[tuple[int, int], list[float]] = {}
        self.draws = np.random.default_rng([seed, 2])  # not the random numbers of the configurations

    def start(self) -> Training:
        first, trial = self.bracket(), self.new()
        known, space = self.trials[trial], self.problem.space

        def report(r: int, value: float) -> bool:
            score = self.sign * value
            known.scores.append(score)
            if r not in self.levels[first:-1]:
                return True
            rung = self.rungs.setdefault((first, r), [])
            insort(rung, score)
            return score >= rung[-max(1, survivors(len(rung), ETA))]

        return space.config(space.from_unit([float(u) for u in known.point])), 0, report

    def bracket(self) -> int:
        return 0


class SeveralBrackets(Stopping):
    """ASHA with all brackets, drawn with Ray Tune's weights."""

    def bracket(self) -> int:
        weights = np.exp(-np.arange(len(self.levels), dtype=float))
        return int(self.draws.choice(len(weights), p=weights / weights.sum()))


class ByRanks(Stopping):
    """ASHA with brackets weighed as in Hyper-Tune, by the ranks of the values themselves at each level."""

    def __init__(self, problem: Problem, seed: int, setting: Setting) -> None:
        super().__init__(problem, seed, setting)
        self.precision: Floats | None = None
        self.known = 0

    def bracket(self) -> int:
        full = [trial for trial in self.trials if len(trial.scores) >= self.problem.max_t]
        if len(full) < PAIRS_FROM:
            return len(self.trials) % len(self.levels)
        if self.precision is None or len(full) > self.known:
            self.known = len(full)
            final = np.array([trial.scores[-1] for trial in full])
            self.precision = precisions(self.predictions(full), final, self.draws)
        weights = self.precision / np.array(self.levels)
        return int(self.draws.choice(len(weights), p=weights / weights.sum()))

    def predictions(self, full: list[Known]) -> list[Floats]:
        return [np.array([trial.scores[level - 1] for trial in full]) for level in self.levels]


class HyperTune(ByRanks):
    """ASHA with the brackets of Hyper-Tune (Li et al., VLDB 2022, section 4.1), over random configurations.

    A Gaussian process for each level predicts the scores there. The precision of a level is how often it ranks the fully trained
    configurations best, over bootstrap samples of these; the highest level predicts each one from the others.
    """

    def predictions(self, full: list[Known]) -> list[Floats]:
        found = []
        for level in self.levels:
            there = [trial for trial in self.trials if len(trial.scores) >= level]
            x, y = np.array([t.point for t in there]), ranked(np.array([t.scores[level - 1] for t in there]))
            inverse = np.linalg.inv(kernel(x, x) + NOISE * np.eye(len(x)))
            if level == self.levels[-1]:
                found.append(y - inverse @ y / np.diag(inverse))
            else:
                found.append(kernel(np.array([t.point for t in full]), x) @ inverse @ y)
        return found


def kernel(a: Floats, b: Floats) -> Floats:
    squares: Floats = ((a[:, None, :] - b[None, :, :]) ** 2).sum(-1)
    return np.asarray(np.exp(-squares / (2 * LENGTH**2 * a.shape[1])), dtype=float)


def ranked(values: Floats) -> Floats:
    """Return ranks with mean 0 and about unit variance."""
    ranks = values.argsort().argsort()
    return np.asarray((ranks - ranks.mean()) / (len(values) / math.sqrt(12)), dtype=float)


def precisions(predictions: list[Floats], final: Floats, rng: np.random.Generator) -> Floats:
    """Return for each level the share of bootstrap samples in which it ranks the most pairs correctly. The lowest wins ties."""
    picked = rng.integers(len(final), size=(SAMPLES, len(final)))
    counts = np.array([np.bincount(row, minlength=len(final)) for row in picked], dtype=float)
    order = final[:, None] < final[None, :]
    losses = [
        np.einsum("si,ij,sj->s", counts, ((p[:, None] < p[None, :]) != order).astype(float), counts)
        for p in predictions
    ]
    return np.bincount(np.argmin(losses, axis=0), minlength=len(predictions)) / SAMPLES


# -- PASHA ---------------------------------------------------------------------------------------------------------------


class Promotion(Halving):
    """ASHA that promotes trials. Without `samples`, it never runs out of new trials."""

    def __init__(self, problem: Problem, seed: int, setting: Setting, samples: int | None = None) -> None:
        super().__init__(problem, seed, setting)
        self.samples = samples
        self.rungs: list[list[tuple[float, int]]] = [[] for _ in self.levels]  # (-score, trial)
        self.promoted: list[set[int]] = [set() for _ in self.levels]
        self.top = len(self.levels) - 1

    def start(self) -> Training | None:
        for k in reversed(range(self.top)):
            for _, trial in self.rungs[k][: survivors(len(self.rungs[k]), ETA)]:
                if trial not in self.promoted[k]:
                    self.promoted[k].add(trial)
                    return self.to(trial, k + 1)
        if self.samples is not None and len(self.trials) >= self.samples:
            return None
        return self.to(self.new(), 0)

    def to(self, trial: int, k: int) -> Training:
        def enter(score: float) -> None:
            insort(self.rungs[k], (-score, trial))
            self.entered(k)

        return self.train(trial, self.levels[k], enter)

    def entered(self, k: int) -> None:
        pass

    def leader(self) -> Known:
        return self.trials[next(rung for rung in reversed(self.rungs) if rung)[0][1]]


class Pasha(Promotion):
    """PASHA (Bohdal et al., ICLR 2023): the highest rung moves up when the order in the two highest rungs differs."""

    def __init__(self, problem: Problem, seed: int, setting: Setting, samples: int | None = None) -> None:
        super().__init__(problem, seed, setting, samples)
        self.top = min(1, len(self.levels) - 1)

    def entered(self, k: int) -> None:
        if not self.top - 1 <= k <= self.top or self.top == len(self.levels) - 1 or not self.rungs[self.top]:
            return
        upper = [trial for _, trial in self.rungs[self.top]]
        lower = [(-s, trial) for s, trial in self.rungs[self.top - 1] if trial in set(upper)]
        if not same_order(upper, lower, self.epsilon()):
            self.top += 1

    def epsilon(self) -> float:
        above, top = self.levels[self.top - 1], self.levels[self.top]
        return noise([trial.scores[:top] for trial in self.trials if len(trial.scores) > above])


def noise(curves: list[list[float]]) -> float:
    """Return epsilon: the percentile of the distances, at their last common report, of curves that crossed at least twice."""
    padded = np.array(list(itertools.zip_longest(*curves, fillvalue=np.nan)), dtype=float)  # (reports, curves)
    lengths = np.array([len(curve) for curve in curves], dtype=int)
    first, second = np.triu_indices(len(curves), 1)
    if not len(first):
        return 0.0
    a, b = padded[:, first], padded[:, second]
    common = np.minimum(lengths[first], lengths[second])
    order = a > b
    crossed = (order[1:] != order[:-1]) & (np.arange(1, len(padded))[:, None] < common)
    last = np.arange(len(first))
    distances = np.abs(a[common - 1, last] - b[common - 1, last])[crossed.sum(0) >= 2]
    return float(np.percentile(distances, PERCENTILE)) if len(distances) else 0.0


def same_order(upper: list[int], lower: list[tuple[float, int]], epsilon: float) -> bool:
    """Return whether each trial of the upper rung is within epsilon, in the lower rung, of the trial at the same position there.

    upper: trials, best first. lower: (score, trial), best first, of the same trials.
    """
    there = {trial: score for score, trial in lower}
    return all(abs(there[trial] - place[0]) <= epsilon for trial, place in zip(upper, lower, strict=True))


# -- DEHB ----------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Bracket:
    number: int
    shape: Shape
    round: int = 0
    issued: int = 0
    arrived: list[tuple[float, int]] = field(default_factory=list)  # (-score, trial) of this round
    before: list[tuple[float, int]] = field(default_factory=list)  # of the previous round, best first

    def size(self) -> int:
        return self.shape.left(self.shape.trials, self.round, ETA)

    def level(self) -> int:
        return int(self.shape.levels[self.round])


class HyperBand(Halving):
    """HyperBand over random configurations. While a round waits for its last trials, the next bracket begins."""

    def __init__(self, problem: Problem, seed: int, setting: Setting) -> None:
        super().__init__(problem, seed, setting)
        self.shapes = shapes(problem.max_t, ETA)
        self.brackets: list[Bracket] = []
        self.begun = 0

    def start(self) -> Training:
        bracket = next((b for b in self.brackets if b.issued < b.size()), None)
        if bracket is None:
            bracket = Bracket(self.begun, self.shapes[self.begun % len(self.shapes)])
            self.brackets.append(bracket)
            self.begun += 1
        bracket.issued += 1
        return self.next(bracket)

    def next(self, bracket: Bracket) -> Training:
        trial = bracket.before[bracket.issued - 1][1] if bracket.round else self.new()
        return self.run(trial, bracket, lambda score: None)

    def run(self, trial: int, bracket: Bracket, then: Callable[[float], None]) -> Training:
        def arrive(score: float) -> None:
            then(score)
            bracket.arrived.append((-score, trial))
            if len(bracket.arrived) == bracket.size():
                bracket.before, bracket.arrived = sorted(bracket.arrived), []
                bracket.round, bracket.issued = bracket.round + 1, 0
                if bracket.round == len(bracket.shape.levels):
                    self.brackets.remove(bracket)

        return self.train(trial, bracket.level(), arrive)


class Dehb(HyperBand):
    """DEHB (Awad et al., IJCAI 2021): a population for each level of HyperBand, evolved by rand/1/bin.

    In the first band, trials are promoted. Then each round trains children, whose parents in the rounds above the lowest come
    from the best of the level below.
    """

    def __init__(self, problem: Problem, seed: int, setting: Setting) -> None:
        super().__init__(problem, seed, setting)
        sizes: dict[int, int] = {}
        for shape in self.shapes:
            for k, level in enumerate(shape.levels):
                sizes[int(level)] = max(sizes.get(int(level), 0), shape.left(shape.trials, k, ETA))
        self.points = {level: self.rng.random((n, len(problem.space))) for level, n in sizes.items()}
        self.scores = {level: np.full(n, -np.inf) for level, n in sizes.items()}
        self.places = {level: itertools.cycle(range(n)) for level, n in sizes.items()}

    def next(self, bracket: Bracket) -> Training:
        level = bracket.level()
        place, points, scores = next(self.places[level]), self.points[level], self.scores[level]
        if bracket.round and bracket.number < len(self.shapes):
            trial = bracket.before[bracket.issued - 1][1]
        else:
            trial = self.new(points[place] if np.isneginf(scores[place]) else self.child(bracket, points[place]))
        point = self.trials[trial].point

        def select(score: float) -> None:
            if score >= scores[place]:
                points[place], scores[place] = point, score

        return self.run(trial, bracket, select)

    def child(self, bracket: Bracket, target: Floats) -> Floats:
        parents = self.points[bracket.level()]
        if bracket.round:
            below = int(bracket.shape.levels[bracket.round - 1])
            parents = self.points[below][np.argsort(-self.scores[below])[: bracket.size()]]
        if len(parents) < 3:
            parents = np.concatenate([parents, self.rng.permutation(np.concatenate(list(self.points.values())))[:3]])
        a, b, c = parents[self.rng.choice(len(parents), 3, replace=False)]
        mutant = a + F * (b - c)
        outside = (mutant < 0) | (mutant >= 1)
        mutant[outside] = self.rng.random(int(outside.sum()))
        crossed = self.rng.random(len(target)) < CROSSOVER
        crossed[self.rng.integers(len(target))] = True
        return np.where(crossed, mutant, target)


# -- a limited number of configurations ----------------------------------------------------------------------------------

METHODS: dict[str, type[contenders.Contender]] = {
    "asha": Stopping,
    "brackets": SeveralBrackets,
    "ranks": ByRanks,
    "hyper-tune": HyperTune,
    "promotion": Promotion,
    "pasha": Pasha,
    "hyperband": HyperBand,
    "dehb": Dehb,
}


def played(name: str, problem: Problem, seed: int, setting: Setting) -> History:
    return contenders.played(problem, METHODS[name](problem, seed, setting), setting)  # type: ignore[call-arg]


def to_the_end(
    cls: type[Promotion], problem: Problem, seed: int, args: argparse.Namespace
) -> tuple[float, float, float]:
    """Return the worker time, and the regret of the best value before and after the leader was trained to the end.

    The worker time is in full trainings, and includes that of the leader.
    """
    setting = Setting(args.workers, 0.0, math.inf, args.curves)
    contender = cls(problem, seed, setting, args.samples)
    history = contenders.played(problem, contender, setting)
    best = max if problem.mode == "max" else min
    seen, leader, space = best(value for _, value in history), contender.leader(), problem.space
    values, seconds = problem.curve(space.config(space.from_unit([float(u) for u in leader.point])))
    took = history[-1][0] * args.workers + seconds[-1] - seconds[len(leader.scores) - 1]
    return took / problem.full_seconds, problem.regret(seen), problem.regret(best(seen, *map(float, values)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--runs", type=int, default=4, help="of each problem")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--curves", type=Path, default=SHARED)
    args = parser.parse_args()
    problems = learning_curves.problems(args.curves)
    head = "".join(f"{name:>22s}" for name in ("full trainings", "regret, search", "regret, retrained"))
    print(f"{args.samples} configurations, {args.workers} workers, {len(problems) * args.runs} runs\n{'':24s}{head}")
    found: dict[str, list[tuple[float, float, float]]] = {"promotion": [], "pasha": []}
    for problem, run in itertools.product(problems, range(args.runs)):
        seed = seed_of(problem.name, run)
        found["promotion"].append(to_the_end(Promotion, problem, seed, args))
        found["pasha"].append(to_the_end(Pasha, problem, seed, args))
    for name, rows in found.items():
        print(f"{name:24s}" + "".join(cell(list(column)) for column in zip(*rows, strict=True)))
    pairs = zip(*found.values(), strict=True)
    differences = zip(*([b - a for a, b in zip(*pair, strict=True)] for pair in pairs), strict=True)
    print(f"{'difference':24s}" + "".join(cell(list(column), "+.3f") for column in differences))


def cell(values: list[float], form: str = ".3f") -> str:
    return f"{statistics.mean(values):{form}} ± {interval(values) or 0:.3f}".rjust(22)


if __name__ == "__main__":
    main()
