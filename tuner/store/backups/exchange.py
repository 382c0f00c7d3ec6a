"""Copy all rows between PostgreSQL and an SQLite file, to back up and restore a PostgreSQL database.

Both have the same tables, so the file is itself a tuner database. Values are copied as they are stored, without decoding.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Boolean, Connection, Table, text

from tuner.domain.states import ExperimentState
from tuner.errors import Conflict, StoreError
from tuner.store.sql import migrate
from tuner.store.sql.connect import connect, connect_alone, shown_url, translated
from tuner.store.sql.tables import metadata

ROWS = 5_000
"""The number of rows that are read and written at once."""

LOCK_S = 10
"""The time to wait for locks on the tables to replace, in seconds."""

DRIVEN = f"""
SELECT public_id, lease_until FROM experiment
WHERE lease_until > ? AND state NOT IN ({", ".join(f"'{state}'" for state in ExperimentState if state.ended)})
ORDER BY lease_until DESC LIMIT 1"""
"""Finds an experiment that is being driven now, given the current time."""


def export(url: str, target: Path) -> None:
    """Copy a consistent snapshot of a PostgreSQL database to a new SQLite file. Services and searches may keep running.

    Raises:
        StoreError: the database cannot be read, or it does not have the tables of this version.
    """
    source = connect(url)
    try:
        with translated("postgresql"):
            found = migrate.revision(source)
        if why := migrate.problem(found):
            raise StoreError(f"cannot back up {shown_url(url)}: {why}")
        _make(target)
        with (
            translated("postgresql"),
            source.connect().execution_options(isolation_level="REPEATABLE READ", stream_results=True) as read,
            closing(sqlite3.connect(target)) as write,
        ):
            write.execute("PRAGMA synchronous = OFF")  # no need to survive a crash: an incomplete file is deleted
            for table in metadata.sorted_tables:
                names = [column.name for column in table.columns]
                marks = ", ".join("?" * len(names))
                for rows in _rows_of(read, table, names):
                    write.executemany(f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks})", rows)
            write.commit()
    finally:
        source.dispose()


def put_back(url: str, source: Path, *, force: bool = False) -> None:
    """Replace the rows of a PostgreSQL database with those of an SQLite file that has the tables of this version.

    Raises:
        Conflict: the database has experiments, and `force` is not given; or one of them is running.
        StoreError: another process uses the database.
    """
    target = connect(url)
    try:
        migrate.migrate(target)
        with translated("postgresql"), target.connect() as check:
            _check_replaceable(check, url, force)
        with (
            translated("postgresql"),
            closing(reading(source)) as read,
            target.begin() as write,
        ):
            write.execute(text(f"SET LOCAL lock_timeout = '{LOCK_S}s'"))
            # Other transactions begin with the table of experiments, so they then wait before they hold other locks.
            names = sorted(metadata.tables, key=lambda name: name != "experiment")
            write.execute(text(f"LOCK TABLE {', '.join(names)} IN ACCESS EXCLUSIVE MODE"))
            _check_replaceable(write, url, force)  # again, because a driver may have started since
            write.execute(text(f"TRUNCATE {', '.join(metadata.tables)} RESTART IDENTITY CASCADE"))
            for table in metadata.sorted_tables:
                _fill(write, table, read)
    finally:
        target.dispose()


def _check_replaceable(target: Connection, url: str, force: bool) -> None:
    """Raise Conflict if the database has experiments, and `force` is not given, or if one of them is running."""
    if not force and target.execute(text("SELECT 1 FROM experiment LIMIT 1")).first():
        raise Conflict(f"{shown_url(url)} has experiments, which would be lost; pass --force to replace them")
    driven = target.execute(text(DRIVEN.replace("?", ":now")), {"now": time.time()}).first()
    if driven is not None:
        raise running(driven[0], driven[1])


def running(public_id: str, lease_until: float) -> Conflict:
    """Return the error for a restore to a database whose experiment `public_id` has a driver."""
    left = math.ceil(lease_until - time.time())
    return Conflict(
        f"{public_id} is running, and its driver holds the old state in memory: stop all services (`tuner serve --stop`) and "
        f"searches first; if its driver has just been killed, wait {max(left, 1)} s"
    )


def reading(source: Path) -> sqlite3.Connection:
    """Open an SQLite file for reading, whatever characters its name has. Never create it."""
    return sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)


def _make(target: Path) -> None:
    """Make an SQLite file with the tables of this version, or migrate one. No other process may use it, so any disk will do."""
    engine = connect_alone(target)
    try:
        migrate.migrate(engine)
    finally:
        engine.dispose()


def _rows_of(connection: Connection, table: Table, names: list[str]) -> Iterator[list[Any]]:
    columns = ", ".join(f'"{name}"' for name in names)
    result = connection.exec_driver_sql(f"SELECT {columns} FROM {table.name}")
    while rows := result.fetchmany(ROWS):
        yield [tuple(row) for row in rows]


def _fill(connection: Connection, table: Table, source: sqlite3.Connection) -> None:
    names = [column.name for column in table.columns]
    flags = [i for i, column in enumerate(table.columns) if isinstance(column.type, Boolean)]
    columns = ", ".join(f'"{name}"' for name in names)
    raw: Any = connection.connection.driver_connection
    rows = source.execute(f"SELECT {columns} FROM {table.name}")
    with raw.cursor() as cursor, cursor.copy(f"COPY {table.name} ({columns}) FROM STDIN") as copy:
        for row in rows:
            values = list(row)
            for i in flags:
                values[i] = None if values[i] is None else bool(values[i])
            copy.write_row(values)
    if [column.name for column in table.primary_key] == ["id"]:
        sequence = f"pg_get_serial_sequence('{table.name}', 'id')"
        last = source.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table.name,)).fetchone()
        if last is not None and last[0]:
            connection.execute(text(f"SELECT setval({sequence}, :last)"), {"last": last[0]})


def migrated(source: Path, folder: Path) -> Path:
    """Copy an SQLite file into `folder`, migrate the copy to the tables of this version, and return its path."""
    copy = folder / "copy.db"
    with closing(reading(source)) as read, closing(sqlite3.connect(copy)) as write:
        read.backup(write)
    _make(copy)
    return copy
