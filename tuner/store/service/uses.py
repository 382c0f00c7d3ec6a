"""Record when stored code was last used. The files themselves are in the storage of a service or of an experiment."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable

from tuner.store.sql.database import Database, at

LEASE_S = 600.0
"""Seconds after which a deletion that has not finished counts as interrupted, so that another process may continue it."""


class Uses:
    """The times when files with code were last used. Call `touch` before you use a file, and then check that it exists.

    Files are deleted between two transactions, so that no other writer waits for slow storage. The first transaction marks the
    file, so that nobody uses it any more. The second removes its row.

    A file counts as used while an experiment's spec, or a later change to it, contains a URI that ends in /FOLDER/NAME.
    """

    def __init__(self, database: Database, table: str, key: str, folder: str, name: Callable[[str], str]) -> None:
        """Keep the times in the given table.

        Args:
            database: the database.
            table: the table with a row for each file.
            key: the column with the key of a file.
            folder: the last folder in the URI of a file.
            name: takes a file's key, and returns the last part of the file's URI without its query.
        """
        self._database, self._folder, self._name = database, folder, name
        old = "(deleting_since IS NULL AND used_at < ?) OR deleting_since < ?"
        self._touch = f"UPDATE {table} SET used_at = ? WHERE {key} = ? AND used_at < ? AND deleting_since IS NULL"
        self._leaving = f"SELECT 1 FROM {table} WHERE {key} = ? AND deleting_since IS NOT NULL"
        self._startswith = f"SELECT {key} FROM {table} WHERE substr({key}, 1, ?) = ? ORDER BY {key}"
        self._notice = f"INSERT INTO {table} ({key}, used_at) VALUES (?, ?) ON CONFLICT ({key}) DO NOTHING"
        self._old = f"SELECT {key}, deleting_since FROM {table} WHERE {old} ORDER BY {key}"
        self._begin = f"""
UPDATE {table} SET deleting_since = ? WHERE {key} = ? AND (deleting_since < ? OR (
  deleting_since IS NULL AND used_at < ?
  AND NOT EXISTS (SELECT 1 FROM experiment e WHERE e.spec LIKE ? OR e.changes LIKE ?)))"""
        self._take_over = f"UPDATE {table} SET deleting_since = ? WHERE {key} = ? AND deleting_since < ?"
        self._remove = f"DELETE FROM {table} WHERE {key} = ? AND deleting_since = ?"

    def touch(self, keys: Iterable[str], now: float | None = None) -> set[str]:
        """Record that these files are being used now, so that `prune` does not delete them.

        Return the files that are being deleted. Do not use them, even if they still exist. Files that are not in the database
        are ignored.
        """
        leaving: set[str] = set()
        if not (ordered := sorted(keys)):
            return leaving
        with self._database.write() as cursor:
            for key in ordered:  # the same order in all processes, to avoid deadlocks
                cursor.execute(self._touch, (at(now), key, at(now)))
                if cursor.rows(self._leaving, (key,)):
                    leaving.add(key)
        return leaving

    def find(self, start: str, end: str, now: float | None = None) -> str | None:
        """Return a usable key with this prefix and suffix, and record that it is being used now.

        Return None if there is none.
        """
        with self._database.write() as cursor:
            for (key,) in cursor.rows(self._startswith, (len(start), start)):
                cursor.execute(self._touch, (at(now), key, at(now)))
                if key.endswith(end) and not cursor.rows(self._leaving, (key,)):
                    return str(key)
        return None

    def add(self, key: str, now: float | None = None) -> None:
        """Record that a new file has been stored."""
        with self._database.write() as cursor:
            cursor.execute(self._notice, (key, at(now)))

    def prune(
        self, stored: Iterable[str], before: float, delete: Callable[[str], bool], now: float | None = None
    ) -> int:
        """Delete the files last used before `before` that no experiment refers to. Return how many were deleted.

        If `delete` raises an error, its file stays marked, and a later call deletes it.

        Args:
            stored: the key of each file in the storage. A file that is not in the database yet is recorded as used at `now`.
            before: only files that were last used earlier than this are deleted.
            delete: deletes a file, and returns whether it existed. It is called outside of transactions.
            now: the current time.
        """
        if noticed := sorted(stored):
            with self._database.write() as cursor:
                for key in noticed:
                    cursor.execute(self._notice, (key, at(now)))
        with self._database.cursor() as (cursor, _):
            old = cursor.rows(self._old, (before, at(now) - LEASE_S))
        referred = self._referred() if old else ()
        count = 0
        for key, begun_at in old:
            if (name := self._name(key)) in referred and begun_at is None:
                continue
            since, pattern = at(now), f"%/{self._folder}/{name}%"
            with self._database.write() as cursor:
                cursor.execute(self._begin, (since, key, since - LEASE_S, before, pattern, pattern))
                begun = cursor.rowcount == 1
            if begun and self._finish(key, since, delete):
                count += 1
        return count

    def finish(self, key: str, delete: Callable[[str], bool], now: float | None = None) -> bool:
        """Continue the deletion of a file if it was interrupted. Return whether the file is deleted now."""
        since = at(now)
        with self._database.write() as cursor:
            cursor.execute(self._take_over, (since, key, since - LEASE_S))
            taken_over = cursor.rowcount == 1
        if taken_over:
            self._finish(key, since, delete)
        return taken_over

    def _referred(self) -> Container[str]:
        """Return the names of the files that experiments refer to. One scan of all specs is cheaper than a scan for each file."""
        pattern = re.compile(rf'/{self._folder}/([^/"?\\]+)')
        among = f"%/{self._folder}/%"
        with self._database.cursor() as (cursor, _):
            rows = cursor.rows(
                "SELECT spec, changes FROM experiment WHERE spec LIKE ? OR changes LIKE ?", (among, among)
            )
        return {name for row in rows for text in row if text for name in pattern.findall(text)}

    def _finish(self, key: str, since: float, delete: Callable[[str], bool]) -> bool:
        existed = delete(key)
        with self._database.write() as cursor:
            cursor.execute(self._remove, (key, since))
        return existed


def name_in(uri: str) -> str:
    """Return the last part of a URI, without its query. A path on a disk has no query, but its names may contain ``?``."""
    path = uri if uri.startswith("file://") else uri.partition("?")[0]
    return path.rpartition("/")[2]
