"""Test that threads share transactions, and that the failure of one thread does not affect the others."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.store.examples import a_spec, run_all
from tuner.errors import Conflict, StoreError
from tuner.store import Store, may_have_written, watched_commits
from tuner.store.records import CodeRecord
from tuner.store.sql.connect import StoreUnavailable
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.database import Database

MANY = 20


@pytest.fixture
def database(store: Store) -> Database:
    return store._database


class Counted:
    """Counts the transactions of a database."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database, self.count, self.error = database, 0, None
        write = database.write

        @contextmanager
        def counting() -> Iterator[Cursor]:
            with write() as cursor:
                self.count += 1
                yield cursor

        monkeypatch.setattr(database, "write", counting)

    def together(self, works: list[Callable[[Cursor], Any]]) -> list[Any]:
        """Do this work in a thread each, which all wait for the same transaction. Return their results or errors."""
        found: list[Any] = [None] * len(works)

        def do(at: int) -> None:
            with watched_commits():
                try:
                    found[at] = self.database.write_together(works[at])
                except Exception as error:
                    error.add_note(f"may have written: {may_have_written()}")
                    found[at] = error

        threads = [threading.Thread(target=do, args=(at,)) for at in range(len(works))]
        with self.database._lock:
            for thread in threads:
                thread.start()
            while len(self.database._shares) < len(works) - 1:  # the first one leads, and waits for the lock
                time.sleep(0.001)
        for thread in threads:
            thread.join()
        return found


@pytest.fixture
def counted(database: Database, monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(database, monkeypatch)


def inserts(name: str, fails: Exception | str | None = None) -> Callable[[Cursor], str]:
    def work(cursor: Cursor) -> str:
        cursor.execute("INSERT INTO bundle (sha256, used_at) VALUES (?, ?)", (name, 1.0))
        if isinstance(fails, Exception):
            raise fails
        if fails is not None:
            cursor.execute(fails)
        return name

    return work


def present(database: Database) -> list[str]:
    with database.cursor() as (cursor, _):
        return sorted(row[0] for row in cursor.rows("SELECT sha256 FROM bundle"))


def test_threads_that_wait_share_a_transaction(counted: Counted) -> None:
    names = [f"{number:02}" for number in range(MANY)]
    assert counted.together([inserts(name) for name in names]) == names
    assert present(counted.database) == names
    assert counted.count == 1
    assert counted.database.write_together(inserts("alone")) == "alone"


def test_an_error_of_one_thread_undoes_only_its_own_work(counted: Counted) -> None:
    found = counted.together([inserts("a"), inserts("b", Conflict("no")), inserts("c")])
    assert [str(one) for one in found] == ["a", "no", "c"]
    assert present(counted.database) == ["a", "c"]
    assert counted.count == 1
    assert found[1].__notes__[-1] == "may have written: False"


def test_an_error_of_the_database_fails_only_the_thread_that_caused_it(counted: Counted) -> None:
    again = "INSERT INTO bundle (sha256, used_at) VALUES ('b', 2.0)"
    found = counted.together([inserts("a"), inserts("b", again), inserts("c")])
    assert (found[0], found[2]) == ("a", "c")
    assert isinstance(found[1], StoreError)
    assert present(counted.database) == ["a", "c"]
    assert counted.count == 4, "together, and then each alone"


def test_all_fail_if_the_transaction_cannot_begin(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    write = counted.database.write

    @contextmanager
    def away() -> Iterator[Cursor]:
        with counted.database._lock:
            counted.count += 1
        if counted.count:
            raise StoreUnavailable("the database is away")
        with write() as cursor:
            yield cursor

    monkeypatch.setattr(counted.database, "write", away)
    found = counted.together([inserts(name) for name in "abc"])
    assert [type(one) for one in found] == [StoreUnavailable] * 3
    assert counted.count <= 2, "each would wait for the timeout"
    assert {one.__notes__[-1] for one in found} == {"may have written: False"}


def test_nothing_is_repeated_if_the_commit_fails(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome of such a commit is not known, so a repeated call might write everything twice."""
    write = counted.database.write

    @contextmanager
    def breaks() -> Iterator[Cursor]:
        with write() as cursor:
            yield cursor
        raise StoreUnavailable("the connection was lost")

    monkeypatch.setattr(counted.database, "write", breaks)
    found = counted.together([inserts(name) for name in "abc"])
    assert [type(one) for one in found] == [StoreUnavailable] * 3
    assert counted.count == 1
    assert {one.__notes__[-1] for one in found} == {"may have written: True"}


def test_a_thread_that_is_interrupted_while_it_waits_lets_the_next_one_lead(database: Database) -> None:
    begun, all_wait, found = threading.Event(), threading.Event(), []

    class Interrupted(BaseException):
        pass

    def first(cursor: Cursor) -> None:
        begun.set()
        assert all_wait.wait(20)

    def second() -> None:
        try:
            database.write_together(inserts("second"))
        except Interrupted:
            found.append("interrupted")

    threads = [
        threading.Thread(target=lambda: database.write_together(first)),
        threading.Thread(target=second),
        threading.Thread(target=lambda: found.append(database.write_together(inserts("third")))),
    ]
    for number, thread in enumerate(threads):
        thread.start()
        assert begun.wait(20)
        while len(database._shares) < number:
            time.sleep(0.001)
    # The thread gets the exception as soon as it wakes, and it is the one that is to lead then.
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threads[1].ident or 0), ctypes.py_object(Interrupted))
    all_wait.set()
    for thread in threads:
        thread.join(20)
    assert found == ["interrupted", "third"]
    assert present(database) == ["third"]
    assert database.write_together(inserts("fourth")) == "fourth"


def test_ctrl_c_while_one_thread_commits_for_another_reaches_only_the_main_thread(database: Database) -> None:
    held, found = threading.Event(), []

    def until(holds: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not holds() and time.monotonic() < end:
            time.sleep(0.001)

    def hold() -> None:
        """Keep the connection until the main thread leads and the other thread waits for it."""
        with database._lock:
            held.set()
            until(lambda: database._has_leader and len(database._shares) == 1)

    def interrupted(cursor: Cursor) -> str:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return inserts("first")(cursor)

    def second() -> None:
        # The leader must have taken the share of the main thread.
        until(lambda: database._has_leader and not database._shares)
        try:
            found.append(database.write_together(inserts("second"), order="z"))
        except BaseException as error:
            found.append(error)

    threads = [threading.Thread(target=hold), threading.Thread(target=second)]
    threads[0].start()
    assert held.wait(20)
    threads[1].start()
    with pytest.raises(KeyboardInterrupt):
        database.write_together(interrupted, order="a")
    for thread in threads:
        thread.join(20)
    assert found == ["second"]
    assert present(database) == ["first", "second"], "what was begun is committed"
    assert database.write_together(inserts("third")) == "third"


def test_a_write_that_fails_in_the_main_thread_raises_there_and_prints_nothing(
    database: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(cursor: Cursor) -> str:
        raise StoreError("no")

    with pytest.raises(StoreError, match="no"):
        database.write_together(fails, order="a")
    assert capfd.readouterr().err == ""
    assert database.write_together(inserts("next")) == "next"


def test_without_a_thread_for_it_the_main_thread_writes_itself(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        assert database.write_together(inserts("first")) == "first"
    assert present(database) == ["first"]


def test_a_single_query_returns_its_connection_even_if_it_fails(database: Database) -> None:
    database.write_together(inserts("one"))
    for _ in range(30):  # more than the pool has connections
        with pytest.raises(StoreError, match="no_such_table"):
            database.rows("SELECT * FROM no_such_table")
        assert database.rows("SELECT sha256 FROM bundle WHERE used_at = ?", (1.0,)) == [("one",)]
    assert database.engine.pool.checkedout() == 1, "the one for writing"  # type: ignore[attr-defined]
    database.write_together(inserts("two"))
    assert len(database.rows("SELECT sha256 FROM bundle")) == 2, "each query sees what was committed before it"


def test_creates_of_many_threads_are_as_each_alone(store: Store) -> None:
    code = CodeRecord(hash="c", python="3", packages={}, sys_path=[], working_dir="/")
    made: list[Any] = [None] * MANY

    def create(at: int) -> None:
        spec = a_spec(f"number {at}", notes=f"ünï {at}", tags={"at": str(at)}, code="c", seed=at)
        made[at] = store.experiments.create(spec, code=code, idempotency_key=f"key {at // 2}" if at < 4 else None)

    def try_create(at: int) -> None:
        try:
            create(at)
        except Conflict:
            made[at] = "conflict"

    run_all([threading.Thread(target=try_create, args=(at,)) for at in range(MANY)])
    assert made.count("conflict") == 2, "two keys are used for two specs each"
    records = [one for one in made if one != "conflict"]
    assert [store.experiments.get(one.public_id) for one in records] == records
    assert sorted(one.id for one in records) == sorted(one.id for one in store.experiments.page(page_size=100).items)


def test_code_is_stored_for_all_though_the_first_that_brought_it_failed(store: Store) -> None:
    """Experiments that are created together store their code once, unless what did so is undone."""
    store.experiments.create(a_spec("earlier"), idempotency_key="key")
    code = CodeRecord(hash="c", python="3", packages={}, sys_path=[], working_dir="/")
    keys = ("key", None, "key", None)
    creations = [
        store.experiments.creation(a_spec(f"number {at}"), code=code, idempotency_key=key)
        for at, key in enumerate(keys)
    ]
    store.experiments.create_all(creations)
    assert [isinstance(one.error, Conflict) for one in creations] == [True, False, True, False]
    assert [store.experiments.created(creations[at]).name for at in (1, 3)] == ["number 1", "number 3"]
    assert store.code.get("c").hash == "c"


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("used", ["migrated", "read", "written"])
def test_a_database_that_was_deleted_while_it_was_in_use_takes_nothing_more(
    tmp_path: Path, used: str, replaced: bool
) -> None:
    path = tmp_path / "tuner.db"
    with Store.open(f"sqlite:///{path}") as store:
        store.migrate()
    with Store.open(f"sqlite:///{path}") as store:
        database = store._database
        match used:
            case "migrated":
                store.migrate()
            case "read":
                store.experiments.page()
            case "written":
                assert database.write_together(inserts("kept")) == "kept"
        for file in tmp_path.glob("tuner.db*"):
            file.unlink()
        if replaced:
            path.touch()
        with pytest.raises(StoreError, match=r"tuner.db was deleted or replaced while it was in use"):
            database.write_together(inserts("lost"))


def test_a_database_whose_file_cannot_be_looked_at_for_a_moment_was_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tuner.db"
    real = os.stat

    def stat(file: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if file == str(path):
            raise OSError(errno.EIO, "Input/output error")
        return real(file, *args, **kwargs)

    with Store.open(f"sqlite:///{path}") as store:
        store.migrate()
        with monkeypatch.context() as away:
            away.setattr(os, "stat", stat)
            assert store._database.write_together(inserts("meanwhile")) == "meanwhile"
            store.experiments.page()
        path.unlink()
        with pytest.raises(StoreError, match="was deleted"):
            store._database.write_together(inserts("lost"))
