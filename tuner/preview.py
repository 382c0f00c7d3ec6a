"""What an experiment would do, before it does it; and afterwards, which parameters mattered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuner.domain.events import DriverStarted
from tuner.domain.experiment import Spec
from tuner.driver.actions import Ask, suggested
from tuner.driver.assemble import assemble
from tuner.driver.core import Core
from tuner.space import Space
from tuner.store import ExperimentRecord, Store


@dataclass(frozen=True, slots=True)
class Preview:
    """scheduler, search: as they would work, "auto" resolved, defaults and what they inherit filled in. notes: why they were
    chosen.

    num_samples: how many trials would be started, None where only the time budget ends the search. configurations: what the
    first trials would get as long as no result is known, (flat params, nested config) each.
    """

    spec: Spec
    scheduler: Mapping[str, Any]
    search: Mapping[str, Any]
    notes: tuple[str, ...]
    num_samples: int | None
    max_t: int | None
    configurations: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...]


def preview(spec: Spec, configurations: int) -> Preview:
    """Put the experiment together as a driver would and let it start trials of which no result comes."""
    space = Space.from_json(spec.space)
    core = assemble(spec, space)
    total = core.spec.num_samples if core.scheduler.PROPOSES else core.searcher.total()
    return Preview(
        spec=core.spec,
        scheduler=core.scheduler.resolved(),
        search=core.searcher.to_json(),
        notes=tuple(core.notes),
        num_samples=total,
        max_t=core.spec.max_t,
        configurations=tuple(
            (trial.params, space.config(trial.params, spec.seed, trial.number))
            for trial in (_started(core, configurations) if configurations else ())
        ),
    )


def _started(core: Core, count: int) -> list[Any]:
    core.spec = replace(core.spec, limits=replace(core.spec.limits, max_concurrent_trials=count))
    actions = list(core.handle(DriverStarted(time=0.0, epoch=1)).actions)
    while actions:
        action = actions.pop(0)
        if isinstance(action, Ask):
            suggestion = core.searcher.suggest(action.number, core.trials)
            actions += core.handle(suggested(0.0, action.number, suggestion)).actions
    return list(core.trials)[:count]


@dataclass(frozen=True, slots=True)
class Importance:
    """shares: parameter -> share of the importance, the most important first, all together 1; empty where there are too few
    results. trials: how many results they are from. needed: how many there have to be.
    """

    metric: str
    shares: Mapping[str, float]
    trials: int
    needed: int


def importance(store: Store, record: ExperimentRecord) -> Importance:
    """How much each parameter mattered for the first objective, from the trials that have ended."""
    from tuner.search import importance as anova

    spec = record.spec
    found: list[tuple[Mapping[str, Any], float]] = []
    token: str | None = None
    while True:
        page = store.list_trials(record.id, page_size=1000, page_token=token)
        for trial in page.items:
            value = trial.best_value if spec.scope == "all" else trial.last_value
            if trial.state.ended and value is not None:
                found.append((trial.best_params if spec.scope == "all" else trial.params, value))
        token = page.next_token
        if token is None:
            break
    space = Space.from_json(spec.space, opaque=True)
    shares = anova.importance(space, spec.objective.mode, found)
    return Importance(spec.objective.metric, shares, len(found), anova.MIN_RECORDS)
