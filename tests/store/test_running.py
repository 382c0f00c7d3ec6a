"""The clock of an experiment stands still while the experiment does not run, and curves and bests over time follow it."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.store.examples import T0, begin
from tests.store.series.test_curves import Run
from tuner.domain.batch import Batch
from tuner.domain.events import ClockJumped
from tuner.domain.states import ExperimentState
from tuner.store import Store
from tuner.store.running import RunningClock


@st.composite
def clocks(draw: st.DrawFn) -> RunningClock:
    marks = sorted(draw(st.lists(st.integers(1, 1000), min_size=0, max_size=10, unique=True)))
    pauses = [(float(a), float(b)) for a, b in zip(marks[::2], marks[1::2], strict=False)]
    last = [(float(marks[-1]), None)] if len(marks) % 2 else []
    return RunningClock(0.0, [*pauses, *last])


@given(clocks(), st.lists(st.integers(-5, 1100), max_size=20))
def test_the_clock_shows_the_time_less_the_pauses_before(clock: RunningClock, times: list[int]) -> None:
    expected = [
        at - sum(max(min(at, np.inf if end is None else end) - begin, 0.0) for begin, end in clock.pauses)
        for at in times
    ]
    assert clock.seconds(times).tolist() == expected


@given(clocks(), st.lists(st.integers(0, 1100), max_size=20))
def test_what_the_clock_shows_leads_back_to_a_time_at_which_it_shows_it(clock: RunningClock, shown: list[int]) -> None:
    limit = clock.pauses[-1][0] if clock.pauses and clock.pauses[-1][1] is None else np.inf
    most = float(clock.seconds(limit)) if np.isfinite(limit) else np.inf
    for seconds in shown:
        if seconds <= most:
            assert clock.seconds(clock.times(seconds)) == seconds


def test_curves_over_time_leave_pauses_out(store: Store) -> None:
    run = Run(store)
    run.report(0, [{"accuracy": value / 10} for value in range(1, 5)])  # at 0.5, 1, 1.5 and 2 s
    run.time += 1000.0
    run.report(0, [{"accuracy": value / 10} for value in range(5, 9)])  # at 1002.5 s and after
    summary = {"pauses": [(T0 + 3.0, T0 + 1003.0)]}
    batch = Batch(log=[], trials=run.trials, summary=summary)
    store.drivers.commit(run.made.id, run.epoch, batch, run.time)
    record = store.experiments.by_id(run.made.id)
    assert (record.paused_s, record.paused_since) == (1000.0, None)
    assert record.started_at == T0 + 1.0
    all_times = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
    [curve] = store.metrics.curves(record.id, "accuracy", x="time").curves
    assert list(curve.segments[0].x) == all_times
    [part] = store.metrics.curves(record.id, "accuracy", x="time", low=2.4, high=3.1).curves
    assert set(all_times[4:6]) <= set(part.segments[0].x)
    seconds, values = store.metrics.best_so_far(record.id, "accuracy", "max")
    assert (seconds, values) == (all_times, [value / 10 for value in range(1, 9)])
    since = dataclasses.replace(store.changes.bookmark(record.id), seq=5)  # what `begin` has written
    changes = store.changes.since(record.id, since, record.last_event_seq)
    assert [point.seconds for point in changes.points] == all_times


def test_a_jump_of_the_clock_is_shown_while_the_experiment_runs(store: Store) -> None:
    made, epoch, _ = begin(store)
    jump = [(T0 + 3.0, T0 + 1003.0)]
    for seq, pauses in ((4, []), (5, []), (6, jump)):
        event = ClockJumped(time=T0 + 1004.0, start=T0 + 3.0, seconds=1000.0)
        batch = Batch(log=[(seq, event)], state=ExperimentState.RUNNING, summary={"pauses": pauses})
        store.drivers.commit(made.id, epoch, batch, T0)
    assert store.experiments.by_id(made.id).pauses == [list(jump[0])]
