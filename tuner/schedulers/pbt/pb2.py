"""PB2, population based bandits: population based training in which a bandit chooses new configurations.

Parker-Holder, Nguyen and Roberts, "Provably Efficient Online Hyperparameter Optimization with Population-Based Bandits",
NeurIPS 2020, https://arxiv.org/abs/2002.02518.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from tuner.domain.decisions import Exploit
from tuner.domain.keys import keyed_seed
from tuner.domain.trial import Population
from tuner.errors import SpecError
from tuner.options import check_number
from tuner.schedulers.base import Fact, Fitted, SchedulerContext, TrialEnded, TrialReported
from tuner.schedulers.pbt import bandit
from tuner.schedulers.pbt.bandit import Bandit, Floats, Observations
from tuner.schedulers.pbt.explore import missing, path_of
from tuner.schedulers.pbt.scheduler import PbtState, PopulationBasedTraining
from tuner.schedulers.shared.blas import one_thread
from tuner.space import Parameter

MOST_ROWS = 200  # the bandit learns from at most this many of the newest observations
REFIT_GROWTH = 1.2  # the bandit is refitted when the number of observations has grown by this factor
AT = "hyperparam_bounds"


@dataclass(frozen=True, slots=True)
class Begin:
    """The beginning of a member's interval: the time, the score, and the configuration during the interval."""

    t: float
    score: float
    params: dict[str, Any]


@dataclass(slots=True)
class Pb2State(PbtState):
    # trial -> the beginning of its current interval, if that is known
    begins: dict[int, Begin] = field(default_factory=dict)
    explored: dict[int, None] = field(default_factory=dict)  # trials whose newest exploit has no result yet
    # intervals, and the rise of the score per unit of time
    rows: list[tuple[Begin, float]] = field(default_factory=list)
    count: int = 0  # the number of all intervals; `rows` contains the newest intervals
    theta: list[float] = field(default_factory=list)  # the parameters of the bandit
    fitted_at: int = 0  # `count` at the last fit


class PB2(PopulationBasedTraining):
    """Population based training that chooses numbers with a bandit instead of at random.

    A member of the bottom quantile takes over the checkpoint and the configuration of a member of the top quantile, as in
    `PopulationBasedTraining`. Its numbers then get the values at which the score may rise most in the next interval.
    These values maximize the upper confidence bound of a Gaussian process, which models how much each configuration has
    raised the score so far, whatever the constraints. Choices stay as they are.

    Args:
        perturbation_interval: how long a member trains between two decisions about it, in units of time_attr. The
            default is 5; Ray Tune's default is 60 (seconds).
        hyperparam_bounds: {parameter: [lower, upper]}, as in Ray Tune. None: every number of the space, within its
            bounds. The bandit sees a parameter on the scale on which it is drawn, for instance a logarithmic one.
        quantile_fraction: the size of the top and the bottom quantile, as a share of the population; at most one half.
        custom_explore_fn: takes the new flat params ("optimizer/lr" -> value) and returns changed ones.
        synch: True to make every member wait at the end of each interval until all have reached it.
        require_attrs: must be True, because a trial that never reports the objective fails.
        time_attr: must equal the experiment's time_attr. None: the experiment's.
    """

    TYPE = "pb2"
    REVISES: ClassVar[bool] = False

    def __init__(
        self,
        perturbation_interval: float = 5,
        hyperparam_bounds: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | str | None = None,
        synch: bool = False,
        require_attrs: bool = True,
        time_attr: str | None = None,
    ) -> None:
        super().__init__(
            perturbation_interval,
            quantile_fraction=quantile_fraction,
            resample_probability=0,
            custom_explore_fn=custom_explore_fn,
            synch=synch,
            require_attrs=require_attrs,
            time_attr=time_attr,
        )
        self.hyperparam_bounds = None if hyperparam_bounds is None else dict(_flat(hyperparam_bounds))
        self.state = Pb2State()

    def setup(self, context: SchedulerContext) -> None:
        super().setup(context)
        space = context.space
        known = [p.path for p in space.parameters if p.kind != "choice"]
        given = {}
        for name, bounds in (self.hyperparam_bounds or {}).items():
            path = path_of(space, name)
            if path not in known:
                is_choice = "a choice, and the bandit changes only numbers"
                raise SpecError(is_choice if path in space else missing(space, path, known), f"/scheduler/{AT}/{name}")
            outside = [value for value in bounds if _beyond(space[path], value)]
            if outside:
                raise SpecError(f"{outside[0]!r} is outside the parameter's domain", f"/scheduler/{AT}/{name}")
            given[path] = bounds
        self._numbers = [path for path in known if self.hyperparam_bounds is None or path in given]
        if not self._numbers:
            raise SpecError("pb2 changes numbers, and this space has none: use pbt", "/scheduler/type")
        self._low, self._high = np.zeros(len(self._numbers)), np.ones(len(self._numbers))
        for column, path in enumerate(self._numbers):
            if path in given:
                low, high = given[path]
                self._low[column], self._high[column] = space[path].unit(low), space[path].unit(high)

    def to_json(self) -> dict[str, Any]:
        whole = super().to_json()
        kept = ("type", "perturbation_interval", "quantile_fraction", "custom_explore_fn", "synch", "time_attr")
        return {**{name: whole[name] for name in kept}, AT: self.hyperparam_bounds}

    # -- facts -----------------------------------------------------------------------------------------------------------

    def record(self, fact: Fact, trials: Population) -> None:
        state: Pb2State = self.state
        super().record(fact, trials)
        match fact:
            case TrialReported(trial=number) if state.newest == number:
                params = dict(trials[number].params)
                before = state.begins.get(number)
                if before is not None and fact.t > before.t:
                    state.rows = [*state.rows, (before, (fact.score - before.score) / (fact.t - before.t))][-MOST_ROWS:]
                    state.count += 1
                state.begins[number] = Begin(fact.t, fact.score, params)
                state.explored.pop(number, None)
            case TrialEnded(trial=number):
                state.begins.pop(number, None)
                state.explored.pop(number, None)
            case Fitted(payload=payload):
                state.theta = [float(v) for v in payload["theta"]]
                state.fitted_at = int(payload["count"])

    def _take_over(self, decision: Exploit, trials: Population) -> None:
        super()._take_over(decision, trials)
        state: Pb2State = self.state
        t = state.due[decision.trial] - self.perturbation_interval
        state.explored[decision.trial] = None
        state.begins.pop(decision.trial, None)
        if decision.donor in state.begins:
            state.begins[decision.trial] = Begin(t, state.begins[decision.donor].score, dict(decision.params))

    # -- the bandit --------------------------------------------------------------------------------------------------------

    def _explored(
        self, trial: int, donor: int, trials: Population, rng: random.Random
    ) -> tuple[dict[str, Any], dict[str, str]]:
        params = dict(trials[donor].params)
        chosen = self._chosen(trial, donor, params)
        for path, unit in zip(self._numbers, self._low + (self._high - self._low) * chosen, strict=True):
            if path in params:
                params[path] = self.context.space[path].value(float(unit))
        return self._explore.settled(trials[donor].params, params, dict.fromkeys(self._numbers, "bandit"), rng)

    def _chosen(self, trial: int, donor: int, params: Mapping[str, Any]) -> Floats:
        """Return the numbers of the new configuration, each scaled to [0, 1] within its bounds."""
        state: Pb2State = self.state
        generator = np.random.default_rng(keyed_seed(self.context.seed, "bandit", trial, len(state.moves[trial])))
        begin = state.begins.get(donor)
        if not state.rows or begin is None:
            return generator.random(len(self._numbers))
        raw, rises = self._raw([row[0] for row in state.rows]), np.array([row[1] for row in state.rows])
        fixed = bandit.scaled(np.array([[begin.t, begin.score]]), raw[:, : bandit.FIXED])[0]
        others = [n for n in state.explored if n != trial and n in state.begins]
        pending = self._raw([state.begins[n] for n in others])
        pending[:, : bandit.FIXED] = bandit.scaled(pending[:, : bandit.FIXED], raw[:, : bandit.FIXED])
        with one_thread():
            found = Bandit(self._theta(), Observations.of(raw, rises), pending)
            return found.best(fixed, len(self._numbers), generator)

    def _raw(self, begins: Sequence[Begin]) -> Floats:
        """Return the time, the score and the configuration of each interval (n, 2 + p), with 1/2 for a missing number."""
        out = np.empty((len(begins), bandit.FIXED + len(self._numbers)))
        for row, begin in enumerate(begins):
            units = [
                self.context.space[path].unit(begin.params[path]) if path in begin.params else np.nan
                for path in self._numbers
            ]
            shares = (np.array(units) - self._low) / np.maximum(self._high - self._low, 1e-12)
            out[row] = [begin.t, begin.score, *np.nan_to_num(shares, nan=0.5)]
        return out

    def _theta(self) -> list[float]:
        return self.state.theta or [float(v) for v in np.log(bandit.START)]

    def fit_request(self, trials: Population) -> Mapping[str, Any] | None:
        state: Pb2State = self.state
        if state.count < REFIT_GROWTH * state.fitted_at + 4:
            return None
        seen = Observations.of(self._raw([row[0] for row in state.rows]), np.array([row[1] for row in state.rows]))
        return {"x": seen.x.tolist(), "y": seen.y.tolist(), "count": state.count}

    @staticmethod
    def fit(payload: Mapping[str, Any]) -> Mapping[str, Any]:
        with one_thread():
            theta = bandit.fit(np.array(payload["x"]), np.array(payload["y"]))
        return {"theta": theta, "count": payload["count"]}


def _flat(given: Mapping[str, Any], prefix: str = "") -> list[tuple[str, list[float]]]:
    """Return (path, [lower, upper]) from a dict that may be nested."""
    if not isinstance(given, Mapping):
        raise SpecError(f"expected an object: parameter -> [lower, upper], got {given!r}", f"/{AT}")
    found = []
    for key, value in given.items():
        path = f"{prefix}/{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            found += _flat(value, path)
            continue
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            raise SpecError(f"expected [lower, upper], got {value!r}", f"/{AT}/{path}")
        for place, number in enumerate(value):
            check_number(f"{AT}/{path}/{place}", number)
        if value[0] >= value[1]:
            raise SpecError(f"expected lower < upper, got {list(value)}", f"/{AT}/{path}")
        found.append((path, list(value)))
    return found


def _beyond(parameter: Parameter, value: float) -> bool:
    return parameter.kind != "normal" and not parameter.lower <= value <= parameter.upper
