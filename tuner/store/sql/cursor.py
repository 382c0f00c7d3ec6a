"""Run plain SQL that both databases understand, with `?` for parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class Cursor:
    """A cursor that takes `?` for parameters with both databases."""

    def __init__(self, raw: Any, backend: str) -> None:
        self._raw = raw
        self.backend = backend
        # The hashes of the code that this transaction has stored; see `tuner.store.code`.
        self.stored_code: set[str] = set()
        self.execute = raw.execute if backend == "sqlite" else self._execute
        self.executemany = raw.executemany if backend == "sqlite" else self._executemany

    def _execute(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        return self._raw.execute(_named(sql), parameters)

    def _executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> Any:
        return self._raw.executemany(_named(sql), rows)

    def another(self) -> Cursor:
        """Return a second cursor in the same transaction, which leaves the `rowcount` of this cursor unchanged."""
        return Cursor(self._raw.connection.cursor(), self.backend)

    def pipelined(self) -> AbstractContextManager[Any]:
        """Send statements to PostgreSQL without waiting for each. Errors can be raised as late as the end of the block."""
        return nullcontext() if self.backend == "sqlite" else self._raw.connection.pipeline()

    def insert(self, one: str, at_once: str, rows: list[tuple[Any, ...]]) -> None:
        """Insert many rows. SQLite gets them row by row; PostgreSQL gets one statement with a list for each column."""
        if self.backend == "sqlite" or len(rows) == 1:
            self.executemany(one, rows)
        else:
            self._execute(at_once, [list(column) for column in zip(*rows, strict=True)])

    @property
    def rowcount(self) -> int:
        return int(self._raw.rowcount)

    def value(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """Return the first column of the only row of the result, or None if the result has no row."""
        self.execute(sql, parameters)
        rows = self._raw.fetchall()
        return rows[0][0] if rows else None

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        self.execute(sql, parameters)
        return list(self._raw.fetchall())


_translated: dict[str, str] = {}


def _named(sql: str) -> str:
    try:
        return _translated[sql]
    except KeyError:
        return _translated.setdefault(sql, sql.replace("?", "%s"))
