"""Commands: users' requests to an experiment's driver."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from tuner.domain.states import ExperimentState
from tuner.domain.thinned import why_thinned
from tuner.errors import Conflict, NotFound
from tuner.store.records import CommandRecord
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.database import Database, at
from tuner.store.sql.tables import command, dumps
from tuner.store.writing.rows import clean

# Only the newest command about the trial or experiment is compared: a pause after a resume is a new pause.
_FIND = """
SELECT id FROM command WHERE experiment_id = ? AND state = 'pending' AND command = ? AND COALESCE(trial_number, -1) = ?
AND id = (SELECT MAX(id) FROM command WHERE experiment_id = ? AND COALESCE(trial_number, -1) = ?)"""
_INSERT = """
INSERT INTO command (experiment_id, command, trial_number, reason, payload, state, created_at, idempotency_key, request)
VALUES (?, ?, ?, ?, ?, 'pending', ?, ?, ?) RETURNING id"""
_SENT = "SELECT request FROM command WHERE experiment_id = ? AND idempotency_key = ?"
_WITH_KEY = "SELECT id FROM command WHERE experiment_id = ? AND idempotency_key = ?"
_LOCK = "UPDATE experiment SET id = id WHERE id = ?"
_UNARCHIVE = "UPDATE experiment SET archived_at = NULL WHERE id = ?"  # like `_LOCK`, it always locks the row
_THINNED = "SELECT public_id, thinned_at FROM experiment WHERE id = ? AND thinned_at IS NOT NULL"
_ENDED = ", ".join(f"'{state}'" for state in ExperimentState if state.ended)
# This statement always locks the row, so that a driver that is about to end the experiment sees this transaction's commands.
_ADOPT_ENDED = f"""
UPDATE experiment SET source = CASE WHEN source = 'python' AND state IN ({_ENDED}) THEN 'adopted' ELSE source END
WHERE id = ?"""


DELETION = "deletion"
"""The owner of the lease of an experiment that is being deleted."""

_DELETING = f"SELECT public_id FROM experiment WHERE id = ? AND driver_owner = '{DELETION}' AND lease_until > ?"

FOR_TRIALS = {"for_trials": True}
"""The payload of a `continue` that is added to a request for trials; see `Commanded`."""


@dataclass(frozen=True, slots=True)
class Request:
    """A user's request with an idempotency key. `content` is a hash of what the request asks for."""

    key: str
    content: str

    @classmethod
    def of(cls, key: str | None, asked: Any) -> Request | None:
        """Return the request with this key that asks for this JSON value; None without a key."""
        if key is None:
            return None
        return cls(str(clean(key)), hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest())


class Commands:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self,
        experiment_id: int,
        name: str,
        trial_number: int | None = None,
        reason: str = "",
        now: float | None = None,
        *,
        reopen: bool = False,
        request: Request | None = None,
    ) -> int:
        """Send a command to the experiment's driver, and return the command's id.

        If the newest command about the same trial (or about the experiment itself) has the same name and is pending, add
        nothing and return the id of that command. Do the same if the `request` was sent before.

        Args:
            experiment_id: the internal id.
            name: the name of the command, such as "pause".
            trial_number: the number of the trial that the command is about; None if it is about the whole experiment.
            reason: the reason to show in the log.
            now: the current time.
            reopen: True to also add a command that continues the experiment, so that the command is carried out even if the
                experiment is ending.
            request: the user's request that needs this, if it has an idempotency key.

        Raises:
            NotFound: the experiment has been deleted.
            Conflict: the experiment is being deleted, or has been thinned and cannot be continued; or another request was sent
                with the idempotency key.
        """
        about = -1 if trial_number is None else trial_number
        with self._database.write() as cursor:
            lock(cursor, experiment_id)  # in PostgreSQL, another process may be adding the same command
            if request is not None and is_sent(cursor, experiment_id, request):
                found = cursor.value(_WITH_KEY, (experiment_id, request.key))
            else:
                found = cursor.value(_FIND, (experiment_id, name, about, experiment_id, about))
            if found is None:
                found = insert(cursor, experiment_id, name, trial_number, reason, {}, at(now), request)
                if reopen:
                    insert(cursor, experiment_id, "continue", None, reason, FOR_TRIALS, at(now))
                    adopt_ended(cursor, experiment_id)
        return int(found)

    def sent_with(self, experiment_id: int, request: Request | None) -> bool:
        """Return True if this request has been sent to this experiment's driver before; False if it has no key.

        Raise Conflict if another request was sent with its key.
        """
        if request is None:
            return False
        query = select(command.c.request).where(
            command.c.experiment_id == experiment_id, command.c.idempotency_key == request.key
        )
        with self._database.read() as connection:
            return _is_among(connection.scalars(query).all(), request)

    def pending(self, experiment_ids: Sequence[int]) -> list[CommandRecord]:
        """Return the commands that no driver has carried out yet, oldest first."""
        if not experiment_ids:
            return []
        columns = command.c["id", "experiment_id", "command", "reason", "payload", "created_at"]
        query = select(*columns, command.c.trial_number.label("trial")).order_by(command.c.id)
        query = query.where(command.c.experiment_id.in_(experiment_ids), command.c.state == "pending")
        with self._database.read() as connection:
            rows = connection.execute(query).mappings()
            return [CommandRecord(**{**row, "payload": row["payload"] or {}}) for row in rows]


def lock(cursor: Cursor, experiment_id: int) -> None:
    """Lock the row of an experiment until the end of the caller's transaction, which is to add a command or delete the row.

    Raise NotFound if the experiment has been deleted.
    """
    cursor.execute(_LOCK, (experiment_id,))
    if cursor.rowcount != 1:
        raise NotFound(f"no experiment with the internal id {experiment_id}; it has just been deleted")


def adopt_ended(cursor: Cursor, experiment_id: int) -> None:
    """Hand an experiment over to the service if a script created it and it has ended."""
    cursor.execute(_ADOPT_ENDED, (experiment_id,))


def is_sent(cursor: Cursor, experiment_id: int, request: Request) -> bool:
    """Do the same as `Commands.sent_with` in the caller's transaction, after `lock`."""
    return _is_among([content for (content,) in cursor.rows(_SENT, (experiment_id, request.key))], request)


def _is_among(contents: Sequence[str], request: Request) -> bool:
    if any(content != request.content for content in contents):
        raise Conflict(f"the idempotency key {request.key!r} was used before, with another request")
    return bool(contents)


def insert(
    cursor: Cursor,
    experiment_id: int,
    name: str,
    trial: int | None,
    reason: str,
    payload: Mapping[str, Any],
    now: float,
    request: Request | None = None,
) -> int:
    """Add a command in the caller's transaction, after `lock`, and return its id. It unarchives an experiment that it continues.

    Raise Conflict if the command continues a thinned experiment, or if the experiment is being deleted.
    """
    for (public_id,) in cursor.rows(_DELETING, (experiment_id, now)):
        raise Conflict(f"{public_id} is being deleted; if the deletion was interrupted, delete it again")
    if name == "continue":
        # If housekeeping is about to thin the experiment, this statement waits for it. Otherwise housekeeping waits for this
        # transaction.
        cursor.execute(_UNARCHIVE, (experiment_id,))
        for public_id, thinned_at in cursor.rows(_THINNED, (experiment_id,)):
            raise Conflict(
                f"{public_id} cannot be continued: {why_thinned(thinned_at, 'continuing it')}; fork it instead"
            )
    stored = dumps(payload) if payload else None
    keyed = (None, None) if request is None else (request.key, request.content)
    values = (experiment_id, name, trial, clean(reason), stored, now, *keyed)
    return int(cursor.value(_INSERT, values))
