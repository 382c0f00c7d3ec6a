"""Test the decisions that follow a user's command."""

from __future__ import annotations

import re

import pytest

from tests.driver.bench import Bench


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
