"""The log of an experiment, as people read it: decisions with their reasons, and events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, func, select

from tuner.store.records import DecisionRecord, Page, StreamItem
from tuner.store.sql.database import Database
from tuner.store.sql.paging import number, page
from tuner.store.sql.tables import decision, event
from tuner.store.writing import history


class Log:
    def __init__(self, database: Database) -> None:
        self._database = database

    def decisions(
        self,
        experiment_id: int,
        *,
        trial: int | None = None,
        kinds: Sequence[str] = (),
        text: str | None = None,
        page_size: int = 100,
        page_token: str | None = None,
    ) -> Page[DecisionRecord]:
        """Return a page of decisions, newest first.

        Args:
            experiment_id: the internal id.
            trial: only decisions about the trial with this number.
            kinds: only decisions of these kinds; all kinds if empty.
            text: only decisions whose reasons contain this text.
            page_size: the maximum number of decisions on the page.
            page_token: `next_token` of the previous page.
        """
        query = decisions_of(experiment_id).order_by(decision.c.event_seq.desc())
        if trial is not None:
            query = query.where(decision.c.trial_number == trial)
        if kinds:
            query = query.where(decision.c.kind.in_(kinds))
        if text:
            query = query.where(decision.c.reason.icontains(text, autoescape=True))
        if page_token is not None:
            query = query.where(decision.c.event_seq < number(page_token))
        with self._database.read() as connection:
            return page(connection, query, page_size, decision_record, lambda found: found.seq)

    def entries(
        self,
        experiment_id: int,
        *,
        trial: int | None = None,
        kinds: Sequence[str] = (),
        page_size: int = 100,
        page_token: str | None = None,
    ) -> Page[StreamItem]:
        """Return a page of the log (events and decisions), newest first.

        Args:
            experiment_id: the internal id.
            trial: only entries about the trial with this number.
            kinds: only entries of these kinds, such as "segment_ended"; the kind of every decision is "decision". All if empty.
            page_size: the maximum number of entries on the page.
            page_token: `next_token` of the previous page.
        """
        before = None if page_token is None else number(page_token)
        with self._database.read() as connection:
            found = history.newest(connection, experiment_id, kinds, trial, before, page_size + 1)
        items = found[:page_size]
        return Page(tuple(items), str(items[-1].seq) if len(found) > page_size else None)

    def warnings(self, experiment_id: int, after: int = 0) -> list[DecisionRecord]:
        """Return the notes after this event_seq that warn of a likely mistake, oldest first."""
        query = decisions_of(experiment_id).where(decision.c.kind == "note", decision.c.event_seq > after)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(decision.c.event_seq)).mappings()
            return [found for found in map(decision_record, rows) if found.payload.get("warning")]

    def count_samples(self, experiment_id: int) -> int:
        """Count the trials that have started and count towards num_samples: neither repeats nor trials that users have added."""
        query = select(decision.c.payload).where(decision.c.experiment_id == experiment_id, decision.c.kind == "start")
        with self._database.read() as connection:
            starts = connection.execute(query).scalars()
            return sum(not start.get("asked") and start.get("repeat_of") is None for start in starts)

    def count_reports(self, experiment_id: int) -> int:
        """Count the reports in the log, without reading them."""
        query = select(func.count()).where(event.c.experiment_id == experiment_id, event.c.report_no.is_not(None))
        with self._database.read() as connection:
            return int(connection.execute(query).scalar_one())

    def newest_time(self, experiment_id: int) -> float | None:
        """Return the time of the newest event, or None if there is none."""
        query = select(event.c.time).where(event.c.experiment_id == experiment_id)
        with self._database.read() as connection:
            return connection.execute(query.order_by(event.c.event_seq.desc()).limit(1)).scalar()

    def events_after(self, experiment_id: int, seq: int, limit: int = 1000) -> list[StreamItem]:
        """Return the events, decisions and reports whose event_seq is in (seq, seq + limit], in order."""
        with self._database.read() as connection:
            return history.stream(connection, experiment_id, seq, limit)


def decisions_of(experiment_id: int) -> Select[Any]:
    columns = decision.c["event_seq", "time", "kind", "trial_number", "reason", "state", "payload"]
    return select(*columns).where(decision.c.experiment_id == experiment_id)


def decision_record(row: Any) -> DecisionRecord:
    parts = dict(row)
    return DecisionRecord(seq=parts.pop("event_seq"), trial=parts.pop("trial_number"), **parts)
