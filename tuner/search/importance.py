"""The importance of each parameter, by PED-ANOVA."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, json_to_distribution
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial

from tuner.domain.experiment import Mode
from tuner.domain.states import TrialState
from tuner.search.optuna_samplers.silence import quiet
from tuner.search.optuna_samplers.study import DISTRIBUTIONS, contains, direction, distribution, to_optuna
from tuner.space import Space

MIN_RECORDS = 10
"""The minimum number of results. With fewer results, the shares would be noise."""

TOP_SHARE, TOP_RECORDS = 0.1, 5
"""The share of the best results that are compared with all results, and their minimum number, as Optuna documents it."""


def importance(
    space: Space,
    mode: Mode,
    records: Iterable[tuple[Mapping[str, Any], float]],
    drawn: Mapping[str, BaseDistribution] = MappingProxyType({}),
) -> dict[str, float]:
    """Return a dict from path to share of the importance, the most important first. The shares add up to 1.

    The method is PED-ANOVA (Watanabe, Bansal and Hutter, IJCAI 2023, https://arxiv.org/abs/2304.10255). For each parameter, it
    measures how much the distribution of the best tenth of the results (at least five) differs from that of all results.
    Conditional parameters are treated as in Optuna.

    Args:
        space: the search space.
        mode: "min" or "max".
        records: (flat params, value) of each result. A result is left out if its value is not finite, or if a param lies
            outside its domain in the space, which a user may have changed.
        drawn: the distributions of the parameters for which the training code has asked while it ran; see `drawn_of`.

    Returns:
        path -> share; {} if there are fewer than `MIN_RECORDS` results. The shares are equal if the results do not distinguish
        the parameters.
    """
    drawn = {name: each for name, each in drawn.items() if name not in space}
    finite = [(params, value) for params, value in records if math.isfinite(value) and _lies_in(space, params, drawn)]
    if len(finite) < MIN_RECORDS or not (len(space) or drawn):
        return {}
    with quiet():
        study = optuna.create_study(direction=direction(mode))
        study.add_trials([_frozen(space, params, value, drawn) for params, value in finite])
        top = max(TOP_SHARE, TOP_RECORDS / len(finite))
        shares = PedAnovaImportanceEvaluator(target_quantile=top).evaluate(study)
    found = {name: max(shares.get(name, 0.0), 0.0) for name in (*(p.path for p in space.parameters), *drawn)}
    total = sum(found.values())
    if not math.isfinite(total) or total <= 0:
        return {path: 1 / len(found) for path in found}
    return {path: share / total for path, share in sorted(found.items(), key=lambda item: -item[1])}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The value of a trial that has ended.

    repeat_of: the number of the trial whose configuration it evaluated again; None if it is not a repeat.
    runs: the number of values of which `value` is the mean.
    """

    number: int
    repeat_of: int | None
    state: TrialState
    params: Mapping[str, Any]
    value: float
    runs: int = 1


def merged(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Merge each trial with its repeats into one outcome whose value is the mean of theirs.

    Only leading configurations are repeated. If each repeat counted, the parameters of these configurations would seem to
    matter more than they do. Repeats that have not completed are left out, and so are the repeats of trials that have no
    outcome.
    """
    found = list(outcomes)
    runs: dict[int, list[float]] = {one.number: [one.value] for one in found if one.repeat_of is None}
    for one in found:
        if one.repeat_of in runs and one.state is TrialState.COMPLETED and math.isfinite(one.value):
            runs[one.repeat_of].append(one.value)
    return [
        replace(one, value=math.fsum(runs[one.number]) / len(runs[one.number]), runs=len(runs[one.number]))
        for one in found
        if one.repeat_of is None
    ]


def drawn_of(states: Iterable[Mapping[str, Any]]) -> dict[str, BaseDistribution]:
    """Return the distribution of each parameter for which the training code has asked while it ran.

    If its bounds differed from trial to trial, the distribution has the lowest and the highest one.

    Args:
        states: the searcher's state in the last `Drawn` event of each trial.
    """
    texts: dict[str, dict[str, None]] = {}
    for state in states:
        for name, text in state.get(DISTRIBUTIONS, {}).items():
            texts.setdefault(name, {})[text] = None
    return {name: _union([json_to_distribution(text) for text in each]) for name, each in texts.items()}


def _union(distributions: Sequence[BaseDistribution]) -> BaseDistribution:
    """Return a distribution with the values of all these. They are of the same kind, because the searcher refuses others."""
    first: Any = distributions[0]
    if len(distributions) == 1 or isinstance(first, CategoricalDistribution):
        return distributions[0]
    bounds: list[Any] = list(distributions)
    low, high = min(one.low for one in bounds), max(one.high for one in bounds)
    return type(first)(low, high, log=first.log)  # type: ignore[no-any-return]


def _lies_in(space: Space, params: Mapping[str, Any], drawn: Mapping[str, BaseDistribution]) -> bool:
    return all(
        space[name].contains(value) if name in space else name not in drawn or contains(drawn[name], value)
        for name, value in params.items()
    )


def _frozen(
    space: Space, params: Mapping[str, Any], value: float, drawn: Mapping[str, BaseDistribution]
) -> FrozenTrial:
    known = {path: v for path, v in params.items() if path in space}
    asked = {name: v for name, v in params.items() if name in drawn}
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState.COMPLETE,
        value=value,
        params={path: to_optuna(space[path], v) for path, v in known.items()} | asked,
        distributions={path: distribution(space[path]) for path in known} | {name: drawn[name] for name in asked},
    )
