"""What the searchers have in common that are Optuna's samplers inside."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tuner.domain.keys import keyed_random, keyed_seed
from tuner.domain.trial import Population
from tuner.errors import SpecError
from tuner.search import constraints as constraint_option
from tuner.search import warm_start as warm_start_option
from tuner.search.base import SearcherContext, Suggestion
from tuner.search.constraints import Constraint
from tuner.search.optuna_samplers.study import Mirror, quiet
from tuner.search.proposer import Proposer

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


log = logging.getLogger(__name__)


class ModelBased(Proposer):
    """A fresh sampler for each proposal, seeded from (seed, number), over a study that mirrors the population.

    What a sampler would remember from ask to ask is in the study; what it writes down there with a trial is stored with
    ours and handed back. So the same trials give the same proposal, also in another process.
    """

    SEVERAL_OBJECTIVES: ClassVar[bool] = True
    #: what a trial must carry that this sampler did not propose, to be learned from
    ADOPTED: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, constraints: Mapping[str, Any] | None, warm_start: Sequence[Any]) -> None:
        self._constraints = constraint_option.read(constraints)
        self.constraints = constraints
        self.warm_start = warm_start_option.plain(warm_start)

    def setup(self, context: SearcherContext) -> None:
        super().setup(context)
        if len(context.objectives) > 1 and not self.SEVERAL_OBJECTIVES:
            raise SpecError(f"{self.TYPE} takes one objective; nsgaii, tpe and gp take several", "/search")
        records = warm_start_option.fit(self.warm_start, context.space, len(context.objectives))
        self._left_out = len(self.warm_start) - len(records)
        self._mirror = Mirror(
            context.space, context.objectives, context.scope, self._constraints, records, self.ADOPTED
        )

    def metric_constraints(self) -> Sequence[Constraint]:
        return self._constraints

    def propose(self, number: int, trials: Population, attempt: int) -> Suggestion | None:
        try:
            return self.ask(number, trials, attempt)
        except Exception as error:  # a fit that fails, or a sampler of the user's: the search goes on, and says so
            log.warning("%s could not propose trial %s", self, number, exc_info=True)
            params = self.context.space.sample(keyed_random(self.context.seed, "instead", number, attempt))
            return Suggestion(
                params, note=f"drawn at random, since {self.TYPE} failed: {type(error).__name__}: {error}"
            )

    def ask(self, number: int, trials: Population, attempt: int) -> Suggestion:
        """What the sampler proposes; raises what it raises."""
        self._mirror.sync(trials)
        seed = keyed_seed(self.context.seed, "suggest", number, *([attempt] if attempt else []))
        with quiet():
            sampler = self.sampler(seed % 2**32)
        params, state = self._mirror.ask(sampler)
        note = (
            f"{self._left_out} records of warm_start are outside this space" if number == 0 and self._left_out else ""
        )
        return Suggestion(params, state, note)

    @abstractmethod
    def sampler(self, seed: int) -> BaseSampler:
        """A new sampler, as it is before it has seen anything."""
