"""Profiles of this process: of a thread that computes, of one that allocates, and of a segment that ends."""

from __future__ import annotations

import gc
import itertools
import os
import random
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tuner.trials.messages.profiling import ProfileKind, ProfileRequest
from tuner.trials.runtime.measures import allocations, profiler
from tuner.trials.runtime.measures.profiler import Profiler, Subject, sampled, traced


class Training:
    """A thread that calls a function until it is told to end."""

    def __init__(self, step: Callable[[], Any]) -> None:
        self.told = threading.Event()
        self.ended = threading.Event()
        self._step = step
        self.thread = threading.Thread(target=self._train, name="train")
        self.thread.start()

    def _train(self) -> None:
        while not self.told.is_set():
            self._step()

    @property
    def subject(self) -> Subject:
        return Subject("seg", "trial 0, rank 0", self.thread.ident, self.ended)

    def end(self) -> None:
        self.told.set()
        self.thread.join()


@pytest.fixture(autouse=True)
def _tracemalloc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace with tracemalloc, even if memray is installed. `test_allocations.py` has memray."""
    monkeypatch.setattr(allocations, "has_memray", lambda: False)


@pytest.fixture
def train() -> Iterator[Callable[[Callable[[], Any]], Training]]:
    begun: list[Training] = []

    def begin(step: Callable[[], Any]) -> Training:
        begun.append(Training(step))
        return begun[-1]

    yield begin
    for one in begun:
        one.end()


def computes() -> int:
    return sum(number * number for number in range(2000))


def rests() -> None:
    time.sleep(0.001)


def counts() -> int:
    return sum(number * number for number in range(2000))


def uneven() -> None:
    """Compute three times as long in `computes` as in `counts`. Make no system calls, which could wait for the processor."""
    for _ in range(3):
        computes()
    counts()


def stacks(found: dict[str, Any], part: int = 0) -> dict[tuple[str, ...], float]:
    """Return the weights of the stacks of a profile, by the names of the functions."""
    frames = [frame["name"].rpartition(".")[2] for frame in found["speedscope"]["shared"]["frames"]]
    profile = found["speedscope"]["profiles"][part]
    weights: dict[tuple[str, ...], float] = {}
    for stack, weight in zip(profile["samples"], profile["weights"], strict=True):
        key = tuple(frames[index] for index in stack)
        weights[key] = weights.get(key, 0.0) + weight
    return weights


def test_samples_show_where_the_time_goes(train: Any) -> None:
    """The code between two releases of the GIL takes less than the interval after which Python takes the GIL away."""
    assert sys.getswitchinterval() == 0.005
    running = train(uneven)
    assert running.thread.ident is not None
    clock = time.pthread_getcpuclockid(running.thread.ident)
    begun, cpu_before = time.monotonic(), time.clock_gettime(clock)
    # On a busy machine, the sampler may wait for a third of a second, and the next sample stands for all of that time.
    found = sampled(running.subject, ProfileRequest(duration_s=4.0, rate_hz=200))
    whole, cpu_s = time.monotonic() - begun, time.clock_gettime(clock) - cpu_before
    running.end()
    weights = stacks(found)
    assert {stack[0] for stack in weights} == {"_train"}, "without the frames of threading around it"
    share = {name: sum(weight for stack, weight in weights.items() if name in stack) for name in ("computes", "counts")}
    assert share["computes"] / sum(share.values()) == pytest.approx(0.75, abs=0.15)
    assert sum(share.values()) > 0.7 * sum(weights.values())
    assert sum(weights.values()) == pytest.approx(found["duration_s"], rel=1e-3)
    assert 4.0 <= found["duration_s"] < 10
    cpu = found["cpu"]
    assert cpu["samples"] > 20
    assert cpu["threads"][0]["name"] == "train"
    assert cpu["threads"][0]["cpu_s"] > 0.5 * cpu_s / whole * found["duration_s"]
    assert 0 < cpu["sampler_cpu_s"] < cpu["cpu_s"]
    assert (found["complete"], found["memory"]) == (True, None)
    # A sample that is taken as the function begins has its first line. Samples within the sum have the line of the sum.
    frames = found["speedscope"]["shared"]["frames"]
    samples = found["speedscope"]["profiles"][0]["samples"]
    callers = [
        frames[one]
        for stack in samples
        for one, called in itertools.pairwise(stack)
        if "genexpr" in frames[called]["name"]
    ]
    lines = {frame["line"] for frame in callers if frame["name"].rpartition(".")[2] == "computes"}
    assert lines == {computes.__code__.co_firstlineno + 1}
    assert sys.getswitchinterval() == 0.005


def test_a_stack_that_was_torn_is_read_again(train: Any) -> None:
    """A generator that has yielded while the sampler followed the frames has lost its caller."""
    running = train(uneven)
    numbers: Any = (number for number in range(2))
    next(numbers)
    codes: dict[int, Any] = {}
    found = profiler._whole(running.thread.ident, numbers.gi_frame, codes)
    assert "_train" in {codes[key].co_name for key, _ in found}
    assert codes[found[-1][0]].co_name == "_bootstrap"


def test_other_threads_are_shown_but_not_those_of_tuner_and_ray(train: Any) -> None:
    running = train(rests)
    over = threading.Event()
    others = [threading.Thread(target=over.wait, name=name) for name in ("loader", "ray_print", "tuner-outbox")]
    for other in others:
        other.start()
    found = sampled(running.subject, ProfileRequest(duration_s=0.1))
    over.set()
    for other in others:
        other.join()
    names = [thread["name"] for thread in found["cpu"]["threads"]]
    assert names[0] == "train"
    assert "loader" in names
    assert not {"ray_print", "tuner-outbox", "MainThread"} & set(names)
    assert [profile["name"] for profile in found["speedscope"]["profiles"]] == names


def test_the_profile_ends_with_the_segment(train: Any) -> None:
    running = train(rests)
    threading.Timer(0.1, running.ended.set).start()
    found = sampled(running.subject, ProfileRequest(duration_s=60))
    assert found["duration_s"] < 30
    assert not found["complete"]
    assert not traced(running.subject, ProfileRequest(duration_s=60))["complete"]
    assert not tracemalloc.is_tracing()


class Large:
    """An object that a weak reference can refer to."""


def test_the_sampler_keeps_nothing_alive_and_draws_no_random_numbers(
    train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Large]] = []
    over = threading.Event()

    def step() -> None:
        mine = Large()
        made.append(weakref.ref(mine))
        while not over.is_set():
            time.sleep(0.002)

    running = train(step)
    current, ident = sys._current_frames, running.thread.ident
    last = partial(sorted, key=lambda one: one[0] == ident)  # the frame of the thread that trains is looked at last
    monkeypatch.setattr(sys, "_current_frames", lambda: dict(last(current().items())))
    state = random.getstate()
    profiler = Profiler()
    subject = replace(running.subject, ended=Observed())
    assert profiler.start(subject, ProfileRequest(duration_s=60, rate_hz=1)) is None
    assert subject.ended.sampled.wait(30)
    over.set()
    running.end()
    gc.collect()
    assert not any(one() for one in made), "while the sampler waits for its next sample"
    assert profiler.take("seg") is None, "the profile goes on"
    subject.ended.set()
    taken(profiler)
    assert random.getstate() == state


class Observed(threading.Event):
    """An event that shows when the sampler has taken a sample and waits for the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.sampled = threading.Event()
        self._waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self._waits += 1
        if self._waits == 1:
            return False
        self.sampled.set()
        return super().wait(timeout)


def taken(profiler: Profiler) -> dict[str, Any]:
    end = time.monotonic() + 30
    while (found := profiler.take("seg")) is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def test_one_profile_at_a_time(train: Any) -> None:
    running = train(rests)
    profiler = Profiler()
    assert profiler.start(running.subject, ProfileRequest(duration_s=30)) is None
    why = profiler.start(running.subject, ProfileRequest(kind="memory"))
    assert why in ("is already being profiled, for 30 s more", "is already being profiled, for 29 s more")
    assert profiler.take("seg") is None
    running.ended.set()
    assert taken(profiler)["kind"] == "cpu"
    assert profiler.take("another segment") is None
    assert profiler.start(running.subject, ProfileRequest(kind="memory")) is None
    assert taken(profiler)["kind"] == "memory"


@pytest.mark.parametrize("kind", ["cpu", "memory"])
def test_a_profile_that_nobody_wants_ends_or_does_not_begin(train: Any, kind: ProfileKind) -> None:
    running = train(rests)
    one, request = Profiler(), ProfileRequest(kind=kind, duration_s=60)
    assert one.start(running.subject, request) is None
    one.stop("seg")
    assert taken(one) == profiler.ENDED_EARLY
    assert not tracemalloc.is_tracing()
    one.stop("late")
    late = replace(running.subject, profile_id="late")
    assert one.start(late, request) == "was told not to begin this profile"
    assert one.start(running.subject, ProfileRequest(duration_s=0.1)) is None, "others begin"
    assert taken(one)["complete"]


def test_a_profile_that_is_summed_up_says_so(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = threading.Event()
    monkeypatch.setattr(profiler, "_resolved", lambda weights, codes: slow.wait(30) and {})
    running = train(rests)
    one = Profiler()
    assert one.start(running.subject, ProfileRequest(duration_s=0.1)) is None
    time.sleep(0.2)
    try:
        assert one.start(running.subject, ProfileRequest()) == "is still summarizing an earlier profile"
    finally:
        slow.set()
    taken(one)


def test_the_figures_of_a_thread_whose_reading_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def thread(number: int, ticks: int, began: int) -> None:
        (tmp_path / str(number)).mkdir()
        fields = ["S", *["0"] * 10, str(ticks), "0", *["0"] * 6, str(began), "0"]
        (tmp_path / str(number) / "stat").write_text(f"{number} (a) b) {' '.join(fields)}")

    (tmp_path / "7").mkdir()  # it ends between two system calls, so it has no file
    for number in range(8, 18):
        thread(number, 100 * number, 5)
    monkeypatch.setattr(profiler, "_TASKS", str(tmp_path))
    monkeypatch.setattr(profiler, "_TICKS", 100)
    found = profiler._cpu_by_thread()
    assert sorted(found) == list(range(8, 18)), "one that ends does not hide the others"
    assert found[9] == (9.0, 0.05)
    used = partial(profiler._used, since=10.0)
    old, new = profiler._Thread(50.0, 3.0), profiler._Thread(0.5, 11.0)
    assert used(1, {1: profiler._Thread(49.0, 3.0)}, {1: old}) == 1.0
    assert used(1, {}, {1: old}) is None, "its whole life is not the profile's"
    assert used(1, {}, {1: new}) == 0.5
    assert used(1, {1: old}, {1: new}) == 0.5, "another thread with the same id"
    assert used(1, {1: old}, {}) is None


def test_a_thread_that_starts_during_the_profile_counts_from_zero(train: Any) -> None:
    running = train(rests)
    later: list[Training] = []
    timer = threading.Timer(0.1, lambda: later.append(train(computes)))
    timer.start()
    found = sampled(running.subject, ProfileRequest(duration_s=0.5))
    timer.join()
    figures = [thread["cpu_s"] for thread in found["cpu"]["threads"] if thread["name"] == "train"]
    assert len(figures) == 2
    assert max(figures) > 0.02


@pytest.mark.parametrize("kind", ["cpu", "memory"])
def test_a_child_process_does_not_keep_the_settings_of_the_profile(train: Any, kind: ProfileKind) -> None:
    running = train(rests)
    one = Profiler()
    assert one.start(running.subject, ProfileRequest(kind=kind, duration_s=60)) is None
    until = time.monotonic() + 30
    while not tracemalloc.is_tracing() and sys.getswitchinterval() == 0.005:
        assert time.monotonic() < until
        time.sleep(0.01)
    child = os.fork()
    if not child:
        os._exit(tracemalloc.is_tracing() or sys.getswitchinterval() != 0.005)
    assert os.waitpid(child, 0)[1] == 0
    running.ended.set()
    assert not taken(one)["complete"]


def test_an_error_of_the_profiler_is_told(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise OSError("no /proc")

    monkeypatch.setattr(profiler, "_cpu_by_thread", broken)
    one = Profiler()
    assert one.start(train(rests).subject, ProfileRequest(duration_s=0.1)) is None
    assert taken(one) == {"error": "OSError: no /proc"}
    assert one.start(train(rests).subject, ProfileRequest(duration_s=0.1)) is None, "it can be asked again"
    taken(one)


class Allocating:
    """A step that keeps a kilobyte each time, and drops another one."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def __call__(self) -> None:
        self.kept.append(bytes(1000))
        bytes(1000)
        time.sleep(0.001)


def test_memory_shows_the_lines_whose_memory_is_still_there(train: Any) -> None:
    running = train(Allocating())
    found = traced(running.subject, ProfileRequest(kind="memory", duration_s=0.3))
    memory = found["memory"]
    first = memory["lines"][0]
    assert first["code"] == "self.kept.append(bytes(1000))"
    assert first["file"] == __file__
    assert first["bytes"] >= 1000 * first["blocks"] > 0
    assert first["bytes"] <= memory["traced_bytes"] <= memory["traced_peak_bytes"]
    assert memory["rss_peak_bytes"] >= memory["rss_start_bytes"] > 2**20
    assert (memory["gpu_start_bytes"], memory["gpu_summary"], found["cpu"]) == (None, None, None)
    assert not any(line["file"] == profiler.__file__ for line in memory["lines"])
    [(stack, _), *_] = sorted(stacks(found).items(), key=lambda one: -one[1])
    assert stack[-1] == "append(bytes(1000))", "as a frame, the line is called like its code"
    assert not tracemalloc.is_tracing()


def test_tracing_ends_before_the_summary(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tracing: list[bool] = []
    allocated = allocations._Tracemalloc.found

    def summed_up(tracer: Any) -> Any:
        tracing.append(tracemalloc.is_tracing())
        return allocated(tracer)

    monkeypatch.setattr(allocations._Tracemalloc, "found", summed_up)
    found = traced(train(Allocating()).subject, ProfileRequest(kind="memory", duration_s=0.1))
    assert tracing == [False]
    assert found["memory"]["traced_bytes"] > 0


def test_memory_of_training_that_uses_tracemalloc_itself(train: Any) -> None:
    tracemalloc.start(1)
    try:
        before = Allocating()
        before()
        found = traced(train(Allocating()).subject, ProfileRequest(kind="memory", duration_s=0.3))
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
    memory = found["memory"]
    assert allocations.TRACED_BEFORE in found["notes"]
    assert memory["lines"][0]["code"] == "self.kept.append(bytes(1000))"
    assert memory["traced_peak_bytes"] is None


def test_training_that_stops_tracemalloc(train: Any) -> None:
    found = traced(train(tracemalloc.stop).subject, ProfileRequest(kind="memory", duration_s=0.1))
    assert allocations.STOPPED in found["notes"]
    assert found["memory"]["lines"] == []
    assert found["memory"]["rss_end_bytes"] > 2**20
