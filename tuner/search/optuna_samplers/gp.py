"""Bayesian optimization with a Gaussian process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tuner.options import check_boolean, check_integer
from tuner.search.optuna_samplers.model_based import ModelBased

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class GPSearch(ModelBased):
    """Proposes configurations by Optuna's GPSampler: a Matérn 5/2 kernel with a length scale per parameter, and log EI.

    Log EI: Ament et al., "Unexpected Improvements to Expected Improvement for Bayesian Optimization", NeurIPS 2023. It
    learns from completed trials only, and its cost grows with the cube of their number. Use it for up to a few hundred
    expensive trials without early stopping. The first `n_startup_trials` are random.
    """

    TYPE = "gp"
    HEAVY = True

    def __init__(
        self,
        n_startup_trials: int = 10,
        deterministic_objective: bool = False,
        constraints: Mapping[str, Any] | None = None,
        warm_start: Sequence[Any] = (),
    ) -> None:
        super().__init__(constraints, warm_start)
        check_integer("n_startup_trials", n_startup_trials)
        check_boolean("deterministic_objective", deterministic_objective)
        self.n_startup_trials = n_startup_trials
        self.deterministic_objective = deterministic_objective

    def sampler(self, seed: int) -> BaseSampler:
        from optuna.samplers import GPSampler

        return GPSampler(
            seed=seed,
            n_startup_trials=self.n_startup_trials,
            deterministic_objective=self.deterministic_objective,
            warn_independent_sampling=False,
        )
