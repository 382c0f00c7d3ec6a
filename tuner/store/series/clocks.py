"""The clocks of an experiment and of its trials.

The clock of a trial measures `Trial.running_s`. It starts when all ranks of a segment are training, and stops at the segment's
last report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select

from tuner.errors import NotFound
from tuner.store.running import RunningClock
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.tables import dumps
from tuner.store.sql.tables import experiment as table

Begins = float | Mapping[int, float]
"""The time at which an axis is zero: one time for all segments, or a mapping from segment id to time."""

# The last column is the time of the segment's last report, or NULL for a trial's last segment. A report may have any of
# the experiment's metrics, so the query looks at all of them.
_SEGMENTS = """
SELECT s.trial_id, s.id, COALESCE(s.started_at, s.created_at),
  CASE WHEN EXISTS (SELECT 1 FROM segment n WHERE n.trial_id = s.trial_id AND n.ordinal > s.ordinal) THEN
    (SELECT MAX((SELECT p.time FROM metric_point p WHERE p.segment_id = s.id AND p.key_id = k.id
      ORDER BY p.report_no DESC LIMIT 1)) FROM metric_key k WHERE k.experiment_id = t.experiment_id) END
FROM trial t CROSS JOIN segment s WHERE s.trial_id = t.id AND t.experiment_id = ? {chosen}
ORDER BY s.trial_id, s.ordinal"""


def begins(cursor: Cursor, experiment: int, trials: Sequence[int] | None = None) -> dict[int, float]:
    """Return, by segment id, the time at which the trial's clock would have been zero if it had run without a break.

    To convert a point's time to what the clock showed then, subtract this time.

    Args:
        cursor: a cursor of a transaction.
        experiment: the internal id.
        trials: numbers of trials; None for all.
    """
    chosen, numbers = ("", ()) if trials is None else among(cursor, trials)
    found: dict[int, float] = {}
    owner, trained = None, 0.0
    for trial, segment, started, last in cursor.rows(_SEGMENTS.format(chosen=chosen), (experiment, *numbers)):
        if trial != owner:
            owner, trained = trial, 0.0
        found[segment] = started - trained
        if last is not None:
            trained += max(0.0, last - started)
    return found


def among(cursor: Cursor, trials: Sequence[int]) -> tuple[str, tuple[Any, ...]]:
    """Return an SQL condition that is true if trial t has one of these numbers, and the condition's parameters."""
    if cursor.backend == "sqlite":
        return "AND t.number IN (SELECT value FROM json_each(?))", (dumps(list(trials)),)
    return "AND t.number = ANY(?::int[])", (list(trials),)


def clock(connection: Connection, experiment_id: int) -> RunningClock:
    """Return the clock of an experiment; see `ExperimentRecord.clock`."""
    query = select(*table.c["started_at", "created_at", "pauses"]).where(table.c.id == experiment_id)
    row = connection.execute(query).first()
    if row is None:
        raise NotFound(f"no experiment with the internal id {experiment_id}")
    return RunningClock(row.created_at if row.started_at is None else row.started_at, row.pauses or ())
