"""Test the core, fed by hand with commands, reports and restarts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.driver.bench import Bench, interrupts, launches
from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.events import Failure
from tuner.domain.segments import SegmentRef
from tuner.domain.states import ExperimentState, SegmentState, TrialState
from tuner.driver.assemble import Parts, assemble
from tuner.schedulers.fifo import FIFOScheduler


def test_as_many_trials_start_as_there_are_slots() -> None:
    bench = Bench()
    assert bench.states == ["pending", "pending"]
    bench.started(0)
    assert bench.states == ["running", "pending"]
    out = bench.ended(1, "failed", Failure(kind="user", message="no"))
    assert launches(out) == [(2, 1)]
    assert bench.states == ["running", "failed", "pending"]


def test_the_reason_of_a_start_names_what_allows_it() -> None:
    limited = Bench(scheduler={"type": "asha"}, max_t=9)
    assert {trial.reason for trial in limited.core.trials} == {"the limit on concurrent trials allows one more"}
    free = Bench(scheduler={"type": "asha"}, max_t=9, limits={}, room={"slots": 2})
    assert [trial.reason for trial in free.core.trials] == ["there are resources for one more trial"] * 2
    free = Bench(search={"type": "gp"}, limits={}, room={"slots": 1})
    free.feed(e.Suggested(time=1.0, number=0, params={"x": 0.5}, note="by a model"))
    assert free.core.trials[0].reason == "there are resources for one more trial; by a model"


def test_a_scheduler_resumes_only_what_it_has_paused_and_changes_no_number_of_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(num_samples=3, limits={"max_concurrent_trials": 3})
    for number in range(3):
        bench.started(number)
    bench.command("pause", 1)  # by a user
    bench.ended(1)
    resumes = [d.Resume(trial=number, reason="it is its turn") for number in (0, 1)]
    ended = d.Stop(trial=2, reason="it has ended already")
    decisions: list[d.Decision] = [*resumes, ended, d.Resize(trial=0, workers=2, reason="more")]
    monkeypatch.setattr(bench.core.scheduler, "decide", lambda fact, trials: decisions)
    choices = [resumes[1]]
    monkeypatch.setattr(bench.core.scheduler, "choose", lambda trials, may_start: choices.pop() if choices else None)
    before = len(bench.log)
    bench.ended(2, "returned")
    assert not [entry for _, entry in bench.log[before:] if isinstance(entry, d.Resume | d.Stop | d.Resize)]
    assert bench.states == ["running", "paused", "completed"]


def test_a_report_that_comes_twice_counts_once_and_gets_the_same_verdict() -> None:
    bench = Bench(max_t=2)
    bench.started(0)
    bench.reported(0)
    bench.reported(0)
    first = bench.core.verdict(SegmentRef(0, 1))
    again = e.Reported(time=9, trial=0, segment=1, report_no=2, iteration=2, metrics={"loss": 1.0})
    assert bench.feed(again).log == []
    assert bench.core.verdict(SegmentRef(0, 1)) == first
    assert first.action == "stop"
    assert first.completed
    assert bench.core.trials[0].reports == 2


def test_a_pause_waits_for_the_next_report_and_resume_goes_on_from_the_checkpoint() -> None:
    bench = Bench()
    bench.started(0)
    bench.started(1)
    bench.reported(0, checkpoint=True)
    out = bench.command("pause")
    assert sorted(interrupts(out)) == [0, 1]
    assert bench.core.state is ExperimentState.PAUSING
    bench.reported(0, checkpoint=True)
    assert bench.verdict(0) == "pause"
    assert bench.core.verdict(SegmentRef(0, 1)).save_checkpoint
    bench.ended(0)
    assert bench.core.state is ExperimentState.PAUSING
    bench.reported(1)
    bench.ended(1)
    assert bench.core.state is ExperimentState.PAUSED
    assert bench.states == ["paused", "paused"]

    later = bench.successor()
    out = later.feed(e.DriverStarted(time=later.tick(), epoch=2))
    assert launches(out) == []
    out = later.command("resume")
    assert launches(out) == [(0, 2), (1, 2)]
    assert [t.segments[-1].start_iteration for t in later.core.trials] == [2, 0]
    assert [t.segments[-1].cause for t in later.core.trials] == ["resume", "resume"]


def test_a_pause_in_the_report_that_the_scheduler_stops_at_does_not_save_the_trial() -> None:
    bench = Bench(scheduler={"type": "asha", "max_t": 9, "reduction_factor": 3}, num_samples=4)
    for number in (0, 1):
        bench.started(number)
    bench.reported(0, loss=0.1)
    bench.command("pause", trial=1)
    bench.reported(1, loss=5.0)
    assert bench.states[1] == "stopped"
    assert bench.core.trials[1].reason.startswith("stopped at iteration 1")
    assert bench.verdict(1) == "stop"
    assert not bench.core.verdict(SegmentRef(1, 1)).completed


def test_a_pause_in_the_report_that_the_scheduler_pauses_at_holds_the_trial() -> None:
    limits = {"max_concurrent_trials": 9}
    bench = Bench(scheduler={"type": "hyperband"}, num_samples=9, max_t=9, limits=limits)
    for number in range(9):
        bench.started(number)
    bench.command("pause", trial=8)
    for number in range(9):
        bench.reported(8 - number, loss=number / 10, checkpoint=True)
    bench.ended(8)
    assert (bench.states[8], bench.core.trials[8].held) == ("paused", True), "although it is the best of its bracket"
    assert launches(bench.command("resume", trial=8)) == [(8, 2)]


@pytest.mark.parametrize(
    "scheduler", [{"type": "hyperband"}, {"type": "pbt", "perturbation_interval": 3, "synch": True}]
)
def test_trials_that_wait_for_one_that_a_user_has_paused_go_on_after_its_resume(scheduler: dict[str, Any]) -> None:
    bench = Bench(scheduler=scheduler, num_samples=9, max_t=9, limits={"max_concurrent_trials": 9})
    bench.started(0)
    bench.command("pause", trial=0)
    train(bench)
    assert bench.core.state is ExperimentState.RUNNING
    assert {trial.iteration for trial in bench.core.trials} == {1, 3}
    bench.command("resume", trial=0)
    train(bench)
    assert bench.core.state is ExperimentState.COMPLETED
    assert max(trial.iteration for trial in bench.core.trials) == 9


def train(bench: Bench) -> None:
    """Let all trials train until none runs."""
    while open_now := [trial for trial in bench.core.trials if trial.holds_resources]:
        for trial in open_now:
            if not trial.segments[-1].started:
                bench.started(trial.number)
            elif trial.segments[-1].leaving:
                bench.ended(trial.number)
            else:
                bench.reported(trial.number, loss=trial.number / 10, checkpoint=True)


@pytest.mark.parametrize("how", ["exploit", "failure", "driver"])
def test_a_pause_that_a_segment_ends_before_pauses_the_next_one(how: str) -> None:
    options = {"scheduler": {"type": "pbt", "perturbation_interval": 1}} if how == "exploit" else {"max_t": 9}
    limits = {"max_concurrent_trials": 2, "max_failures": 1}
    bench = Bench(num_samples=2, limits=limits, **options)
    for number in (0, 1):
        bench.started(number)
    bench.reported(0, loss=0.1, checkpoint=True)
    bench.command("pause", trial=1)
    match how:
        case "exploit":
            bench.reported(1, loss=5.0, checkpoint=True)
            bench.ended(1)
        case "failure":
            bench.ended(1, "failed", Failure(kind="user", message="boom"))
        case "driver":
            bench = bench.successor()
            bench.feed(e.DriverStarted(time=bench.tick(), epoch=2))
    segment = bench.core.trials[1].segments[-1]
    assert (segment.ordinal, segment.cause) == (2, "exploit" if how == "exploit" else "retry")
    bench.started(1)
    bench.reported(1, loss=0.0, checkpoint=True)
    assert (bench.states[1], bench.core.trials[1].held) == ("paused", True)
    bench.ended(1)
    bench.command("resume", trial=1)
    bench.started(1)
    bench.reported(1, loss=0.0, checkpoint=True)
    assert bench.states[1] == "running", "it is paused only once"


def test_cancel_ends_everything() -> None:
    bench = Bench()
    bench.started(0)
    out = bench.command("cancel")
    assert sorted(interrupts(out)) == [0, 1]
    assert bench.states == ["cancelled", "cancelled"]
    assert bench.core.state is ExperimentState.CANCELLING
    bench.ended(0)
    bench.ended(1)
    assert bench.core.state is ExperimentState.CANCELLED


def test_stopping_one_trial_leaves_the_others() -> None:
    bench = Bench()
    bench.started(0)
    assert interrupts(bench.command("stop", trial=0)) == [0]
    assert launches(bench.ended(0)) == [(2, 1)]
    assert bench.states == ["stopped", "pending", "pending"]


def test_a_new_driver_takes_up_what_ran_from_its_checkpoint() -> None:
    bench = Bench()
    bench.started(0)
    bench.started(1)
    bench.reported(0, checkpoint=True)
    bench.reported(0)
    later = bench.successor()
    out = later.feed(e.DriverStarted(time=later.tick(), epoch=2))
    assert launches(out) == [(0, 2), (1, 2)]
    first, second = later.core.trials
    assert first.segments[-1].start_iteration == 1
    assert first.segments[-1].source is not None
    assert second.segments[-1].source is None
    assert (first.failures, first.system_failures) == (0, 0)


def test_the_budget_counts_running_time_only() -> None:
    bench = Bench()
    bench.started(0)
    bench.reported(0)
    ran = bench.core.experiment.running_s
    later = bench.successor()
    later.now += 1000
    later.feed(e.DriverStarted(time=later.now, epoch=2))
    assert later.core.experiment.running_s == ran
    later.started(0)
    assert later.core.experiment.running_s == ran + 1


@pytest.mark.parametrize("outcome", ["returned", "left", "failed"])
def test_every_trial_ends_and_the_experiment_with_it(outcome: str) -> None:
    bench = Bench(num_samples=3, limits={"max_concurrent_trials": 1, "max_system_failures": 0})
    for number in range(3):
        bench.started(number)
        bench.reported(number)
        if outcome == "left":
            bench.command("stop", trial=number)
        bench.ended(number, outcome, Failure(kind="system", message="lost") if outcome == "failed" else None)
    assert bench.core.state is (ExperimentState.FAILED if outcome == "failed" else ExperimentState.COMPLETED)
    assert all(TrialState(s).ended for s in bench.states)
    assert isinstance(bench.log[-1][1], d.Finish)


def test_the_best_by_last_value_is_who_ends_best() -> None:
    bench = Bench(scope="last", num_samples=2)
    for number, losses in ((0, (0.1, 0.9)), (1, (0.6, 0.5))):
        bench.started(number)
        for loss in losses:
            bench.reported(number, loss=loss)
    best = bench.core.summary()["best"]
    assert isinstance(best, dict)
    assert (best["trial_number"], best["value"]) == (1, 0.5)


@pytest.mark.parametrize("end", ["cancel", "budget"])
def test_a_suggestion_that_comes_too_late_starts_nothing(end: str) -> None:
    bench = Bench(search={"type": "gp"}, num_samples=2)
    out = bench.feed(e.Suggested(time=bench.tick(), number=0, params={"x": 0.3}))
    assert launches(out) == [(0, 1)]
    bench.started(0)
    if end == "cancel":
        bench.command("cancel")
    else:
        bench.feed(e.BudgetSpent(time=bench.tick(), seconds=1))
    out = bench.feed(e.Suggested(time=bench.tick(), number=1, params={"x": 0.4}))
    assert launches(out) == []
    bench.ended(0)
    assert bench.core.state is (ExperimentState.CANCELLED if end == "cancel" else ExperimentState.COMPLETED)


def test_a_model_fit_that_failed_changes_nothing() -> None:
    bench = Bench(scheduler={"type": "freeze_thaw", "max_t": 9}, num_samples=20, limits={"max_concurrent_trials": 1})
    bench.feed(e.ModelFitted(time=bench.tick(), payload={}))
    bench.started(0)
    bench.reported(0)
    assert bench.core.state is ExperimentState.RUNNING


def test_a_budget_that_is_spent_while_pausing_completes() -> None:
    bench = Bench(num_samples=1, limits={"max_concurrent_trials": 1})
    bench.started(0)
    bench.reported(0)
    bench.command("pause")
    bench.feed(e.BudgetSpent(time=bench.tick(), seconds=5))
    bench.ended(0)
    assert bench.states == ["stopped"]
    assert bench.core.state is ExperimentState.COMPLETED


def test_an_experiment_wide_stopper_ends_what_runs() -> None:
    bench = Bench(stop={"type": "time", "seconds": 3}, num_samples=None, limits={"max_concurrent_trials": 2})
    for number in (0, 1):
        bench.started(number)
    for _ in range(6):
        if bench.states[0] == "running":
            bench.reported(0)
    assert bench.states == ["stopped", "stopped"]
    for number in (0, 1):
        bench.ended(number)
    assert bench.core.state is ExperimentState.COMPLETED


def test_reports_on_the_way_to_a_pause_are_judged_like_others() -> None:
    bench = Bench(num_samples=1, max_t=3)
    bench.started(0)
    bench.reported(0)
    bench.command("pause")  # the ranks are being asked to wait at a later report
    bench.reported(0, waits=False)
    assert bench.states == ["running"]
    bench.reported(0)
    assert bench.states == ["completed"]


def test_a_rung_on_the_way_to_a_pause_is_not_escaped() -> None:
    bench = Bench(num_samples=1, max_t=27, scheduler={"type": "asha", "grace_period": 3, "reduction_factor": 3})
    bench.started(0)
    bench.reported(0)
    bench.command("pause")
    bench.reported(0, waits=False)
    bench.reported(0, checkpoint=True)
    assert bench.verdict(0) == "pause"
    assert [len(rung) for rung in bench.core.scheduler.state.rungs[0]] == [1]


def test_a_trial_that_has_returned_its_result_is_not_paused() -> None:
    """It would start over, and train again for the result that it has."""
    bench = Bench(num_samples=1)
    bench.started(0)
    bench.command("pause")
    bench.reported(0, last=True)
    assert bench.verdict(0) == "continue"
    bench.ended(0, "returned")
    assert bench.states == ["completed"]


@pytest.mark.parametrize("scheduler", [{"type": "asha", "grace_period": 1}, {"type": "hyperband"}], ids=str)
def test_no_scheduler_pauses_or_stops_a_trial_that_has_returned_its_result(scheduler: dict[str, Any]) -> None:
    bench = Bench(num_samples=2, max_t=9, scheduler=scheduler)
    for number, loss in enumerate([1.0, 2.0]):
        bench.started(number)
        bench.reported(number, loss, last=True)
        assert bench.verdict(number) == "continue"
        bench.ended(number, "returned")
    assert bench.states == ["completed", "completed"]
    assert bench.core.state is ExperimentState.COMPLETED


def test_a_report_behind_a_gap_is_not_counted_before_the_gap_is_filled() -> None:
    bench = Bench(num_samples=1)
    bench.started(0)
    bench.reported(0)
    late = e.Reported(time=9, trial=0, segment=1, report_no=3, iteration=3, metrics={"loss": 1.0})
    assert bench.feed(late).log == []
    bench.reported(0)
    assert bench.feed(late).log != []
    assert bench.core.trials[0].iteration == 3


def test_a_report_before_the_news_of_its_start_counts_once_for_the_scheduler() -> None:
    bench = Bench(
        num_samples=20,
        max_t=27,
        scheduler={"type": "freeze_thaw", "grace_period": 27},
        limits={"max_concurrent_trials": 1},
    )
    for _ in range(10):
        bench.reported(0)
    bench.started(0)
    bench.reported(0)
    assert bench.core.scheduler.state.spent == 11


def test_the_word_of_the_start_of_a_trial_that_has_ended_or_paused_does_not_make_it_run() -> None:
    options = {"num_samples": 20, "max_t": 27, "scheduler": {"type": "freeze_thaw"}}
    ended = Bench(**options)
    ended.reported(0, loss=math.nan)
    ended.started(0)
    assert 0 not in ended.core.scheduler.state.running
    paused = Bench(**options)
    paused.core.first_milestone(SegmentRef(0, 1))
    paused.reported(0)
    assert paused.verdict(0) == "pause"
    paused.started(0)
    assert paused.states[0] == "paused"
    assert 0 not in paused.core.scheduler.state.running


def test_after_an_exploit_the_next_interval_is_counted_from_the_donors_weights() -> None:
    bench = Bench(
        num_samples=4,
        time_attr="tokens",
        scheduler={"type": "pbt", "perturbation_interval": 100},
        limits={"max_concurrent_trials": 4},
    )
    for number, loss, tokens in ((3, 0.1, 1000), (2, 2, 100), (1, 3, 100), (0, 4, 100)):
        bench.started(number)
        bench.reported(number, loss=loss, checkpoint=True, tokens=tokens)
        bench.core.verdict(SegmentRef(number, 1))
        if number == 3:
            bench.reported(number, loss=loss, tokens=1050)
    bench.ended(0)
    trial = bench.core.trials[0]
    assert (trial.segments[-1].cause, trial.t) == ("exploit", 1000)
    assert bench.core.scheduler.milestone(trial, bench.core.trials) == 1100


def test_trials_of_an_experiment_that_was_being_paused_are_paused_after_a_restart() -> None:
    bench = Bench()
    bench.started(0)
    bench.started(1)
    bench.reported(0, checkpoint=True)
    bench.command("pause")
    after = bench.successor()
    after.feed(e.DriverStarted(time=after.tick(), epoch=2))
    assert after.core.state is ExperimentState.PAUSED
    assert after.states == ["paused", "paused"]
    after.command("resume")
    assert after.states == ["pending", "pending"]


def test_paused_trials_are_resumed_while_a_searcher_takes_its_time() -> None:
    bench = Bench(
        num_samples=8,
        max_t=9,
        search={"type": "gp"},
        scheduler={"type": "asha_promotion", "reduction_factor": 2},
        limits={"max_concurrent_trials": 1},
    )
    for number in range(2):
        bench.feed(e.Suggested(time=bench.tick(), number=number, params={"x": 0.5}))
        bench.started(number)
        bench.reported(number, loss=float(number), checkpoint=True)
        bench.ended(number) if bench.verdict(number) == "pause" else None
    assert bench.states[0] == "pending"  # promoted, with a proposal still to come


def test_a_start_keeps_the_tags_of_the_scheduler_that_waited_for_its_searcher() -> None:
    class Tagging(FIFOScheduler):
        def choose(self, trials: Any, may_start: bool) -> Any:
            return d.Start(reason="mine", tags={"bracket": 2}) if may_start else None

    bench = Bench(search={"type": "gp"}, num_samples=2)
    bench.core = assemble(bench.spec, bench.space, Parts(scheduler=Tagging()))
    bench.feed(e.DriverStarted(time=0.0, epoch=1))
    bench.feed(e.Suggested(time=1.0, number=0, params={"x": 0.5}, note="by a model"))
    assert bench.core.trials[0].tags == {"bracket": 2}
    assert bench.core.trials[0].reason == "mine; by a model"


def test_a_trial_that_is_resumed_while_it_leaves_is_resumed_once() -> None:
    bench = Bench(num_samples=20, max_t=27, scheduler={"type": "freeze_thaw"}, limits={"max_concurrent_trials": 1})
    bench.started(0)
    bench.reported(0, checkpoint=True)
    assert bench.verdict(0) == "pause"
    bench.command("resume", trial=0)
    bench.command("resume", trial=0)
    resumes = [entry for _, entry in bench.log if isinstance(entry, d.Resume)]
    assert len(resumes) == 1
    assert bench.states[0] == "pending"


def test_a_trial_that_waits_for_its_scheduler_and_was_held_by_a_user_waits_again_after_the_resume() -> None:
    bench = Bench(num_samples=9, max_t=9, scheduler={"type": "hyperband", "reduction_factor": 3})
    bench.started(0)
    bench.reported(0, checkpoint=True)
    assert bench.verdict(0) == "pause"
    bench.ended(0)
    bench.command("pause", trial=0)
    bench.command("pause")
    for number in (1, 2):
        bench.ended(number) if bench.core.trials[number].holds_resources else None
    bench.command("resume")
    trial = bench.core.trials[0]
    assert (trial.state, trial.held) == (TrialState.PAUSED, False), "its round is not over"


def test_a_segment_that_was_never_opened_is_dropped() -> None:
    """A trial that waits for a slot is stopped: its planned segment is neither open nor ended in any other way."""
    bench = Bench(num_samples=2)
    bench.started(0)
    bench.reported(0)
    bench.core._take(d.Pause(trial=0, reason="for a test"))
    bench.core._take(d.Resume(trial=0, reason="for a test"))
    planned = bench.core.trials[0].next
    assert planned is not None
    assert planned.state is SegmentState.PLANNED
    bench.command("stop", 0)
    assert planned.state is SegmentState.DROPPED
    assert [segment.state for segment in bench.core.trials[0].segments] == [SegmentState.LEAVING]


def test_what_a_search_says_about_its_spec_is_said_once() -> None:
    bench = Bench(max_t=9, scheduler={"type": "asha", "max_t": 3})
    said = "trials end at max_t 3, the smaller of two"
    assert [entry.reason for _, entry in bench.log if isinstance(entry, d.Note) and said in entry.reason]
    later = bench.successor()
    out = later.feed(e.DriverStarted(time=later.tick(), epoch=2))
    assert not [entry for _, entry in out.log if isinstance(entry, d.Note)]


def test_ranks_that_ask_after_the_end_of_their_segment_stop() -> None:
    bench = Bench(max_t=9)
    bench.started(0)
    bench.reported(0)
    bench.ended(0, "failed", Failure(kind="system", message="lost"))
    verdict = bench.core.verdict(SegmentRef(0, 1))
    assert (verdict.action, verdict.reason) == ("stop", "this segment has ended")
    assert bench.core.first_milestone(SegmentRef(0, 1)) == 1
