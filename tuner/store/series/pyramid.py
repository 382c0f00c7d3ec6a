"""Buckets of metric points, so that a curve can be read at the resolution of a screen without reading all its points.

A bucket summarizes consecutive reports of one metric in one segment by their first, last, lowest and highest point. A
bucket of level 1 covers 8 reports, a bucket of level 2 covers 64 reports, and so on. A row of `metric_bucket` contains
the 8 buckets of a level that make up one bucket of the next level. Each is packed as a `RECORD`. A row is written in
the transaction that commits the last report that it covers, or when its segment ends. Until then, these reports are
read as points. So a report costs a fraction of a row.

Values that are not finite are counted in `gaps`. Such a value is the lowest or highest only if its bucket has no finite value.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

FACTOR = 8
SEAL_FROM = 16  # a segment with fewer reports gets no buckets, since its points are read just as quickly

#: n, gaps, and (report_no, step, time, value) of the first, last, lowest and highest point
RECORD = struct.Struct("<II" + 4 * "Iidd")

#: the names and types of the fields of RECORD, in the form of a numpy dtype
FIELDS = [("n", "<u4"), ("gaps", "<u4")] + [
    (f"{point}_{field}", kind)
    for point in ("first", "last", "low", "high")
    for field, kind in (("no", "<u4"), ("step", "<i4"), ("time", "<f8"), ("value", "<f8"))
]

Row = tuple[Any, ...]  # (segment, key, report_no, step, time, value or None, kind), as metric_point has them
Bucket = tuple[Any, ...]  # the fields of RECORD

_NO, _POINT = 2, slice(2, 6)  # where a Row has its report_no and its point
_BY_KEY, _BY_NO = itemgetter(1), itemgetter(_NO)
_FIRST, _LAST, _LOW, _HIGH = slice(2, 6), slice(6, 10), slice(10, 14), slice(14, 18)

NOT_FINITE = {1: math.nan, 2: math.inf, 3: -math.inf}

# The join begins with the metrics of the experiment, so that every range of points is one look-up in the primary key.
_POINTS = """
SELECT p.segment_id, p.key_id, p.report_no, p.step, p.time, p.value, p.kind FROM metric_key k CROSS JOIN metric_point p
WHERE k.experiment_id = ? AND p.segment_id = ? AND p.key_id = k.id AND p.report_no > ? ORDER BY p.key_id, p.report_no"""
_ROWS = """
SELECT b.key_id, b.chunk, b.data FROM metric_key k CROSS JOIN metric_bucket b
WHERE k.experiment_id = ? AND b.segment_id = ? AND b.key_id = k.id AND b.level = ? AND b.chunk >= ? AND b.chunk < ?
ORDER BY b.key_id, b.chunk"""
_CLOSED = """
SELECT COALESCE(MAX(b.chunk), 0) FROM metric_key k CROSS JOIN metric_bucket b
WHERE k.experiment_id = ? AND b.segment_id = ? AND b.key_id = k.id AND b.level = 1"""
_UPSERT = """
INSERT INTO metric_bucket (segment_id, key_id, level, chunk, last_no, data) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (segment_id, key_id, level, chunk) DO UPDATE SET last_no = excluded.last_no, data = excluded.data"""


def reports_per_bucket(level: int) -> int:
    return FACTOR**level  # type: ignore[no-any-return]


def reports_per_row(level: int) -> int:
    return FACTOR ** (level + 1)  # type: ignore[no-any-return]


def of_points(points: Sequence[Row]) -> Bucket:
    """Return one bucket with all points, which must be in report order. Of equal values, take the earliest."""
    values = [point[5] for point in points]
    if None in values:
        return _with_gaps(points)
    low, high = points[values.index(min(values))], points[values.index(max(values))]
    return (len(points), 0, *points[0][_POINT], *points[-1][_POINT], *low[_POINT], *high[_POINT])


def _with_gaps(points: Sequence[Row]) -> Bucket:
    finite = [point for point in points if point[5] is not None]
    low = min(finite, key=itemgetter(5), default=points[0])
    high = max(finite, key=itemgetter(5), default=points[0])
    found = (points[0], points[-1], low, high)
    named = [number for point in found for number in (*point[2:5], NOT_FINITE.get(point[6], point[5]))]
    return (len(points), len(points) - len(finite), *named)


def merged(buckets: Sequence[Bucket]) -> Bucket:
    """Merge buckets, which must be in report order, into one bucket with all their points."""
    finite = [bucket for bucket in buckets if bucket[0] > bucket[1]] or buckets[:1]
    low = min(finite, key=itemgetter(_LOW.stop - 1))
    high = max(finite, key=itemgetter(_HIGH.stop - 1))
    counts = (sum(bucket[0] for bucket in buckets), sum(bucket[1] for bucket in buckets))
    return (*counts, *buckets[0][_FIRST], *buckets[-1][_LAST], *low[_LOW], *high[_HIGH])


def packed(buckets: Iterable[Bucket]) -> bytes:
    return b"".join(RECORD.pack(*bucket) for bucket in buckets)


def unpacked(data: bytes) -> list[Bucket]:
    return list(RECORD.iter_unpack(data))


class _Open:
    """The state of a running segment."""

    __slots__ = ("last_no", "points", "rows")

    def __init__(self, rows: int = 0, last_no: int = 0, points: list[Row] | None = None) -> None:
        self.rows = rows  # the number of complete rows of level 1
        self.last_no = last_no  # the number of the segment's newest report
        self.points: list[Row] = points or []  # the points that are not in these rows


class Pyramid:
    """Writes the buckets of one experiment, in the transactions that write its points.

    The points of running segments that no row covers yet are kept in memory. They are read from the database if a segment is
    not in memory.
    """

    def __init__(self, experiment: int) -> None:
        self._experiment = experiment
        self._open: dict[int, _Open] = {}

    def opened(self, segment: int) -> None:
        """Register a new segment, which saves the two queries for its stored buckets and points."""
        self._open[segment] = _Open()

    def add(self, cursor: Any, segment: int, report_no: int, points: Sequence[Row]) -> None:
        """Add the points of one report, before they are inserted into the table. Do nothing if the report is already known."""
        known = self._open.get(segment) or self._load(cursor, segment)
        if report_no > known.last_no:
            known.points += points
            known.last_no = report_no

    def write(self, cursor: Any, segments: Iterable[int]) -> None:
        """For each of these segments, write the rows that have become complete."""
        for segment in segments:
            known = self._open[segment]
            complete = known.last_no // reports_per_row(1)
            if complete > known.rows:
                limit = complete * reports_per_row(1)
                behind = [point for point in known.points if point[_NO] > limit]
                self._write_lowest(cursor, segment, [point for point in known.points if point[_NO] <= limit])
                level, begin, end = 1, known.rows, complete
                while (end := end // FACTOR) > (begin := begin // FACTOR):
                    self._write_above(cursor, segment, level, begin, end)
                    level += 1
                known.rows, known.points = complete, behind

    def seal(self, cursor: Any, segment: int) -> None:
        """Write all remaining rows of a segment that will not report again, including incomplete rows."""
        known = self._open.pop(segment, None) or self._load(cursor, segment)
        self._open.pop(segment, None)
        if known.last_no < SEAL_FROM:
            return
        self._write_lowest(cursor, segment, known.points)
        level, begin = 1, known.rows
        while (rows := -(-known.last_no // reports_per_row(level))) > 1:
            begin //= FACTOR
            self._write_above(cursor, segment, level, begin, -(-rows // FACTOR))
            level += 1

    def _load(self, cursor: Any, segment: int) -> _Open:
        rows = int(cursor.value(_CLOSED, (self._experiment, segment)))
        points = cursor.rows(_POINTS, (self._experiment, segment, rows * reports_per_row(1)))
        last_no = max((point[_NO] for point in points), default=rows * reports_per_row(1))
        known = self._open[segment] = _Open(rows, last_no, points)
        return known

    def _write_lowest(self, cursor: Any, segment: int, points: list[Row]) -> None:
        out = []
        points.sort(key=_BY_KEY)  # stable: keeps the reports in order
        for key, of_key in groupby(points, _BY_KEY):
            for of_row in _split(list(of_key), reports_per_row(1)):
                data = packed(of_points(of_bucket) for of_bucket in _split(of_row, FACTOR))
                last_no = of_row[-1][_NO]
                out.append((segment, key, 1, (last_no - 1) // reports_per_row(1), last_no, data))
        if out:
            cursor.executemany(_UPSERT, out)

    def _write_above(self, cursor: Any, segment: int, level: int, begin: int, end: int) -> None:
        """Write the rows [begin, end) of the level above `level`."""
        rows = cursor.rows(_ROWS, (self._experiment, segment, level, begin * FACTOR, end * FACTOR))
        out = []
        # Each row of a level becomes one bucket of the next level.
        for (key, chunk), below in groupby(rows, lambda row: (row[0], row[1] // FACTOR)):
            buckets = [merged(unpacked(row[2])) for row in below]
            out.append((segment, key, level + 1, chunk, buckets[-1][_LAST.start], packed(buckets)))
        if out:
            cursor.executemany(_UPSERT, out)


def _split(points: list[Row], size: int) -> Iterator[list[Row]]:
    """Split the points of one metric after every report_no that is a multiple of `size`."""
    begin = 0
    while begin < len(points):
        limit = ((points[begin][_NO] - 1) // size + 1) * size
        end = bisect_right(points, limit, begin, min(begin + size, len(points)), key=_BY_NO)
        yield points[begin:end]
        begin = end


def fill(cursor: Any) -> None:
    """Write the buckets of all points, in a database that has no buckets yet.

    The migration that adds the table `metric_bucket` calls this function, so it must use only columns that the tables had then.
    """
    for experiment, segment, ended_at, last_no in cursor.rows(
        """SELECT t.experiment_id, s.id, s.ended_at, (SELECT MAX(p.report_no) FROM metric_key k CROSS JOIN metric_point p
           WHERE k.experiment_id = t.experiment_id AND p.segment_id = s.id AND p.key_id = k.id)
           FROM segment s JOIN trial t ON t.id = s.trial_id ORDER BY s.id"""
    ):
        if last_no is not None:
            pyramid = Pyramid(experiment)
            pyramid.add(cursor, segment, 0, ())
            if ended_at is None:
                pyramid.write(cursor, [segment])
            else:
                pyramid.seal(cursor, segment)
