"""Write a driver's batches as rows.

This module handles every report, so it does not use SQLAlchemy to build statements. The statements are plain SQL that both
databases understand, with `?` for parameters.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Sequence, Set
from typing import Any, NoReturn

from tuner.domain import events as e
from tuner.domain.batch import Batch
from tuner.domain.experiment import Scope
from tuner.domain.keys import segment_id, trial_id
from tuner.domain.states import ExperimentState
from tuner.domain.trial import Segment, Trial
from tuner.errors import LostLease, StoreError
from tuner.store.series.pyramid import Pyramid
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.tables import dumps
from tuner.store.writing.rows import CHANGING, IDENTITY, clean, trial_row

FINITE, NAN, PLUS_INF, MINUS_INF = 0, 1, 2, 3

_EXPERIMENT = """
UPDATE experiment SET
  last_event_seq = COALESCE(?, last_event_seq), best = COALESCE(?, best), counts = COALESCE(?, counts),
  gpu_hours = COALESCE(?, gpu_hours), gpu_hours_saved = COALESCE(?, gpu_hours_saved), cpu_hours = COALESCE(?, cpu_hours),
  budget_spent = CASE WHEN ? = 1 THEN ? ELSE budget_spent END,
  pauses = COALESCE(?, pauses), paused_s = COALESCE(?, paused_s),
  reason = COALESCE(?, reason), error = CASE WHEN ? = 1 THEN NULL ELSE COALESCE(?, error) END, state = COALESCE(?, state),
  started_at = COALESCE(started_at, ?), ended_at = CASE WHEN ? = 1 THEN NULL ELSE COALESCE(ended_at, ?) END
WHERE id = ? AND driver_epoch = ? AND last_event_seq BETWEEN ? AND ?"""
# Most batches change only these columns. An UPDATE that names the state would also write to an index, and to more pages.
_FIGURES = """
UPDATE experiment SET
  last_event_seq = ?, best = COALESCE(?, best), counts = COALESCE(?, counts), gpu_hours = COALESCE(?, gpu_hours),
  gpu_hours_saved = COALESCE(?, gpu_hours_saved), cpu_hours = COALESCE(?, cpu_hours),
  budget_spent = CASE WHEN ? = 1 THEN ? ELSE budget_spent END
WHERE id = ? AND driver_epoch = ? AND last_event_seq BETWEEN ? AND ?"""
_PROGRESS = """
UPDATE experiment SET last_event_seq = ? WHERE id = ? AND driver_epoch = ? AND last_event_seq BETWEEN ? AND ?"""
_ANY_SEQ = (0, 2**62)
# The state is in an index. An UPDATE that names the state writes an index entry even if the state is the same.
_TRIAL_UPDATE = f"UPDATE trial SET {', '.join(f'{name} = ?' for name in CHANGING[1:])} WHERE id = ?"
_TRIAL_STATE = "UPDATE trial SET state = ? WHERE id = ?"
_TRIAL_INSERT = f"""
INSERT INTO trial ({", ".join((*CHANGING, *IDENTITY))})
VALUES ({", ".join("?" * (len(CHANGING) + len(IDENTITY)))})
ON CONFLICT (experiment_id, number) DO UPDATE SET number = excluded.number RETURNING id"""
_SEGMENT_INSERT = """
INSERT INTO segment (public_id, trial_id, ordinal, cause, start_step, config, source_checkpoint, created_at, workers)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (trial_id, ordinal) DO UPDATE SET ordinal = excluded.ordinal RETURNING id"""
_SEGMENT_UPDATE = """
UPDATE segment SET started_at = ?, ended_at = ?, outcome = ?, warm = ?, startup_s = ?, held_s = ?, placement = ?, config = ?
WHERE id = ?"""
_KEY_INSERT = """
INSERT INTO metric_key (experiment_id, name) VALUES (?, ?)
ON CONFLICT (experiment_id, name) DO UPDATE SET name = excluded.name RETURNING id"""
_EVENT = """
INSERT INTO event (experiment_id, event_seq, time, kind, trial_number, segment_id, report_no, step, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"""
_EVENTS_AT_ONCE = """
INSERT INTO event (experiment_id, event_seq, time, kind, trial_number, segment_id, report_no, step, payload)
SELECT * FROM unnest(?::bigint[], ?::bigint[], ?::float8[], ?::text[], ?::int[], ?::bigint[], ?::int[], ?::int[], ?::text[])
ON CONFLICT DO NOTHING"""
_DECISION = """
INSERT INTO decision (experiment_id, event_seq, time, kind, trial_number, reason, state, payload)
VALUES (?, ?, ?, ?, ?, ?, 'pending', ?) ON CONFLICT DO NOTHING"""
_DELETED = "UPDATE checkpoint SET state = 'deleted' WHERE public_id = ? AND NOT pinned"
_PINNED = "SELECT public_id FROM checkpoint WHERE pinned AND public_id IN ({})"
# Without the inner query, SQLite would read all earlier decisions of the experiment instead of those of the trial.
_SUPERSEDED = """
UPDATE decision SET state = 'superseded' WHERE experiment_id = ? AND state = 'pending' AND event_seq IN (
  SELECT d.event_seq FROM decision d WHERE d.experiment_id = ? AND d.trial_number = ? AND d.event_seq < ?)"""
_POINT = """
INSERT INTO metric_point (segment_id, key_id, report_no, step, time, value, kind, user_step)
VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"""
_POINTS_AT_ONCE = """
INSERT INTO metric_point (segment_id, key_id, report_no, step, time, value, kind, user_step)
SELECT * FROM unnest(
  ?::bigint[], ?::bigint[], ?::int[], ?::int[], ?::float8[], ?::float8[], ?::smallint[], ?::bigint[])
ON CONFLICT DO NOTHING"""
_CHECKPOINT = """
INSERT INTO checkpoint (public_id, segment_id, step, uri, bytes, state, node, taken_at, took_s)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (public_id) DO UPDATE
SET uri = excluded.uri, bytes = excluded.bytes, state = excluded.state, node = excluded.node
WHERE checkpoint.state <> 'deleted' AND NOT (checkpoint.state = 'ready' AND excluded.state = 'uploading')"""

_BEST = """
INSERT INTO best_point (key_id, event_seq, time, value) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"""

_Stage = tuple[float | None, float | None, str | None]  # (started_at, ended_at, outcome) of a segment
_NEW: _Stage = (None, None, None)
_ENDED: _Stage = (0.0, 0.0, "ended")  # for a segment whose row records its end, and so never changes again


class Writer:
    """Writes the batches of one experiment. It keeps the ids of the experiment's rows, so that a report needs no lookups.

    After an error, the caller must drop the writer, because some of these ids may not be in the database.
    """

    def __init__(self, cursor: Cursor, experiment: int, epoch: int) -> None:
        row = cursor.rows("SELECT public_id, spec FROM experiment WHERE id = ?", (experiment,))
        if not row:
            raise LostLease(f"there is no experiment with the id {experiment}; it has been deleted")
        self.experiment = experiment
        self.epoch = epoch
        self.public_id: str = row[0][0]
        trials = "SELECT number, id, state FROM trial WHERE experiment_id = ?"
        segments = (
            "SELECT t.number, s.ordinal, s.id, s.started_at, s.ended_at, s.outcome FROM segment s"
            " JOIN trial t ON t.id = s.trial_id WHERE t.experiment_id = ?"
        )
        keys = "SELECT name, id FROM metric_key WHERE experiment_id = ?"
        found = cursor.rows(trials, (experiment,))
        self._trials: dict[int, int] = {number: row_id for number, row_id, _ in found}
        self._states: dict[int, str] = {number: state for number, _, state in found}
        self._keys: dict[str, int] = dict(cursor.rows(keys, (experiment,)))
        self._segments: dict[tuple[int, int], int] = {}
        self._shown: dict[int, _Stage] = {}
        for number, ordinal, row_id, *stage in cursor.rows(segments, (experiment,)):
            self._segments[number, ordinal] = row_id
            self._shown[row_id] = (stage[0], stage[1], stage[2]) if stage[1] is None else _ENDED
        # What this writer last wrote to the experiment's row; no other writer of this epoch changes it.
        self._outlook: tuple[Any, ...] | None = None  # the experiment's state, reason, error and pauses
        self._shown_best: Any = None
        self._shown_counts: Any = None
        self._pyramid = Pyramid(experiment)
        spec = json.loads(row[0][1])
        self._scope: Scope = spec.get("scope", "all")
        self._objectives = {o["metric"]: o["mode"] == "max" for o in spec["objectives"]}
        self._best: dict[int, float] = {}  # key -> best value of an objective so far
        for name in self._objectives.keys() & self._keys.keys():
            last = "SELECT value FROM best_point WHERE key_id = ? ORDER BY event_seq DESC LIMIT 1"
            if (best := cursor.value(last, (self._keys[name],))) is not None:
                self._best[self._keys[name]] = best

    def write(self, cursor: Cursor, batch: Batch, now: float) -> Collection[str]:
        """Write the batch in the open transaction. Return the ids in `batch.deletes` that users have pinned.

        Raises:
            LostLease: another driver has claimed the experiment.
        """
        time = _last_time(batch, now)
        owner = cursor.another()
        with cursor.pipelined():
            self._write_experiment(owner, batch, time)
            ended = self._write_trials(cursor, batch.trials, time)
            self._write_log(cursor, batch, now, ended)
            self._write_effects(cursor, batch, now)
        if owner.rowcount != 1:
            self._refuse(cursor, batch)
        if not batch.deletes:
            return ()
        pinned: set[str] = set()
        for at in range(0, len(batch.deletes), 500):  # a statement takes a limited number of parameters
            some = tuple(batch.deletes[at : at + 500])
            pinned.update(name for (name,) in cursor.rows(_PINNED.format(", ".join("?" * len(some))), some))
        return pinned

    def _refuse(self, cursor: Cursor, batch: Batch) -> NoReturn:
        found = cursor.rows("SELECT driver_epoch, last_event_seq FROM experiment WHERE id = ?", (self.experiment,))
        if found and found[0][0] == self.epoch:
            raise StoreError(
                f"experiment {self.public_id}: the batch does not fit the log: the log ends at event {found[0][1]}, but the "
                f"batch begins at event {batch.log[0][0]}"
            )
        raise LostLease(f"experiment {self.public_id}: another driver has claimed it, so epoch {self.epoch} is over")

    def _write_effects(self, cursor: Cursor, batch: Batch, now: float) -> None:
        """Mark the decisions and commands that this batch settles as done or superseded. Their rows exist already."""
        if batch.carried_out:
            cursor.executemany(
                "UPDATE decision SET state = 'done' WHERE experiment_id = ? AND event_seq = ? AND state = 'pending'",
                [(self.experiment, seq) for seq in batch.carried_out],
            )
        if batch.superseded:
            cursor.executemany(
                _SUPERSEDED,
                [(self.experiment, self.experiment, trial, seq) for trial, seq in batch.superseded.items()],
            )
        if batch.state is not None and batch.state.ended:
            cursor.execute(
                "UPDATE decision SET state = 'superseded' WHERE experiment_id = ? AND state = 'pending'",
                (self.experiment,),
            )
        if batch.deletes:
            cursor.executemany(_DELETED, [(name,) for name in batch.deletes])
        if batch.commands:
            cursor.executemany(
                "UPDATE command SET state = 'done', done_at = ? WHERE id = ? AND experiment_id = ?",
                [(now, command, self.experiment) for command in batch.commands],
            )

    def _write_experiment(self, cursor: Cursor, batch: Batch, time: float) -> None:
        last_seq = batch.log[-1][0] if batch.log else None
        # The log has no gaps, and the same batch may be written twice.
        before = (batch.log[0][0] - 1, last_seq) if batch.log else _ANY_SEQ
        if last_seq is not None and batch.state is None and not batch.summary:
            cursor.execute(_PROGRESS, (last_seq, self.experiment, self.epoch, *before))
        else:
            summary, state = batch.summary, batch.state
            best, counts = summary.get("best"), summary.get("counts")
            figures = (
                None if best is None or best == self._shown_best else dumps(best),
                None if counts is None or counts == self._shown_counts else dumps(counts),
                summary.get("gpu_hours"),
                summary.get("gpu_hours_saved"),
                summary.get("cpu_hours"),
                int("budget_spent" in summary),
                summary.get("budget_spent"),  # None if a change has removed the budget
            )
            pauses = summary.get("pauses")
            outlook = state, summary.get("reason"), summary.get("error"), pauses
            runs = state is not None and not state.ended
            if runs and outlook == self._outlook and last_seq is not None:
                cursor.execute(_FIGURES, (last_seq, *figures, self.experiment, self.epoch, *before))
            else:
                # Until its last commit, an import has an error. The last commit removes the error.
                completed = state is ExperimentState.COMPLETED and summary.get("error") is None
                cursor.execute(
                    _EXPERIMENT,
                    (
                        last_seq,
                        *figures,
                        None if pauses is None else dumps(pauses),
                        None if pauses is None else sum(end - start for start, end in pauses if end is not None),
                        clean(summary.get("reason")),
                        int(runs or completed),
                        clean(summary.get("error")),
                        None if state is None else state.value,
                        time if state is not None and state.value == "running" else None,
                        int(runs),  # an ended experiment runs again if a user continues it
                        time if state is not None and state.ended else None,
                        self.experiment,
                        self.epoch,
                        *before,
                    ),
                )
                self._outlook = outlook
            self._shown_best = best if best is not None else self._shown_best
            self._shown_counts = counts if counts is not None else self._shown_counts

    def _write_trials(self, cursor: Cursor, trials: Sequence[Trial], time: float) -> set[int]:
        """Write trials and their segments. Return the ids of the segments that have ended in this batch."""
        updates, ended = [], set()
        for trial in trials:
            values = trial_row(trial, self._scope, time)
            row = self._trials.get(trial.number)
            if row is None:
                public = trial_id(self.public_id, trial.number)
                values += (public, self.experiment, trial.number, trial.created_at or time)
                row = self._trials[trial.number] = int(cursor.value(_TRIAL_INSERT, values))
            else:
                updates.append((*values[1:], row))
                if self._states.get(trial.number) != values[0]:
                    cursor.execute(_TRIAL_STATE, (values[0], row))
            self._states[trial.number] = values[0]
            for segment in reversed(trial.segments):
                if self._write_segment(cursor, row, trial.number, segment, time):
                    break  # earlier segments have not changed
                if segment.ended_at is not None:
                    ended.add(self._segment(trial.number, segment.ordinal))
        if updates:
            cursor.executemany(_TRIAL_UPDATE, updates)
        return ended

    def _write_segment(self, cursor: Cursor, trial: int, number: int, segment: Segment, time: float) -> bool:
        """Write a segment. Return True if its row already recorded the end of the segment, so that nothing has changed."""
        row = self._segments.get((number, segment.ordinal))
        if row is None:
            source = segment.source.id if segment.source else None
            public = segment_id(self.public_id, number, segment.ordinal)
            opened, config = segment.opened_at or time, dumps(segment.params)
            values = (public, trial, segment.ordinal, segment.cause, segment.start_iteration, config, source, opened)
            row = self._segments[number, segment.ordinal] = int(
                cursor.value(_SEGMENT_INSERT, (*values, segment.workers))
            )
            self._pyramid.opened(row)
        stage = (segment.started_at, segment.ended_at, segment.outcome)
        shown = self._shown.get(row, _NEW)
        if shown is not _ENDED and stage != shown:
            how = (segment.warm, segment.startup_s, segment.held_s, dumps(segment.placement), dumps(segment.params))
            cursor.execute(_SEGMENT_UPDATE, (*stage, *how, row))
            self._shown[row] = stage if segment.ended_at is None else _ENDED
        return shown[1] is not None

    def _write_log(self, cursor: Cursor, batch: Batch, now: float, ended: Set[int]) -> None:
        events: list[tuple[Any, ...]] = []
        decisions: list[tuple[Any, ...]] = []
        points: list[tuple[Any, ...]] = []
        best: list[tuple[Any, ...]] = []
        reporting: set[int] = set()
        time = now
        for seq, entry in batch.log:
            if isinstance(entry, e.Reported):
                time = entry.time
                segment = self._segment(entry.trial, entry.segment)
                before = len(points)
                self._add_points(cursor, points, segment, entry)
                self._pyramid.add(cursor, segment, entry.report_no, points[before:])
                if batch.best is None:
                    self._add_best(best, seq, entry)
                else:
                    for name, value in batch.best.get(seq, {}).items():
                        best.append((self._keys[name], seq, time, value))
                reporting.add(segment)
                payload: dict[str, Any] = {} if entry.step is None else {"step": entry.step}
                if entry.checkpoint is not None:
                    payload["checkpoint"] = dataclasses.asdict(entry.checkpoint)
                    self._write_checkpoint(cursor, segment, entry.checkpoint, entry.time)
                events.append(
                    (
                        self.experiment,
                        seq,
                        time,
                        entry.KIND,
                        entry.trial,
                        segment,
                        entry.report_no,
                        entry.iteration,
                        dumps(payload) if payload else None,
                    )
                )
            elif isinstance(entry, e.Event):
                time = entry.time
                data = entry.to_json()
                del data["time"]
                number = data.get("trial", data.get("number"))
                events.append((self.experiment, seq, time, entry.KIND, number, None, None, None, dumps(data)))
                self._follow(cursor, entry)
            else:
                data = entry.to_json()
                reason = data.pop("reason")
                number = data.get("trial", data.get("number"))
                decisions.append(
                    (
                        self.experiment,
                        seq,
                        time,
                        entry.KIND,
                        number if number != -1 else None,
                        clean(reason),
                        dumps(data),
                    )
                )
        if events:
            cursor.insert(_EVENT, _EVENTS_AT_ONCE, events)
        if points:
            cursor.insert(_POINT, _POINTS_AT_ONCE, points)
        self._pyramid.write(cursor, reporting - ended)
        for segment in ended:
            self._pyramid.seal(cursor, segment)
        if best:
            cursor.executemany(_BEST, best)
        if decisions:
            cursor.executemany(_DECISION, decisions)

    def _add_best(self, best: list[tuple[Any, ...]], seq: int, report: e.Reported) -> None:
        """Add a row for each objective whose best value so far is in this report."""
        for name, highest in self._objectives.items():
            value, kind = encode(report.metrics.get(name, math.nan))
            if value is None or kind != FINITE:
                continue
            key = self._keys[name]
            before = self._best.get(key)
            if before is None or (value > before if highest else value < before):
                self._best[key] = value
                best.append((key, seq, report.time, value))

    def _add_points(self, cursor: Cursor, points: list[tuple[Any, ...]], segment: int, report: e.Reported) -> None:
        keys, number, step, time = self._keys, report.report_no, report.iteration, report.time
        for name, value in report.metrics.items():
            key = keys.get(name)
            if key is None:
                key = keys[name] = cursor.value(_KEY_INSERT, (self.experiment, clean(name)))
            finite, kind = encode(value)
            points.append((segment, key, number, step, time, finite, kind, report.step))

    def _follow(self, cursor: Cursor, event: e.Event) -> None:
        """Write what an event says about a checkpoint."""
        match event:
            case e.CheckpointSaved():
                segment = self._segment(event.trial, event.segment)
                self._write_checkpoint(cursor, segment, event.checkpoint, event.time)
            case e.DriverStarted():
                for info in event.uploaded:
                    done = "UPDATE checkpoint SET state = 'ready' WHERE public_id = ? AND state = 'uploading'"
                    cursor.execute(done, (info.id,))
            case e.CheckpointDeleted():
                cursor.execute("UPDATE checkpoint SET state = 'deleted' WHERE public_id = ?", (event.checkpoint,))
            case e.UploadFailed():
                lost = "UPDATE checkpoint SET state = 'deleted' WHERE public_id = ? AND state = 'uploading'"
                cursor.execute(lost, (event.checkpoint.id,))
            case _:
                pass

    def _write_checkpoint(self, cursor: Cursor, segment: int, info: e.CheckpointInfo, time: float) -> None:
        state = "ready" if info.ready else "uploading"
        taken = (time - info.age_s, info.took_s) if info.took_s > 0 else (None, None)
        cursor.execute(
            _CHECKPOINT, (info.id, segment, info.step, clean(info.uri), info.bytes, state, info.node, *taken)
        )

    def _segment(self, trial: int, ordinal: int) -> int:
        try:
            return self._segments[trial, ordinal]
        except KeyError:
            raise StoreError(
                f"experiment {self.public_id}: trial {trial} has no segment {ordinal}, neither in the database nor in this batch"
            ) from None


def encode(value: float) -> tuple[float | None, int]:
    """Return (value, kind) as a metric point stores them, since neither SQL nor JSON keeps NaN and infinities reliably."""
    try:
        value = float(value)
    except OverflowError:  # an integer that is too large for a double
        return None, PLUS_INF if value > 0 else MINUS_INF
    if math.isfinite(value):
        return value, FINITE
    if value != value:
        return None, NAN
    return None, PLUS_INF if value > 0 else MINUS_INF


_DECODED = {NAN: math.nan, PLUS_INF: math.inf, MINUS_INF: -math.inf}


def decode(value: float | None, kind: int) -> float:
    return value if kind == FINITE and value is not None else _DECODED[kind]


def _last_time(batch: Batch, now: float) -> float:
    if batch.time is not None and batch.log:
        return batch.time
    for _, entry in reversed(batch.log):
        if isinstance(entry, e.Event):
            return entry.time
    return now
