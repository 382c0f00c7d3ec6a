"""Record when code bundles were last used. The bundles themselves are files in the storage of a service."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tuner.store.sql.database import Database, at

_TOUCH = "UPDATE bundle SET used_at = ? WHERE sha256 = ? AND used_at < ?"
_NOTICE = "INSERT INTO bundle (sha256, used_at) VALUES (?, ?) ON CONFLICT (sha256) DO NOTHING"
_OLD = "SELECT sha256 FROM bundle WHERE used_at < ? ORDER BY sha256"
# A spec names a bundle by its URI, which ends in /bundles/SHA256.zip.
_DROP = """
DELETE FROM bundle WHERE sha256 = ? AND used_at < ?
AND NOT EXISTS (SELECT 1 FROM experiment e WHERE e.spec LIKE ? OR e.changes LIKE ?)"""


class Bundles:
    """The times when bundles were last used. Call `touch` before you use a bundle, and then check that the file exists."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def touch(self, names: Iterable[str], now: float | None = None) -> None:
        """Record that these bundles are used now, so that `prune` does not delete them. Wait for a `prune` that is in progress.

        Bundles that are not in the database are ignored.
        """
        with self._database.write() as cursor:
            for name in sorted(names):  # the same order in all processes, to avoid deadlocks
                cursor.execute(_TOUCH, (at(now), name, at(now)))

    def add(self, name: str, now: float | None = None) -> None:
        """Record that a new bundle has been stored."""
        with self._database.write() as cursor:
            cursor.execute(_NOTICE, (name, at(now)))

    def prune(
        self, stored: Iterable[str], before: float, delete: Callable[[str], bool], now: float | None = None
    ) -> int:
        """Delete the bundles last used before `before` that no experiment refers to. Return how many were deleted.

        Args:
            stored: the SHA-256 of each bundle in the storage. A bundle that is not in the database yet is recorded as used at
                `now`.
            before: only bundles that were last used earlier than this are deleted.
            delete: deletes the files of a bundle, and returns whether there were any. It is called before the commit, so that a
                process that touches the bundle at the same time does not find files that are about to be deleted.
            now: the current time.
        """
        with self._database.write() as cursor:
            for name in sorted(stored):
                cursor.execute(_NOTICE, (name, at(now)))
        with self._database.cursor() as (cursor, _):
            old = [row[0] for row in cursor.rows(_OLD, (before,))]
        count = 0
        for name in old:
            with self._database.write() as cursor:
                pattern = f"%/bundles/{name}.zip%"
                cursor.execute(_DROP, (name, before, pattern, pattern))
                if cursor.rowcount == 1 and delete(name):
                    count += 1
        return count
