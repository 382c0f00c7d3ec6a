"""Migrate a database to the tables of this version.

Alembic's scripts are in `migrations/`, and in the wheel as `tuner/_migrations`. A new SQLite file gets the result of all scripts
from `sqlite.sql` there, which `tuner.store.sql.revise` writes: to import Alembic and run the scripts takes ten times as long.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import DBAPIError, OperationalError

from tuner.errors import StoreError
from tuner.store.sql.connect import is_not_up, shown_url, translate
from tuner.store.sql.tables import metadata

log = logging.getLogger(__name__)

TELL_EVERY_S = 10.0
"""The time between two warnings that a migration is still running or waiting, in seconds."""

START_S = 30.0
"""A patient migration waits this many seconds for a server that cannot be reached yet, most likely because it starts."""

AGAIN_S = 0.3
"""The time between two attempts to connect to such a server, in seconds."""

LOCK_MS = 300
"""The time for which a migration waits for the lock of a table in PostgreSQL before it lets others go on, in milliseconds.

PostgreSQL looks for deadlocks after a second, by default.
"""

_VACUUMED = """
SELECT c.relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
WHERE l.granted AND l.mode = 'ShareUpdateExclusiveLock' AND pg_table_is_visible(c.oid)"""
"""Finds the tables with a lock of the kind that a vacuum takes, in PostgreSQL."""

_DEADLOCK_MS = "SELECT setting FROM pg_settings WHERE name = 'deadlock_timeout'"


def scripts() -> Path:
    """Return the folder of the migration scripts: beside the package in a source tree, inside it if installed."""
    package = Path(__file__).resolve().parents[2]
    for place in (package / "_migrations", package.parent / "migrations"):
        if (place / "env.py").is_file():
            return place
    raise StoreError("the migration scripts are missing from this installation; install the package again")


@functools.cache
def head() -> str:
    """Return the newest revision, which is the only one in `migrations/versions` on which no other revision is based."""
    [newest] = _declared("revision") - _declared("down_revision")
    return newest


def is_known(revision: str) -> bool:
    """Return whether this version of tuner can migrate a database of this revision."""
    return revision in _declared("revision")


def _declared(field: str) -> set[str]:
    """Return the values that this field has in the scripts in `migrations/versions`."""
    texts = [path.read_text(encoding="utf-8") for path in (scripts() / "versions").glob("[0-9][0-9][0-9][0-9]*.py")]
    return {name for text in texts for name in re.findall(rf'^{field} = "(\w+)"', text, re.MULTILINE)}


def problem(found: str | None) -> str | None:
    """Return why this version cannot use a database of this revision, and what to do about it, or None if it can."""
    if found == head():
        return None
    if found is None or is_known(found):
        return f"the database is at revision {found}, but this version of tuner needs {head()}; run `tuner migrate`"
    return f"the database was written by a newer version of tuner, at revision {found}; upgrade tuner"


def revision(engine: Engine) -> str | None:
    """Return the revision of the database, or None if it is empty."""
    with engine.connect() as connection:
        return _revision(connection)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    row = connection.execute(text("SELECT version_num FROM alembic_version")).first()
    return str(row[0]) if row else None


def migrate(engine: Engine, *, patient: bool = False) -> None:
    """Migrate the database to `head()`. Several processes may do this at once: all but one wait until it is done.

    If there is nothing to do, this costs only one query.

    patient: wait up to `START_S` seconds for a server that accepts no connections yet, or whose host is not known yet.
    """
    try:
        if patient:
            _wait_for_server(engine)
        if (before := revision(engine)) == head():
            return
    except DBAPIError as error:
        kind = type(translate(error.orig or error, engine.dialect.name))
        why = f"{shown_url(str(error.orig))}{_not_allowed(engine)}"
        raise kind(f"cannot open the database {_shown(engine)}: {why}") from error

    if before is not None or not _create(engine):
        upgrade(engine)


def _wait_for_server(engine: Engine) -> None:
    """Wait until the server accepts connections, for at most `START_S` seconds. Raise at once if it rejects this user."""
    until = time.monotonic() + START_S
    is_told = False
    while True:
        try:
            engine.connect().close()
            return
        except DBAPIError as error:
            if not is_not_up(error.orig) or time.monotonic() > until:
                raise
            why = shown_url(str(error.orig).strip().partition("\n")[0])
        if not is_told:
            is_told = True
            log.warning("waiting up to %g s for the database %s: %s", START_S, _shown(engine), why)
        time.sleep(AGAIN_S)


def _not_allowed(engine: Engine) -> str:
    """Return the end of a message: what of an SQLite database this user may not write to, its file or its folder, or ""."""
    if engine.dialect.name != "sqlite":
        return ""
    path = Path(str(engine.url.database))
    for place in (path, path.parent):  # SQLite needs the folder for its write-ahead log
        if os.path.exists(place) and not os.access(place, os.W_OK):
            return f"; this user may not write to {place}: allow it, or set TUNER_HOME or TUNER_DATABASE_URL to another place"
    return ""


def upgrade(engine: Engine) -> None:
    """Run the scripts that the database lacks."""
    # Otherwise Alembic writes a line for each plugin when it is imported, and one for each revision.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Alembic takes 0.2 s to import, so it is imported only if there is something to do.
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    with engine.connect() as connection, _telling() as tell:
        lite = engine.dialect.name == "sqlite"
        config.attributes["connection"] = connection
        tell(f"waiting for a process that writes to the database {_shown(engine)}, most likely to migrate it")
        try:
            if lite:
                _begin(connection)
            else:
                connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7236512)")
            before = _revision(connection)
            if before == head():
                return  # another process has been faster
            if not lite:
                tell(f"waiting for the transactions of other processes in the database {_shown(engine)}, to migrate it")
                _lock_tables(connection)
            tell(
                f"migrating the database {_shown(engine)} from revision {before or 'none'} to {head()}, which takes minutes if "
                "it is large. If this process is ended, the database stays as it was"
            )
            command.upgrade(config, "head")
            if lite:
                _check_references(connection)
            connection.commit()
            if before is not None:
                log.info("migrated the database %s from revision %s to %s", _shown(engine), before, head())
        except CommandError as error:
            raise StoreError(
                f"{_shown(engine)} was written by a newer version of tuner; upgrade tuner ({error})"
            ) from error
        finally:
            if lite:
                connection.invalidate()  # foreign keys are off in this connection, so nothing may use it again


@contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """Warn every `TELL_EVERY_S` seconds of what the block is doing, which it passes to the function that this yields."""
    doing = ""
    done = threading.Event()

    def tell(what: str) -> None:
        nonlocal doing
        doing = what

    def warn() -> None:
        while not done.wait(TELL_EVERY_S):
            log.warning("%s", doing)

    thread = threading.Thread(target=warn, name="migration", daemon=True)
    thread.start()
    try:
        yield tell
    finally:
        done.set()
        thread.join()


def _create(engine: Engine) -> bool:
    """Create the tables in an empty SQLite file. Return False for any other database, or if `sqlite.sql` has another revision."""
    if engine.dialect.name != "sqlite" or not (script := scripts() / "sqlite.sql").is_file():
        return False
    *statements, stamp = script.read_text(encoding="utf-8").strip().split(";\n\n")
    if f"'{head()}'" not in stamp:
        return False
    with engine.connect() as connection:
        try:
            _begin(connection)
            if connection.exec_driver_sql("SELECT 1 FROM sqlite_master").first():
                return False  # another process has been faster, or the file has tables of something else
            for statement in (*statements, stamp):
                connection.exec_driver_sql(statement)
            connection.commit()
            return True
        finally:
            connection.invalidate()


def _begin(connection: Connection) -> None:
    """Begin to write to an SQLite file, in a connection that nothing may use afterwards: its foreign keys are off.

    A migration by another process may keep the file locked for longer than SQLite waits, so this waits again. It waits for a
    second at a time, because Ctrl-C has no effect while SQLite waits.
    """
    connection.exec_driver_sql("COMMIT")  # the read transaction that SQLAlchemy has begun
    connection.exec_driver_sql("PRAGMA foreign_keys=OFF")  # a migration may rebuild a referenced table
    connection.exec_driver_sql("PRAGMA busy_timeout=1000")
    while True:
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            return
        except OperationalError as error:
            if "locked" not in str(error.orig):
                raise


def _lock_tables(connection: Connection) -> None:
    """Let no other process use the tables in PostgreSQL until the end of the transaction.

    Drivers of an earlier version may be writing to them. If the scripts took the locks one after the other, as they change the
    tables, the migration or a driver would fail because of a deadlock. Here the migration gives up first, and tries again.
    """
    there = set(inspect(connection).get_table_names()) & set(metadata.tables)
    # Transactions of drivers begin with the table of experiments, so they then wait before they hold other locks.
    names = sorted(there, key=lambda name: (name != "experiment", name))
    while names and not _locked(connection, names, LOCK_MS):
        _end_vacuums(connection, names)


def _locked(connection: Connection, names: Sequence[str], patience_ms: int) -> bool:
    """Lock tables. Return False, without locks, if another process keeps one of them for longer than `patience_ms`."""
    usual = connection.exec_driver_sql("SHOW lock_timeout").scalar()
    try:
        with connection.begin_nested():
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {patience_ms}")
            connection.exec_driver_sql(f"LOCK TABLE {', '.join(names)} IN ACCESS EXCLUSIVE MODE")
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{usual}'")
    except OperationalError as error:
        if type(error.orig).__name__ not in ("LockNotAvailable", "DeadlockDetected"):
            raise
        return False
    return True


def _end_vacuums(connection: Connection, names: Sequence[str]) -> None:
    """Let PostgreSQL end its own vacuums of these tables, which can take hours.

    It ends one if another process has waited for the table for as long as `deadlock_timeout`. Nobody can wait for this process
    meanwhile, because it holds no other lock.
    """
    found = set(connection.exec_driver_sql(_VACUUMED).scalars())
    patience_ms = 1000 + int(connection.exec_driver_sql(_DEADLOCK_MS).scalar_one())
    for name in names:
        if name in found:
            with connection.begin_nested() as alone:
                _locked(connection, [name], patience_ms)
                alone.rollback()


def _check_references(connection: Connection) -> None:
    if broken := connection.exec_driver_sql("PRAGMA foreign_key_check").first():
        raise StoreError(
            f"{_shown(connection.engine)} cannot be migrated: a row of {broken[0]} refers to a missing row of {broken[2]}"
        )


def _shown(engine: Engine) -> str:
    return shown_url(engine.url.render_as_string())
