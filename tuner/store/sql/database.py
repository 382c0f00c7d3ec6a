"""Connections to the database: many for reading, and one for writing."""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
import time as clock
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine, event

from tuner.errors import Retryable, StoreError
from tuner.store.sql.connect import is_of_driver, translated
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.migrate import migrate, problem, revision

T = TypeVar("T")

INCREMENTAL = 2
"""The value of SQLite's auto_vacuum for files that can shrink on request."""

IDLE_S = 5.0
"""A connection for writing to PostgreSQL that was idle for this long is tested first. The pool tests those for reading."""

KEPT_PAGES = 256
"""The number of free pages that are kept in an SQLite file for new rows. A page has 4 KiB."""

LAST = "~"
"""The `order` of work that is done after all other work of a transaction. It sorts after all names and hashes."""

VACUUM_PAGES = 1000
VACUUM_PAUSE_S = 0.01
"""`shrink` frees `VACUUM_PAGES` pages at a time, which takes a few milliseconds. In the pauses between, others can write."""


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


def note_commit() -> None:
    """Record that a commit is about to be tried. If it raises an error, it may have succeeded."""
    if (commits := _commits.get()) is not None:
        commits.tried = True


def may_have_written() -> bool:
    """Return True if a commit was tried in the current `watched_commits` block, or if the caller is not in such a block."""
    found = _commits.get()
    return found is None or found.tried


@dataclass(slots=True, eq=False)
class Share(Generic[T]):
    """One piece of the work of a shared transaction; see `Database.write_together`.

    `result` and `error` are set once it has been written.
    """

    work: Callable[[Cursor], T]
    order: str = ""
    commits: Commits | None = field(default_factory=_commits.get)
    # Only the first of the shares that are passed to `write_all` together has one.
    is_woken: threading.Event | None = None
    is_done: bool = False
    result: T | None = None
    error: BaseException | None = None

    def wake(self) -> None:
        """Wake the thread that waits for this share, if there is one."""
        if self.is_woken is not None:
            self.is_woken.set()

    def run(self, cursor: Cursor) -> None:
        self.result = self.work(cursor)
        self.error = None

    def note_commit(self) -> None:
        """Record that a transaction with this work is about to be committed."""
        if self.commits is not None and self.error is None:
            self.commits.tried = True

    def run_beside_others(self, cursor: Cursor) -> None:
        """Do the work. If it fails, undo only this work, unless the error comes from the database."""
        cursor.execute("SAVEPOINT share")
        try:
            self.run(cursor)
        except Exception as error:
            _undo(cursor, "share", error)
            self.error = error
        cursor.execute("RELEASE SAVEPOINT share")


def _run_all(shares: Sequence[Share[Any]], cursor: Cursor) -> None:
    """Do the work of these shares. If one of them fails, undo it all, and begin again with a savepoint for each."""
    cursor.execute("SAVEPOINT shares")
    try:
        for one in shares:
            one.run(cursor)
    except Exception as error:
        _undo(cursor, "shares", error)
        for one in shares:
            one.run_beside_others(cursor)


def _undo(cursor: Cursor, savepoint: str, error: Exception) -> None:
    """Raise the error if it comes from the database, which may have ended the transaction; otherwise go back to the savepoint."""
    if is_of_driver(error, cursor.backend):
        raise error
    cursor.execute(f"ROLLBACK TO SAVEPOINT {savepoint}")
    cursor.stored_code.clear()


class Database:
    """Hands out transactions. Every method may be called from any thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.backend = engine.dialect.name  # sqlite | postgresql
        self._lock = threading.Lock()
        self._write_connection: Any = None
        self._written_at = 0.0  # when that connection was last used, by the monotonic clock
        self._path = engine.url.database if self.backend == "sqlite" else None
        self._file: tuple[int, int] | None = None  # SQLite's file, once this process has opened it
        if self.backend == "sqlite":
            event.listen(engine, "connect", self._note_file)
        self._joining = threading.Lock()
        # The shares in the order of arrival. The thread of the first one leads or will lead.
        self._shares: list[Share[Any]] = []
        self._has_leader = False

    def migrate(self, *, patient: bool = False) -> None:
        """Migrate the tables to this version of tuner. patient: wait a while for a server that cannot be reached yet."""
        with translated(self.backend, self._path):
            migrate(self.engine, patient=patient)

    def check(self) -> None:
        """Raise StoreError unless the database responds and has the tables of this version."""
        with translated(self.backend, self._path):
            found = revision(self.engine)
        if why := problem(found):
            raise StoreError(why)

    def close(self) -> None:
        with self._lock:
            self._drop_write_connection()
        self.engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        self._check_file()
        with translated(self.backend, self._path), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def cursor(self) -> Iterator[tuple[Cursor, Connection]]:
        """Begin a transaction that only reads, with a plain cursor for queries that return very many rows.

        All of its queries see the same state of the database, as they always do in SQLite.
        """
        with self.read() as connection:
            if self.backend == "postgresql":
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield Cursor(connection.connection.cursor(), self.backend), connection

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a single query, in half the time that `cursor` takes for one: SQLAlchemy begins no transaction."""
        self._check_file()
        with translated(self.backend, self._path):
            connection = self.engine.raw_connection()
            try:
                return Cursor(connection.cursor(), self.backend).rows(sql, parameters)
            finally:
                connection.close()

    @contextmanager
    def write(self) -> Iterator[Cursor]:
        """Begin a transaction on the connection for writing.

        The transaction takes SQLite's write lock at once. If it began by reading, and another process wrote in between, its
        first write would fail immediately, regardless of the timeout.
        """
        with self._lock, translated(self.backend, self._path):
            self._check_file()
            if self.backend == "postgresql" and clock.monotonic() - self._written_at > IDLE_S:
                self._drop_if_cut()
            if self._write_connection is None:
                self._write_connection = self.engine.raw_connection()
            raw = self._write_connection.driver_connection
            try:
                cursor = Cursor(raw.cursor(), self.backend)
                if self.backend == "sqlite":
                    cursor.execute("BEGIN IMMEDIATE")
                yield cursor
                note_commit()
                raw.commit()
                self._written_at = clock.monotonic()
            except BaseException:
                self._roll_back(raw)
                raise

    def shrink(self) -> None:
        """Release the disk space of deleted rows, in small steps, between which others can write.

        In PostgreSQL, do nothing: its autovacuum frees the space for other rows. Also do nothing if the SQLite file was created
        without incremental vacuum; only a VACUUM changes that.
        """
        if self.backend != "sqlite":
            return
        self._check_file()
        with translated(self.backend, self._path):
            connection = self.engine.raw_connection()
            try:
                _shrink(connection.driver_connection)
            finally:
                connection.close()

    def _note_file(self, *_connection: Any) -> None:
        """Remember the identity of SQLite's file, unless it is known from an earlier connection."""
        if self._file is None:
            with contextlib.suppress(OSError):
                self._file = self._identity()

    def _check_file(self) -> None:
        """Raise StoreError if SQLite's file is not the one that was opened at the first connection.

        A process can write to a deleted file. Nobody would notice until the process exits and everything that it wrote is lost.
        """
        if self._file is None:
            return
        try:
            found = self._identity()
        except FileNotFoundError:
            found = None
        except OSError:  # for example an I/O error, which says nothing about the file; SQLite will run into it, too
            return
        if found != self._file:
            raise StoreError(
                f"the database {self.engine.url.database} was deleted or replaced while it was in use: this process "
                f"has lost everything in it, and can no longer store anything"
            )

    def _identity(self) -> tuple[int, int]:
        """Return the device and the inode of SQLite's file. Raise OSError if they cannot be read."""
        assert self.engine.url.database is not None
        found = os.stat(self.engine.url.database)
        return found.st_dev, found.st_ino

    def write_together(self, work: Callable[[Cursor], T], order: str = "") -> T:
        """Call `work` in a transaction on the connection for writing. Return its result after the commit.

        Calls that wait for the connection share the next transaction, so that many threads share the cost of one commit. If
        `work` raises an error, what it has written is undone, and the other calls are not affected.

        Args:
            work: writes with the cursor that it gets. It may be called in another thread, and a second time if the first
                transaction has failed.
            order: the calls in a shared transaction are sorted by this text. Use the name of a row that `work` locks, so that two
                processes do not deadlock.
        """
        mine = Share(work, order)
        self.write_all([mine])
        if mine.error is not None:
            raise mine.error
        return mine.result  # type: ignore[return-value]

    def write_all(self, shares: Sequence[Share[Any]]) -> None:
        """Do the work of all these shares in one transaction, as `write_together` does it for several threads.

        Return after the commit, when the result or the error of each share is set.
        """
        if not shares:
            return
        first = shares[0]
        first.is_woken = woken = threading.Event()
        with self._joining:
            self._shares += shares
            leads, self._has_leader = not self._has_leader, True
        if not leads:
            try:
                woken.wait()
            except BaseException:  # Ctrl-C
                self._withdraw(shares)
                raise
        if not first.is_done:
            self._lead_uninterrupted()

    def _lead_uninterrupted(self) -> None:
        """Lead in another thread if this is the main thread, where Ctrl-C would interrupt the writes of all threads."""
        if threading.current_thread() is not threading.main_thread():
            self._lead()
            return

        def lead() -> None:
            with contextlib.suppress(BaseException):  # every share has its error
                self._lead()

        leader = threading.Thread(target=contextvars.copy_context().run, args=(lead,), name="tuner-commit")
        try:
            leader.start()
        except RuntimeError:  # this process may not start any more threads
            self._lead()
            return
        leader.join()

    def _lead(self) -> None:
        """Write the shares of all waiting threads in one transaction.

        Then let the first thread that has arrived in the meantime lead.
        """
        shares = self._taken()
        try:
            self._write_shares(shares)
        except BaseException as error:
            for one in shares:
                one.error = error
            raise
        finally:
            with self._joining:
                self._appoint()
            for one in shares:
                one.is_done = True
                one.wake()

    def _appoint(self) -> None:
        """Wake the thread that has waited longest, so that it leads. The caller holds the lock `_joining`."""
        self._has_leader = bool(self._shares)
        if self._shares:
            self._shares[0].wake()

    def _withdraw(self, shares: Sequence[Share[Any]]) -> None:
        """Remove the shares of a thread that is no longer waiting. If that thread was to lead, let the next one lead."""
        with self._joining:
            if shares[0] in self._shares:
                self._shares = [one for one in self._shares if one not in shares]
                assert shares[0].is_woken is not None
                if shares[0].is_woken.is_set():
                    self._appoint()

    def _taken(self) -> list[Share[Any]]:
        with self._joining:
            taken, self._shares = self._shares, []
        return taken

    def _write_shares(self, shares: list[Share[Any]]) -> None:
        """Write these shares. Shares that arrive before the transaction begins are added to the list and written too.

        Set the error of each share that has failed.
        """
        spoiled = False  # True if one of several shares has made the transaction fail
        try:
            with self.write() as cursor:
                shares += self._taken()
                shares.sort(key=lambda one: one.order)
                if len(shares) == 1:
                    shares[0].run(cursor)
                else:
                    spoiled = True
                    _run_all(shares, cursor)
                    spoiled = False
                for one in shares:
                    one.note_commit()
        except Exception as error:
            for one in shares:
                one.error = error
        if spoiled:
            self._write_singly(shares)

    def _write_singly(self, shares: list[Share[Any]]) -> None:
        """Write each share in a transaction of its own.

        Stop if the database is unreachable; the rest then keep the error that they have.
        """
        for one in shares:
            try:
                with self.write() as cursor:
                    one.run(cursor)
                    one.note_commit()
            except Exception as error:
                one.error = error
                if isinstance(error, Retryable):
                    return

    def _roll_back(self, raw: Any) -> None:
        try:
            raw.rollback()
        except Exception:  # the connection is gone; the next transaction gets a new one
            self._drop_write_connection()

    def _drop_if_cut(self) -> None:
        """Drop the connection for writing if it does not work any more, so that the next write gets a new one."""
        if self._write_connection is None:
            return
        raw = self._write_connection.driver_connection
        try:
            raw.execute("SELECT 1")
            raw.rollback()
        except Exception:
            self._drop_write_connection()

    def _drop_write_connection(self) -> None:
        connection, self._write_connection = self._write_connection, None
        if connection is not None:
            connection.invalidate()


def _shrink(raw: Any) -> None:
    def read(pragma: str) -> int:
        return int(raw.execute(f"PRAGMA {pragma}").fetchone()[0])

    if read("auto_vacuum") != INCREMENTAL:
        return
    free = read("freelist_count")
    while free > KEPT_PAGES:
        # `execute` would free a single page, because it takes only the first step of a statement without columns.
        raw.executescript(f"PRAGMA incremental_vacuum({min(VACUUM_PAGES, free - KEPT_PAGES)})")
        clock.sleep(VACUUM_PAUSE_S)
        before, free = free, read("freelist_count")
        if free >= before:  # others are deleting rows just as fast, and will shrink the file themselves
            break
    raw.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # only a checkpoint truncates the file itself


def at(now: float | None) -> float:
    """Return `now`, or the current time if `now` is None."""
    return clock.time() if now is None else now
