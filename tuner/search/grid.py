"""Grid search: every combination, `num_samples` times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tuner.domain.keys import keyed_random
from tuner.domain.trial import Population
from tuner.errors import SpecError
from tuner.options import check_boolean
from tuner.search import constraints as constraint_option
from tuner.search.base import SearcherContext, Suggestion
from tuner.search.proposer import Proposer

_MAX_COMBINATIONS = 100_000


class GridSearch(Proposer):
    """Runs every combination of the `grid_search` parameters, or of the `choice` parameters if the space has no grid.

    The whole grid is run `num_samples` times in succession (by default once). Parameters outside the grid are drawn at random
    for each trial, as in Ray Tune. `points_to_evaluate` are run first, in addition to the grid.

    Args:
        choices: True to include `choice` parameters in the grid, False to exclude them. None: include them only if the
            space has no `grid_search`.
        constraints: bounds on reported metrics. They do not influence the proposals, but which trials the scheduler prefers and
            which one is the best.
    """

    TYPE = "grid"
    GRIDS: ClassVar[bool] = True
    REVISES: ClassVar[bool] = False

    def __init__(self, choices: bool | None = None, constraints: Mapping[str, Any] | None = None) -> None:
        if choices is not None:
            check_boolean("choices", choices)
        constraint_option.read(constraints)
        self.choices = choices
        self.constraints = constraints

    def setup(self, context: SearcherContext) -> None:
        super().setup(context)
        choices = not context.space.has_grid if self.choices is None else self.choices
        self._grid = context.space.grid(choices, limit=_MAX_COMBINATIONS + 1)
        if len(self._grid) > _MAX_COMBINATIONS:
            raise SpecError(
                f"the grid has more than {_MAX_COMBINATIONS:,} combinations; use random search instead", "/search"
            )
        if self._grid == [{}] and context.num_samples is None:
            message = "the space has no grid_search and no choice, so there is no grid; set num_samples"
            raise SpecError(message, "/search")

    def total(self) -> int:
        return len(self._points) + len(self._grid) * (self.context.num_samples or 1)

    def propose(self, number: int, trials: Population, attempt: int) -> Suggestion | None:
        if number >= self.total():
            return None
        cell = self._grid[(number - len(self._points)) % len(self._grid)]
        return Suggestion(self.context.space.sample(keyed_random(self.context.seed, "suggest", number), cell))
