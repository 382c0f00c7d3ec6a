"""Test the timeline: when trials waited, started and ran, and what devices did meanwhile."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import pytest

from tests.store.examples import T0, a_report, begin
from tuner.domain.batch import Batch
from tuner.domain.events import CheckpointInfo, CheckpointSaved
from tuner.domain.states import SegmentState
from tuner.domain.trial import Segment
from tuner.experiment.analysis.timeline import Span, device_rows, timeline, trial_spans
from tuner.store import SegmentRecord, Store, TrialSegment


def segment(ordinal: int = 1, cause: Any = "start", ranks: list[dict[str, Any]] | None = None, **times: Any) -> Any:
    """Return a segment that was created at 0, got its room at 10, started at 13 and ended at 20."""
    parts = {
        "created_at": 0.0,
        "started_at": 13.0,
        "ended_at": 20.0,
        "startup_s": 13.0,
        "held_s": 3.0,
        "warm": False,
        **times,
    }
    return SegmentRecord(
        id=ordinal,
        public_id=f"seg_{ordinal}",
        ordinal=ordinal,
        cause=cause,
        start_iteration=0,
        params={},
        source_checkpoint=None,
        source_trial=None,
        source_ordinal=None,
        placement={"ranks": ranks or []},
        outcome=None,
        **parts,
    )


def seen(spans: list[Span] | tuple[Span, ...]) -> list[tuple[str, float, float]]:
    return [(span.phase, span.start, span.end) for span in spans]


def test_a_segment_waits_starts_and_runs() -> None:
    assert seen(trial_spans(3, [segment()], 99.0, None)) == [
        ("waiting", 0.0, 10.0),
        ("starting", 10.0, 13.0),
        ("running", 13.0, 20.0),
    ]


def test_one_that_has_no_room_yet_waits_until_now_and_one_that_runs_goes_on_until_now() -> None:
    assert seen(trial_spans(3, [segment(started_at=None, ended_at=None)], 99.0, None)) == [("waiting", 0.0, 99.0)]
    assert seen(trial_spans(3, [segment(ended_at=None)], 99.0, None))[-1] == ("running", 13.0, 99.0)


def test_between_a_pause_and_its_resume_a_trial_is_paused_and_then_restarts() -> None:
    again = segment(2, "resume", created_at=50.0, started_at=55.0, ended_at=60.0, held_s=5.0)
    assert seen(trial_spans(3, [segment(), again], 99.0, None))[3:] == [
        ("paused", 20.0, 50.0),
        ("restarting", 50.0, 55.0),
        ("running", 55.0, 60.0),
    ]
    assert seen(trial_spans(3, [segment()], 99.0, 99.0))[-1] == ("paused", 20.0, 99.0)
    retried = segment(2, "retry", created_at=21.0, started_at=25.0, ended_at=30.0, held_s=4.0)
    assert "paused" not in [span.phase for span in trial_spans(3, [segment(), retried], 99.0, None)]


def test_a_trial_that_ends_while_it_is_paused_is_paused_until_then() -> None:
    assert seen(trial_spans(3, [segment()], 99.0, 70.0))[-1] == ("paused", 20.0, 70.0)
    assert seen(trial_spans(3, [segment()], 99.0, 19.9))[-1] == ("running", 13.0, 20.0), (
        "it ended before its processes left"
    )
    failed = dataclasses.replace(segment(), outcome="failed")
    assert seen(trial_spans(3, [failed], 99.0, 21.0))[-1] == ("running", 13.0, 20.0)


def test_there_is_no_gap_before_an_exploit_or_a_retry() -> None:
    """A member of a population pauses to let others run, and then copies another one instead of being resumed."""
    for cause, phase in (("exploit", "paused"), ("fork", "paused"), ("retry", "waiting"), ("resize", "waiting")):
        later = segment(2, cause, created_at=50.0, started_at=55.0, ended_at=60.0, held_s=5.0)
        spans = trial_spans(3, [segment(), later], 99.0, None)
        assert seen(spans)[3] == (phase, 20.0, 50.0)
        assert all(one.end == after.start for one, after in pairwise(spans))


def test_the_failures_of_a_trial_are_marked(store: Store) -> None:
    made, epoch, trials = begin(store, 2)
    first = trials[0].segments[0]
    first.started_at, first.ended_at, first.state = T0 + 2, T0 + 11, SegmentState.FAILED
    trials[0].segments.append(Segment(2, "retry", {}, 0, None, opened_at=T0 + 12, started_at=T0 + 13))
    store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials), T0 + 13)
    found = timeline(store, store.experiments.by_id(made.id), first=0, most=10, now=T0 + 20)
    assert [list(row.failed_at) for row in found.trials] == [[T0 + 11], []]


def test_an_exploit_in_processes_that_run_is_not_called_a_start() -> None:
    copied = segment(2, "exploit", created_at=20.0, started_at=21.5, ended_at=30.0, held_s=1.5, warm=True)
    assert seen(trial_spans(3, [segment(), copied], 99.0, None))[3:] == [
        ("exploiting", 20.0, 21.5),
        ("running", 21.5, 30.0),
    ]


def test_an_exploit_for_which_new_processes_must_start_is_a_start_and_a_wait() -> None:
    """The start takes seconds, or minutes on a busy machine, and the weights are taken over in a moment."""
    copied = segment(2, "exploit", created_at=20.0, started_at=80.0, ended_at=90.0, held_s=45.0, warm=False)
    assert seen(trial_spans(3, [segment(), copied], 99.0, None))[3:] == [
        ("waiting", 20.0, 35.0),
        ("restarting", 35.0, 80.0),
        ("running", 80.0, 90.0),
    ]


def test_a_segment_of_an_older_version_counts_its_whole_start() -> None:
    old = segment(held_s=None, startup_s=13.0)
    assert seen(trial_spans(3, [old], 99.0, None)) == [("starting", 0.0, 13.0), ("running", 13.0, 20.0)]


def test_training_that_waits_for_checkpoints_is_checkpointing() -> None:
    saves = {(3, 1): [(12.0, 14.0), (15.0, 15.5), (19.0, 21.0)], (4, 1): [(16.0, 17.0)]}
    assert seen(trial_spans(3, [segment()], 99.0, None, saves))[2:] == [
        ("checkpointing", 13.0, 14.0),
        ("running", 14.0, 15.0),
        ("checkpointing", 15.0, 15.5),
        ("running", 15.5, 19.0),
        ("checkpointing", 19.0, 20.0),
    ]


def test_the_waits_for_checkpoints_are_stored_with_them(store: Store) -> None:
    """A checkpoint comes with its report, or later by itself; what becomes of it afterwards does not move its wait."""
    made, epoch, _ = begin(store, 2)
    first = CheckpointInfo(id="ckpt_1", uri="/a", step=1, bytes=10, ready=False, took_s=0.5, age_s=0.25)
    log = [
        (6, dataclasses.replace(a_report(0, 1), time=T0 + 10, checkpoint=first)),
        (7, CheckpointSaved(time=T0 + 30, trial=0, segment=1, checkpoint=dataclasses.replace(first, ready=True))),
        (8, CheckpointSaved(time=T0 + 40, trial=1, segment=1, checkpoint=_saved("ckpt_2", took_s=2.0, age_s=1.0))),
        (9, CheckpointSaved(time=T0 + 41, trial=1, segment=1, checkpoint=_saved("ckpt_3", took_s=0.0))),
    ]
    store.drivers.commit(made.id, epoch, Batch(log=log), T0 + 41)
    waits = [(0, 1, T0 + 9.25, T0 + 9.75), (1, 1, T0 + 37.0, T0 + 39.0)]
    assert store.trials.saves(made.id, [0, 1], 10) == (waits, 2.5)
    assert store.trials.saves(made.id, [0, 1], 1) == (waits[1:], 2.5), "the longest, and the seconds of all"
    assert store.trials.saves(made.id, [0], 10) == (waits[:1], 0.5)


def test_waits_that_are_not_shown_one_by_one_count_in_the_totals(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made, epoch, trials = begin(store)
    trials[0].segments[0].started_at = T0
    log = [
        (3 + n, CheckpointSaved(time=T0 + 10 * n, trial=0, segment=1, checkpoint=_saved(f"ckpt_{n}", took_s=2.0)))
        for n in (1, 2, 3)
    ]
    store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0 + 30)
    totals = []
    for most in (2000, 1):
        monkeypatch.setattr("tuner.experiment.analysis.timeline.MAX_SAVES", most)
        found = timeline(store, store.experiments.by_id(made.id), first=0, most=10, now=T0 + 50)
        totals.append(found.totals)
    assert totals[0]["checkpointing"] == 6.0
    assert totals[1] == totals[0]


def _saved(name: str, **took: float) -> CheckpointInfo:
    return CheckpointInfo(id=name, uri="/a", step=1, bytes=10, **took)


def test_the_pauses_of_the_experiment_are_left_out(store: Store) -> None:
    made, epoch, trials = begin(store, 1)
    trials[0].segments[0].ended_at = T0 + 11
    trials[0].segments.append(Segment(2, "resume", {}, 1, None, opened_at=T0 + 1011, started_at=T0 + 1012))
    pauses = [(T0 + 11, T0 + 1011)]
    store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials, summary={"pauses": pauses}), T0 + 1012)
    found = timeline(store, store.experiments.by_id(made.id), first=0, most=10, now=T0 + 1020)
    assert (found.end, found.pauses) == (T0 + 20, [(T0 + 11, 1000.0)])
    assert {span.phase for span in found.trials[0].spans}.isdisjoint({"paused", "idle"})
    last = found.trials[0].spans[-1]
    assert (last.phase, last.start, last.end) == ("running", T0 + 12, T0 + 20)


def test_a_page_after_the_last_trial_is_empty(store: Store) -> None:
    made, _, _ = begin(store, 2)
    record = store.experiments.get(made.public_id)
    for first, numbers in ((1, [1]), (2, []), (2**31 - 1, [])):
        found = timeline(store, record, first=first, most=1000, now=T0 + 9)
        assert ([row.number for row in found.trials], found.of) == (numbers, 2)


def test_a_gpu_is_idle_when_no_trial_holds_it() -> None:
    gpu = [{"rank": 0, "host": "a", "gpus": [0]}, {"rank": 1, "host": "a", "gpus": [0]}]
    later = segment(1, created_at=20.0, started_at=42.0, ended_at=50.0, held_s=2.0, ranks=gpu)
    [device] = device_rows([TrialSegment(0, segment(ranks=gpu)), TrialSegment(1, later)], 0.0, 60.0)
    assert (device.host, device.name) == ("a", "GPU 0")
    assert seen(list(device.spans)) == [
        ("idle", 0.0, 10.0),
        ("starting", 10.0, 13.0),
        ("running", 13.0, 20.0),
        ("idle", 20.0, 40.0),
        ("starting", 40.0, 42.0),
        ("running", 42.0, 50.0),
        ("idle", 50.0, 60.0),
    ]
    assert device.busy == pytest.approx(20 / 60)
    assert [span.trial for span in device.spans] == [None, 0, 0, None, 1, 1, None]


def test_ranks_without_gpus_take_the_first_free_place_of_their_node() -> None:
    rank = [{"rank": 0, "host": "a", "gpus": []}]
    times = [(0.0, 10.0), (5.0, 15.0), (12.0, 20.0)]
    segments = [
        TrialSegment(n, segment(ranks=rank, created_at=a, started_at=a + 1, held_s=1.0, ended_at=b))
        for n, (a, b) in enumerate(times)
    ]
    first, second = device_rows(segments, 0.0, 20.0)
    assert [(row.name, {span.trial for span in row.spans} - {None}) for row in (first, second)] == [
        ("slot 1", {0, 2}),
        ("slot 2", {1}),
    ]
    assert [row.name for row in device_rows([TrialSegment(0, segment(ranks=rank * 12))], 0.0, 20.0)] == [
        f"slot {n}" for n in range(1, 13)
    ]
