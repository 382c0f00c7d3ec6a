"""Compute the needs of a script's call. A host that was kept from an earlier call is used only if it meets them."""

from __future__ import annotations

import os
import sys
from typing import Any

_OF_LIBRARIES = frozenset(
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
"""Variables that libraries set when they are imported, on workers too. Workers can be reused if only these change."""


def of_workers() -> tuple[Any, ...]:
    """Return the environment variables and `sys.path`, which workers inherit from this process."""
    return {name: value for name, value in os.environ.items() if name not in _OF_LIBRARIES}, list(sys.path)


def of_database(url: str) -> tuple[int, int] | None:
    """Return the identity of an SQLite file. It changes if the file is deleted and created again."""
    try:
        found = os.stat(url.removeprefix("sqlite:///"))
    except OSError:
        return None
    return found.st_dev, found.st_ino
