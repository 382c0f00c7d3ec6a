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
        self.waits = threading.Semaphore(0)
        self.goes_on = threading.Semaphore(0)

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.waits.release()
        return not self.goes_on.acquire(timeout=10)

    def beat(self, now: float) -> None:
        self.now = now
        self.goes_on.release()
        assert self.waits.acquire(timeout=10)


def test_a_gap_between_two_beats_is_a_stop_if_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ours = Clock(), Pulse()
    monkeypatch.setattr(pulse, "time", clock)
    monkeypatch.setattr(ours, "_over", clock)
    ours.start()
    assert clock.waits.acquire(timeout=10)
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
    monkeypatch.setattr(clock, "wait", lambda seconds: True)
    clock.goes_on.release()
