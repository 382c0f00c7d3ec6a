"""Time in which the driver's clock jumps, or its machine is suspended, does not count as training of any trial."""

from __future__ import annotations

import pytest

from tests.driver.bench import Bench
from tuner.domain import events as e
from tuner.domain.experiment import Scaling
from tuner.driver.core.actions import Fit
from tuner.driver.core.decider import FIT_AGAIN_S
from tuner.driver.recording import recording

GPUS = Scaling(num_workers=2, use_gpu=True)


def jump(bench: Bench, seconds: float) -> None:
    """Let the clock jump, half a second after the newest event, and let it be noticed half a second later."""
    start = bench.now + 0.5
    bench.now += seconds + 1.0
    bench.feed(e.ClockJumped(time=bench.now, start=start, seconds=seconds))


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_jump_counts_neither_as_training_nor_as_gpu_hours(seconds: float) -> None:
    calm, jumped = (Bench(scaling=GPUS, num_samples=1, time_attr="time_total_s", max_t=100) for _ in range(2))
    for bench in (calm, jumped):
        bench.now = 10_000.0
        bench.started(0)
        bench.reported(0)
        bench.reported(0)
        if bench is jumped:
            jump(bench, seconds)
        else:
            bench.tick()
        bench.reported(0, checkpoint=True)
        bench.reported(0)
    for trial in (calm.core.trials[0], jumped.core.trials[0], jumped.successor().core.trials[0]):
        assert (trial.running_s, trial.t, trial.segments[0].trained_s) == (5.0, 5.0, 5.0)
        assert trial.segments[0].saved_at == 10_005.0
    for name in ("gpu_hours", "cpu_hours"):
        assert jumped.core.summary()[name] == calm.core.summary()[name] == pytest.approx(2 * 5 / 3600)
    assert jumped.core.experiment.running_s == calm.core.experiment.running_s
    pauses = jumped.core.summary()["pauses"]
    assert pauses == ([(10_003.5, 13_603.5)] if seconds > 0 else [])
    jumped.ended(0, "returned")
    assert jumped.core.summary()["gpu_hours"] == pytest.approx(2 * 6 / 3600)
    assert jumped.successor().core.summary() == jumped.core.summary()


def test_a_report_that_was_made_before_a_jump_and_comes_after_it_does_not_count_it_either() -> None:
    bench = Bench(num_samples=1)
    bench.started(0)  # at 1 s
    bench.feed(e.ClockJumped(time=103.0, start=2.0, seconds=100.0))
    for report_no, time in ((1, 2.1), (2, 105.0)):
        bench.feed(
            e.Reported(time=time, trial=0, segment=1, report_no=report_no, iteration=report_no, metrics={"loss": 1.0})
        )
    assert bench.core.trials[0].running_s == pytest.approx(4.0)


@pytest.mark.parametrize(
    "behind", [0.0, 36_000.0], ids=["after a jump that was put right", "on a machine that is behind"]
)
def test_time_goes_on_if_the_clock_of_the_next_driver_is_behind(behind: float) -> None:
    bench = Bench(num_samples=1, scaling=GPUS)
    bench.now = 100_000.0
    bench.started(0)
    bench.reported(0)
    jump(bench, 36_000.0)
    bench.reported(0, checkpoint=True)
    successor = bench.successor()
    successor.now = 100_010.0 - behind
    successor.feed(e.DriverStarted(time=successor.now, epoch=2))
    successor.started(0)
    for _ in range(10):
        successor.reported(0)
    for core in (successor.core, successor.successor().core):
        assert core.trials[0].running_s == 3.0 + 10.0
        assert core.experiment.running_s == 3.0 + 1.0 + 10.0
        assert core.summary()["gpu_hours"] == pytest.approx(2 * (3.0 + 10.0) / 3600)
    found = recording(successor.log)
    assert [report.seconds for report in found.trials[0].reports] == [1.0, 2.0] + [1.0] * 10


def test_a_start_during_a_jump_counts_the_seconds_for_which_its_group_had_resources() -> None:
    bench = Bench(scaling=GPUS, num_samples=1)
    bench.feed(e.ClockJumped(time=1001.0, start=1.0, seconds=1000.0))
    bench.feed(e.SegmentStarted(time=1002.0, trial=0, segment=1, held_s=4.0))
    bench.now = 1003.0
    bench.reported(0)  # at 1004 s
    assert bench.core.summary()["gpu_hours"] == pytest.approx(2 * 6 / 3600)


def test_a_time_limit_for_the_search_does_not_count_a_jump() -> None:
    bench = Bench(num_samples=1, stop={"type": "time", "seconds": 60})
    bench.started(0)
    bench.reported(0)
    jump(bench, 3600.0)
    bench.reported(0)
    assert bench.core.experiment.finishing is None
    bench.now += 60
    bench.reported(0)
    assert bench.core.experiment.finishing is not None


def test_a_failed_fit_is_tried_again_soon_although_the_clock_was_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(num_samples=1)
    bench.now = 10_000.0
    bench.started(0)
    monkeypatch.setattr(bench.core.scheduler, "fit_request", lambda trials: {"some": "data"})
    assert any(isinstance(action, Fit) for action in bench.reported(0).actions)
    bench.feed(e.ModelFitted(time=bench.tick(), payload={}))
    jump(bench, -3600.0)
    bench.now += FIT_AGAIN_S
    assert any(isinstance(action, Fit) for action in bench.reported(0).actions)


def test_a_recording_does_not_count_a_jump() -> None:
    bench = Bench(num_samples=1)
    bench.started(0)
    bench.reported(0)
    jump(bench, 3600.0)
    bench.reported(0)
    bench.ended(0, "returned")
    found = recording(bench.log)
    assert [report.seconds for report in found.trials[0].reports] == [1.0, 2.0]
    assert found.seconds == 4.0
