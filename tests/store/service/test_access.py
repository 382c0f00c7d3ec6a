"""Tokens and the audit trail."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy import Connection, event

from tests.store.examples import T0
from tuner.errors import NotFound, SpecError
from tuner.store import Store, StoreUnavailable, may_have_written, watched_commits
from tuner.store.service.access import AuditRecord, Role


def test_a_token_is_found_by_its_secret_alone(store: Store) -> None:
    secret, made = store.access.create_token("ci", Role.EDITOR, now=T0)
    assert store.access.token_of(secret, now=T0) == made
    assert store.access.token_of(secret + "x", now=T0) is None
    assert store.access.token_of(made.id, now=T0) is None
    assert store.access.token_of("\ud800", now=T0) is None


def test_sessions_that_have_ended_are_deleted_when_another_one_begins(sqlite_store: Store) -> None:
    """Each sign-in makes one, and many browsers never sign out."""
    for now in range(3):
        sqlite_store.access.open_session(name="me", role=Role.VIEWER, expires_at=now + 1.5, now=float(now))
    assert len(sqlite_store._database.rows("SELECT expires_at FROM session")) == 2


def test_secrets_are_kept_nowhere(sqlite_store: Store, sqlite_url: str) -> None:
    secret, _ = sqlite_store.access.create_token("ci", Role.EDITOR)
    dump = "\n".join(sqlite3.connect(sqlite_url.removeprefix("sqlite:///")).iterdump())
    assert "ci" in dump
    assert secret not in dump
    assert secret.removeprefix("tnr_") not in dump


def test_a_token_ends_when_it_expires_or_is_revoked(store: Store) -> None:
    secret, made = store.access.create_token("ci", Role.VIEWER, lifetime_s=60, now=T0)
    assert store.access.token_of(secret, now=T0 + 59) is not None
    assert store.access.token_of(secret, now=T0 + 60) is None
    other, made = store.access.create_token("other", Role.VIEWER, now=T0)
    assert store.access.revoke_token(made.id, now=T0 + 1).revoked_at == T0 + 1
    assert store.access.token_of(other, now=T0 + 2) is None
    assert store.access.revoke_token(made.id, now=T0 + 9).revoked_at == T0 + 1, "the first time counts"
    with pytest.raises(NotFound, match="no token has the id 'tok_x'; `tuner token list` shows"):
        store.access.revoke_token("tok_x")


def test_a_token_may_have_been_created_if_the_answer_to_its_commit_is_lost(store: Store) -> None:
    """The service asked the client to repeat the request, which left a second token whose secret nobody knows."""

    def lose_the_answer(_: Connection) -> None:
        raise StoreUnavailable("the connection was lost")

    with watched_commits():
        store.access.tokens()
        assert not may_have_written()
        event.listen(store._database.engine, "commit", lose_the_answer)
        with pytest.raises(StoreUnavailable):
            store.access.create_token("ci", Role.EDITOR)
        assert may_have_written()
    event.remove(store._database.engine, "commit", lose_the_answer)


def test_the_latest_use_is_kept(store: Store) -> None:
    secret, made = store.access.create_token("ci", Role.VIEWER, now=T0)
    store.access.note_use(made.id, now=T0 + 61)
    found = store.access.token_of(secret, now=T0 + 62)
    assert found is not None
    assert found.used_at == T0 + 61


@pytest.mark.parametrize("days", [0, -1, 1e9])
def test_a_token_lives_for_a_time_that_a_calendar_has(store: Store, days: float) -> None:
    with pytest.raises(SpecError, match="at most 36500 days"):
        store.access.create_token("ci", Role.VIEWER, lifetime_s=days * 86400)


def test_whether_somebody_can_administer(store: Store) -> None:
    assert not store.access.has_admin(now=T0)
    store.access.create_token("ci", Role.EDITOR, now=T0)
    assert not store.access.has_admin(now=T0)
    store.access.create_token("me", Role.ADMIN, lifetime_s=60, now=T0)
    assert store.access.has_admin(now=T0)
    assert not store.access.has_admin(now=T0 + 60)


@pytest.mark.parametrize("name", ["", "  ", "x" * 101, "a\x1b[31m"])
def test_names_can_be_read(store: Store, name: str) -> None:
    with pytest.raises(SpecError, match="printable"):
        store.access.create_token(name, Role.VIEWER)


def test_roles_are_ordered_and_named() -> None:
    assert Role.VIEWER < Role.EDITOR < Role.ADMIN
    assert [Role.named(str(role)) for role in Role] == list(Role)
    with pytest.raises(SpecError, match="did you mean editor"):
        Role.named("edtor")


def test_the_trail_is_read_newest_first_in_pages(store: Store) -> None:
    for i in range(5):
        path = f"/api/v1/experiments/{i}"
        store.access.note(
            AuditRecord(time=T0 + i, actor="ci", token_id=None, method="POST", path=path, status=202, address="::1")
        )
    first = store.access.trail(limit=3)
    rest = store.access.trail(limit=3, before=first[-1][0])
    assert [entry.time - T0 for _, entry in (*first, *rest)] == [4, 3, 2, 1, 0]
    assert rest[-1][1].path == "/api/v1/experiments/0"
