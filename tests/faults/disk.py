"""A disk that loses what was not flushed to it when the power goes."""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

Entries = dict[str, int]


class Disk:
    """Remembers what was flushed of the files below a folder, and loses the rest on request.

    The model is that of a file system with an ordered journal of nothing: each new name that was not flushed (by a flush of its
    directory) may be lost, each deletion that was not flushed may be undone, and each file that was not flushed may be cut or
    full of zeros. Everything that is there at the beginning counts as flushed.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.fspath(root)
        self._entries: dict[int, Entries] = {}  # inode of a directory -> its names as they were flushed
        # Maps the inode of a file to its size and time of change when it was flushed.
        self._contents: dict[int, tuple[int, int]] = {}
        self._deleted: dict[str, bytes] = {}  # small files whose deletion was not flushed
        for where, _, names in os.walk(self.root):
            self._note(where)
            for name in names:
                self._note(os.path.join(where, name))

    def _note(self, path: str | int) -> None:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            self._entries[found.st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self._contents[found.st_ino] = found.st_size, found.st_mtime_ns

    @contextmanager
    def watched(self) -> Iterator[Disk]:
        """Watch the flushes and deletions of this process within a `with` block."""
        fsync, unlink = os.fsync, os.unlink

        def flush(descriptor: int) -> None:
            fsync(descriptor)
            self._note(descriptor)
            folder = os.readlink(f"/proc/self/fd/{descriptor}")
            for path in [path for path in self._deleted if os.path.dirname(path) == folder]:
                del self._deleted[path]

        def delete(path: str, *, dir_fd: int | None = None) -> None:
            if dir_fd is None and os.path.isfile(path):
                self._deleted[os.path.abspath(path)] = Path(path).read_bytes()
            unlink(path, dir_fd=dir_fd)

        os.fsync, os.unlink = flush, delete  # type: ignore[assignment]
        try:
            yield self
        finally:
            os.fsync, os.unlink = fsync, unlink

    def lose_power(self, seed: int) -> int:
        """Lose some of what was not flushed, at random. Return how many names and contents were lost."""
        draw, lost = random.Random(seed), 0
        for where, folders, names in os.walk(self.root):
            flushed = self._entries.get(os.stat(where).st_ino, {})
            for name in sorted([*folders, *names]):
                path = os.path.join(where, name)
                if flushed.get(name) != os.lstat(path).st_ino and draw.random() < 0.5:
                    shutil.rmtree(path) if name in folders else os.remove(path)
                    lost += 1
                elif name in names:
                    lost += self._spoil(path, draw)
            folders[:] = [name for name in folders if os.path.isdir(os.path.join(where, name))]
        for path, content in self._deleted.items():
            if os.path.isdir(os.path.dirname(path)) and not os.path.exists(path) and draw.random() < 0.5:
                Path(path).write_bytes(content)
                lost += 1
        return lost

    def _spoil(self, path: str, draw: random.Random) -> bool:
        found = os.stat(path)
        if self._contents.get(found.st_ino) == (found.st_size, found.st_mtime_ns) or draw.random() < 0.3:
            return False
        if draw.random() < 0.5:
            os.truncate(path, draw.randint(0, max(0, found.st_size - 1)))
        else:
            Path(path).write_bytes(bytes(found.st_size))
        return True
