"""Schedulers and stoppers of `ray.tune`, read into ours, so that a script need change only its import of `tune`.

Only their attributes are read; Ray is not imported here. What has another meaning with us is refused with its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.errors import SpecError
from tuner.schedulers.asha import ASHAScheduler
from tuner.schedulers.base import Scheduler
from tuner.schedulers.fifo import FIFOScheduler
from tuner.schedulers.hyperband import HyperBandScheduler
from tuner.schedulers.median import MedianStoppingRule
from tuner.schedulers.pbt import PopulationBasedTraining
from tuner.schedulers.stoppers import (
    CombinedStopper,
    ExperimentPlateauStopper,
    FunctionStopper,
    MaximumIterationStopper,
    Stopper,
    TimeStopper,
    TrialPlateauStopper,
)


def objective_of(theirs: Any) -> tuple[Any, Any]:
    """(metric, mode) that a scheduler or a searcher of Ray Tune was given, each None where it was not.

    Lists of names where a searcher has several objectives.
    """
    if not any(cls.__module__.startswith(("ray.tune.schedulers", "ray.tune.search")) for cls in type(theirs).__mro__):
        return None, None
    theirs = getattr(theirs, "searcher", theirs)  # within a ConcurrencyLimiter
    return getattr(theirs, "_metric", None), getattr(theirs, "_mode", None)


def scheduler_from_ray(theirs: Any, pointer: str = "/scheduler") -> Scheduler:
    """Our scheduler with the options of a `ray.tune.schedulers` object; SpecError for one that we do not have."""
    make = _SCHEDULERS.get(type(theirs).__name__)
    if make is None or not type(theirs).__module__.startswith("ray.tune.schedulers"):
        known = ", ".join(sorted(_SCHEDULERS))
        raise SpecError(f"{type(theirs).__name__} of Ray Tune is not known here; known are {known}", pointer)
    return make(theirs)


def _asha(theirs: Any) -> Scheduler:
    rungs = theirs._brackets[0]._rungs  # the highest first
    if not theirs._stop_last_trials:
        raise SpecError(
            "stop_last_trials=False is not known here: a trial ends at max_t", "/scheduler/stop_last_trials"
        )
    return ASHAScheduler(
        theirs._max_t,
        rungs[-1][0] if rungs else theirs._max_t,
        theirs._reduction_factor,
        len(theirs._brackets),
        theirs._time_attr,
    )


def _hyperband(theirs: Any) -> Scheduler:
    if not theirs._stop_last_trials:
        raise SpecError(
            "stop_last_trials=False is not known here: a trial ends at max_t", "/scheduler/stop_last_trials"
        )
    return HyperBandScheduler(theirs._max_t_attr, theirs._eta, theirs._time_attr)


def _median(theirs: Any) -> Scheduler:
    return MedianStoppingRule(
        theirs._grace_period,
        theirs._min_samples_required,
        theirs._min_time_slice or None,
        theirs._hard_stop,
        time_attr=theirs._time_attr,
    )


def _pbt(theirs: Any) -> Scheduler:
    return PopulationBasedTraining(
        theirs._perturbation_interval,
        theirs._hyperparam_mutations or None,
        theirs._quantile_fraction,
        theirs._resample_probability,
        theirs._perturbation_factors,
        theirs._custom_explore_fn,
        theirs._synch,
        theirs._burn_in_period,
        time_attr=theirs._time_attr,
    )


_SCHEDULERS: dict[str, Callable[[Any], Scheduler]] = {
    "FIFOScheduler": lambda _: FIFOScheduler(),
    "AsyncHyperBandScheduler": _asha,
    "HyperBandScheduler": _hyperband,
    "MedianStoppingRule": _median,
    "PopulationBasedTraining": _pbt,
}


def stopper_from_ray(theirs: Any, pointer: str = "/stop") -> Stopper | None:
    """Our stopper with the options of a `ray.tune.stopper` object; SpecError for a class of the user's own."""
    make = _STOPPERS.get(type(theirs).__name__)
    if make is None or not type(theirs).__module__.startswith("ray.tune.stopper"):
        message = f"the state of a Ray Tune stopper {type(theirs).__name__} cannot be saved; pass a function instead"
        raise SpecError(message, pointer)
    return make(theirs)


_STOPPERS: dict[str, Callable[[Any], Stopper | None]] = {
    "NoopStopper": lambda s: None,
    "MaximumIterationStopper": lambda s: MaximumIterationStopper(s._max_iter),
    "TimeoutStopper": lambda s: TimeStopper(s._timeout_seconds),
    "FunctionStopper": lambda s: FunctionStopper(s._fn),
    "CombinedStopper": lambda s: CombinedStopper([stopper_from_ray(one) for one in s._stoppers]),
    "TrialPlateauStopper": lambda s: TrialPlateauStopper(
        s._metric, s._std, s._num_results, s._grace_period, s._metric_threshold, s._mode
    ),
    "ExperimentPlateauStopper": lambda s: ExperimentPlateauStopper(s._metric, s._std, s._top, s._mode, s._patience),
}
