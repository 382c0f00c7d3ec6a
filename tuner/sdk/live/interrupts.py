"""Ctrl-C while a search runs."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Interrupts:
    """Counts presses of Ctrl-C. The first press calls `pause`; the caller acts on the second.

    Outside a `with interrupts.heard()` block, for example while Ray starts, Ctrl-C raises KeyboardInterrupt as usual.
    """

    def __init__(self, pause: Callable[[], None]) -> None:
        self._pause = pause
        self.count = 0
        self.news = False
        self._heard = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._take)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Count presses of Ctrl-C within this block. The caller must check the count often."""
        self._heard = True
        try:
            yield
        finally:
            self._heard = False

    def _take(self, number: int, frame: Any) -> None:
        if not self._heard:
            raise KeyboardInterrupt
        self.count += 1
        if self.count == 1:
            self.news = True
            self._pause()
        else:
            print("ending at once", file=sys.stderr)
