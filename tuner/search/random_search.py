"""Random search: every parameter is drawn from its distribution.

Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 13 (2012).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tuner.domain.keys import keyed_random
from tuner.domain.trial import Population
from tuner.search import constraints as constraint_option
from tuner.search.base import SearcherContext, Suggestion
from tuner.search.grid import GridSearch
from tuner.search.proposer import Proposer


class RandomSearch(Proposer):
    """Draws each trial with a random generator keyed by (seed, number), so that draws do not depend on each other.

    In a space with `grid_search`, the searcher runs every combination of the grids `num_samples` times and draws the other
    parameters, like Ray Tune. If a configuration repeats an earlier one, it is drawn again, up to ten times.

    Args:
        constraints: bounds on reported metrics. They do not influence the proposals, but which trials the scheduler prefers and
            which one is the best.
    """

    TYPE = "random"
    REDRAWS: ClassVar[int] = 10
    GRIDS: ClassVar[bool] = True

    def __init__(self, constraints: Mapping[str, Any] | None = None) -> None:
        constraint_option.read(constraints)
        self.constraints = constraints

    def setup(self, context: SearcherContext) -> None:
        super().setup(context)
        self._grid: GridSearch | None = None
        if context.space.has_grid:
            self._grid = GridSearch(choices=False)
            self._grid.setup(context)

    def amend(self, context: SearcherContext) -> None:
        super().amend(context)
        if self._grid:
            self._grid.amend(context)

    def total(self) -> int | None:
        return self._grid.total() if self._grid else super().total()

    def propose(self, number: int, trials: Population, attempt: int) -> Suggestion | None:
        if self._grid:
            return self._grid.propose(number, trials, attempt)
        rng = keyed_random(self.context.seed, "suggest", number, *([attempt] if attempt else []))
        return Suggestion(self.context.space.sample(rng))
