"""Test the decisions that follow a user's command."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.driver.bench import Bench, interrupts, launches
from tuner.domain import events as e
from tuner.domain.states import ExperimentState


def reasons(bench: Bench, number: int) -> list[str]:
    """Return the reason of the trial, and those of the decisions that ended it."""
    ends = [entry.reason for _, entry in bench.log if entry.KIND in ("stop", "cancel") and entry.trial == number]
    return [bench.core.trials[number].reason, *ends]


@pytest.mark.parametrize(("command", "done"), [("stop", "stopped"), ("kill", "killed")])
def test_the_reason_names_no_iteration_before_the_one_at_which_the_trial_ends(command: str, done: str) -> None:
    """A running trial makes its last report after the command."""
    bench = Bench()
    bench.started(0)
    bench.reported(0)
    bench.command(command, trial=0)
    bench.reported(0)
    bench.ended(0)
    trial = bench.core.trials[0]
    assert trial.iteration == 2
    for reason in reasons(bench, 0):
        assert reason.startswith(f"{done} by a user")
        assert set(re.findall(r"\d+", reason)) <= {str(trial.iteration)}, reason
    assert bench.successor().core.trials[0].reason == trial.reason


@pytest.mark.parametrize(("command", "done"), [("stop", "stopped"), ("kill", "killed")])
def test_the_reason_names_the_iteration_at_which_a_paused_trial_ends(command: str, done: str) -> None:
    bench = Bench()
    bench.started(0)
    bench.command("pause", trial=0)
    bench.reported(0, checkpoint=True)
    bench.ended(0)
    bench.command(command, trial=0)
    assert reasons(bench, 0) == [f"{done} by a user at iteration 1"] * 2


def test_the_reason_says_that_a_trial_ended_before_its_first_report() -> None:
    bench = Bench()
    bench.started(0)
    bench.command("pause", trial=0)
    bench.ended(0, "left")
    bench.command("stop", trial=0)
    trial = bench.core.trials[0]
    assert (trial.state, trial.reason) == ("stopped", "stopped by a user before its first report")


@pytest.mark.parametrize("command", ["cancel", "kill"])
def test_a_trial_that_has_ended_keeps_its_end_if_the_experiment_is_cancelled(command: str) -> None:
    bench = Bench(max_t=1)
    bench.started(0)
    bench.reported(0)
    bench.ended(0)
    bench.command(command)
    assert bench.states == ["completed", "cancelled", "cancelled"]
    assert [entry.trial for _, entry in bench.log if entry.KIND == "cancel"] == [1, 2]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_user_is_warned_once_if_resumed_trials_start_over(one_by_one: bool) -> None:
    bench = Bench()
    for number in (0, 1):
        bench.started(number)
        bench.reported(number)
    bench.command("pause")
    for number in (0, 1):
        bench.reported(number)
        bench.ended(number)
    if one_by_one:
        for number in (0, 1):
            bench.command("resume", trial=number)
    bench.command("resume")
    why = "resumed by a user; it has no checkpoint, so it starts from the beginning"
    assert [entry.reason for _, entry in bench.log if entry.KIND == "resume"] == [why] * 2
    notes = [entry.reason for _, entry in bench.log if entry.KIND == "note" and entry.warning]
    because = "its reports had no checkpoint: pass checkpoint=... to tuner.report, or in a study to the trial's report"
    assert notes == [f"trial 0 starts over and repeats 2 reports, because {because}"]


def test_a_trial_that_had_not_reported_before_it_was_paused_does_not_hide_the_warning() -> None:
    bench = Bench()
    for number in (0, 1):
        bench.started(number)
    bench.reported(1)
    bench.command("pause")
    bench.ended(0)
    bench.reported(1)
    bench.ended(1)
    bench.command("resume")
    notes = [entry.trial for _, entry in bench.log if entry.KIND == "note" and entry.warning]
    assert notes == [1]
    assert bench.successor().core.experiment.started_over == 1


def test_a_user_is_not_warned_if_a_resumed_trial_continues_from_a_checkpoint() -> None:
    bench = Bench()
    bench.started(0)
    bench.command("pause", trial=0)
    bench.reported(0, checkpoint=True)
    bench.ended(0)
    bench.command("resume", trial=0)
    assert [entry.reason for _, entry in bench.log if entry.KIND in ("resume", "note")] == ["resumed by a user"]


@pytest.mark.parametrize("command", ["cancel", "kill", "pause"])
def test_a_takeover_starts_no_trial_that_a_request_made_meanwhile_ends_or_pauses(command: str) -> None:
    """The trials had started, those without a checkpoint from the beginning, with none of their iterations."""
    bench = two_that_ran()
    request = e.Commanded(time=bench.tick(), command=command)  # type: ignore[arg-type]
    bench.core.decider.expect([request])
    assert launches(bench.feed(e.DriverStarted(time=bench.tick(), epoch=2))) == []
    assert launches(bench.feed(request)) == []
    assert bench.states == ["paused" if command == "pause" else "cancelled"] * 2
    assert bench.core.state is (ExperimentState.PAUSED if command == "pause" else ExperimentState.CANCELLED)
    assert [trial.iteration for trial in bench.core.trials] == [1, 1]
    if command == "pause":
        again = bench.successor()
        assert again.states == bench.states
        again.feed(e.DriverStarted(time=again.tick(), epoch=3))
        assert launches(again.command("resume")) == [(0, 2), (1, 2)]


def test_a_takeover_starts_no_trial_if_a_limit_was_lowered_meanwhile_and_all_if_it_is_raised_again() -> None:
    bench = two_that_ran(limits={"max_concurrent_trials": 2, "time_budget_s": 100.0})
    lowered, raised = (e.Amended(time=bench.tick(), changes={"limits": {"time_budget_s": x}}) for x in (1.0, 100.0))
    bench.core.decider.expect([lowered])
    assert launches(bench.feed(e.DriverStarted(time=bench.tick(), epoch=2))) == []
    assert launches(bench.feed(lowered)) == []
    assert bench.core.state is ExperimentState.RUNNING, "the driver's timer ends it next"
    spent = bench.successor()
    spent.feed(e.BudgetSpent(time=spent.tick(), seconds=1.0))
    assert (spent.states, spent.core.state) == (["stopped", "stopped"], ExperimentState.COMPLETED)
    assert [trial.iteration for trial in spent.core.trials] == [1, 1]
    assert launches(bench.feed(raised)) == [(0, 2), (1, 2)]


@pytest.mark.parametrize("command", [None, "pause"])
def test_a_takeover_continues_trials_before_requests_about_single_ones(command: str | None) -> None:
    bench = two_that_ran()
    requests = [e.Commanded(time=bench.tick(), command="pause", trial=1)] if command else []
    bench.core.decider.expect(requests)
    assert launches(bench.feed(e.DriverStarted(time=bench.tick(), epoch=2))) == [(0, 2), (1, 2)]
    for request in requests:
        assert interrupts(bench.feed(request)) == [1]


def two_that_ran(**options: Any) -> Bench:
    """Return a new driver of a search whose two trials have reported once, and ran when their driver died."""
    bench = Bench(num_samples=2, **options)
    for number in (0, 1):
        bench.started(number)
        bench.reported(number)
    return bench.successor()


def test_a_resume_that_came_when_a_limit_was_used_up_outlives_its_driver() -> None:
    """The trials stayed paused if the driver died before the limit ended the search, and the user then raised the limit."""
    bench = two_that_ran(limits={"max_concurrent_trials": 2, "time_budget_s": 100.0})
    bench.core.decider.expect([pause := e.Commanded(time=bench.tick(), command="pause")])
    bench.feed(e.DriverStarted(time=bench.tick(), epoch=2))
    bench.feed(pause)
    lowered, raised = (e.Amended(time=bench.tick(), changes={"limits": {"time_budget_s": x}}) for x in (1.0, 100.0))
    bench.feed(lowered)
    assert launches(bench.command("resume")) == []
    after = bench.successor()
    after.core.decider.expect([raised])
    assert launches(after.feed(e.DriverStarted(time=after.tick(), epoch=3))) == []
    assert launches(after.feed(raised)) == [(0, 2), (1, 2)]
    after.command("pause", trial=0)
    after.ended(0)
    assert launches(after.feed(e.Amended(time=after.tick(), changes={"limits": {"time_budget_s": 200.0}}))) == []
