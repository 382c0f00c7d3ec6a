"""Schedulers with options, by name, for tests that try every scheduler: folds, and the fuzzer."""

from __future__ import annotations

from typing import Any

SCHEDULERS: dict[str, dict[str, Any]] = {
    "fifo": {"type": "fifo"},
    "asha": {"type": "asha", "reduction_factor": 3},
    "asha in brackets": {"type": "asha", "reduction_factor": 2, "brackets": 3},
    "moasha": {"type": "moasha", "reduction_factor": 3},
    "promotion": {"type": "asha_promotion", "reduction_factor": 3},
    "promotion in brackets": {"type": "asha_promotion", "reduction_factor": 2, "brackets": 2},
    "hyperband": {"type": "hyperband", "reduction_factor": 3},
    "median": {"type": "median", "min_samples_required": 2},
    "median, soft": {"type": "median", "min_samples_required": 2, "hard_stop": False, "min_time_slice": 1},
    "pbt": {"type": "pbt", "perturbation_interval": 2},
    "pbt of two": {"type": "pbt", "perturbation_interval": 1, "quantile_fraction": 0.5},
    "pb2": {"type": "pb2", "perturbation_interval": 1, "quantile_fraction": 0.5},
    "pb2, synch": {"type": "pb2", "perturbation_interval": 2, "synch": True},
    "pbt, synch": {"type": "pbt", "perturbation_interval": 3, "synch": True, "burn_in_period": 2},
}
