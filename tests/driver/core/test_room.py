"""A trial makes room for another experiment: it is paused at its next report and goes on later."""

from __future__ import annotations

from tests.driver.bench import Bench, interrupts, launches
from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.segments import SegmentRef
from tuner.domain.states import ExperimentState

WHY = "to make room for experiment exp_1 (priority 10)"


def wanted(bench: Bench, number: int) -> list[int]:
    """Ask for the room of a trial. Return the trials whose ranks are interrupted."""
    segment = bench.core.trials[number].segments[-1].ordinal
    return list(interrupts(bench.feed(e.RoomWanted(time=bench.tick(), trial=number, segment=segment, reason=WHY))))


def running() -> Bench:
    """Return two running trials, of which trial 0 has a checkpoint."""
    bench = Bench()
    bench.started(0)
    bench.started(1)
    bench.reported(0, checkpoint=True)
    bench.reported(1)
    return bench


def test_it_is_paused_at_its_next_report_and_goes_on_from_its_checkpoint() -> None:
    bench = running()
    assert wanted(bench, 0) == [0]
    assert bench.states == ["running", "running"], "until its ranks wait"
    bench.reported(0, checkpoint=True)
    verdict = bench.core.verdict(SegmentRef(0, 1))
    assert (verdict.action, verdict.save_checkpoint) == ("pause", True)
    pause, resume = [entry for _, entry in bench.log if isinstance(entry, d.Pause | d.Resume)]
    assert pause.reason == f"paused at iteration 2 {WHY}"
    assert resume.reason == f"continues when there is room again; paused at iteration 2 {WHY}"
    assert launches(bench.ended(0)) == [(0, 2)], "its next segment waits for its turn"
    assert bench.core.trials[0].segments[-1].start_iteration == 2
    assert bench.core.trials[0].system_failures == 0
    bench.started(0)
    assert bench.states == ["running", "running"]
    assert bench.core.state is ExperimentState.RUNNING


def test_a_trial_without_a_checkpoint_is_left_alone() -> None:
    bench = running()
    assert not bench.core.may_yield(SegmentRef(1, 1))
    assert wanted(bench, 1) == []
    bench.reported(1)
    assert bench.verdict(1) == "continue"


def test_a_trial_that_ends_at_that_report_ends() -> None:
    bench = Bench(max_t=2)
    bench.started(0)
    bench.reported(0, checkpoint=True)
    wanted(bench, 0)
    bench.reported(0)
    assert bench.states[0] == "completed"


def test_asking_twice_changes_nothing_and_a_users_pause_comes_first() -> None:
    bench = running()
    assert wanted(bench, 0) == [0]
    assert wanted(bench, 0) == []
    bench.command("pause")
    bench.reported(0, checkpoint=True)
    bench.ended(0)
    assert bench.states[0] == "paused"
    assert bench.core.trials[0].held


def test_a_request_is_forgotten_with_its_driver_and_folds_to_the_same_state() -> None:
    bench = running()
    wanted(bench, 0)
    folded = bench.successor().core.trials[0].segments[-1]
    assert (folded.commanded, folded.room_for) == ("yield", WHY)
    bench.reported(0, checkpoint=True)
    after = bench.successor()
    successor, live = after.core.trials[0], bench.core.trials[0]
    assert (successor.state, successor.next, successor.reason) == (live.state, live.next, live.reason)
    assert successor.next is not None
    after.feed(e.DriverStarted(time=after.tick(), epoch=2))
    after.started(0)
    after.reported(0)
    assert after.verdict(0) == "continue"


def test_a_trial_that_saves_at_every_report_needs_no_checkpoint_yet() -> None:
    bench = running()
    bench.reported(1, offer=3)
    assert not bench.core.may_yield(SegmentRef(1, 1)), "it has offered none so far"
    bench.reported(1, offer=5)
    assert not bench.core.may_yield(SegmentRef(1, 1)), "it offers none at its next report"
    bench.reported(1, offer=5)
    bench.reported(1, offer=6)
    assert bench.core.may_yield(SegmentRef(1, 1))
    assert wanted(bench, 1) == [1]
    bench.reported(1, checkpoint=True)
    assert bench.verdict(1) == "pause"


def test_a_fork_that_has_saved_no_checkpoint_of_its_own_is_left_alone() -> None:
    bench = running()
    point = {"params": dict(bench.core.trials[0].params), "checkpoint": "ckp_0_1_1", "parent": 0}
    bench.feed(e.Enqueued(time=bench.tick(), points=[{**point, "space_revision": None}]))
    bench.command("stop", 1)
    bench.ended(1)
    bench.started(2)
    bench.reported(2)
    fork = bench.core.trials[2]
    assert fork.checkpoint is not None, "it started from this checkpoint of trial 0"
    assert not bench.core.may_yield(fork.ref)
    assert wanted(bench, 2) == []
    bench.reported(2, checkpoint=True)
    assert wanted(bench, 2) == [2]
