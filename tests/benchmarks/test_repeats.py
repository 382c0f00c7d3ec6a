"""Test that the benchmark of repeats compares searches of equal cost."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import repeats
from benchmarks.repeats import Task, pair
from tuner.driver.virtual import Simulation


@pytest.mark.parametrize("method", ["fifo", "asha"])
def test_both_searches_of_a_pair_begin_alike_and_cost_the_same(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Simulation] = []

    def search(*args: Any) -> Simulation:
        done.append(original(*args))
        return done[-1]

    original = repeats.search
    monkeypatch.setattr(repeats, "search", search)
    outcome = pair(Task("linear/digits", method, 0.3, 1, 8))
    repeated, longer = done
    assert outcome.repeats > 0
    assert len(longer.history) >= len(repeated.history)  # the rest is cut off
    assert longer.configs[:8] == repeated.configs[:8]
    assert min(outcome[1:4]) >= 0


def test_without_noise_repeats_change_nothing() -> None:
    outcome = pair(Task("linear/digits", "fifo", 0.0, 1, 8))
    assert (outcome.repeats, outcome.alone) == (1, outcome.with_repeats)
