"""Tokens, which say who may use the service, and the audit trail, which says who changed what.

A token is shown only once, when it is created. The database stores only its SHA-256. A slow hash, such as one for passwords,
would add no safety, because a token is 32 random bytes.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, insert, select, true, update

from tuner.domain.experiment import PROJECT, PROJECT_IN_WORDS
from tuner.errors import NotFound, SpecError
from tuner.names import did_you_mean
from tuner.store.sql.connect import translated
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.database import LAST, Database, Share, note_commit
from tuner.store.sql.database import at as time_of
from tuner.store.sql.tables import audit, session
from tuner.store.sql.tables import token as tokens

PREFIX = "tnr_"
"""The prefix of tokens, by which secret scanners recognize them."""

SESSION_PREFIX = "tns_"
"""The prefix of session secrets. A session's secret is the value of its cookie."""

MAX_LIFETIME_S = 36500 * 86400.0
"""The maximum lifetime of a token, about a hundred years."""

USED_EVERY_S = 60.0
"""The time at which a token was last used is updated at most once in this many seconds."""


class Role(IntEnum):
    """The role of a token.

    A viewer can only read, and an agent can only run trials. An editor can do both, and can create and change experiments. An
    admin can do everything.
    """

    AGENT = 0  # get trials of experiments with the executor "agents", and report their metrics
    VIEWER = 1  # read everything except webhooks, tokens and the audit trail
    EDITOR = 2  # create and change experiments and webhooks
    ADMIN = 3  # create and revoke tokens, read the audit trail

    @classmethod
    def named(cls, name: str) -> Role:
        """Return the role with this name. Raise SpecError if there is no such role."""
        known = [role.name.lower() for role in cls]
        if name.lower() not in known:
            raise SpecError(f"expected one of {', '.join(known)}, got {name!r}{did_you_mean(name, known)}", "/role")
        return cls[name.upper()]

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token without its secret. Times are Unix timestamps."""

    id: str  # tok_...
    name: str
    role: Role
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    used_at: float | None
    project: str | None = None  # None: all projects

    def is_valid(self, now: float) -> bool:
        """Return True if the token is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One request that changed something, or tried to."""

    time: float
    actor: str  # the token's name; "local" if the service requires no token
    token_id: str | None
    method: str
    path: str
    status: int
    address: str  # where the request came from
    project: str | None = None  # the project of the token; None: all projects
    created: str | None = None  # the public id of what the request created; None: nothing that has a page or a path


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """The session of a signed-in browser: the user's name and rights, and when it ends."""

    token: str | None  # tok_...; None if the user signed in without a token
    name: str
    role: Role
    project: str | None
    expires_at: float


_NOTE = f"""
INSERT INTO audit ({", ".join(AuditRecord.__slots__)}) VALUES ({", ".join("?" * len(AuditRecord.__slots__))})"""


class Access:
    """Tokens, sessions and the audit trail of one database. Every method may be called from any thread.

    project: if given, only the tokens and audit records of this project are listed; `token_of` and `session_of` still search
        all projects.
    """

    def __init__(self, database: Database, project: str | None = None) -> None:
        self._database = database
        self._project = project

    def create_token(
        self,
        name: str,
        role: Role,
        *,
        project: str | None = None,
        lifetime_s: float | None = None,
        now: float | None = None,
    ) -> tuple[str, TokenRecord]:
        """Create a token. Return its secret, which cannot be retrieved later, and its record.

        Args:
            name: The person or the program that will use the token. The audit trail shows it.
            role: The role that the token grants.
            project: The only project to which the token gives access. None: all projects.
            lifetime_s: The seconds until the token expires. None: it never expires.
            now: The time of creation. None: the current time.

        Raises:
            SpecError: The name is empty, too long or not printable; the lifetime is out of range; or the name of the project is
                invalid or is not the one to which this store is limited.
        """
        _check_project(project, self._project)
        name = name.strip()
        if not 0 < len(name) <= 100 or not name.isprintable():
            raise SpecError(f"expected 1 to 100 printable characters, got {name!r}", "/name")
        if lifetime_s is not None and not 0 < lifetime_s <= MAX_LIFETIME_S:
            raise SpecError(f"expected more than 0 and at most 36500 days, got {lifetime_s / 86400:g}", "/expires_days")
        at = time_of(now)
        secret = PREFIX + secrets.token_urlsafe(32)
        row = {
            "public_id": f"tok_{secrets.token_hex(8)}",
            "name": name,
            "hash": _hash(secret),
            "role": str(role),
            "created_at": at,
            "expires_at": None if lifetime_s is None else at + lifetime_s,
            "project": project,
        }
        with self._write() as connection:
            connection.execute(insert(tokens).values(row))
            return secret, _token(connection.execute(select(tokens).where(tokens.c.hash == row["hash"])).one())

    def tokens(self) -> list[TokenRecord]:
        """Return all tokens, newest first, including revoked and expired tokens."""
        with self._database.read() as connection:
            found = connection.execute(select(tokens).where(self._shown(tokens)).order_by(tokens.c.id.desc()))
            return [_token(row) for row in found]

    def token_of(self, secret: str, *, now: float | None = None) -> TokenRecord | None:
        """Return the valid token that has this secret, or None if there is none."""
        at = time_of(now)
        with self._database.read() as connection:
            row = connection.execute(select(tokens).where(tokens.c.hash == _hash(secret))).one_or_none()
        if row is None or not (found := _token(row)).is_valid(at):
            return None
        return found

    def note_use(self, token_id: str, *, now: float | None = None) -> None:
        """Record that a token has just been used."""
        with self._write() as connection:
            connection.execute(update(tokens).where(tokens.c.public_id == token_id).values(used_at=time_of(now)))

    def revoke_token(self, token_id: str, *, now: float | None = None) -> TokenRecord:
        """Revoke a token. Do nothing if it is already revoked. Raise NotFound if there is no token with this id."""
        at = time_of(now)
        with self._write() as connection:
            wanted = (tokens.c.public_id == token_id) & self._shown(tokens)
            connection.execute(update(tokens).where(wanted & tokens.c.revoked_at.is_(None)).values(revoked_at=at))
            row = connection.execute(select(tokens).where(wanted)).one_or_none()
        if row is None:
            raise NotFound(f"no token has the id {token_id!r}; `tuner token list` shows the ids of all tokens")
        return _token(row)

    def has_admin(self, *, now: float | None = None) -> bool:
        """Return True if a valid token has the role admin for all projects."""
        at = time_of(now)
        return any(each.role is Role.ADMIN and each.project is None and each.is_valid(at) for each in self.tokens())

    # -- sessions --------------------------------------------------------------------------------------------------------

    def open_session(
        self,
        *,
        name: str,
        role: Role,
        expires_at: float,
        token: str | None = None,
        project: str | None = None,
        now: float | None = None,
    ) -> str:
        """Sign a browser in. Return the session's secret, which is kept only in the browser's cookie.

        Args:
            name: The user's name.
            role: The user's role.
            expires_at: When the session ends.
            token: The id of the token with which the user signed in. The session ends when the token expires or is revoked.
            project: The only project to which the session gives access. None: all projects.
            now: The current time.
        """
        at = time_of(now)
        secret = SESSION_PREFIX + secrets.token_urlsafe(32)
        row = {
            "hash": _hash(secret),
            "name": name,
            "role": str(role),
            "project": project,
            "created_at": at,
            "expires_at": expires_at,
        }
        with self._write() as connection:
            connection.execute(delete(session).where(session.c.expires_at <= at))
            owner = select(tokens.c.id).where(tokens.c.public_id == token).scalar_subquery()
            connection.execute(insert(session).values(**row, token_id=owner))
        return secret

    def session_of(self, secret: str, *, now: float | None = None) -> SessionRecord | None:
        """Return the session with this secret, or None if there is none, it has ended, or its token is no longer valid."""
        at = time_of(now)
        query = select(*session.c["name", "role", "project", "expires_at", "token_id"], tokens.c.public_id)
        query = query.outerjoin(tokens, tokens.c.id == session.c.token_id).where(session.c.hash == _hash(secret))
        ends, revoked = tokens.c.expires_at, tokens.c.revoked_at
        query = query.where(session.c.expires_at > at, revoked.is_(None), ends.is_(None) | (ends > at))
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        return SessionRecord(
            token=row.public_id,
            name=row.name,
            role=Role.named(row.role),
            project=row.project,
            expires_at=row.expires_at,
        )

    def close_session(self, secret: str) -> None:
        """Sign a browser out. Do nothing if its session has ended."""
        with self._write() as connection:
            connection.execute(delete(session).where(session.c.hash == _hash(secret)))

    # -- the audit trail -------------------------------------------------------------------------------------------------

    def note(self, *records: AuditRecord) -> None:
        """Add entries to the audit trail."""
        self._database.write_together(lambda cursor: _note(cursor, records))

    def entries(self, records: Callable[[], Iterable[AuditRecord]]) -> Share[None]:
        """Return the work that adds entries to the audit trail, for `Experiments.create_all`.

        records: is called at the end of the transaction, when the results of its other work are known.
        """
        return Share(lambda cursor: _note(cursor, records()), LAST)

    def trail(self, *, limit: int = 100, before: int | None = None) -> list[tuple[int, AuditRecord]]:
        """Return the newest entries of the audit trail, newest first, each with its number.

        before: if given, only entries with a lower number than this are returned.
        """
        query = select(audit).where(self._shown(audit)).order_by(audit.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(audit.c.id < before)
        with self._database.read() as connection:
            return [
                (row.id, AuditRecord(**{name: getattr(row, name) for name in AuditRecord.__slots__}))
                for row in connection.execute(query)
            ]

    def prune_trail(self, before: float) -> int:
        """Delete the entries of the audit trail that are older than this time. Return how many were deleted."""
        with self._write() as connection:
            return connection.execute(delete(audit).where(audit.c.time < before)).rowcount

    def _shown(self, table: Table) -> ColumnElement[bool]:
        return true() if self._project is None else table.c.project == self._project

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with translated(self._database.backend), self._database.engine.begin() as connection:
            yield connection
            note_commit()


def _note(cursor: Cursor, records: Iterable[AuditRecord]) -> None:
    rows = [tuple(getattr(record, name) for name in AuditRecord.__slots__) for record in records]
    if rows:
        cursor.executemany(_NOTE, rows)


def _check_project(project: str | None, shown: str | None) -> None:
    if project is not None and not re.fullmatch(PROJECT, project):
        raise SpecError(f"expected {PROJECT_IN_WORDS}, got {project!r}", "/project")
    if shown not in (None, project):
        raise SpecError(f"your access is limited to the project {shown!r}", "/project")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _token(row: Any) -> TokenRecord:
    return TokenRecord(
        id=row.public_id,
        name=row.name,
        role=Role.named(row.role),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        used_at=row.used_at,
        project=row.project,
    )
