"""Learn from earlier experiments: use predictions from their results in the curve model of the current experiment.

A curve model is fitted to each earlier experiment. Its expected score at the end of a full training, as a function of the
configuration, is the *surrogate* of that experiment. In the curve model of the current experiment, each surrogate is a
linear term with an unknown weight (e in `curve_model`). So the influence of an earlier experiment depends on how well it
has predicted the results so far, and an unrelated experiment is soon ignored. This is the linear model of
coregionalization with fixed earlier tasks; compare the ranking-weighted ensemble of Feurer, Letham and Bakshy,
"Scalable Meta-Learning for Bayesian Optimization" (2018).

The *portfolio* is the set of configurations to try first. It is a greedy cover: for each earlier experiment, it contains
a configuration that was good in that experiment (Feurer et al., "Auto-Sklearn 2.0", 2020, section 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.schedulers.freeze_thaw.model.curve_model import (
    LINEAR,
    Evidence,
    Floats,
    Ints,
    Posterior,
    Prior,
    Rows,
    centred,
    matern52,
    squared_distances,
)
from tuner.schedulers.freeze_thaw.model.levels import levels, tau
from tuner.schedulers.freeze_thaw.model.score_warp import Warp
from tuner.schedulers.freeze_thaw.model.unit_cube import Cube

WEIGHT = 1.0  # the total prior variance of the terms of all earlier experiments
AT_FIRST = 0.7  # the relevance of an earlier experiment before there are results
SURE_AFTER = 4  # with this many results, the measured relevance has the same weight as AT_FIRST
MOST_TRIALS = 80  # at most this many trials of an earlier experiment are used; see `_chosen`
MOST_ROWS = 240
CANDIDATES = 8  # the portfolio is chosen from this many of the best trials of each experiment
PORTFOLIO = 4
DIGITS = 6


@dataclass(frozen=True, slots=True)
class EarlierTrial:
    """A trial of an earlier experiment: the trial's params, mapped to the current space, and its score after each report.

    A score that is not finite counts as worse than all finite scores.
    """

    params: Mapping[str, Any]
    scores: Sequence[float]


@dataclass(frozen=True, slots=True)
class Surrogate:
    """The mean of an earlier experiment's model at the end of a full training, in units of that experiment's spread.

    Attributes:
        x: the encoded configurations of the experiment's trials (n, q).
        weight: the weight of each configuration (n,).
        lengths: the length scale of each column (q,).
        local: the weight of the short-range term.
        radius: the length scale of the short-range term.
        skill: how well configurations predict the scores of that experiment (0 to 1); see the function `skill`.
    """

    x: Floats
    weight: Floats
    lengths: Floats
    local: float
    radius: float
    skill: float = 1.0

    def __call__(self, x: Floats, group: Ints) -> Floats:
        """Return the expected scores (m,) of encoded configurations (m, q)."""
        near = squared_distances(x, self.x)
        near *= -0.5 / self.radius**2
        np.exp(near, out=near)
        near *= self.local
        near += matern52(np.sqrt(squared_distances(x / self.lengths, self.x / self.lengths)))
        trend = LINEAR * (self.weight @ centred(self.x, group))
        out: Floats = near @ self.weight + centred(x, group) @ trend
        return out

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form of the surrogate, which `from_json` reads."""
        return {
            "x": np.round(self.x, DIGITS).tolist(),
            "weight": [float(f"{w:.{DIGITS}g}") for w in self.weight],
            "lengths": [float(f"{v:.{DIGITS}g}") for v in self.lengths],
            "local": self.local,
            "radius": self.radius,
            "skill": self.skill,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Surrogate:
        return cls(
            np.array(data["x"], dtype=float),
            np.array(data["weight"], dtype=float),
            np.array(data["lengths"], dtype=float),
            float(data["local"]),
            float(data["radius"]),
            float(data["skill"]),
        )


@dataclass(frozen=True, slots=True)
class Earlier:
    """Maps encoded configurations (m, q) to the scaled predictions (m, e) of the surrogates of all earlier experiments.

    Attributes:
        surrogates: one surrogate for each earlier experiment.
        group: the parameter to which each column of an encoded configuration belongs (q,).
        relevance: the relevance of each experiment (e,), see the function `relevance`; None before there are results.
    """

    surrogates: Sequence[Surrogate]
    group: Ints
    relevance: Floats | None = None

    def expected(self, x: Floats) -> Floats:
        """Return the predictions of the surrogates (m, e)."""
        return np.stack([surrogate(x, self.group) for surrogate in self.surrogates], axis=1)

    def __call__(self, x: Floats) -> Floats:
        size = math.sqrt(WEIGHT / len(self.surrogates)) * np.array([surrogate.skill for surrogate in self.surrogates])
        out: Floats = self.expected(x) * (size if self.relevance is None else size * self.relevance)
        return out


def relevance(expected: Floats, z: Floats, level: Floats) -> Floats:
    """Return how well each earlier experiment has predicted the results so far (e,), from 0 to 1.

    This is the correlation between results and predictions, shrunk towards AT_FIRST while there are few results.

    Args:
        expected: the prediction of each experiment for the trials (n, e).
        z: the newest results of the trials (n,).
        level: numbers (n,) that are equal for results after the same amount of training.
    """
    found = np.array([skill(column, z, level) for column in expected.T])
    out: Floats = (SURE_AFTER * AT_FIRST + len(z) * found) / (SURE_AFTER + len(z))
    return out


def surrogate(cube: Cube, trials: Sequence[EarlierTrial], max_t: float) -> Surrogate:
    """Fit a curve model to an earlier experiment, and return its predictions for the end of a full training."""
    grid = np.array(levels(1.0 if max_t >= 2 else max_t / 64, float(max_t)))
    chosen = _chosen(trials)
    rows = [
        (i, int(level), trial.scores[: int(level)])
        for i, trial in enumerate(chosen)
        for level in grid
        if level <= len(trial.scores)
    ]
    newest = {i: row for row, (i, _, _) in enumerate(rows)}
    order = sorted(range(len(rows)), key=lambda row: (newest[rows[row][0]] != row, row))[:MOST_ROWS]
    rows = [rows[row] for row in sorted(order)]
    points = cube.realise(np.array([cube.point(trial.params) for trial in chosen]))
    x = cube.features(points)
    trial = np.array([i for i, _, _ in rows], dtype=np.int64)
    at = tau(grid, np.array([level for _, level, _ in rows], dtype=float))
    scores = np.array([max((s for s in seen if math.isfinite(s)), default=-np.inf) for _, _, seen in rows])
    evidence = Evidence(Rows(x, trial, at), Warp.of(scores).z, cube.group, Prior())
    theta = evidence.fit([(evidence.prior.mean(evidence.dims), 30)])
    posterior = Posterior(theta, cube.group, evidence.rows, evidence.z, np.array([], dtype=np.int64))
    d = evidence.dims
    ends = np.array([row for row in range(len(rows)) if row + 1 == len(rows) or trial[row + 1] != trial[row]])
    known = skill(posterior.left_out()[ends], evidence.z[ends], at[ends])
    return Surrogate(
        x, posterior.end_weights(), np.exp(theta[:d])[cube.group], math.exp(theta[d + 3]), math.exp(theta[d + 4]), known
    )


def skill(expected: Floats, z: Floats, level: Floats) -> float:
    """Return the correlation between results and predictions (n,), or 0 if it is negative.

    Only results after equally long training are compared with each other, because longer training improves results anyway.
    """
    a, b = expected.copy(), z.copy()
    for one in np.unique(level):
        same = level == one
        a[same] -= a[same].mean()
        b[same] -= b[same].mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return max(0.0, float(a @ b) / size) if size > 1e-12 else 0.0


def _chosen(trials: Sequence[EarlierTrial]) -> list[EarlierTrial]:
    """Return at most MOST_TRIALS of the trials that reported. Half are the best trials, and half are evenly spaced others."""
    known = [trial for trial in trials if trial.scores]
    if len(known) <= MOST_TRIALS:
        return known
    order = sorted(range(len(known)), key=lambda i: -best_score(known[i]))
    half = MOST_TRIALS // 2
    rest = sorted(order[half:])
    spread = [rest[at * len(rest) // half] for at in range(half)]
    return [known[i] for i in sorted({*order[:half], *spread})]


def best_score(trial: EarlierTrial) -> float:
    """Return the best finite score of a trial; -inf if it has none."""
    return max((score for score in trial.scores if math.isfinite(score)), default=-math.inf)


@dataclass(frozen=True, slots=True)
class Pick:
    """A configuration of the portfolio, and the indices of the experiments in which it beats the rest of the portfolio."""

    params: Mapping[str, Any]
    covers: tuple[int, ...]


def portfolio(
    cube: Cube, experiments: Sequence[Sequence[EarlierTrial]], models: Sequence[Surrogate], size: int = PORTFOLIO
) -> list[Pick]:
    """Return the portfolio, best configuration first.

    Each configuration is chosen so that, together with those before it, it comes as close as possible to the best expected
    score of every experiment.
    """
    best = [
        sorted((t for t in trials if t.scores), key=best_score, reverse=True)[:CANDIDATES] for trials in experiments
    ]
    candidates = [trial.params for trials in best for trial in trials]
    if not candidates:
        return []
    points = cube.realise(np.array([cube.point(params) for params in candidates]))
    x = cube.features(points)
    expected = np.array([model(x, cube.group) for model in models])  # (experiments, candidates)
    shortfall = expected.max(1, keepdims=True) - expected
    chosen: list[int] = []
    reached = np.full(len(models), np.inf)
    while len(chosen) < min(size, len(candidates)):
        total = np.minimum(np.minimum(reached, 10.0)[:, None], shortfall).sum(0)
        total[chosen] = np.inf
        near = [i for i in range(len(candidates)) if any(np.allclose(points[i], points[k]) for k in chosen)]
        total[near] = np.inf
        at = int(total.argmin())
        if not math.isfinite(total[at]):
            break
        chosen.append(at)
        reached = np.minimum(reached, shortfall[:, at])
    leads = shortfall[:, chosen].argmin(1)
    return [
        Pick(dict(candidates[k]), tuple(int(e) for e in np.flatnonzero(leads == place)))
        for place, k in enumerate(chosen)
    ]
