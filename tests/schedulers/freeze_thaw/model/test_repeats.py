"""Trials that repeat others to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tuner.domain.decisions import Pause
from tuner.driver.virtual import Step, simulate
from tuner.schedulers.freeze_thaw.model.repeats import Repeats
from tuner.space import uniform


def test_a_trial_with_the_results_of_one_further_on_repeats_it() -> None:
    repeats = Repeats()
    results: list[tuple[int, int, float | None]] = [(0, 0, 0.1), (0, 1, 0.2), (1, 0, 0.1), (0, 2, 0.3)]
    repeats.follow(results)
    assert repeats.original(1) is None, "one result may agree by chance"
    assert repeats.begins_like_another(1)
    assert not repeats.begins_like_another(0)
    results.append((1, 1, 0.2))
    repeats.follow(results)
    assert repeats.original(1) == 0
    assert repeats.original(0) is None
    results.append((1, 2, 0.31))
    repeats.follow(results)
    assert repeats.original(1) is None


def test_of_two_that_are_equally_far_the_later_repeats() -> None:
    repeats = Repeats()
    repeats.follow([(3, 0, 0.1), (7, 0, 0.1), (7, 1, 0.2), (3, 1, 0.2)])
    assert repeats.original(3) == 7
    assert repeats.original(7) is None


def test_flat_curves_say_nothing() -> None:
    repeats = Repeats()
    repeats.follow([(0, 0, 0.1), (0, 1, 0.1), (0, 2, 0.1), (1, 0, 0.1), (1, 1, 0.1)])
    assert repeats.original(1) is None


def test_what_is_indexed_bit_by_bit_is_what_is_indexed_at_once() -> None:
    results: list[tuple[int, int, float | None]] = [(k % 5, k // 5, float((k * 7) % 3)) for k in range(30)]
    at_once, by_bits = Repeats(), Repeats()
    at_once.follow(results)
    for k in range(len(results) + 1):
        by_bits.follow(results[:k])
    assert [at_once.original(t) for t in range(5)] == [by_bits.original(t) for t in range(5)]


def test_a_parameter_without_effect_is_not_paid_for_twice() -> None:
    """The code rounds x to one of nine values: there are nine curves, and no more are trained to the end."""

    def evaluate(config: dict[str, Any], checkpoint: int | None) -> Iterator[Step]:
        x = round(8 * config["x"]) / 8
        for r in range((checkpoint or 0) + 1, 28):
            yield Step({"loss": (x - 0.5) ** 2 + 1 / r**0.5}, 1.0, r)

    space = {"x": uniform(0, 1)}
    done = simulate(
        evaluate, space, metric="loss", mode="min", max_t=27, scheduler="freeze_thaw", time_budget_s=6 * 27 / 4
    )
    full = [round(8 * t.params["x"]) for t in done.trials if t.iteration == 27]
    assert len(full) == len(set(full)) >= 1
    assert any(
        "all its results so far equal those of trial" in d.reason for d in done.decisions if isinstance(d, Pause)
    )
