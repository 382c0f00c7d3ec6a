"""Schedulers and stoppers of `ray.tune`, read into ours, so that a script need change only its import of `tune`.

Only their attributes are read; Ray is not imported here. What has another meaning with us is refused with its reason.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.schedulers.asha import ASHAScheduler
from tuner.schedulers.base import Fact, Scheduler, Setting, TrialReported
from tuner.schedulers.fifo import FIFOScheduler
from tuner.schedulers.hyperband import HyperBandScheduler
from tuner.schedulers.median import MedianStoppingRule
from tuner.schedulers.pbt import PopulationBasedTraining
from tuner.schedulers.stoppers import (
    ITERATION,
    TIME,
    CombinedStopper,
    ExperimentPlateauStopper,
    FunctionStopper,
    MaximumIterationStopper,
    Stopper,
    TimeStopper,
    TrialPlateauStopper,
    next_report,
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
    """Our stopper with the options of a `ray.tune.stopper` object, or one that asks an object of the user's own class."""
    make = _STOPPERS.get(type(theirs).__name__)
    if type(theirs).__module__.startswith("ray.tune.stopper"):
        if make is None:
            raise SpecError(f"{type(theirs).__name__} of Ray Tune is not known here; pass a function instead", pointer)
        return make(theirs)
    return UsersStopper(theirs)


class UsersStopper(Stopper):
    """A `ray.tune.Stopper` that somebody wrote, asked as Ray asks it: once per report, and then whether all is over.

    What it remembers, it learns again after a restart: it is taken as it was handed over and told of the same reports in the same
    order. So it must depend on them alone.
    """

    TYPE = "ray"

    def __init__(self, stopper: Any) -> None:
        self._pristine = stopper
        self._name = type(stopper).__name__

    def to_json(self) -> dict[str, Any]:
        """SpecError: it is an object, which is pickled with the experiment's code."""
        raise SpecError(f"a {self._name} has no JSON form", "/stop")

    def __repr__(self) -> str:
        return f"UsersStopper({self._name})"

    def setup(self, setting: Setting) -> None:
        super().setup(setting)
        self._live = copy.deepcopy(self._pristine)
        self._ends: set[int] = set()
        self._all = False
        self._error: Exception | None = None

    def milestone(self, trial: Trial) -> float | None:
        return next_report(trial)

    def record(self, fact: Fact, trials: Population) -> None:
        if isinstance(fact, TrialReported):
            self._ask(trials[fact.trial])

    def record_without(self, trial: Trial) -> None:
        self._ask(trial)

    def _ask(self, trial: Trial) -> None:
        if self._error is not None:
            return
        try:
            if self._live(str(trial.number), {ITERATION: trial.iteration, TIME: trial.running_s, **trial.last}):
                self._ends.add(trial.number)
            self._all = bool(self._live.stop_all())
        except Exception as error:  # the user's code: said at the report
            self._error = error

    def decide(self, number: int, trials: Population) -> str | None:
        if self._error is not None:
            raise self._error
        return (
            f"completed at iteration {trials[number].iteration}: {self._name} says so" if number in self._ends else None
        )

    def finished(self, trials: Population) -> str | None:
        return f"{self._name} says that all is over" if self._all else None


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
