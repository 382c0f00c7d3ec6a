"""Code that several experiments share, while one of them is deleted."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.store.examples import a_spec
from tuner.errors import NotFound
from tuner.store import CodeRecord, Store
from tuner.store import experiments as experiments_of
from tuner.store.sql.cursor import Cursor

CODE = CodeRecord(hash="abc", blob=b"train", python="3.12", packages={}, sys_path=[], working_dir="/")


@pytest.mark.postgres
def test_code_that_a_new_experiment_needs_survives_the_deletion_of_another_one(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion comes after the new experiment found the code, and before its row is written."""
    import psycopg

    with Store.open(postgres_url) as store, Store.open(postgres_url) as other:
        old = store.experiments.create(a_spec(), code=CODE)
        really = experiments_of._insert
        mistakes: list[BaseException] = []

        def remove() -> None:
            try:
                other.experiments.remove(old.id)
            except BaseException as error:
                mistakes.append(error)

        deletion = threading.Thread(target=remove)

        def insert(*arguments: Any) -> str:
            deletion.start()
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                while deletion.is_alive() and not waits(connection):
                    deletion.join(0.01)
            return really(*arguments)

        def waits(connection: Any) -> bool:
            found = connection.execute("SELECT COUNT(*) FROM pg_locks WHERE NOT granted").fetchone()
            return bool(found[0])

        with monkeypatch.context() as patch:
            patch.setattr(experiments_of, "_insert", insert)
            made = store.experiments.create(a_spec(), code=CODE)
        deletion.join(30)
        assert not mistakes
        assert store.code.get("abc").blob == b"train"
        assert [one.public_id for one in store.experiments.page().items] == [made.public_id]
        store.experiments.remove(made.id)
        with pytest.raises(NotFound):
            store.code.get("abc")


def test_the_work_for_a_new_experiment_does_not_grow_with_the_number_of_experiments(sqlite_store: Store) -> None:
    """Count the steps of SQLite's virtual machine. An update of the code's hash had looked through all experiments."""
    few = steps_of_a_creation(sqlite_store)
    sqlite_store.experiments.create_all(
        [sqlite_store.experiments.creation(a_spec(f"number {number}"), code=CODE) for number in range(200)]
    )
    assert steps_of_a_creation(sqlite_store) < few + 200


def steps_of_a_creation(store: Store) -> int:
    """Create an experiment, whose code is already stored. Return how many steps of SQLite's virtual machine that took."""
    share = store.experiments.creation(a_spec(), code=CODE)
    store.experiments.create_all([share])
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    def observed(cursor: Cursor) -> None:
        connection = cursor._raw.connection
        connection.set_progress_handler(count, 1)
        try:
            share.work(cursor)
        finally:
            connection.set_progress_handler(None, 1)

    share = store.experiments.creation(a_spec(), code=CODE)
    store.experiments._database.write_together(observed)
    return steps
