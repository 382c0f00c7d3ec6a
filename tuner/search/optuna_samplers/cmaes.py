"""CMA-ES, the covariance matrix adaptation evolution strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tuner.errors import SpecError
from tuner.options import check_boolean, check_integer, check_number
from tuner.search.base import SearcherContext
from tuner.search.optuna_samplers.model_based import ModelBased

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class CMAESSearch(ModelBased):
    """Proposes configurations with CMA-ES, as implemented by the package cmaes.

    Hansen and Ostermeier, "Completely Derandomized Self-Adaptation in Evolution Strategies", 2001; with `warm_start`,
    Nomura et al., "Warm Starting CMA-ES for Hyperparameter Optimization", AAAI 2021. Use it for a thousand trials or
    more over continuous parameters. Unordered choices and parameters inside branches are drawn at random. The searcher learns
    from completed trials.

    Args:
        n_startup_trials: the number of random trials before the first trial that CMA-ES proposes.
        sigma0: the size of the first step, as a share of each parameter's range.
        popsize: the number of trials in a generation.
        use_separable_cma: True to restrict the covariance matrix to its diagonal.
        lr_adapt: True to adapt the learning rate.
        consider_pruned_trials: True to learn from stopped trials too, although their values come from training of different
            lengths.
        warm_start: results of earlier experiments.
    """

    TYPE = "cmaes"
    SEVERAL_OBJECTIVES: ClassVar[bool] = False

    def __init__(
        self,
        n_startup_trials: int = 1,
        sigma0: float | None = None,
        popsize: int | None = None,
        use_separable_cma: bool = False,
        lr_adapt: bool = False,
        consider_pruned_trials: bool = False,
        warm_start: Sequence[Any] = (),
    ) -> None:
        super().__init__(None, warm_start)
        check_integer("n_startup_trials", n_startup_trials)
        if sigma0 is not None:
            check_number("sigma0", sigma0, above=0)
        if popsize is not None:
            check_integer("popsize", popsize, at_least=2)
        check_boolean("use_separable_cma", use_separable_cma)
        check_boolean("lr_adapt", lr_adapt)
        check_boolean("consider_pruned_trials", consider_pruned_trials)
        if lr_adapt and use_separable_cma:
            raise SpecError("cannot be combined with use_separable_cma", "/lr_adapt")
        if self.warm_start and (sigma0 is not None or use_separable_cma):
            raise SpecError("cannot be combined with sigma0 or use_separable_cma", "/warm_start")
        self.n_startup_trials = n_startup_trials
        self.sigma0 = sigma0
        self.popsize = popsize
        self.use_separable_cma = use_separable_cma
        self.lr_adapt = lr_adapt
        self.consider_pruned_trials = consider_pruned_trials

    def setup(self, context: SearcherContext) -> None:
        super().setup(context)
        self._modelled = [p.path for p in context.space.parameters if p.condition is None and (p.numeric or p.ordered)]
        if len(self._modelled) < 2:
            message = (
                f"cmaes needs at least two numeric parameters outside of branches, and this space has {len(self._modelled)}; "
                "tpe, gp, nsgaii, qmc, random and grid support any space"
            )
            raise SpecError(message, "/search")

    def sampler(self, seed: int) -> BaseSampler:
        from tuner.search.optuna_samplers.cmaes_sampler import PlainCMAES

        return PlainCMAES(
            seed=seed,
            n_startup_trials=self.n_startup_trials,
            sigma0=self.sigma0,
            popsize=self.popsize,
            use_separable_cma=self.use_separable_cma,
            lr_adapt=self.lr_adapt,
            consider_pruned_trials=self.consider_pruned_trials,
            source_trials=self._mirror.records(self._modelled) if self.warm_start else None,
            warn_independent_sampling=False,
        )
