"""Commands: what users ask the driver of an experiment to do."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from tuner.store.records import CommandRecord
from tuner.store.sql.database import Database, at
from tuner.store.sql.tables import command
from tuner.store.writing.rows import clean

# The newest command about the same subject counts: a pause after a resume is a new pause.
_FIND = """
SELECT id FROM command WHERE experiment_id = ? AND state = 'pending' AND command = ? AND COALESCE(trial_number, -1) = ?
AND id = (SELECT MAX(id) FROM command WHERE experiment_id = ? AND COALESCE(trial_number, -1) = ?)"""
_INSERT = """
INSERT INTO command (experiment_id, command, trial_number, reason, state, created_at)
VALUES (?, ?, ?, ?, 'pending', ?) RETURNING id"""


class Commands:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self, experiment_id: int, name: str, trial_number: int | None = None, reason: str = "", now: float | None = None
    ) -> int:
        """Ask the experiment's driver for something. Return the id of the command.

        A repeated command is the same command as long as it is pending.
        """
        about = -1 if trial_number is None else trial_number
        with self._database.write() as cursor:
            found = cursor.value(_FIND, (experiment_id, name, about, experiment_id, about))
            if found is None:
                found = cursor.value(_INSERT, (experiment_id, name, trial_number, clean(reason), at(now)))
        return int(found)

    def pending(self, experiment_ids: Sequence[int]) -> list[CommandRecord]:
        """Return the commands that no driver has carried out yet, in the order in which they were given."""
        if not experiment_ids:
            return []
        columns = command.c["id", "experiment_id", "command", "reason", "created_at"]
        query = select(*columns, command.c.trial_number.label("trial")).order_by(command.c.id)
        query = query.where(command.c.experiment_id.in_(experiment_ids), command.c.state == "pending")
        with self._database.read() as connection:
            return [CommandRecord(**row) for row in connection.execute(query).mappings()]
