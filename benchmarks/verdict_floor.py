"""Measure the transaction that a verdict waits for, without the driver: the same statements in bare sqlite3.

A search on the local executor is recorded: a copy of the database before a report, and the statements of all transactions from
then on. Then these transactions are carried out again on the copy, one after another, with a pause before each as between two
reports.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.report_trial import search, trial

Statement = tuple[str, Sequence[Any], bool]  # SQL, its parameters, or the rows of an executemany, and whether it is one
_SKIPPED = 20  # the first transactions insert rows that later ones only update


def transaction_s(reports: int) -> float:
    """Return the median seconds from BEGIN to the end of COMMIT of the transaction that a report at a milestone needs."""
    with tempfile.TemporaryDirectory() as home:
        before = os.path.join(home, "before.db")
        transactions = _recorded(home, reports, before)
        return statistics.median(_replayed(before, transactions))


def _recorded(home: str, reports: int, before: str) -> list[list[Statement]]:
    os.environ["TUNER_HOME"] = home
    from tuner.domain.events import Reported
    from tuner.store.sql.cursor import Cursor
    from tuner.store.writing import writer

    transactions: list[list[Statement]] = []
    real_init, real_write = Cursor.__init__, writer.Writer.write
    recording: list[Statement] | None = None

    def init(self: Any, raw: Any, backend: str) -> None:
        real_init(self, raw, backend)
        execute, executemany = self.execute, self.executemany

        def executed(sql: str, parameters: Sequence[Any] = ()) -> Any:
            if recording is not None:
                recording.append((sql, tuple(parameters), False))
            return execute(sql, parameters)

        def executed_many(sql: str, rows: Any) -> Any:
            rows = list(rows)
            if recording is not None:
                recording.append((sql, rows, True))
            return executemany(sql, rows)

        self.execute, self.executemany = executed, executed_many

    def write(self: Any, cursor: Any, batch: Any, now: float) -> Any:
        nonlocal recording
        reported = sum(isinstance(entry, Reported) for _, entry in batch.log)
        seen.append(reported)
        if sum(seen) <= _SKIPPED:
            return real_write(self, cursor, batch, now)
        if not transactions:
            with sqlite3.connect(os.path.join(home, "tuner.db")) as source, sqlite3.connect(before) as copy:
                source.backup(copy)  # it sees what is committed
        recording = []
        transactions.append(recording)
        try:
            return real_write(self, cursor, batch, now)
        finally:
            recording = None

    seen: list[int] = []
    patched: Callable[..., Any] = init
    Cursor.__init__, writer.Writer.write = patched, write  # type: ignore[method-assign]
    try:
        search(trial, {"reports": reports, "work_s": 0.0005}, "local")
    finally:
        Cursor.__init__, writer.Writer.write = real_init, real_write  # type: ignore[method-assign]
    return transactions[:-2]  # not those that end the trial and the search


def _replayed(path: str, transactions: list[list[Statement]]) -> list[float]:
    """Carry out the transactions in the database, with the settings of the store. Return the seconds of each."""
    took = []
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode=wal", "synchronous=normal", "foreign_keys=on", "cache_size=-16384"):
        connection.execute(f"pragma {pragma}")
    cursor = connection.cursor()
    for statements in transactions:
        time.sleep(0.0005)  # a report comes after some work, which cools the caches
        begun = time.perf_counter()
        cursor.execute("BEGIN IMMEDIATE")
        for sql, parameters, many in statements:
            if many:
                cursor.executemany(sql, parameters)
            else:
                cursor.execute(sql, parameters)
                cursor.fetchall()
        cursor.execute("COMMIT")
        took.append(time.perf_counter() - begun)
    [(points,)] = connection.execute("select count(*) from metric_point").fetchall()
    connection.close()
    assert points >= 5 * len(transactions), "the transactions have written the points of their reports"
    return took
