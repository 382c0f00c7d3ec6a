"""BOHB's searcher, which fits kernel densities to good and bad configurations at the largest budget with enough results.

Falkner, Klein and Hutter, "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML 2018, algorithm 2,
https://arxiv.org/abs/1807.01774. The kernels and bandwidths are the same as in its reference implementation,
HpBandSter, which uses statsmodels: the normal reference rule, Gaussian kernels for numbers, and Aitchison-Aitken
kernels for unordered choices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from tuner.domain.keys import keyed_random, keyed_seed
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.options import check_integer, check_number
from tuner.search import constraints as constraint_option
from tuner.search.base import SearcherContext, Suggestion
from tuner.search.proposer import Proposer

Floats = NDArray[np.float64]

FLOOR = 1e-32  # lower densities are raised to this one, as in HpBandSter
AT_REST = (TrialState.PAUSED, TrialState.STOPPED, TrialState.COMPLETED)


class BOHBSearch(Proposer):
    """Proposes configurations that are likelier among the good results than among the bad results.

    With `scheduler="hyperband"` it is BOHB. A *budget* is a training_iteration at which a trial was paused, stopped or
    completed, such as a level of HyperBand. The model learns from all results at the largest budget that has enough
    results. The searcher supports one objective and any space.

    Args:
        min_points_in_model: N_min, the minimum number of good results and of bad results. None: the number of
            parameters + 1. The model is used as soon as a budget has N_min + 2 results.
        top_n_percent: q, the share of the results that count as good, in percent.
        n_ei_candidates: N_s, the number of candidates that are drawn from the density of the good results.
        random_fraction: ρ, the share of the configurations that are drawn at random.
        bandwidth_factor: b_w, the factor by which bandwidths are multiplied when candidates are drawn.
        min_bandwidth: the minimum bandwidth, with every parameter scaled to [0, 1].
        constraints: bounds on reported metrics. Results of trials whose newest values violate them come after the others.
    """

    TYPE = "bohb"
    READS_VALUES = True
    REDRAWS: ClassVar[int] = 10

    def __init__(
        self,
        min_points_in_model: int | None = None,
        top_n_percent: float = 15,
        n_ei_candidates: int = 64,
        random_fraction: float = 1 / 3,
        bandwidth_factor: float = 3,
        min_bandwidth: float = 1e-3,
        constraints: Mapping[str, Any] | None = None,
    ) -> None:
        constraint_option.read(constraints)
        if min_points_in_model is not None:
            check_integer("min_points_in_model", min_points_in_model, at_least=1)
        check_number("top_n_percent", top_n_percent, above=0, at_most=100)
        check_integer("n_ei_candidates", n_ei_candidates, at_least=1)
        check_number("random_fraction", random_fraction, at_least=0, at_most=1)
        check_number("bandwidth_factor", bandwidth_factor, above=0)
        check_number("min_bandwidth", min_bandwidth, above=0)
        self.min_points_in_model = min_points_in_model
        self.top_n_percent = top_n_percent
        self.n_ei_candidates = n_ei_candidates
        self.random_fraction = random_fraction
        self.bandwidth_factor = bandwidth_factor
        self.min_bandwidth = min_bandwidth
        self.constraints = constraints

    def setup(self, context: SearcherContext) -> None:
        super().setup(context)
        if len(context.objectives) > 1:
            raise SpecError(f"{self.TYPE} supports only one objective; nsgaii, tpe and gp support several", "/search")
        kinds = [p.kind == "choice" and not p.ordered for p in context.space.parameters]
        self._levels = np.array(
            [len(p.categories) if by_index else 0 for p, by_index in zip(context.space.parameters, kinds, strict=True)]
        )

    def propose(self, number: int, trials: Population, attempt: int) -> Suggestion | None:
        key: tuple[str | int, ...] = ("bohb", number, *([attempt] if attempt else []))
        rng = keyed_random(self.context.seed, *key)
        if rng.random() >= self.random_fraction and len(self.context.space):
            observed = self._observations(trials)
            least = self.min_points_in_model or len(self.context.space) + 1
            budget = max((b for b, rows in observed.items() if len(rows) >= least + 2), default=None)
            if budget is not None:
                generator = np.random.default_rng(keyed_seed(self.context.seed, *key, "model"))
                point = self._best_candidate(self._ranked(observed[budget], trials), least, generator)
                return Suggestion(self.context.space.from_unit(self._to_unit(point)))
        return Suggestion(self.context.space.sample(rng))

    # -- results ---------------------------------------------------------------------------------------------------------

    def _observations(self, trials: Population) -> dict[int, list[tuple[float, int, Mapping[str, Any]]]]:
        """Return a dict from budget to the results at this budget. Each result is (loss, trial number, params).

        A trial that failed or diverged has an infinite loss at the first budget that it did not reach.
        """
        budgets = sorted({t.iteration for t in trials if t.state in AT_REST and not t.diverged and t.iteration > 0})
        observed: dict[int, list[tuple[float, int, Mapping[str, Any]]]] = {b: [] for b in budgets}
        objective = self.context.objectives[0]
        for trial in trials:
            if (params := self.context.first_params_of(trial)) is None:
                continue
            for budget in budgets:
                if budget in trial.values:
                    loss = -objective.score(trial.values[budget])
                elif trial.feasible_now is False and budget <= trial.iteration and trial.last_value is not None:
                    loss = -objective.score(trial.last_value)  # `values` has no reports that violate the constraints
                elif _crashed(trial) and budget >= trial.iteration:
                    loss = math.inf
                else:
                    continue
                observed[budget].append((loss, trial.number, params))
                if math.isinf(loss):
                    break
        return observed

    def _ranked(
        self, rows: Sequence[tuple[float, int, Mapping[str, Any]]], trials: Population
    ) -> list[Mapping[str, Any]]:
        """Return the params of results, best first: within the constraints, then outside, then of trials that failed."""
        constraints = self.metric_constraints()

        def key(row: tuple[float, int, Mapping[str, Any]]) -> tuple[bool, float, float, int]:
            loss, number, _ = row
            return math.isinf(loss), sum(max(0.0, c.excess(trials[number].last)) for c in constraints), loss, number

        return [params for _, _, params in sorted(rows, key=key)]

    # -- the model -------------------------------------------------------------------------------------------------------

    def _best_candidate(
        self, ranked: Sequence[Mapping[str, Any]], least: int, generator: np.random.Generator
    ) -> Floats:
        points = np.array([self._point(params) for params in ranked])
        good_count, bad_count = split(len(points), least, self.top_n_percent)
        good = self._density(points[:good_count], generator)
        bad = self._density(points[len(points) - bad_count :], generator)
        candidates = self._draw(good, generator)
        ratio = np.maximum(good(candidates), FLOOR) / np.maximum(bad(candidates), FLOOR)
        best: Floats = candidates[int(ratio.argmax())]
        return best

    def _density(self, points: Floats, generator: np.random.Generator) -> Density:
        return Density(_imputed(points, self._levels, generator), self._levels, self.min_bandwidth)

    def _draw(self, good: Density, generator: np.random.Generator) -> Floats:
        """Draw candidates, each around a random good point.

        Numbers are drawn from a truncated normal distribution. Choices stay as they are or are drawn uniformly.
        """
        count = self.n_ei_candidates
        middle = good.points[generator.integers(len(good.points), size=count)]
        out = middle.copy()
        for column, levels in enumerate(self._levels):
            if levels:
                anew = generator.random(count) < good.bandwidth[column]
                out[anew, column] = generator.integers(levels, size=int(anew.sum()))
            else:
                width = good.bandwidth[column] * self.bandwidth_factor
                out[:, column] = truncated_normal(middle[:, column], width, generator)
        return out

    # -- points: numbers and ordered choices are in [0, 1]; unordered choices are indices; inactive parameters are NaN --------

    def _point(self, params: Mapping[str, Any]) -> list[float]:
        return [
            math.nan if p.path not in params else p.index(params[p.path]) if levels else p.unit(params[p.path])
            for p, levels in zip(self.context.space.parameters, self._levels, strict=True)
        ]

    def _to_unit(self, point: Floats) -> list[float]:
        return [float((v + 0.5) / levels if levels else v) for v, levels in zip(point, self._levels, strict=True)]


def split(count: int, least: int, percent: float) -> tuple[int, int]:
    """Return how many of `count` results count as good and how many as bad. If there are few, some count as both (eq. 3)."""
    good = min(max(least, int(percent * count / 100)), count)
    return good, min(max(least, count - good), count)


class Density:
    """A product kernel density over points (n, p). Column j has `levels[j]` categories; 0 means that the column has numbers."""

    def __init__(self, points: Floats, levels: NDArray[np.int64], min_bandwidth: float) -> None:
        self.points, self._levels = points, levels
        n, d = points.shape
        width = np.maximum(1.06 * points.std(0) * n ** (-1 / (4 + d)), min_bandwidth)
        # At this bandwidth all categories are equally likely. Above it, a kernel over categories is not a distribution.
        most = np.where(levels > 0, (levels - 1) / np.maximum(levels, 1), np.inf)
        self.bandwidth: Floats = np.minimum(width, most)

    def __call__(self, at: Floats) -> Floats:
        """Return the density (m,) at points (m, p)."""
        product = np.ones((len(at), len(self.points)))
        for column, (width, levels) in enumerate(zip(self.bandwidth, self._levels, strict=True)):
            apart = at[:, column, None] - self.points[:, column]
            if levels == 1:
                continue
            if levels:
                product *= np.where(apart == 0, 1 - width, width / (levels - 1))
            else:
                product *= np.exp(-0.5 * (apart / width) ** 2) / (math.sqrt(2 * math.pi) * width)
        out: Floats = product.mean(1)
        return out


def truncated_normal(middle: Floats, width: float, generator: np.random.Generator) -> Floats:
    """Draw a value around each of `middle` (n,), from a normal distribution that is truncated to [0, 1]."""
    low, high = ndtr(-middle / width), ndtr((1 - middle) / width)
    out: Floats = np.clip(middle + width * ndtri(low + (high - low) * generator.random(len(middle))), 0, 1)
    return out


def _imputed(points: Floats, levels: NDArray[np.int64], generator: np.random.Generator) -> Floats:
    """Return the points with a random value for each inactive parameter, taken from another point if any has one."""
    out = points.copy()
    for column, count in enumerate(levels):
        missing = np.isnan(points[:, column])
        known = points[~missing, column]
        wanted = int(missing.sum())
        if len(known):
            out[missing, column] = generator.choice(known, wanted)
        elif count:
            out[missing, column] = generator.integers(count, size=wanted)
        else:
            out[missing, column] = generator.random(wanted)
    return out


def _crashed(trial: Trial) -> bool:
    by_user = trial.state is TrialState.FAILED and trial.failure is not None and trial.failure.kind == "user"
    return trial.diverged or by_user
