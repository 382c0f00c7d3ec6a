"""Check what must hold in the database after every experiment, whatever happened to it.

`tests/conftest.py` calls `check_all` after each test that runs experiments, so that each of them also tests these.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from sqlalchemy import text

from tuner.domain import events as e
from tuner.domain.states import ExperimentState, TrialState
from tuner.driver.assemble import assemble
from tuner.errors import SpecError
from tuner.space import Space
from tuner.store import Store
from tuner.store.records import ExperimentRecord


def check_all(store: Store, known: set[str]) -> None:
    """Check every experiment that is not in `known`, and add those that have ended to `known`."""
    with store._database.engine.connect() as connection:
        names = [row[0] for row in connection.execute(text("SELECT public_id FROM experiment"))]
    for name in names:
        if name not in known:
            record = store.experiments.get(name)
            if not record.state.ended and record.state is not ExperimentState.PAUSED:
                continue  # its driver may write on
            problems = list(broken(store, record))
            assert not problems, f"{name} ({record.name}, {record.state}): " + "; ".join(problems)
            if record.state.ended:
                known.add(name)


def broken(store: Store, record: ExperimentRecord) -> Iterator[str]:
    """Yield what is wrong with the rows and the log of an experiment, in words."""
    log = list(store.drivers.load(record.id))
    if log and isinstance(log[0][1], e.Event) and log[0][1].time < time.time() - 86_400:
        return  # a test has written it by hand, with times of long ago
    yield from of_log(log, record.spec.max_t if record.spec.time_attr == "training_iteration" else None)
    yield from _segments(store, record)
    if record.state.ended and log:
        yield from _leftovers(store, record)
    yield from _rows(store, record, log)


def of_log(log: list[Any], max_t: int | None) -> Iterator[str]:
    """Yield what is wrong with a log, in words: gaps, reports out of order or counted twice, training past iteration `max_t`."""
    if [seq for seq, _ in log] != list(range(1, len(log) + 1)):
        yield "the log has gaps"
    counts: dict[tuple[int, int], int] = {}
    for _, entry in log:
        if not isinstance(entry, e.Reported):
            continue
        key = entry.trial, entry.segment
        if entry.report_no != counts.get(key, 0) + 1:
            yield f"report {entry.report_no} of trial {key[0]}, segment {key[1]} follows report {counts.get(key, 0)}"
        counts[key] = entry.report_no
        if max_t is not None and entry.iteration > max_t:
            yield f"trial {entry.trial} reported iteration {entry.iteration}, max_t is {max_t}"


def _segments(store: Store, record: ExperimentRecord) -> Iterator[str]:
    """Check that a trial has one segment at a time, and that each starts from a checkpoint that existed, at its iteration."""
    checkpoints = {c.public_id: c for c in store.trials.checkpoints(record.id)}
    for trial, segments in store.trials.segments(record.id).items():
        if [segment.ordinal for segment in segments] != list(range(1, len(segments) + 1)):
            yield f"trial {trial} has segments {[segment.ordinal for segment in segments]}"
        for before in segments[:-1]:
            if before.ended_at is None:
                yield f"segment {before.ordinal} of trial {trial} has not ended, and there are later ones"
        scaling = record.spec.scaling
        for segment in segments:
            if segment.workers is not None and not scaling.num_workers <= segment.workers <= scaling.most_workers:
                yield f"segment {segment.ordinal} of trial {trial} has {segment.workers} ranks"
            name, begins = segment.source_checkpoint, segment.start_iteration
            who = f"segment {segment.ordinal} of trial {trial}"
            if name is None:
                if begins:
                    yield f"{who} begins at {begins} from nothing"
            elif (source := checkpoints.get(name)) is not None:
                if source.state == "uploading":
                    yield f"{who} began from {name}, which was never ready"
                if source.step != begins:
                    yield f"{who} begins at {begins}, {name} is of {source.step}"


def _leftovers(store: Store, record: ExperimentRecord) -> Iterator[str]:
    """Check that an experiment that has ended has nothing open."""
    with store._database.engine.connect() as connection:
        where = {"id": record.id}
        for what, query in (
            ("trials that have not ended", "SELECT count(*) FROM trial WHERE experiment_id = :id AND ended_at IS NULL"),
            (
                "segments that have not ended",
                "SELECT count(*) FROM segment s JOIN trial t ON t.id = s.trial_id"
                " WHERE t.experiment_id = :id AND s.ended_at IS NULL",
            ),
        ):
            if count := connection.execute(text(query), where).scalar():
                yield f"{count} {what}"


def _rows(store: Store, record: ExperimentRecord, log: list[Any]) -> Iterator[str]:
    """Check that the rows agree with the log."""
    code = store.code.get(record.spec.code) if record.spec.code else None
    if code is not None and code.parts_blob:
        return  # its scheduler is code of a test
    try:
        core = assemble(record.first_spec, Space.from_json(record.spec.space, code.space_blob if code else None))
    except (SpecError, ImportError):
        return  # it could not be driven
    for seq, entry in log:
        core.fold(seq, entry)
    if log and core.state.ended and core.state is not record.state:
        yield f"its state is {record.state}, the log says {core.state}"
    rows = {row.number: row for row in store.trials.newest(record.id, 1_000_000)}
    if rows.keys() != {trial.number for trial in core.trials}:
        yield f"it has the rows of trials {sorted(rows)}, the log has {len(core.trials)}"
        return
    for trial in core.trials:
        row = rows[trial.number]
        for name in ("state", "iteration", "reports", "failures", "system_failures", "reason"):
            if getattr(row, name) != getattr(trial, name):
                yield f"trial {trial.number}.{name} is {getattr(row, name)!r}, the log says {getattr(trial, name)!r}"
        counts = trial.mark(record.spec.scope)
        value = counts.value if counts is not None and math.isfinite(counts.value) else None
        if (row.best_value, row.best_iteration) != (value, counts and counts.iteration):
            yield f"trial {trial.number} has {row.best_value} of {row.best_iteration}, the log says {counts}"
        if trial.state is TrialState.RUNNING and not trial.holds_resources:
            yield f"trial {trial.number} is running without a segment"
