"""Convert stoppers of `ray.tune` to ours, without importing Ray."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.schedulers.base import Fact, SchedulerContext, TrialEnded, TrialReported
from tuner.schedulers.stoppers.base import ITERATION, TIME, Stopper, next_report
from tuner.schedulers.stoppers.function import FunctionStopper
from tuner.schedulers.stoppers.limits import MaximumIterationStopper, TimeStopper
from tuner.schedulers.stoppers.plateau import ExperimentPlateauStopper, TrialPlateauStopper


def stopper_from_ray(theirs: Any, pointer: str = "/stop") -> Stopper | list[Any] | None:
    """Return a stopper with the options of a `ray.tune.stopper` object.

    A combined stopper becomes the list of its parts. A stopper whose class the user wrote is wrapped in a `UsersStopper`.
    """
    make = _STOPPERS.get(type(theirs).__name__)
    if type(theirs).__module__.startswith("ray.tune.stopper"):
        if make is None:
            raise SpecError(f"Ray Tune's {type(theirs).__name__} is not supported; pass a function instead", pointer)
        return make(theirs)
    return UsersStopper(theirs)


class UsersStopper(Stopper):
    """Calls a user's own subclass of `ray.tune.Stopper` as Ray does: once per report, then `stop_all`.

    After a restart, a fresh copy of the user's object gets the same reports in the same order, so its answers must
    depend on the reports alone. As in Ray, the result also has the trial's id and its configuration; see `_config`.
    """

    TYPE = "ray"

    def __init__(self, stopper: Any) -> None:
        self._pristine = stopper
        self._name = type(stopper).__name__

    def to_json(self) -> dict[str, Any]:
        """Raise SpecError, because the object has no JSON form. It is pickled with the experiment's code instead."""
        raise SpecError(f"a {self._name} has no JSON form", "/stop")

    def __repr__(self) -> str:
        return f"UsersStopper({self._name})"

    def setup(self, context: SchedulerContext) -> None:
        super().setup(context)
        self._live = copy.deepcopy(self._pristine)
        self._ends: set[int] = set()
        self._all = False
        self._error: Exception | None = None
        # the parameters and the configuration of each trial that has reported and not ended
        self._configs: dict[int, tuple[Mapping[str, Any], dict[str, Any]]] = {}

    def milestone(self, trial: Trial) -> float | None:
        return next_report(trial)

    def record(self, fact: Fact, trials: Population) -> None:
        if isinstance(fact, TrialReported):
            self._ask(trials[fact.trial])
        elif isinstance(fact, TrialEnded):
            self._configs.pop(fact.trial, None)

    def record_without(self, trial: Trial) -> None:
        self._ask(trial)

    def _ask(self, trial: Trial) -> None:
        if self._error is not None:
            return
        try:
            if self._live(str(trial.number), self._result(trial)):
                self._ends.add(trial.number)
            self._all = bool(self._live.stop_all())
        except Exception as error:  # an error in the user's code, which `decide` raises again
            self._error = error

    def _result(self, trial: Trial) -> dict[str, Any]:
        """Return the trial's metrics, its id and its configuration."""
        own = {
            "config": self._config(trial),
            "trial_id": str(trial.number),
            ITERATION: trial.iteration,
            TIME: trial.running_s,
        }
        return {**own, **trial.last}

    def _config(self, trial: Trial) -> dict[str, Any]:
        """Return the trial's configuration, with None in place of the values of `sample_from`.

        All reports get the same object until the parameters change, since large constants take long to copy. If a user has
        changed the space since the trial was proposed, the configuration is flat and has no constants.
        """
        params, config = self._configs.get(trial.number, (None, {}))
        if params is not trial.params:
            try:
                config = self.context.space.config_without_functions(trial.params)
            except SpecError:
                config = dict(trial.params)
            self._configs[trial.number] = trial.params, config
        return config

    def decide(self, number: int, trials: Population) -> str | None:
        if self._error is not None:
            raise self._error
        if number not in self._ends:
            return None
        return f"completed at iteration {trials[number].iteration}: the stopper {self._name} returned true"

    def finished(self, trials: Population) -> str | None:
        return f"stop_all of the stopper {self._name} returned true" if self._all else None


_STOPPERS: dict[str, Callable[[Any], Stopper | list[Any] | None]] = {
    "NoopStopper": lambda s: None,
    "MaximumIterationStopper": lambda s: MaximumIterationStopper(s._max_iter),
    "TimeoutStopper": lambda s: TimeStopper(s._timeout_seconds),
    "FunctionStopper": lambda s: FunctionStopper(s._fn),
    "CombinedStopper": lambda s: list(s._stoppers),
    "TrialPlateauStopper": lambda s: TrialPlateauStopper(
        s._metric, s._std, s._num_results, s._grace_period, s._metric_threshold, s._mode
    ),
    "ExperimentPlateauStopper": lambda s: ExperimentPlateauStopper(s._metric, s._std, s._top, s._mode, s._patience),
}
