"""Profile this process for a while, from one of its own threads: sample its Python stacks, or trace its allocations.

Neither needs special privileges, because a process may inspect itself. A sampler in another process, such as py-spy,
would need ptrace, which containers usually forbid.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from tuner import __version__
from tuner.trials.messages.profiling import ProfileRequest
from tuner.trials.runtime.measures import allocations, process_stats
from tuner.trials.runtime.measures.allocations import Allocation
from tuner.trials.runtime.measures.speedscope import Frame, Part, Stack, document
from tuner.trials.runtime.sending.logs import OWN

_DEEPEST = 256  # the maximum number of frames of a stack; the outermost of a deeper one are left out
_LINES = 50  # lines of code in a memory profile
_RSS_EVERY_S = 0.05
_SWITCH_S = 1e-4  # after this time, the thread that holds the GIL is asked to hand it to the sampler
_TRIES = 10  # attempts to read a stack while its thread keeps running
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_TICKS = os.sysconf("SC_CLK_TCK")
_THREADING = threading.__file__
_TASKS = "/proc/self/task"

STILL_SUMS_UP = "is still summarizing an earlier profile"

CPU_NOTES = (
    "Time spent in C code counts toward the Python line that called it. Child processes, such as the workers of a data loader, "
    "are not sampled, and neither are threads that run no Python code.",
)
ENDED_EARLY = {"error": "it was stopped before its time was up"}
"""Takes the place of a profile that was stopped, so that it is not summarized."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The segment that is profiled.

    Attributes:
        profile_id: the id of the profile.
        name: the name of the profile.
        thread: the identifier of the training thread; None if there is none yet.
        ended: set when the segment ends, which ends the profile too.
        told: set when the profile is no longer wanted, which ends it too.
    """

    profile_id: str
    name: str
    thread: int | None
    ended: threading.Event
    told: threading.Event = field(default_factory=threading.Event)


class Profiler:
    """Makes one profile at a time, and keeps it until the next one begins."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Subject | None = None
        self._until = 0.0  # when the running profile stops observing, by the monotonic clock
        self._made: tuple[str, dict[str, Any]] | None = None  # the profile's id, and the profile
        self._unwanted: deque[str] = deque(maxlen=100)  # ids of profiles that were stopped before they began

    def start(self, subject: Subject, request: ProfileRequest) -> str | None:
        """Begin a profile in the background. Return None, or the reason why it cannot begin."""
        with self._lock:
            if subject.profile_id in self._unwanted:
                return "was told not to begin this profile"
            if self._running is not None:
                left = self._until - time.monotonic()
                if left <= 0 or self._running.told.is_set() or self._running.ended.is_set():
                    return STILL_SUMS_UP
                return f"is already being profiled, for {left:.0f} s more"
            self._running, self._until, self._made = subject, time.monotonic() + request.duration_s, None
        threading.Thread(target=self._make, args=(subject, request), name="tuner-profile", daemon=True).start()
        return None

    def stop(self, profile_id: str) -> None:
        """Stop a profile that is no longer wanted. If it has not begun yet, it will not begin."""
        with self._lock:
            if self._running is not None and self._running.profile_id == profile_id:
                self._running.told.set()
            else:
                self._unwanted.append(profile_id)

    def take(self, profile_id: str) -> dict[str, Any] | None:
        """Return a profile if it is the newest one; None while it is being made."""
        with self._lock:
            return self._made[1] if self._made is not None and self._made[0] == profile_id else None

    def _make(self, subject: Subject, request: ProfileRequest) -> None:
        try:
            found = (sampled if request.kind == "cpu" else traced)(subject, request)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        with self._lock:
            self._made, self._running = (subject.profile_id, found), None


def sampled(subject: Subject, request: ProfileRequest) -> dict[str, Any]:
    """Sample the Python stacks of the threads until the time is up or the segment ends.

    The threads of tuner and Ray, and the process's main thread unless it trains, are left out. A sample's weight is the
    time since the previous sample, so a thread's weights add up to the observed time.
    """
    sampler_before = time.thread_time()
    since = time.clock_gettime(time.CLOCK_BOOTTIME)
    cpu_before, threads_before = process_stats.cpu_s(), _cpu_by_thread()
    weights: dict[int, dict[_Raw, float]] = defaultdict(lambda: defaultdict(float))
    codes: dict[int, CodeType] = {}
    names: dict[int, str] = {}
    natives: dict[int, int | None] = {}
    own, main = threading.get_ident(), threading.main_thread().ident
    hidden = {own, main} - {subject.thread}
    # The interval is jittered, so that code that repeats at a fixed rate is not always sampled at the same place. The
    # random generator is not the one that the training code has seeded.
    vary = random.Random(0).uniform
    samples, ended = 0, False
    began = last = due = time.monotonic()
    until = began + request.duration_s
    with _prompt():
        while not ended and last < until:
            due = max(due + vary(0.5, 1.5) / request.rate_hz, last)  # missed samples are not made up for
            ended = subject.ended.wait(max(0.0, min(due, until) - time.monotonic())) or subject.told.is_set()
            now = time.monotonic()
            threads = {thread.ident: thread for thread in threading.enumerate()}
            for ident, frame in sys._current_frames().items():
                thread = threads.get(ident)
                name = thread.name if thread is not None else f"thread {ident}"
                if ident in hidden or name.startswith(("ray_", "tuner-")):
                    continue
                names[ident], natives[ident] = name, thread.native_id if thread is not None else None
                weights[ident][_whole(ident, frame, codes)] += now - last
            frame = thread = None  # type: ignore[assignment]  # they would keep the variables of the training code alive
            threads.clear()
            samples += 1
            last = now
    if subject.told.is_set():
        return ENDED_EARLY
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
                {"name": names[ident], "cpu_s": _used(natives[ident], threads_before, threads_after, since)}
                for ident in order
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
    """Let this thread get the GIL soon after requesting it.

    By default, a computing thread may keep the GIL for 5 ms. Most training code releases it sooner by itself, for
    example in each call to torch. Without this change, every sample would show such a call, and none would show the
    Python code between two calls.
    """
    before = _changes.interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        if _is_short():
            sys.setswitchinterval(before)
        _changes.interval = None


def _is_short() -> bool:
    """Return whether the switch interval is still the profiler's, that is, the training code has not changed it."""
    return abs(sys.getswitchinterval() - _SWITCH_S) < 2e-6  # Python rounds the interval to microseconds


@dataclass(slots=True)
class _Changes:
    """The settings of this process that the running profile has changed.

    Attributes:
        interval: the switch interval before the profile; None if it is unchanged.
    """

    interval: float | None = None


_changes = _Changes()


def _undo_in_child() -> None:
    """Undo the changes of a running profile in a forked process, such as a data loader's worker, where no profile runs."""
    if _changes.interval is not None and _is_short():
        sys.setswitchinterval(_changes.interval)
    _changes.interval = None


os.register_at_fork(after_in_child=_undo_in_child)


def traced(subject: Subject, request: ProfileRequest) -> dict[str, Any]:
    """Trace allocations until the time is up or the segment ends."""
    with contextlib.closing(allocations.started()) as tracer:
        gpu_before = _gpu_bytes()
        first = peak = process_stats.rss_bytes()
        began = now = time.monotonic()
        until = began + request.duration_s
        ended = False
        while not ended and now < until:
            ended = subject.ended.wait(min(_RSS_EVERY_S, until - now)) or subject.told.is_set()
            now = time.monotonic()
            peak = max(peak, process_stats.rss_bytes())
        last, gpu_after, gpu_summary = process_stats.rss_bytes(), _gpu_bytes(), _gpu_summary()
        if subject.told.is_set():
            return ENDED_EARLY
        tracer.read()
        tracer.stop()  # must come before the summary, which allocates a lot
        found = [one._replace(stack=_user_frames(one.stack)) for one in tracer.found()]
    return {
        **_common(request, now - began, not ended, tracer.notes),
        "cpu": None,
        "memory": {
            "tracer": tracer.name,
            "lines": _lines(found),
            "traced_bytes": sum(one.size for one in found),
            "traced_peak_bytes": tracer.peak(),
            "tracer_bytes": tracer.overhead(),
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
            [Part("allocations", "bytes", _summed(found))],
        ),
    }


def _common(request: ProfileRequest, observed_s: float, complete: bool, notes: Iterable[str]) -> dict[str, Any]:
    return {"kind": request.kind, "duration_s": observed_s, "complete": complete, "notes": list(notes)}


# -- stacks ----------------------------------------------------------------------------------------------------------------

_Raw = tuple[tuple[int, int], ...]
"""A sampled stack: (id of the code object, line), the innermost frame first. Hashing the code objects would be slow."""


def _whole(ident: int, frame: FrameType, codes: dict[int, CodeType]) -> _Raw:
    """Return the stack of a thread. Read it again if it is incomplete because the thread ran in the meantime.

    The sampler may lose the GIL while it follows the frames. A generator that yields at that moment loses its caller, so the
    stack would end with the generator. The outermost frame of a thread is never a generator.
    """
    found = _raw(frame, codes)
    for _ in range(_TRIES):
        if len(found) == _DEEPEST or not codes[found[-1][0]].co_flags & _GENERATORS:
            break
        found = _raw(sys._current_frames().get(ident, frame), codes)
    return found


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
        found[_user_frames(stack)] += weight
    return found


def _user_frames(stack: Stack) -> Stack:
    """Return a stack without its outermost frames, as far as these belong to `threading` or to this package."""
    for begin, frame in enumerate(stack):
        if frame.file != _THREADING and not frame.file.startswith(OWN):
            return stack[begin:]
    return stack


class _Thread(NamedTuple):
    """A thread's CPU seconds, and its start time in seconds since the machine booted."""

    cpu_s: float
    began: float


def _cpu_by_thread() -> dict[int, _Thread]:
    """Return the CPU time of each thread of this process, by the kernel's thread id; an empty dict without /proc."""
    found = {}
    tasks: list[str] = []
    with contextlib.suppress(OSError):  # there is no /proc
        tasks = os.listdir(_TASKS)
    for task in tasks:
        with contextlib.suppress(OSError):  # the thread has just exited
            fields = Path(_TASKS, task, "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            found[int(task)] = _Thread((int(fields[11]) + int(fields[12])) / _TICKS, int(fields[19]) / _TICKS)
    return found


def _used(
    native: int | None, before: Mapping[int, _Thread], after: Mapping[int, _Thread], since: float
) -> float | None:
    """Return the CPU seconds that a thread used between two readings; None if either reading is missing.

    since: when the first reading began. A thread that started later counts from zero, even if it has the id of a thread that
        has exited.
    """
    if native is None or (now := after.get(native)) is None:
        return None
    first = before.get(native)
    if first is not None and first.began == now.began:
        return now.cpu_s - first.cpu_s
    return now.cpu_s if now.began >= since - 1 / _TICKS else None


# -- memory ----------------------------------------------------------------------------------------------------------------


def _summed(found: list[Allocation]) -> dict[Stack, float]:
    weights: dict[Stack, float] = defaultdict(float)
    for stack, size, _ in found:
        weights[stack] += size
    return weights


def _lines(found: list[Allocation]) -> list[dict[str, Any]]:
    """Return the lines of code that have allocated the most, the largest first."""
    lines: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    for stack, size, blocks in found:
        if stack != allocations.NO_PYTHON:
            line = lines[stack[-1].file, stack[-1].line]
            line[0] += size
            line[1] += blocks
    largest = sorted(lines.items(), key=lambda one: -one[1][0])[:_LINES]
    return [
        {"file": file, "line": line, "code": allocations.code_at(file, line), "bytes": size, "blocks": blocks}
        for (file, line), (size, blocks) in largest
    ]


def _gpu_bytes() -> int | None:
    found = process_stats.gpu_usage().get("gpu_bytes")
    return None if found is None else int(found)


def _gpu_summary() -> str | None:
    """Return torch's memory summary for each GPU that this process uses; None if it uses no GPU."""
    cuda = process_stats.cuda()
    if cuda is None:
        return None
    devices = [device for device in range(cuda.device_count()) if cuda.memory_reserved(device)]
    return "\n".join(str(cuda.memory_summary(device, abbreviated=True)) for device in devices) or None
