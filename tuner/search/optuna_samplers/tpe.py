"""TPE, the tree-structured Parzen estimator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tuner.options import check_boolean, check_integer
from tuner.search.optuna_samplers.model_based import ModelBased

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from tuner.search.base import SearcherContext
    from tuner.search.optuna_samplers.study import Mirror


class TPESearch(ModelBased):
    """Proposes configurations with Optuna's TPESampler.

    Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011, section 4; multivariate as in Falkner
    et al., "BOHB", ICML 2018; several objectives as in Ozaki et al., JAIR 73 (2022). The sampler fits one density to the good
    trials and another to the remaining trials. It draws `n_ei_candidates` points from the first density, and proposes the point
    with the highest ratio of the first density to the second.

    Args:
        n_startup_trials: the number of random trials at the beginning.
        n_ei_candidates: the number of points drawn for each proposal.
        multivariate: True to model parameters jointly. None: True if there is only one objective.
        constant_liar: True to count running trials as bad trials, so that parallel trials try different configurations.
        constraints: bounds on reported metrics.
        warm_start: results of earlier experiments.
    """

    TYPE = "tpe"
    REDRAWS: ClassVar[int] = 4

    def __init__(
        self,
        n_startup_trials: int = 10,
        n_ei_candidates: int = 24,
        multivariate: bool | None = None,
        constant_liar: bool = True,
        constraints: Mapping[str, Any] | None = None,
        warm_start: Sequence[Any] = (),
    ) -> None:
        super().__init__(constraints, warm_start)
        check_integer("n_startup_trials", n_startup_trials)
        check_integer("n_ei_candidates", n_ei_candidates, at_least=1)
        if multivariate is not None:
            check_boolean("multivariate", multivariate)
        check_boolean("constant_liar", constant_liar)
        self.n_startup_trials = n_startup_trials
        self.n_ei_candidates = n_ei_candidates
        self.multivariate = multivariate
        self.constant_liar = constant_liar

    def sampler(self, seed: int) -> BaseSampler:
        return known_space_tpe(
            self.context,
            self._mirror,
            seed,
            n_startup_trials=self.n_startup_trials,
            n_ei_candidates=self.n_ei_candidates,
            multivariate=self.multivariate,
            constant_liar=self.constant_liar,
        )


def known_space_tpe(
    context: SearcherContext,
    mirror: Mirror,
    seed: int,
    *,
    n_startup_trials: int = 10,
    n_ei_candidates: int = 24,
    multivariate: bool | None = None,
    constant_liar: bool = True,
) -> BaseSampler:
    """Return a TPE sampler for a study that mirrors the trials. The options are those of `TPESearch`."""
    from tuner.search.optuna_samplers.tpe_sampler import KnownSpaceTPE

    together = len(context.objectives) == 1 if multivariate is None else multivariate
    conditional = any(p.condition for p in context.space.parameters)
    return KnownSpaceTPE(
        mirror.distributions,
        mirror.matrix,
        n_startup_trials=n_startup_trials,
        n_ei_candidates=n_ei_candidates,
        multivariate=together,
        group=together and conditional,
        constant_liar=constant_liar,
        seed=seed,
    )
