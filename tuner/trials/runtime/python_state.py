"""Restore the process-wide state of Python and its standard library after a trial."""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import functools
import gc
import logging
import multiprocessing
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from tuner.trials.runtime.settings import Setting, attribute

_STREAMS = ("stdin", "stdout", "stderr")
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)  # `signal.alarm` sets the first


class PythonState:
    """The state when this object was created, and the changes that the user's modules make when they are imported.

    A module is imported once, so its changes must stay for later trials. Those of a training function must not.
    """

    def __init__(self) -> None:
        self._settings = _settings()
        self._values = self.read()
        self._directory = _directory()
        self._replaced: list[Any] = []
        self.handlers = _Handlers()

    def read(self) -> dict[str, Any]:
        """Return the current value of each setting."""
        return {name: get() for name, (get, _) in self._settings.items()}

    def adopt(self, before: dict[str, Any]) -> None:
        """Keep what has changed since `before` was read, instead of restoring it after the trial."""
        for name, value in self.read().items():
            if name == "environment":
                for variable in value.keys() | before[name].keys():
                    if value.get(variable) != before[name].get(variable):
                        _put(self._values[name], variable, value.get(variable))
            elif value != before[name]:
                self._values[name] = value

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that `restore` restores."""
        return self._values["environment"]  # type: ignore[no-any-return]

    def restore(self) -> str | None:
        """Restore the state. Return None, or the reason why the process should not be reused."""
        faulthandler.cancel_dump_traceback_later()  # it may also be set to end the process
        _enter(self._directory)
        for name, (get, set_) in self._settings.items():
            found = get()
            if found == self._values[name]:
                continue
            if name in _STREAMS and found is not None:
                # When a stream is freed, it closes its file, which may also be the file of the stream to restore.
                self._replaced.append(found)
                with contextlib.suppress(Exception):  # the stream is closed, or its class is the trial's own
                    found.flush()
            set_(self._values[name])
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                delattr(sys, name)
        return _unusable_stream()


class _Handlers:
    """Removes the handlers that an earlier trial has added to a logger as soon as the present trial adds its own.

    Many training functions set up a logger. Without this, the second trial's lines would be logged twice, and so on. A
    logger that is set up once for all trials, as libraries do, keeps its handlers. The handlers of the root logger are a
    setting of `PythonState`.
    """

    def __init__(self) -> None:
        self._trial = 0
        self._added: dict[str, list[tuple[int, logging.Handler]]] = {}
        add = getattr(logging.Logger.addHandler, "__wrapped__", logging.Logger.addHandler)

        @functools.wraps(add)
        def add_handler(logger: logging.Logger, hdlr: logging.Handler) -> None:  # the name in Python's own method
            if self._trial and not isinstance(logger, logging.RootLogger):
                self._drop_earlier(logger)
                self._added.setdefault(logger.name, []).append((self._trial, hdlr))
            add(logger, hdlr)

        logging.Logger.addHandler = add_handler  # type: ignore[assignment, method-assign]

    def begin_trial(self) -> None:
        """Attribute the handlers that are added from now on to a new trial."""
        self._trial += 1

    def _drop_earlier(self, logger: logging.Logger) -> None:
        for trial, handler in self._added.get(logger.name, ()):
            if trial != self._trial and handler in logger.handlers:
                logger.removeHandler(handler)
                with contextlib.suppress(Exception):  # its stream is closed, or its class is the trial's own
                    handler.flush()
        self._added[logger.name] = [(t, handler) for t, handler in self._added.get(logger.name, ()) if t == self._trial]


def _settings() -> dict[str, Setting]:
    root = logging.getLogger()
    return {
        "timers": (_running_timers, _stop_timers),
        "environment": (lambda: dict(os.environ), _set_environment),
        # Comes after the environment, where `tzset` looks the time zone up.
        "time zone": (lambda: (time.tzname, time.timezone, time.altzone), lambda zone: time.tzset()),
        "module search path": (lambda: list(sys.path), lambda path: sys.path.__setitem__(slice(None), path)),
        "arguments": (lambda: list(sys.argv), lambda arguments: sys.argv.__setitem__(slice(None), arguments)),
        "umask": (_umask, os.umask),
        # init_process_group wraps the current hook, so the hooks would eventually nest too deeply. Some training scripts
        # wrap `print` in the same way.
        **{name: attribute(sys, name) for name in (*_STREAMS, "excepthook", "displayhook")},
        "thread hook": attribute(threading, "excepthook"),
        "print": attribute(builtins, "print"),
        "warning filters": (lambda: list(warnings.filters), _set_filters),
        "recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
        "garbage collection": (gc.isenabled, lambda on: (gc.enable if on else gc.disable)()),
        "garbage thresholds": (gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds)),
        "socket timeout": (socket.getdefaulttimeout, socket.setdefaulttimeout),
        "temporary directory": attribute(tempfile, "tempdir"),
        "start method": (
            lambda: multiprocessing.get_start_method(allow_none=True),
            lambda method: multiprocessing.set_start_method(method, force=True),
        ),
        "log level": (lambda: root.level, root.setLevel),  # a change clears the caches of all loggers
        "log handlers": (
            lambda: list(root.handlers),
            lambda handlers: root.handlers.__setitem__(slice(None), handlers),
        ),
        "disabled log levels": (lambda: root.manager.disable, logging.disable),
    }


def _directory() -> str:
    """Return the working directory of this process. If it has been deleted, change to the root directory first."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        os.chdir("/")
        return "/"


def _enter(directory: str) -> None:
    """Change to this directory, or to the root directory if it has been deleted since."""
    try:
        os.chdir(directory)
    except FileNotFoundError:
        os.chdir("/")


def _put(variables: Any, name: str, value: str | None) -> None:
    if value is None:
        variables.pop(name, None)
    else:
        variables[name] = value


def _set_environment(wanted: dict[str, str]) -> None:
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)


def _running_timers() -> list[bool]:
    return [signal.getitimer(timer) != (0.0, 0.0) for timer in _TIMERS]


def _stop_timers(wanted: list[bool]) -> None:
    """Stop the timers that are not wanted, since their signals would end a later trial."""
    for timer, runs in zip(_TIMERS, wanted, strict=True):
        if not runs:
            signal.setitimer(timer, 0)


def _umask() -> int:
    """Return the umask. Where only a change returns it, another thread may create a private file meanwhile."""
    with contextlib.suppress(OSError):
        if found := re.search(
            r"^Umask:\s*([0-7]+)$",
            Path("/proc/self/status").read_text(encoding="utf-8", errors="replace"),
            re.MULTILINE,
        ):
            return int(found[1], 8)
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _set_filters(filters: list[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]


def _unusable_stream() -> str | None:
    """Return a reason why the process should not be reused if the trial has closed or detached one of its streams."""
    for name in ("stdout", "stderr"):
        try:
            if (stream := getattr(sys, name)) is not None:
                stream.flush()
        except Exception as error:
            return f"its sys.{name} cannot be used any more ({error})"
    return None
