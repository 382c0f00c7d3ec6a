"""Test what the core does about checkpoints: when it asks for one, which it keeps, and which a trial starts from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.driver.bench import Bench, deletions, launches
from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.events import CheckpointInfo, Failure
from tuner.domain.segments import SegmentRef
from tuner.domain.states import TrialState
from tuner.driver.core.actions import DeleteCheckpoint

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


def test_a_pin_does_not_undo_the_deletion_of_what_went_with_the_disk_of_a_node() -> None:
    bench = Bench(limits={"max_concurrent_trials": 1}, checkpoint={"interval_s": None, "keep_last": 1, "keep_best": 0})
    bench.started(0)
    for loss in (0.9, 0.5):
        out = bench.reported(0, loss=loss, checkpoint=True, node="n2")
    assert deletions(out) == ["ckp_0_1_1"]
    bench.ended(0, "failed", Failure(kind="system", cause="node_lost", message="its node was lost"))
    bench.ended(0, "failed", LOST)
    bench.feed(e.Pinned(time=bench.tick(), checkpoint="ckp_0_1_1", pinned=True))
    assert bench.core.trials[0].segments[-1].source is None
    assert not bench.core.experiment.checkpoints.exists("ckp_0_1_1")
    assert bench.core.trials[0].checkpoint is None
    after = bench.successor()
    out = after.feed(e.DriverStarted(time=after.tick(), epoch=2))
    gone = {action.info.id for action in out.actions if isinstance(action, DeleteCheckpoint) and action.lost}
    assert gone == {"ckp_0_1_1", "ckp_0_1_2"}, "nor does the pin keep what is left of it"


def test_one_checkpoint_that_is_gone_from_its_node_leaves_the_others() -> None:
    bench = Bench(limits={"max_concurrent_trials": 1}, checkpoint={"interval_s": None, "keep_last": 9, "keep_best": 9})
    bench.started(0)
    for _ in range(3):
        bench.reported(0, checkpoint=True, node="n1")
    bench.ended(0, "failed", Failure(kind="system", cause="node_lost", message="its node was lost"))
    unreachable = Failure(kind="system", cause="checkpoint_unreachable", message="not now")
    bench.ended(0, "failed", unreachable)
    assert bench.core.trials[0].segments[-1].start_iteration == 3, "what is only out of reach is tried again"
    found = bench.ended(0, "failed", replace(LOST, cause="checkpoint_lost"))
    assert bench.core.trials[0].segments[-1].start_iteration == 2
    assert [(a.info.step, a.lost) for a in found.actions if isinstance(a, DeleteCheckpoint)] == [(3, True)]


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


def test_the_row_of_an_ended_trial_is_written_when_the_donors_checkpoint_goes() -> None:
    bench = Bench(num_samples=2, checkpoint={"interval_s": None, "keep_last": 1, "keep_best": 0})
    for number in (0, 1):
        bench.started(number)
        bench.reported(number, checkpoint=number == 0)
    bench.core._take(d.Exploit(trial=1, donor=0, params={"x": 0.5}, reason="trial 0 is better"))
    bench.ended(1)
    bench.started(1)
    bench.command("stop", 1)
    bench.ended(1)
    before = bench.core.trials[1].checkpoint
    assert (bench.states[1], before and before.id) == ("stopped", "ckp_0_1_1")
    out = bench.reported(0, loss=0.5, checkpoint=True)
    assert deletions(out) == ["ckp_0_1_1"]
    assert bench.core.trials[1].checkpoint is None
    assert set(out.touched) == {0, 1}


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


@pytest.mark.parametrize("policy", [{}, {"keep_best": 0}])
def test_the_best_value_yet_is_asked_for_its_checkpoint_at_the_end_of_a_trial_too(policy: dict[str, Any]) -> None:
    bench = Bench(num_samples=2, max_t=2, checkpoint={"at_end": False, "interval_s": None, **policy})
    for number, losses in enumerate([(0.5, 0.1), (0.3, 0.2)]):
        bench.started(number)
        for loss in losses:
            bench.reported(number, loss=loss, offer=2)
    ends = [bench.core.verdict(SegmentRef(number, 1)) for number in (0, 1)]
    assert [(end.action, end.save_checkpoint) for end in ends] == [("stop", not policy), ("stop", False)]


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
    assert "has no checkpoint that this trial could continue from" in trial.reason


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


def test_a_checkpoint_that_a_trial_takes_over_once_more_is_kept() -> None:
    """The checkpoint that a paused fork had was deleted when a replayed schedule changed the configuration of the fork."""
    bench = Bench(num_samples=2, limits={"max_concurrent_trials": 2}, checkpoint={"keep_last": 1, "keep_best": 0})
    for number in (0, 1):
        bench.started(number)
    bench.reported(0, checkpoint=True)
    bench.reported(1)
    bench.core._take(d.Exploit(trial=1, donor=0, params={"x": 0.5}, reason="trial 0 is better"))
    bench.ended(1)
    bench.started(1)
    bench.command("pause", 1)
    bench.ended(1)
    bench.reported(0, loss=0.5, checkpoint=True)
    bench.core._take(d.Exploit(trial=1, donor=1, params={"x": 0.7}, reason="as in the schedule"))
    trial = bench.core.trials[1]
    assert trial.checkpoint is not None
    assert (trial.checkpoint.id, bench.core.experiment.checkpoints.exists("ckp_0_1_1")) == ("ckp_0_1_1", True)
