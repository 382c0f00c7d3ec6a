"""Test that `load` returns what `commit` got, for any batches, on both databases."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.examples import T0, a_spec, a_trial
from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.batch import Batch, Entry
from tuner.errors import LostLease
from tuner.store import Store

TRIALS, SEGMENTS = 3, 2

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
floats = st.floats(width=64)
finite = st.floats(allow_nan=False, allow_infinity=False)
times = st.floats(0, 1e10)
trials = st.integers(0, TRIALS - 1)
segments = st.integers(1, SEGMENTS)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | finite | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(names, json_values, max_size=3)
checkpoints = st.builds(
    e.CheckpointInfo,
    id=st.uuids().map(lambda u: f"ckp_{u.hex}"),
    uri=texts,
    step=st.integers(0, 99),
    bytes=st.integers(0, 2**60),
    ready=st.booleans(),
    node=st.none() | st.just("5f" * 28),
)
failures = st.builds(
    e.Failure,
    kind=st.sampled_from(["user", "system"]),
    message=texts,
    rank=st.none() | st.integers(0, 9),
    traceback=texts,
    stacks=st.dictionaries(names, texts, max_size=2),
)
other_events = st.one_of(
    st.builds(e.Waiting, time=times, trial=trials, segment=segments, reason=texts),
    st.builds(
        e.SegmentStarted,
        time=times,
        trial=trials,
        segment=segments,
        placement=objects,
        startup_s=finite,
        warm=st.booleans(),
    ),
    st.builds(e.CheckpointSaved, time=times, trial=trials, segment=segments, checkpoint=checkpoints),
    st.builds(e.CheckpointDeleted, time=times, trial=trials, checkpoint=names),
    st.builds(
        e.SegmentEnded,
        time=times,
        trial=trials,
        segment=segments,
        outcome=st.sampled_from(["returned", "failed"]),
        failure=st.none() | failures,
        warning=texts,
    ),
    st.builds(e.Suggested, time=times, number=trials, params=objects, state=objects),
    st.builds(e.ModelFitted, time=times, payload=objects),
    st.builds(
        e.Commanded, time=times, command=st.sampled_from(["pause", "cancel"]), trial=st.none() | trials, reason=texts
    ),
    st.builds(e.BudgetSpent, time=times, seconds=finite),
)
all_decisions = st.one_of(
    st.builds(d.Start, reason=texts, params=st.none() | objects, number=trials, state=objects, tags=objects),
    st.builds(d.Stop, reason=texts, trial=trials),
    st.builds(d.Pause, reason=texts, trial=trials),
    st.builds(d.Exploit, reason=texts, trial=trials, donor=trials, params=objects, checkpoint=texts, mutations=objects),
    st.builds(d.Fail, reason=texts, trial=trials, failure=st.none() | failures),
    st.builds(d.Finish, reason=texts),
    st.builds(d.Note, reason=texts, trial=st.none() | trials, warning=st.booleans()),
)


@st.composite
def logs(draw: st.DrawFn) -> list[list[Entry]]:
    """Batches with gapless numbers, whose reports are numbered within their segments."""
    seq, reports = 0, {}
    batches = []
    for size in draw(st.lists(st.integers(0, 6), min_size=1, max_size=4)):
        batch: list[Entry] = []
        for _ in range(size):
            seq += 1
            if draw(st.booleans()):
                where = (draw(trials), draw(segments))
                number = reports[where] = reports.get(where, 0) + 1
                metrics = draw(st.dictionaries(names, floats, max_size=3))
                batch.append(
                    (
                        seq,
                        e.Reported(
                            time=draw(times),
                            trial=where[0],
                            segment=where[1],
                            report_no=number,
                            iteration=draw(st.integers(0, 999)),
                            metrics=metrics,
                            checkpoint=draw(st.none() | checkpoints),
                            step=draw(st.none() | st.integers(-(2**63), 2**63 - 1)),
                        ),
                    )
                )
            else:
                batch.append((seq, draw(other_events | all_decisions)))
        batches.append(batch)
    return batches


def same(left: Any, right: Any) -> bool:
    """Equal, with NaN equal to NaN."""
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, e.Event | d.Decision | e.CheckpointInfo | e.Failure):
        return type(left) is type(right) and all(
            same(getattr(left, f), getattr(right, f)) for f in type(left).__dataclass_fields__
        )
    return bool(left == right)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(batches=logs(), reopen=st.booleans())
def test_load_gives_back_what_commit_got(
    store: Store, database_url: str, batches: list[list[Entry]], reopen: bool
) -> None:
    made = store.experiments.create(a_spec())
    epoch = store.drivers.claim(made.id, "driver", 60, T0)
    population = [a_trial(number, SEGMENTS) for number in range(TRIALS)]
    other = Store.open(database_url) if reopen else store  # a second process knows no ids yet
    try:
        store.drivers.commit(made.id, epoch, Batch(log=[], trials=population), T0)
        for at, batch in enumerate(batches):
            (store, other)[at % 2].drivers.commit(made.id, epoch, Batch(log=batch, trials=population[:1]), T0)
    finally:
        if reopen:
            other.close()
    expected = [entry for batch in batches for entry in batch]
    found = list(store.drivers.load(made.id))
    assert [seq for seq, _ in found] == [seq for seq, _ in expected]
    for (_, left), (_, right) in zip(found, expected, strict=True):
        assert same(left, right), (left, right)
    assert [item.seq for item in store.log.events_after(made.id, 0)] == [seq for seq, _ in expected]
    for after in {0, len(expected) // 2, len(expected)}:
        assert [seq for seq, _ in store.drivers.load(made.id, after)] == list(range(after + 1, len(expected) + 1))

    store.drivers.claim(made.id, "other", 60, T0 + 100)
    with pytest.raises(LostLease):
        store.drivers.commit(
            made.id, epoch, Batch(log=[(len(expected) + 1, d.Finish(reason="late"))], trials=population), T0
        )
    assert len(list(store.drivers.load(made.id))) == len(expected)
