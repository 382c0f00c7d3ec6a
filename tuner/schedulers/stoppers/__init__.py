"""Stoppers: rules that end a trial or the whole search, whatever the scheduler decides.

A user passes one of these as ``stop``:

* a dict such as ``{"training_iteration": 27}`` or ``{"accuracy": 0.99}``, which ends a trial as soon as one of the metrics
  is at or above its value, as in Ray Tune;
* a function ``(number, metrics) -> bool``;
* one of the classes below, or one of Ray Tune's stoppers;
* JSON such as ``{"type": "plateau", "std": 0.001}``;
* a list of any of these.

`base` defines the interface. Each of the other modules defines one kind of stopper.
"""

from tuner.schedulers.stoppers.base import ITERATION, TIME, Stopper, next_report
from tuner.schedulers.stoppers.combined import CombinedStopper, from_argument, from_json
from tuner.schedulers.stoppers.function import FunctionStopper
from tuner.schedulers.stoppers.limits import MaximumIterationStopper, ThresholdStopper, TimeStopper
from tuner.schedulers.stoppers.plateau import ExperimentPlateauStopper, TrialPlateauStopper
from tuner.schedulers.stoppers.worth import ExpectedImprovementStopper

__all__ = [
    "ITERATION",
    "TIME",
    "CombinedStopper",
    "ExpectedImprovementStopper",
    "ExperimentPlateauStopper",
    "FunctionStopper",
    "MaximumIterationStopper",
    "Stopper",
    "ThresholdStopper",
    "TimeStopper",
    "TrialPlateauStopper",
    "from_argument",
    "from_json",
    "next_report",
]
