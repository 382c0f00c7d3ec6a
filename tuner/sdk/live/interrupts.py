"""Ctrl-C and other signals that ask a script to end while a search runs."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tuner.errors import StoreError
from tuner.sdk.live.terminal import leave_lost_terminal, tell

CTRL_C = "Ctrl-C"
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""The signals that `kill`, the end of a batch job and a closed terminal send."""


class Interrupts:
    """Counts presses of Ctrl-C, and notes SIGTERM and SIGHUP.

    The first of these signals calls `pause` with its name. If `pause` raises StoreError, as in an outage of the database, the
    signal raises SystemExit or, if it is Ctrl-C, KeyboardInterrupt. The caller must act on a later Ctrl-C, and must call
    `end_process` once the search is paused. Later SIGTERMs and SIGHUPs change nothing: shells, batch systems and `timeout`
    send them more than once.

    Handlers that the user has set stay in place, and signals that the process ignores, as under `nohup`, stay ignored.

    Outside a `with interrupts.heard()` block, for example while Ray starts, Ctrl-C raises KeyboardInterrupt as usual, and the
    other signals raise SystemExit.
    """

    def __init__(self, pause: Callable[[str], None], ending: Sequence[signal.Signals] = ENDING) -> None:
        self._pause = pause
        self._ending = ending
        self.count = 0
        self.news = ""
        """The name of the first signal, until the caller has told the user about it."""
        self.ends: signal.Signals | None = None
        """The signal that asked the process to end, if one did."""
        self.elsewhere = False
        """True while another process drives the search, and will continue when this one has ended."""
        self.pauses = False
        """True once the search has been asked to pause."""
        self._heard = False
        self._before: dict[signal.Signals, Any] = {}
        self._main = False

    def __enter__(self) -> Interrupts:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._take)
            self._take_free()
        return self

    def __exit__(self, *exc: object) -> None:
        for number, before in self._before.items():
            if signal.getsignal(number) == self._take:
                signal.signal(number, before)

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Count presses of Ctrl-C within this block. The caller must check the count often."""
        self._take_free()  # done again here, because Ray sets a handler when it starts
        self._heard = True
        try:
            yield
        finally:
            self._heard = False

    def end_process(self) -> None:
        """Raise SystemExit with the exit status that shells report for a signal if that signal asked the process to exit."""
        if self.ends is not None:
            raise SystemExit(128 + self.ends)

    def _take_free(self) -> None:
        """Take over each signal that has no handler, or only Ray's handler, which would end the process."""
        for number in self._ending if self._main else ():
            handler = signal.getsignal(number)
            if handler is signal.SIG_DFL or (getattr(handler, "__module__", None) or "").startswith("ray."):
                self._before[number] = signal.signal(number, self._take)

    def _take(self, number: int, frame: Any) -> None:
        if number == signal.SIGHUP:
            leave_lost_terminal()
        if number != signal.SIGINT:
            first, self.ends = self.ends is None, signal.Signals(number)
            if not self._heard:
                self.end_process()
            if not first or self.count:
                return
        elif not self._heard:
            raise KeyboardInterrupt
        self.count += 1
        if self.count == 1:
            self.news = CTRL_C if number == signal.SIGINT else signal.Signals(number).name
            try:
                self._pause(self.news)
                self.pauses = True
            except StoreError as error:
                why = str(error).partition("\n")[0]
                follows = (
                    "it continues, since another process drives it, and `tuner pause` can pause it later"
                    if self.elsewhere
                    else "it is stopped at once, and `tuner resume` continues it"
                )
                tell(f"the search cannot be paused, so {follows}: {why}", sys.stderr)
                self.end_process()
                raise KeyboardInterrupt from None
        else:
            tell(
                "leaving the search to the process that drives it" if self.elsewhere else "stopping at once", sys.stderr
            )
