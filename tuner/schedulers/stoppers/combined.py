"""Combine several stoppers, and build stoppers from a user's argument or a spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.options import build, check_number, pick
from tuner.schedulers.base import Fact, SchedulerContext
from tuner.schedulers.stoppers.base import CallsFunction, Stopper
from tuner.schedulers.stoppers.from_ray import stopper_from_ray
from tuner.schedulers.stoppers.function import FunctionStopper
from tuner.schedulers.stoppers.limits import MaximumIterationStopper, ThresholdStopper, TimeStopper
from tuner.schedulers.stoppers.plateau import ExperimentPlateauStopper, TrialPlateauStopper
from tuner.schedulers.stoppers.worth import ExpectedImprovementStopper


class CombinedStopper(Stopper):
    """Ends a trial or the search as soon as one of several stoppers would end it."""

    TYPE = "combined"

    def __init__(self, stoppers: Sequence[Any]) -> None:
        if isinstance(stoppers, (str, Mapping)) or not isinstance(stoppers, Sequence) or not stoppers:
            raise SpecError(f"expected a list of stoppers, got {stoppers!r}", "/stoppers")
        made = [from_argument(one, f"/stoppers/{place}") for place, one in enumerate(stoppers)]
        self.stoppers = [one for one in made if one is not None]

    def setup(self, context: SchedulerContext) -> None:
        super().setup(context)
        for stopper in self.stoppers:
            stopper.setup(context)

    def metrics(self) -> frozenset[str]:
        return frozenset().union(*(stopper.metrics() for stopper in self.stoppers))

    def functions(self) -> list[CallsFunction]:
        return [one for stopper in self.stoppers for one in stopper.functions()]

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE, "stoppers": [stopper.to_json() for stopper in self.stoppers]}

    def milestone(self, trial: Trial) -> float | None:
        return min((at for s in self.stoppers if (at := s.milestone(trial)) is not None), default=None)

    def record(self, fact: Fact, trials: Population) -> None:
        for stopper in self.stoppers:
            stopper.record(fact, trials)

    def record_report_without(self, trial: Trial, metrics: Mapping[str, float], running_s: float) -> None:
        for stopper in self.stoppers:
            stopper.record_report_without(trial, metrics, running_s)

    def decide(self, number: int, trials: Population) -> str | None:
        return next((why for s in self.stoppers if (why := s.decide(number, trials))), None)

    def finished(self, trials: Population) -> str | None:
        return next((why for s in self.stoppers if (why := s.finished(trials))), None)


_TYPES: dict[str, type[Stopper]] = {
    stopper.TYPE: stopper
    for stopper in (
        MaximumIterationStopper,
        ThresholdStopper,
        TimeStopper,
        TrialPlateauStopper,
        ExperimentPlateauStopper,
        ExpectedImprovementStopper,
        FunctionStopper,
        CombinedStopper,
    )
}


def from_json(data: Mapping[str, Any] | None, pointer: str = "/stop") -> Stopper | None:
    """Return the stopper described by ``{"type": ..., ...}`` or ``{metric: value, ...}``, or None if `data` is empty.

    Raises:
        SpecError: a type or an option is unknown, or a value is wrong. The error's pointer begins with `pointer`.
    """
    if not data:
        return None
    if not isinstance(data, Mapping):
        raise SpecError(f'expected {{"type": ..., ...}} or {{metric: value, ...}}, got {data!r}', pointer)
    if "type" in data and isinstance(data["type"], str):
        return build(pick(data["type"], _TYPES, "stopper", pointer), data, pointer)
    for metric, value in data.items():
        try:
            check_number(metric, value)
        except SpecError as error:
            raise SpecError([(pointer + at, message) for at, message in error.errors]) from error
    return ThresholdStopper(data)


def from_argument(argument: Any, pointer: str = "/stop") -> Stopper | None:
    """Return the stopper for an argument that was passed in Python.

    `argument` may be a Stopper, a dict as for `from_json`, a function, a list of these, or one of Ray Tune's stoppers.
    None stays None.
    """
    if argument is None or isinstance(argument, Stopper):
        return argument
    if isinstance(argument, Mapping):
        return from_json(argument, pointer)
    if isinstance(argument, (list, tuple)):
        try:
            return CombinedStopper(argument) if argument else None
        except SpecError as error:
            raise SpecError([(pointer + at.removeprefix("/stoppers"), text) for at, text in error.errors]) from error
    if any(cls.__module__.startswith("ray.tune.stopper") for cls in type(argument).__mro__):
        return from_argument(stopper_from_ray(argument, pointer), pointer)
    if callable(argument):
        try:
            return FunctionStopper(argument)
        except SpecError as error:
            raise SpecError([(pointer + at, text) for at, text in error.errors]) from error
    raise SpecError(f"expected a stopper, a dict, a function or a list of these, got {argument!r}", pointer)
