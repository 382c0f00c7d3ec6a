"""Connections to the database: many for reading, and one for writing."""

from __future__ import annotations

import threading
import time as clock
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine

from tuner.errors import StoreError
from tuner.store.sql.connect import translated
from tuner.store.sql.migrate import head, migrate, revision
from tuner.store.writing.writer import Cursor


@dataclass(slots=True)
class Commits:
    """A record of whether a commit was tried. Threads that run in a copy of the context share this record."""

    tried: bool = False


_commits: ContextVar[Commits | None] = ContextVar("commits", default=None)


@contextmanager
def watched_commits() -> Iterator[None]:
    """Record, for `may_have_written`, whether a commit is tried within this block."""
    token = _commits.set(Commits())
    try:
        yield
    finally:
        _commits.reset(token)


def may_have_written() -> bool:
    """Return True if a commit was tried in the current `watched_commits` block, or if the caller is not in such a block."""
    found = _commits.get()
    return found is None or found.tried


class Database:
    """Hands out transactions. Every method may be called from any thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.backend = engine.dialect.name  # sqlite | postgresql
        self._lock = threading.Lock()
        self._write_connection: Any = None

    def migrate(self) -> None:
        """Bring the tables up to this version."""
        with translated(self.backend):
            migrate(self.engine)

    def check(self) -> None:
        """Raise StoreError unless the database answers and has the tables of this version."""
        with translated(self.backend):
            found = revision(self.engine)
        if found != head():
            raise StoreError(f"the database is at revision {found}, this version needs {head()}; run `tuner migrate`")

    def close(self) -> None:
        with self._lock:
            self._drop_write_connection()
        self.engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with translated(self.backend), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def cursor(self) -> Iterator[tuple[Cursor, Connection]]:
        """Begin a transaction that only reads, with a plain cursor for queries that return very many rows."""
        with self.read() as connection, connection.begin():
            yield Cursor(connection.connection.cursor(), self.backend), connection

    @contextmanager
    def write(self) -> Iterator[Cursor]:
        """Begin a transaction on the connection for writing.

        The transaction takes SQLite's write lock at once. If it began by reading, and another process wrote in between, its
        first write would fail immediately, regardless of the timeout.
        """
        with self._lock, translated(self.backend):
            if self._write_connection is None:
                self._write_connection = self.engine.raw_connection()
            raw = self._write_connection.driver_connection
            try:
                cursor = Cursor(raw.cursor(), self.backend)
                if self.backend == "sqlite":
                    cursor.execute("BEGIN IMMEDIATE")
                yield cursor
                if (commits := _commits.get()) is not None:
                    commits.tried = True  # a commit that raises an error may have succeeded
                raw.commit()
            except BaseException:
                self._roll_back(raw)
                raise

    def _roll_back(self, raw: Any) -> None:
        try:
            raw.rollback()
        except Exception:  # the connection is gone; the next transaction gets a new one
            self._drop_write_connection()

    def _drop_write_connection(self) -> None:
        connection, self._write_connection = self._write_connection, None
        if connection is not None:
            connection.invalidate()


def at(now: float | None) -> float:
    """Return `now`, or the current time if `now` is None."""
    return clock.time() if now is None else now
