"""Thin the points of experiments that ended long ago: keep the points that their curves show, and delete all other points.

A report is a row of `event`, and its metrics are points, which are stored nowhere else. So the log of a thinned experiment
still has every report, but most reports have no metrics. Such a log can no longer be folded.

For each metric of each segment, the buckets of one level are kept: the lowest level with at most `MOST_BUCKETS` buckets.
The first, last, lowest and highest point of each bucket are kept too. A curve with at most `MOST_BUCKETS` points is kept
whole.
"""

from __future__ import annotations

from tuner.domain.states import ExperimentState
from tuner.store.records import IMPORTED
from tuner.store.series import pyramid
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.database import Database
from tuner.store.sql.tables import dumps

MOST_BUCKETS = 256

_ENDED = ", ".join(f"'{state}'" for state in ExperimentState if state.ended)
# Row 4 of level 1 begins with report 257, so only a curve with more than 256 reports has it. Experiments with a driver or with a
# pending command to continue are left out, because they may run again. Imported ones are left out, because they ended in
# another tool, long before they were imported.
_OLD = f"""
SELECT e.id FROM experiment e
WHERE e.thinned_at IS NULL AND e.ended_at < ? AND e.state IN ({_ENDED}) AND e.driver_owner IS NULL
AND e.source <> '{IMPORTED}'
AND e.last_event_seq > {MOST_BUCKETS}
AND EXISTS (SELECT 1 FROM trial t JOIN segment s ON s.trial_id = t.id JOIN metric_key k ON k.experiment_id = e.id
  JOIN metric_bucket b ON b.segment_id = s.id AND b.key_id = k.id AND b.level = 1 AND b.chunk >= 4
  WHERE t.experiment_id = e.id)"""
_UNFINISHED = "SELECT id FROM experiment WHERE thinned_upto IS NOT NULL"
# The next two statements lock the row, so that the statements after them see the rows of earlier transactions.
_LOCK = "UPDATE experiment SET id = id WHERE id = ?"
_BEGIN = f"""
UPDATE experiment SET thinned_at = ?, thinned_upto = 0
WHERE id = ? AND thinned_at IS NULL AND ended_at < ? AND state IN ({_ENDED}) AND driver_owner IS NULL
AND NOT EXISTS (
  SELECT 1 FROM command c WHERE c.experiment_id = experiment.id AND c.state = 'pending' AND c.command = 'continue')"""
_UPTO = "SELECT thinned_upto FROM experiment WHERE id = ?"
_ADVANCE = "UPDATE experiment SET thinned_upto = ? WHERE id = ?"
_SEGMENT = """
SELECT MIN(s.id) FROM segment s JOIN trial t ON t.id = s.trial_id WHERE t.experiment_id = ? AND s.id > ?"""
_KEYS = """
SELECT p.key_id, MAX(p.report_no), COUNT(*) FROM metric_point p WHERE p.segment_id = ? GROUP BY p.key_id"""
# `last_no` of the rows above level 1 is wrong in databases written by older versions.
_NEWEST = "SELECT data FROM metric_bucket WHERE segment_id = ? AND key_id = ? AND level = ? ORDER BY chunk DESC LIMIT 1"
_BUCKETS = "SELECT data FROM metric_bucket WHERE segment_id = ? AND key_id = ? AND level = ?"
_FINER = "DELETE FROM metric_bucket WHERE segment_id = ? AND key_id = ? AND level < ?"
_POINTS = "DELETE FROM metric_point WHERE segment_id = ? AND key_id = ? AND report_no NOT IN ({kept})"
_KEPT = {"sqlite": "SELECT value FROM json_each(?)", "postgresql": "SELECT unnest(?::int[])"}
_FIRST, _LAST, _LOW, _HIGH = 2, 6, 10, 14  # the fields of a bucket with the report_no of these points


def level_of(reports: int) -> int:
    """Return the level whose buckets are kept for a curve with this many reports. Level 0 means the points themselves."""
    level = 0
    while -(-reports // pyramid.reports_per_bucket(level)) > MOST_BUCKETS:
        level += 1
    return level


def thin(database: Database, before: float, now: float) -> int:
    """Thin the experiments that ended before this time. Return how many experiments were thinned.

    After an interruption, the next call continues. Each curve is thinned in its own transaction, so that drivers need not wait
    long.
    """
    with database.cursor() as (cursor, _):
        begun = [row[0] for row in cursor.rows(_UNFINISHED)]
        old = [row[0] for row in cursor.rows(_OLD, (before,))]
    for experiment in old:
        with database.write() as cursor:
            cursor.execute(_LOCK, (experiment,))
            cursor.execute(_BEGIN, (now, experiment, before))
            if cursor.rowcount == 1:
                begun.append(experiment)
    for experiment in begun:
        while _thin_next(database, experiment):
            pass
    return len(begun)


def _thin_next(database: Database, experiment: int) -> bool:
    """Thin the next segment of an experiment. Return False if there is none."""
    with database.write() as cursor:
        cursor.execute(_LOCK, (experiment,))
        upto = cursor.value(_UPTO, (experiment,))
        if upto is None:  # another service has finished the thinning, or a user has deleted the experiment
            return False
        segment = cursor.value(_SEGMENT, (experiment, upto))
        if segment is None:
            cursor.execute(_ADVANCE, (None, experiment))
            return False
        found = cursor.rows(_KEYS, (segment,))
        lasts = {key: last for key, last, count in found if count > MOST_BUCKETS}
        long = {key: level for key, last in lasts.items() if (level := level_of(last))}
        # If a driver was killed, the last buckets of its segments may be missing. A thinned curve needs all its buckets.
        if any(_covered(cursor, segment, key, level) != lasts[key] for key, level in long.items()):
            pyramid.Pyramid(experiment).seal(cursor, segment)
    for key, level in long.items():
        with database.write() as cursor:
            cursor.execute(_LOCK, (experiment,))
            if cursor.value(_UPTO, (experiment,)) == upto:
                _thin_curve(cursor, segment, key, level)
    with database.write() as cursor:
        cursor.execute(_LOCK, (experiment,))
        if cursor.value(_UPTO, (experiment,)) == upto:
            cursor.execute(_ADVANCE, (segment, experiment))
    return True


def _covered(cursor: Cursor, segment: int, key: int, level: int) -> int:
    """Return the number of the newest report in the buckets of this level; 0 if there are no buckets."""
    data = cursor.value(_NEWEST, (segment, key, level))
    return 0 if data is None else int(pyramid.unpacked(bytes(data))[-1][_LAST])


def _thin_curve(cursor: Cursor, segment: int, key: int, level: int) -> None:
    kept = {
        bucket[at]
        for (data,) in cursor.rows(_BUCKETS, (segment, key, level))
        for bucket in pyramid.unpacked(bytes(data))
        for at in (_FIRST, _LAST, _LOW, _HIGH)
    }
    numbers = dumps(sorted(kept)) if cursor.backend == "sqlite" else sorted(kept)
    cursor.execute(_POINTS.format(kept=_KEPT[cursor.backend]), (segment, key, numbers))
    cursor.execute(_FINER, (segment, key, level))
