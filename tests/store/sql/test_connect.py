from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from tests.store.examples import T0, a_report, a_spec, begin
from tuner.domain.batch import Batch, Entry
from tuner.errors import Retryable, StoreError
from tuner.store import Store, StoreUnavailable
from tuner.store.sql import connect as module
from tuner.store.sql import database

MOUNTS = """
/dev/root / ext4 rw 0 0
server:/export /mnt/nfs nfs4 rw 0 0
tmpfs /mnt/nfs/local tmpfs rw 0 0
//pc/share /mnt/with\\040space cifs rw 0 0
user@host:/ /mnt/ssh fuse.sshfs rw 0 0
server:/d /mnt/données nfs rw 0 0
server:/x /mnt/数据 nfs rw 0 0
"""


@pytest.fixture
def mounts(tmp_path: Path) -> str:
    path = tmp_path / "mounts"
    path.write_text(MOUNTS, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    "path",
    [
        "/mnt/nfs/tuner.db",
        "/mnt/nfs/a/b/tuner.db",
        "/mnt/with space/tuner.db",
        "/mnt/ssh/tuner.db",
        "/mnt/données/tuner.db",
        "/mnt/数据/tuner.db",
    ],
)
def test_a_network_disk_is_refused(mounts: str, path: str) -> None:
    with pytest.raises(StoreError, match=r"network disk.*TUNER_DATABASE_URL"):
        module.refuse_network_disk(Path(path), mounts)


@pytest.mark.parametrize("path", ["/home/me/tuner.db", "/mnt/nfs/local/tuner.db", "/mnt/nfs2/tuner.db"])
def test_a_local_disk_is_taken(mounts: str, path: str) -> None:
    module.refuse_network_disk(Path(path), mounts)


def test_a_machine_that_does_not_say_is_trusted(tmp_path: Path) -> None:
    module.refuse_network_disk(tmp_path, str(tmp_path / "nothing"))


def test_an_at_sign_in_a_password_is_to_be_encoded() -> None:
    with pytest.raises(StoreError, match=r"'postgresql://me:\*\*\*@host/db'; write each @ of the password as %40"):
        Store.open("postgresql://me:p@ss@host/db")
    with pytest.raises(StoreError, match=r"'postgresql://me:\*\*\*@host/db'; write .* as %40, and each / as %2F"):
        Store.open("postgresql://me:p@a/ss@host/db")
    Store.open("postgresql://me:p%40ss@host/db").close()


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://host/db", "sqlite://", "sqlite:///:memory:"])
def test_a_url_that_cannot_work_says_what_can(url: str) -> None:
    with pytest.raises(StoreError, match=r"sqlite:////path|must be a file"):
        Store.open(url)


@pytest.mark.parametrize(("synchronous", "level"), [("NORMAL", 1), ("FULL", 2)])
def test_sqlite_is_set_up_as_documented(tmp_path: Path, synchronous: module.Synchronous, level: int) -> None:
    engine = module.connect(f"sqlite:///{tmp_path / 'a' / 'tuner.db'}", synchronous)
    with engine.connect() as connection:
        for pragma, value in (
            ("journal_mode", "wal"),
            ("synchronous", level),
            ("foreign_keys", 1),
            ("busy_timeout", 30_000),
        ):
            assert connection.exec_driver_sql(f"PRAGMA {pragma}").scalar() == value
    engine.dispose()


def test_a_locked_database_is_worth_another_try(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_TIMEOUT_MS", 20)
    blocker = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with Store.open(sqlite_url) as store:
        with pytest.raises(StoreUnavailable, match="locked") as caught:
            store.experiments.create(a_spec())
        assert isinstance(caught.value, Retryable)
        assert store.experiments.page().items == ()  # readers are not in the way of a writer, nor it in theirs
        blocker.execute("ROLLBACK")
        assert store.experiments.create(a_spec(), now=T0).created_at == T0
    blocker.close()


def test_a_database_that_keeps_all_connections_busy_is_worth_another_try(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store._database.engine.pool, "_timeout", 0.01)
    with contextlib.ExitStack() as busy:
        for _ in range(15):  # the size of SQLAlchemy's pool and its overflow
            busy.enter_context(sqlite_store._database.read())
        for call in (
            sqlite_store.experiments.page,
            sqlite_store.check,
            lambda: sqlite_store._database.rows("SELECT 1"),
        ):
            with pytest.raises(StoreUnavailable, match="busy"):
                call()
        with pytest.raises(StoreUnavailable, match="busy"):
            sqlite_store.experiments.create(a_spec())
    assert sqlite_store.experiments.page().items == ()


def test_a_full_disk_is_an_outage_and_the_same_batch_goes_in_later(sqlite_store: Store) -> None:
    record, epoch, (trial,) = begin(sqlite_store)
    log: list[Entry] = [(4 + n, a_report(0, 1 + n, **{f"metric_{m}": 0.5 for m in range(20)})) for n in range(400)]
    batch = Batch(log=log, trials=[trial], state=None, summary={})
    with sqlite_store._database.write() as cursor:
        pages = cursor.value("PRAGMA page_count")
        cursor.rows(f"PRAGMA max_page_count = {pages}")  # as a disk that is full
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="full"):
            sqlite_store.drivers.commit(record.id, epoch, batch, T0 + 500)
        assert sqlite_store.experiments.get(record.public_id).last_event_seq == 3
    with sqlite_store._database.write() as cursor:
        cursor.rows("PRAGMA max_page_count = 1000000")
    sqlite_store.drivers.commit(record.id, epoch, batch, T0 + 500)
    assert sqlite_store.experiments.get(record.public_id).last_event_seq == 403


@pytest.mark.parametrize("query", ["SELECT json_extract('no', '$')", "SELECT 1 FROM nowhere", "SELECT missing"])
def test_an_error_of_a_query_is_not_worth_another_try(sqlite_store: Store, query: str) -> None:
    with pytest.raises(StoreError) as caught:
        sqlite_store._database.rows(query)
    assert not isinstance(caught.value, Retryable)


@pytest.mark.postgres
def test_a_broken_connection_is_replaced(postgres_url: str) -> None:
    import psycopg

    with Store.open(postgres_url) as store, psycopg.connect(postgres_url, autocommit=True) as admin:
        first = store.experiments.create(a_spec())
        store.experiments.get(first.public_id)
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
        with pytest.raises(StoreUnavailable):
            store.experiments.create(a_spec())
        second = store.experiments.create(a_spec())
        assert [e.public_id for e in store.experiments.page().items] == [second.public_id, first.public_id]


@pytest.mark.postgres
def test_a_connection_that_broke_while_it_was_idle_fails_no_write(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that nobody has used since the server was started again writes at once."""
    import psycopg

    monkeypatch.setattr(database, "IDLE_S", 0.0)
    with Store.open(postgres_url) as store, psycopg.connect(postgres_url, autocommit=True) as admin:
        names = ["first", "second", "third"]
        for name in names:
            store.experiments.create(a_spec(name))
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
        assert [one.name for one in store.experiments.page().items] == names[::-1]


@pytest.mark.postgres
def test_a_server_that_is_not_there_is_worth_another_try(tmp_path: Path) -> None:
    with (
        Store.open(f"postgresql://postgres@/nothing?host={tmp_path}") as store,
        pytest.raises(StoreError, match=r"postgresql|cannot open"),
    ):
        store.migrate()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hunter2@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("postgresql+psycopg://me:p@ss:hunter2@host/db", "postgresql+psycopg://me:***@host/db"),
        ("postgresql://:hunter2@host/db", "postgresql://:***@host/db"),
        ("postgresql:///db?host=/tmp&password=hunter2&user=me", "postgresql:///db?host=/tmp&password=***&user=me"),
        ("postgresql://me:two hunter2@host/db", "postgresql://me:***@host/db"),
        ("host=h user=me password=hunter2 dbname=db", "host=h user=me password=***"),
        ("host=h password = 'two hunter2'", "host=h password =***"),
        ("postgresql://me:hunter2@host/db?sslpassword=x", "postgresql://me:***@host/db?sslpassword=***"),
        ("postgresql:///db?user=me&pass%77ord=hunter2", "postgresql:///db?user=me&pass%77ord=***"),
        ("postgresql:///db?%53slPassword=hunter2", "postgresql:///db?%53slPassword=***"),
        ("postgresql:/me:hunter2@host/db", "postgresql:/me:***@host/db"),
        ("postgresql://me:hunter2", "postgresql://me:***"),
        ("postgresql://me:hun/ter2/db", "postgresql://me:***"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql://host:5432/db", "postgresql://host:5432/db"),
        ("postgresql://[::1]:5432/db", "postgresql://[::1]:5432/db"),
        ("postgresql://one:1,two:2/db", "postgresql://one:1,two:2/db"),
        ("sqlite:////home/me/tuner.db", "sqlite:////home/me/tuner.db"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert module.shown_url(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgres//me:hunter2@host",
        "postgresql://me:hunter2@127.0.0.1:1/db",
        "postgresql://me:hunter2@127.0.0.1:port/db",
        "postgresql://me:p@hunter2@127.0.0.1:1/db",
        "postgresql://me:p@a/hunter2@127.0.0.1:1/db",
        "postgresql://me:p@a?b=hunter2@127.0.0.1:1/db",
        "postgresql://me:p/hunter2/db",
        "host=127.0.0.1 password=hunter2",
        "x://a:hunter2@b",
    ],
)
def test_no_error_tells_the_password(url: str) -> None:
    with pytest.raises(StoreError) as raised:
        Store.open(url).migrate()
    assert "hunter2" not in str(raised.value)


def test_a_server_that_is_silent_is_given_up_soon_unless_the_url_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[dict[str, object]] = []
    real = module.create_engine  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "create_engine", lambda url, **more: given.append(more) or real(url, **more))
    module.connect("postgresql://me@host/db")
    module.connect("postgresql://me@host/db?connect_timeout=3&tcp_user_timeout=5000")
    assert given[0]["connect_args"]["connect_timeout"] == 10  # type: ignore[index]
    assert given[0]["connect_args"]["tcp_user_timeout"] == 30_000, "of a commit under way"  # type: ignore[index]
    assert "connect_timeout" not in given[1]["connect_args"]  # type: ignore[operator]
    assert "tcp_user_timeout" not in given[1]["connect_args"]  # type: ignore[operator]


@pytest.mark.postgres
def test_statements_are_not_prepared_if_the_url_says_so(postgres_url: str) -> None:
    """A pooler in transaction mode gives a statement to a connection that has not prepared it, or has another one of its name."""

    def prepared(url: str) -> int:
        with Store.open(url) as store:
            for _ in range(8):  # psycopg prepares a statement when it is used for the sixth time
                store.experiments.create(a_spec())
            with store._database.write() as cursor:
                return int(cursor.value("SELECT count(*) FROM pg_prepared_statements"))

    join = "&" if "?" in postgres_url else "?"
    assert prepared(postgres_url) > 0
    assert prepared(f"{postgres_url}{join}prepare_threshold=none") == 0
    assert prepared(f"{postgres_url}{join}prepare_threshold=100") == 0
    with pytest.raises(StoreError, match="prepare_threshold in the database URL: expected a number or none, got 'off'"):
        Store.open(f"{postgres_url}{join}prepare_threshold=off")


@pytest.mark.postgres
def test_an_error_that_comes_from_a_pooler_says_what_to_do(postgres_url: str) -> None:
    with Store.open(postgres_url) as store, store._database.write() as cursor:
        cursor.execute("PREPARE one AS SELECT 1")
        hint = r"already exists; if a pooler, .* add \?prepare_threshold=none to"
        with pytest.raises(StoreError, match=hint), module.translated("postgresql"):
            cursor.execute("PREPARE one AS SELECT 1")


def test_the_settings_of_a_connection_are_ones_that_the_driver_knows() -> None:
    conninfo = pytest.importorskip("psycopg.conninfo")
    assert "tcp_user_timeout=30000" in conninfo.make_conninfo("host=here", **module._CONNECTION)


def test_the_first_connections_wait_for_each_other(tmp_path: Path) -> None:
    """SQLite's own waiting does not cover the switch to the write-ahead log."""
    path = tmp_path / "new.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE t (x)")
    other.execute("BEGIN IMMEDIATE")
    other.execute("INSERT INTO t VALUES (1)")
    release = threading.Timer(0.3, lambda: other.execute("COMMIT"))
    release.start()
    engine = module.connect(f"sqlite:///{path}")
    try:
        with engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("SELECT x FROM t").scalar() == 1
    finally:
        release.join()
        other.close()
        engine.dispose()


def test_errors_about_the_file_of_a_database_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuner.db"
    with Store.open(f"sqlite:///{path}") as store:
        store.migrate()
        with store._database.write() as cursor:
            cursor.execute("PRAGMA query_only=ON")  # as if this user may only read the file
        with pytest.raises(StoreUnavailable) as error:
            store.check_write()
    assert str(error.value) == f"sqlite: attempt to write a readonly database ({path})"
    full = sqlite3.OperationalError("database or disk is full")
    assert str(module.translate(full, "sqlite", str(path))) == f"sqlite: database or disk is full ({path})"
    locked = sqlite3.OperationalError("database is locked")
    assert str(module.translate(locked, "sqlite", str(path))) == "sqlite: database is locked"

    path.unlink()
    path.mkdir()  # SQLite cannot open it, as if it belonged to another user
    monkeypatch.setattr(os, "access", lambda place, mode: True)
    with Store.open(f"sqlite:///{path}") as store, pytest.raises(StoreUnavailable, match="open database file") as error:
        store.migrate()
    assert "may not write" not in str(error.value)
    monkeypatch.setattr(os, "access", lambda place, mode: place != path)
    with Store.open(f"sqlite:///{path}") as store, pytest.raises(StoreUnavailable) as error:
        store.migrate()
    assert f"unable to open database file; this user may not write to {path}: " in str(error.value)

    def refused(*args: object, **options: object) -> os.stat_result:  # as in a folder that this user may not enter
        raise PermissionError(13, "Permission denied")

    with Store.open(f"sqlite:///{path}") as store, monkeypatch.context() as patch:
        patch.setattr(os, "stat", refused)
        with pytest.raises(StoreUnavailable, match="unable to open database file"):
            store.migrate()


def test_only_its_user_can_read_a_database_in_the_users_own_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the URLs of webhooks, variables of runtime environments, and hashes of tokens, and had the umask's mode."""
    monkeypatch.setenv("HOME", str(tmp_path / "ada"))
    umask = os.umask(0o022)
    for home, private in (("ada/.tuner", True), ("group/.tuner", False)):
        file = tmp_path / home / "tuner.db"
        with Store.open(f"sqlite:///{file}") as store:
            store.migrate()
            begin(store)
            modes = {path.name: path.stat().st_mode & 0o777 for path in file.parent.iterdir()}
        assert modes.keys() >= {"tuner.db", "tuner.db-wal", "tuner.db-shm"}
        assert all((mode == 0o600) is private for mode in modes.values()), modes
    os.umask(umask)
    file.chmod(0o640)
    monkeypatch.setenv("HOME", str(tmp_path / "group"))
    with Store.open(f"sqlite:///{file}") as store:
        assert store.experiments.page().items
        assert file.stat().st_mode & 0o777 == 0o640, "an existing one stays as it is"
