"""Make engines with the settings that SQLite and PostgreSQL need, and recognize temporary errors."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as NoneFree

from tuner.errors import Retryable, StoreError

Synchronous = Literal["NORMAL", "FULL"]

#: WAL shares memory between processes through the file system; these file systems do not support that across machines
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "ncpfs"}
    | {"orangefs", "pvfs2", "davfs", "davfs2"}
    | {f"fuse.{name}" for name in ("sshfs", "s3fs", "gcsfuse", "glusterfs", "ceph-fuse", "rclone", "juicefs", "goofys")}
)

BUSY_TIMEOUT_MS = 30_000

WAL_BYTES = 64 * 1024 * 1024
"""SQLite truncates its write-ahead log to this size when the log starts over, so that a large deletion leaves no large file."""

_CONNECTION = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""The time for which a PostgreSQL server may stay silent, in seconds (``tcp_user_timeout``: in milliseconds).

Parameters of the URL, such as ``?connect_timeout=3``, take precedence. ``tcp_user_timeout`` aborts a commit that the server does
not acknowledge, for instance because the network is partitioned. The keepalives watch only idle connections.
"""

_THRESHOLD = "prepare_threshold"
_PREPARED = ("DuplicatePreparedStatement", "InvalidSqlStatementName")
"""PostgreSQL's errors if a pooler runs the transactions of one connection on several connections to the server."""

_PASSING = frozenset({"OperationalError", "InterfaceError", "ReadOnlySqlTransaction"})
"""Temporary errors: a lost connection, a lock, a full disk (including PostgreSQL's 53100), a server that became a standby."""

_LASTING = ("no such table", "no such column", "malformed JSON", "ProgramLimitExceeded")
"""Operational errors that are not temporary: parts of SQLite's messages, and PostgreSQL's error for values that are too large."""

_NOT_UP = ("Is the server running", "the database system is ", "failed to resolve host")
"""Parts of the errors of a PostgreSQL server that is not running, that is starting or being shut down, or has no address yet.

Compose and Kubernetes give a server its name when they start it.
"""

_PASSWORD = re.compile(r"(?<=[:/]/)([^/@:]*):[^\n]*(?=@)")
_WITHOUT_HOST = re.compile(r"(?<=[:\w]//)([^/@:\[]*):(?!\d*(?:[/?,\s'\")]|$))(?!\s)[^\n]*")
"""Matches a user and a password that no ``@HOST`` follows, as in ``postgresql://me:secret/db``. A port is no password."""

_ENDS_EARLY = re.compile(r"//[^/@:]*:[^@]*@[^@]*@")
"""Matches a URL whose password most likely ends at an @ of its own, so that errors would show its rest as the host."""


def _spelled(word: str) -> str:
    """Return a pattern for a word, each letter of which may be percent-encoded."""
    return "".join(f"(?:{one}|%{ord(one):x}|%{ord(one.upper()):x})" for one in word)


_PARAMETER = re.compile(
    rf"(?i)(?<![^?&\s])([^=&\s/?]*(?:{_spelled('password')}|{_spelled('secret')})[^=&\s/?]*\s*)=[^&\n]*"
)


class StoreUnavailable(StoreError, Retryable):
    """The database is locked or unreachable. The same call may succeed later."""


def connect(url: str | URL, synchronous: Synchronous = "NORMAL") -> Engine:
    """Return an engine with this project's settings. Raise StoreError if the URL is wrong or not supported."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:  # ValueError: the port is not a number
        raise StoreError(
            f"not a database URL: {shown_url(str(url))!r}; expected sqlite:////path/to/file or postgresql://user@host/name"
        ) from error
    match parsed.get_backend_name():
        case "sqlite":
            return _sqlite(parsed, synchronous)
        case "postgresql":
            if isinstance(url, str) and _ENDS_EARLY.search(url) is not None:
                raise StoreError(
                    f"not a database URL: {shown_url(url)!r}; write each @ of the password as %40, and each / as %2F"
                )
            return _postgresql(parsed)
        case other:
            raise StoreError(f"{other!r} is not supported; use sqlite:////path/to/file or postgresql://user@host/name")


def connect_alone(file: Path) -> Engine:
    """Return an engine for an SQLite file that only this process uses. It has no write-ahead log, so it may be on any disk."""
    return _engine(URL.create("sqlite", database=str(file)), "NORMAL", _without_write_ahead)


def shown_url(url: str) -> str:
    """Return the URL for messages and logs, with *** in place of its password and, if necessary, of everything after it."""
    shown, count = _PASSWORD.subn(r"\1:***", url)
    return _PARAMETER.sub(r"\1=***", shown if count else _WITHOUT_HOST.sub(r"\1:***", shown))


def _sqlite(url: URL, synchronous: Synchronous) -> Engine:
    if not url.database or url.database == ":memory:":
        raise StoreError("an SQLite database must be a file, because the driver and the API are separate processes")
    path = sqlite_file(url.database)
    refuse_network_disk(path)
    make_folder(path.parent)
    private = path if is_in_own_home(path) else None
    return _engine(url.set(database=str(path)), synchronous, functools.partial(_write_ahead, private=private))


def is_in_own_home(path: Path) -> bool:
    """Return whether a file is below the home directory of this user, and so not in a folder that a group shares."""
    try:
        return path.is_relative_to(Path.home())
    except RuntimeError:  # the user has no home directory
        return False


def _engine(url: URL, synchronous: Synchronous, set_journal: Callable[[Any], None]) -> Engine:
    """Return an engine for an SQLite file. set_journal: called with a cursor of each new connection."""
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # otherwise sqlite3 begins transactions on its own
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        set_journal(cursor)
        cursor.execute(f"PRAGMA journal_size_limit={WAL_BYTES}")
        cursor.execute(f"PRAGMA synchronous={synchronous}")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA cache_size=-16384")
        cursor.execute("PRAGMA temp_store=MEMORY")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def sqlite_file(database: str) -> Path:
    """Return the path of the file that the database of an SQLite URL names. ``~`` is the home of the user."""
    try:
        return Path(database).expanduser().absolute()
    except FileNotFoundError as error:
        raise StoreError(
            f"the path of the database, {database!r}, is relative, and the current folder has been deleted: change to another "
            "folder, or set TUNER_DATABASE_URL to an absolute path"
        ) from error


def make_folder(folder: Path) -> None:
    """Create the folder of a database unless it exists. Raise StoreError if it cannot be created."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror or str(error)
        raise StoreError(
            f"the folder of the database, {str(folder)!r}, cannot be created: {why}; set TUNER_HOME or "
            "TUNER_DATABASE_URL to a place in which this user may write"
        ) from error


def _write_ahead(cursor: Any, private: Path | None) -> None:
    """Turn on the write-ahead log unless it is already on. Retry, because SQLite does not wait for the lock that this needs.

    Also let a new file shrink after deletions; see `Database.shrink`. That has to be set first, and cannot be changed later.

    private: the file, if other users must not be able to read a new one. SQLite gives its permissions to the log, too.
    """
    until = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            if not cursor.execute("PRAGMA page_count").fetchone()[0]:
                if private is not None:
                    with contextlib.suppress(OSError):  # not every disk has permissions
                        os.chmod(private, 0o600)
                cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def _without_write_ahead(cursor: Any) -> None:
    """Turn the write-ahead log off. Let a new file shrink after deletions, as `_write_ahead` does."""
    if not cursor.execute("PRAGMA page_count").fetchone()[0]:
        cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")
    cursor.execute("PRAGMA journal_mode=DELETE")


def _postgresql(url: URL) -> Engine:
    try:
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        given: dict[str, Any] = {name: value for name, value in _CONNECTION.items() if name not in url.query}
        if (threshold := url.query.get(_THRESHOLD)) is not None:
            url, given[_THRESHOLD] = url.difference_update_query([_THRESHOLD]), _threshold(threshold)
        return create_engine(url, pool_pre_ping=True, pool_size=5, max_overflow=15, connect_args=given)
    except (ImportError, NoSuchModuleError) as error:
        raise StoreError(f"the driver for {url.drivername} is not installed: {error}") from error


def _threshold(text: object) -> int | None:
    """Return after how many uses a statement is prepared, from the parameter of a URL; None if statements are never prepared."""
    if text == "none":
        return None
    if not (isinstance(text, str) and text.isascii() and text.isdecimal()):
        raise StoreError(f"prepare_threshold in the database URL: expected a number or none, got {text!r}")
    return int(text)


def refuse_network_disk(path: Path, mounts: str = "/proc/mounts") -> None:
    """Raise StoreError if `path` is on a file system that several machines share."""
    kind, where = file_system(path, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{path} is on a network disk ({kind}, mounted at {where}), where SQLite's write-ahead log can lose data; "
            "set TUNER_DATABASE_URL to a file on a local disk, or to a PostgreSQL server"
        )


def file_system(path: Path, mounts: str = "/proc/mounts") -> tuple[str, str]:
    """Return (type, mount point) of the file system of `path`, or ("", "") if it is not known."""
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "", ""
    target = path.resolve()
    best = ("", "")
    for line in lines:
        parts = line.split()
        if len(parts) < 3:
            continue
        # Spaces are written as \040. The codec takes every byte for a character of its own.
        point = parts[1].encode("latin-1", "backslashreplace").decode("unicode_escape")
        if target.is_relative_to(point) and len(point) >= len(best[1]):
            best = (parts[2], point)
    return best


_OF_FILE = ("disk is full", "readonly database", "unable to open", "disk I/O error")
"""Parts of SQLite's errors about the file of the database."""


@contextmanager
def translated(backend: str, file: str | None = None) -> Iterator[None]:
    """Turn errors of the database's driver into StoreError, or into StoreUnavailable if the same call may succeed later.

    file: the SQLite file, which errors about its disk or its permissions name.
    """
    try:
        yield
    except DBAPIError as error:
        raise translate(error.orig or error, backend, file) from error
    except NoneFree as error:  # from SQLAlchemy's pool of connections
        raise StoreUnavailable(
            f"{backend}: all connections of this process to the database are busy, because it answers slowly or a table is locked"
        ) from error
    except Exception as error:
        if is_of_driver(error, backend):
            raise translate(error, backend, file) from error
        raise


def is_not_up(error: BaseException | None) -> bool:
    """Return whether an error of PostgreSQL's driver says that the server is not running, or cannot be reached yet."""
    return any(part in str(error) for part in _NOT_UP)


_DRIVERS = {"sqlite": "sqlite3", "postgresql": "psycopg"}


def is_of_driver(error: Exception, backend: str) -> bool:
    """Return whether the driver of this database raised the error."""
    return type(error).__module__.split(".")[0] == _DRIVERS[backend]


def translate(error: BaseException, backend: str, file: str | None = None) -> StoreError:
    text = shown_url(str(error).strip()) or type(error).__name__
    if file and any(part in text for part in _OF_FILE):
        text = f"{text} ({file})"
    if type(error).__name__ in _PREPARED:
        text += (
            f"; if a pooler, such as PgBouncer, is between tuner and the server, add ?{_THRESHOLD}=none to the database URL, or "
            "use the pooler's session mode"
        )
    passing = any(kind.__name__ in _PASSING for kind in type(error).__mro__)
    if passing and not any(part in text or part == type(error).__name__ for part in _LASTING):
        return StoreUnavailable(f"{backend}: {text}")
    return StoreError(f"{backend}: {text}")
