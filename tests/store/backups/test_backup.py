"""Backups of SQLite databases: made in use, put back, and refused if they would destroy something."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from tests.store.examples import T0, a_report, a_spec, begin, until_blocked
from tuner.cli.commands import app
from tuner.domain.batch import Batch
from tuner.domain.logs import LogChunk
from tuner.errors import Conflict, StoreError
from tuner.store import Store
from tuner.store.backups import backup as backup_of
from tuner.store.backups import exchange
from tuner.store.backups.backup import backup, restore
from tuner.store.service.access import Role
from tuner.store.sql import connect as connections
from tuner.store.sql.connect import connect
from tuner.store.sql.tables import metadata


@pytest.fixture
def other_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'other' / 'tuner.db'}"


def test_a_database_in_use_comes_back_as_it_was(
    sqlite_store: Store, sqlite_url: str, other_url: str, tmp_path: Path
) -> None:
    made, epoch, trials = begin(sqlite_store)
    secret, token = sqlite_store.access.create_token("ci", Role.ADMIN)
    assert backup(sqlite_url, tmp_path / "copy") > 0
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[(4, a_report(0, 1))], trials=trials), T0 + 2)
    later = sqlite_store.experiments.create(a_spec("later"))
    assert [path.name for path in tmp_path.glob("*copy*")] == ["copy"], "one file, and no partial one"
    restore(other_url, tmp_path / "copy")
    with Store.open(other_url) as store:
        store.migrate()
        assert [one.public_id for one in store.experiments.page().items] == [made.public_id]
        assert store.experiments.get(made.public_id).last_event_seq == 3
        assert store.trials.page(made.id).items[0].params == {"lr": 0.01}
        assert store.access.token_of(secret) == token
    assert sqlite_store.experiments.get(later.public_id).name == "later", "the source is as before"


def test_nothing_is_replaced_by_mistake(sqlite_store: Store, sqlite_url: str, tmp_path: Path) -> None:
    begin(sqlite_store)
    copy = tmp_path / "copy"
    backup(sqlite_url, copy)
    with pytest.raises(Conflict, match="already exists"):
        backup(sqlite_url, copy)
    later = sqlite_store.experiments.create(a_spec("later"))
    with pytest.raises(Conflict, match="--force"):
        restore(sqlite_url, copy)
    assert sqlite_store.experiments.get(later.public_id).name == "later"
    sqlite_store.close()
    restore(sqlite_url, copy, force=True)
    with Store.open(sqlite_url) as store:
        assert [one.name for one in store.experiments.page().items] == ["digits"]


def test_sqlite_gets_its_options_by_name(
    sqlite_store: Store, sqlite_url: str, other_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.13 warns of options by position, and Python 3.15 refuses them."""
    begin(sqlite_store)
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda database, /, **options: connect(database, **options))
    assert backup(sqlite_url, tmp_path / "copy") > 0
    restore(other_url, tmp_path / "copy")


def refuses_beside_a_driver(url: str, copy: Path) -> None:
    """Restore a backup while an experiment is driven, and after its driver has ended."""
    with Store.open(url) as store:
        made, *_ = begin(store)
        backup(url, copy)
        epoch = store.drivers.claim(made.id, "driver", 6000.0, time.time())
        later = store.experiments.create(a_spec("later"))
    with pytest.raises(Conflict, match=rf"{made.public_id} is running.* stop all services .* wait (6000|5\d\d\d) s"):
        restore(url, copy, force=True)
    with Store.open(url) as store:
        assert store.experiments.get(later.public_id).name == "later"
        store.drivers.release(made.id, epoch)
    restore(url, copy, force=True)
    with Store.open(url) as store:
        assert [one.public_id for one in store.experiments.page().items] == [made.public_id]


def test_a_database_with_a_running_experiment_is_not_replaced(
    sqlite_store: Store, sqlite_url: str, tmp_path: Path
) -> None:
    """Its driver went on, and ended with "the log ends at event 61, but the batch begins at event 190"."""
    refuses_beside_a_driver(sqlite_url, tmp_path / "copy")


def test_a_driver_that_starts_after_the_check_is_seen(
    sqlite_store: Store, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, *_ = begin(sqlite_store)
    backup(sqlite_url, tmp_path / "copy")
    later = sqlite_store.experiments.create(a_spec("later"))
    checks: list[Any] = []
    check = backup_of._refuse_if_driven

    def driven_after_the_first(target: sqlite3.Connection) -> None:
        check(target)
        if not checks:
            sqlite_store.drivers.claim(later.id, "driver", 6000.0, time.time())
        checks.append(target)

    monkeypatch.setattr(backup_of, "_refuse_if_driven", driven_after_the_first)
    with pytest.raises(Conflict, match=f"{later.public_id} is running"):
        restore(sqlite_url, tmp_path / "copy", force=True)
    with Store.open(sqlite_url) as store:
        assert {one.public_id for one in store.experiments.page().items} == {made.public_id, later.public_id}
        store.drivers.release(later.id, 1)
    restore(sqlite_url, tmp_path / "copy", force=True)
    with Store.open(sqlite_url) as store:
        assert [one.public_id for one in store.experiments.page().items] == [made.public_id]


def test_a_driver_that_starts_after_the_check_is_seen_in_a_database_without_a_write_ahead_log(
    sqlite_store: Store, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that was just restored. Nobody could read it while it was locked, so there was no second check."""
    made, *_ = begin(sqlite_store)
    backup(sqlite_url, tmp_path / "copy")
    sqlite_store.close()
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
        connection.execute("UPDATE experiment SET lease_until = NULL, driver_owner = NULL")
        connection.commit()
    check = backup_of._refuse_if_driven
    checks: list[Any] = []

    def driven_after_the_first(target: sqlite3.Connection) -> None:
        check(target)
        if not checks:
            with closing(sqlite3.connect(path)) as connection:
                lease = (time.time() + 6000, "driver", "running")
                connection.execute("UPDATE experiment SET lease_until = ?, driver_owner = ?, state = ?", lease)
                connection.commit()
        checks.append(target)

    monkeypatch.setattr(backup_of, "_refuse_if_driven", driven_after_the_first)
    with pytest.raises(Conflict, match=f"{made.public_id} is running"):
        restore(sqlite_url, tmp_path / "copy", force=True)


def test_a_damaged_database_is_replaced(sqlite_store: Store, sqlite_url: str, tmp_path: Path) -> None:
    made, *_ = begin(sqlite_store)
    backup(sqlite_url, tmp_path / "copy")
    sqlite_store.close()
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'experiment'").fetchone()
    content = bytearray(path.read_bytes())
    content[(page - 1) * size : page * size] = b"\xff" * size
    path.write_bytes(content)
    restore(sqlite_url, tmp_path / "copy", force=True)
    with Store.open(sqlite_url) as store:
        assert [one.public_id for one in store.experiments.page().items] == [made.public_id]


@pytest.mark.postgres
def test_a_postgresql_database_with_a_running_experiment_is_not_replaced(postgres_url: str, tmp_path: Path) -> None:
    refuses_beside_a_driver(postgres_url, tmp_path / "copy")


@pytest.mark.postgres
def test_a_driver_that_starts_while_a_restore_waits_for_locks_is_seen(postgres_url: str, tmp_path: Path) -> None:
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'")
    with Store.open(postgres_url) as store, ThreadPoolExecutor() as threads:
        made, *_ = begin(store)
        store.drivers.release(made.id, 1)
        backup(postgres_url, tmp_path / "copy")
        engine = store._database.engine
        with engine.begin() as driver:
            claim = "UPDATE experiment SET lease_until = :until, driver_owner = 'driver'"
            driver.execute(text(claim), {"until": time.time() + 6000})
            restoring = threads.submit(restore, postgres_url, tmp_path / "copy", force=True)
            with engine.connect() as watch:
                end = time.monotonic() + 8
                while not watch.execute(waiting).scalar():
                    assert not restoring.done()
                    assert time.monotonic() < end
        with pytest.raises(Conflict, match=f"{made.public_id} is running"):
            restoring.result(timeout=30)
        assert store.experiments.get(made.public_id).driver_owner == "driver"


@pytest.mark.postgres
def test_a_restore_and_a_deletion_do_not_deadlock(postgres_url: str, tmp_path: Path) -> None:
    """A deletion locks the experiment first, and its code last."""
    with Store.open(postgres_url) as store:
        backup(postgres_url, tmp_path / "copy")
        with store._database.engine.connect() as deletion:
            deletion.execute(text("UPDATE experiment SET id = id"))
            restoring = threading.Thread(target=restore, args=(postgres_url, tmp_path / "copy"), kwargs={"force": True})
            restoring.start()
            until_blocked(postgres_url, restoring)
            deletion.execute(text("DELETE FROM code WHERE hash = 'unused'"))
            deletion.commit()
            restoring.join()


@pytest.mark.postgres
def test_a_restore_beside_a_driver_is_refused_without_waiting_for_locks(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept all transactions waiting, and then failed because of a lock that somebody else held."""
    monkeypatch.setattr(exchange, "LOCK_S", 1)
    with Store.open(postgres_url) as store:
        made, *_ = begin(store)
        store.drivers.claim(made.id, "driver", 6000.0, time.time())
        backup(postgres_url, tmp_path / "copy")
        with store._database.engine.begin() as reader:
            reader.execute(text("SELECT count(*) FROM trial"))
            with pytest.raises(Conflict, match=f"{made.public_id} is running"):
                restore(postgres_url, tmp_path / "copy", force=True)


def test_a_folder_that_does_not_exist_is_named(sqlite_store: Store, sqlite_url: str, tmp_path: Path) -> None:
    begin(sqlite_store)
    with pytest.raises(StoreError, match=f"missing/copy cannot be written: there is no folder {tmp_path}/missing"):
        backup(sqlite_url, tmp_path / "missing" / "copy")


def test_a_folder_of_the_database_that_cannot_be_created_is_named(
    sqlite_store: Store, sqlite_url: str, tmp_path: Path
) -> None:
    begin(sqlite_store)
    backup(sqlite_url, tmp_path / "copy")
    with pytest.raises(StoreError, match=f"{tmp_path}/copy/home.* cannot be created: Not a directory; set TUNER_HOME"):
        restore(f"sqlite:///{tmp_path}/copy/home/tuner.db", tmp_path / "copy")


def test_the_home_in_a_url_is_that_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(elsewhere)
    with Store.open("sqlite:///~/from.db") as store:
        store.migrate()
        begin(store)
    backup("sqlite:///~/from.db", tmp_path / "copy")
    restore("sqlite:///~/to.db", tmp_path / "copy")
    assert (home / "to.db").stat().st_mode & 0o777 == 0o600, "it has hashes of tokens"
    with Store.open("sqlite:///~/to.db") as store:
        store.check()
        assert [one.name for one in store.experiments.page().items] == ["digits"]
    assert not list(elsewhere.iterdir())


def test_a_locked_database_is_given_up(
    sqlite_store: Store, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(sqlite_store)
    backup(sqlite_url, tmp_path / "copy")
    monkeypatch.setattr(backup_of, "BUSY_S", 0.05)
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process uses the database"):
            restore(sqlite_url, tmp_path / "copy", force=True)
        other.execute("ROLLBACK")
        restore(sqlite_url, tmp_path / "copy", force=True)


NAMES = ["my#1.db", "m%20x.db", "what?.db", "a b&c=d.db", "b" * 255]
"""Names of files with characters that have a meaning in URLs, and the longest possible name."""


@pytest.mark.parametrize("name", NAMES)
def test_a_backup_may_have_any_name(
    sqlite_store: Store, sqlite_url: str, other_url: str, tmp_path: Path, name: str
) -> None:
    begin(sqlite_store)
    folder = tmp_path / "backups"
    folder.mkdir()
    backup(sqlite_url, folder / name)
    restore(other_url, folder / name)
    assert [path.name for path in folder.iterdir()] == [name]
    with Store.open(other_url) as store:
        assert [one.name for one in store.experiments.page().items] == ["digits"]


@pytest.mark.postgres
@pytest.mark.parametrize("name", NAMES)
def test_a_backup_of_postgresql_may_have_any_name(postgres_url: str, tmp_path: Path, name: str) -> None:
    with Store.open(postgres_url) as store:
        begin(store)
    folder = tmp_path / "backups"
    folder.mkdir()
    backup(postgres_url, folder / name)
    restore(postgres_url, folder / name, force=True)
    assert [path.name for path in folder.iterdir()] == [name]
    with Store.open(postgres_url) as store:
        assert [one.name for one in store.experiments.page().items] == ["digits"]


def test_a_name_that_no_file_can_have_is_refused(sqlite_store: Store, sqlite_url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="b cannot be written: File name too long"):
        backup(sqlite_url, tmp_path / ("b" * 256))
    with pytest.raises(StoreError, match="b cannot be read: File name too long"):
        restore(sqlite_url, tmp_path / ("b" * 256))


@pytest.mark.parametrize("content", [b"", b"not a database", b"SQLite format 3\0" + b"x" * 5000])
def test_a_file_that_is_no_backup_is_refused(other_url: str, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "copy").write_bytes(content)
    with pytest.raises(StoreError, match=re.escape(str(tmp_path / "copy"))):
        restore(other_url, tmp_path / "copy")
    assert not Path(other_url.removeprefix("sqlite:///")).exists()


@pytest.mark.parametrize("force", [True, False])
def test_a_restore_names_the_file_that_is_no_database(sqlite_url: str, tmp_path: Path, force: bool) -> None:
    with Store.open(sqlite_url) as store:
        store.migrate()
    backup(sqlite_url, tmp_path / "copy")
    (tmp_path / "damaged.db").write_bytes(b"not a database" * 100)
    with pytest.raises(
        StoreError, match=r"damaged\.db has failed: file is not a database; move it away, and restore the backup again"
    ):
        restore(f"sqlite:///{tmp_path}/damaged.db", tmp_path / "copy", force=force)
    with pytest.raises(StoreError, match=r"the backup of .*damaged\.db to .* has failed: file is not a database\n"):
        backup(f"sqlite:///{tmp_path}/damaged.db", tmp_path / "another copy")


def test_a_backup_of_a_newer_version_replaces_nothing(sqlite_store: Store, sqlite_url: str, tmp_path: Path) -> None:
    begin(sqlite_store)
    copy = tmp_path / "copy"
    backup(sqlite_url, copy)
    with closing(sqlite3.connect(copy)) as newer, newer:
        newer.execute("UPDATE alembic_version SET version_num = 'newer'")
    later = sqlite_store.experiments.create(a_spec("later"))
    with pytest.raises(StoreError, match="newer version of tuner .* upgrade tuner"):
        restore(sqlite_url, copy, force=True)
    assert sqlite_store.experiments.get(later.public_id).name == "later"
    sqlite_store.check()


def test_a_backup_needs_no_hard_links(
    sqlite_store: Store, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems such as exFAT, and many network disks, have none."""
    begin(sqlite_store)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert backup(sqlite_url, tmp_path / "copy") > 0
    assert [path.name for path in tmp_path.glob("*copy*")] == ["copy"]


def test_a_backup_that_cannot_take_its_name_leaves_no_file(
    sqlite_store: Store, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(StoreError, match="cannot be written: Input/output error"):
        backup(sqlite_url, tmp_path / "copy")
    assert list(tmp_path.glob("*copy*")) == []


def sqlite_says(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let SQLite fail with this error while it copies a database."""

    def fail(write: sqlite3.Connection, read: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError(text)

    monkeypatch.setattr("tuner.store.backups.backup._fill", fail)


def test_a_backup_to_a_full_disk_names_its_file(
    sqlite_store: Store, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_says(monkeypatch, "database or disk is full")
    target = tmp_path / "backup.db"
    with pytest.raises(StoreError, match=rf"the backup of .* to {target} has failed: database or disk is full"):
        backup(sqlite_url, target)
    assert not target.exists()


def test_a_backup_of_a_database_on_a_read_only_disk_says_why_it_fails(
    sqlite_store: Store, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only root can mount a disk. SQLite raises this if the disk is read-only and the database has a write-ahead log."""
    sqlite_says(monkeypatch, "unable to open database file")
    with pytest.raises(StoreError, match=r"unable to open database file\n"):
        backup(sqlite_url, tmp_path / "backup.db")
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    with pytest.raises(StoreError, match=r"SQLite needs files beside it, and .* is read-only: copy the folder"):
        backup(sqlite_url, tmp_path / "backup.db")


@pytest.mark.postgres
@pytest.mark.parametrize("step", ["the tables", "the rows"])
def test_a_backup_of_postgresql_to_a_full_disk_names_its_file(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with Store.open(postgres_url) as store:
        store.experiments.create(a_spec(notes="n" * 100_000))
    connect, set_journal = sqlite3.connect, connections._without_write_ahead

    def small(file: Any, *arguments: Any, **options: Any) -> Any:
        connection = connect(file, *arguments, **options)
        connection.execute("PRAGMA max_page_count=1")  # which means its present size, if that is larger
        return connection

    def without_room(cursor: Any) -> None:
        set_journal(cursor)
        cursor.execute("PRAGMA max_page_count=10")

    if step == "the tables":
        monkeypatch.setattr(connections, "_without_write_ahead", without_room)
    else:
        monkeypatch.setattr(sqlite3, "connect", small)
    target = tmp_path / "backup.db"
    with pytest.raises(StoreError, match=rf"^the backup to {target} has failed: database or disk is full"):
        backup(postgres_url, target)
    assert list(tmp_path.iterdir()) == []


def test_a_torn_backup_is_refused(sqlite_store: Store, sqlite_url: str, other_url: str, tmp_path: Path) -> None:
    begin(sqlite_store)
    backup(sqlite_url, tmp_path / "copy")
    whole = (tmp_path / "copy").read_bytes()
    (tmp_path / "copy").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError):
        restore(other_url, tmp_path / "copy")


def test_a_database_that_cannot_be_read_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        backup("postgresql://nobody@localhost:1/tuner?connect_timeout=1", tmp_path / "copy")
    assert not list(tmp_path.glob("*copy*"))
    with pytest.raises(StoreError, match="no database"):
        backup(f"sqlite:///{tmp_path / 'none.db'}", tmp_path / "copy")


def test_the_commands(sqlite_store: Store, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(sqlite_store)
    monkeypatch.setenv("TUNER_DATABASE_URL", sqlite_url)
    made = CliRunner().invoke(app, ["backup", str(tmp_path / "copy")])
    assert (made.exit_code, str(tmp_path / "copy") in made.output) == (0, True)
    monkeypatch.setenv("TUNER_DATABASE_URL", f"sqlite:///{tmp_path / 'new.db'}")
    assert CliRunner().invoke(app, ["restore", str(tmp_path / "copy")]).exit_code == 0
    with Store.open(f"sqlite:///{tmp_path / 'new.db'}") as store:
        store.check()
        assert [one.name for one in store.experiments.page().items] == ["digits"]


def rows(url: str) -> dict[str, list[Any]]:
    """Return all rows as they are stored, by table."""
    engine = connect(url)
    with engine.connect() as connection:
        found = {
            name: sorted(
                [
                    tuple(float(v) if isinstance(v, bool | int) else v for v in row)
                    for row in connection.exec_driver_sql(
                        f"SELECT {', '.join(column.name for column in table.columns)} FROM {name}"
                    )
                ],
                key=repr,
            )
            for name, table in metadata.tables.items()
        }
    engine.dispose()
    return found


@pytest.mark.postgres
def test_a_postgresql_database_is_backed_up_and_restored_and_moves_between_the_two(
    postgres_url: str, other_url: str, tmp_path: Path
) -> None:
    with Store.open(postgres_url) as store:
        made, epoch, trials = begin(store, 2, segments=2)
        report = a_report(0, 1, accuracy=float("nan"), loss=1e300)
        store.drivers.commit(made.id, epoch, Batch(log=[(6, report)], trials=trials), T0 + 2)
        store.logs.add(made.id, {(0, 1): [LogChunk.of(0, 0, b"\x00\xff\t\\N\n", T0)]})
        store.commands.add(made.id, "pause")
        secret, token = store.access.create_token("ci", Role.ADMIN)
        gone = store.experiments.create(a_spec("gone"))
        store.experiments.seize(gone.id)
        store.experiments.remove(gone.id)
    before = rows(postgres_url)
    backup(postgres_url, tmp_path / "copy")
    assert [path.name for path in tmp_path.glob("*copy*")] == ["copy"], "one file, and no partial one"
    with pytest.raises(Conflict, match="--force"):
        restore(postgres_url, tmp_path / "copy")
    with Store.open(postgres_url) as store:
        store.experiments.create(a_spec("later"))
    restore(postgres_url, tmp_path / "copy", force=True)
    assert rows(postgres_url) == before
    with Store.open(postgres_url) as store:
        assert [one.public_id for one in store.experiments.page().items] == [made.public_id]
        assert store.access.token_of(secret) == token
        assert store.experiments.create(a_spec("next")).id > made.id, "the sequences go on"
    restore(other_url, tmp_path / "copy")
    assert rows(other_url) == before, "the same in SQLite"


@pytest.mark.postgres
def test_a_backup_of_sqlite_moves_to_postgresql(
    sqlite_store: Store, sqlite_url: str, postgres_url: str, tmp_path: Path
) -> None:
    begin(sqlite_store, 3)
    backup(sqlite_url, tmp_path / "copy")
    restore(postgres_url, tmp_path / "copy")
    assert rows(postgres_url) == rows(sqlite_url)


def test_files_that_only_one_process_uses_have_no_write_ahead_log_and_may_be_on_any_disk(
    sqlite_store: Store, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(sqlite_store)
    monkeypatch.setattr(connections, "file_system", lambda *_: ("nfs4", "/tmp"))
    (tmp_path / "folder").mkdir()
    copied = exchange.migrated(Path(sqlite_url.removeprefix("sqlite:///")), tmp_path / "folder")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["copy.db"]
    with closing(sqlite3.connect(copied)) as read:
        assert read.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert read.execute("SELECT count(*) FROM experiment").fetchone() == (1,)


@pytest.mark.postgres
def test_a_backup_of_postgresql_may_be_on_a_network_disk(
    postgres_url: str, other_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(postgres_url) as store:
        made, *_ = begin(store)
    disk, home = tmp_path / "disk", Path(other_url.removeprefix("sqlite:///"))
    disk.mkdir()
    monkeypatch.setattr(
        connections, "file_system", lambda path, _mounts: ("ext4", "/") if path == home else ("nfs4", "/disk")
    )
    backup(postgres_url, disk / "copy")
    assert [path.name for path in disk.iterdir()] == ["copy"]
    restore(other_url, disk / "copy")
    with Store.open(other_url) as store:
        assert store.experiments.get(made.public_id).last_event_seq == 3
