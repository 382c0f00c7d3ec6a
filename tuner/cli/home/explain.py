"""`tuner explain` and `tuner schedule` on the database of this home: return the text to print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from tuner.cli.json_text import dumps
from tuner.domain.segments import what_to_do
from tuner.experiment.operations.usecases import id_of, numbered, schedule
from tuner.names import without_colors
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.records import DecisionRecord


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
            yield line(datetime.fromtimestamp(decision.time), decision.trial, decision.kind, decision.reason)
    if failure is not None and not as_json:
        yield from failed(failure)


def line(when: datetime, trial: int | None, kind: str, reason: str) -> str:
    """Return the line that shows one decision. If `trial` is None, the decision is about the whole experiment."""
    who = f"trial {trial}" if trial is not None else "experiment"
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S}  {who:<10}  {kind:<8}  {reason}"


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
