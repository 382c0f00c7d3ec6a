"""The clocks of an experiment and of its trials.

The clock of a trial measures `Trial.running_s`. It starts when all ranks of a segment are training, and stops at the segment's
last report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sqlalchemy import Connection, select

from tuner.errors import NotFound
from tuner.store.running import RunningClock
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.tables import dumps
from tuner.store.sql.tables import experiment as table

# The last column is the time of the segment's last report, or NULL for a trial's last segment. A report may have any of
# the experiment's metrics, so the query looks at all of them.
_SEGMENTS = """
SELECT s.trial_id, s.id, COALESCE(s.started_at, s.created_at),
  CASE WHEN EXISTS (SELECT 1 FROM segment n WHERE n.trial_id = s.trial_id AND n.ordinal > s.ordinal) THEN
    (SELECT MAX((SELECT p.time FROM metric_point p WHERE p.segment_id = s.id AND p.key_id = k.id
      ORDER BY p.report_no DESC LIMIT 1)) FROM metric_key k WHERE k.experiment_id = t.experiment_id) END
FROM trial t CROSS JOIN segment s WHERE s.trial_id = t.id AND t.experiment_id = ? {chosen}
ORDER BY s.trial_id, s.ordinal"""


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
    running = RunningClock(0.0, json.loads(pauses) or () if pauses else ())
    rows = list(cursor.rows(_SEGMENTS.format(chosen=chosen), (experiment, *numbers)))
    starts = running.seconds([row[2] for row in rows]).tolist()
    ends = running.seconds([row[2] if row[3] is None else row[3] for row in rows]).tolist()
    zeros: dict[int, float] = {}
    owner, trained = None, 0.0
    for (trial, segment, _, _), start, end in zip(rows, starts, ends, strict=True):
        if trial != owner:
            owner, trained = trial, 0.0
        zeros[segment] = start - trained
        trained += max(0.0, end - start)
    return TrialClocks(running, zeros)


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
