"""Show what an experiment would do before it starts, and the importance of its parameters afterwards."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.domain.events import DriverStarted
from tuner.domain.experiment import Spec
from tuner.domain.states import TrialState
from tuner.driver.assemble import assemble
from tuner.driver.core import Core
from tuner.driver.core.actions import Ask, suggested
from tuner.errors import SpecError
from tuner.experiment.analysis.reach import reached
from tuner.space import Space
from tuner.space.revisions import Revisions
from tuner.store import ExperimentRecord, Store

MAX_KEPT = 200  # the maximum number of results that the cache of importances keeps


@dataclass(frozen=True, slots=True)
class Preview:
    """The effects that creating an experiment would have.

    method: the search method in a few words, as `Spec.method` has it.
    scheduler, search: "auto" resolved, with defaults and inherited options filled in.
    notes: why this scheduler and search were chosen.
    num_samples: the number of trials that would be started; None if only the time budget ends the search.
    gpu_hours_at_most: the GPU hours if every trial trains to max_t, or the GPU hours that the limits allow, whichever is less;
        None if unknown.
    reached: (iteration, number of trials that will probably be trained to at least this iteration); None if unknown.
    expected_gpu_hours: the GPU hours of the trainings in `reached`, or `gpu_hours_at_most` if that is less; None if
        unknown.
    configurations: (flat params, nested config) of the trials that start before any result is known.
    """

    spec: Spec
    method: str
    scheduler: Mapping[str, Any]
    search: Mapping[str, Any]
    notes: tuple[str, ...]
    num_samples: int | None
    max_t: int | None
    gpu_hours_at_most: float | None
    reached: Sequence[tuple[int, int]] | None
    expected_gpu_hours: float | None
    configurations: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...]


def preview(spec: Spec, configurations: int, seconds_per_iteration: float | None = None) -> Preview:
    """Assemble the experiment as a driver would, and return the trials that it would start before any report.

    seconds_per_iteration: the seconds that one unit of time_attr takes, from which the GPU hours are estimated.
    """
    space = Space.from_json(spec.space)
    core = assemble(spec, space)
    total = core.spec.num_samples if core.scheduler.PROPOSES else core.searcher.total()
    at_most = _gpu_hours_at_most(core.spec, total, seconds_per_iteration)
    levels = reached(core.spec, core.scheduler.resolved(), total)
    scheduler, search = core.scheduler.resolved(), core.searcher.to_json()
    resolved = {"scheduler": scheduler, "search": None if core.scheduler.PROPOSES else search}
    return Preview(
        spec=core.spec,
        method=replace(spec, resolved=resolved).method,
        scheduler=scheduler,
        search=search,
        notes=tuple(core.notes),
        num_samples=total,
        max_t=core.spec.max_t,
        gpu_hours_at_most=at_most,
        reached=levels,
        expected_gpu_hours=_expected_gpu_hours(core.spec, levels, seconds_per_iteration, at_most),
        configurations=tuple(
            (trial.params, space.config(trial.params, spec.seed, trial.number))
            for trial in (_started(core, configurations) if configurations else ())
        ),
    )


def _gpu_hours_at_most(spec: Spec, trials: int | None, seconds: float | None) -> float | None:
    """Return the lowest known bound on the GPU hours: from full trainings, the budget, the time limit, or `gpu_hours`.

    Elastic trials are assumed always to have their maximum number of workers.
    """
    scaling, limits = spec.scaling, spec.limits
    gpus = scaling.bundle().get("GPU", 0.0) * scaling.most_workers
    bounds = [] if limits.gpu_hours is None else [limits.gpu_hours]
    per_trial = spec.max_t * seconds * gpus / 3600 if spec.max_t is not None and seconds is not None else None
    if spec.time_attr == "time_total_s" and spec.max_t is not None:
        per_trial = spec.max_t * gpus / 3600
    if per_trial is not None:
        fulls = [count for count in (trials, limits.budget) if count is not None]
        bounds += [per_trial * min(fulls)] if fulls else []
    if limits.time_budget_s is not None and limits.max_concurrent_trials is not None:
        bounds.append(limits.time_budget_s * limits.max_concurrent_trials * gpus / 3600)
    return 0.0 if not gpus else min(bounds, default=None)


def _expected_gpu_hours(
    spec: Spec, levels: Sequence[tuple[int, int]] | None, seconds: float | None, at_most: float | None
) -> float | None:
    if levels is None or seconds is None:
        return None
    starts = (0, *(iteration for iteration, _ in levels))
    iterations = sum((level - start) * trials for start, (level, trials) in zip(starts, levels, strict=False))
    gpus = spec.scaling.bundle().get("GPU", 0.0) * spec.scaling.most_workers
    expected = iterations * seconds * gpus / 3600
    return expected if at_most is None else min(expected, at_most)


def _started(core: Core, count: int) -> list[Any]:
    """Return the first trials that the core would start if it had slots for all of them."""
    core.experiment.spec = replace(core.spec, limits=replace(core.spec.limits, max_concurrent_trials=count))
    actions = list(core.handle(DriverStarted(time=0.0, epoch=1)).actions)
    while actions:
        action = actions.pop(0)
        if isinstance(action, Ask):
            suggestion = core.searcher.suggest(action.number, core.trials)
            actions += core.handle(suggested(0.0, action.number, suggestion)).actions
    return list(core.trials)[:count]


MAX_RESULTS = 5000
"""The maximum number of trials from which the importance is computed. If there are more, evenly spaced trials are used."""


@dataclass(frozen=True, slots=True)
class Importance:
    """The importance of each parameter.

    shares: a dict from parameter to share, the most important parameter first. The shares add up to 1. It is empty if there
        are too few results.
    trials: the number of results that were used. A trial and its repeats are one result.
    completed: how many of these trials were trained to their end.
    stopped: how many of these trials were stopped early.
    repeats: the number of repeats that were merged with the trials that they repeat.
    needed: the minimum number of results. With fewer, no shares are computed.
    left_out: the number of ended trials that were not used, because there are more than MAX_RESULTS.
    """

    metric: str
    shares: Mapping[str, float]
    trials: int
    completed: int
    stopped: int
    repeats: int
    needed: int
    left_out: int


def importance(
    store: Store, record: ExperimentRecord, where: Sequence[str] = (), metric: str | None = None
) -> Importance:
    """Return how much each parameter mattered for an objective, from the trials that have ended.

    If users have changed the search space, use the current space, and only the trials whose configurations lie in it. A trial
    and its repeats count once, with the mean of their values.

    Args:
        store: the store.
        record: the experiment.
        where: use only trials that meet these conditions, which have the same form as for `Trials.sorted_page`.
        metric: the objective; None for the first one. For any other objective, the newest value of each trial is used, as for
            the Pareto front.

    Raises:
        SpecError: a condition is wrong, or `metric` is not an objective.
    """
    # Optuna and scipy take a second to load, and only this function needs them.
    from tuner.search import importance as anova

    spec = record.spec
    objective = next((one for one in spec.objectives if one.metric == (metric or spec.objective.metric)), None)
    if objective is None:
        known = ", ".join(repr(one.metric) for one in spec.objectives)
        raise SpecError(f"{metric!r} is not an objective; expected one of {known}", "/metric")
    ended = store.trials.ended(record.id)
    if where:
        matching = set(store.trials.matching(record.id, where))
        ended = [number for number in ended if number in matching]
    chosen = _spread(ended, MAX_RESULTS)
    revisions = Revisions.of(spec)
    if objective == spec.objective:
        results = store.trials.results(record.id, chosen)
    else:
        results = store.trials.last_values(record.id, chosen, objective.metric)
    outcomes = [
        anova.Outcome(one.number, one.repeat_of, one.state, inside, one.value)
        for one in results
        if (inside := revisions.inside(one.params, one.revision)) is not None
    ]
    found = anova.merged(outcomes)
    states = Counter(one.state for one in found)
    drawn = anova.drawn_of(store.trials.draws(record.id)) if spec.search.get("type") == "define_by_run" else {}
    return Importance(
        metric=objective.metric,
        shares=anova.importance(revisions.present, objective.mode, [(one.params, one.value) for one in found], drawn),
        trials=len(found),
        completed=states[TrialState.COMPLETED],
        stopped=states[TrialState.STOPPED],
        repeats=sum(one.runs - 1 for one in found),
        needed=anova.MIN_RECORDS,
        left_out=len(ended) - len(chosen),
    )


def _spread(numbers: Sequence[int], count: int) -> list[int]:
    """Return at most `count` of the numbers, evenly spaced, including the first and the last."""
    if len(numbers) <= count:
        return list(numbers)
    return [numbers[at * (len(numbers) - 1) // (count - 1)] for at in range(count)]


class Importances:
    """A cache of the importances of experiments. Thread-safe.

    An entry is valid until another trial of its experiment ends, or a user changes the search space.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()  # also keeps two threads from computing the same importance
        # (public id, which is never used again, space, objective, and conditions) -> (event_seq, number of ended trials, result)
        self._kept: OrderedDict[tuple[str, int, str | None, tuple[str, ...]], tuple[int, int, Importance]] = (
            OrderedDict()
        )

    def of(self, record: ExperimentRecord, where: Sequence[str] = (), metric: str | None = None) -> Importance:
        """Return what `importance` returns for these arguments. Raise SpecError if one of them is wrong."""
        key = (record.public_id, record.spec.space_revision, metric, tuple(where))
        with self._lock:
            seq, ended, found = self._kept.get(key, (-1, -1, None))
            if found is None or seq != record.last_event_seq:
                now = len(self._store.trials.ended(record.id))
                if found is None or now != ended:
                    found, ended = importance(self._store, record, where, metric), now
                self._kept[key] = (record.last_event_seq, ended, found)
            self._kept.move_to_end(key)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            return found
