"""Keep a search running if its output cannot be written: to a closed terminal, a reader that has gone away, or a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import termios
from collections.abc import Iterator
from typing import IO, Any, cast

from rich.console import Console

_told: set[str] = set()
"""The errors of which stderr has been told."""


class LastingConsole(Console):
    """A console whose output may fail, as in ``tuner run ... | head -1``. The search then continues without that output."""

    @property
    def file(self) -> IO[str]:
        return cast("IO[str]", _Lasting(super().file))

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def on_broken_pipe(self) -> None:  # Rich's own method raises SystemExit
        _discard(self.file)


class _Lasting:
    """A stream that escapes the characters that its encoding lacks, and drops what cannot be written, as on a full disk.

    Only a BrokenPipeError is raised.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        with self._lasting():
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        with self._lasting():
            self._stream.flush()

    @contextlib.contextmanager
    def _lasting(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except (OSError, ValueError) as error:  # ValueError: the script has closed the stream
            why = (error.strerror if isinstance(error, OSError) else "") or str(error)
            if why not in _told:
                _told.add(why)
                with contextlib.suppress(Exception):  # stderr may have the same trouble
                    print(f"the search continues, but its output is lost: {why}", file=sys.stderr, flush=True)


def tell(text: str, file: IO[str] | None = None) -> None:
    """Print a line to a stream, by default stdout. If its reader has gone away, discard what is written there from now on."""
    file = sys.stdout if file is None else file
    if file is None:  # it was closed before Python started
        return
    try:
        print(text, file=cast("IO[str]", _Lasting(file)), flush=True)
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
