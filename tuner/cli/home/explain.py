"""`tuner explain`, `schedule` and `ls` on the database of this home: yield the lines to print."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypedDict

from tuner.cli.json_text import dumps
from tuner.domain.segments import what_to_do
from tuner.domain.states import ExperimentState
from tuner.experiment.operations.usecases import id_of, numbered, schedule
from tuner.names import without_colors
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.records import DecisionRecord, ExperimentRecord


def decisions_about(
    settings: Settings, public_id: str, as_json: bool = False, number: int | None = None
) -> Iterator[str]:
    """Yield a line for each decision about a trial or an experiment, oldest first. For a failed trial, also yield its traceback.

    Args:
        settings: where the database is.
        public_id: ``trl_...``, ``exp_...``, or the name of an experiment.
        as_json: True to yield JSON objects instead of text, without the traceback.
        number: if `public_id` names an experiment, the number of one of its trials. None: all decisions of the experiment.

    Raises:
        NotFound: there is no such trial or experiment.
    """
    with Store.open(settings.database_url) as store:
        store.migrate()
        public_id = id_of(store, public_id)
        if public_id.startswith("exp_"):
            experiment = store.experiments.get(public_id).id
            trial_name = None if number is None else numbered(store, public_id, number)
        else:
            trial = store.trials.get(public_id)
            experiment, number, trial_name = trial.experiment_id, trial.number, trial.public_id
        found: list[DecisionRecord] = []
        token: str | None = None
        while True:
            page = store.log.decisions(experiment, trial=number, page_size=1000, page_token=token)
            found += page.items
            token = page.next_token
            if token is None:
                break
        failure = None if trial_name is None else store.trials.get(trial_name).failure
    for decision in reversed(found):
        if as_json:
            row = {"seq": decision.seq, "time": decision.time, "kind": decision.kind, "trial": decision.trial}
            yield dumps({**row, "reason": decision.reason, "state": decision.state, "payload": decision.payload})
        else:
            yield line(datetime.fromtimestamp(decision.time, UTC), decision.trial, decision.kind, decision.reason)
    if failure is not None and not as_json:
        yield from failed(failure)


def line(when: datetime, trial: int | None, kind: str, reason: str) -> str:
    """Return the line that shows one decision. If `trial` is None, the decision is about the whole experiment."""
    who = f"trial {trial}" if trial is not None else "experiment"
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S}  {who:<10}  {kind:<8}  {reason}"


def failed(failure: Mapping[str, Any]) -> Iterator[str]:
    """Yield the traceback and the last output of the rank that failed first, the stacks of ranks that hung, and what to do."""
    for name in ("traceback", "log_tail"):
        if (text := failure.get(name)) and not (name == "log_tail" and _has_the_log(failure)):
            yield f"\n{name.replace('_', ' ')} of rank {failure.get('rank')}:\n{without_colors(text).rstrip()}"
    for rank, stack in (failure.get("stacks") or {}).items():
        yield f"\nstack of rank {rank}:\n{stack.rstrip()}"
    yield f"\n{what_to_do(failure.get('cause'))}"


def _has_the_log(failure: Mapping[str, Any]) -> bool:
    """Return True if there is no traceback, and the text in its place contains the last output of a killed process."""
    return str(failure.get("traceback")).startswith("no traceback: ")


def schedule_of(settings: Settings, public_id: str, number: int | None = None) -> str:
    """Return the schedule of configurations (see `usecases.schedule`) as JSON, with one configuration on each line."""
    with Store.open(settings.database_url) as store:
        store.migrate()
        found = schedule(store, public_id, number)
    return one_a_line(found)


def one_a_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a JSON list, with one row on each line."""
    return "[\n" + ",\n".join("  " + dumps(row) for row in rows) + "\n]" if rows else "[]"


class Filters(TypedDict):
    """The experiments to list. The values mean what they mean for `tuner.experiments`."""

    state: str | None
    name: str | None
    tags: Sequence[str]
    project: str | None
    archived: Literal["no", "yes"]


class Listed(NamedTuple):
    """The row of one experiment in `tuner ls`. `best` is its best value, if there is one."""

    created: datetime
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
        created=datetime.fromtimestamp(record.created_at, UTC),
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
