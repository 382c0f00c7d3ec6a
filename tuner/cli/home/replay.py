"""`tuner replay`: show what another scheduler would have done with an experiment's trials."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tuner.api import schemas
from tuner.cli.json_text import dumps
from tuner.errors import NotFound, SpecError
from tuner.experiment.analysis import replay as replays
from tuner.experiment.operations.usecases import id_of
from tuner.plurals import counted
from tuner.settings import Settings
from tuner.store import Store


def replayed(
    settings: Settings,
    called: str,
    scheduler: str | None,
    options: Sequence[str],
    search: str | None,
    concurrent: int | None,
    as_json: bool,
) -> Iterator[str]:
    """Replay an experiment. Yield the summary, the notes, and a line for each trial that would have ended differently.

    Args:
        settings: where the database is.
        called: the experiment's id or name.
        scheduler: the type of the scheduler. None: the scheduler of the experiment.
        options: the options of the scheduler, as ``name=value`` with the value in JSON.
        search: the type of the searcher. None: the recorded configurations in their original order.
        concurrent: how many trials train at the same time. None: as many as in the experiment.
        as_json: True to yield one JSON object instead.
    """
    asked = wanted(scheduler, options)
    with Store.open(settings.database_url) as store:
        store.migrate()
        found = id_of(store, called)
        if not found.startswith("exp_"):
            raise NotFound(f"{called!r} is a trial; expected an experiment's id or name")
        record = store.experiments.get(found)
        outcome = replays.replay(store, record, scheduler=asked, search_alg=search, max_concurrent_trials=concurrent)
    if as_json:
        yield dumps(schemas.Replay.of(outcome).model_dump(mode="json"))
    else:
        yield from lines(outcome)


def wanted(scheduler: str | None, options: Sequence[str]) -> dict[str, Any] | None:
    """Return a scheduler with options such as ``reduction_factor=3`` in its JSON form, or None if `scheduler` is None."""
    if options and scheduler is None:
        raise SpecError("options need a scheduler", "/scheduler")
    return None if scheduler is None else {"type": scheduler, **dict(_option(each) for each in options)}


def _option(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise SpecError(f"expected an option as name=value, got {text!r}", "/scheduler")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def lines(found: Any) -> Iterator[str]:
    """Yield the terminal lines about a replay. `found` is a `Replay`, or a service's answer in the same form."""
    yield found.summary
    for note in found.notes:
        yield f"  note: {note}"
    width = 22 if found.censored else 12
    yield f"{'':9}{'reports':>{width}}{'training':>{width}}{'duration':>{width}}{'trials':>8}  best"
    for name, total, ends in (
        ("happened", found.recorded, {trial.number: trial.recorded for trial in found.trials}),
        ("replayed", found.replayed, {trial.number: trial.replayed for trial in found.trials}),
    ):
        best = "none" if total.best_value is None else f"{total.best_value:.6g} ({_best(total.best_trial, ends)})"
        least = ""
        if total is found.replayed and found.censored:
            least, best = "at least ", f"not known; {best} where the records end"
        costs = f"{total.reports:,}", f"{total.training_s:.0f} s", f"{total.duration_s:.0f} s"
        yield f"{name:9}{''.join(f'{least + cost:>{width}}' for cost in costs)}{total.trials:>8}  {best}"
    differ = [trial for trial in found.trials if _differs(trial)]
    yield f"{len(differ)} of {counted(len(found.trials), 'trial')} would have ended differently"
    for trial in differ:
        yield f"  trial {trial.number:<5} {_shown(trial.recorded):<34} -> {_shown(trial.replayed)}"


def _best(number: int, ends: Mapping[int, Any]) -> str:
    failed = (end := ends.get(number)) is not None and end.state == "failed"
    return f"trial {number}, which failed" if failed else f"trial {number}"


def _differs(trial: Any) -> bool:
    now = trial.replayed
    return now is None or (now.state, now.iterations) != (trial.recorded.state, trial.recorded.iterations)


def _shown(outcome: Any) -> str:
    if outcome is None:
        return "not started"
    value = "" if outcome.value is None else f", {outcome.value:.6g}"
    if outcome.state == "censored":
        return f"continues after {outcome.iterations}, where its record ends{value}"
    return f"{outcome.state} at {outcome.iterations}{value}"
