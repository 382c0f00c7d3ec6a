"""Compute what a script's call needs from a driver host. A host kept from an earlier call is used only if it meets the needs."""

from __future__ import annotations

import os
import sys
from typing import Any

OF_LIBRARIES = frozenset(
    {
        "KMP_DUPLICATE_LIB_OK",  # scikit-learn
        "KMP_INIT_AT_FORK",
        "PYTEST_CURRENT_TEST",  # different for each test
        "PYTORCH_NVML_BASED_CUDA_CHECK",  # Lightning
        "TF2_BEHAVIOR",  # TensorFlow
        "TORCHINDUCTOR_CACHE_DIR",  # torch
        "TPU_ML_PLATFORM",  # TensorFlow, JAX
    }
)
"""Environment variables that libraries set on import, even in workers. Workers can be reused although these have changed."""


def of_workers() -> tuple[Any, ...]:
    """Return this process's environment variables and `sys.path`, which workers inherit when they start."""
    return {name: value for name, value in os.environ.items() if name not in OF_LIBRARIES}, list(sys.path)


def of_database(url: str) -> tuple[int, int] | None:
    """Return an id of an SQLite file that changes if the file is deleted and created again; None if there is no file."""
    try:
        found = os.stat(url.removeprefix("sqlite:///"))
    except OSError:
        return None
    return found.st_dev, found.st_ino
