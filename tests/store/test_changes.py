"""Test the rows that changed after a bookmark, on both databases."""

from __future__ import annotations

from tests.store.examples import T0, a_report, a_trial, begin
from tuner.domain.batch import Batch
from tuner.domain.decisions import Resume
from tuner.domain.events import SegmentEnded, SegmentStarted
from tuner.domain.states import SegmentState, TrialState
from tuner.domain.trial import Segment
from tuner.store import Bookmark, Store


def test_a_trial_that_is_launched_because_another_one_ended_is_among_the_changes(store: Store) -> None:
    """No log entry names it: it was decided on earlier, and waited for a place."""
    made, epoch, trials = begin(store, 2)
    first, second = trials
    second.state = TrialState.PENDING
    store.drivers.commit(made.id, epoch, Batch(log=[(6, Resume(reason="promoted", trial=1))], trials=[second]), T0)
    since = store.changes.bookmark(made.id)
    second.segments.append(Segment(2, "resume", {"lr": 0.5}, 3, None, opened_at=T0 + 5))
    second.iteration = 3
    first.segments[0].ended_at, first.segments[0].state = T0 + 5, SegmentState.LEFT
    ended = SegmentEnded(time=T0 + 5, trial=0, segment=1, outcome="left")
    store.drivers.commit(made.id, epoch, Batch(log=[(7, ended)], trials=trials), T0 + 5)
    found = store.changes.since(made.id, since, 7)
    assert [(trial.number, trial.iteration) for trial in found.trials] == [(0, 0), (1, 3)]
    assert [(item.trial, item.segment.ordinal, item.segment.outcome) for item in found.segments] == [
        (0, 1, "left"),
        (1, 2, None),
    ]
    again = store.changes.since(made.id, found.bookmark, 7)
    assert (again.trials, again.segments, again.decisions) == ([], [], [])


def test_decisions_come_again_when_they_are_carried_out(store: Store) -> None:
    made, epoch, trials = begin(store, 2)
    since = store.changes.bookmark(made.id)
    assert since == Bookmark(seq=5, open_decisions=frozenset({2, 4}), last_segment=since.last_segment)
    batch = Batch(log=[(6, a_report(1, 1))], trials=trials[1:], carried_out=[4])
    store.drivers.commit(made.id, epoch, batch, T0)
    found = store.changes.since(made.id, since, 6)
    assert [(one.seq, one.state) for one in found.decisions] == [(4, "done")]
    assert found.bookmark.open_decisions == {2}
    # Whoever knows only where they stopped gets all earlier decisions about the trials that the log names.
    assert [one.seq for one in store.changes.since(made.id, Bookmark(seq=5), 6).decisions] == [4]


def test_only_segments_that_may_have_changed_are_read(store: Store) -> None:
    made, epoch, _ = begin(store)
    trial = a_trial(0, segments=3)
    for segment in trial.segments[:2]:
        segment.started_at, segment.ended_at, segment.state = T0 + 1, T0 + 2, SegmentState.LEFT
    store.drivers.commit(made.id, epoch, Batch(log=[], trials=[trial]), T0 + 2)
    since = store.changes.bookmark(made.id)
    trial.segments[2].started_at = T0 + 3
    started = SegmentStarted(time=T0 + 3, trial=0, segment=3)
    store.drivers.commit(
        made.id, epoch, Batch(log=[(4, started), (5, a_report(0, 1, segment=3))], trials=[trial]), T0 + 3
    )
    found = store.changes.since(made.id, since, 5)
    assert [(item.segment.ordinal, item.segment.started_at) for item in found.segments] == [(3, T0 + 3)]
    assert [(point.segment, point.cause, point.iteration) for point in found.points] == [(3, "resume", 1)]
    store.drivers.commit(made.id, epoch, Batch(log=[(6, a_report(0, 2, segment=3))], trials=[trial]), T0 + 4)
    assert store.changes.since(made.id, found.bookmark, 6).segments == []


def test_an_improvement_is_told_once(store: Store) -> None:
    made, epoch, trials = begin(store)
    log = [(4, a_report(0, 1, accuracy=0.5)), (5, a_report(0, 2, accuracy=0.4)), (6, a_report(0, 3, accuracy=0.6))]
    store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0)
    assert [(one.seq, one.value) for one in store.changes.since(made.id, Bookmark(seq=3), 6).best] == [
        (4, 0.5),
        (6, 0.6),
    ]
    assert [one.seq for one in store.changes.since(made.id, Bookmark(seq=4), 6).best] == [6]
