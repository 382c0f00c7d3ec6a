"""Test which checkpoint a trial starts from, and which ones are deleted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.driver.bench import Bench, deletions, launches
from tuner.domain import events as e
from tuner.domain.decisions import Note
from tuner.domain.events import Failure
from tuner.domain.trial import Trial
from tuner.driver.core.state.checkpoints import CheckpointLedger
from tuner.driver.core.state.effects import Effects

ONE = {"num_samples": 1, "limits": {"max_concurrent_trials": 1, "max_failures": 3}}
LOST = Failure(kind="system", cause="node_lost", message="its node was lost")
TORN = Failure(kind="system", cause="checkpoint_lost", message="its checkpoint is torn")


def source(bench: Bench, number: int) -> str | None:
    """Return the checkpoint that the newest segment started from."""
    segment = bench.core.trials[number].segments[-1]
    return segment.source.id if segment.source is not None else None


def test_news_of_an_older_checkpoint_does_not_make_the_newest_one_look_old() -> None:
    bench = Bench(**ONE, checkpoint={"interval_s": None, "keep_last": 1, "keep_best": 1})
    bench.started(0)
    bench.reported(0, loss=0.1)  # the best value: its checkpoint is written on demand, and slowly
    bench.reported(0, loss=0.5)
    bench.reported(0, loss=0.4, checkpoint=True)
    out = bench.saved(0, "slow", 1)
    assert deletions(out) == []
    bench.ended(0, "failed", LOST)
    assert source(bench, 0) == "ckp_0_1_3"


def test_a_later_segment_counts_as_newer_although_it_began_at_an_earlier_iteration() -> None:
    bench = Bench(**ONE, checkpoint={"interval_s": None, "keep_last": 1, "keep_best": 0})
    bench.started(0)
    bench.reported(0, checkpoint=True)
    for _ in range(4):
        bench.reported(0)
    bench.saved(0, "at_5", 5)
    # An exploit of a trial without checkpoints does this.
    bench.core.experiment.checkpoints.inherit(bench.core.trials[0], 2, None)
    bench.ended(0, "failed", LOST)
    assert source(bench, 0) is None
    bench.started(0)
    bench.reported(0)
    out = bench.saved(0, "at_1", 1)
    assert deletions(out) == ["at_5"]
    bench.ended(0, "failed", LOST)
    assert source(bench, 0) == "at_1"


def test_a_resume_while_the_ranks_are_still_saving_starts_from_what_they_save() -> None:
    bench = Bench(**ONE)
    bench.started(0)
    bench.reported(0, loss=1.0, checkpoint=True)
    bench.reported(0, loss=0.5)
    bench.command("pause")
    bench.reported(0, loss=0.4)
    assert bench.verdict(0) == "pause"
    bench.command("resume")
    bench.saved(0, "new", 3)
    assert launches(bench.ended(0, "left")) == [(0, 2)]
    segment = bench.core.trials[0].segments[-1]
    assert (source(bench, 0), segment.start_iteration) == ("new", 3)


def test_a_torn_checkpoint_is_given_up_for_the_newest_older_one_without_counting_as_a_failure() -> None:
    bench = Bench(**ONE, checkpoint={"interval_s": None, "keep_last": 3})
    bench.started(0)
    for _ in range(3):
        bench.reported(0, checkpoint=True)
    bench.ended(0, "failed", LOST)
    for start in ("ckp_0_1_2", "ckp_0_1_1", None):
        out = bench.ended(0, "failed", TORN)
        assert len(deletions(out)) == 1
        assert source(bench, 0) == start
    assert bench.core.trials[0].failures == 0


def notes(out: Effects) -> list[str]:
    return [entry.reason for _, entry in out.log if isinstance(entry, Note)]


def exploited(leaves: bool = True) -> Bench:
    """Return a core in which trial 0 has just exploited trial 3. Both had saved checkpoints before.

    leaves: False if its ranks have not ended yet.
    """
    bench = Bench(
        num_samples=4,
        scheduler={"type": "pbt", "perturbation_interval": 1},
        limits={"max_concurrent_trials": 4},
        checkpoint={"interval_s": None, "keep_last": None},
    )
    for number in range(4):
        bench.started(number)
    for number, loss in ((0, 0.9), (1, 0.6), (2, 0.5), (3, 0.1), (0, 0.9)):
        bench.reported(number, loss=loss, checkpoint=True)
        bench.verdict(number)
    if leaves:
        bench.ended(0, "left")
        assert bench.core.trials[0].segments[-1].cause == "exploit"
    return bench


def test_a_trial_goes_back_behind_an_exploit_only_if_nothing_newer_is_left() -> None:
    bench = exploited()
    assert source(bench, 0) == "ckp_3_1_1"
    bench.started(0)
    bench.reported(0, loss=0.01, checkpoint=True)
    bench.verdict(0)
    bench.ended(0, "failed", LOST)
    assert source(bench, 0) == "ckp_0_2_2"
    bench.ended(0, "failed", TORN)
    assert source(bench, 0) == "ckp_3_1_1"  # the exploit's own source
    out = bench.ended(0, "failed", TORN)
    assert source(bench, 0) == "ckp_0_1_2"  # what it had before the exploit
    assert any("continues from its own checkpoint of iteration 2" in reason for reason in notes(out))
    bench.ended(0, "failed", TORN)
    assert source(bench, 0) == "ckp_0_1_1"
    bench.ended(0, "failed", TORN)
    assert source(bench, 0) is None


def test_a_pause_while_a_trial_is_about_to_copy_another_one_pauses_the_copy() -> None:
    """The request had been forgotten, because the ranks were ending already."""
    bench = exploited(leaves=False)
    bench.command("pause", 0)
    bench.ended(0, "left")
    bench.started(0)
    bench.reported(0, loss=0.05)
    assert (bench.verdict(0), bench.states[0]) == ("pause", "paused")
    assert bench.core.trials[0].held


def test_a_resume_remains_one_if_it_undoes_an_exploit() -> None:
    bench = exploited()
    bench.command("pause", 0)
    bench.ended(0, "left")
    bench.core.experiment.checkpoints.lose(["ckp_3_1_1"])
    bench.command("resume", 0)
    assert source(bench, 0) == "ckp_0_1_2"
    assert bench.core.trials[0].segments[-1].cause == "resume"


def test_a_trial_whose_donor_is_lost_has_its_own_configuration_again() -> None:
    bench = exploited()
    trial = bench.core.trials[0]
    before, copied = dict(trial.segments[0].params), dict(trial.params)
    assert before != copied
    bench.ended(0, "failed", TORN)
    assert (trial.params, trial.segments[-1].params) == (before, before)
    assert (trial.segments[-1].cause, trial.segments[-1].start_iteration) == ("retry", 2)
    bench.started(0)
    scheduler: Any = bench.core.scheduler
    held = [(item["iteration"], item["params"]) for item in scheduler.schedule_of(0)]
    assert held == [(0, before)]
    assert scheduler.milestone(trial, bench.core.trials) == 3
    bench.reported(3, loss=0.05, checkpoint=True)
    bench.reported(0, loss=0.95, checkpoint=True)
    assert bench.verdict(0) == "exploit", "its next interval ends one iteration after its own checkpoint"


def test_a_planned_copy_of_a_checkpoint_that_is_lost_meanwhile_starts_from_the_trials_own() -> None:
    bench = exploited(leaves=False)
    bench.ended(3, "failed", LOST)  # the donor itself starts from the checkpoint, and finds it torn
    bench.ended(3, "failed", TORN)
    before = dict(bench.core.trials[0].segments[0].params)
    out = bench.ended(0, "left")
    segment = bench.core.trials[0].segments[-1]
    assert (source(bench, 0), segment.params, segment.cause) == ("ckp_0_1_2", before, "retry")
    assert any("because the checkpoint that it was to copy is lost" in reason for reason in notes(out))
    bench.started(0)
    told = [entry for _, entry in bench.log if isinstance(entry, Note) and "it was to copy is lost" in entry.reason]
    assert len(told) == 1, "later events do not repeat it"


def test_an_exploit_in_the_log_of_an_older_version_does_not_go_back() -> None:
    bench = exploited()
    bench.core.trials[0].goes_back = False  # what a decision without the field leads to
    bench.ended(0, "failed", TORN)
    assert source(bench, 0) is None


def test_a_donors_checkpoint_stays_while_a_trial_would_start_from_it() -> None:
    bench = exploited()
    bench.core.experiment.checkpoints._policy = Bench(checkpoint={"keep_last": 1, "keep_best": 0}).spec.checkpoint
    assert deletions(bench.reported(3, loss=0.2, checkpoint=True)) == []
    bench.started(0)
    bench.reported(0, loss=0.01, checkpoint=True)
    bench.verdict(0)
    out = bench.ended(0, "failed", LOST)  # it starts from its own now
    assert "ckp_3_1_1" in deletions(out)


def test_a_donors_checkpoint_stays_while_a_paused_trial_has_none_of_its_own() -> None:
    bench = exploited()
    bench.core.experiment.checkpoints._policy = Bench(checkpoint={"keep_last": 1, "keep_best": 0}).spec.checkpoint
    bench.started(0)
    bench.command("pause", 0)
    bench.ended(0, "left")
    assert bench.states[0] == "paused"
    assert deletions(bench.reported(3, loss=0.001, checkpoint=True)) == []
    assert "ckp_3_1_1" in deletions(bench.command("stop", 0))


@pytest.mark.parametrize("keep", [1, 2, 3, 4, 5])
def test_as_many_of_the_best_are_kept_as_asked_for(keep: int) -> None:
    bench = Bench(**ONE, checkpoint={"interval_s": None, "keep_last": 1, "keep_best": keep})
    bench.started(0)
    for i in range(10):
        bench.reported(0, loss=i / 10, checkpoint=True)  # the first ones are the best
    steps = {kept.info.step for kept in bench.core.trials[0].checkpoints.values()}
    assert steps == {*range(1, keep + 1), 10}


def test_a_start_never_lies_ahead_of_the_reports() -> None:
    bench = Bench(**ONE)
    bench.started(0)
    bench.reported(0)
    bench.saved(0, "ahead", 5)  # reports 2 to 5 are in rank 0's buffer
    out = bench.ended(0, "failed", LOST)
    assert bench.core.trials[0].segments[-1].start_iteration == 0
    assert deletions(out) == ["ahead"]


def test_a_checkpoint_that_comes_before_its_report_counts_once_the_report_comes() -> None:
    bench = Bench(**ONE)
    bench.started(0)
    bench.reported(0, loss=0.7)
    bench.saved(0, "early", 2)
    bench.reported(0, loss=0.3)
    kept = bench.core.trials[0].checkpoints["early"]
    assert kept.value == 0.3
    bench.ended(0, "failed", LOST)
    assert source(bench, 0) == "early"


def test_a_deletion_that_the_driver_before_did_not_get_to_is_done_by_the_next_one() -> None:
    bench = Bench(**ONE, checkpoint={"interval_s": None, "keep_last": 1, "keep_best": 0})
    bench.started(0)
    bench.reported(0, checkpoint=True)
    assert deletions(bench.reported(0, loss=0.5, checkpoint=True)) == ["ckp_0_1_1"]
    assert deletions(bench.saved(0, "ckp_0_1_1", 1)) == []
    assert list(bench.core.trials[0].checkpoints) == ["ckp_0_1_2"], "its upload has just ended, and it is being deleted"
    after = bench.successor()
    assert deletions(after.feed(e.DriverStarted(time=after.tick(), epoch=2))) == ["ckp_0_1_1"]
    after.feed(e.CheckpointDeleted(time=after.tick(), trial=0, checkpoint="ckp_0_1_1"))
    assert after.core.experiment.checkpoints.deleting == {}


def test_a_checkpoint_from_which_a_fork_starts_once_more_is_not_deleted() -> None:
    """A scheduler that changes the fork's configuration lets it continue from there if its own checkpoint is lost."""
    bench = Bench(num_samples=2, checkpoint={"interval_s": None, "keep_last": 1, "keep_best": 0})
    bench.started(0)
    bench.started(1)
    bench.reported(0, loss=0.9, checkpoint=True)
    ledger, fork = bench.core.experiment.checkpoints, bench.core.trials[1]
    kept = ledger.find("ckp_0_1_1")
    assert kept is not None
    ledger.inherit(fork, 1, kept.info)
    assert deletions(bench.reported(0, loss=0.5, checkpoint=True)) == []
    ledger.inherit(fork, 2, kept.info, goes_back=True)
    assert (fork.checkpoint, ledger.exists("ckp_0_1_1")) == (kept.info, True)
    ledger.inherit(fork, 3, None)
    assert not ledger.exists("ckp_0_1_1"), "nothing starts from it any more"


def test_the_best_checkpoint_of_the_experiment_stays_whatever_the_policy() -> None:
    bench = Bench(num_samples=2, checkpoint={"interval_s": None, "keep_last": 1, "keep_best": 0})
    bench.started(0)
    bench.started(1)
    bench.reported(0, loss=0.1, checkpoint=True)
    assert deletions(bench.reported(0, loss=0.5, checkpoint=True)) == []
    assert deletions(bench.reported(1, loss=0.05)) == ["ckp_0_1_1"]  # another trial has the best value now


@pytest.mark.parametrize("keep_best", [0, 1])
def test_of_equal_values_the_checkpoint_of_the_best_report_is_kept(keep_best: int) -> None:
    """Under PBT, the later one may have been trained with another configuration than the best report."""
    bench = Bench(num_samples=1, checkpoint={"interval_s": None, "keep_last": 1, "keep_best": keep_best})
    bench.started(0)
    gone = [deletions(bench.reported(0, loss=loss, checkpoint=True)) for loss in (0.5, 0.1, 0.3, 0.1, 0.4)]
    assert gone == [[], ["ckp_0_1_1"], [], ["ckp_0_1_3"], ["ckp_0_1_4"]]
    best = bench.core.summary()["best"]
    assert (best["iteration"], best["checkpoint_id"]) == (2, "ckp_0_1_2")


def test_what_an_earlier_version_kept_in_place_of_an_equally_good_one_stays() -> None:
    """It kept the newest of equally good ones."""
    bench = Bench(num_samples=1, checkpoint={"interval_s": None, "keep_last": 1, "keep_best": 1})
    bench.started(0)
    for loss in (0.5, 0.1, 0.1, 0.3):
        bench.reported(0, loss=loss, checkpoint=True)
    for name in ("ckp_0_1_1", "ckp_0_1_2"):
        bench.feed(e.CheckpointDeleted(time=bench.tick(), trial=0, checkpoint=name))
    after = bench.successor()
    assert deletions(after.feed(e.DriverStarted(time=after.tick(), epoch=2))) == []
    assert list(after.core.trials[0].checkpoints) == ["ckp_0_1_4", "ckp_0_1_3"]
    assert after.core.summary()["best"]["checkpoint_id"] == "ckp_0_1_3"


def test_a_new_checkpoint_is_taken_in_without_looking_at_all_those_that_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(**ONE, checkpoint={"interval_s": None, "keep_last": None})
    bench.started(0)
    bench.reported(0, checkpoint=True)
    looked: list[int] = []
    usable = CheckpointLedger._usable
    monkeypatch.setattr(CheckpointLedger, "_usable", lambda *args: looked.append(0) or usable(*args))
    for _ in range(20):
        bench.reported(0, checkpoint=True)
    assert looked == []
    newest = bench.core.trials[0].checkpoint
    assert newest is not None
    assert newest.step == 21


def test_an_old_checkpoint_is_deleted_without_looking_at_all_the_other_trials_that_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Look at no running trial; with 600 of them, this took more than half of the driver's time."""
    many = 5
    policy = {"interval_s": None, "keep_last": 1, "keep_best": 0}
    bench = Bench(num_samples=many, limits={"max_concurrent_trials": many}, checkpoint=policy)
    for number in range(many):
        bench.started(number)
        bench.reported(number, loss=float(number), checkpoint=True)
    looked: set[int] = set()
    holds = Trial.holds_resources.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Trial, "holds_resources", property(lambda trial: looked.add(trial.number) or holds(trial)))
    assert deletions(bench.reported(many - 1, loss=9.0, checkpoint=True)) == [f"ckp_{many - 1}_1_1"]
    assert looked <= {many - 1}


def test_an_upload_that_ended_with_its_rank_is_deleted_once_the_trial_runs_again() -> None:
    """It was shown as "being saved" forever, and what had reached the bucket stayed there until the experiment was deleted."""
    bench = Bench(**ONE)
    bench.started(0)
    bench.reported(0)
    bench.saved(0, "half", 1, ready=False)
    assert deletions(bench.ended(0, "failed", LOST)) == [], "the word of its end may be under way"
    bench.started(0)
    ledger = bench.core.experiment.checkpoints
    assert list(ledger.deleting) == ["half"]
    assert (ledger.lost, ledger.uploading()) == ({"half"}, [])
    successor = bench.successor().core.experiment.checkpoints
    assert (successor.deleting, successor.lost) == (ledger.deleting, ledger.lost)


def test_uploads_that_ended_with_their_ranks_are_deleted_when_a_search_is_killed() -> None:
    bench = Bench(num_samples=2, limits={"max_concurrent_trials": 2})
    for number in (0, 1):
        bench.started(number)
        bench.reported(number)
        bench.saved(number, f"half_{number}", 1, ready=False)
    bench.command("kill")
    assert deletions(bench.ended(0)) == []
    out = bench.ended(1)
    assert (bench.core.ended, deletions(out)) == (True, ["half_0", "half_1"])


def test_an_upload_whose_end_was_under_way_when_its_rank_died_is_kept() -> None:
    bench = Bench(**ONE)
    bench.started(0)
    bench.reported(0)
    bench.saved(0, "late", 1, ready=False)
    bench.ended(0, "failed", LOST)
    bench.saved(0, "late", 1, segment=1)
    bench.started(0)
    ledger = bench.core.experiment.checkpoints
    assert (list(ledger.deleting), ledger.exists("late")) == ([], True)


def test_an_upload_of_an_agent_that_is_cut_off_is_not_deleted() -> None:
    bench = Bench(**ONE, executor="agents")
    bench.started(0)
    bench.reported(0)
    bench.saved(0, "half", 1, ready=False)
    bench.ended(0, "failed", LOST)
    bench.started(0)
    assert list(bench.core.experiment.checkpoints.deleting) == []


def test_the_checkpoints_that_exist_are_listed_from_the_newest_on() -> None:
    bench = Bench(num_samples=2, checkpoint={"keep_last": None})
    bench.started(0)
    bench.started(1)
    for number in (0, 1, 0):
        bench.reported(number, checkpoint=True)
    found = bench.core.experiment.checkpoints.newest_first()
    assert [info.id for info in found] == ["ckp_0_1_2", "ckp_1_1_1", "ckp_0_1_1"]
