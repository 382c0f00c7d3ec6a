"""Record when code bundles were last used. The bundles themselves are files in the storage of a service."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tuner.store.sql.database import Database, at

LEASE_S = 600.0
"""Seconds after which a deletion that has not finished counts as interrupted, so that another process may continue it."""

_TOUCH = "UPDATE bundle SET used_at = ? WHERE sha256 = ? AND used_at < ? AND deleting_since IS NULL"
_LEAVING = "SELECT 1 FROM bundle WHERE sha256 = ? AND deleting_since IS NOT NULL"
_NOTICE = "INSERT INTO bundle (sha256, used_at) VALUES (?, ?) ON CONFLICT (sha256) DO NOTHING"
_OLD = """
SELECT sha256 FROM bundle WHERE (deleting_since IS NULL AND used_at < ?) OR deleting_since < ? ORDER BY sha256"""
# A spec names a bundle by its URI, which ends in /bundles/SHA256.zip.
_BEGIN = """
UPDATE bundle SET deleting_since = ? WHERE sha256 = ? AND (deleting_since < ? OR (
  deleting_since IS NULL AND used_at < ?
  AND NOT EXISTS (SELECT 1 FROM experiment e WHERE e.spec LIKE ? OR e.changes LIKE ?)))"""
_TAKE_OVER = "UPDATE bundle SET deleting_since = ? WHERE sha256 = ? AND deleting_since < ?"
_FINISH = "DELETE FROM bundle WHERE sha256 = ? AND deleting_since = ?"


class Bundles:
    """The times when bundles were last used. Call `touch` before you use a bundle, and then check that the file exists.

    The files of a bundle are deleted between two transactions, so that no other writer waits for a slow storage. The first
    marks the bundle, so that nobody uses it any more. The second removes the bundle's row.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def touch(self, names: Iterable[str], now: float | None = None) -> set[str]:
        """Record that these bundles are used now, so that `prune` does not delete them.

        Return the bundles that are being deleted. Do not use these, even if their files still exist. Bundles that are not in
        the database are ignored.
        """
        leaving = set()
        with self._database.write() as cursor:
            for name in sorted(names):  # the same order in all processes, to avoid deadlocks
                cursor.execute(_TOUCH, (at(now), name, at(now)))
                if cursor.rows(_LEAVING, (name,)):
                    leaving.add(name)
        return leaving

    def add(self, name: str, now: float | None = None) -> None:
        """Record that a new bundle has been stored."""
        with self._database.write() as cursor:
            cursor.execute(_NOTICE, (name, at(now)))

    def prune(
        self, stored: Iterable[str], before: float, delete: Callable[[str], bool], now: float | None = None
    ) -> int:
        """Delete the bundles last used before `before` that no experiment refers to. Return how many were deleted.

        If `delete` raises an error, its bundle stays marked, and a later call deletes it.

        Args:
            stored: the SHA-256 of each bundle in the storage. A bundle that is not in the database yet is recorded as used at
                `now`.
            before: only bundles that were last used earlier than this are deleted.
            delete: deletes the files of a bundle, and returns whether there were any. It is called outside of transactions.
            now: the current time.
        """
        with self._database.write() as cursor:
            for name in sorted(stored):
                cursor.execute(_NOTICE, (name, at(now)))
        with self._database.cursor() as (cursor, _):
            old = [row[0] for row in cursor.rows(_OLD, (before, at(now) - LEASE_S))]
        count = 0
        for name in old:
            since, pattern = at(now), f"%/bundles/{name}.zip%"
            with self._database.write() as cursor:
                cursor.execute(_BEGIN, (since, name, since - LEASE_S, before, pattern, pattern))
                begun = cursor.rowcount == 1
            if begun and self._finish(name, since, delete):
                count += 1
        return count

    def finish(self, name: str, delete: Callable[[str], bool], now: float | None = None) -> bool:
        """Continue the deletion of a bundle if it was interrupted. Return whether the bundle is deleted now."""
        since = at(now)
        with self._database.write() as cursor:
            cursor.execute(_TAKE_OVER, (since, name, since - LEASE_S))
            taken_over = cursor.rowcount == 1
        if taken_over:
            self._finish(name, since, delete)
        return taken_over

    def _finish(self, name: str, since: float, delete: Callable[[str], bool]) -> bool:
        existed = delete(name)
        with self._database.write() as cursor:
            cursor.execute(_FINISH, (name, since))
        return existed
