"""How much each parameter matters, by PED-ANOVA."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial, TrialState

from tuner.domain.experiment import Mode
from tuner.domain.trial import Trial
from tuner.search.optuna_samplers.study import direction, distribution, quiet, to_optuna
from tuner.space import Space

MIN_RECORDS = 10
"""With fewer results the shares would be noise, and none are given."""


def importance(space: Space, mode: Mode, records: Iterable[tuple[Mapping[str, Any], float]]) -> dict[str, float]:
    """Path -> share of the importance, all shares together 1; the most important first.

    Watanabe et al. 2023, and for conditional parameters Optuna's extension of it: how differently the best tenth of the
    results is distributed along each parameter than all of them are. `records` are (flat params, value); results that are
    not finite are left out. Empty where there are fewer than `MIN_RECORDS`; equal shares where nothing tells them apart.
    """
    finite = [(params, value) for params, value in records if math.isfinite(value)]
    if len(finite) < MIN_RECORDS or not len(space):
        return {}
    with quiet():
        study = optuna.create_study(direction=direction(mode))
        study.add_trials([_frozen(space, params, value) for params, value in finite])
        shares = PedAnovaImportanceEvaluator().evaluate(study)
    found = {p.path: max(shares.get(p.path, 0.0), 0.0) for p in space.parameters}
    total = sum(found.values())
    if not math.isfinite(total) or total <= 0:
        return {path: 1 / len(found) for path in found}
    return {path: share / total for path, share in sorted(found.items(), key=lambda item: -item[1])}


def records_of(trials: Iterable[Trial], scope: str = "all") -> Sequence[tuple[Mapping[str, Any], float]]:
    """What `importance` needs of ended trials: stopped ones count with the value they had got to."""
    found = []
    for trial in trials:
        value = trial.best_value if scope == "all" else trial.last_value
        if trial.state.ended and value is not None:
            found.append((trial.params, value))
    return found


def _frozen(space: Space, params: Mapping[str, Any], value: float) -> FrozenTrial:
    known = {path: v for path, v in params.items() if path in space}
    return optuna.trial.create_trial(
        state=TrialState.COMPLETE,
        value=value,
        params={path: to_optuna(space[path], v) for path, v in known.items()},
        distributions={path: distribution(space[path]) for path in known},
    )
