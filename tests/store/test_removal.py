"""Test that deleting experiments frees room on the disk."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.store.examples import T0, begin
from tuner.domain.logs import LogChunk
from tuner.store import Store
from tuner.store.sql.database import KEPT_PAGES


def filled(store: Store, count: int) -> int:
    """Make an experiment with this many MiB of output, and return its internal id."""
    made, _, _ = begin(store)
    for number in range(count):
        text = random.Random(number).randbytes(2**19).hex().encode()  # is compressed to half of its size
        store.logs.add(made.id, {(0, 1): [LogChunk.of(0, number * len(text), text, T0)]})
    return made.id


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tuner.db"


def test_the_file_shrinks_when_an_experiment_is_deleted(file: Path) -> None:
    with Store.open(f"sqlite:///{file}") as store:
        store.migrate()
        experiment = filled(store, 6)
        with store._database.write() as cursor:
            cursor.execute("CREATE TABLE later (data BLOB)")
            cursor.execute("INSERT INTO later VALUES (zeroblob(100000))")  # its pages are at the end of the file
            cursor.execute("COMMIT")
            assert cursor.rows("PRAGMA wal_checkpoint(TRUNCATE)") == [(0, 0, 0)]  # all that was written is in the file
            cursor.execute("BEGIN")
        before = file.stat().st_size
        store.experiments.remove(experiment)
        store.shrink()  # without any effect
        with closing(sqlite3.connect(file)) as other:
            [(free,)] = other.execute("PRAGMA freelist_count")
            [(kept,)] = other.execute("SELECT length(data) FROM later")
            assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        after = file.stat().st_size
    assert (free <= KEPT_PAGES, kept) == (True, 100_000)
    assert before > 3 * 2**20
    assert after < 1.5 * 2**20


def test_a_file_without_incremental_vacuum_is_left_as_it_is(file: Path) -> None:
    with closing(sqlite3.connect(file)) as older:
        older.execute("CREATE TABLE before (x)")
    with Store.open(f"sqlite:///{file}") as store:
        store.migrate()
        store.experiments.remove(filled(store, 6))
        with store._database.cursor() as (cursor, _):
            assert cursor.value("PRAGMA auto_vacuum") == 0
            assert cursor.value("PRAGMA freelist_count") > KEPT_PAGES
