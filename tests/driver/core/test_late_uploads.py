"""Test the core with uploads that end after their segment: which trials wait for them, and the effects of a failure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.driver.bench import Bench, again, launches
from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.events import CheckpointInfo, Event
from tuner.domain.segments import SegmentRef
from tuner.driver.core import Effects
from tuner.driver.core.actions import DeleteCheckpoint, Interrupt


def late(number: int, step: int, segment: int = 1) -> CheckpointInfo:
    return CheckpointInfo(id=f"late_{number}_{segment}_{step}", uri="s3://bucket", step=step, ready=False)


def paused(number: int = 0, **options: Any) -> Bench:
    """Return a bench whose trial `number` was paused by its user, with a checkpoint of report 1 and one that is late."""
    bench = Bench(**{"num_samples": 2, "limits": {"max_concurrent_trials": 2}, **options})
    bench.started(number)
    bench.reported(number, checkpoint=True)
    bench.command("pause", number)
    bench.reported(number, loss=0.5)
    assert bench.verdict(number) == "pause"
    leaves(bench, number, late(number, 2))
    return bench


def leaves(bench: Bench, number: int, *uploading: CheckpointInfo, outcome: Any = "left") -> Effects:
    ordinal = bench.core.trials[number].segments[-1].ordinal
    return bench.feed(
        e.SegmentEnded(time=bench.tick(), trial=number, segment=ordinal, outcome=outcome, uploading=tuple(uploading))
    )


def fails(bench: Bench, info: CheckpointInfo, number: int = 0, segment: int = 1) -> Effects:
    failed = e.UploadFailed(
        time=bench.tick(), trial=number, segment=segment, checkpoint=info, reason="OSError: the bucket is gone"
    )
    return bench.feed(failed)


def notes(out: Effects) -> list[str]:
    return [entry.reason for _, entry in out.log if isinstance(entry, d.Note) and entry.warning]


def deletions(out: Effects) -> list[str]:
    return [action.info.id for action in out.actions if isinstance(action, DeleteCheckpoint)]


def test_what_a_failed_upload_has_left_behind_is_deleted_once_and_again_by_the_next_driver() -> None:
    bench = paused()
    assert deletions(fails(bench, late(0, 2))) == [late(0, 2).id]
    after = bench.successor()
    assert deletions(after.feed(e.DriverStarted(time=after.tick(), epoch=2))) == [late(0, 2).id]
    confirmed = e.CheckpointDeleted(time=after.tick(), trial=0, checkpoint=late(0, 2).id)
    assert deletions(after.feed(confirmed)) == []
    last = after.successor()
    assert deletions(last.feed(e.DriverStarted(time=last.tick(), epoch=3))) == []


def test_what_the_uploads_of_a_dead_driver_have_left_behind_is_deleted_once() -> None:
    after = paused().successor()
    assert deletions(after.feed(e.DriverStarted(time=after.tick(), epoch=2))) == [late(0, 2).id]


def test_a_trial_does_not_wait_for_an_upload_that_is_older_than_what_it_has() -> None:
    bench = Bench(num_samples=1)
    bench.started(0)
    bench.reported(0)
    bench.reported(0, checkpoint=True)
    bench.command("pause", 0)
    leaves(bench, 0, late(0, 1))
    assert launches(bench.command("resume")) == [(0, 2)]
    source = bench.core.trials[0].segments[-1].source
    assert source is not None
    assert source.step == 2


def uploading() -> Bench:
    """Return a bench that has died while a checkpoint of a running trial was uploaded."""
    bench = Bench(num_samples=1, checkpoint={"interval_s": None, "keep_last": 2})
    bench.started(0)
    bench.reported(0, checkpoint=True)
    bench.reported(0)
    bench.saved(0, late(0, 2).id, 2, ready=False)
    return bench


def test_an_upload_that_was_complete_when_its_driver_died_is_used_by_the_next_one() -> None:
    after = uploading().successor()
    ready = replace(late(0, 2), ready=True)
    assert [info.id for _, _, info in after.core.experiment.checkpoints.uploading()] == [ready.id]
    out = after.feed(e.DriverStarted(time=after.tick(), epoch=2, uploaded=(ready,)))
    assert deletions(out) == []
    assert launches(out) == [(0, 2)]
    assert after.core.trials[0].segments[-1].source == ready
    assert after.core.experiment.checkpoints.uploading() == []


def test_what_an_upload_of_a_running_trial_has_left_behind_is_deleted_by_the_next_driver() -> None:
    after = uploading().successor()
    assert deletions(after.feed(e.DriverStarted(time=after.tick(), epoch=2))) == [late(0, 2).id]
    assert after.core.trials[0].segments[-1].start_iteration == 1
    assert after.core.experiment.checkpoints.uploading() == []


def test_an_agent_goes_on_with_its_upload_under_the_next_driver() -> None:
    bench = uploading()
    bench.spec = replace(bench.spec, executor="agents")
    after = bench.successor()
    assert deletions(after.feed(e.DriverStarted(time=after.tick(), epoch=2))) == []
    after.saved(0, late(0, 2).id, 2, segment=1)
    assert after.core.trials[0].checkpoints[late(0, 2).id].info.ready


def test_a_trial_that_is_resumed_waits_for_its_upload_and_others_use_its_slot() -> None:
    bench = paused(limits={"max_concurrent_trials": 1}, num_samples=2)
    assert bench.core.trials[1].holds_resources, "the next trial has started, while the upload goes on"
    bench.started(1)
    bench.command("resume", 0)
    out = leaves(bench, 1, outcome="returned")
    assert launches(out) == []
    trial = bench.core.trials[0]
    assert trial.waiting == "waits until its checkpoint of iteration 2 is uploaded"
    assert out.touched.keys() >= {0}, "the page shows it"
    for one in (bench, bench.successor()):
        assert one.core.experiment.segments.awaiting == {0: None}
    out = bench.saved(0, late(0, 2).id, 2, segment=1)
    assert launches(out) == [(0, 2)]
    assert trial.segments[-1].start_iteration == 2
    bench.started(0)
    assert trial.waiting == ""


def test_a_trial_that_has_failed_waits_for_its_upload_before_it_is_tried_again() -> None:
    bench = Bench(num_samples=1, limits={"max_failures": 1})
    bench.started(0)
    bench.reported(0, checkpoint=True)
    bench.reported(0)
    failure = e.Failure(kind="user", cause="exception", message="ValueError: shapes do not match", rank=0)
    ended = e.SegmentEnded(
        time=bench.tick(), trial=0, segment=1, outcome="failed", failure=failure, uploading=(late(0, 2),)
    )
    out = bench.feed(ended)
    assert launches(out) == []
    [retry] = [entry.reason for _, entry in out.log if isinstance(entry, d.Retry)]
    assert retry.startswith("retry 1 of 1, from iteration 2, after")
    trial = bench.core.trials[0]
    assert trial.waiting == "waits until its checkpoint of iteration 2 is uploaded"
    assert launches(bench.saved(0, late(0, 2).id, 2, segment=1)) == [(0, 2)]
    assert trial.segments[-1].start_iteration == 2


def test_a_trial_whose_upload_fails_continues_from_an_older_checkpoint_and_says_so() -> None:
    bench = paused()
    bench.command("resume", 0)
    out = fails(bench, late(0, 2))
    assert notes(out) == [
        "the checkpoint of trial 0 at iteration 2 is lost: OSError: the bucket is gone; the trial would continue from "
        "iteration 1"
    ]
    assert launches(out) == [(0, 2)]
    assert bench.core.trials[0].segments[-1].start_iteration == 1


def test_an_upload_of_a_driver_that_has_died_is_lost() -> None:
    bench = paused()
    bench.command("resume", 0)
    after = bench.successor()
    out = after.feed(e.DriverStarted(time=after.tick(), epoch=2))
    assert notes(out) == [
        "the checkpoint of trial 0 at iteration 2 is lost: the driver stopped before its upload was complete; "
        "the trial would continue from iteration 1"
    ]
    assert (0, 2) in launches(out)
    assert after.core.trials[0].segments[-1].start_iteration == 1


def test_an_exploit_waits_for_the_last_checkpoint_of_a_donor_whose_segment_has_ended() -> None:
    bench = paused(1)
    bench.started(0)
    bench.reported(0)
    bench.core._take(d.Exploit(trial=0, donor=1, params={"x": 0.5}, reason="trial 1 is better"))
    assert bench.states[0] == "paused", "its group is free for others"
    assert "waits for the checkpoint of trial 1" in bench.core.trials[0].reason
    assert launches(leaves(bench, 0)) == []
    info = late(1, 2)
    out = bench.saved(1, info.id, 2, segment=1)
    assert (0, 2) in launches(out)
    segment = bench.core.trials[0].segments[-1]
    assert segment.cause == "exploit"
    assert segment.source is not None
    assert (segment.source.id, segment.start_iteration) == (info.id, 2)


def test_an_exploit_takes_the_older_checkpoint_of_a_donor_whose_upload_fails() -> None:
    bench = paused(1)
    bench.started(0)
    bench.reported(0)
    bench.core._take(d.Exploit(trial=0, donor=1, params={"x": 0.5}, reason="trial 1 is better"))
    leaves(bench, 0)
    out = fails(bench, late(1, 2), 1)
    assert (0, 2) in launches(out)
    assert bench.core.trials[0].segments[-1].start_iteration == 1


def test_an_exploited_trial_does_not_wait_for_its_own_upload() -> None:
    bench = Bench(num_samples=2)
    for number in (0, 1):
        bench.started(number)
        bench.reported(number, checkpoint=True)
    bench.core._take(d.Exploit(trial=0, donor=1, params={"x": 0.5}, reason="trial 1 is better"))
    out = leaves(bench, 0, late(0, 1))
    assert launches(out) == [(0, 2)]
    bench.saved(0, late(0, 1).id, 1, segment=1)
    assert bench.core.trials[0].checkpoint == bench.core.trials[0].segments[-1].source, "and does not fall back to it"


@pytest.mark.parametrize("ends", ["ready", "failed"])
def test_the_search_ends_when_its_last_upload_has_ended(ends: str) -> None:
    bench = Bench(num_samples=1, limits={"max_concurrent_trials": 1})
    bench.started(0)
    bench.reported(0)
    info = late(0, 1)
    leaves(bench, 0, info, outcome="returned")
    assert bench.states == ["completed"]
    assert bench.core.state == "running"
    if ends == "ready":
        bench.saved(0, info.id, 1, segment=1)
        best = bench.core.trials[0].best_checkpoint(bench.spec.objective)
        assert best is not None
        assert best.id == info.id
    else:
        assert notes(fails(bench, info)) == [
            "the checkpoint of trial 0 at iteration 1 is lost: OSError: the bucket is gone"
        ]
    assert bench.core.state == "completed"


def test_a_paused_search_keeps_its_driver_until_the_uploads_have_ended() -> None:
    bench = Bench(num_samples=1)
    bench.started(0)
    bench.command("pause")
    bench.reported(0)
    leaves(bench, 0, late(0, 1))
    assert bench.core.state == "pausing"
    bench.saved(0, late(0, 1).id, 1, segment=1)
    assert bench.core.state == "paused"


def test_a_kill_ends_late_uploads_too() -> None:
    bench = paused()
    out = bench.command("kill")
    killed = [action.segment for action in out.actions if isinstance(action, Interrupt) and action.why == "kill"]
    assert SegmentRef(0, 1) in killed
    assert bench.core.state == "cancelling"
    fails(bench, late(0, 2))
    leaves(bench, 1)
    assert bench.core.state == "cancelled"


def test_a_checkpoint_that_the_policy_does_not_keep_is_deleted_once_it_has_arrived() -> None:
    bench = Bench(num_samples=1, checkpoint={"interval_s": None, "keep_last": 1, "keep_best": 0})
    bench.started(0)
    bench.reported(0)
    bench.command("pause", 0)
    bench.reported(0, loss=0.5)
    leaves(bench, 0, late(0, 1), late(0, 2))
    bench.saved(0, late(0, 2).id, 2, segment=1)
    assert bench.core.trials[0].checkpoint is not None
    assert bench.core.trials[0].checkpoint.step == 2
    bench.saved(0, late(0, 1).id, 1, segment=1)
    assert list(bench.core.experiment.checkpoints.deleting) == [late(0, 1).id]
    assert list(bench.core.trials[0].checkpoints) == [late(0, 2).id]


def test_a_checkpoint_that_was_ready_before_the_segment_ended_is_not_waited_for() -> None:
    bench = Bench(num_samples=2)
    bench.started(0)
    bench.command("pause", 0)
    bench.reported(0)
    bench.saved(0, late(0, 1).id, 1)
    leaves(bench, 0, late(0, 1))
    assert launches(bench.command("resume", 0)) == [(0, 2)]


@pytest.mark.parametrize(
    "event",
    [
        e.SegmentEnded(time=1.0, trial=0, segment=1, outcome="left", uploading=(late(0, 1), late(0, 2))),
        e.UploadFailed(time=1.0, trial=0, segment=1, checkpoint=late(0, 1), reason="no"),
    ],
)
def test_the_events_come_back_from_the_database(event: Event) -> None:
    assert again(event) == event


def test_an_ended_segment_in_the_log_of_an_earlier_version_has_no_uploads() -> None:
    data = e.SegmentEnded(time=1.0, trial=0, segment=1, outcome="left").to_json()
    del data["uploading"]
    assert e.from_json("segment_ended", data) == e.SegmentEnded(time=1.0, trial=0, segment=1, outcome="left")


def test_a_late_upload_is_listed_as_one_that_is_not_ready() -> None:
    bench = paused()
    assert [(kept.info.step, kept.info.ready) for kept in bench.core.trials[0].checkpoints.values()] == [
        (1, True),
        (2, False),
    ], "schedulers see that the trial will have a checkpoint"
    fails(bench, late(0, 2))
    assert [kept.info.step for kept in bench.core.trials[0].checkpoints.values()] == [1]
