"""Test that deleting experiments frees room on the disk."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.store.examples import T0, a_report, a_spec, begin, until_blocked
from tuner.api.housekeeping import clean_up
from tuner.domain.batch import Batch, Entry
from tuner.domain.logs import LogChunk
from tuner.errors import Conflict, NotFound
from tuner.settings import Settings
from tuner.store import Bookmark, Store, commands, removal
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


def test_what_is_being_deleted_is_not_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion of many trials takes several transactions, and may be interrupted between them."""
    made, epoch, trials = begin(store, 2)
    reports: list[Entry] = [(6, a_report(0, 1)), (7, a_report(1, 1))]
    store.drivers.commit(made.id, epoch, Batch(log=reports, trials=trials), T0 + 2)
    interrupt(store, made.id, monkeypatch)
    reads: list[Callable[[], object]] = [
        lambda: store.log.entries(made.id),
        lambda: store.log.events_after(made.id, 0),
        lambda: store.changes.since(made.id, Bookmark(seq=5), 7),
        lambda: list(store.drivers.load(made.id)),
    ]
    for read in reads:
        with pytest.raises(NotFound, match="is being deleted"):
            read()
    store.experiments.remove(made.id)
    with pytest.raises(NotFound):
        store.experiments.get(made.public_id)


def test_what_is_partly_deleted_is_never_continued_but_deleted_by_the_service(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten minutes after the interruption, a `continue` was accepted, and each driver failed to read the log, again and again.

    And it stayed in all lists until a user deleted it again.
    """
    made, epoch, _ = begin(store, 2)
    assert store.experiments.seize(made.id, epoch)
    interrupt(store, made.id, monkeypatch)
    assert store.experiments.seize(made.id), "the deletion is repeated, and killed before it deletes more"
    later = time.time() + 2 * removal.LEASE_S
    with pytest.raises(Conflict, match="delete it again"):
        store.commands.add(made.id, "continue", now=later)
    with pytest.raises(Conflict):
        store.drivers.claim(made.id, "a driver", 60.0, later)
    other = store.experiments.create(a_spec("other"))
    assert store.experiments.seize(other.id, now=later + 1), (
        "this deletion has begun since, and has not deleted a row yet"
    )
    assert clean_up(store, Settings(home=tmp_path), later) == {"half-deleted experiments": 1}
    assert [one.id for one in store.experiments.page().items] == [other.id]


def test_nothing_of_a_deleted_experiment_is_left(store: Store) -> None:
    tables = (*removal.OF_SEGMENTS, *removal.OF_KEYS, *removal.OF_EXPERIMENTS, "segment", "experiment")

    def rows() -> set[str]:
        return {table for table in tables if store._database.rows(f"SELECT 1 FROM {table} LIMIT 1")}

    made, epoch, trials = begin(store)
    store.drivers.commit(made.id, epoch, Batch(log=[(4, a_report(0, 1))], trials=trials), T0)
    store.commands.add(made.id, "pause")
    store.logs.add(made.id, {(0, 1): [LogChunk.of(0, 0, b"text", T0)]})
    assert rows() == set(tables) - {"metric_bucket", "rank_usage", "checkpoint", "webhook_cursor"}
    store.experiments.remove(made.id)
    assert not rows()


def test_a_command_for_an_experiment_that_was_deleted_just_now_is_not_found(store: Store) -> None:
    """The request has read the experiment before another one has deleted it."""
    made, _, _ = begin(store, 1)
    store.experiments.remove(made.id)
    asks: list[Callable[[], object]] = [
        lambda: store.commands.add(made.id, "cancel"),
        lambda: store.commands.add(made.id, "retry", 0, reopen=True),
        lambda: store.experiments.change(made.id, {}, commands=[("enqueue", "by a test", {})]),
        lambda: store.trials.pin(made.id, "ckp_gone", True),
    ]
    for ask in asks:
        with pytest.raises(NotFound):
            ask()


@pytest.mark.postgres
@pytest.mark.parametrize("deletes_first", [True, False])
def test_a_command_and_a_deletion_in_two_processes_wait_for_each_other(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, deletes_first: bool
) -> None:
    with Store.open(postgres_url) as store, Store.open(postgres_url) as other:
        made, _, _ = begin(store, 1)
        errors: list[BaseException] = []

        def ask() -> None:
            try:
                if deletes_first:
                    other.experiments.change(made.id, {}, commands=[("enqueue", "by a test", {})])
                else:
                    other.experiments.remove(made.id)
            except BaseException as error:
                errors.append(error)

        second = threading.Thread(target=ask)

        def meanwhile(*_: object) -> None:
            if second.ident is None:
                second.start()
                until_blocked(postgres_url, second)

        with monkeypatch.context() as patch:
            if deletes_first:
                delete = removal._delete
                patch.setattr(removal, "_delete", lambda *args: (delete(*args), args[1] == "command" and meanwhile()))
                store.experiments.remove(made.id)
            else:
                insert = commands.insert
                patch.setattr(commands, "insert", lambda *args: (insert(*args), meanwhile())[0])
                store.commands.add(made.id, "cancel")
            second.join()
        assert [type(error) for error in errors] == [NotFound] * deletes_first
        with pytest.raises(NotFound):
            store.experiments.get(made.public_id)


def interrupt(store: Store, experiment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin to delete an experiment, and stop before the last transaction."""

    class Interrupted(Exception):
        pass

    def stop(*_: object) -> None:
        raise Interrupted

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(removal, "OF_KEYS", ("metric_key",))
        delete = removal._delete
        patch.setattr(removal, "_delete", lambda *args: stop() if args[1] == "metric_key" else delete(*args))
        store.experiments.remove(experiment)
