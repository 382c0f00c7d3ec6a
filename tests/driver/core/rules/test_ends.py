from __future__ import annotations

from dataclasses import replace

import pytest

from tests.driver.bench import Bench, interrupts, launches
from tuner.domain import decisions as d
from tuner.domain.events import SegmentEnded, UploadFailed
from tuner.domain.segments import IN_SAVE, UNWRITABLE, CheckpointInfo, Failure

FULL = Failure(
    kind="user",
    cause="exception",
    message="OSError: [Errno 28] No space left on device",
    traceback=f"OSError: [Errno 28] No space left on device\n{IN_SAVE}",
)


def notes(bench: Bench) -> list[d.Note]:
    return [entry for _, entry in bench.log if isinstance(entry, d.Note) and "could not be saved" in entry.reason]


def test_an_ended_trial_whose_last_checkpoint_could_not_be_saved_gets_a_note() -> None:
    """The best model of a search could be lost to a full disk without a word, while the trial counted as completed."""
    bench = Bench(max_t=2)
    for number in (0, 1):
        bench.started(number)
    bench.reported(0, checkpoint=True)
    bench.reported(0)
    bench.reported(1)
    bench.reported(1)
    bench.ended(0, "failed", FULL)
    bench.ended(1, "failed", FULL)
    assert bench.states[:2] == ["completed", "completed"]
    first, second = notes(bench)
    assert (first.trial, first.warning) == (0, True)
    assert first.reason == (
        "the last checkpoint of trial 0 could not be saved, and its newest one is of iteration 1: "
        "OSError: [Errno 28] No space left on device"
    )
    assert (second.trial, second.warning) == (1, False), "one warning is enough"
    assert "and it has no other one: OSError" in second.reason
    assert bench.successor().states == bench.states


def test_an_earlier_failure_to_save_that_was_retried_does_not_hide_the_warning() -> None:
    bench = Bench(max_t=2, limits={"max_concurrent_trials": 2, "max_failures": 1})
    for number in (0, 1):
        bench.started(number)
    bench.reported(0)
    bench.ended(0, "failed", FULL)
    bench.started(0)
    for number in (0, 1):
        bench.reported(number)
        bench.reported(number)
    bench.ended(0)
    bench.ended(1, "failed", FULL)
    assert bench.states[:2] == ["completed", "completed"]
    assert [(note.trial, note.warning) for note in notes(bench)] == [(1, True)]


@pytest.mark.parametrize(
    "failure", [None, Failure(kind="user", cause="stop_ignored", message="did not end within 5 s")]
)
def test_another_end_of_an_ended_trial_gets_no_such_note(failure: Failure | None) -> None:
    bench = Bench(max_t=1)
    bench.started(0)
    bench.reported(0)
    bench.ended(0, "left" if failure is None else "failed", failure)
    assert (bench.states[0], notes(bench)) == ("completed", [])


def test_a_trial_that_could_not_save_before_its_end_fails_as_before() -> None:
    bench = Bench(max_t=2)
    bench.started(0)
    bench.reported(0)
    bench.ended(0, "failed", FULL)
    assert (bench.states[0], notes(bench)) == ("failed", [])


NO_ROOM = Failure(kind="user", cause="disk_full", message="OSError: [Errno 28] No space left on device", rank=0)


def warnings_of(bench: Bench) -> list[str]:
    return [entry.reason for _, entry in bench.log if isinstance(entry, d.Note) and entry.warning]


def test_a_full_disk_pauses_the_experiment_instead_of_failing_its_trials() -> None:
    """With a disk that was full for a night, every trial of a search failed, one after the other within seconds."""
    bench = Bench(max_t=4, num_samples=9)
    for number in (0, 1):
        bench.started(number)
        bench.reported(number, checkpoint=True)
    out = bench.ended(0, "failed", NO_ROOM)
    assert (bench.core.experiment.state, bench.states) == ("pausing", ["pending", "running"])
    assert (launches(out), interrupts(out)) == ([], [1])
    [said] = warnings_of(bench)
    assert said == (
        "the experiment is paused, because a disk is full: trial 0, rank 0: OSError: [Errno 28] No space left on device; "
        "make room, then resume the experiment"
    )
    bench.reported(1)  # it waits at this report, and its checkpoint cannot be saved either
    assert bench.verdict(1) == "pause"
    assert bench.core.trials[1].reason == "paused because a disk is full at iteration 2"
    bench.ended(1, "failed", NO_ROOM)
    assert bench.core.experiment.state == "paused"
    assert len(warnings_of(bench)) == 1
    assert bench.successor().states == bench.states
    for core in (bench.core, bench.successor().core):
        assert f"the experiment is {core.experiment.summary()['reason']}" == said, (
            "webhooks and the page show this reason"
        )
    out = bench.command("resume")
    assert bench.core.experiment.summary()["reason"] == ""
    assert sorted(launches(out)) == [(0, 2), (1, 2)]
    assert [trial.segments[-1].start_iteration for trial in bench.core.trials] == [1, 1]


REFUSED = Failure(kind="user", cause="storage", message="OSError: Read-only file system", rank=0)


def test_a_storage_that_cannot_be_written_pauses_the_experiment_instead_of_failing_its_trials() -> None:
    """All other trials failed when the credentials of a bucket had expired, and the search was called completed."""
    bench = Bench(max_t=4, num_samples=9)
    for number in (0, 1):
        bench.started(number)
        bench.reported(number, checkpoint=True)
    out = bench.ended(0, "failed", REFUSED)
    assert (bench.core.experiment.state, bench.states) == ("pausing", ["pending", "running"])
    assert (launches(out), interrupts(out)) == ([], [1])
    [said] = warnings_of(bench)
    assert said == (
        "the experiment is paused, because the storage of the checkpoints cannot be used: trial 0, rank 0: OSError: "
        "Read-only file system; repair it, then resume the experiment"
    )
    assert bench.core.trials[0].reason.startswith("starts again from iteration 1 once the storage can be used")
    bench.reported(1)
    assert bench.verdict(1) == "pause"
    assert bench.core.trials[1].reason == "paused because the storage of the checkpoints cannot be used at iteration 2"
    bench.ended(1, "left")
    assert bench.core.experiment.state == "paused"
    assert bench.successor().states == bench.states
    assert sorted(launches(bench.command("resume"))) == [(0, 2), (1, 2)]


@pytest.mark.parametrize("reason", ["the process was killed", f"AccessDenied; {UNWRITABLE} s3://b"])
def test_an_upload_that_the_storage_refuses_after_its_segment_pauses_the_experiment(reason: str) -> None:
    """The trials went on, and each lost the checkpoint from which it was to continue."""
    bench = Bench(max_t=4, limits={"max_concurrent_trials": 1})
    late = CheckpointInfo(id="ckp_late", uri="s3://b/late", step=1, ready=False)
    bench.started(0)
    bench.reported(0)
    bench.command("pause", 0)
    bench.reported(0)
    bench.feed(SegmentEnded(time=bench.tick(), trial=0, segment=1, outcome="left", uploading=(late,)))
    bench.feed(UploadFailed(time=bench.tick(), trial=0, segment=1, checkpoint=late, reason=reason))
    refused = UNWRITABLE in reason
    assert (str(bench.core.experiment.state) in ("pausing", "paused")) is refused
    assert len(warnings_of(bench)) == 1 + refused, "the first one says that the checkpoint is lost"


def test_a_trial_that_may_be_retried_is_retried_at_once_while_a_disk_is_full() -> None:
    bench = Bench(max_t=4, limits={"max_concurrent_trials": 1, "max_failures": 1})
    bench.started(0)
    assert launches(bench.ended(0, "failed", NO_ROOM)) == [(0, 2)]
    assert bench.core.experiment.state == "running"
    bench.started(0)
    bench.ended(0, "failed", NO_ROOM)
    assert (bench.core.experiment.state, bench.states) == ("paused", ["pending"])
    bench.command("resume")
    bench.started(0)
    bench.ended(0, "failed", Failure(kind="user", cause="exception", message="ValueError: no"))
    assert bench.states[0] == "failed"


@pytest.mark.parametrize("max_failures", [0, 1])
def test_a_full_disk_that_is_not_the_codes_fault_pauses_after_the_retries_of_the_system(max_failures: int) -> None:
    """An agent may send such a failure. With `max_failures`, the trial failed once its system failures were used up."""
    limits = {"max_concurrent_trials": 1, "max_failures": max_failures, "max_system_failures": 2}
    bench = Bench(max_t=4, limits=limits)
    for number in range(3):
        assert (bench.core.experiment.state, len(bench.core.trials[0].segments)) == ("running", number + 1)
        bench.started(0)
        bench.ended(0, "failed", replace(NO_ROOM, kind="system"))
    assert (bench.core.experiment.state, bench.states) == ("paused", ["pending"])
    assert bench.successor().states == bench.states
    bench.command("resume")
    assert bench.core.trials[0].segments[-1].open


def test_a_last_checkpoint_that_finds_no_room_pauses_what_is_left_to_train() -> None:
    bench = Bench(max_t=1, num_samples=2, limits={"max_concurrent_trials": 1})
    bench.started(0)
    bench.reported(0)
    bench.ended(0, "failed", NO_ROOM)
    assert (bench.core.experiment.state, bench.states[0]) == ("paused", "completed")
    bench.command("resume")
    bench.started(1)
    bench.reported(1)
    bench.ended(1, "failed", NO_ROOM)
    assert bench.core.experiment.state == "completed", "nothing is left for which there must be room"


def test_a_user_who_resumes_and_pauses_again_is_named() -> None:
    bench = Bench(max_t=4, limits={"max_concurrent_trials": 1})
    bench.started(0)
    bench.ended(0, "failed", NO_ROOM)
    bench.command("resume")
    bench.started(0)
    bench.command("pause")
    bench.reported(0)
    assert bench.core.trials[0].reason == "paused by a user at iteration 1"


def test_a_search_that_is_cancelled_while_a_disk_is_full_and_then_continued_has_no_such_reason_any_more() -> None:
    bench = Bench(max_t=4, num_samples=2, limits={"max_concurrent_trials": 1})
    bench.started(0)
    bench.ended(0, "failed", NO_ROOM)
    assert str(bench.core.summary()["reason"]).startswith("paused, because a disk is full")
    bench.command("cancel")
    assert bench.core.experiment.state == "cancelled"
    bench.command("continue")
    assert (bench.core.experiment.state, bench.core.summary()["reason"]) == ("running", "")
