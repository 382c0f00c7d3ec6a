"""The core, fed by hand with commands, failures and restarts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

import tuner
from tests.driver.bench import Bench, interrupts, launches
from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.events import CheckpointInfo, Event, Failure
from tuner.domain.segments import SegmentRef
from tuner.domain.states import ExperimentState, SegmentState, TrialState
from tuner.driver.assemble import Parts, assemble
from tuner.driver.core.actions import DeleteCheckpoint
from tuner.schedulers.fifo import FIFOScheduler
from tuner.schedulers.stoppers import FunctionStopper
from tuner.space import Space


def test_as_many_trials_start_as_there_are_slots() -> None:
    bench = Bench()
    assert bench.states == ["pending", "pending"]
    bench.started(0)
    assert bench.states == ["running", "pending"]
    out = bench.ended(1, "failed", Failure(kind="user", message="no"))
    assert launches(out) == [(2, 1)]
    assert bench.states == ["running", "failed", "pending"]


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


def test_system_failures_retry_by_themselves_and_user_failures_count() -> None:
    bench = Bench(limits={"max_concurrent_trials": 1, "max_failures": 1})
    bench.started(0)
    bench.reported(0, checkpoint=True)
    out = bench.ended(0, "failed", Failure(kind="system", message="the node was lost", rank=1, node="n2"))
    assert launches(out) == [(0, 2)]
    assert "rank 1 on n2: the node was lost" in bench.core.trials[0].reason
    bench.started(0)
    out = bench.ended(0, "failed", Failure(kind="user", message="ValueError: no", rank=0))
    assert launches(out) == [(0, 3)]
    bench.started(0)
    out = bench.ended(0, "failed", Failure(kind="user", message="ValueError: no", rank=0))
    assert launches(out) == [(1, 1)]
    assert bench.states[0] == "failed"
    trial = bench.core.trials[0]
    assert (trial.failures, trial.system_failures) == (2, 1)


@pytest.mark.parametrize("synch", [False, True])
def test_a_function_of_the_users_that_raises_in_the_scheduler_ends_the_experiment_in_words(synch: bool) -> None:
    """The function would raise for every later driver too."""

    def explore(params: dict[str, Any]) -> dict[str, Any]:
        return {"x": 1 / 0}

    space = Space.from_python({"x": tuner.uniform(0, 1)})
    pbt = tuner.PopulationBasedTraining(
        perturbation_interval=1, quantile_fraction=0.5, custom_explore_fn=explore, hyperparam_mutations={}, synch=synch
    )
    bench = Bench(num_samples=2)
    bench.core = assemble(bench.spec, space, Parts(scheduler=pbt))
    bench.feed(e.DriverStarted(time=0.0, epoch=1))
    for number in (0, 1):
        bench.started(number)
    for number in (0, 1):
        bench.reported(number, loss=float(number), checkpoint=True)
        bench.ended(number)
    for number in (0, 1):
        if bench.core.trials[number].holds_resources:
            bench.reported(number, loss=float(number), checkpoint=True)
            bench.ended(number)
    assert bench.core.state is ExperimentState.FAILED
    assert "the scheduler raised ZeroDivisionError: division by zero (explore, line " in (
        bench.core.experiment.error or ""
    )


def test_a_scheduler_that_raises_ends_trials_too_that_are_leaving_for_an_exploit() -> None:
    calls: list[int] = []

    def explore(params: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        if len(calls) > 1:
            raise ZeroDivisionError("no more")
        return {"x": 0.5}

    pbt = tuner.PopulationBasedTraining(
        perturbation_interval=1, quantile_fraction=0.5, custom_explore_fn=explore, hyperparam_mutations={}
    )
    bench = Bench(num_samples=4, limits={"max_concurrent_trials": 4})
    bench.core = assemble(bench.spec, bench.space, Parts(scheduler=pbt))
    bench.log.clear()
    bench.feed(e.DriverStarted(time=0.0, epoch=1))
    for number in range(4):
        bench.started(number)
    bench.reported(0, loss=0.0, checkpoint=True)
    bench.reported(1, loss=1.0)
    assert bench.verdict(1) == "exploit"
    bench.reported(2, loss=2.0)
    assert len(calls) == 2
    assert bench.states == ["stopped"] * 4
    assert launches(bench.ended(1)) == []
    for number in (0, 2, 3):
        assert bench.verdict(number) == "stop"
        bench.ended(number)
    assert bench.core.state is ExperimentState.FAILED
    assert sum(isinstance(entry, d.Finish) for _, entry in bench.log) == 1


def stops(trial: int, metrics: dict[str, float]) -> bool:
    raise ValueError(f"no idea about {trial}")


@pytest.mark.parametrize("cause", ["metric", "stop", "exception"])
def test_why_a_trial_failed_is_the_same_after_a_restart(cause: str) -> None:
    bench = Bench(num_samples=2)
    if cause == "stop":
        bench.core = assemble(bench.spec, bench.space, Parts(stopper=FunctionStopper(stops)))
        bench.log.clear()
        bench.feed(e.DriverStarted(time=0.0, epoch=1))
    for number in (0, 1):
        bench.started(number)
    match cause:
        case "metric":
            bench.feed(
                e.Reported(time=bench.tick(), trial=0, segment=1, report_no=1, iteration=1, metrics={"los": 1.0})
            )
        case "stop":
            bench.reported(0)
        case "exception":
            broken = Failure(kind="user", cause="exception", message="ValueError: no", traceback="where it was")
            bench.ended(0, "failed", broken)
    failure = bench.core.trials[0].failure
    assert failure is not None
    assert failure.cause == cause
    assert ("no idea about" in failure.traceback) == (cause == "stop")
    bench.log = [(seq, again(entry)) for seq, entry in bench.log]
    for trial in bench.core.trials:
        trial.segments[-1].milestone = trial.segments[-1].decide_at = None  # what its ranks were told is not of the log
    assert list(bench.successor().core.trials) == list(bench.core.trials)


def test_what_a_stop_function_said_of_a_report_that_was_lost_does_not_count_for_the_next_segment() -> None:
    bench = Bench(num_samples=1, stop={"loss": -9.0})
    stopper = FunctionStopper(stops)
    stopper.outside = True
    bench.core = assemble(bench.spec, bench.space, Parts(stopper=stopper))
    bench.log.clear()
    bench.feed(e.DriverStarted(time=0.0, epoch=1))
    bench.started(0)
    bench.feed(e.StopJudged(time=bench.tick(), trial=0, segment=1, iteration=1, answers=[{"stop": True}]))
    bench.ended(0, "failed", Failure(kind="system", cause="node_lost", message="gone"))  # and its report with it
    bench.started(0)
    bench.reported(0)
    assert bench.states == ["running"], "the function lets this report go on, or there would be an answer to it"
    bench.feed(e.StopJudged(time=bench.tick(), trial=0, segment=2, iteration=2, answers=[{"stop": True}]))
    bench.reported(0)
    assert bench.states == ["completed"]


def again(entry: Any) -> Any:
    """Return the entry as the database returns it."""
    data = json.loads(json.dumps(entry.to_json()))
    return e.from_json(entry.KIND, data) if isinstance(entry, Event) else d.from_json(entry.KIND, data)


LOST = Failure(kind="system", cause="disk_lost", message="the checkpoint lay on the disk of node n2, which is gone")


def test_what_went_with_the_disk_of_a_node_is_not_started_from_again() -> None:
    bench = Bench(checkpoint={"interval_s": None, "keep_last": 9, "keep_best": 9})
    for number in (0, 1):
        bench.started(number)
        for node in ("n1", "n2", "n2"):
            bench.reported(number, checkpoint=True, node=node)
    bench.ended(0, "failed", Failure(kind="system", cause="node_lost", message="its node was lost"))
    assert bench.core.trials[0].segments[-1].start_iteration == 3
    out = bench.ended(0, "failed", LOST)
    trial = bench.successor().core.trials[0]
    assert trial.checkpoints == bench.core.trials[0].checkpoints
    assert trial.segments[-1].start_iteration == bench.core.trials[0].segments[-1].start_iteration == 1
    assert trial.reason == f"started again from iteration 1 after trial 0: {LOST.message}"
    deleted = sorted(action.info.id for action in out.actions if isinstance(action, DeleteCheckpoint))
    assert deleted == ["ckp_0_1_2", "ckp_0_1_3", "ckp_1_1_2", "ckp_1_1_3"], "those of other trials went with it"
    other = bench.core.trials[1].checkpoint
    assert other is not None
    assert other.node == "n1"
    bench.ended(0, "failed", replace(LOST, message="the checkpoint lay on the disk of node n1"))
    assert bench.core.trials[0].segments[-1].source is None, "from the beginning, where no disk is left"


def test_one_checkpoint_that_is_gone_from_its_node_leaves_the_others() -> None:
    bench = Bench(limits={"max_concurrent_trials": 1}, checkpoint={"interval_s": None, "keep_last": 9, "keep_best": 9})
    bench.started(0)
    for _ in range(3):
        bench.reported(0, checkpoint=True, node="n1")
    bench.ended(0, "failed", Failure(kind="system", cause="node_lost", message="its node was lost"))
    unreachable = Failure(kind="system", cause="checkpoint_unreachable", message="not now")
    bench.ended(0, "failed", unreachable)
    assert bench.core.trials[0].segments[-1].start_iteration == 3, "what is only out of reach is tried again"
    bench.ended(0, "failed", replace(LOST, cause="checkpoint_lost"))
    assert bench.core.trials[0].segments[-1].start_iteration == 2


REFUSED = Failure(kind="placement", cause="placement", message="this cluster can never run 64 workers with 1 CPU each")


def test_workers_that_the_cluster_can_never_hold_end_the_experiment_at_the_first_refusal() -> None:
    bench = Bench(num_samples=100)
    out = bench.ended(0, "failed", REFUSED)
    assert launches(out) == []
    assert interrupts(out) == [1]
    bench.ended(1, "failed", REFUSED)  # its own refusal was on its way
    assert bench.states == ["failed", "stopped"]
    assert bench.core.state is ExperimentState.FAILED
    assert bench.core.experiment.error == "trial 0: this cluster can never run 64 workers with 1 CPU each"
    assert (
        bench.core.experiment.finishing == f"every trial asks for the same workers, and {bench.core.experiment.error}"
    )
    assert bench.successor().core.state is ExperimentState.FAILED


def test_a_refusal_ends_an_experiment_that_has_results_too() -> None:
    bench = Bench(num_samples=100)
    bench.started(0)
    bench.reported(0)
    bench.verdict(0)
    out = bench.ended(1, "failed", REFUSED)
    assert interrupts(out) == [0]
    bench.ended(0)
    assert (bench.states, bench.core.state) == (["stopped", "failed"], ExperimentState.FAILED)
    assert bench.core.best_trial() is bench.core.trials[0]


def test_workers_that_were_lost_while_they_started_are_started_again() -> None:
    bench = Bench(limits={"max_concurrent_trials": 1, "max_system_failures": 2})
    lost = Failure(kind="system", cause="lost_at_start", message="the workers were lost while they were started")
    for ordinal in (2, 3):
        assert launches(bench.ended(0, "failed", lost)) == [(0, ordinal)]
    assert launches(bench.ended(0, "failed", lost)) == [(1, 1)]
    assert bench.states == ["failed", "pending"]
    assert bench.core.state is ExperimentState.RUNNING


@pytest.mark.parametrize(("checkpoint", "again"), [(True, 1), (False, 3)])
def test_reports_that_a_retry_repeats_count_once_in_the_reason(checkpoint: bool, again: int) -> None:
    bench = Bench(limits={"max_concurrent_trials": 1, "max_failures": 1})
    bench.started(0)
    for _ in range(2):
        bench.reported(0, checkpoint=checkpoint)
    bench.ended(0, "failed", Failure(kind="user", message="no"))
    bench.started(0)
    for _ in range(again):
        bench.reported(0)
    bench.ended(0, "returned")
    assert bench.core.trials[0].reason == "the function returned after 3 reports"
    bench.started(1)
    bench.reported(1)
    bench.ended(1, "returned")
    assert bench.core.trials[1].reason == "the function returned after 1 report"


def test_old_checkpoints_go_but_never_the_best_the_newest_or_one_that_is_started_from() -> None:
    bench = Bench(limits={"max_concurrent_trials": 1})
    bench.started(0)
    deleted = []
    for loss in (0.5, 0.2, 0.9, 0.8):
        out = bench.reported(0, loss=loss, checkpoint=True)
        deleted += [a.info.step for a in out.actions if isinstance(a, DeleteCheckpoint)]
    assert deleted == [1, 3]
    best = bench.core.trials[0].best_checkpoint(bench.spec.objective)
    assert best is not None
    assert best.step == 2


def test_a_checkpoint_may_be_ready_before_its_report_comes() -> None:
    bench = Bench(limits={"max_concurrent_trials": 1})
    bench.started(0)
    info = CheckpointInfo(id="ckp", uri="memory:", step=1)
    bench.feed(e.CheckpointSaved(time=bench.tick(), trial=0, segment=1, checkpoint=info))
    late = CheckpointInfo(id="ckp", uri="memory:", step=1, ready=False)
    bench.feed(
        e.Reported(
            time=bench.tick(), trial=0, segment=1, report_no=1, iteration=1, metrics={"loss": 1.0}, checkpoint=late
        )
    )
    assert bench.core.trials[0].checkpoint == info
    assert bench.core.trials[0].best_checkpoint(bench.spec.objective) == info


def test_an_exploit_waits_for_the_donors_checkpoint_and_survives_a_restart() -> None:
    bench = Bench(num_samples=2)
    for number in (0, 1):
        bench.started(number)
        bench.reported(number)
    decision = d.Exploit(trial=0, donor=1, params={"x": 0.5}, reason="trial 1 is better")
    facts = bench.core._take(decision)
    bench.log += bench.core._effects.log[-1:]
    assert facts == []
    assert bench.states[0] == "paused"
    assert "waits for the checkpoint of trial 1" in bench.core.trials[0].reason
    bench.ended(0)

    info = CheckpointInfo(id="ckp_donor", uri="memory:", step=1)
    for core in (bench, bench.successor()):
        out = core.feed(e.CheckpointSaved(time=core.tick(), trial=1, segment=1, checkpoint=info))
        assert launches(out) == [(0, 2)]
        segment = core.core.trials[0].segments[-1]
        assert (segment.cause, segment.params, segment.source) == ("exploit", {"x": 0.5}, info)


def test_checkpoints_are_asked_for_by_time() -> None:
    bench = Bench(checkpoint={"interval_s": 5.0}, num_samples=1)
    bench.started(0)
    asked = []
    for count in range(1, 21):
        if count == bench.core.trials[0].segments[-1].milestone:
            bench.reported(0)
            verdict = bench.core.verdict(SegmentRef(0, 1))
            if verdict.save_checkpoint:
                asked.append(count)
                info = CheckpointInfo(id=f"ckp_{count}", uri="memory:", step=count)
                bench.feed(e.CheckpointSaved(time=bench.now, trial=0, segment=1, checkpoint=info))
                bench.core.verdict(SegmentRef(0, 1))
        else:
            bench.reported(0)
    assert asked == [1, 6, 11, 16], "the best one so far, and then every five seconds"


def test_a_checkpoint_goes_with_a_new_best_value() -> None:
    bench = Bench(max_t=9, limits={"max_concurrent_trials": 1}, checkpoint={"interval_s": 0.5})
    bench.started(0)
    wanted = []
    for loss in (0.5, 0.2, 0.9):
        bench.reported(0, loss=loss)
        bench.core.trials[0].segments[-1].saved_at = bench.now  # not for its age
        wanted.append(bench.core.verdict(SegmentRef(0, 1)).save_checkpoint)
    assert wanted == [True, True, False]


def test_failures_are_told_even_where_others_came_through() -> None:
    bench = Bench(num_samples=2)
    bench.started(0)
    bench.reported(0)
    bench.ended(0, "returned")
    bench.started(1)
    bench.ended(1, "failed", Failure(kind="user", message="KeyError: 'width'", rank=1, node="n1"))
    assert bench.core.state is ExperimentState.COMPLETED
    assert bench.core.experiment.error == "trial 1, rank 1 on n1: KeyError: 'width'"


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


def test_a_late_checkpoint_of_its_own_does_not_replace_the_donors() -> None:
    bench = Bench(num_samples=2)
    for number in (0, 1):
        bench.started(number)
        bench.reported(number, checkpoint=number == 0)
    bench.core._take(d.Exploit(trial=1, donor=0, params={"x": 0.5}, reason="trial 0 is better"))
    own = CheckpointInfo(id="own", uri="memory:", step=1)
    bench.feed(e.CheckpointSaved(time=bench.tick(), trial=1, segment=1, checkpoint=own))
    bench.ended(1)
    bench.started(1)
    bench.ended(1, "failed", Failure(kind="system", message="lost"))
    segments = bench.core.trials[1].segments
    assert [s.cause for s in segments] == ["start", "exploit", "retry"]
    assert [s.source.id for s in segments if s.source] == ["ckp_0_1_1", "ckp_0_1_1"]


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


def test_the_best_value_yet_is_asked_for_its_checkpoint_wherever_there_may_be_one() -> None:
    bench = Bench(num_samples=1, limits={"max_concurrent_trials": 1})
    assert bench.core.first_milestone(SegmentRef(0, 1)) == 1
    bench.started(0)
    wanted, looks = [], []
    for loss in (0.5, 0.1, 0.4, 0.05, 0.3):
        count = bench.core.trials[0].segments[-1].report_no + 1
        bench.reported(0, loss=loss, offer=count + 1)
        verdict = bench.core.verdict(SegmentRef(0, 1))
        wanted.append(verdict.save_checkpoint)
        looks.append(verdict.next_milestone)
    assert wanted == [True, True, False, True, False]
    assert looks == [2, 3, 4, 5, 6]


@pytest.mark.parametrize(("checkpoint", "expected"), [({}, [1, 2, 4, 8, 16]), ({"keep_best": 0}, [None])])
def test_who_has_offered_no_checkpoint_is_asked_ever_more_seldom(checkpoint: dict[str, Any], expected: Any) -> None:
    bench = Bench(num_samples=1, checkpoint={"interval_s": None, **checkpoint})
    milestones = [bench.core.first_milestone(SegmentRef(0, 1))]
    bench.started(0)
    for _ in range(10):
        bench.reported(0)
        if bench.core.trials[0].segments[-1].report_no == milestones[-1]:
            milestones.append(bench.core.verdict(SegmentRef(0, 1)).next_milestone)
    assert milestones == expected


def test_a_warning_is_shown_once_also_after_a_restart() -> None:
    bench = Bench(num_samples=3)

    def ends_with_a_warning(number: int, bench: Bench) -> bool:
        bench.started(number)
        bench.reported(number)
        end = e.SegmentEnded(time=bench.tick(), trial=number, segment=1, outcome="returned", warning="uneven")
        (note,) = [entry for _, entry in bench.feed(end).log if isinstance(entry, d.Note)]
        assert (note.trial, note.reason) == (number, f"trial {number}: uneven")
        return note.warning

    assert ends_with_a_warning(0, bench)
    assert not ends_with_a_warning(1, bench.successor())
    assert not ends_with_a_warning(1, bench)
    assert bench.states[:2] == ["completed", "completed"]


def test_a_function_that_went_on_from_its_own_end_has_completed() -> None:
    bench = Bench(num_samples=1)
    bench.started(0)
    bench.reported(0, checkpoint=True)
    bench.command("pause")
    bench.reported(0, checkpoint=True)
    bench.ended(0, "left")
    bench.command("resume")
    bench.ended(0, "returned")
    trial = bench.core.trials[0]
    assert (trial.state, trial.failures) == (TrialState.COMPLETED, 0)
    assert trial.reason == "the function returned at once, as it went on from its own end: iteration 2"


@pytest.mark.parametrize(
    "scheduler",
    [
        tuner.PopulationBasedTraining(perturbation_interval=5),
        tuner.PopulationBasedTraining(perturbation_interval=5, synch=True),
        tuner.ASHAPromotionScheduler(grace_period=5, reduction_factor=2),
        tuner.MedianStoppingRule(min_time_slice=3, min_samples_required=9),
    ],
)
def test_no_trial_of_a_function_with_an_end_fails(scheduler: Any) -> None:
    def evaluate(config: dict[str, Any], done: int | None) -> Any:
        for epoch in range(done or 0, 20):
            loss = abs(config["lr"] - 0.5) + 1 / (epoch + 1)
            yield tuner.Step(metrics={"loss": loss}, seconds=1 + config["lr"], checkpoint=epoch + 1)

    result = tuner.simulate(
        evaluate, {"lr": tuner.uniform(0, 1)}, metric="loss", mode="min", num_samples=8, scheduler=scheduler
    )
    assert result.error is None
    assert {str(trial.state) for trial in result.trials} <= {"completed", "stopped"}


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


@pytest.mark.parametrize("scheduler", ["asha", "median"])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_time_attribute_that_is_no_finite_number_fails_its_trial_in_words(scheduler: str, value: float) -> None:
    bench = Bench(time_attr="tokens", scheduler={"type": scheduler})
    bench.started(0)
    bench.reported(0, tokens=value)
    assert bench.states[0] == "failed"
    assert f"'tokens' must be a finite number, and this report has {value}" in bench.core.trials[0].reason


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


def test_who_waits_for_a_donor_that_has_nothing_to_give_goes_on() -> None:
    """Let the donor wait too, as in synchronous PBT, in which members wait for the end of the interval."""
    bench = Bench(
        num_samples=4,
        scheduler={"type": "pbt", "perturbation_interval": 1},
        limits={"max_concurrent_trials": 4},
    )
    for number in range(4):
        bench.started(number)
    for number, loss in ((0, 0.9), (1, 0.6), (2, 0.5)):
        bench.reported(number, loss=loss)
        bench.verdict(number)
    bench.reported(3, loss=0.1)
    bench.saved(3, "on_its_way", 1, ready=False)
    bench.verdict(3)
    bench.reported(0, loss=0.9)
    assert bench.core.trials[0].held, "it waits for the checkpoint of trial 3"
    bench.ended(0)
    bench.command("pause", trial=3)
    bench.reported(3, loss=0.1)
    bench.ended(3)
    trial = bench.core.trials[0]
    assert (trial.state, trial.held) == (TrialState.PENDING, False)
    assert "has no checkpoint that this one could continue from" in trial.reason


def test_a_verdict_whose_answer_got_lost_asks_for_the_checkpoint_again() -> None:
    """PBT saves at every milestone: the ranks send their report again, and must be told again to save."""
    pbt = {"type": "pbt", "perturbation_interval": 2}
    bench = Bench(scheduler=pbt, checkpoint={"interval_s": None, "keep_best": 0}, num_samples=2)
    bench.started(0)
    bench.reported(0)
    bench.core.verdict(SegmentRef(0, 1))
    bench.reported(0)
    first = bench.core.verdict(SegmentRef(0, 1))
    assert first.save_checkpoint
    assert bench.core.verdict(SegmentRef(0, 1)) == first
    bench.reported(0)
    assert not bench.core.verdict(SegmentRef(0, 1)).save_checkpoint


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
