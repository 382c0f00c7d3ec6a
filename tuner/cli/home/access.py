"""`tuner token` and `tuner audit` on the database of this home: manage tokens, and read the audit trail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from tuner.api.schemas import AuditEntry
from tuner.domain.timestamps import rfc3339_or_none
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.service.access import Role

Row = dict[str, Any]
FIELDS = ("id", "name", "role", "project", "created_at", "expires_at", "revoked_at", "used_at")


def created(settings: Settings, name: str, role: str, expires_days: float | None, project: str | None = None) -> str:
    """Create a token and return it."""
    wanted = Role.named(role)
    with _store(settings) as store:
        secret, _ = store.access.create_token(
            name, wanted, project=project, lifetime_s=None if expires_days is None else expires_days * 86400
        )
    return secret


def rows(settings: Settings) -> list[Row]:
    """Return all tokens, newest first, as dicts with the fields that the API shows."""
    with _store(settings) as store:
        found = store.access.tokens()
    return [
        {
            "id": token.id,
            "name": token.name,
            "role": str(token.role),
            "project": token.project,
            "created_at": rfc3339_or_none(token.created_at),
            "expires_at": rfc3339_or_none(token.expires_at),
            "revoked_at": rfc3339_or_none(token.revoked_at),
            "used_at": rfc3339_or_none(token.used_at),
        }
        for token in found
    ]


def lines(found: Sequence[Row]) -> Iterator[str]:
    """Yield a line for the terminal for each token that `rows` returned."""
    for row in found:
        ends = f"expires {_day(row['expires_at'])}" if row["expires_at"] is not None else "never expires"
        state = f"revoked {_day(row['revoked_at'])}" if row["revoked_at"] is not None else ends
        of = row["project"] or "(all)"
        used = f"last used {_day(row['used_at'])}" if row["used_at"] is not None else "never used"
        yield (
            f"{row['id']}  {row['role']:<6}  {of:<10}  created {_day(row['created_at'])}  {state}  {used}  "
            f"{row['name']}"
        )


def revoked(settings: Settings, token_id: str) -> str:
    """Revoke a token, and return a line for the terminal with its id and name."""
    with _store(settings) as store:
        record = store.access.revoke_token(token_id)
    return f"revoked {record.id} ({record.name})"


def trail(settings: Settings, limit: int) -> list[AuditEntry]:
    """Return the newest entries of the audit trail, newest first, at most `limit`."""
    with _store(settings) as store:
        return [AuditEntry.of(*entry) for entry in store.access.trail(limit=limit)]


def trail_lines(found: Sequence[AuditEntry]) -> Iterator[str]:
    """Yield a line for the terminal for each entry that `trail` returned."""
    for one in found:
        created = f"  created {one.created}" if one.created is not None else ""
        when = f"{datetime.fromisoformat(one.time).astimezone():%Y-%m-%d %H:%M:%S}"
        yield f"{when}  {one.address:<15}  {one.actor:<12}  {one.status}  {one.method:<6}  {one.path}{created}"


@contextmanager
def _store(settings: Settings) -> Iterator[Store]:
    settings.make_home()
    with Store.open(settings.database_url, synchronous=settings.durability) as store:
        store.migrate()
        yield store


def _day(time: str) -> str:
    return f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M}"
