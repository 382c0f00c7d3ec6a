"""Test when an experiment counts as not running: paused, ended before it was continued, or without a driver."""

from __future__ import annotations

from tests.driver.bench import Bench
from tuner.domain import events as e
from tuner.domain.states import ExperimentState


def test_pauses_are_counted_from_the_last_rank_that_left_to_the_resume() -> None:
    bench = Bench(num_samples=1)
    bench.started(0)
    bench.reported(0)
    bench.command("pause")  # at 3 s
    bench.reported(0)
    bench.ended(0)  # at 5 s
    assert bench.core.state is ExperimentState.PAUSED
    assert bench.core.summary()["pauses"] == [(5.0, None)]
    bench.now = 99.0
    bench.command("resume")
    assert bench.core.summary()["pauses"] == [(5.0, 100.0)]


def test_the_time_between_an_end_and_a_continuation_is_a_pause() -> None:
    bench = Bench(num_samples=1)
    bench.started(0)
    bench.ended(0, "returned")  # at 2 s
    assert bench.core.ended
    bench.feed(e.Amended(time=bench.tick(), changes={"num_samples": 2}))
    bench.now = 49.0
    bench.command("continue")
    assert bench.core.summary()["pauses"] == [(2.0, 50.0)]


def test_the_time_without_a_driver_is_a_pause_and_a_fold_agrees() -> None:
    bench = Bench(num_samples=1)
    bench.started(0)
    bench.reported(0)  # at 2 s
    later = bench.successor()
    later.feed(e.DriverStarted(time=60.0, epoch=2))
    assert later.core.summary()["pauses"] == [(2.0, 60.0)]
    later.now = 60.0
    later.command("pause")
    later.started(0)
    later.reported(0)
    later.ended(0)
    [_, (begin, _)] = later.core.experiment.pauses.spans
    third = later.successor()
    third.feed(e.DriverStarted(time=500.0, epoch=3))  # takes up what is still paused
    assert third.core.summary()["pauses"] == [(2.0, 60.0), (begin, None)]
