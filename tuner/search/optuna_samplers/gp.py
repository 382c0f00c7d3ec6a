"""Bayesian optimization with a Gaussian process."""

from __future__ import annotations

import importlib.util
import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tuner.domain.states import TrialState
from tuner.domain.trial import Population
from tuner.errors import MissingPackage
from tuner.names import gp_needs_torch
from tuner.options import check_boolean, check_integer
from tuner.search.optuna_samplers.model_based import LIGHT_UNTIL, ModelBased
from tuner.search.optuna_samplers.tpe import known_space_tpe

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

SHORT_S = 1.0
"""Trials that take fewer seconds are short.

A proposal takes about 0.2 s of a core, including a share of the first proposal, which imports torch. So it would take more than
a fifth of the time of a short trial.
"""

RECENT = 20
"""The number of newest completed trials from which the duration of the next trial is estimated."""


class GPSearch(ModelBased):
    """Proposes configurations with Optuna's GPSampler: a Matérn 5/2 kernel with a length scale per parameter, and log EI.

    Log EI: Ament et al., "Unexpected Improvements to Expected Improvement for Bayesian Optimization", NeurIPS 2023. The
    searcher learns only from completed trials, and its cost grows with the cube of their number. Use it for up to a few
    hundred expensive trials without early stopping.

    Args:
        n_startup_trials: the number of random trials at the beginning.
        deterministic_objective: True if equal configurations give equal results.
        tpe_if_short: True to use TPE while trials take less than a second. A proposal of the Gaussian process takes about a
            tenth of a second; the first proposal takes several seconds.
        constraints: bounds on reported metrics.
        warm_start: results of earlier experiments.
    """

    TYPE = "gp"
    HEAVY = True

    def __init__(
        self,
        n_startup_trials: int = 10,
        deterministic_objective: bool = False,
        tpe_if_short: bool = False,
        constraints: Mapping[str, Any] | None = None,
        warm_start: Sequence[Any] = (),
    ) -> None:
        super().__init__(constraints, warm_start)
        check_integer("n_startup_trials", n_startup_trials)
        check_boolean("deterministic_objective", deterministic_objective)
        check_boolean("tpe_if_short", tpe_if_short)
        self.tpe_if_short = tpe_if_short
        self.n_startup_trials = n_startup_trials
        self.deterministic_objective = deterministic_objective

    def is_heavy(self, trials: Population) -> bool:
        return len(trials) + len(self.warm_start) >= LIGHT_UNTIL if self._is_short(trials) else self.HEAVY

    def _is_short(self, trials: Population) -> bool:
        """Return True if TPE proposes the next trial.

        TPE proposes it if the trial is one of the first, if it is expected to be short, or if torch is not installed.
        """
        if not self.tpe_if_short:
            return False
        if importlib.util.find_spec("torch") is None:
            return True  # Optuna's Gaussian process is written in PyTorch
        if len(trials) < self.n_startup_trials:
            return True  # random anyway
        ended = (trial.running_s for trial in reversed(list(trials)) if trial.state is TrialState.COMPLETED)
        recent = list(itertools.islice(ended, RECENT))
        return bool(recent) and statistics.mean(recent) < SHORT_S

    def sampler_for(self, seed: int, trials: Population) -> BaseSampler:
        if not self._is_short(trials):
            return self.sampler(seed)
        return known_space_tpe(self.context, self._mirror, seed, n_startup_trials=self.n_startup_trials)

    def sampler(self, seed: int) -> BaseSampler:
        from optuna.samplers import GPSampler

        if importlib.util.find_spec("torch") is None:
            raise MissingPackage(gp_needs_torch())
        return GPSampler(
            seed=seed,
            n_startup_trials=self.n_startup_trials,
            deterministic_objective=self.deterministic_objective,
            warn_independent_sampling=False,
        )
