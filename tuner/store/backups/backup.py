"""Back up a database while it is in use, and restore it. A backup is an SQLite file, even if the database is PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from tuner.errors import Conflict, StoreError
from tuner.store.backups import exchange
from tuner.store.sql.connect import is_in_own_home, make_folder, sqlite_file
from tuner.store.sql.migrate import is_known

BUSY_S = 30.0
"""The time to wait for another process's transaction to end, in seconds."""

PAGES = 16
"""The number of pages that a restore writes before it checks again that nobody uses the database. Any database has more."""


def backup(url: str, target: Path) -> int:
    """Copy the whole database to a new file. Return the size of the file in bytes.

    The copy is consistent even if services and searches are running.

    Raises:
        Conflict: The file already exists.
        StoreError: The database or the file cannot be read or written.
    """
    source = _file(url)
    if source is not None and not source.is_file():
        raise StoreError(f"there is no database at {source}")
    try:
        if target.exists():
            raise Conflict(f"{target} already exists; a backup never replaces a file")
        if not target.parent.is_dir():
            raise StoreError(f"{target} cannot be written: there is no folder {target.parent}")
    except OSError as error:  # the name is too long, or this user may not read the folder
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error
    partial = target.with_name(f".tuner-backup.{secrets.token_hex(8)}")  # the name of the target may already be long
    try:
        if source is None:
            with _errors(f"the backup to {target} has failed"):
                exchange.export(url, partial)
        else:
            with _errors(f"the backup of {source} to {target} has failed", unopened=_read_only(source.parent)):
                _copy(source, partial)
        # Not every file system has hard links, which could do both at once.
        target.open("xb").close()  # fails if another process has created the file in the meantime
        try:
            partial.replace(target)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
    except FileExistsError:
        raise Conflict(f"{target} already exists; a backup never replaces a file") from None
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        for left in ("", "-wal", "-shm", "-journal"):
            partial.with_name(partial.name + left).unlink(missing_ok=True)
    return target.stat().st_size


def restore(url: str, source: Path, *, force: bool = False) -> None:
    """Replace the database with a backup.

    Stop all services and searches first, because they hold the old state in memory and would keep using it.

    Args:
        url: The database.
        source: The backup.
        force: True to replace the database even if it has experiments, which are then lost.

    Raises:
        Conflict: The database has experiments, and `force` is not given; or one of them is running.
        StoreError: The file is not a complete backup, a newer version of tuner has written it, or another process uses the
            database.
    """
    target = _file(url)
    try:
        if not source.is_file():
            raise StoreError(f"there is no file {source}")
    except OSError as error:
        raise StoreError(f"{source} cannot be read: {error.strerror}") from error
    with _errors(f"the restore of {source} has failed"), closing(exchange.reading(source)) as read:
        if read.execute("PRAGMA integrity_check").fetchone() != ("ok",) or not _has_tables(read):
            raise StoreError(f"{source} is not a complete backup of a tuner database")
        for (revision,) in read.execute("SELECT version_num FROM alembic_version"):
            if not is_known(revision):
                raise StoreError(
                    f"{source} was written by a newer version of tuner (revision {revision}); upgrade tuner first"
                )
        if target is None:
            _put_back_elsewhere(url, source, force)
            return
        make_folder(target.parent)
        if is_in_own_home(target):
            with contextlib.suppress(OSError):  # SQLite meets the same error, and names the file
                target.touch(mode=0o600)
        with (
            _errors(f"the restore to {target} has failed", "; move it away, and restore the backup again"),
            closing(sqlite3.connect(target, timeout=BUSY_S)) as write,
        ):
            if _has_tables(write):
                if not force and write.execute("SELECT 1 FROM experiment LIMIT 1").fetchone():
                    raise Conflict(
                        f"the database {target} has experiments, which would be lost; pass --force to replace it"
                    )
                # Without a write-ahead log, `_refuse_if_started` could not read the locked database. If another process reads it
                # just now, the log cannot be turned on, and the first check has to do.
                with contextlib.suppress(sqlite3.DatabaseError):
                    write.execute("PRAGMA journal_mode = WAL")
                _refuse_if_driven(write)
                _fill(write, read, lambda: _refuse_if_started(target))
            else:
                _fill(write, read)


def _refuse_if_driven(target: sqlite3.Connection) -> None:
    """Raise Conflict if an experiment of the database is running. None is if its table is too damaged to be read."""
    try:
        driven = target.execute(exchange.DRIVEN, (time.time(),)).fetchone()
    except sqlite3.DatabaseError as error:
        if not _is_damaged(error):
            raise
        return
    if driven is not None:
        raise exchange.running(*driven)


def _refuse_if_started(target: Path) -> None:
    """Raise Conflict if a driver has started since the first check. Call this while the database is locked, but not replaced."""
    with contextlib.suppress(sqlite3.OperationalError), closing(exchange.reading(target)) as read:
        _refuse_if_driven(read)


def _fill(
    target: sqlite3.Connection, source: sqlite3.Connection, check_locked: Callable[[], None] | None = None
) -> None:
    """Copy a database. Raise StoreError if another process keeps one of the two locked for `BUSY_S` seconds.

    check_locked: called once the target is locked. If it raises an error, the target stays as it is.
    """
    until = time.monotonic() + BUSY_S

    def check(status: int, _left: int, _pages: int) -> None:
        nonlocal check_locked
        if status == sqlite3.SQLITE_OK and check_locked is not None:
            check_locked()
            check_locked = None
        # By itself, `Connection.backup` would try again forever.
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() >= until:
            raise StoreError("another process uses the database: stop all services and searches first")

    # A source that is in use has to be copied in one step.
    source.backup(target, pages=-1 if check_locked is None else PAGES, progress=check, sleep=min(0.25, BUSY_S))


def _file(url: str) -> Path | None:
    """Return the path of an SQLite database's file, or None for a PostgreSQL database."""
    parts = make_url(url)
    return sqlite_file(parts.database) if parts.get_backend_name() == "sqlite" and parts.database else None


def _copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source, timeout=BUSY_S)) as read, closing(sqlite3.connect(target)) as write:
        _fill(write, read)
        write.execute("PRAGMA journal_mode = DELETE")  # leaves one file, without a write-ahead log beside it


def _read_only(folder: Path) -> str:
    """Return the end of a message: that SQLite cannot make the files that it needs beside a database, or ""."""
    if os.access(folder, os.W_OK):
        return ""
    return f"; SQLite needs files beside it, and {folder} is read-only: copy the folder, and back up the copy"


def _put_back_elsewhere(url: str, source: Path, force: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="tuner-restore-") as folder:
        exchange.put_back(url, exchange.migrated(source, Path(folder)), force=force)


def _has_tables(connection: sqlite3.Connection) -> bool:
    query = "SELECT count(*) FROM sqlite_master WHERE name IN ('alembic_version', 'experiment')"
    return bool(connection.execute(query).fetchone()[0] == 2)


@contextmanager
def _errors(what: str, remedy: str = "", unopened: str = "") -> Iterator[None]:
    """Turn errors of SQLite into a StoreError that says what failed.

    remedy: added if the file is damaged or no database.
    unopened: added if SQLite cannot open the file.
    """
    try:
        yield
    except (sqlite3.Error, DBAPIError) as error:
        found = error.orig if isinstance(error, DBAPIError) else error
        more = remedy if _is_damaged(found) else unopened if "unable to open" in str(found) else ""
        raise StoreError(f"{what}: {found}{more}") from error


def _is_damaged(error: BaseException | None) -> bool:
    """Return whether this error of SQLite says that the file is damaged or no database."""
    return type(error) is sqlite3.DatabaseError  # others, such as OperationalError, are subclasses
