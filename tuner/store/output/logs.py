"""The logs of ranks: the rows of `log_chunk`, written, merged, and read as text."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tuner.domain.logs import CHUNK_BYTES, LogChunk, LogLimit, Range, merged
from tuner.errors import NotFound
from tuner.store.output.log_text import Piece, text_of
from tuner.store.records import LogQuery, OpenLog, RankLog
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.database import Database

_SEGMENT = """
SELECT s.id FROM segment s JOIN trial t ON t.id = s.trial_id
WHERE t.experiment_id = ? AND t.number = ? AND s.ordinal = ?"""
_INSERT = """
INSERT INTO log_chunk (segment_id, rank, start, size, time, data) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"""
_DROP_OLD = "DELETE FROM log_chunk WHERE segment_id = ? AND rank = ? AND start >= ? AND start + size <= ? AND size > 0"
_ROWS = "SELECT start, size, time, data FROM log_chunk WHERE segment_id = ? AND rank = ? ORDER BY start, size DESC"
_RANGES = "SELECT start, size FROM log_chunk WHERE segment_id = ? AND rank = ?"
_DELETE = "DELETE FROM log_chunk WHERE segment_id = ? AND rank = ? AND start = ? AND size = ?"
_DATA = "SELECT data FROM log_chunk WHERE segment_id = ? AND rank = ? AND start = ? AND size = ?"
_INDEX = """
SELECT t.number, s.ordinal, c.segment_id, c.rank, c.start, c.size, c.time
FROM log_chunk c JOIN segment s ON s.id = c.segment_id JOIN trial t ON t.id = s.trial_id
WHERE {where} ORDER BY t.number, s.ordinal, c.rank, c.start, c.size DESC"""
_RUNNING = "t.experiment_id = ? AND (s.ended_at IS NULL OR s.ended_at >= ?)"
_OPEN = """
SELECT s.id, s.public_id, t.number, s.ordinal, s.placement FROM segment s JOIN trial t ON t.id = s.trial_id
WHERE t.experiment_id = ? AND s.placement IS NOT NULL AND (s.ended_at IS NULL OR s.ended_at >= ?)"""
_LAST_END = "SELECT MAX(s.ended_at) FROM segment s JOIN trial t ON t.id = s.trial_id WHERE t.experiment_id = ?"
_PRUNABLE = """e.ended_at < ? AND NOT EXISTS (
  SELECT 1 FROM command k WHERE k.experiment_id = e.id AND k.state = 'pending' AND k.command = 'continue')"""
_PRUNE = f"""
DELETE FROM log_chunk WHERE segment_id IN (
  SELECT s.id FROM segment s JOIN trial t ON t.id = s.trial_id JOIN experiment e ON e.id = t.experiment_id
  WHERE e.id = ? AND {_PRUNABLE})"""
_OLD = f"""
SELECT e.id, e.public_id FROM experiment e WHERE {_PRUNABLE} AND EXISTS (
  SELECT 1 FROM log_chunk c JOIN segment s ON s.id = c.segment_id JOIN trial t ON t.id = s.trial_id
  WHERE t.experiment_id = e.id)"""
_LAST_S = 60.0
_PROJECT = "SELECT e.project FROM trial t JOIN experiment e ON e.id = t.experiment_id WHERE t.public_id = ?"
_ENDED = "SELECT rank FROM log_chunk WHERE segment_id = ? AND size = 0"

Segment = tuple[int, int]
"""The number of a trial, and the ordinal of one of its segments."""
LogKey = tuple[int, int, int]
"""The number of a trial, the ordinal of one of its segments, and a rank."""


class Logs:
    """The logs of ranks. Since no decision depends on them, any process may write them without a lease."""

    def __init__(self, database: Database, project: str | None = None) -> None:
        self._database = database
        self._project = project

    def add(
        self, experiment_id: int, chunks: Mapping[Segment, Sequence[LogChunk]], *, limit: LogLimit | None = None
    ) -> None:
        """Add output of ranks. Ignore chunks that are already stored, and chunks of segments that are not in the database.

        Args:
            experiment_id: the internal id.
            chunks: the chunks of each (trial, segment).
            limit: the sizes of the head and the tail of a log. If given, delete the chunks between head and tail.
        """
        with self._database.write() as cursor:
            _add(cursor, experiment_id, chunks, limit)

    def compact(self, experiment_id: int, segment: Segment, rank: int, limit: LogLimit) -> None:
        """Merge the small chunks of a log, so that the log takes less space and is quicker to read."""
        with self._database.write() as cursor:
            _compact(cursor, experiment_id, segment, rank, limit.head)

    def ranges(self, experiment_id: int, segment: Segment, rank: int) -> list[Range]:
        """Return the byte ranges of a rank's log that are stored."""
        with self._database.cursor() as (cursor, _):
            return _ranges(cursor, experiment_id, segment, rank)

    def unfinished(self, experiment_id: int) -> list[OpenLog]:
        """Return the incomplete logs of the segments that are running or were among the last to end."""
        with self._database.cursor() as (cursor, _):
            return _unfinished(cursor, experiment_id)

    def of_trial(self, public_id: str, query: LogQuery | None = None) -> list[RankLog]:
        """Return the logs of a trial's ranks, by segment and rank. Raise NotFound if there is no such trial."""
        with self._database.cursor() as (cursor, _):
            return _of_trial(cursor, public_id, query or LogQuery(), self._project)

    def recent(self, experiment_id: int, since: float, ends: Mapping[LogKey, int]) -> list[RankLog]:
        """Return the new parts of all logs whose segment is running or ended after `since`.

        ends: maps (trial, segment, rank) to the end of the part that the caller already has.
        """
        with self._database.cursor() as (cursor, _):
            return _recent(cursor, experiment_id, since, ends)

    def prune(self, before: float) -> set[str]:
        """Delete the logs of experiments that ended before this time, unless a user has asked to continue them.

        Return the public ids of those that lost their logs.
        """
        with self._database.cursor() as (cursor, _):
            old = {row[0]: row[1] for row in cursor.rows(_OLD, (before,))}
        lost = set()
        for experiment, public_id in old.items():  # a transaction for each, so that drivers need not wait long
            with self._database.write() as cursor:
                cursor.execute(_PRUNE, (experiment, before))  # a user may have continued the experiment in the meantime
                if cursor.rowcount:
                    lost.add(public_id)
        return lost

    def prunable(self, before: float) -> set[str]:
        """Return the public ids of the experiments whose logs `prune` may delete, also of those without logs."""
        with self._database.cursor() as (cursor, _):
            return {row[0] for row in cursor.rows(f"SELECT e.public_id FROM experiment e WHERE {_PRUNABLE}", (before,))}

    def ends(self, experiment_id: int) -> dict[LogKey, int]:
        """Return a dict from (trial, segment, rank) to the current end of the log, for each log of an experiment."""
        with self._database.cursor() as (cursor, _):
            found = _rows(cursor, "t.experiment_id = ?", [experiment_id])
        return {key: max(row.end for row in rows) for key, rows in found.items()}


# -- writing -----------------------------------------------------------------------------------------------------------


def _add(cursor: Cursor, experiment: int, chunks: Mapping[Segment, Sequence[LogChunk]], limit: LogLimit | None) -> None:
    for key, found in chunks.items():
        segment = cursor.value(_SEGMENT, (experiment, *key))
        if segment is None or not found:
            continue
        cursor.executemany(_INSERT, [(segment, c.rank, c.start, c.size, c.time, c.data) for c in found])
        if limit is None:
            continue
        ends: dict[int, int] = {}
        for chunk in found:
            ends[chunk.rank] = max(chunk.end, ends.get(chunk.rank, 0))
        for rank, end in ends.items():
            if end > limit.head + limit.tail:
                cursor.execute(_DROP_OLD, (segment, rank, limit.head, end - limit.tail))


def _compact(cursor: Cursor, experiment: int, key: Segment, rank: int, head: int) -> None:
    """Merge small neighboring chunks of a log into chunks of at most CHUNK_BYTES. No merged chunk crosses `head`."""
    segment = cursor.value(_SEGMENT, (experiment, *key))
    rows = [LogChunk(rank, row[0], row[1], bytes(row[3]), row[2]) for row in cursor.rows(_ROWS, (segment, rank))]
    for group in _neighbors((row for row in rows if row.size), head):
        if len(group) > 1:
            whole = LogChunk.of(rank, group[0].start, _content(group), group[-1].time)
            cursor.executemany(_DELETE, [(segment, rank, chunk.start, chunk.size) for chunk in group])
            cursor.execute(_INSERT, (segment, rank, whole.start, whole.size, whole.time, whole.data))


def _neighbors(chunks: Iterable[LogChunk], head: int) -> Iterator[list[LogChunk]]:
    """Yield runs of chunks that have no gaps between them and together fit into one chunk."""
    group: list[LogChunk] = []
    for chunk in chunks:
        if group:
            start, end = group[0].start, max(member.end for member in group)
            crosses = start < head <= chunk.start
            if chunk.start <= end and max(end, chunk.end) - start <= CHUNK_BYTES and not crosses:
                if chunk.end > end:
                    group.append(chunk)
                continue
            yield group
        group = [chunk]
    if group:
        yield group


def _ranges(cursor: Cursor, experiment: int, key: Segment, rank: int) -> list[Range]:
    """Return the byte ranges of a rank's log that are in the database."""
    segment = cursor.value(_SEGMENT, (experiment, *key))
    return merged((row[0], row[0] + row[1]) for row in cursor.rows(_RANGES, (segment, rank)))


def _unfinished(cursor: Cursor, experiment: int) -> list[OpenLog]:
    """Return the incomplete logs of the segments that are running or were among the last to end."""
    found = []
    since = (cursor.value(_LAST_END, (experiment,)) or 0.0) - _LAST_S
    for segment, public_id, number, ordinal, placement in cursor.rows(_OPEN, (experiment, since)):
        ended = {row[0] for row in cursor.rows(_ENDED, (segment,))}
        for place in (json.loads(placement) or {}).get("ranks", ()):
            if place["rank"] not in ended:
                found.append(OpenLog(number, ordinal, public_id, place["rank"], place["node"]))
    return found


# -- reading -----------------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """A chunk of a log, without the chunk's data."""

    trial: int
    ordinal: int
    segment: int
    rank: int
    start: int
    size: int
    time: float

    @property
    def end(self) -> int:
        return self.start + self.size


def _of_trial(cursor: Cursor, trial: str, query: LogQuery, project: str | None) -> list[RankLog]:
    """Return those logs of a trial that match the query, by segment and rank. Raise NotFound if there is no such trial."""
    found = cursor.value(_PROJECT, (trial,))
    if found is None or project not in (None, found):
        raise NotFound(f"no trial {trial}")
    where = "t.public_id = ?"
    values: list[Any] = [trial]
    for column, value in (("c.rank", query.rank), ("s.ordinal", query.segment)):
        if value is not None:
            where, values = f"{where} AND {column} = ?", [*values, value]
    return [_rank_log(cursor, rows, query) for rows in _rows(cursor, where, values).values()]


def _recent(cursor: Cursor, experiment: int, since: float, ends: Mapping[LogKey, int]) -> list[RankLog]:
    """For each log whose segment is running or ended after `since`, return the part after the end given in `ends`."""
    found = []
    for key, rows in _rows(cursor, _RUNNING, [experiment, since]).items():
        known = ends.get(key, 0)
        if any(row.end > known or not row.size for row in rows):
            found.append(_rank_log(cursor, rows, LogQuery(offset=known)))
    return found


def _rows(cursor: Cursor, where: str, values: Sequence[Any]) -> dict[LogKey, list[_Row]]:
    logs: dict[LogKey, list[_Row]] = {}
    for row in itertools.starmap(_Row, cursor.rows(_INDEX.format(where=where), values)):
        logs.setdefault((row.trial, row.ordinal, row.rank), []).append(row)
    return logs


def _rank_log(cursor: Cursor, rows: Sequence[_Row], query: LogQuery) -> RankLog:
    complete = any(row.size == 0 for row in rows)
    pieces = [Piece(row.start, row.end, functools.partial(_load, cursor, row)) for row in rows if row.size]
    found = text_of(pieces, query, complete)
    return RankLog(
        trial=rows[0].trial,
        segment=rows[0].ordinal,
        rank=rows[0].rank,
        text=found.text,
        start=found.start,
        end=found.end,
        left_out=found.left_out,
        complete=complete and found.end >= max(row.end for row in rows),
        time=max(row.time for row in rows),
    )


def _load(cursor: Cursor, row: _Row) -> bytes:
    data = cursor.value(_DATA, (row.segment, row.rank, row.start, row.size))
    return LogChunk(row.rank, row.start, row.size, bytes(data), row.time).content()


def _content(pieces: Sequence[LogChunk]) -> bytes:
    """Return the joined content of chunks that have no gaps between them. The chunks may overlap."""
    content = b""
    for piece in pieces:
        content += piece.content()[pieces[0].start + len(content) - piece.start :]
    return content
