"""Read curves at the resolution of a screen: from buckets if there are many points, otherwise from the points.

Every point that is returned was reported. A curve contains the minimum and maximum of every `width` consecutive reports, and the
first and last report of every segment. So no spike is lost. The same log always gives the same curve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.store.records import Across, Curve, Curves, CurveSegment
from tuner.store.series import clocks, pyramid, thinning
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.stored import stored_objectives
from tuner.store.sql.tables import dumps

MAX_ROWS = 60_000  # the maximum number of points that are read individually
MAX_BUCKETS = 400_000  # the maximum number of buckets that are read
MAX_POINTS = 100_000  # the maximum number of points that are returned
MAX_PLACED = 200_000  # the maximum number of reports that are read together with their positions on the axis
MAX_LOOKUPS = 20_000  # the maximum number of reports whose positions on the axis are looked up at once

Floats = NDArray[np.float64]
_RECORD = np.dtype(pyramid.FIELDS)
MAX_LEVEL = 9  # no segment has 8 ** 9 reports

# A list of (segment id, first report_no, last report_no), as a table.
_WANTED = {
    "sqlite": """(SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS lo, json_extract(value, '$[2]') AS hi
        FROM json_each(?)) w""",
    "postgresql": "unnest(?::bigint[], ?::int[], ?::int[]) AS w(id, lo, hi)",
}
_KEY = "SELECT id FROM metric_key WHERE experiment_id = ? AND name = ?"
_OWNERS = """
SELECT t.number, t.state, t.best_value, s.id, s.ordinal, s.cause, s.start_step,
  (SELECT p.report_no FROM metric_point p WHERE p.segment_id = s.id AND p.key_id = ? ORDER BY p.report_no DESC LIMIT 1)
FROM trial t CROSS JOIN segment s WHERE s.trial_id = t.id AND t.experiment_id = ? {chosen}
ORDER BY t.number, s.ordinal"""
# Each range has a single lower bound. Of two lower bounds, SQLite would look up one in the index and check the other row by row.
_POINTS = """
SELECT p.segment_id, p.report_no, p.step, p.time, p.value, p.kind FROM {wanted} CROSS JOIN metric_point p
WHERE p.segment_id = w.id AND p.key_id = ? AND p.report_no >= w.lo AND p.report_no <= w.hi"""
_USER_STEPS = """
SELECT p.segment_id, p.report_no, p.user_step FROM {wanted} CROSS JOIN metric_point p
WHERE p.segment_id = w.id AND p.key_id = ? AND p.report_no = w.lo AND p.user_step IS NOT NULL"""
_VALUES = """
SELECT p.segment_id, p.report_no, p.value FROM {wanted} CROSS JOIN metric_point p
WHERE p.segment_id = w.id AND p.key_id = ? AND p.report_no = w.lo AND p.value IS NOT NULL"""
# The next queries return a row for each report that has a position on the axis. Their columns have the same order, and `x`
# is the position.
_STEPPED = """
SELECT p.segment_id, p.report_no, p.step, p.time, p.value, p.kind, p.user_step AS x FROM {wanted} CROSS JOIN metric_point p
WHERE p.segment_id = w.id AND p.key_id = ? AND p.report_no >= w.lo AND p.report_no <= w.hi AND p.user_step IS NOT NULL"""
_MEASURED = """
SELECT p.segment_id, p.report_no, p.step, p.time, p.value, p.kind, q.value AS x
FROM {wanted} CROSS JOIN metric_point q CROSS JOIN metric_point p
WHERE q.segment_id = w.id AND q.key_id = ? AND q.report_no >= w.lo AND q.report_no <= w.hi AND q.value IS NOT NULL
AND p.segment_id = q.segment_id AND p.key_id = ? AND p.report_no = q.report_no"""
_COUNT = """
SELECT COUNT(*), COUNT(p.user_step), COUNT(p.value) FROM {wanted} CROSS JOIN metric_point p
WHERE p.segment_id = w.id AND p.key_id = ? AND p.report_no >= w.lo AND p.report_no <= w.hi"""
_ROWS = """
SELECT b.segment_id, b.data FROM {wanted} CROSS JOIN metric_bucket b
WHERE b.segment_id = w.id AND b.key_id = ? AND b.level = ? AND b.chunk >= (w.lo - 1) / ? AND b.chunk <= (w.hi - 1) / ?"""


@dataclass(frozen=True, slots=True)
class Span:
    """The requested range of the axis `x`, as `Metrics.curves` explains it, except that "time" is given in Unix timestamps."""

    x: Across
    x_metric: str | None = None
    low: float | None = None
    high: float | None = None

    @property
    def whole(self) -> bool:
        return self.low is None and self.high is None

    @property
    def looked_up(self) -> bool:
        """True if buckets lack the points' positions on this axis, so that the reports themselves must be read."""
        return self.x in ("user_step", "metric")

    @property
    def ends(self) -> tuple[float, float]:
        return (-np.inf if self.low is None else self.low, np.inf if self.high is None else self.high)


@dataclass(frozen=True, slots=True)
class Drawn:
    """The points to draw, ordered by segment and within a segment by report."""

    owner: NDArray[np.int64]
    """The id of each point's segment."""

    number: NDArray[np.int64]
    """The report_no of each point."""

    x: Floats
    y: Floats

    def part(self, kept: NDArray[np.bool_]) -> Drawn:
        return Drawn(self.owner[kept], self.number[kept], self.x[kept], self.y[kept])


NOTHING = Drawn(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0))


@dataclass(frozen=True, slots=True)
class Part:
    """The curve of one segment, which has `count` points. For `last_iteration`, see `CurveSegment`."""

    trial: int
    state: str
    best_value: float | None
    ordinal: int
    cause: str
    last_iteration: int
    count: int


@dataclass(frozen=True, slots=True)
class Columns:
    """Curves, with all their points in two arrays. A value that is not finite is NaN.

    The curves contain the minimum and maximum of every `width` consecutive reports; 1 means every report.
    """

    width: int
    parts: Sequence[Part]
    x: Floats
    y: Floats

    def as_curves(self) -> Curves:
        across, values = self.x.tolist(), self.y.tolist()
        for at in np.flatnonzero(np.isnan(self.y)).tolist():
            values[at] = None
        found, end = [], 0
        for (number, state, best), parts in groupby(self.parts, lambda part: (part.trial, part.state, part.best_value)):
            segments = []
            for part in parts:
                begin, end = end, end + part.count
                segments.append(
                    CurveSegment(
                        ordinal=part.ordinal,
                        cause=part.cause,
                        last_iteration=part.last_iteration,
                        x=across[begin:end],
                        y=values[begin:end],
                    )
                )
            found.append(Curve(trial=number, state=state, best_value=best, segments=segments))
        return Curves(width=self.width, curves=tuple(found))


NO_CURVES = Columns(1, (), np.empty(0), np.empty(0))


def read(
    cursor: Cursor, experiment: int, metric: str, span: Span, points: int, trials: Sequence[int] | None = None
) -> Columns:
    """Return the curves of these trials, by default of all trials.

    The longest curve has about `points` points, and shorter curves have proportionally fewer.
    """
    key = cursor.value(_KEY, (experiment, metric))
    if key is None:
        return NO_CURVES
    owners = _owners(cursor, experiment, key, trials)
    kept = 1
    if cursor.value("SELECT thinned_at FROM experiment WHERE id = ?", (experiment,)) is not None:
        kept = pyramid.reports_per_bucket(thinning.level_of(max((row[7] for row in owners), default=0)))
    axis = clocks.of_trials(cursor, experiment, trials) if span.x == "trial_time" else None

    def drawn_of(wanted: Mapping[int, tuple[int, int]]) -> tuple[int, Drawn]:
        total = sum(hi - lo + 1 for lo, hi in wanted.values())
        width, level = _resolution(_steps(owners, wanted), total, points)
        if width > kept:
            width = -(-width // kept) * kept
        drawn = _drawn(*_records(cursor, key, wanted, level), width, span.x, axis)
        return width, _looked_up(cursor, experiment, key, drawn, span) if span.looked_up else drawn

    wanted = _wanted(cursor, key, owners, span, axis)
    if span.looked_up:
        placed = _placed(cursor, experiment, key, wanted, span)
        if placed is not None:
            width, drawn = _drawn_of_placed(placed, owners, span, points)
            return _in_order(max(width, kept), owners, drawn)
    width, drawn = drawn_of(wanted)
    if span.looked_up and not span.whole:
        width, drawn = drawn_of(_around(drawn, *span.ends))
    return _in_order(max(width, kept), owners, drawn)


def best_so_far(cursor: Cursor, experiment: int, metric: str, mode: str) -> tuple[list[float], list[float]]:
    """Return two lists: the time of each improvement, as a Unix timestamp, and the best value from then on.

    The result is exact for an objective in the experiment's own mode, because the writer stores these improvements. For any
    other metric or mode, the improvements are computed from buckets, and some of them may be missing.
    """
    found = cursor.rows(_KEY, (experiment, metric))
    if not found:
        return [], []
    key = found[0][0]
    objectives = stored_objectives(cursor, experiment)
    if (metric, mode) in objectives:
        rows = cursor.rows("SELECT time, value FROM best_point WHERE key_id = ? ORDER BY event_seq", (key,))
        times = np.maximum.accumulate(np.array([row[0] for row in rows]))  # the nodes' clocks may differ
        return times.tolist(), [row[1] for row in rows]
    wanted = {row[3]: (1, row[7]) for row in _owners(cursor, experiment, key, None)}
    total = sum(hi for _, hi in wanted.values())
    records, _ = _records(cursor, key, wanted, _resolution(total, total, MAX_POINTS)[1])
    records = records[records["n"] > records["gaps"]]
    point, sign = ("high", 1) if mode == "max" else ("low", -1)
    records = records[np.lexsort((sign * records[f"{point}_value"], records[f"{point}_time"]))]
    scores = sign * records[f"{point}_value"]
    records = records[scores > np.r_[-np.inf, np.maximum.accumulate(scores)[:-1]]]
    return records[f"{point}_time"].tolist(), records[f"{point}_value"].tolist()


def _owners(cursor: Cursor, experiment: int, key: int, trials: Sequence[int] | None) -> list[Any]:
    """Return (trial number, state, best value, segment id, ordinal, cause, start_step, newest report_no) for each segment."""
    if trials is None:
        return [row for row in cursor.rows(_OWNERS.format(chosen=""), (key, experiment)) if row[-1] is not None]
    chosen, numbers = clocks.among(cursor, trials)
    rows = cursor.rows(_OWNERS.format(chosen=chosen), (key, experiment, *numbers))
    return [row for row in rows if row[-1] is not None]


def _wanted(
    cursor: Cursor, key: int, owners: Sequence[Any], span: Span, axis: clocks.TrialClocks | None
) -> dict[int, tuple[int, int]]:
    """Return segment id -> (first, last) report_no of the part of the segment that lies in the span."""
    whole = {row[3]: (1, row[7]) for row in owners}
    if span.whole or span.looked_up:
        return whole
    low, high = span.ends
    if span.x == "step":
        # Add a report on either side, so that lines reach the edge of the chart.
        starts = {row[3]: row[6] for row in owners}
        parts = {s: (max(low - starts[s] - 1, 1), min(high - starts[s] + 1, hi)) for s, (_, hi) in whole.items()}
        return {s: (int(np.ceil(lo)), int(hi)) for s, (lo, hi) in parts.items() if np.ceil(lo) <= hi}
    return _in_time(cursor, key, whole, axis, low, high)


def _in_time(
    cursor: Cursor,
    key: int,
    whole: Mapping[int, tuple[int, int]],
    axis: clocks.TrialClocks | None,
    low: float,
    high: float,
) -> dict[int, tuple[int, int]]:
    """Find the reports between two times, and at both ends at least one more, so that lines reach the edge of the chart.

    The search begins in coarse buckets, and continues in finer buckets as the range gets smaller.
    """
    found = dict(whole)
    for level in range(MAX_LEVEL, -1, -1):
        longest = max((hi - lo + 1 for lo, hi in found.values()), default=0)
        if level and 4 * pyramid.reports_per_bucket(level) > longest:
            continue
        records, segments = _records(cursor, key, found, level)
        first, last = (_on_axis(records[name], segments, axis) for name in ("first_time", "last_time"))
        inside = (last >= low) & (first <= high)
        # The line from a bucket to the next one may be visible although neither of the two is.
        left, right = last[:-1], first[1:]
        line = (np.maximum(left, right) >= low) & (np.minimum(left, right) <= high) & (np.diff(segments) == 0)
        inside[:-1] |= line
        inside[1:] |= line
        records, segments = records[inside], segments[inside]
        found = {
            int(segments[begin]): (int(records["first_no"][begin]), int(records["last_no"][end - 1]))
            for begin, end in _runs(segments)
        }
        if max((hi - lo + 1 for lo, hi in found.values()), default=0) >= 16 * pyramid.reports_per_bucket(level):
            break  # more precision would not be visible
    return found


def _on_axis(times: Floats, segments: NDArray[np.int64], axis: clocks.TrialClocks | None) -> Floats:
    """Return the positions of these times, which are from these segments, on the axis."""
    return times if axis is None else axis.seconds(times, segments)


def _around(drawn: Drawn, low: float, high: float) -> dict[int, tuple[int, int]]:
    """Return segment id -> (first, last) report_no of the part that is visible between these ends of the axis."""
    found = {}
    for begin, end in _runs(drawn.owner):
        x, number = drawn.x[begin:end], drawn.number[begin:end]
        # A line is visible if the range between its two ends overlaps with the axis.
        left, right = (x[:-1], x[1:]) if len(x) > 1 else (x, x)
        seen = np.flatnonzero((np.maximum(left, right) >= low) & (np.minimum(left, right) <= high))
        if len(seen):
            last = min(int(seen[-1]) + 1, len(x) - 1)
            found[int(drawn.owner[begin])] = (int(number[seen[0]]), int(number[last]))
    return found


def _steps(owners: Sequence[Any], wanted: Mapping[int, tuple[int, int]]) -> int:
    """Return the number of training iterations from the first to the last report of the wanted parts."""
    parts = [(row[6] + wanted[row[3]][0], row[6] + wanted[row[3]][1]) for row in owners if row[3] in wanted]
    return max(end for _, end in parts) - min(begin for begin, _ in parts) + 1 if parts else 0


def _resolution(steps: int, total: int, points: int, read: bool = False) -> tuple[int, int]:
    """Return (width, level of the buckets to read). Only the minimum and maximum of every `width` reports are drawn.

    Level 0 means the points themselves. If `read` is true, the points are in memory already, so their number is not
    limited.
    """
    width = 1 if steps <= points else -(-steps // max((points - 2) // 2, 1))
    width = max(width, -(-2 * total // MAX_POINTS) if total > MAX_POINTS else 1)
    level = 0
    # A group has several buckets, so that the width is not rounded up by much.
    while 4 * pyramid.reports_per_bucket(level + 1) <= width or (not read and _too_many(total, level)):
        level += 1
    size = pyramid.reports_per_bucket(level)
    return -(-width // size) * size, level


def _too_many(total: int, level: int) -> bool:
    return total > MAX_ROWS if level == 0 else total // pyramid.reports_per_bucket(level) > MAX_BUCKETS


def _records(
    cursor: Cursor, key: int, wanted: Mapping[int, tuple[int, int]], level: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the buckets of the wanted parts and the segment of each bucket, as two arrays of shape (R,), in order.

    Reports that no bucket of this level covers are read from lower levels or, if no bucket covers them, from the points.
    """
    found, owners = [], []
    left = dict(wanted)
    for at in range(level, 0, -1):
        if not left:
            break
        table, parameters = _as_table(cursor, left)
        reports = pyramid.reports_per_row(at)
        rows = cursor.rows(_ROWS.format(wanted=table), (*parameters, key, at, reports, reports))
        if not rows:
            continue
        found.append(np.frombuffer(b"".join(map(itemgetter(1), rows)), _RECORD))
        sizes = np.fromiter((len(row[1]) for row in rows), np.int64, len(rows)) // _RECORD.itemsize
        segments = np.fromiter(map(itemgetter(0), rows), np.int64, len(rows))
        owners.append(np.repeat(segments, sizes))
        left = _behind(left, segments, found[-1]["last_no"][np.cumsum(sizes) - 1], reports)
    if left:
        table, parameters = _as_table(cursor, left)
        points = cursor.rows(_POINTS.format(wanted=table), (*parameters, key))
        found.append(_of_points(points))
        owners.append(np.fromiter(map(itemgetter(0), points), np.int64, len(points)))
    if not found:
        return _of_points([]), np.empty(0, np.int64)
    records = found[0] if len(found) == 1 else np.concatenate(found)
    segments = owners[0] if len(owners) == 1 else np.concatenate(owners)
    numbers = records["first_no"].astype(np.int64)
    steps = np.diff(segments)
    if np.any(steps < 0) or np.any(np.diff(numbers)[steps == 0] < 0):  # usually the rows are already in order
        order = np.lexsort((numbers, segments))
        return records[order], segments[order]
    return records, segments


def _behind(
    wanted: Mapping[int, tuple[int, int]], segments: NDArray[np.int64], last: NDArray[Any], reports: int
) -> dict[int, tuple[int, int]]:
    """Return the wanted parts that come after the last row of a level, so that no row of this level covers them.

    Args:
        wanted: the requested parts.
        segments: (R,), the segment of each row.
        last: (R,), the last report_no in each row.
        reports: the number of reports in a complete row.
    """
    ids, which = np.unique(segments, return_inverse=True)
    ends = np.zeros(len(ids), np.int64)
    np.maximum.at(ends, which, ((last.astype(np.int64) - 1) // reports + 1) * reports)
    covered = dict(zip(ids.tolist(), ends.tolist(), strict=True))
    behind = {segment: (max(lo, covered.get(segment, 0) + 1), hi) for segment, (lo, hi) in wanted.items()}
    return {segment: (lo, hi) for segment, (lo, hi) in behind.items() if lo <= hi}


def _as_table(cursor: Cursor, wanted: Mapping[int, tuple[int, int]]) -> tuple[str, tuple[Any, ...]]:
    rows = [(segment, lo, hi) for segment, (lo, hi) in wanted.items()]
    if cursor.backend == "sqlite":
        return _WANTED["sqlite"], (dumps(rows),)
    return _WANTED["postgresql"], tuple([row[at] for row in rows] for at in range(3))


def _of_points(rows: Sequence[Any]) -> NDArray[Any]:
    """Return one bucket for each point, with only this point in it. The value of a point that is not finite is NaN."""
    records = np.zeros(len(rows), _RECORD)
    if not rows:
        return records
    _, number, step, time, value, kind = zip(*rows, strict=True)
    values = np.array(value, np.float64)  # NULL becomes NaN
    records["n"], records["gaps"] = 1, np.array(kind) != 0
    for point in ("first", "last", "low", "high"):
        records[f"{point}_no"], records[f"{point}_step"] = number, step
        records[f"{point}_time"], records[f"{point}_value"] = time, values
    return records


def _drawn(
    records: NDArray[Any],
    segments: NDArray[np.int64],
    width: int,
    across: Across,
    axis: clocks.TrialClocks | None,
    positions: NDArray[np.int64] | None = None,
) -> Drawn:
    """Return the points to draw, in order.

    Args:
        records: (R,), the buckets.
        segments: (R,), the segment of each bucket.
        width: the number of consecutive reports per group; only the minimum and maximum of each group are drawn.
        across: the axis.
        axis: the clocks of the trials if they are the axis; None if another one is.
        positions: (R,), the 1-based position that determines each bucket's group; None: the report_no determines it.
    """
    if not len(records):
        return NOTHING
    group = ((records["first_no"].astype(np.int64) if positions is None else positions) - 1) // width
    changes = np.diff(segments) != 0
    starts = np.flatnonzero(np.r_[True, (np.diff(group) != 0) | changes])
    first = np.flatnonzero(np.r_[True, changes])
    last = np.r_[first[1:] - 1, len(records) - 1]
    finite = records["n"] > records["gaps"]
    all_finite = bool(finite.all())
    lows = _extreme(records["low_value"], None if all_finite else finite, starts, np.minimum)
    highs = _extreme(records["high_value"], None if all_finite else finite, starts, np.maximum)
    # A group without a finite value is a gap.
    gaps = starts[:0] if all_finite else starts[~np.logical_or.reduceat(finite, starts)]
    chosen = [
        _points(records, segments, at, point, across, axis)
        for at, point in ((first, "first"), (last, "last"), (lows, "low"), (highs, "high"), (gaps, "first"))
    ]
    owner, number, x, y = (np.concatenate(parts) for parts in zip(*chosen, strict=True))
    # Each part is already sorted, so a stable sort is quick.
    keys = owner << 32 | number
    order = np.argsort(keys, kind="stable")
    order = order[np.r_[True, np.diff(keys[order]) != 0]]
    y = y[order]
    y[~np.isfinite(y)] = np.nan
    return Drawn(owner[order], number[order], x[order], y)


@dataclass(frozen=True, slots=True)
class Placed:
    """All reports of a metric that have a position on the axis, ordered by segment and within a segment by report."""

    records: NDArray[Any]
    """(R,), a bucket for each report."""

    segments: NDArray[np.int64]
    x: Floats


def _placed(
    cursor: Cursor, experiment: int, key: int, wanted: Mapping[int, tuple[int, int]], span: Span
) -> Placed | None:
    """Read the wanted reports that have a position on the axis.

    Return None if there are too many such reports to read one by one, or if every report has a position. The caller then
    chooses the points from the buckets, and looks up the positions of these points only.
    """
    query, keys = _STEPPED, [key]
    if span.x == "metric":
        found = cursor.value(_KEY, (experiment, span.x_metric))
        if found is None:
            return _as_placed([])
        query, keys = _MEASURED, [found, key]
    table, parameters = _as_table(cursor, wanted)
    total = sum(hi - lo + 1 for lo, hi in wanted.values())
    if total > MAX_ROWS or span.x == "user_step":
        [(reports, stepped, measured)] = cursor.rows(_COUNT.format(wanted=table), (*parameters, keys[0]))
        # If all reports have a position on the axis, so do all reports of any metric.
        total, count = (reports, stepped) if span.x == "user_step" else (total, measured)
        if count == total or count > MAX_PLACED:
            return None
    return _as_placed(cursor.rows(query.format(wanted=table), (*parameters, *keys)))


def _as_placed(rows: Sequence[Any]) -> Placed:
    records = _of_points([row[:6] for row in rows])
    segments = np.fromiter(map(itemgetter(0), rows), np.int64, len(rows))
    x = np.fromiter(map(itemgetter(6), rows), np.float64, len(rows))
    order = np.lexsort((records["first_no"], segments))
    return Placed(records[order], segments[order], x[order])


def _drawn_of_placed(placed: Placed, owners: Sequence[Any], span: Span, points: int) -> tuple[int, Drawn]:
    """Return the width and the points to draw. Only reports with a position on the axis count."""
    numbers = placed.records["first_no"].astype(np.int64)
    positions = np.empty(len(numbers), np.int64)
    seen = np.zeros(len(numbers), np.bool_)
    whole = Drawn(placed.segments, numbers, placed.x, placed.records["first_value"])
    parts = None if span.whole else _around(whole, *span.ends)
    for begin, end in _runs(placed.segments):
        positions[begin:end] = np.arange(1, end - begin + 1)
        segment = int(placed.segments[begin])
        low, high = (0, np.inf) if parts is None else parts.get(segment, (1, 0))
        seen[begin:end] = (numbers[begin:end] >= low) & (numbers[begin:end] <= high)
    records, segments, x = placed.records[seen], placed.segments[seen], placed.x[seen]
    trial_of = {row[3]: row[0] for row in owners}
    longest: Counter[int] = Counter()
    for begin, end in _runs(segments):
        longest[trial_of[int(segments[begin])]] += end - begin
    width, _ = _resolution(max(longest.values(), default=0), len(records), points, read=True)
    drawn = _drawn(records, segments, width, span.x, None, positions[seen])
    at = np.searchsorted(segments << 32 | numbers[seen], drawn.owner << 32 | drawn.number)
    return width, Drawn(drawn.owner, drawn.number, x[at], drawn.y)


def _looked_up(cursor: Cursor, experiment: int, key: int, drawn: Drawn, span: Span) -> Drawn:
    """Replace `x` with the step or the metric of each report, read from the reports. Leave out reports that lack it."""
    query = _USER_STEPS
    if span.x == "metric":
        found = cursor.value(_KEY, (experiment, span.x_metric))
        if found is None:
            return NOTHING
        query, key = _VALUES, found
    numbers = list(zip(drawn.owner.tolist(), drawn.number.tolist(), strict=True))
    places: dict[tuple[int, int], float] = {}
    for at in range(0, len(numbers), MAX_LOOKUPS):
        part = numbers[at : at + MAX_LOOKUPS]
        if cursor.backend == "sqlite":
            table, parameters = _WANTED["sqlite"], (dumps([(s, n, n) for s, n in part]),)
        else:
            parameters = ([s for s, _ in part], [n for _, n in part], [n for _, n in part])  # type: ignore[assignment]
            table = _WANTED["postgresql"]
        for segment, number, place in cursor.rows(query.format(wanted=table), (*parameters, key)):
            places[segment, number] = place
    x = np.array([places.get(number, np.nan) for number in numbers], np.float64)
    return Drawn(drawn.owner, drawn.number, x, drawn.y).part(~np.isnan(x))


def _extreme(values: Floats, finite: NDArray[np.bool_] | None, starts: NDArray[Any], pick: np.ufunc) -> NDArray[Any]:
    """Return the index of the lowest or highest value of each group with a finite value. Of equal values, take the earliest.

    Args:
        values: (R,), the lowest or highest value of each bucket.
        finite: (R,), True if a bucket has a finite value; None if all buckets have a finite value.
        starts: where each group begins.
        pick: minimum or maximum.
    """
    worst = np.inf if pick is np.minimum else -np.inf
    comparable = np.ascontiguousarray(values) if finite is None else np.where(finite, values, worst)
    sizes = np.diff(np.r_[starts, len(values)])
    found = comparable == np.repeat(pick.reduceat(comparable, starts), sizes)
    at = np.flatnonzero(found if finite is None else found & finite)
    groups = np.searchsorted(starts, at, "right")
    return at[np.r_[True, np.diff(groups) != 0]] if len(at) else at


def _points(
    records: NDArray[Any],
    segments: NDArray[np.int64],
    at: NDArray[Any],
    point: str,
    across: Across,
    axis: clocks.TrialClocks | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, Floats]:
    # Select the field first and then its values, since the opposite order would copy whole records.
    number = records[f"{point}_no"][at].astype(np.int64)
    match across:
        case "time" | "trial_time":
            x = _on_axis(records[f"{point}_time"][at], segments[at], axis)
        case _:  # on an axis other than "step", `_looked_up` replaces x
            x = records[f"{point}_step"][at].astype(np.float64)
    return segments[at], number, x, records[f"{point}_value"][at]


def _runs(values: NDArray[np.int64]) -> Iterable[tuple[int, int]]:
    """Return (begin, end) of each run of equal values."""
    if not len(values):
        return []
    edges = np.flatnonzero(np.r_[True, np.diff(values) != 0, True])
    return zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)


def _in_order(width: int, owners: Sequence[Any], drawn: Drawn) -> Columns:
    """Return the curves of the segments in `owners`, in the order of `owners`."""
    places = {int(drawn.owner[begin]): (begin, end) for begin, end in _runs(drawn.owner)}
    found = [(row, places[row[3]]) for row in owners if row[3] in places]
    parts = [Part(row[0], row[1], row[2], row[4], row[5], row[6] + row[7], end - begin) for row, (begin, end) in found]
    if all(a[1] == b[0] for (_, a), (_, b) in pairwise(found)):  # usually segments are in the order of their trials
        return Columns(width, parts, drawn.x, drawn.y)
    order = np.concatenate([np.arange(*place) for _, place in found])
    return Columns(width, parts, drawn.x[order], drawn.y[order])
