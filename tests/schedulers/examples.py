"""Schedulers with options, by name, for tests that try every scheduler: folds, and the fuzzer."""

from __future__ import annotations

from typing import Any

_PLAIN = {"width": 32, "depth": 3, "act": "relu", "opt": 0, "opt/0/momentum": 0.9}

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
    "pbt_replay": {
        "type": "pbt_replay",
        "schedule": [
            {"iteration": 0, "params": {"lr": 0.001, **_PLAIN}},
            {"iteration": 2, "params": {"lr": 0.01, **_PLAIN}},
            {"iteration": 3, "params": {"lr": 0.1, **_PLAIN}},
            {"iteration": 7, "params": {"lr": 0.001, **_PLAIN}},
        ],
    },
}
