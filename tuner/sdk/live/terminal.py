"""Handle a terminal that is closed, and a reader of the output that goes away, while a search runs."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import termios
from typing import IO

from rich.console import Console


class LastingConsole(Console):
    """A console whose reader may go away, as in ``tuner run ... | head -1``. The search then continues without output."""

    def on_broken_pipe(self) -> None:  # Rich's own method raises SystemExit
        _discard(self.file)


def tell(text: str, file: IO[str] | None = None) -> None:
    """Print a line to a stream, by default stdout. If its reader has gone away, discard what is written there from now on."""
    file = sys.stdout if file is None else file
    try:
        print(text, file=file, flush=True)
    except BrokenPipeError:
        _discard(file)


def _discard(file: IO[str]) -> None:
    """Send what is written to a stream to /dev/null, including what the stream has not yet written."""
    with contextlib.suppress(OSError, ValueError):  # the stream has no descriptor
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nothing, file.fileno())
        finally:
            os.close(nothing)


def leave_lost_terminal() -> bool:
    """Discard the output if its terminal is gone, since each write would fail. Return True if it is gone."""
    lost = False
    for descriptor in (1, 2):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                lost = True
                nothing = os.open(os.devnull, os.O_RDWR)
                with contextlib.suppress(OSError):
                    os.dup2(nothing, descriptor)
                os.close(nothing)
    return lost
