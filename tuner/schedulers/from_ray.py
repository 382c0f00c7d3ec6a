"""Convert schedulers of `ray.tune` to ours, so that a script only has to change its import of `tune`.

Only the attributes of Ray's schedulers are read, and Ray is not imported. Options that have a different meaning in our
schedulers are rejected, with the reason.
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
from tuner.schedulers.pbt.pb2 import PB2
from tuner.schedulers.stoppers.from_ray import UsersStopper


def objective_of(theirs: Any) -> tuple[Any, Any]:
    """Return the (metric, mode) of a Ray Tune scheduler or searcher. Each is None if it was not given.

    For a searcher with several objectives, both are lists.
    """
    if not any(cls.__module__.startswith(("ray.tune.schedulers", "ray.tune.search")) for cls in type(theirs).__mro__):
        return None, None
    theirs = getattr(theirs, "searcher", theirs)  # inside a ConcurrencyLimiter
    return getattr(theirs, "_metric", None), getattr(theirs, "_mode", None)


def scheduler_from_ray(theirs: Any, pointer: str = "/scheduler") -> Scheduler:
    """Return a scheduler with the options of a `ray.tune.schedulers` object.

    Raises:
        SpecError: there is no equivalent.
    """
    if type(theirs).__name__ == "ResourceChangingScheduler":
        raise SpecError(
            "elastic trials need no scheduler of their own: pass the base_scheduler of the ResourceChangingScheduler, and "
            'num_workers={"min": 1, "max": 8}, with resources_allocation="even" for DistributeResources or "top" for '
            "DistributeResourcesToTopJob",
            pointer,
        )
    make = _SCHEDULERS.get(type(theirs).__name__)
    if make is None or not type(theirs).__module__.startswith("ray.tune.schedulers"):
        known = ", ".join(sorted(_SCHEDULERS))
        raise SpecError(f"Ray Tune's {type(theirs).__name__} is not supported; the supported ones are {known}", pointer)
    return make(theirs)


def _check_stops_last_trials(theirs: Any) -> None:
    if not theirs._stop_last_trials:
        message = "stop_last_trials=False is not supported: every trial ends at max_t"
        raise SpecError(message, "/scheduler/stop_last_trials")


def _asha(theirs: Any) -> Scheduler:
    rungs = theirs._brackets[0]._rungs  # highest rung first
    _check_stops_last_trials(theirs)
    return ASHAScheduler(
        theirs._max_t,
        rungs[-1][0] if rungs else theirs._max_t,
        theirs._reduction_factor,
        len(theirs._brackets),
        theirs._time_attr,
    )


def _hyperband(theirs: Any) -> Scheduler:
    _check_stops_last_trials(theirs)
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


def _pb2(theirs: Any) -> Scheduler:
    return PB2(
        theirs._perturbation_interval,
        theirs._hyperparam_bounds,
        theirs._quantile_fraction,
        theirs._custom_explore_fn,
        theirs._synch,
        time_attr=theirs._time_attr,
    )


_SCHEDULERS: dict[str, Callable[[Any], Scheduler]] = {
    "FIFOScheduler": lambda _: FIFOScheduler(),
    "AsyncHyperBandScheduler": _asha,
    "HyperBandScheduler": _hyperband,
    "HyperBandForBOHB": _hyperband,
    "MedianStoppingRule": _median,
    "PB2": _pb2,
    "PopulationBasedTraining": _pbt,
}

__all__ = ["UsersStopper", "objective_of", "scheduler_from_ray"]  # stored pickles look for UsersStopper here
