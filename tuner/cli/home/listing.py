"""`tuner ls`: the experiments of this home to list, and the lines of the list, which also shows those of a service."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, TypedDict

from tuner.domain.states import ExperimentState
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.records import ExperimentRecord


class Filters(TypedDict):
    """The experiments to list. The values mean what they mean for `tuner.experiments`."""

    state: str | None
    name: str | None
    tags: Sequence[str]
    project: str | None
    archived: Literal["no", "yes"]


class Listed(NamedTuple):
    """The row of one experiment in `tuner ls`. `best` is its best value, if there is one."""

    created: datetime  # in the time zone of this machine
    id: str
    state: ExperimentState
    trials: int
    metric: str
    best: float | None
    finished: bool  # False if no trial was trained to its end
    method: str
    project: str
    name: str
    abandoned: bool


def experiments(settings: Settings, wanted: Filters, limit: int) -> Iterator[str]:
    """Yield a line for each wanted experiment of this home, newest first, at most `limit` lines.

    The lines name the projects if there are several.
    """
    with Store.open(settings.database_url) as store:
        store.migrate()
        page = store.experiments.page(
            state=wanted["state"],
            name=wanted["name"],
            tags=wanted["tags"],
            project=wanted["project"],
            archived=wanted["archived"] == "yes",
            page_size=limit,
        )
        now = time.time()
        yield from table([_listed(record, now) for record in page.items])


def _listed(record: ExperimentRecord, now: float) -> Listed:
    best = record.best
    return Listed(
        created=datetime.fromtimestamp(record.created_at),
        id=record.public_id,
        state=record.state,
        trials=sum(record.counts.values()),
        metric=record.spec.objective.metric,
        best=best["value"] if best else None,
        finished=not (best and "finished" in best and best["finished"] is None),
        method=record.spec.method,
        project=record.project,
        name=record.name,
        abandoned=record.abandoned(now),
    )


def table(found: Sequence[Listed]) -> Iterator[str]:
    """Yield a line for each experiment, with its project if there are several, and say what to do about abandoned ones."""
    width = max((len(one.project) for one in found), default=0)
    several = len({one.project for one in found}) > 1
    for one in found:
        best = "no result" if one.best is None else f"{one.metric} {one.best:.6g}"
        if one.state.ended and one.best is not None and not one.finished:
            best += ", none finished"
        how = f"{one.trials:>5} {'trial ' if one.trials == 1 else 'trials'}  {best:<24}  {one.method:<20}"
        project = f"{one.project:<{width}}  " if several else ""
        state = "abandoned" if one.abandoned else one.state
        yield f"{one.created:%Y-%m-%d %H:%M:%S}  {one.id}  {state:<10}  {how}  {project}{one.name}"
    if any(one.abandoned for one in found):
        yield "abandoned: the search's script exited before the search ended; `tuner resume NAME` continues it"
