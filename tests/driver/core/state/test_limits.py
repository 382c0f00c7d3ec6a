"""Test the limits that end the whole experiment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tuner
from tests.driver.bench import Bench, interrupts, launches
from tuner.domain import events as e
from tuner.domain.events import Failure
from tuner.domain.experiment import Scaling
from tuner.domain.states import ExperimentState


def fail(bench: Bench, number: int) -> None:
    """Let a trial report once and fail, each in another line: failures that are alike end a search before the limit."""
    bench.started(number)
    bench.reported(number)
    failure = Failure(kind="user", message=f"KeyError: {number}", rank=0, traceback=f'File "a.py", line {number}')
    bench.ended(number, "failed", failure)


def test_a_search_ends_as_failed_after_max_failed_trials_and_counts_anew_once_it_is_continued() -> None:
    bench = Bench(num_samples=20, limits={"max_concurrent_trials": 1, "max_failed_trials": 2})
    fail(bench, 0)
    assert bench.core.state is ExperimentState.RUNNING
    fail(bench, 1)
    assert bench.core.state is ExperimentState.FAILED
    assert bench.core.experiment.finishing == "2 trials failed, and max_failed_trials is 2"
    bench = bench.successor()
    assert bench.core.state is ExperimentState.FAILED
    assert launches(bench.command("continue")) == [(2, 1)]
    fail(bench, 2)
    bench = bench.successor()
    assert bench.core.state is ExperimentState.RUNNING
    fail(bench, 3)
    assert bench.core.state is ExperimentState.FAILED


def test_a_single_failure_ends_a_search_with_results_if_max_failed_trials_is_one() -> None:
    bench = Bench(num_samples=20, limits={"max_concurrent_trials": 2, "max_failed_trials": 1})
    bench.started(0)
    bench.reported(0)
    fail(bench, 1)
    bench.reported(0)
    assert bench.verdict(0) == "stop"
    bench.ended(0, "left")
    assert bench.states == ["stopped", "failed"]
    assert bench.core.state is ExperimentState.FAILED
    assert "max_failed_trials is 1" in (bench.core.experiment.error or "")
    assert len(bench.core.trials) == 2


@pytest.mark.parametrize("limit", ["time_budget_s", "gpu_hours"])
def test_no_trial_starts_if_a_search_is_continued_although_its_time_or_gpu_hours_are_used_up(limit: str) -> None:
    """Each `continue`, and each resume of a paused search, had started trials, which then stopped at their first report."""
    value = 5.0 if limit == "time_budget_s" else 5 / 3600
    scaling = Scaling(use_gpu=True)
    bench = Bench(num_samples=20, scaling=scaling, limits={"max_concurrent_trials": 2, limit: value})

    def spend() -> None:
        if limit == "time_budget_s":
            bench.feed(e.BudgetSpent(time=bench.tick(), seconds=value))
        else:
            bench.feed(e.GpuHoursSpent(time=bench.tick(), gpu_hours=value))

    for number in (0, 1):
        bench.started(number)
    for _ in range(4):
        bench.reported(0)
    spend()
    for number in (0, 1):
        bench.ended(number, "left")
    assert bench.core.state is ExperimentState.COMPLETED
    bench = bench.successor()
    assert launches(bench.command("continue")) == []
    spend()
    assert (bench.core.state, bench.states) == (ExperimentState.COMPLETED, ["stopped", "stopped"])
    bench.feed(e.Enqueued(time=bench.tick(), points=({"params": {"x": 0.5}},)))
    assert launches(bench.command("continue")) == []
    spend()
    assert (bench.core.state, bench.states) == (ExperimentState.COMPLETED, ["stopped", "stopped"])
    bench.feed(e.Amended(time=bench.tick(), changes={"limits": {limit: 10 * value}}))
    assert launches(bench.command("continue")) == [(2, 1), (3, 1)]
    assert bench.core.trials[2].params == {"x": 0.5}


@pytest.mark.parametrize("limit", ["time_budget_s", "gpu_hours"])
@pytest.mark.parametrize("raised", [False, True])
def test_no_held_trial_starts_if_a_search_is_resumed_after_its_limit_was_lowered(limit: str, raised: bool) -> None:
    """The trials had started, those without a checkpoint from the beginning, and had been stopped at their next report."""
    unit = 1.0 if limit == "time_budget_s" else 1 / 3600
    bench = Bench(num_samples=2, scaling=Scaling(use_gpu=True), limits={"max_concurrent_trials": 2, limit: 100 * unit})
    for number in (0, 1):
        bench.started(number)
        bench.reported(number)
    bench.command("pause")
    for number in (0, 1):
        bench.reported(number)
        bench.ended(number)
    assert bench.core.state is ExperimentState.PAUSED
    bench = bench.successor()
    bench.feed(e.DriverStarted(time=bench.tick(), epoch=2))
    bench.feed(e.Amended(time=bench.tick(), changes={"limits": {limit: unit}}))
    out = bench.command("resume")
    assert (launches(out), bench.states) == ([], ["paused", "paused"])
    assert bench.core.state is ExperimentState.RUNNING
    assert [trial.iteration for trial in bench.core.trials] == [2, 2]
    if raised:  # before the driver's timer has ended the search
        out = bench.feed(e.Amended(time=bench.tick(), changes={"limits": {limit: 100 * unit}}))
        assert launches(out) == [(0, 2), (1, 2)]
        return
    if limit == "time_budget_s":
        bench.feed(e.BudgetSpent(time=bench.tick(), seconds=unit))
    else:
        bench.feed(e.GpuHoursSpent(time=bench.tick(), gpu_hours=unit))
    assert (bench.core.state, bench.states) == (ExperimentState.COMPLETED, ["stopped", "stopped"])
    assert [trial.iteration for trial in bench.core.trials] == [2, 2]


def test_a_simulated_search_has_the_limit_too() -> None:
    def broken(config: dict[str, float], checkpoint: int | None) -> Iterator[tuner.Step]:
        yield tuner.Step({"loss": 1.0}, 1.0)
        raise KeyError(config["x"])

    space = {"x": tuner.uniform(0, 1)}
    result = tuner.simulate(
        broken,
        space,
        metric="loss",
        mode="min",
        num_samples=9,
        scheduler="fifo",
        max_concurrent_trials=1,
        max_failed_trials=2,
    )
    assert (result.state, len(result.trials)) == (ExperimentState.FAILED, 2)
    assert "max_failed_trials is 2" in (result.error or "")


def test_trials_that_a_user_asks_for_reset_no_count_of_a_search_that_goes_on() -> None:
    bench = Bench(num_samples=20, limits={"max_concurrent_trials": 1, "max_failed_trials": 3})
    for number in (0, 1):
        fail(bench, number)
        bench.command("retry", number)
        bench.feed(e.Commanded(time=bench.tick(), command="continue", for_trials=True))
    bench = bench.successor()
    assert bench.core.state is ExperimentState.RUNNING
    bench.feed(e.DriverStarted(time=bench.tick(), epoch=2))
    fail(bench, 2)
    assert bench.core.state is ExperimentState.FAILED
    bench.command("retry", 2)
    bench.feed(e.Commanded(time=bench.tick(), command="continue", for_trials=True))
    assert bench.core.state is ExperimentState.RUNNING, "the search had ended, so it counts anew"


def test_a_user_who_continues_a_search_that_goes_on_resets_its_counts() -> None:
    bench = Bench(num_samples=20, limits={"max_concurrent_trials": 1, "max_failed_trials": 3})
    fail(bench, 0)
    fail(bench, 1)
    bench.command("continue")
    fail(bench, 2)
    assert bench.core.state is ExperimentState.RUNNING


def test_a_limit_that_is_hit_later_does_not_replace_why_the_search_ended() -> None:
    bench = Bench(num_samples=5, limits={"max_concurrent_trials": 2, "max_failed_trials": 1, "gpu_hours": 1.0})
    bench.started(0)
    bench.reported(0)
    fail(bench, 1)
    bench.feed(e.BudgetSpent(time=bench.tick(), seconds=60))
    bench.feed(e.GpuHoursSpent(time=bench.tick(), gpu_hours=1.0))
    assert bench.core.experiment.capped
    bench = bench.successor()
    bench.feed(e.DriverStarted(time=bench.tick(), epoch=2))
    assert bench.core.state is ExperimentState.FAILED
    assert "max_failed_trials is 1" in (bench.core.experiment.error or "")
    assert bench.core.summary()["reason"] == "1 trial failed, and max_failed_trials is 1"


def test_trials_that_a_limit_stops_while_the_search_ends_name_the_limit() -> None:
    bench = Bench(num_samples=20, limits={"max_concurrent_trials": 2})
    bench.started(0)
    for number in range(1, 11):
        bench.started(number)
        failure = Failure(kind="user", message=f"{number}", rank=0, traceback=f'File "a.py", line {number}')
        bench.ended(number, "failed", failure)
    assert bench.states[0] == "running", "it may train to its end"
    assert "none has ever reported" in (bench.core.experiment.finishing or "")
    bench.feed(e.BudgetSpent(time=bench.tick(), seconds=60))
    assert bench.core.trials[0].reason == "the time budget of 60 s is spent"
    assert "none has ever reported" in (bench.core.experiment.finishing or "")


def test_used_up_gpu_hours_also_end_the_segments_that_are_ending_already() -> None:
    """A trial that has completed may be saving its last checkpoint, on GPUs that are not paid for."""
    bench = Bench(limits={"max_concurrent_trials": 2, "gpu_hours": 1.0}, max_t=1)
    bench.started(0)
    bench.started(1)
    bench.reported(0)
    assert (bench.states[0], bench.verdict(0)) == ("completed", "stop")
    out = bench.feed(e.GpuHoursSpent(time=bench.tick(), gpu_hours=1.0))
    assert sorted(interrupts(out)) == [0, 1]


def test_the_time_of_a_time_stopper_does_not_run_while_the_search_is_paused() -> None:
    """A search that was paused overnight had ended at its first report in the morning."""
    bench = Bench(num_samples=1, stop={"type": "time", "seconds": 20})
    bench.started(0)
    bench.reported(0)
    bench.command("pause")
    bench.reported(0)
    bench.ended(0)
    assert bench.core.state is ExperimentState.PAUSED
    bench.now += 3600
    bench = bench.successor()
    bench.feed(e.DriverStarted(time=bench.tick(), epoch=2))
    bench.command("resume")
    bench.started(0)
    bench.reported(0)
    assert (bench.core.state, bench.verdict(0)) == (ExperimentState.RUNNING, "continue")
    bench.now += 20
    bench.reported(0)
    assert bench.verdict(0) == "stop"
