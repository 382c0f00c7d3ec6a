"""Check whether the user's modules have changed since this process imported them."""

from __future__ import annotations

import os
import sys
import time

_UNKNOWN = -1  # the recorded modification time of a file that may have changed after it was imported
_HOMES = (sys.prefix, sys.base_prefix, os.path.dirname(os.__file__))
# `sys.path` may name the folder of an environment by a link, and then the files of modules do, too.
_LIBRARIES = tuple({path + os.sep for home in _HOMES for path in (home, os.path.realpath(home))})
_given: frozenset[str] = frozenset()


def forking() -> None:
    """Note in a server that all present modules are those of the processes that it forks.

    Those processes do not watch them. A new process would have the same ones, even if the files have changed.
    """
    global _given
    _given = frozenset(sys.modules)


class Modules:
    """The files of the imported modules, with their modification times, except libraries and what `forking` has noted."""

    def __init__(self) -> None:
        self._stamps: dict[str, int] = {}
        self._known = set(_given)
        self._seen: tuple[int, str] = (0, "")  # the number of modules at the last call, and the newest of them
        self._noted_at = time.time_ns()

    def note(self) -> None:
        """Record the modules that have been imported since the last call to this method.

        If the file of such a module was also modified since the last call, the file counts as changed, because it may
        have been modified after the import.
        """
        seen = len(sys.modules), next(reversed(sys.modules))
        if seen == self._seen:  # there are thousands of modules, and most trials import none
            self._noted_at = time.time_ns()
            return
        self._seen = seen
        for name in sys.modules.keys() - self._known:
            self._known.add(name)
            file = getattr(sys.modules.get(name), "__file__", None)
            if isinstance(file, str) and file not in self._stamps and not file.startswith(_LIBRARIES):
                modified = _modified(file)
                self._stamps[file] = modified if modified <= self._noted_at else _UNKNOWN
        self._noted_at = time.time_ns()

    def stale(self) -> str | None:
        """Return a file that has changed since this process imported it, or None if there is none."""
        return next((file for file, stamp in self._stamps.items() if _modified(file) != stamp), None)


def _modified(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0
