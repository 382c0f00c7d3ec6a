"""Quasi-random search: points that cover the space more evenly than random ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.domain.keys import keyed_seed
from tuner.domain.trial import Population
from tuner.errors import SpecError
from tuner.search import constraints as constraint_option
from tuner.search.base import SearcherContext, Suggestion
from tuner.search.proposer import Proposer

_MAX_DIMENSIONS = 21_201  # the size of scipy's table of direction numbers


class QMCSearch(Proposer):
    """Proposes the points of a scrambled Sobol sequence in the unit cube (Owen 1998), one point for each trial, in order.

    If a branch is not chosen, the coordinates of its parameters are not used. The points cover the space best if
    num_samples is a power of two.

    Args:
        constraints: bounds on reported metrics. They do not influence the proposals, but which trials the scheduler prefers and
            which one is the best.
    """

    TYPE = "qmc"

    def __init__(self, constraints: Mapping[str, Any] | None = None) -> None:
        constraint_option.read(constraints)
        self.constraints = constraints

    def setup(self, context: SearcherContext) -> None:
        super().setup(context)
        if len(context.space) > _MAX_DIMENSIONS:
            raise SpecError(f"qmc supports up to {_MAX_DIMENSIONS:,} parameters; random supports any number", "/search")
        self._engine: Any = None
        self._at = 0

    def propose(self, number: int, trials: Population, attempt: int) -> Suggestion | None:
        if not len(self.context.space):
            return Suggestion({})
        index = number - len(self._points)
        if self._engine is None or index < self._at:
            from scipy.stats import qmc

            self._engine = qmc.Sobol(len(self.context.space), scramble=True, rng=keyed_seed(self.context.seed, "qmc"))
            self._at = 0
        if index > self._at:
            self._engine.fast_forward(index - self._at)
        point = self._engine.random(1)[0]
        self._at = index + 1
        return Suggestion(self.context.space.from_unit([float(x) for x in point]))

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_engine": None}
