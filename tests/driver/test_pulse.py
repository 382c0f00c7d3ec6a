"""Test that a process notices for how long it stood still."""

from __future__ import annotations

import threading

import pytest

from tuner.driver import pulse
from tuner.driver.pulse import Pulse


class Clock:
    """A clock, and the event on which the thread waits between its beats."""

    def __init__(self) -> None:
        self.now = 100.0
        self.used = 0.0
        self.over = False
        self.waits = threading.Semaphore(0)
        self.goes_on = threading.Semaphore(0)

    def monotonic(self) -> float:
        return self.now

    def cpu_s(self) -> float:
        return self.used

    def clear(self) -> None:
        pass

    def wait(self, seconds: float) -> bool:
        self.waits.release()
        return not self.goes_on.acquire(timeout=10) or self.over

    def beat(self, now: float) -> None:
        self.now = now
        self.goes_on.release()
        assert self.waits.acquire(timeout=10)

    def end(self, ours: Pulse) -> None:
        """End the thread before the test ends: it would go on with the real event, forever."""
        self.over = True
        self.goes_on.release()
        assert ours._thread is not None
        ours._thread.join(10)
        assert not ours._thread.is_alive()


def begun(monkeypatch: pytest.MonkeyPatch) -> tuple[Clock, Pulse]:
    """Return a pulse that has begun, and the clock that it waits for."""
    clock, ours = Clock(), Pulse()
    monkeypatch.setattr(pulse, "time", clock)
    monkeypatch.setattr(pulse, "cpu_s", clock.cpu_s)
    monkeypatch.setattr(ours, "_over", clock)
    ours.start()
    assert clock.waits.acquire(timeout=10)
    return clock, ours


def test_a_gap_between_two_beats_is_a_stop_if_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ours = begun(monkeypatch)
    clock.beat(101.0)
    clock.beat(105.0)
    assert ours.still_s(100.0) == 0, "busy"
    clock.now = 125.0
    assert ours.still_s(100.0) == 20, "the loop looks before the thread"
    clock.beat(125.0)
    clock.beat(126.0)
    assert ours.still_s(100.0) == 20
    assert ours.still_s(118.0) == 7
    assert ours.still_s(125.0) == 0, "counted before"
    clock.end(ours)


def test_what_was_computed_before_a_stop_or_after_it_does_not_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may drive other experiments, too. A stop of 5 to 12 s had counted as training if they had been busy."""
    clock, ours = begun(monkeypatch)
    for _ in range(5):
        clock.used += pulse.BEAT_S
        clock.beat(clock.now + pulse.BEAT_S)
    began = clock.now
    clock.now, clock.used = began + 6.0, clock.used + pulse.BEAT_S / 2
    assert ours.still_s(100.0) == 6
    clock.beat(clock.now)
    clock.used += 1.0
    assert ours.still_s(100.0) == 6
    assert ours.still_s(began) == 6, "another experiment has compared its clocks later"
    clock.used += 20.0
    clock.beat(clock.now + 20.0)
    assert ours.still_s(began + 6.0) == 0, "no thread could run, but the process computed"
    clock.end(ours)


def test_experiments_share_one_thread_which_ends_with_the_last_of_them() -> None:
    ours = Pulse()
    ours.start()
    thread = ours._thread
    ours.start()
    assert ours._thread is thread
    ours.end()
    assert thread is not None
    assert thread.is_alive()
    ours.end()
    assert not thread.is_alive()
    ours.start()
    assert ours._thread is not thread
    ours.end()
