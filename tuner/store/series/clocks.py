"""The clocks of an experiment and of its trials.

The clock of a trial measures `Trial.running_s`. It starts when all ranks of a segment are training, and stops at the segment's
last report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sqlalchemy import Connection, Text, select, type_coerce

from tuner.errors import NotFound
from tuner.store.running import RunningClock
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.stored import readable
from tuner.store.sql.tables import dumps
from tuner.store.sql.tables import experiment as table

_SEGMENTS = """
SELECT s.trial_id, s.id, s.public_id, COALESCE(s.started_at, s.created_at), s.ended_at
FROM trial t CROSS JOIN segment s WHERE s.trial_id = t.id AND t.experiment_id = ? {chosen}
ORDER BY s.trial_id, s.ordinal"""
# A report may have any of the experiment's metrics, so the query looks at all of them.
_LAST_REPORTS = """
SELECT s.id, (SELECT MAX((SELECT p.time FROM metric_point p WHERE p.segment_id = s.id AND p.key_id = k.id
  ORDER BY p.report_no DESC LIMIT 1)) FROM metric_key k WHERE k.experiment_id = ?)
FROM segment s WHERE s.id {among}"""

MOST_KEPT = 50_000
"""The maximum number of segments whose last reports are kept in memory."""

_last_reports: dict[tuple[str, float], float] = {}
"""The time of the last report of each segment that has ended, by the segment's public id and its end. It never changes."""


@dataclass(frozen=True, slots=True)
class TrialClocks:
    """The clocks of an experiment's trials.

    Attributes:
        running: a clock that stands still while the experiment does. The experiment pauses only between segments, so within
            a segment, these are the times by which the driver's clock has jumped.
        zeros: by segment id, what `running` would have shown when the trial's clock was zero if the trial had run without a
            break.
    """

    running: RunningClock
    zeros: Mapping[int, float]

    def seconds(self, times: ArrayLike, segments: ArrayLike) -> NDArray[np.float64]:
        """Return what each trial's clock showed at these Unix timestamps, which are from these segments."""
        ids, which = np.unique(np.asarray(segments, np.int64), return_inverse=True)
        zeros = np.array([self.zeros[segment] for segment in ids.tolist()], np.float64)
        return np.asarray(self.running.seconds(times) - zeros[which], np.float64)


def of_trials(cursor: Cursor, experiment: int, trials: Sequence[int] | None = None) -> TrialClocks:
    """Return the clocks of an experiment's trials.

    Args:
        cursor: a cursor of a transaction.
        experiment: the internal id.
        trials: numbers of trials; None for all.
    """
    chosen, numbers = ("", ()) if trials is None else among(cursor, trials)
    pauses = cursor.value("SELECT pauses FROM experiment WHERE id = ?", (experiment,))
    running = RunningClock(0.0, readable(pauses, "pauses") or ())
    rows = list(cursor.rows(_SEGMENTS.format(chosen=chosen), (experiment, *numbers)))
    followed = [row for row, after in pairwise(rows) if row[0] == after[0]]  # by another segment of the same trial
    lasts = _lasts(cursor, experiment, followed)
    starts = running.seconds([row[3] for row in rows]).tolist()
    ends = running.seconds([lasts.get(row[1], row[3]) for row in rows]).tolist()
    zeros: dict[int, float] = {}
    owner, trained = None, 0.0
    for (trial, segment, *_), start, end in zip(rows, starts, ends, strict=True):
        if trial != owner:
            owner, trained = trial, 0.0
        zeros[segment] = start - trained
        trained += max(0.0, end - start)
    return TrialClocks(running, zeros)


def _lasts(cursor: Cursor, experiment: int, segments: Sequence[Any]) -> dict[int, float]:
    """Return when each of these segments made its last report, by id. Read only what was not read before."""
    keys = {row[1]: (row[2], row[4]) for row in segments}
    found = {segment: last for segment, key in keys.items() if (last := _last_reports.get(key)) is not None}
    if unknown := [segment for segment in keys if segment not in found]:
        chosen, ids = _in(cursor, unknown, "bigint")
        rows = cursor.rows(_LAST_REPORTS.format(among=chosen), (experiment, *ids))
        read = {segment: last for segment, last in rows if last is not None}
        found |= read
        if len(_last_reports) + len(read) > MOST_KEPT:
            _last_reports.clear()
        ended = {keys[segment]: last for segment, last in read.items() if keys[segment][1] is not None}
        _last_reports.update(islice(ended.items(), MOST_KEPT))
    return found


def among(cursor: Cursor, trials: Sequence[int]) -> tuple[str, tuple[Any, ...]]:
    """Return an SQL condition that is true if trial t has one of these numbers, and the condition's parameters."""
    condition, parameters = _in(cursor, trials, "int")
    return f"AND t.number {condition}", parameters


def _in(cursor: Cursor, values: Sequence[int], kind: str) -> tuple[str, tuple[Any, ...]]:
    """Return the end of an SQL condition that is true for these values, and its parameters. kind: their type in PostgreSQL."""
    if cursor.backend == "sqlite":
        return "IN (SELECT value FROM json_each(?))", (dumps(list(values)),)
    return f"= ANY(?::{kind}[])", (list(values),)


def clock(connection: Connection, experiment_id: int) -> RunningClock:
    """Return the clock of an experiment; see `ExperimentRecord.clock`."""
    query = select(*table.c["started_at", "created_at"], type_coerce(table.c.pauses, Text).label("pauses")).where(
        table.c.id == experiment_id
    )
    row = connection.execute(query).first()
    if row is None:
        raise NotFound(f"no experiment with the internal id {experiment_id}")
    return RunningClock(
        row.created_at if row.started_at is None else row.started_at, readable(row.pauses, "pauses") or ()
    )
