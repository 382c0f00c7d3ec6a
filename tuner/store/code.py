"""Store pickled training functions, and the environment needed to unpickle or import them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sqlalchemy import func, literal, select

from tuner.errors import NotFound
from tuner.store.records import CodeRecord
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.database import Database, at
from tuner.store.sql.tables import code, dumps
from tuner.store.writing.rows import clean

# The update changes nothing, but it locks the row, so that deleting another experiment with this code does not delete the code.
# It must not name `hash`: experiments refer to it, so SQLite would look through all of them.
_INSERT = """
INSERT INTO code (hash, blob, space_blob, parts_blob, python, packages, sys_path, working_dir, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (hash) DO UPDATE SET created_at = code.created_at"""


class Code:
    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, record: CodeRecord, now: float | None = None) -> None:
        """Store a trainable. Do nothing if its hash is already stored."""
        with self._database.write() as cursor:
            put(cursor, record, at(now))

    def get(self, code_hash: str) -> CodeRecord:
        """Return the code with this hash. Raise NotFound if there is none."""
        with self._database.read() as connection:
            row = connection.execute(select(code).where(code.c.hash == code_hash)).mappings().first()
        if row is None:
            raise NotFound(f"no code with the hash {code_hash}")
        parts = dict(row)
        del parts["created_at"]
        return CodeRecord(**parts)

    def functions(self, mention: bytes) -> Iterator[bytes]:
        """Yield the pickled training functions of all experiments that contain these bytes."""
        if self._database.backend == "sqlite":
            at = func.instr(code.c.blob, mention)
        else:
            at = func.position(literal(mention).op("IN")(code.c.blob))
        with self._database.read() as connection:
            hashes = connection.execute(select(code.c.hash).where(at > 0)).scalars().all()
        for code_hash in hashes:
            with contextlib.suppress(NotFound):  # its last experiment has just been deleted
                if (blob := self.get(code_hash).blob) is not None:
                    yield blob


def put(cursor: Cursor, record: CodeRecord, now: float) -> None:
    """Insert a trainable in the caller's transaction, unless the transaction has already inserted it."""
    if record.hash in cursor.stored_code:
        return
    blobs = (record.blob, record.space_blob, record.parts_blob)
    where = (record.python, dumps(record.packages), dumps(list(record.sys_path)), clean(record.working_dir))
    cursor.execute(_INSERT, (record.hash, *blobs, *where, now))
    cursor.stored_code.add(record.hash)
