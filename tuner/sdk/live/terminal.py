"""Handle a terminal that is closed while a search runs."""

from __future__ import annotations

import contextlib
import errno
import os
import termios


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
