"""Suppress what Optuna says of its own work while tuner uses it, and nothing that anybody else says.

Searchers run in threads of the user's script and of the service. So nothing here changes the filters of warnings or the level of
Optuna's loggers for a time: other threads would lose their messages, or two threads would restore each other's settings.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Iterator
from typing import Any


class _Thread(threading.local):
    blocks = 0
    """The number of `quiet` blocks that this thread is in."""


_thread = _Thread()


class _InQuiet(type):
    def __subclasscheck__(cls, subclass: type) -> bool:
        return _thread.blocks > 0


class _Unwanted(metaclass=_InQuiet):
    """A category of warnings that contains every warning of a thread in a `quiet` block, and none of any other thread."""


_FILTER: Any = ("ignore", None, _Unwanted, None, 0)
"""The filter that `warnings.simplefilter` makes."""


def _is_wanted(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR or not _thread.blocks


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings, and Optuna's messages below the level of errors, in this thread only.

    Messages that a user has sent to other handlers, with `optuna.logging.enable_propagation`, still reach these.
    """
    # Look each time, since others may have changed the filters or the handlers. A new filter lets Python show again what it shows
    # once for each place in the code, so it is set only if it is not the first.
    if warnings.filters[:1] != [_FILTER]:
        warnings.simplefilter("ignore", _Unwanted)  # type: ignore[arg-type]
    for handler in logging.getLogger("optuna").handlers:
        handler.addFilter(_is_wanted)
    _thread.blocks += 1
    try:
        yield
    finally:
        _thread.blocks -= 1
