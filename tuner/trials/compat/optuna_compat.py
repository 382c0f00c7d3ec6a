"""Run Optuna objectives as training functions. `objective(trial)` runs unchanged, on one rank or several.

The driver chooses the values of `trial.suggest_*`, which are the same on every rank. `trial.report` makes a report,
`should_prune` returns True if the scheduler stopped the trial early at that report, and the objective's return value is the
last report.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    check_distribution_compatibility,
    distribution_to_json,
)
from optuna.study import StudyDirection

from tuner.errors import EntrypointError, OutsideTrial, TunerError, WrongArgument
from tuner.names import name_of
from tuner.trials.checkpoints.checkpoints import Source
from tuner.trials.compat.on_import import on_import
from tuner.trials.training import driver_calls, session
from tuner.trials.training.session import LeaveTrial, Session


@dataclass(frozen=True)
class Objective:
    """An Optuna objective as a training function. The parameters of the search space, if there is one, are in the configuration.

    metrics: the names under which the objective's values are reported, in order.
    """

    function: Callable[..., Any]
    metrics: tuple[str, ...] = ()

    @property
    def __name__(self) -> str:
        return name_of(self.function)

    @property
    def inner(self) -> Callable[..., Any]:
        return self.function

    def __call__(self, config: Mapping[str, Any]) -> None:
        here = session.current()
        if here is None:
            raise OutsideTrial(f"{self.__name__} works only inside a trial: pass it to tuner.run")
        trial = Trial(here, config, self.metrics)
        cancel = on_import(DISTRIBUTED, _one_for_all_ranks)
        try:
            result = self.function(trial)
        except optuna.TrialPruned as pruned:
            trial.leave_if_told()
            if here.context.world_rank == 0:
                driver_calls.here().end(
                    f"because the objective raised TrialPruned{f': {pruned}' if str(pruned) else ''}"
                )
            return
        finally:
            cancel()
        trial.leave_if_told()
        here.report_last(dict(zip(self.metrics, self._values(result), strict=True)))

    def _values(self, result: Any) -> list[float]:
        values = list(result) if isinstance(result, Sequence) and not isinstance(result, str) else [result]
        if len(values) != len(self.metrics):
            raise WrongArgument(
                f"{self.__name__} returned {len(values)} value{'s' * (len(values) != 1)} for the {len(self.metrics)} "
                f"objective{'s' * (len(self.metrics) != 1)} {', '.join(self.metrics)}"
            )
        try:
            return [float(value) for value in values]
        except (TypeError, ValueError):
            raise WrongArgument(f"{self.__name__} returned {result!r}, which is not a number") from None


DISTRIBUTED = "optuna_integration.pytorch_distributed.pytorch_distributed"


def _one_for_all_ranks() -> None:
    """Make `TorchDistributedTrial(trial)` return `tuner`'s own trial unchanged, because it already works on all ranks."""
    wrapper: Any = sys.modules[DISTRIBUTED].TorchDistributedTrial

    def new(cls: Any, trial: Any = None, *args: Any, **kwargs: Any) -> Any:
        return trial if isinstance(trial, Trial) else object.__new__(cls)

    wrapper.__new__ = new


class _Attributes:
    """Replaces Optuna's storage. Attributes that Optuna's helpers set are stored with `tuner`'s own trial."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._kept: dict[str, Any] = {}

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._kept[key] = value
        self._trial.note(key, value)

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, Any]:
        return dict(self._kept)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no Optuna storage here, so there is no {name}: tuner.run stores the trials")


class _Study:
    """Replaces Optuna's study. It has only its directions, which callbacks such as `LightGBMPruningCallback` compare."""

    def __init__(self, directions: list[StudyDirection]) -> None:
        self.directions = directions

    @property
    def direction(self) -> StudyDirection:
        if len(self.directions) > 1:
            raise RuntimeError("there are several objectives, each with a direction of its own: use directions")
        return self.directions[0]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{NO_STUDY}, so it has no {name}; it has only direction and directions")


NO_STUDY = "there is no optuna.Study here: the trials are in the experiment's database (see tuner.Result)"


class Trial(optuna.trial.Trial):
    """The trial that is passed to an Optuna objective. It derives from Optuna's class only to pass isinstance checks."""

    def __init__(self, here: Session, config: Mapping[str, Any], metrics: tuple[str, ...]) -> None:
        self._trial_id = here.context.trial_number
        self.storage: Any = _Attributes(self)
        self._session, self._config, self._metrics = here, config, metrics
        self._params: dict[str, Any] = {}
        self._distributions: dict[str, BaseDistribution] = {}
        self._attrs: dict[str, Any] = {}
        self._constraints: dict[str, float] = {}
        self._steps: set[int] = set()
        self._told: LeaveTrial | None = None
        self._started = datetime.datetime.now()

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        return float(self._suggest(name, FloatDistribution(low, high, log=log, step=step)))

    def suggest_uniform(self, name: str, low: float, high: float) -> float:
        return self.suggest_float(name, low, high)

    def suggest_loguniform(self, name: str, low: float, high: float) -> float:
        return self.suggest_float(name, low, high, log=True)

    def suggest_discrete_uniform(self, name: str, low: float, high: float, q: float) -> float:
        return self.suggest_float(name, low, high, step=q)

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        return int(self._suggest(name, IntDistribution(low, high, log=log, step=step)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        for choice in choices:
            if choice is not None and not isinstance(choice, bool | int | float | str):
                raise EntrypointError(
                    f"the choice {choice!r} of {name} cannot be stored: use names, numbers or indices as choices instead"
                )
        return self._suggest(name, CategoricalDistribution(tuple(choices)))

    def _suggest(self, name: str, distribution: BaseDistribution) -> Any:
        if name in self._distributions:
            check_distribution_compatibility(self._distributions[name], distribution)
            return self._params[name]
        value = self._config.get(name)
        if name not in self._config or isinstance(value, Mapping):
            value = driver_calls.here().draw(name, distribution_to_json(distribution))
        elif not distribution._contains(distribution.to_internal_repr(value)):
            raise WrongArgument(f"{name} is {value!r} in this trial, which is outside {distribution}")
        self._distributions[name], self._params[name] = distribution, value
        return value

    def report(self, value: float, step: int, checkpoint: Source | None = None) -> None:
        """Report the objective's value at a step.

        After this call, `should_prune` returns True if the scheduler has stopped the trial early, and False if the
        trial continues or has completed, for example because it has reached max_t. If the trial must stop, the next
        report ends the objective. `checkpoint` has the same meaning as in `tuner.report`; Optuna's own method does not
        have this argument.
        """
        if len(self._metrics) > 1:
            raise NotImplementedError("Trial.report is not supported for multi-objective optimization.")
        self.leave_if_told()
        if step in self._steps:
            return
        self._steps.add(step)
        try:
            self._session.report({self._metrics[0]: float(value)}, step=int(step), checkpoint=checkpoint)
        except LeaveTrial as leave:
            if leave.verdict.action != "stop":
                raise
            self._told = leave

    def should_prune(self) -> bool:
        if len(self._metrics) > 1:
            raise NotImplementedError("Trial.should_prune is not supported for multi-objective optimization.")
        return self._told is not None and not self._told.verdict.completed

    def leave_if_told(self) -> None:
        if self._told is not None:
            raise self._told

    def set_user_attr(self, key: str, value: Any) -> None:
        self._attrs[key] = value
        self.note(key, value)

    def note(self, key: str, value: Any) -> None:
        """Store a value in the `notes` of the trial's result. Raise TypeError if the value cannot be expressed as JSON."""
        if self._session.context.world_rank == 0:
            driver_calls.here().note({key: _as_json(key, value)})

    def set_constraint(self, key: str, value: float) -> None:
        self._constraints[key] = float(value)
        self.set_user_attr(f"constraint/{key}", float(value))

    @property
    def params(self) -> dict[str, Any]:
        return dict(self._params)

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        return dict(self._distributions)

    @property
    def user_attrs(self) -> dict[str, Any]:
        return dict(self._attrs)

    @property
    def constraints(self) -> dict[str, float]:
        return dict(self._constraints)

    @property
    def datetime_start(self) -> datetime.datetime | None:
        return self._started

    @property
    def number(self) -> int:
        return self._session.context.trial_number

    @property
    def study(self) -> Any:  # type: ignore[override]
        if not self._session.modes:
            raise TunerError(NO_STUDY)
        directions = {"min": StudyDirection.MINIMIZE, "max": StudyDirection.MAXIMIZE}
        return _Study([directions[mode] for mode in self._session.modes])


def _as_json(key: str, value: Any) -> Any:
    """Return a value as JSON. NaN and infinities, which JSON does not have, become the words nan, inf and -inf."""
    try:
        return json.loads(json.dumps(value, default=_listed), parse_constant=lambda name: str(float(name)))
    except (TypeError, ValueError):
        raise WrongArgument(f"the user attribute {key!r} must be JSON, not {value!r}") from None


def _listed(value: Any) -> Any:
    """Convert arrays, tensors and NumPy scalars to lists and plain numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")
