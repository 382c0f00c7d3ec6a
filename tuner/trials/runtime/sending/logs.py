"""Write a rank's output to a log file. Each rank has one log file per segment."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import functools
import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from tuner.domain.logs import LogChunk
from tuner.trials.runtime.sending.log_shipper import LogShipper

_NOISE = re.compile(r"\[[-0-9]{10} [:,0-9]{12} [A-Z] \d+ \d+\] \S+\.cc:\d+:|Extension modules: ")
"""Lines that Ray's C++ code and `faulthandler` print when a process crashes, and that tell nothing about user code."""
EXIT_NOTE = "tuner: os._exit"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The errors of a write if the disk is full, the user's quota is used up, or the file may not become larger."""


class Capture:
    """Redirects the process's stdout and stderr to the file `path`, from `begin` to `end`.

    The file descriptors themselves are redirected, so the output of C code and of child processes is included.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._saved: tuple[int, int] | None = None
        self._shipper: LogShipper | None = None
        self._has_file = True

    def ship(self, shipper: LogShipper) -> None:
        """Start a shipper, which sends the log file to the driver until `end` is called. Call `begin` first."""
        self._shipper = shipper
        if not self._has_file:
            shipper.lack()
        shipper.start()

    def begin(self) -> None:
        _flush()
        file = self._opened()
        self._saved = (os.dup(1), os.dup(2))
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
        _note_sigterm()

    def _opened(self) -> int:
        """Return a file descriptor to write the log to. If the disk is too full for a new file, there is no log."""
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._has_file = False
            return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def end(self, take_rest: bool = False) -> Sequence[LogChunk]:
        """Restore the file descriptors, and let the shipper send the unsent part of the log.

        take_rest: True to return the unsent part instead, if it is short. The caller must then send it.
        """
        if self._saved is None:
            return ()
        faulthandler.unregister(signal.SIGTERM)
        _flush()
        for saved, standard in zip(self._saved, (1, 2), strict=True):
            with contextlib.suppress(OSError):  # training code may have closed all files
                os.dup2(saved, standard)
                os.close(saved)
        self._saved = None
        dropped = sum(output.forget() for output in _outputs)
        if self._shipper is None:
            return ()
        if not self._has_file:
            self._shipper.note(_NO_FILE)
        elif dropped:
            self._shipper.note(_said(dropped))
        if take_rest:
            return self._shipper.rest()
        self._shipper.finish()
        return ()

    def tail(self, lines: int) -> str:
        _flush()
        return tail(self.path, lines)


class _Output(io.FileIO):
    """Writes to stdout or stderr. Output for which the disk has no room is dropped, and a later line says how much.

    If the disk stays full until the segment ends, `Capture.end` adds the line to the log that is sent.
    """

    _dropped = 0  # bytes since the last write that succeeded

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        if self._dropped:
            said = _said(self._dropped)
            if self._write_what_fits(said) < len(said):
                self._dropped += size
                return size
        self._dropped = size - self._write_what_fits(data)
        return size

    def forget(self) -> int:
        """Return how many bytes were dropped since the last write that succeeded, and start again from 0."""
        found, self._dropped = self._dropped, 0
        return found

    def _write_what_fits(self, data: Any) -> int:
        """Write as much of the data as the disk has room for. Return the number of bytes."""
        rest, written = memoryview(data).cast("B"), 0
        try:
            # A write may take only a part of the data; then the next one fails.
            while written < len(rest) and (taken := super().write(rest[written:])):
                written += taken
        except OSError as error:
            if error.errno not in _FULL:
                raise
        return written


def _said(dropped: int) -> bytes:
    return f"\n[{dropped} bytes of output are missing, since the disk was full]\n".encode()


_NO_FILE = b"[the output is missing, since the disk was too full for a file]\n"
_outputs: list[_Output] = []
"""The files to which `keep_printing` has let stdout and stderr write."""
_earlier: list[Any] = []
"""The streams that `keep_printing` has replaced. They may own their file descriptors, and would close them when collected."""


def keep_printing() -> None:
    """Let `print` drop output while the disk with the log is full, instead of raising an error that would fail the trial."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if not hasattr(stream, "reconfigure") or _number_of(stream) != number:
            continue
        raw = _Output(number, "wb", closefd=False)
        raw.name = stream.name
        # Ray's stream, which is not a TextIOWrapper, flushes after each write.
        at_once = stream.write_through or not isinstance(stream, io.TextIOWrapper)
        buffer: Any = raw if at_once else io.BufferedWriter(raw)
        kept = io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=True, write_through=at_once)
        _earlier.append(stream)
        _outputs.append(raw)
        setattr(sys, name, kept)


def _number_of(stream: Any) -> int | None:
    """Return the file descriptor of a stream; None if it has none, as in a test."""
    try:
        return int(stream.fileno())
    except (OSError, ValueError):
        return None


def tail(path: str, lines: int, limit: int = 64 * 1024) -> str:
    """Return the last lines of a log file as a terminal would show them, or "" if the file does not exist."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    shown = [
        line.rstrip("\r").rpartition("\r")[2]  # a progress bar overwrites its line
        for line in text.split("\n")
        if not _NOISE.match(line)
    ]
    while shown and not shown[-1]:
        shown.pop()
    return "\n".join(shown[-lines:])


def note_exits() -> None:
    """Make `os._exit` write a line and a stack to the log. Otherwise a process that calls it would appear to have been killed."""
    real, owner = os._exit, os.getpid()

    def noted(status: int) -> NoReturn:
        if os.getpid() == owner:
            with contextlib.suppress(Exception):
                _flush()
                where = "".join(traceback.format_list(_user_frames(traceback.extract_stack()[:-1])[-12:]))
                os.write(2, f"{where}{EXIT_NOTE}({status}) was called\n".encode())
        real(status)

    os._exit = noted


SIGTERM_NOTE = re.compile(r"^Stack \(most recent call first\):\n(?:  .*\n?)+\Z", re.MULTILINE)
"""The stack at the end of the log of a process that SIGTERM has killed."""


def _note_sigterm() -> None:
    """Write the main thread's stack to stderr on SIGTERM, and then exit as usual.

    Without this, nobody could tell afterwards that it was SIGTERM. Forked child processes, which are often stopped with
    SIGTERM as a matter of course, write nothing.
    """
    faulthandler.register(signal.SIGTERM, file=2, all_threads=False, chain=True)
    _forget_in_children()


@functools.cache
def _forget_in_children() -> None:
    def forget() -> None:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            faulthandler.unregister(signal.SIGTERM)

    os.register_at_fork(after_in_child=forget)


OWN = str(Path(__file__).resolve().parents[2]) + os.sep
"""The folder of `tuner.trials`, to tell stack frames in it from those in user code."""


def _user_frames(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return the frames after the last frame in `tuner.trials`, or all frames if there are none after it."""
    ours = [i for i, frame in enumerate(frames) if frame.filename.startswith(OWN)]
    return frames[ours[-1] + 1 :] or frames if ours else frames


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, *_earlier):
        with contextlib.suppress(Exception):
            stream.flush()
