"""An in-memory Optuna study that mirrors our trials. Our trials are the source of truth; the study can be rebuilt at any time.

A numeric parameter or an ordered choice is a float in the unit interval. An unordered choice is an index. A parameter's name in
Optuna is its path, so parameters of different branches have different names. Trials are added in the order of their numbers.
Running trials are RUNNING, and failed trials are FAIL. Stopped and paused trials are PRUNED, with the value that they have
reached; if they were COMPLETE, values from short and long training would be mixed. With several objectives, PRUNED trials have
no value.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler
from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from tuner.domain.experiment import Mode, Objective, is_finite
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.search.base import SearcherContext
from tuner.search.constraints import Constraint
from tuner.search.optuna_samplers.silence import quiet
from tuner.search.proposer import Cache
from tuner.search.warm_start import Record
from tuner.space import Parameter, Space

_SAME_TIME = datetime(2000, 1, 1)  # the time of every trial: no sampler reads times, and equal times make studies equal
_UNIT = FloatDistribution(0.0, 1.0)
DISTRIBUTIONS = "distributions"
"""With define-by-run, the key in a trial's state of the distributions for which its code has asked, by name, as JSON."""


def direction(mode: Mode) -> StudyDirection:
    return StudyDirection.MAXIMIZE if mode == "max" else StudyDirection.MINIMIZE


def distribution(parameter: Parameter) -> BaseDistribution:
    if by_index(parameter):
        return CategoricalDistribution(range(len(parameter.categories)))
    return _UNIT


def by_index(parameter: Parameter) -> bool:
    return parameter.kind == "choice" and not parameter.ordered


def to_optuna(parameter: Parameter, value: Any) -> Any:
    return parameter.index(value) if by_index(parameter) else parameter.unit(value)


def from_optuna(parameter: Parameter, value: Any) -> Any:
    return parameter.at(value) if by_index(parameter) else parameter.value(value)


def contains(distribution: BaseDistribution, value: Any) -> bool:
    """Return whether a distribution contains a value; False if the value is of another kind."""
    try:
        return distribution._contains(distribution.to_internal_repr(value))
    except (ValueError, TypeError):
        return False


class Mirrored(FrozenTrial):
    """A trial that reads its constraints from its attributes only once, not for every proposal."""

    @property
    def constraints(self) -> dict[str, float]:
        if "_picked" not in self.__dict__:
            self._picked = super().constraints
        return self._picked


class Matrix:
    """The params of all trials, for Optuna's models. It has a row per trial and a column per parameter; NaN means inactive."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._column = {path: i for i, path in enumerate(paths)}
        self._values = np.full((256, len(paths)), np.nan)

    def put(self, number: int, params: Mapping[str, Any]) -> None:
        if number >= len(self._values):
            self._values = np.concatenate([self._values, np.full_like(self._values, np.nan)])
        self._values[number] = np.nan
        for path, value in params.items():
            self._values[number, self._column[path]] = value

    def columns(self, numbers: Sequence[int], paths: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the columns of these parameters, for the trials in which all of them are active."""
        picked = self._values[np.asarray(numbers, int)][:, [self._column[path] for path in paths]]
        whole = picked[~np.isnan(picked).any(axis=1)]
        return {path: np.ascontiguousarray(whole[:, i]) for i, path in enumerate(paths)}


class Rows(InMemoryStorage):
    """An in-memory storage whose trials can be replaced and removed by number, without copying them."""

    def put(self, study: int, trial: FrozenTrial) -> None:
        trials = self._studies[study].trials
        if trial.number == len(trials):
            trials.append(trial)
            self._trial_id_to_study_id_and_number[trial._trial_id] = (study, trial.number)
            self._max_trial_id = trial._trial_id
        else:
            trials[trial.number] = trial

    def cut(self, study: int, length: int) -> None:
        """Remove all trials whose numbers are `length` or above."""
        trials = self._studies[study].trials
        for trial in trials[length:]:
            del self._trial_id_to_study_id_and_number[trial._trial_id]
        del trials[length:]
        self._max_trial_id = length - 1
        self._prev_waiting_trial_number[study] = min(self._prev_waiting_trial_number[study], length)

    def set_study_attrs(self, study: int, attrs: Mapping[str, Any]) -> None:
        self._studies[study].system_attrs = dict(attrs)

    def get_best_trial(self, study_id: int) -> FrozenTrial:
        done = [t for t in self._studies[study_id].trials if t.state is OptunaState.COMPLETE and t.values]
        if not done:
            raise ValueError("No trials are completed yet.")
        best = max if self.get_study_directions(study_id)[0] == StudyDirection.MAXIMIZE else min
        return best(done, key=lambda t: t.values[0])


class Mirror(Cache):
    """Keeps the study up to date. An update reads only new trials, and trials that had not ended at the last update."""

    def __init__(
        self,
        space: Space,
        objectives: Sequence[Objective],
        scope: str,
        constraints: Sequence[Constraint] = (),
        records: Sequence[Record] = (),
        attrs: Mapping[str, Any] | None = None,
        revised: SearcherContext | None = None,
    ) -> None:
        """Create an empty study for an experiment.

        Args:
            space: the search space.
            objectives: the objectives, at least one.
            scope: "all" if a trial's best value counts, "last" if its last value counts.
            constraints: bounds on reported metrics.
            records: results of earlier experiments. They have the lowest numbers, and our trials follow.
            attrs: attributes for trials that no sampler proposed in this space.
            revised: the searcher's context, if a user has changed the space. Trials whose configurations do not lie in the new
                space are FAIL, so that no sampler learns from them.
        """
        super().__init__()
        self._space = space
        self._objectives = objectives
        self._scope = scope
        self._constraints = constraints
        self._records = records
        self._attrs = dict(attrs or {})
        self._revised = revised
        self.distributions = {p.path: distribution(p) for p in space.parameters}

    def clear(self) -> None:
        self._rows = Rows()
        with quiet():
            directions = [direction(o.mode) for o in self._objectives]
            self.study = optuna.create_study(storage=self._rows, directions=directions)
        self._id = self.study._study_id
        self._next = 0
        self.matrix = Matrix(list(self.distributions))
        self._live: dict[int, Any] = {}  # number -> `_look` of the trial when it was last put
        for i, record in enumerate(self._records):
            self._add(self._frozen(i, OptunaState.COMPLETE, record.params, record.values, {}, self._attrs))

    def fold(self, trials: Population) -> None:
        for number, before in list(self._live.items()):
            now = _look(trials[number])
            if now != before:
                self._put(trials[number], now)
        while self._next in trials:
            trial = trials[self._next]
            for key, value in self._state(trial).get("study", {}).items():
                self._rows.set_study_system_attr(self._id, key, value)
            self._put(trial, _look(trial))
            self._next += 1

    def records(self, paths: Collection[str]) -> list[FrozenTrial]:
        """Return the results of earlier experiments as Optuna's trials. Leave out all parameters except `paths`."""
        return [
            self._frozen(i, OptunaState.COMPLETE, {p: r.params[p] for p in paths}, r.values, {}, {})
            for i, r in enumerate(self._records)
        ]

    def ask(self, sampler: BaseSampler) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the flat params of the next trial, and the state to store with it. The study does not change."""
        length = len(self._records) + self._next
        attrs = dict(self._rows.get_study_system_attrs(self._id))
        self.study.sampler = sampler
        try:
            with quiet():
                trial = self.study.ask()
                params: dict[str, Any] = {}
                chosen: dict[str, int] = {}
                for p in self._space.parameters:
                    if p.condition is None or chosen.get(p.condition[0]) == p.condition[1]:
                        params[p.path] = from_optuna(p, _suggest(trial, p))
                        if p.kind == "choice":
                            chosen[p.path] = p.index(params[p.path])
            kept = self._rows.get_trial(trial._trial_id).system_attrs
            now = self._rows.get_study_system_attrs(self._id)
        finally:
            self._rows.cut(self._id, length)
            self._rows.set_study_attrs(self._id, attrs)
        state = {
            "trial": {k: v for k, v in kept.items() if "relative_params" not in k},
            "study": {k: v for k, v in now.items() if k not in attrs or attrs[k] != v},
        }
        return params, {k: v for k, v in state.items() if v}

    def _put(self, trial: Trial, look: Any) -> None:
        if trial.state.ended:
            self._live.pop(trial.number, None)
        else:
            self._live[trial.number] = look
        state, values, steps = self._outcome(trial)
        inside = trial.params if self._revised is None else self._revised.params_of(trial)
        if inside is None:
            state, values, steps, inside = OptunaState.FAIL, None, {}, {}
        attrs = dict(self._state(trial).get("trial", self._attrs))
        if state in (OptunaState.COMPLETE, OptunaState.PRUNED):
            attrs |= {c.attr: c.excess(trial.last) for c in self._constraints}
        number = len(self._records) + trial.number
        params = {k: v for k, v in inside.items() if k in self._space}
        self._add(self._frozen(number, state, params, values, steps, attrs))

    def _state(self, trial: Trial) -> Mapping[str, Any]:
        """Return the state that the sampler has stored with a trial; an empty one if the state is for an earlier space."""
        return trial.searcher_state if self._revised is None else self._revised.state_of(trial)

    def _add(self, trial: FrozenTrial) -> None:
        self.matrix.put(trial.number, trial.params)
        self._rows.put(self._id, trial)

    def _outcome(self, trial: Trial) -> tuple[OptunaState, list[float] | None, dict[int, float]]:
        """Return the state of a trial, its final values, and its intermediate values by iteration."""
        match trial.state:
            case TrialState.PENDING | TrialState.RUNNING:
                return OptunaState.RUNNING, None, {}
            case TrialState.FAILED:
                return OptunaState.FAIL, None, {}
            case TrialState.COMPLETED:
                values = self._values(trial)
                return (OptunaState.COMPLETE, values, {}) if values else (OptunaState.FAIL, None, {})
            case TrialState.STOPPED | TrialState.PAUSED | TrialState.CANCELLED:
                values = self._values(trial)
                if values is None and trial.state is TrialState.CANCELLED:
                    return OptunaState.FAIL, None, {}
                single = values is not None and len(self._objectives) == 1
                return OptunaState.PRUNED, None, {trial.iteration: values[0]} if single and values else {}

    def _values(self, trial: Trial) -> list[float] | None:
        """Return the trial's best or last value, depending on the scope. With several objectives, return its last values."""
        if len(self._objectives) == 1:
            mark = trial.mark("all")  # the best report within the constraints, if there is one
            value = trial.last_value if self._scope == "last" else None if mark is None else mark.value
            return [value] if value is not None and math.isfinite(value) else None
        values = [trial.last.get(o.metric) for o in self._objectives]
        return [v for v in values if v is not None] if all(is_finite(v) for v in values) else None

    def _frozen(
        self,
        number: int,
        state: OptunaState,
        params: Mapping[str, Any],
        values: Sequence[float] | None,
        steps: dict[int, float],
        attrs: dict[str, Any],
    ) -> FrozenTrial:
        return Mirrored(
            trial_id=number,
            number=number,
            state=state,
            value=None,
            values=values,
            datetime_start=_SAME_TIME,
            datetime_complete=_SAME_TIME if state.is_finished() else None,
            params={path: to_optuna(self._space[path], value) for path, value in params.items()},
            distributions={path: self.distributions[path] for path in params},
            user_attrs={},
            system_attrs=attrs,
            intermediate_values=steps,
        )


def _look(trial: Trial) -> Any:
    """Return a value that changes whenever the mirror of this trial has to be updated."""
    return trial.state, trial.iteration, trial.reports, trial.best_value, trial.last_value, dict(trial.params)


def _suggest(trial: optuna.Trial, parameter: Parameter) -> Any:
    if by_index(parameter):
        return trial.suggest_categorical(parameter.path, range(len(parameter.categories)))
    return trial.suggest_float(parameter.path, 0.0, 1.0)
