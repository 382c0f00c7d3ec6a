"""The base class of all searchers that use Optuna's samplers."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tuner.domain.keys import keyed_random, keyed_seed
from tuner.domain.trial import Population
from tuner.errors import SpecError, text_of
from tuner.search import constraints as constraint_option
from tuner.search import warm_start as warm_start_option
from tuner.search.base import SearcherContext, Suggestion
from tuner.search.constraints import Constraint
from tuner.search.optuna_samplers.silence import quiet
from tuner.search.optuna_samplers.study import Mirror
from tuner.search.proposer import Proposer
from tuner.search.warm_start import Record

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


log = logging.getLogger(__name__)

LIGHT_UNTIL = 200
"""With fewer trials than this, a proposal by TPE, CMA-ES or NSGA-II takes less than about 5 ms (`benchmarks/tpe_ask.py`)."""


class ModelBased(Proposer):
    """Creates a new sampler for each proposal, seeded by (seed, number), on a study that mirrors the population.

    Between proposals, only the study holds a sampler's state. Attributes that a sampler stores with Optuna's trial are
    stored with our trial, and the next sampler gets them. So the same trials lead to the same proposal, even in another
    process.
    """

    SEVERAL_OBJECTIVES: ClassVar[bool] = True
    #: attributes to set on trials that this sampler did not propose, so that it learns from them
    ADOPTED: ClassVar[Mapping[str, Any]] = {}

    #: for the searchers of earlier versions, which are stored as pickles and do not have it
    _modes_of_study: tuple[str, ...] = ()

    def __init__(self, constraints: Mapping[str, Any] | None, warm_start: Sequence[Any]) -> None:
        self._constraints = constraint_option.read(constraints)
        self.constraints = constraints
        self.warm_start = warm_start_option.plain(warm_start)
        self._modes_of_study = warm_start_option.modes_of(warm_start)

    def setup(self, context: SearcherContext) -> None:
        warm_start_option.check_modes(self._modes_of_study, context.objectives)
        super().setup(context)
        if len(context.objectives) > 1 and not self.SEVERAL_OBJECTIVES:
            raise SpecError(f"{self.TYPE} supports only one objective; nsgaii, tpe and gp support several", "/search")
        records: Sequence[Record] = ()
        try:
            records = warm_start_option.fit(self.warm_start, context.space, len(context.objectives))
        except SpecError:
            if context.revisions is None:
                raise  # it is a mistake that no record fits, unless a user has changed the space
        self._left_out = len(self.warm_start) - len(records)
        self._mirror = Mirror(
            context.space,
            context.objectives,
            context.scope,
            self._constraints,
            records,
            self.ADOPTED,
            context if context.revisions is not None else None,
        )

    def is_heavy(self, trials: Population) -> bool:
        return self.HEAVY or len(trials) + len(self.warm_start) >= LIGHT_UNTIL

    def metric_constraints(self) -> Sequence[Constraint]:
        return self._constraints

    def propose(self, number: int, trials: Population, attempt: int) -> Suggestion | None:
        try:
            return self.ask(number, trials, attempt)
        except Exception as error:  # a failed fit, or a user's sampler; the search continues, and the note says so
            log.warning("%s could not propose trial %s", self, number, exc_info=True)
            params = self.context.space.sample(keyed_random(self.context.seed, "instead", number, attempt))
            return Suggestion(
                params, note=f"drawn at random because {self.TYPE} failed: {type(error).__name__}: {text_of(error)}"
            )

    def ask(self, number: int, trials: Population, attempt: int) -> Suggestion:
        """Return the sampler's proposal, or raise the sampler's exception."""
        self._mirror.sync(trials)
        seed = keyed_seed(self.context.seed, "suggest", number, *([attempt] if attempt else []))
        with quiet():
            sampler = self.sampler_for(seed % 2**32, trials)
        params, state = self._mirror.ask(sampler)
        note = (
            f"{self._left_out} warm_start records do not fit this space and were left out"
            if number == 0 and self._left_out
            else ""
        )
        return Suggestion(params, state, note)

    def sampler_for(self, seed: int, trials: Population) -> BaseSampler:
        """Return the sampler that proposes the next trial."""
        return self.sampler(seed)

    @abstractmethod
    def sampler(self, seed: int) -> BaseSampler:
        """Return a new sampler that has not seen any trial."""
