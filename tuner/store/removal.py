"""Delete an experiment from all tables."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence

from sqlalchemy import select

from tuner.domain.states import ExperimentState
from tuner.errors import NotFound, StoreError
from tuner.store.commands import DELETION, lock
from tuner.store.records import ExperimentRecord
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.database import Database
from tuner.store.sql.tables import experiment

AT_ONCE = 200
"""The maximum number of segments whose rows one transaction deletes."""

HELD_S = 0.1
"""A transaction that takes longer is followed by one with half as many segments, so that other writers do not wait long."""

ROWS_AT_ONCE = 20_000
"""The maximum number of rows of one table of `NUMBERED` that one transaction deletes."""

OF_SEGMENTS = ("metric_point", "metric_bucket", "rank_usage", "log_chunk", "checkpoint")
OF_KEYS = ("best_point",)
OF_EXPERIMENTS = ("metric_key", "event", "decision", "command", "trial", "webhook_cursor")
"""The tables with rows of an experiment, grouped by what a row refers to. A test compares them with the schema."""

NUMBERED = {"event": "event_seq", "decision": "event_seq", "trial": "number"}
"""The tables of `OF_EXPERIMENTS` that may have millions of rows of one experiment, each with the column that counts them."""

LEASE_S = 600.0
"""The duration of a deletion's lease in seconds. After that, users may continue the experiment, as if it had been cancelled.

A deletion renews the lease while it deletes files. The lease never ends once the first row is deleted, because the log can no
longer be folded.
"""

_ENDED = ", ".join(f"'{state}'" for state in ExperimentState if state.ended)
_SEIZE = f"""
UPDATE experiment SET driver_epoch = driver_epoch + 1, driver_owner = '{DELETION}',
  lease_until = CASE WHEN driver_owner = '{DELETION}' AND lease_until > ? THEN lease_until ELSE ? END,
  state = CASE WHEN state IN ({_ENDED}) THEN state ELSE '{ExperimentState.CANCELLED}' END
WHERE id = ? AND driver_epoch = COALESCE(?, driver_epoch)"""
_GIVE_BACK = f"""
UPDATE experiment SET driver_owner = ?, lease_until = ?, state = ?
WHERE id = ? AND driver_epoch = ? AND driver_owner = '{DELETION}'"""
_KEEP = f"UPDATE experiment SET lease_until = ? WHERE id = ? AND driver_owner = '{DELETION}'"
_RENEW = f"""
UPDATE experiment SET lease_until = CASE WHEN lease_until > ? THEN lease_until ELSE ? END
WHERE id = ? AND driver_owner = '{DELETION}'"""
_SEGMENTS = """
SELECT s.id FROM segment s JOIN trial t ON t.id = s.trial_id WHERE t.experiment_id = ? ORDER BY s.id"""
_DELIVERIES = "DELETE FROM webhook_delivery WHERE webhook_id IN (SELECT id FROM webhook WHERE experiment = ?)"
_WEBHOOKS = "DELETE FROM webhook WHERE experiment = ?"
# Wait for a transaction that creates another experiment with this code, so that the next statement sees that experiment.
_LOCK_CODE = "UPDATE code SET hash = hash WHERE hash = ?"
_CODE = """
DELETE FROM code WHERE hash = ? AND NOT EXISTS (SELECT 1 FROM experiment e WHERE e.code_hash = code.hash)"""


def seize(database: Database, experiment_id: int, epoch: int | None, now: float) -> bool:
    """Take the experiment away from its driver, whose next commit then fails. No other driver can claim the experiment.

    If `epoch` is given, and a driver has claimed the experiment since then, do nothing and return False.
    """
    with database.write() as cursor:
        cursor.execute(_SEIZE, (now + LEASE_S, now + LEASE_S, experiment_id, epoch))
        return cursor.rowcount == 1


def give_back(database: Database, record: ExperimentRecord) -> None:
    """Let the experiment be driven again after `seize`, in the state in which `record` has it. Keep the new epoch.

    Do nothing if another deletion has seized the experiment since. If `record` is of a deletion that was interrupted before it
    had deleted a row, end the lease, so that users may continue the experiment.
    """
    was_interrupted = record.driver_owner == DELETION and record.lease_until != math.inf
    until = None if was_interrupted else record.lease_until
    before = (record.driver_owner, until, record.state, record.id, record.driver_epoch + 1)
    with database.write() as cursor:
        cursor.execute(_GIVE_BACK, before)


def keep(database: Database, experiment_id: int, until: float) -> bool:
    """Let the lease that `seize` has begun end no earlier than `until`. Return False if it is not a deletion's any more."""
    with database.write() as cursor:
        cursor.execute(_RENEW, (until, until, experiment_id))
        return cursor.rowcount == 1


def remove(database: Database, experiment_id: int) -> None:
    """Delete the experiment and all its rows, in several transactions, and release the disk space that they used.

    Webhooks that are told of this experiment only are deleted, too.

    If a call is interrupted, call `remove` or `finish`. Raise NotFound if there is no such experiment.
    """
    segments = [row[0] for row in database.rows(_SEGMENTS, (experiment_id,))]
    at, at_once = 0, 1
    while part := segments[at : at + at_once]:
        with database.write() as cursor:
            began = time.monotonic()
            cursor.execute(_KEEP, (math.inf, experiment_id))
            for table in OF_SEGMENTS:
                _delete(cursor, table, "segment_id", part)
            _delete(cursor, "segment", "id", part)
        took = time.monotonic() - began
        at += at_once
        at_once = max(1, at_once // 2) if took > HELD_S else min(AT_ONCE, 4 * at_once)
        time.sleep(took)  # for this long, others can write
    for table, column in NUMBERED.items():
        [(last,)] = database.rows(f"SELECT max({column}) FROM {table} WHERE experiment_id = ?", (experiment_id,))
        for upto in range(ROWS_AT_ONCE, last or 0, ROWS_AT_ONCE):
            with database.write() as cursor:
                began = time.monotonic()
                cursor.execute(_KEEP, (math.inf, experiment_id))
                cursor.execute(f"DELETE FROM {table} WHERE experiment_id = ? AND {column} <= ?", (experiment_id, upto))
            time.sleep(time.monotonic() - began)
    with database.write() as cursor:
        lock(cursor, experiment_id)  # in PostgreSQL, another process may be adding a command
        [(code, public_id)] = cursor.rows("SELECT code_hash, public_id FROM experiment WHERE id = ?", (experiment_id,))
        keys = [row[0] for row in cursor.rows("SELECT id FROM metric_key WHERE experiment_id = ?", (experiment_id,))]
        for table in OF_KEYS:
            _delete(cursor, table, "key_id", keys)
        for table in OF_EXPERIMENTS:
            _delete(cursor, table, "experiment_id", [experiment_id])
        _delete(cursor, "experiment", "id", [experiment_id])
        cursor.execute(_DELIVERIES, (public_id,))
        cursor.execute(_WEBHOOKS, (public_id,))
        if code is not None:
            if cursor.backend == "postgresql":
                cursor.execute(_LOCK_CODE, (code,))
            cursor.execute(_CODE, (code,))
    with contextlib.suppress(StoreError):  # the experiment is deleted; the next deletion frees the space
        database.shrink()


def finish(database: Database) -> int:
    """Delete the rest of each experiment whose deletion was interrupted after its first row, and return their number.

    Nothing but rows is left of it, because its files are deleted first. The caller may be faster than a deletion that still runs.
    """
    half = select(experiment.c.id).where(experiment.c.driver_owner == DELETION, experiment.c.lease_until == math.inf)
    with database.read() as connection:
        found = connection.scalars(half).all()
    for one in found:
        with contextlib.suppress(NotFound):  # another process was faster
            remove(database, one)
    return len(found)


def _delete(cursor: Cursor, table: str, column: str, ids: Sequence[int]) -> None:
    cursor.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(one,) for one in ids])
