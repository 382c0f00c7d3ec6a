"""Read the rows of an experiment that changed between two entries of its log, for the stream of changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, select

from tuner.domain import events
from tuner.domain.states import TrialState
from tuner.domain.trial import Cause
from tuner.store.experiments import one
from tuner.store.log import decision_record, decisions_of
from tuner.store.records import BestPoint, Bookmark, Changes, DecisionRecord, ReportPoint, TrialSegment
from tuner.store.running import RunningClock
from tuner.store.series import clocks
from tuner.store.series.metrics import names_of
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.database import Database
from tuner.store.sql.tables import best_point, decision, experiment, metric_key, segment, trial
from tuner.store.trials import numbered, segments_of
from tuner.store.writing import history

AT_ONCE = 500  # the maximum number of parameters per statement
OF_NO_SEGMENT = frozenset(
    kind.KIND for kind in (events.CheckpointSaved, events.CheckpointDeleted, events.UploadFailed, events.StopJudged)
)
"""The kinds of a trial's events that do not change the row of any of its segments."""


class ChangeLog:
    def __init__(self, database: Database) -> None:
        self._database = database

    def bookmark(self, experiment_id: int) -> Bookmark:
        """Return a bookmark at the end of the log. Given this bookmark, `since` returns exactly the rows that change later."""
        with self._database.read() as connection:
            return _bookmark(connection, experiment_id)

    def since(self, experiment_id: int, since: Bookmark, upto: int) -> Changes:
        """Return the rows that changed after a bookmark, and the points of the reports up to log entry `upto`.

        Rows have their current values, which may be newer than entry `upto`; the next call then returns them again. If the
        bookmark has only an event_seq, the result also contains some rows that have not changed. Raise NotFound if there is no
        such experiment.
        """
        with self._database.read() as connection:
            return _read(connection, experiment_id, since, upto)


def _bookmark(connection: Connection, experiment_id: int) -> Bookmark:
    """Return a bookmark at the end of the log."""
    newest = select(func.max(segment.c.id)).join(trial, trial.c.id == segment.c.trial_id)
    last = connection.execute(newest.where(trial.c.experiment_id == experiment_id)).scalar() or 0
    # A single statement reads both, so that the decisions are exactly those that were pending at this log entry.
    is_open = and_(decision.c.experiment_id == experiment.c.id, decision.c.state == "pending")
    query = select(experiment.c.last_event_seq, decision.c.event_seq).outerjoin(decision, is_open)
    rows = connection.execute(query.where(experiment.c.id == experiment_id)).all()
    seq = rows[0][0] if rows else 0
    return Bookmark(seq=seq, open_decisions=frozenset(row[1] for row in rows if row[1] is not None), last_segment=last)


def _read(connection: Connection, experiment_id: int, since: Bookmark, upto: int) -> Changes:
    """Return the current values of every row that changed after `since`, and the points of the reports up to entry `upto`."""
    record = one(connection, experiment.c.id == experiment_id, str(experiment_id))
    log = history.event_rows(connection, experiment_id, since.seq, upto)
    decided = history.decision_rows(connection, experiment_id, since.seq, upto)
    named = {row.trial_number for row in (*log, *decided) if row.trial_number is not None}
    launched = _launched(connection, experiment_id, since.last_segment)
    lowest = _lowest_segments(log, {row.trial_number for row in decided if row.trial_number is not None} | launched)
    started = {row.segment_id for row in log if row.kind == events.Reported.KIND and row.report_no == 1}
    segments = _segments(connection, experiment_id, lowest, started)
    fresh = [decision_record(row._mapping) for row in decided]
    settled = _settled(connection, experiment_id, since, named)
    still_open = (since.open_decisions or frozenset()) - {one.seq for one in settled}
    return Changes(
        since=since.seq,
        bookmark=Bookmark(
            seq=upto,
            open_decisions=still_open | {one.seq for one in fresh if one.state == "pending"},
            last_segment=max([since.last_segment, *(item.segment.id for item in segments)]),
        ),
        experiment=record,
        metrics=names_of(connection, [experiment_id])[experiment_id],
        trials=_trials(connection, experiment_id, sorted(named | launched)),
        segments=segments,
        decisions=sorted([*settled, *fresh], key=lambda one: one.seq),
        points=_points(connection, experiment_id, log, since.seq, upto, record.clock),
        best=_best(connection, record, since.seq, upto),
        restarted=any(row.kind == events.DriverStarted.KIND and row.event_seq > 1 for row in log),
    )


def _launched(connection: Connection, experiment_id: int, last_segment: int) -> set[int]:
    """Return the numbers of the trials with a new segment that has not started. No log entry names these trials yet."""
    query = select(trial.c.number).join(segment, segment.c.trial_id == trial.c.id)
    waiting = and_(trial.c.experiment_id == experiment_id, trial.c.state == TrialState.PENDING)
    return set(connection.execute(query.where(waiting, segment.c.id > last_segment)).scalars())


def _lowest_segments(log: Iterable[Any], newest_of: Iterable[int]) -> dict[int, int | None]:
    """Map each trial to the ordinal of the first of its segments that may have changed; None stands for the newest segment."""
    found: dict[int, int | None] = dict.fromkeys(newest_of)
    for row in log:
        if row.trial_number is None or row.kind in OF_NO_SEGMENT or _is_later_report(row):
            continue
        ordinal = (row.payload or {}).get("segment")
        before = found.get(row.trial_number)
        found[row.trial_number] = ordinal if before is None else min(before, ordinal or before)
    return found


def _is_later_report(row: Any) -> bool:
    """Return True if the row is a report, but not the first report of its segment.

    The first report of a segment can show that the segment has started, which changes the segment's row. Later reports do not
    change the row.
    """
    return bool(row.kind == events.Reported.KIND and row.report_no > 1)


def _segments(
    connection: Connection, experiment_id: int, lowest: Mapping[int, int | None], started: set[int]
) -> list[TrialSegment]:
    """Return each trial's segments from the ordinal in `lowest` on, and those whose internal ids are in `started`."""
    found: dict[int, list[TrialSegment]] = {}
    for numbers in _parts(sorted(lowest)):
        for item in segments_of(connection, experiment_id, numbers):
            found.setdefault(item.trial, []).append(item)
    changed = []
    for number, items in found.items():
        newest = items[-1].segment.ordinal
        first = min(lowest[number] or newest, newest)
        changed += [item for item in items if item.segment.ordinal >= first or item.segment.id in started]
    return sorted(changed, key=lambda item: item.segment.id)


def _trials(connection: Connection, experiment_id: int, numbers: Sequence[int]) -> list[Any]:
    return [one for part in _parts(numbers) for one in numbered(connection, experiment_id, part)]


def _settled(connection: Connection, experiment_id: int, since: Bookmark, named: set[int]) -> list[DecisionRecord]:
    """Return the decisions that were pending at the bookmark `since` and are no longer pending.

    If `since.open_decisions` is None, return all decisions before the bookmark about the trials in `named`, because any of them
    may have changed.
    """
    found: list[DecisionRecord] = []

    def collect(condition: ColumnElement[bool]) -> None:
        rows = connection.execute(decisions_of(experiment_id).where(condition)).mappings()
        found.extend(map(decision_record, rows))

    if since.open_decisions is not None:
        for part in _parts(sorted(since.open_decisions)):
            collect(and_(decision.c.event_seq.in_(part), decision.c.state != "pending"))
    else:
        for part in _parts(sorted(named)):
            collect(and_(decision.c.trial_number.in_(part), decision.c.event_seq <= since.seq))
    return found


def _points(
    connection: Connection, experiment_id: int, log: Sequence[Any], after: int, upto: int, running: RunningClock
) -> list[ReportPoint]:
    rows = [row for row in log if row.kind == events.Reported.KIND]
    if not rows:
        return []
    metrics = history.metrics_of(connection, experiment_id, after, upto)
    where: dict[int, tuple[int, Cause]] = {}
    for part in _parts(sorted({row.segment_id for row in rows})):
        query = select(*segment.c["id", "ordinal", "cause"]).where(segment.c.id.in_(part))
        where |= {row.id: (row.ordinal, row.cause) for row in connection.execute(query)}
    cursor = Cursor(connection.connection.cursor(), connection.dialect.name)
    seconds = running.seconds([row.time for row in rows]).tolist()
    trials = clocks.of_trials(cursor, experiment_id, sorted({row.trial_number for row in rows}))
    if not {row.segment_id for row in rows} <= where.keys() & trials.zeros.keys():
        raise history.being_deleted()
    trained = trials.seconds([row.time for row in rows], [row.segment_id for row in rows]).tolist()
    return [
        ReportPoint(
            seq=row.event_seq,
            trial=row.trial_number,
            segment=where[row.segment_id][0],
            cause=where[row.segment_id][1],
            iteration=row.step,
            step=(row.payload or {}).get("step"),
            time=row.time,
            seconds=at,
            trial_seconds=of_trial,
            metrics=metrics.get((row.segment_id, row.report_no), {}),
        )
        for row, at, of_trial in zip(rows, seconds, trained, strict=True)
    ]


def _best(connection: Connection, record: Any, after: int, upto: int) -> list[BestPoint]:
    names = [objective.metric for objective in record.spec.objectives]
    of_these = and_(metric_key.c.experiment_id == record.id, metric_key.c.name.in_(names))
    query = (
        select(best_point.c.event_seq, best_point.c.time, best_point.c.value, metric_key.c.name)
        .join(metric_key, metric_key.c.id == best_point.c.key_id)
        .where(of_these, best_point.c.event_seq > after, best_point.c.event_seq <= upto)
        .order_by(best_point.c.event_seq)
    )
    rows = connection.execute(query).all()
    seconds = record.clock.seconds([row.time for row in rows]).tolist()
    return [
        BestPoint(seq=row.event_seq, metric=row.name, seconds=at, value=row.value)
        for row, at in zip(rows, seconds, strict=True)
    ]


def _parts(values: Sequence[int]) -> Iterable[Sequence[int]]:
    return (values[at : at + AT_ONCE] for at in range(0, len(values), AT_ONCE))
