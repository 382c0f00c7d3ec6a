"""Optuna's CMA-ES, changed so that its stored state contains no uninitialized memory."""

from __future__ import annotations

from typing import Any

from optuna.samplers import CmaEsSampler


class PlainCMAES(CmaEsSampler):
    """A CmaEsSampler that stores the same state, bit for bit, for the same trials.

    The state of the optimizer is pickled with each trial.
    """

    def _init_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        optimizer = super()._init_optimizer(*args, **kwargs)
        optimizer._funhist_values[:] = 0.0  # made by numpy.empty; nothing reads the array before it has been filled
        return optimizer
