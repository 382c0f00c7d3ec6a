"""Copy PyTorch's global settings from a script's process to its workers, so that they train under the same settings.

A Trainer sets some of them (`deterministic`, `benchmark`) when it is created, which happens only in the script.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy
import torch


@dataclass(frozen=True, slots=True)
class GlobalState:
    """PyTorch's global settings, and the states of the random generators."""

    deterministic: tuple[bool, bool]  # deterministic algorithms: (whether required, whether a violation only warns)
    cudnn: tuple[bool, bool]  # benchmark, deterministic
    matmul_precision: str
    dtype: torch.dtype
    generators: tuple[Any, Any, torch.Tensor]

    @classmethod
    def here(cls) -> GlobalState:
        return cls(
            (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
            (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
            torch.get_float32_matmul_precision(),
            torch.get_default_dtype(),
            generators(),
        )

    def set(self) -> None:
        torch.use_deterministic_algorithms(self.deterministic[0], warn_only=self.deterministic[1])
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = self.cudnn
        torch.set_float32_matmul_precision(self.matmul_precision)
        torch.set_default_dtype(self.dtype)
        set_generators(self.generators)
        # torch.manual_seed does this in the script, and a warm worker has already drawn random numbers
        torch.cuda.manual_seed_all(torch.initial_seed())


def generators() -> tuple[Any, Any, torch.Tensor]:
    """Return the states of the random generators of Python, NumPy and torch (on the CPU)."""
    return random.getstate(), numpy.random.get_state(), torch.random.get_rng_state()


def set_generators(states: tuple[Any, Any, torch.Tensor]) -> None:
    python, of_numpy, of_torch = states
    random.setstate(python)
    numpy.random.set_state(of_numpy)
    torch.random.set_rng_state(of_torch)
