"""Tokens, which say who may use the service, and the audit trail, which says who did what.

A token is shown once, when it is made. The database has only its SHA-256. A token is 32 random bytes, so a slow hash, as
for passwords, would add nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from sqlalchemy import Connection, insert, select, update

from tuner.errors import NotFound, SpecError
from tuner.names import did_you_mean
from tuner.store.sql.connect import translated
from tuner.store.sql.database import Database
from tuner.store.sql.database import at as time_of
from tuner.store.sql.tables import audit, token

PREFIX = "tnr_"
"""Tokens begin with it, so that scanners for leaked secrets recognise them."""

MAX_LIFETIME_S = 36500 * 86400.0
"""The longest lifetime of a token, about a hundred years."""

USED_EVERY_S = 60.0
"""The time of a token's latest use is written this often at most."""


class Role(IntEnum):
    """What a token allows. Each role may do what those below it may."""

    VIEWER = 1  # read everything
    EDITOR = 2  # create and change experiments
    ADMIN = 3  # create and revoke tokens, read the audit trail

    @classmethod
    def named(cls, name: str) -> Role:
        """Return the role of this name. Raise SpecError if there is none."""
        known = [role.name.lower() for role in cls]
        if name.lower() not in known:
            raise SpecError(f"expected one of {', '.join(known)}, got {name!r}{did_you_mean(name, known)}", "/role")
        return cls[name.upper()]

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token without its secret. Times are seconds since the epoch."""

    id: str  # tok_...
    name: str
    role: Role
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    used_at: float | None

    def is_valid(self, now: float) -> bool:
        """Return whether the token is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One request that changed something, or tried to."""

    time: float
    actor: str  # the token's name; "local" if the service asks for no token
    token_id: str | None
    method: str
    path: str
    status: int
    address: str  # where the request came from


class Access:
    """Tokens and the audit trail of one database. Every method may be called from any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create_token(
        self, name: str, role: Role, *, lifetime_s: float | None = None, now: float | None = None
    ) -> tuple[str, TokenRecord]:
        """Create a token. Return its secret, which nobody can read again, and its record.

        Args:
            name: Who or what it is for. The audit trail shows it.
            role: What it allows.
            lifetime_s: Seconds until it expires. None: never.

        Raises:
            SpecError: The name is empty or longer than 100 characters, or the lifetime is not above 0.
        """
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
        }
        with self._write() as connection:
            connection.execute(insert(token).values(row))
            return secret, _token(connection.execute(select(token).where(token.c.hash == row["hash"])).one())

    def tokens(self) -> list[TokenRecord]:
        """Return all tokens, newest first, revoked and expired ones included."""
        with self._database.read() as connection:
            return [_token(row) for row in connection.execute(select(token).order_by(token.c.id.desc()))]

    def token_of(self, secret: str, *, now: float | None = None) -> TokenRecord | None:
        """Return the valid token that has this secret; None if there is none."""
        at = time_of(now)
        with self._database.read() as connection:
            row = connection.execute(select(token).where(token.c.hash == _hash(secret))).one_or_none()
        if row is None or not (found := _token(row)).is_valid(at):
            return None
        return found

    def note_use(self, token_id: str, *, now: float | None = None) -> None:
        """Write down that a token has just been used."""
        with self._write() as connection:
            connection.execute(update(token).where(token.c.public_id == token_id).values(used_at=time_of(now)))

    def revoke_token(self, token_id: str, *, now: float | None = None) -> TokenRecord:
        """Revoke a token. If it is revoked already, change nothing. Raise NotFound if there is no token with this id."""
        at = time_of(now)
        with self._write() as connection:
            open_one = (token.c.public_id == token_id) & token.c.revoked_at.is_(None)
            connection.execute(update(token).where(open_one).values(revoked_at=at))
            row = connection.execute(select(token).where(token.c.public_id == token_id)).one_or_none()
        if row is None:
            raise NotFound(f"no token {token_id!r}")
        return _token(row)

    def has_admin(self, *, now: float | None = None) -> bool:
        """Return whether there is a valid token of an admin."""
        at = time_of(now)
        return any(each.role is Role.ADMIN and each.is_valid(at) for each in self.tokens())

    def note(self, record: AuditRecord) -> None:
        """Add an entry to the audit trail."""
        values = {name: getattr(record, name) for name in AuditRecord.__slots__}
        with self._write() as connection:
            connection.execute(insert(audit).values(values))

    def trail(self, *, limit: int = 100, before: int | None = None) -> list[tuple[int, AuditRecord]]:
        """Return the newest entries of the audit trail, newest first, each with its number.

        before: only entries with a number below this one.
        """
        query = select(audit).order_by(audit.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(audit.c.id < before)
        with self._database.read() as connection:
            return [
                (row.id, AuditRecord(**{name: getattr(row, name) for name in AuditRecord.__slots__}))
                for row in connection.execute(query)
            ]

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with translated(self._database.backend), self._database.engine.begin() as connection:
            yield connection


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
    )
