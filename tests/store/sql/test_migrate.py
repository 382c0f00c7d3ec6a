"""Migrations and models say the same, and a database is brought up to date from wherever it is."""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, make_url, text

from tests.driver.bench import Bench
from tests.driver.stored import stored
from tests.store.examples import T0, a_report, begin, until_blocked
from tuner.domain.batch import Batch
from tuner.domain.events import Reported
from tuner.domain.experiment import Objective, Scope
from tuner.errors import StoreError
from tuner.store import Store
from tuner.store.sql import migrate
from tuner.store.sql.connect import connect
from tuner.store.sql.tables import metadata


def downgraded(connection: Connection, to: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.scripts()))
    config.attributes["connection"] = connection
    command.downgrade(config, to)


def test_head_is_the_newest_revision() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.scripts()))
    assert ScriptDirectory.from_config(config).get_heads() == [migrate.head()]


def test_migrations_build_the_tables_of_the_models(database_url: str) -> None:
    engine = connect(database_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def made(url: str) -> tuple[set[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return what SQLite keeps of the tables and indexes of a file, and its revision."""
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
        kept = set(file.execute("SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name <> 'sqlite_sequence'"))
        return kept, file.execute("SELECT * FROM alembic_version").fetchall()


def test_a_new_sqlite_file_is_what_the_migrations_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = (f"sqlite:///{tmp_path / name}.db" for name in ("new", "old"))
    engine = connect(old)
    migrate.upgrade(engine)
    with engine.connect() as connection:
        rows = {name: connection.execute(text(f"SELECT COUNT(*) FROM {name}")).scalar() for name in metadata.tables}
    engine.dispose()
    assert set(rows.values()) == {0}, "the script would have to insert these rows, too"
    monkeypatch.setattr(migrate, "upgrade", None)  # it would run the scripts
    with Store.open(new) as store:
        store.migrate()
        store.check()
        begin(store)
    assert made(new) == made(old), "if a migration was changed by hand, run `make generate`"


def test_tables_of_something_else_stay(tmp_path: Path) -> None:
    path = tmp_path / "tuner.db"
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE theirs (x)")
    with Store.open(f"sqlite:///{path}") as store:
        store.migrate()
        store.check()
    assert "theirs" in {name for _, name, *_ in made(f"sqlite:///{path}")[0]}


def test_a_script_of_an_older_revision_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "migrations"
    shutil.copytree(migrate.scripts(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(migrate, "scripts", lambda: folder)
    script = folder / "sqlite.sql"
    script.write_text(script.read_text().replace(f"'{migrate.head()}'", "'0001'"))
    with Store.open(f"sqlite:///{tmp_path / 'tuner.db'}") as store:
        store.migrate()
        store.check()


def test_the_index_of_kinds_leaves_out_reports(database_url: str) -> None:
    """The models give this condition only for SQLite, and the comparison above ignores conditions."""
    engine = connect(database_url)
    table, column, name = (
        ("sqlite_master", "sql", "name") if engine.dialect.name == "sqlite" else ("pg_indexes", "indexdef", "indexname")
    )
    with engine.connect() as connection:
        made = connection.execute(text(f"SELECT {column} FROM {table} WHERE {name} = 'ix_event_kind'")).scalar_one()
    engine.dispose()
    assert "<> 'reported'" in made.partition("WHERE")[2]


def test_the_scripts_are_found_in_a_wheel_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "tuner"
    (package / "_migrations").mkdir(parents=True)
    (package / "store" / "sql").mkdir(parents=True)
    monkeypatch.setattr(migrate, "__file__", str(package / "store" / "sql" / "migrate.py"))
    with pytest.raises(StoreError, match="missing from this installation"):
        migrate.scripts()
    (package / "_migrations" / "env.py").touch()
    assert migrate.scripts() == package / "_migrations"


def test_several_may_migrate_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new' / 'tuner.db'}"
    errors: list[Exception] = []
    barrier = threading.Barrier(3)

    def bring_up() -> None:
        barrier.wait()
        try:
            with Store.open(url) as store:
                store.migrate()
                store.check()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=bring_up) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_an_upgrade_is_one_line_of_the_log_and_a_new_database_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    engine = connect(f"sqlite:///{tmp_path / 'tuner.db'}")
    migrate.migrate(engine)
    assert not caplog.records
    with engine.begin() as connection:
        downgraded(connection, "-1")
    caplog.clear()  # Alembic logs a downgrade unless an upgrade has already run in this process
    before = migrate.revision(engine)
    migrate.migrate(engine)
    engine.dispose()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("migrated the database ")
    assert line.endswith(f" from revision {before} to {migrate.head()}")


def test_a_database_of_a_newer_version_is_refused(sqlite_url: str) -> None:
    engine = connect(sqlite_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()
    with Store.open(sqlite_url) as store:
        with pytest.raises(StoreError, match="newer version"):
            store.migrate()
        with pytest.raises(StoreError, match="newer version of tuner, at revision 9999; upgrade tuner"):
            store.check()


@pytest.fixture
def warned() -> Iterator[threading.Event]:
    """Yield an event that each warning of a migration sets."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.set()

    found, handler = threading.Event(), Handler(logging.WARNING)
    migrate.log.addHandler(handler)
    yield found
    migrate.log.removeHandler(handler)


def older(path: Path) -> Engine:
    """Create a database that lacks the newest migration."""
    engine = connect(f"sqlite:///{path}")
    migrate.migrate(engine)
    with engine.begin() as connection:
        downgraded(connection, "-1")
    return engine


def test_a_process_waits_while_another_one_migrates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tuner.db"
    engine = older(path)
    monkeypatch.setattr(migrate, "TELL_EVERY_S", 1.5)  # longer than SQLite waits
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other, ThreadPoolExecutor(1) as pool:
        other.execute("BEGIN IMMEDIATE")
        waiting = pool.submit(migrate.migrate, engine)
        assert warned.wait(60)
        assert not waiting.done()
        other.execute("ROLLBACK")
        waiting.result(60)
    assert migrate.revision(engine) == migrate.head()
    engine.dispose()
    warning = next(record.getMessage() for record in caplog.records)
    assert warning.startswith(f"waiting for a process that writes to the database sqlite:///{path}")


@pytest.mark.postgres
def test_a_patient_process_waits_for_a_server_that_starts_but_not_for_one_that_rejects_it(
    postgres_server: str, tmp_path: Path, warned: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    url = make_url(postgres_server)
    with Store.open(url.set(database="nothing").render_as_string(hide_password=False)) as store:
        with pytest.raises(StoreError, match='database "nothing" does not exist'):
            store.migrate(patient=True)
        assert not caplog.records
    folder = url.query["host"]
    later = url.update_query_dict({"host": str(tmp_path / "pg")}).render_as_string(hide_password=False)
    with Store.open(later) as store, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.migrate, patient=True)
        assert warned.wait(60)
        (tmp_path / "pg").symlink_to(str(folder))
        waiting.result(60)
    [record] = caplog.records
    assert record.getMessage().startswith("waiting up to 30 s for the database postgresql")


def test_a_patient_process_waits_for_a_server_whose_name_is_not_known_yet(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Compose and Kubernetes make the name known when they start the server, which may be after the service."""

    class Found(Exception):
        pass

    answers: list[Exception] = [
        socket.gaierror(-2, "Name or service not known"),
        socket.gaierror(-3, "Try again"),
        Found(),
    ]

    def resolve(*_: object, **__: object) -> None:
        raise answers.pop(0)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(migrate, "AGAIN_S", 0.0)
    with Store.open("postgresql://me:secret@late/tuner") as store, pytest.raises(Found):
        store.migrate(patient=True)
    [record] = caplog.records
    expected = (
        "waiting up to 30 s for the database postgresql+psycopg://me:***@late/tuner: failed to resolve host 'late': "
    )
    assert record.getMessage() == f"{expected}[Errno -2] Name or service not known"


@pytest.mark.postgres
@pytest.mark.parametrize("first", ["experiment", "trial"])
def test_a_migration_and_a_driver_of_an_earlier_version_do_not_deadlock(postgres_url: str, first: str) -> None:
    """The migration changes the table of trials, and then that of experiments."""
    import psycopg

    last = {"experiment": "trial", "trial": "experiment"}[first]
    engine = connect(postgres_url)
    try:
        with engine.begin() as connection:
            downgraded(connection, "0028")
        with psycopg.connect(postgres_url) as driver, ThreadPoolExecutor(1) as pool:
            driver.execute(f"UPDATE {first} SET id = id")
            migration = pool.submit(migrate.migrate, engine)
            blocked = threading.Thread(target=lambda: futures.wait([migration]), daemon=True)
            blocked.start()
            until_blocked(postgres_url, blocked)
            driver.execute(f"UPDATE {last} SET id = id")
            driver.commit()
            migration.result(60)
        assert migrate.revision(engine) == migrate.head()
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SHOW lock_timeout").scalar() == "0"
    finally:
        migrate.migrate(engine)
        engine.dispose()


@pytest.mark.postgres
def test_a_migration_waits_for_a_vacuum_without_other_locks(postgres_url: str) -> None:
    """PostgreSQL ends its own vacuum for whoever has waited for a second. The migration gave up before that, for hours."""
    import psycopg

    engine = connect(postgres_url)
    alone = """
        SELECT pid FROM pg_locks WHERE mode = 'AccessExclusiveLock' GROUP BY pid
        HAVING bool_or(NOT granted AND relation = 'code'::regclass) AND NOT bool_or(granted)"""
    try:
        with engine.begin() as connection:
            downgraded(connection, "0028")
        with (
            psycopg.connect(postgres_url) as vacuum,
            psycopg.connect(postgres_url, autocommit=True) as watch,
            ThreadPoolExecutor(1) as pool,
        ):
            vacuum.execute("LOCK TABLE code IN SHARE UPDATE EXCLUSIVE MODE")
            migration = pool.submit(migrate.migrate, engine)
            end = time.monotonic() + 30
            try:
                while watch.execute(alone).fetchone() is None:
                    assert time.monotonic() < end
            finally:
                vacuum.rollback()
                migration.result(60)
        assert migrate.revision(engine) == migrate.head()
    finally:
        migrate.migrate(engine)
        engine.dispose()


def test_a_long_migration_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    engine = older(tmp_path / "tuner.db")
    check = migrate._check_references

    def slow_check(connection: Connection) -> None:
        warned.clear()
        assert warned.wait(60)
        check(connection)

    monkeypatch.setattr(migrate, "TELL_EVERY_S", 0.1)
    monkeypatch.setattr(migrate, "_check_references", slow_check)
    migrate.migrate(engine)
    engine.dispose()
    *_, warning = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert f" to {migrate.head()}, which takes minutes if it is large" in warning


def test_an_empty_database_is_not_ready(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'tuner.db'}") as store:
        with pytest.raises(StoreError, match="run `tuner migrate`"):
            store.check()
        with pytest.raises(StoreError, match="no such table"):
            store.experiments.page()


def test_the_id_of_a_deleted_row_is_never_given_to_another_one(store: Store) -> None:
    """Other processes know experiments, segments and commands by these ids."""
    seen: dict[str, set[int]] = {}
    for _ in range(2):
        made, epoch, trials = begin(store, 2)
        store.drivers.commit(made.id, epoch, Batch(log=[(6, a_report(0, 1))], trials=[trials[0]]), T0)
        store.commands.add(made.id, "pause")
        with store._database.engine.connect() as connection:
            for table in ("experiment", "trial", "segment", "metric_key", "command"):
                ids = set(connection.execute(text(f"SELECT id FROM {table}")).scalars())
                assert ids.isdisjoint(seen.setdefault(table, set())), table
                assert ids
                seen[table] |= ids
        store.experiments.seize(made.id)
        store.experiments.remove(made.id)


def test_every_table_with_ids_of_its_own_counts_them_on(sqlite_store: Store) -> None:
    query = text("SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%'")
    with sqlite_store._database.engine.connect() as connection:
        found = set(connection.execute(query).scalars())
    assert found == {table.name for table in metadata.tables.values() if [c.name for c in table.primary_key] == ["id"]}


def test_a_database_with_a_broken_reference_is_not_migrated(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tuner.db'}"
    config = Config()
    config.set_main_option("script_location", str(migrate.scripts()))
    engine = connect(url)
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0015")
        connection.commit()
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
        connection.exec_driver_sql("INSERT INTO metric_key (experiment_id, name) VALUES (99, 'loss')")
    engine.dispose()
    with (
        Store.open(url) as store,
        pytest.raises(StoreError, match="a row of metric_key refers to a missing row of experiment"),
    ):
        store.migrate()


@pytest.mark.parametrize(
    ("scope", "bound", "best"),
    [
        ("all", 0.25, [0.5, 0.4, 0.3]),
        ("all", 9.0, [0.5, 0.1]),
        ("last", 0.25, [0.5, 0.4, 0.3, 0.4]),
        ("last", 9.0, [0.5, 0.1, 0.4, 0.3, 0.4]),
        ("last", None, [0.5, 0.1, 0.4, 0.3, 0.4]),
    ],
)
@pytest.mark.parametrize("objectives", [[("loss", "min")], [("loss", "min"), ("accuracy", "max")]])
def test_best_values_that_do_not_count_are_corrected(
    store: Store, objectives: list[tuple[str, str]], scope: Scope, bound: float | None, best: list[float]
) -> None:
    """Earlier versions counted every report, whatever the constraints and the scope."""
    reports: list[tuple[int, dict[str, float]]] = [
        (0, {"loss": 0.5}),
        (0, {"size": 0.1, "accuracy": 0.4}),
        (1, {"loss": 0.1, "size": 1.0, "accuracy": 0.9}),
        (0, {"loss": 0.4}),
        (1, {"loss": 0.45, "size": 0.2, "accuracy": 0.7}),
        (0, {"loss": math.nan}),
        (1, {"loss": 0.3}),
        (1, {"loss": 0.6, "accuracy": 0.2}),
        (1, {"other": 1.0}),
    ]
    search = {"type": "tpe", **({"constraints": {"size": {"max": bound}}} if bound else {})}
    spec = {"search": search, "objectives": tuple(Objective(*one) for one in objectives)}
    bench = Bench(num_samples=2, scope=scope, **spec)
    bench.started(0)
    bench.started(1)
    counts = [0, 0]
    for trial, metrics in reports:
        counts[trial] += 1
        bench.feed(
            Reported(
                time=bench.tick(),
                trial=trial,
                segment=1,
                report_no=counts[trial],
                iteration=counts[trial],
                metrics=metrics,
            )
        )
    made = stored(bench, store)
    points = text("SELECT key_id, event_seq, time, value FROM best_point ORDER BY key_id, event_seq")
    trials = text("SELECT number, best_value, best_iteration FROM trial ORDER BY number")
    engine = store._database.engine
    with engine.begin() as connection:
        right = connection.execute(points).all(), connection.execute(trials).all()
        connection.execute(text("UPDATE best_point SET value = 0.1"))
        if scope == "last":
            connection.execute(text("UPDATE trial SET best_value = 0.1, best_iteration = 1"))
        downgraded(connection, "0026")
    migrate.migrate(engine)
    with engine.connect() as connection:
        assert (connection.execute(points).all(), connection.execute(trials).all()) == right
    assert store.metrics.best_so_far(made.id, "loss", "min")[1] == best
