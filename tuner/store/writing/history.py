"""Read log entries from rows, for the fold of a restarted driver and for the event stream."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, and_, select, text

from tuner.domain import decisions, events
from tuner.domain.batch import Entry
from tuner.errors import NotFound
from tuner.store.records import StreamItem
from tuner.store.sql.tables import NO_REPORT, decision, event, experiment, metric_key, metric_point, segment, trial
from tuner.store.writing.writer import decode

CHUNK = 5_000
DECISION = "decision"
"""The kind of every decision, among the kinds of events."""
_EVENT = event.c["event_seq", "time", "kind", "trial_number", "segment_id", "report_no", "step", "payload"]
_DECISION = decision.c["event_seq", "time", "kind", "trial_number", "reason", "state", "payload"]
Row = Any


class Ordinals(dict[int, int]):
    """The ordinals of segments within their trials, by the internal ids of the segments."""

    def __missing__(self, segment: int) -> int:
        raise being_deleted()


def being_deleted() -> NotFound:
    """Return the error for an entry of the log whose segment is missing. A deletion removes the log last."""
    return NotFound("the experiment is being deleted")


def entries(connection: Connection, experiment_id: int, after: int = 0) -> Iterator[Entry]:
    """Yield the log entries after `after`, in order, equal to the entries that were committed."""
    last = _last(connection, experiment_id)
    ordinals = _ordinals(connection, experiment_id)
    while after < last:
        upto = min(after + CHUNK, last)
        found: list[Entry] = []
        metrics = metrics_of(connection, experiment_id, after, upto)
        for row in event_rows(connection, experiment_id, after, upto):
            found.append((row.event_seq, _event(row, metrics, ordinals)))
        for row in decision_rows(connection, experiment_id, after, upto):
            found.append((row.event_seq, decisions.from_json(row.kind, {"reason": row.reason, **row.payload})))
        found.sort(key=lambda entry: entry[0])
        yield from found
        after = upto


def stream(connection: Connection, experiment_id: int, after: int, limit: int) -> list[StreamItem]:
    """Return at most `limit` log entries after `after`, in order, as plain data."""
    upto = min(after + limit, _last(connection, experiment_id))  # read this first: all entries up to here are committed
    decided = decision_rows(connection, experiment_id, after, upto)
    rows = event_rows(connection, experiment_id, after, upto)
    reported = any(row.kind == events.Reported.KIND for row in rows)
    metrics = metrics_of(connection, experiment_id, after, upto) if reported else {}
    return _items(connection, experiment_id, rows, decided, metrics)


def newest(
    connection: Connection,
    experiment_id: int,
    kinds: Sequence[str],
    trial_number: int | None,
    before: int | None,
    limit: int,
) -> list[StreamItem]:
    """Return at most `limit` log entries before the entry `before`, newest first, as plain data.

    Args:
        connection: a connection that reads.
        experiment_id: the internal id.
        kinds: only entries of these kinds; every decision has the kind "decision". All kinds if empty.
        trial_number: only entries about the trial with this number.
        before: only entries whose event_seq is less than this. None: start with the newest.
        limit: the maximum number of entries.
    """
    upto = _last(connection, experiment_id)  # read this first: all entries up to here are committed
    upto = upto if before is None else min(before - 1, upto)

    def of(table: Table, *columns: Any) -> Select[Any]:
        query = select(*columns).where(table.c.experiment_id == experiment_id, table.c.event_seq <= upto)
        if trial_number is not None:
            query = query.where(table.c.trial_number == trial_number)
        return query.order_by(table.c.event_seq.desc()).limit(limit)

    def of_kind(kind: str) -> Select[Any]:
        """Return a query for events of one kind. The inner query reads only the index by kind."""
        found = of(event, event.c.event_seq).where(event.c.kind == kind)
        if kind != events.Reported.KIND:
            found = found.where(text(NO_REPORT))
        return select(*_EVENT).where(event.c.experiment_id == experiment_id, event.c.event_seq.in_(found))

    decided = list(connection.execute(of(decision, *_DECISION))) if not kinds or DECISION in kinds else []
    others = [kind for kind in dict.fromkeys(kinds) if kind != DECISION]
    rows: list[Row] = []
    for query in map(of_kind, others) if kinds else [of(event, *_EVENT)]:
        rows += connection.execute(query)
    seqs = sorted((row.event_seq for row in (*rows, *decided)), reverse=True)[:limit]
    oldest = seqs[-1] if seqs else 0
    rows, decided = ([row for row in found if row.event_seq >= oldest] for found in (rows, decided))
    reports = [row.event_seq for row in rows if row.kind == events.Reported.KIND]
    metrics = _metrics_where(connection, experiment_id, event.c.event_seq.in_(reports)) if reports else {}
    return _items(connection, experiment_id, rows, decided, metrics)[::-1]


def _items(
    connection: Connection,
    experiment_id: int,
    rows: Sequence[Row],
    decided: Sequence[Row],
    metrics: Mapping[tuple[int, int], dict[str, float]],
) -> list[StreamItem]:
    items = [
        StreamItem(
            seq=row.event_seq,
            event=DECISION,
            time=row.time,
            trial=row.trial_number,
            data={"kind": row.kind, "reason": row.reason, "state": row.state, "payload": row.payload},
        )
        for row in decided
    ]
    reported = {row.segment_id for row in rows if row.kind == events.Reported.KIND}
    ordinals = _ordinals(connection, experiment_id, reported) if reported else Ordinals()
    for row in rows:
        if row.kind == events.Reported.KIND:
            data = {
                "segment": ordinals[row.segment_id],
                "report_no": row.report_no,
                "iteration": row.step,
                "metrics": metrics.get((row.segment_id, row.report_no), {}),
                "checkpoint": (row.payload or {}).get("checkpoint"),
                "step": (row.payload or {}).get("step"),
            }
        else:
            data = {name: value for name, value in row.payload.items() if name != "trial"}
        items.append(StreamItem(seq=row.event_seq, event=row.kind, time=row.time, trial=row.trial_number, data=data))
    return sorted(items, key=lambda item: item.seq)


def _last(connection: Connection, experiment_id: int) -> int:
    query = select(experiment.c.last_event_seq).where(experiment.c.id == experiment_id)
    return int(connection.execute(query).scalar() or 0)


def _event(row: Row, metrics: dict[tuple[int, int], dict[str, float]], ordinals: Ordinals) -> events.Event:
    if row.kind != events.Reported.KIND:
        return events.from_json(row.kind, {"time": row.time, **row.payload})
    payload = row.payload or {}
    report = {
        "time": row.time,
        "trial": row.trial_number,
        "segment": ordinals[row.segment_id],
        "report_no": row.report_no,
        "iteration": row.step,
        "metrics": metrics.get((row.segment_id, row.report_no), {}),
        "checkpoint": payload.get("checkpoint"),
        "step": payload.get("step"),
    }
    return events.from_json(row.kind, report)


def event_rows(connection: Connection, experiment_id: int, after: int, upto: int) -> list[Row]:
    query = select(*_EVENT).where(
        event.c.experiment_id == experiment_id, event.c.event_seq > after, event.c.event_seq <= upto
    )
    return list(connection.execute(query.order_by(event.c.event_seq)))


def decision_rows(connection: Connection, experiment_id: int, after: int, upto: int) -> list[Row]:
    query = select(*_DECISION).where(
        decision.c.experiment_id == experiment_id, decision.c.event_seq > after, decision.c.event_seq <= upto
    )
    return list(connection.execute(query.order_by(decision.c.event_seq)))


def metrics_of(
    connection: Connection, experiment_id: int, after: int, upto: int
) -> dict[tuple[int, int], dict[str, float]]:
    """Return a dict from (segment id, report_no) to metrics, for the reports with event_seq from after + 1 to upto."""
    return _metrics_where(connection, experiment_id, and_(event.c.event_seq > after, event.c.event_seq <= upto))


def _metrics_where(
    connection: Connection, experiment_id: int, chosen: ColumnElement[bool]
) -> dict[tuple[int, int], dict[str, float]]:
    keys = select(metric_key.c.id, metric_key.c.name).where(metric_key.c.experiment_id == experiment_id)
    names = {row.id: row.name for row in connection.execute(keys)}
    # With IN instead of a join, every point is one look-up in the primary key.
    ours = select(metric_key.c.id).where(metric_key.c.experiment_id == experiment_id)
    same = and_(metric_point.c.segment_id == event.c.segment_id, metric_point.c.report_no == event.c.report_no)
    query = (
        select(*metric_point.c["segment_id", "report_no", "key_id", "value", "kind"])
        .select_from(event)
        .join(metric_point, same)
        .where(event.c.experiment_id == experiment_id, chosen)
        .where(metric_point.c.key_id.in_(ours))
        .order_by(event.c.event_seq, metric_point.c.key_id)
    )
    found: dict[tuple[int, int], dict[str, float]] = defaultdict(dict)
    for segment_id, report_no, key, value, kind in connection.execute(query):
        found[segment_id, report_no][names[key]] = decode(value, kind)
    return found


def _ordinals(connection: Connection, experiment_id: int, only: set[int] | None = None) -> Ordinals:
    """Return a dict from segment id to the segment's ordinal within its trial."""
    query = select(segment.c.id, segment.c.ordinal)
    if only is None:
        query = query.join(trial, trial.c.id == segment.c.trial_id).where(trial.c.experiment_id == experiment_id)
    else:
        query = query.where(segment.c.id.in_(only))
    return Ordinals({row.id: row.ordinal for row in connection.execute(query)})
