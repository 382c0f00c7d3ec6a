"""Tokens, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from tuner.settings import Settings
from tuner.store import Store
from tuner.store.access import Role


def created(settings: Settings, name: str, role: str, expires_days: float | None, project: str | None = None) -> str:
    """Create a token and return it."""
    wanted = Role.named(role)
    with _store(settings) as store:
        secret, _ = store.access.create_token(
            name, wanted, project=project, lifetime_s=None if expires_days is None else expires_days * 86400
        )
    return secret


def listed(settings: Settings) -> Iterator[str]:
    """Yield one line for each token, newest first."""
    with _store(settings) as store:
        found = store.access.tokens()
    for token in found:
        ends = f"expires {_day(token.expires_at)}" if token.expires_at is not None else "never expires"
        state = f"revoked {_day(token.revoked_at)}" if token.revoked_at is not None else ends
        of = token.project or "(all)"
        used = f"last used {_day(token.used_at)}" if token.used_at is not None else "never used"
        yield f"{token.id}  {token.role!s:<6}  {of:<10}  created {_day(token.created_at)}  {state}  {used}  {token.name}"


def revoked(settings: Settings, token_id: str) -> str:
    """Revoke a token and say which it was."""
    with _store(settings) as store:
        record = store.access.revoke_token(token_id)
    return f"revoked {record.id} ({record.name})"


@contextmanager
def _store(settings: Settings) -> Iterator[Store]:
    settings.home.mkdir(parents=True, exist_ok=True)
    with Store.open(settings.database_url, synchronous=settings.durability) as store:
        store.migrate()
        yield store


def _day(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M")
