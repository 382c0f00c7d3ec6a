"""Trace the memory that this process allocates, with memray if it is installed, or else with Python's tracemalloc.

memray sees what C and C++ code allocates as well, such as torch's tensors on the CPU. It runs in this process, so it needs
no special privileges; attaching it to another process would need ptrace.
"""

from __future__ import annotations

import contextlib
import importlib.util
import linecache
import os
import shutil
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

from tuner.trials.runtime.measures.speedscope import Frame, Stack

_DEEPEST = 256  # frames that are read of memray's stacks; the outermost of deeper ones are left out
_TRACED_FRAMES = 16  # frames that are kept for each block of memory
_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
NO_PYTHON: Stack = (Frame("threads that run no Python code", "", 0),)
"""The stack of what was allocated in a thread without Python frames."""

MEMORY_NOTE = "The lines show what was allocated during the profile and still existed at its end."
PYTHON_NOTE = (
    "Memory that C++ code allocates by itself, such as torch's CPU tensors, counts in the resident memory but in no line. "
    "If memray is installed where the rank runs, profiles use it and show this memory, too."
)
MEMRAY_NOTE = (
    "memray traced the memory, including what C and C++ code allocates. It took the place of a profile function "
    "(sys.setprofile) that the training code had set, if there was one."
)
OTHER_TRACKER = (
    "The training code traces its memory with memray itself, so this profile shows only what Python allocates."
)
TRACED_BEFORE = (
    "The training code had started tracemalloc itself, so the stacks have as many frames as that code chose."
)
STOPPED = "The training code stopped tracemalloc during the profile, so there are no lines."


class Allocation(NamedTuple):
    """Memory that was allocated at one place in the code.

    Attributes:
        stack: the place, the innermost frame last.
        size: its bytes.
        blocks: the number of its blocks.
    """

    stack: Stack
    size: int
    blocks: int


class Tracer(Protocol):
    """Traces allocations from `start` to `stop`."""

    name: str
    notes: list[str]

    def start(self) -> None: ...

    def read(self) -> None:
        """Note, just before `stop`, what has to be read while memory is traced."""

    def stop(self) -> None:
        """End the tracing."""

    def close(self) -> None:
        """End the tracing if it has not ended, and remove what was written for it."""

    def found(self) -> list[Allocation]:
        """Return what was allocated and still existed at the end. Call it after `stop`."""

    def peak(self) -> int | None:
        """Return the largest number of bytes that were allocated at once; None if it is unknown."""

    def overhead(self) -> int | None:
        """Return the bytes that the tracing itself needed; None if they are unknown."""


def started() -> Tracer:
    """Start to trace with the best tracer that can be had, and return it."""
    if not has_memray():
        return _with_tracemalloc(PYTHON_NOTE)
    memray = _Memray()
    try:
        memray.start()
    except Exception as error:  # only one tracker at a time may run in a process
        memray.close()
        why = OTHER_TRACKER if "more than one Tracker" in str(error) else f"memray could not start: {error}"
        return _with_tracemalloc(why)
    return memray


def has_memray() -> bool:
    return importlib.util.find_spec("memray") is not None


def _with_tracemalloc(why: str) -> Tracer:
    tracer = _Tracemalloc(why)
    tracer.start()
    return tracer


class _Memray:
    name = "memray"

    def __init__(self) -> None:
        self.notes = [MEMORY_NOTE, MEMRAY_NOTE]
        self._stack = contextlib.ExitStack()
        # A TemporaryDirectory would be deleted by a forked process that ends.
        self._folder = tempfile.mkdtemp(prefix="tuner-memray-")
        self._file = str(Path(self._folder, "allocations.bin"))
        self._open: int | None = None
        self._peak: int | None = None

    def start(self) -> None:
        import memray

        where = memray.FileDestination(self._file, overwrite=True, compress_on_exit=False)
        aggregated = memray.FileFormat.AGGREGATED_ALLOCATIONS  # its size does not grow with the number of allocations
        self._stack.enter_context(
            memray.Tracker(destination=where, file_format=aggregated, trace_python_allocators=True)
        )
        _ours.hooks = True
        if sys.platform == "linux":
            # Delete the file now, and read it by its descriptor later: so nothing is left if this process is killed.
            self._open = os.open(self._file, os.O_RDONLY)
            self._file = f"/proc/self/fd/{self._open}"
            shutil.rmtree(self._folder)

    def read(self) -> None:
        pass  # memray writes its file when it stops

    def stop(self) -> None:
        self._stack.close()
        _ours.hooks = False

    def close(self) -> None:
        self.stop()
        if self._open is not None:
            os.close(self._open)
            self._open = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def found(self) -> list[Allocation]:
        import memray

        with memray.FileReader(self._file) as reader:
            self._peak = reader.metadata.peak_memory
            found = []
            for record in reader.get_leaked_allocation_records(merge_threads=True):
                frames = tuple(Frame(name, file, line) for name, file, line in reversed(record.stack_trace(_DEEPEST)))
                found.append(Allocation(frames or NO_PYTHON, record.size, record.n_allocations))
        return _not_of_tracers(found)

    def peak(self) -> int | None:
        return self._peak

    def overhead(self) -> int | None:
        return None


class _Tracemalloc:
    name = "tracemalloc"

    def __init__(self, note: str) -> None:
        self.notes = [MEMORY_NOTE, note]
        self._ours = not tracemalloc.is_tracing()
        self._before: tracemalloc.Snapshot | None = None
        self._snapshot: tracemalloc.Snapshot | None = None
        self._peak: int | None = None
        self._overhead = 0

    def start(self) -> None:
        if self._ours:
            _ours.traces = True
            tracemalloc.start(_TRACED_FRAMES)
        else:
            self.notes.append(TRACED_BEFORE)
            self._before = tracemalloc.take_snapshot()

    def read(self) -> None:
        if tracemalloc.is_tracing():
            self._peak = tracemalloc.get_traced_memory()[1] if self._ours else None
            self._overhead = tracemalloc.get_tracemalloc_memory()
            self._snapshot = tracemalloc.take_snapshot()
        else:
            self._peak = 0 if self._ours else None
            self.notes.append(STOPPED)

    def stop(self) -> None:
        if self._ours and _ours.traces:
            tracemalloc.stop()
            _ours.traces = False

    def close(self) -> None:
        self.stop()

    def found(self) -> list[Allocation]:
        if self._snapshot is None:
            return []
        if self._before is None:
            found = [(one.traceback, one.size, one.count) for one in self._snapshot.statistics("traceback")]
        else:
            changes = self._snapshot.compare_to(self._before, "traceback")
            found = [(one.traceback, one.size_diff, one.count_diff) for one in changes if one.size_diff > 0]
        lines: dict[tracemalloc.Frame, Frame] = {}  # the same line is in many stacks
        return _not_of_tracers(
            Allocation(
                tuple(lines[at] if at in lines else lines.setdefault(at, _frame(at)) for at in trace), size, blocks
            )
            for trace, size, blocks in found
        )

    def peak(self) -> int | None:
        return self._peak

    def overhead(self) -> int | None:
        return self._overhead


def code_at(file: str, line: int) -> str:
    """Return a line of code, or its location if the file cannot be read."""
    return linecache.getline(file, line).strip()[:100] or f"{os.path.basename(file)}:{line}"


def _frame(at: tracemalloc.Frame) -> Frame:
    """Return a frame whose name is its line of code, because tracemalloc does not know the function."""
    return Frame(code_at(at.filename, at.lineno), at.filename, at.lineno)


def _not_of_tracers(found: Iterable[Allocation]) -> list[Allocation]:
    return [one for one in found if not any(frame.file.startswith(_OWN) for frame in one.stack)]


class _Ours:
    """The settings of this process that a running profile has changed."""

    traces = False  # tracemalloc
    hooks = False  # the profile functions of memray


_ours = _Ours()


def _undo_in_child() -> None:
    """Undo it in a forked process, such as a data loader's worker, where no profile runs.

    memray records nothing there, but leaves its profile functions, which slow down each call of a function.
    """
    if _ours.traces:
        tracemalloc.stop()
    if _ours.hooks:
        sys.setprofile(None)
        threading.setprofile(None)
    _ours.traces = _ours.hooks = False


os.register_at_fork(after_in_child=_undo_in_child)
