"""Profile this process for a while, from a thread of its own: sample its Python stacks, or trace what Python allocates.

Both need no rights, because a process may look into itself. A sampler in another process, such as py-spy, would need
ptrace, which containers usually forbid.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import random
import sys
import threading
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tuner import __version__
from tuner.trials.messages.profiling import ProfileRequest
from tuner.trials.runtime import process_stats
from tuner.trials.runtime.logs import OWN
from tuner.trials.runtime.speedscope import Frame, Part, Stack, document

_DEEPEST = 256  # frames of a stack; of a deeper one, the outermost are left out
_TRACED_FRAMES = 16  # frames that are kept for each block of memory
_LINES = 50  # lines of code in a memory profile
_RSS_EVERY_S = 0.05
_SWITCH_S = 1e-4  # after this time, the thread that has the GIL is told to give it to the sampler
_TICKS = os.sysconf("SC_CLK_TCK")
_THREADING = threading.__file__

CPU_NOTES = (
    "The time of C code counts for the Python line that called it. Child processes, such as the workers of a data loader, "
    "are not sampled, and neither are threads that run no Python code.",
)
MEMORY_NOTES = (
    "The lines show what was allocated during the profile and still exists at its end. Memory that C++ code allocates by "
    "itself, such as torch's tensors on the CPU, is in the resident memory but in no line; memray can trace it.",
)
TRACED_BEFORE = (
    "The training code had started tracemalloc itself, so the profile has the number of frames that the code chose."
)
STOPPED = "The training code has stopped tracemalloc during the profile, so there are no lines."


@dataclass(frozen=True, slots=True)
class Subject:
    """The segment that is profiled.

    Attributes:
        segment_id: its id.
        name: the name of the profile.
        thread: the identifier of the thread that trains; None if there is none yet.
        ended: is set when the segment ends, which ends the profile too.
    """

    segment_id: str
    name: str
    thread: int | None
    ended: threading.Event


class Profiler:
    """Makes one profile at a time, and keeps it until the next one begins."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = False
        self._made: tuple[str, dict[str, Any]] | None = None  # the segment's id, and its profile

    def start(self, subject: Subject, request: ProfileRequest) -> str | None:
        """Begin a profile in the background. Return None, or the reason why it cannot begin."""
        with self._lock:
            if self._running:
                return "still sums up an earlier profile"
            self._running, self._made = True, None
        threading.Thread(target=self._make, args=(subject, request), name="tuner-profile", daemon=True).start()
        return None

    def take(self, segment_id: str) -> dict[str, Any] | None:
        """Return the newest profile of a segment; None while it is being made."""
        with self._lock:
            return self._made[1] if self._made is not None and self._made[0] == segment_id else None

    def _make(self, subject: Subject, request: ProfileRequest) -> None:
        try:
            found = (sampled if request.kind == "cpu" else traced)(subject, request)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        with self._lock:
            self._made, self._running = (subject.segment_id, found), False


def sampled(subject: Subject, request: ProfileRequest) -> dict[str, Any]:
    """Sample the Python stacks of the threads until the time is over or the segment ends.

    The threads of tuner and Ray, and the main thread of the process unless it trains, are left out. A sample weighs the time
    since the sample before, so the weights of a thread add up to the time that was observed.
    """
    sampler_before = time.thread_time()
    cpu_before, threads_before = process_stats.cpu_s(), _cpu_by_thread()
    weights: dict[int, dict[_Raw, float]] = defaultdict(lambda: defaultdict(float))
    codes: dict[int, CodeType] = {}
    names: dict[int, str] = {}
    natives: dict[int, int | None] = {}
    own, main = threading.get_ident(), threading.main_thread().ident
    hidden = {own, main} - {subject.thread}
    # The interval varies, so that training that does something at a fixed rate is not always met at the same place. The
    # generator is not the one that the training code has seeded.
    vary = random.Random(0).uniform
    samples, ended = 0, False
    began = last = due = time.monotonic()
    until = began + request.duration_s
    with _prompt():
        while not ended and last < until:
            due = max(due + vary(0.5, 1.5) / request.rate_hz, last)  # samples that are missed are not made up for
            ended = subject.ended.wait(max(0.0, min(due, until) - time.monotonic()))
            now = time.monotonic()
            threads = {thread.ident: thread for thread in threading.enumerate()}
            for ident, frame in sys._current_frames().items():
                thread = threads.get(ident)
                name = thread.name if thread is not None else f"thread {ident}"
                if ident in hidden or name.startswith(("ray_", "tuner-")):
                    continue
                names[ident], natives[ident] = name, thread.native_id if thread is not None else None
                weights[ident][_raw(frame, codes)] += now - last
            frame = thread = None  # type: ignore[assignment]  # they would keep the training code's variables alive
            threads.clear()
            samples += 1
            last = now
    threads_after, sampler_s = _cpu_by_thread(), time.thread_time() - sampler_before
    order = sorted(weights, key=lambda ident: (ident != subject.thread, -sum(weights[ident].values())))
    return {
        **_common(request, last - began, not ended, CPU_NOTES),
        "cpu": {
            "samples": samples,
            "rate_hz": request.rate_hz,
            "cpu_s": process_stats.cpu_s() - cpu_before,
            "sampler_cpu_s": sampler_s,
            "threads": [
                {"name": names[ident], "cpu_s": _used(natives[ident], threads_before, threads_after)} for ident in order
            ],
        },
        "memory": None,
        "speedscope": document(
            subject.name,
            f"tuner {__version__}",
            [Part(names[ident], "seconds", _resolved(weights[ident], codes)) for ident in order],
        ),
    }


@contextlib.contextmanager
def _prompt() -> Iterator[None]:
    """Let this thread get the GIL soon after it asks for it.

    By default, the thread that computes may keep the GIL for 5 ms. Most training code gives it up by itself more often, as for
    each call of torch, so that every sample would show such a call, and none the Python code between two calls.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    ours = sys.getswitchinterval()  # it is rounded
    try:
        yield
    finally:
        if sys.getswitchinterval() == ours:
            sys.setswitchinterval(before)


def traced(subject: Subject, request: ProfileRequest) -> dict[str, Any]:
    """Trace what Python allocates until the time is over or the segment ends."""
    notes = list(MEMORY_NOTES)
    was_traced = tracemalloc.is_tracing()
    before = None
    if was_traced:
        notes.append(TRACED_BEFORE)
        before = tracemalloc.take_snapshot()
    else:
        tracemalloc.start(_TRACED_FRAMES)
    try:
        gpu_before = _gpu_bytes()
        first = peak = process_stats.rss_bytes()
        began = now = time.monotonic()
        until = began + request.duration_s
        ended = False
        while not ended and now < until:
            ended = subject.ended.wait(min(_RSS_EVERY_S, until - now))
            now = time.monotonic()
            peak = max(peak, process_stats.rss_bytes())
        last, gpu_after, gpu_summary = process_stats.rss_bytes(), _gpu_bytes(), _gpu_summary()
        found: list[tuple[Stack, int, int]] = []
        traced_peak = tracer = 0
        if tracemalloc.is_tracing():
            traced_peak = tracemalloc.get_traced_memory()[1]
            tracer = tracemalloc.get_tracemalloc_memory()
            found = _allocated(before)
        else:
            notes.append(STOPPED)
    finally:
        if not was_traced:
            tracemalloc.stop()
    return {
        **_common(request, now - began, not ended, notes),
        "cpu": None,
        "memory": {
            "lines": _lines(found),
            "traced_bytes": sum(size for _, size, _ in found),
            "traced_peak_bytes": None if was_traced else traced_peak,
            "tracer_bytes": tracer,
            "rss_start_bytes": first,
            "rss_end_bytes": last,
            "rss_peak_bytes": max(peak, last),
            "gpu_start_bytes": gpu_before,
            "gpu_end_bytes": gpu_after,
            "gpu_summary": gpu_summary,
        },
        "speedscope": document(
            subject.name,
            f"tuner {__version__}",
            [Part("Python allocations", "bytes", _summed(found))],
        ),
    }


def _common(request: ProfileRequest, observed_s: float, complete: bool, notes: Iterable[str]) -> dict[str, Any]:
    return {"kind": request.kind, "duration_s": observed_s, "complete": complete, "notes": list(notes)}


# -- stacks ----------------------------------------------------------------------------------------------------------------

_Raw = tuple[tuple[int, int], ...]
"""A stack as it is sampled: (id of the code object, line), the innermost frame first. Hashing a code object is slow."""


def _raw(frame: FrameType | None, codes: dict[int, CodeType]) -> _Raw:
    found: list[tuple[int, int]] = []
    while frame is not None and len(found) < _DEEPEST:
        code = frame.f_code
        codes[id(code)] = code  # while it is kept here, no other object gets its id
        found.append((id(code), frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(found)


def _resolved(weights: Mapping[_Raw, float], codes: Mapping[int, CodeType]) -> dict[Stack, float]:
    found: dict[Stack, float] = defaultdict(float)
    for raw, weight in weights.items():
        stack = tuple(Frame(codes[key].co_qualname, codes[key].co_filename, line) for key, line in reversed(raw))
        found[_of_the_user(stack)] += weight
    return found


def _of_the_user(stack: Stack) -> Stack:
    """Return a stack without the outermost frames, if these belong to `threading` or to this package."""
    for begin, frame in enumerate(stack):
        if frame.file != _THREADING and not frame.file.startswith(OWN):
            return stack[begin:]
    return stack


def _cpu_by_thread() -> dict[int, float]:
    """Return the CPU seconds of each thread of this process, by its id in the kernel; empty without /proc."""
    found = {}
    try:
        for task in Path("/proc/self/task").iterdir():
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            found[int(task.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
    except OSError:  # a thread has just ended, or there is no /proc
        pass
    return found


def _used(native: int | None, before: Mapping[int, float], after: Mapping[int, float]) -> float | None:
    if native is None or native not in after:
        return None
    return after[native] - before.get(native, 0.0)


# -- memory ----------------------------------------------------------------------------------------------------------------


def _allocated(before: tracemalloc.Snapshot | None) -> list[tuple[Stack, int, int]]:
    """Return (stack, bytes, blocks) of what was allocated since `before`, or since tracing began, and still exists."""
    own = tracemalloc.Filter(False, __file__, all_frames=True)
    snapshot = tracemalloc.take_snapshot().filter_traces([own])
    if before is None:
        found = [(one.traceback, one.size, one.count) for one in snapshot.statistics("traceback")]
    else:
        changes = snapshot.compare_to(before, "traceback")
        found = [(one.traceback, one.size_diff, one.count_diff) for one in changes if one.size_diff > 0]
    return [(_of_the_user(tuple(_line(at) for at in trace)), size, blocks) for trace, size, blocks in found]


def _line(at: tracemalloc.Frame) -> Frame:
    """Return a frame that is called like its line of code, because tracemalloc does not know its function."""
    code = linecache.getline(at.filename, at.lineno).strip()
    return Frame(code[:100] or f"{os.path.basename(at.filename)}:{at.lineno}", at.filename, at.lineno)


def _summed(found: list[tuple[Stack, int, int]]) -> dict[Stack, float]:
    weights: dict[Stack, float] = defaultdict(float)
    for stack, size, _ in found:
        weights[stack] += size
    return weights


def _lines(found: list[tuple[Stack, int, int]]) -> list[dict[str, Any]]:
    """Return the lines of code that have allocated most, the largest first."""
    lines: dict[Frame, list[int]] = defaultdict(lambda: [0, 0])
    for stack, size, blocks in found:
        line = lines[stack[-1]]
        line[0] += size
        line[1] += blocks
    largest = sorted(lines.items(), key=lambda one: -one[1][0])[:_LINES]
    return [
        {"file": at.file, "line": at.line, "code": at.name, "bytes": size, "blocks": blocks}
        for at, (size, blocks) in largest
    ]


def _gpu_bytes() -> int | None:
    found = process_stats.gpu_usage().get("gpu_bytes")
    return None if found is None else int(found)


def _gpu_summary() -> str | None:
    """Return torch's summary of the memory of each GPU that this process uses; None without one."""
    cuda = process_stats.cuda()
    if cuda is None:
        return None
    devices = [device for device in range(cuda.device_count()) if cuda.memory_reserved(device)]
    return "\n".join(str(cuda.memory_summary(device, abbreviated=True)) for device in devices) or None
