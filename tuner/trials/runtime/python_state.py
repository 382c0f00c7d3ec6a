"""Restore the process-wide state of Python and its standard library after a trial."""

from __future__ import annotations

import builtins
import gc
import itertools
import logging
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HOOKS = ("stdin", "stdout", "stderr", "excepthook", "displayhook")
_INSTALLED = ("site-packages", "dist-packages")


class PythonState:
    """The state at the time when this object is created."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._directory = os.getcwd()
        self._path = list(sys.path)
        self._argv = list(sys.argv)
        self._hooks = {name: getattr(sys, name) for name in _HOOKS}
        self._excepthook_of_threads = threading.excepthook
        self._print = builtins.print
        self._filters = list(warnings.filters)
        self._recursion_limit = sys.getrecursionlimit()
        self._collects = gc.isenabled()
        self._thresholds = gc.get_threshold()
        self._socket_timeout = socket.getdefaulttimeout()
        self._temporary = tempfile.tempdir
        self._start_method = multiprocessing.get_start_method(allow_none=True)
        self._umask = _umask()
        root = logging.getLogger()
        self._logging = (root.level, list(root.handlers), root.manager.disable)
        self.note_loggers()

    def note_loggers(self) -> None:
        """Remember the handlers of all loggers, and which modules are imported. Call this before each training function.

        `restore` removes the handlers that the function adds.
        """
        self._handlers = {name: list(logger.handlers) for name, logger in _loggers() if logger.handlers}
        self._imported = len(sys.modules)

    def environment(self) -> dict[str, str]:
        """Return the environment variables that the process had."""
        return self._environment

    def restore(self) -> None:
        """Restore the state."""
        if os.environ != self._environment:
            for name in os.environ.keys() - self._environment.keys():
                del os.environ[name]
            os.environ.update(self._environment)
        os.chdir(self._directory)
        os.umask(self._umask)
        sys.path[:] = self._path
        sys.argv[:] = self._argv
        # init_process_group wraps the current hook, so without these lines the hooks would eventually nest too deeply. Some
        # training scripts wrap `print` in the same way.
        for name, hook in self._hooks.items():
            setattr(sys, name, hook)
        threading.excepthook = self._excepthook_of_threads
        builtins.print = self._print
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                delattr(sys, name)
        sys.setrecursionlimit(self._recursion_limit)
        gc.set_threshold(*self._thresholds)
        if gc.isenabled() != self._collects:
            (gc.enable if self._collects else gc.disable)()
        socket.setdefaulttimeout(self._socket_timeout)
        tempfile.tempdir = self._temporary
        if multiprocessing.get_start_method(allow_none=True) != self._start_method:
            multiprocessing.set_start_method(self._start_method, force=True)
        warnings.filters[:] = self._filters  # type: ignore[index]
        self._restore_logging()

    def _restore_logging(self) -> None:
        root = logging.getLogger()
        level, handlers, disabled = self._logging
        if root.level != level:  # a change clears the caches of all loggers
            root.setLevel(level)
        root.handlers[:] = handlers
        if root.manager.disable != disabled:
            logging.disable(disabled)
        # Functions that set up a logger add a handler at each call. Without this, the second trial's lines would be
        # logged twice, and so on.
        for name, logger in _loggers():
            before = self._handlers.get(name, [])
            if logger.handlers != before and not self._is_of_library(name):
                logger.handlers[:] = [handler for handler in logger.handlers if handler in before]

    def _is_of_library(self, name: str) -> bool:
        """Return whether a logger is that of an installed library, or of a module that the training function has imported.

        Their handlers stay, because a module is imported only once.
        """
        package = name.partition(".")[0]
        if package not in sys.modules:
            return False
        file = getattr(sys.modules[package], "__file__", None) or ""
        imported_since = package in itertools.islice(sys.modules, self._imported, None)
        return imported_since or any(part in _INSTALLED for part in Path(file).parts)


def _loggers() -> Iterator[tuple[str, Any]]:
    for name, logger in list(logging.Logger.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            yield name, logger


def _umask() -> int:
    """Return the umask, which can be read only by changing it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
