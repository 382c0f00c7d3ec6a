"""Curves out of buckets are those that the points themselves would give, whatever was reported, on both databases."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from tests.store.examples import T0, a_spec, begin
from tuner.domain.batch import Batch, Entry
from tuner.domain.events import Reported, SegmentEnded
from tuner.domain.states import SegmentState
from tuner.domain.trial import Segment, Trial
from tuner.store import Store
from tuner.store.records import Across
from tuner.store.series import clocks, pyramid

Point = tuple[int, int, float, float]


class Run:
    """Two trials whose segments report, one batch after the other."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.made, self.epoch, self.trials = begin(store, 2)
        self.seq = 5
        self.points: dict[tuple[int, int, str], list[Point]] = {}
        self.time = T0 + 1.0

    def report(
        self, trial: int, values: Sequence[dict[str, float]], *, ends: bool = False, twice: bool = False
    ) -> None:
        """Commit a batch: the newest segment of a trial reports these metrics, and maybe ends."""
        segment = self.trials[trial].segments[-1]
        log: list[Entry] = []
        for metrics in values:
            self.seq += 1
            self.time += 0.5
            segment.report_no += 1
            step = segment.start_iteration + segment.report_no
            for name, value in metrics.items():
                key = (trial, segment.ordinal, name)
                self.points.setdefault(key, []).append((segment.report_no, step, self.time, value))
            log.append((self.seq, Reported(time=self.time, trial=trial, segment=segment.ordinal, report_no=segment.report_no, iteration=step, metrics=metrics)))  # fmt: skip  # noqa: E501
        if ends:
            self.seq += 1
            segment.ended_at, segment.state = self.time, SegmentState.RETURNED
            log.append(
                (self.seq, SegmentEnded(time=self.time, trial=trial, segment=segment.ordinal, outcome="returned"))
            )
        batch = Batch(log=log, trials=self.trials)
        for _ in range(2 if twice else 1):
            self.store.drivers.commit(self.made.id, self.epoch, batch, self.time)

    def go_on(self, trial: int, start: int) -> None:
        """Begin another segment from an earlier iteration, as a retry does."""
        of: Trial = self.trials[trial]
        of.segments.append(Segment(len(of.segments) + 1, "retry", {}, start, None, opened_at=self.time))

    def rows(self) -> dict[tuple[int, int, str, int], list[pyramid.Bucket]]:
        """(trial, segment, metric, level) -> buckets as they are in the database."""
        query = text(
            "SELECT t.number, s.ordinal, k.name, b.level, b.data FROM metric_bucket b JOIN segment s ON s.id = b.segment_id"
            " JOIN trial t ON t.id = s.trial_id JOIN metric_key k ON k.id = b.key_id WHERE t.experiment_id = :e"
            " ORDER BY b.level, b.chunk"
        )
        found: dict[tuple[int, int, str, int], list[pyramid.Bucket]] = {}
        with self.store._database.engine.connect() as connection:
            for number, ordinal, name, level, data in connection.execute(query, {"e": self.made.id}):
                found.setdefault((number, ordinal, name, level), []).extend(pyramid.unpacked(bytes(data)))
        return found


def same(left: Sequence[float | int], right: Sequence[float | int]) -> bool:
    return len(left) == len(right) and all(a == b or (a != a and b != b) for a, b in zip(left, right, strict=True))


def buckets_of(points: Sequence[Point], level: int) -> list[pyramid.Bucket]:
    size = pyramid.reports_per_bucket(level)
    found = []
    for _, group in itertools.groupby(points, lambda p: (p[0] - 1) // size):
        of = list(group)
        finite = [p for p in of if math.isfinite(p[3])] or of[:1]
        low, high = min(finite, key=lambda p: p[3]), max(finite, key=lambda p: p[3])
        gaps = sum(not math.isfinite(p[3]) for p in of)
        found.append((len(of), gaps, *of[0], *of[-1], *low, *high))
    return found


def drawn(points: Sequence[Point], width: int, x: str = "step") -> list[tuple[float, float | None]]:
    """Return what is to be drawn of these points, computed in the simplest way."""
    keep = {points[0][0], points[-1][0]}
    for _, group in itertools.groupby(points, lambda p: (p[0] - 1) // width):
        of = list(group)
        finite = [p for p in of if math.isfinite(p[3])]
        keep |= {min(finite, key=lambda p: p[3])[0], max(finite, key=lambda p: p[3])[0]} if finite else {of[0][0]}
    return [
        (p[1] if x == "step" else p[2] - (T0 + 1), p[3] if math.isfinite(p[3]) else None)
        for p in points
        if p[0] in keep
    ]


values = st.floats(width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 1.0])
metrics = st.fixed_dictionaries({}, optional={"accuracy": values, "loss": values})


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[int, list[dict[str, float]], bool, bool, int | None, bool]]:
    """Draw what happens to trials, one batch after the other.

    Each is (trial, reports, whether the segment ends, whether the batch is written twice, the count at which the next segment
    begins, whether a new driver takes over).
    """
    found = []
    for _ in range(draw(st.integers(1, 5))):
        some = draw(st.lists(metrics, min_size=1, max_size=12))
        reports = list(itertools.islice(itertools.cycle(some), draw(st.sampled_from([1, 7, 63, 64, 65, 130, 520]))))
        ends = draw(st.booleans())
        again = draw(st.none() | st.integers(0, 300)) if ends else None
        found.append((draw(st.integers(0, 1)), reports, ends, draw(st.booleans()), again, draw(st.booleans())))
    return found


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(story=stories(), points=st.integers(4, 700), data=st.data())
def test_buckets_are_what_the_points_make(
    store: Store, story: list[tuple[int, list[dict[str, float]], bool, bool, int | None, bool]], points: int, data: st.DataObject
) -> None:  # fmt: skip
    run = Run(store)
    ended: set[int] = set()
    for trial, reports, ends, twice, again, taken_over in story:
        if trial in ended:
            continue
        run.report(trial, reports, ends=ends, twice=twice)
        if ends and again is not None:
            run.go_on(trial, again)
        elif ends:
            ended.add(trial)
        if taken_over:
            run.epoch = store.drivers.claim(run.made.id, "driver", 60.0, run.time)

    for (number, ordinal, name, level), found in run.rows().items():
        expected = buckets_of(run.points[number, ordinal, name], level)
        assert len(found) <= len(expected)
        assert all(same(a, b) for a, b in zip(found, expected, strict=False))
    for name, x in itertools.product(("accuracy", "loss"), ("step", "time")):
        for limit in (0, 10**9):  # from the buckets, and from the points
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("tuner.store.series.metrics.curves.MAX_ROWS", limit)
                curves = store.metrics.curves(run.made.id, name, x=x, points=points)
            found_curves = {
                (c.trial, s.ordinal): list(zip(s.x, s.y, strict=True)) for c in curves.curves for s in c.segments
            }
            expected = {key[:2]: drawn(of, curves.width, x) for key, of in run.points.items() if key[2] == name}
            assert found_curves == expected

    low = data.draw(st.integers(-5, 700))
    high = low + data.draw(st.integers(0, 300))
    curves = store.metrics.curves(run.made.id, "accuracy", points=points, low=low, high=high)
    shown = {(c.trial, s.ordinal): dict(zip(s.x, s.y, strict=True)) for c in curves.curves for s in c.segments}
    for (number, ordinal, name), of in run.points.items():
        inside = {p[1]: p[3] for p in of if low <= p[1] <= high and math.isfinite(p[3])}
        if name == "accuracy" and inside:
            kept = [v for v in shown[number, ordinal].values() if v is not None]
            assert min(kept) <= min(inside.values())
            assert max(kept) >= max(inside.values())
            if curves.width == 1:
                assert inside.items() <= shown[number, ordinal].items()


def test_a_long_curve_is_read_without_its_points_and_spikes_stay(store: Store) -> None:
    run = Run(store)
    values = [math.sin(n / 50) for n in range(5000)]
    values[3210], values[4444] = 9.0, -9.0
    run.report(0, [{"accuracy": v} for v in values[:4800]])
    run.report(0, [{"accuracy": v} for v in values[4800:]], ends=True)
    with store._database.engine.begin() as connection:
        # The table is read only for the newest report_no of each segment.
        connection.execute(text("DELETE FROM metric_point"))
        connection.execute(
            text(
                "INSERT INTO metric_point SELECT id, (SELECT MIN(id) FROM metric_key), 5000, 5000, 0, 0, 0, NULL FROM segment"
            )
        )
    curves = store.metrics.curves(run.made.id, "accuracy", points=200)
    of = next(c.segments[0] for c in curves.curves if c.trial == 0)
    assert curves.width == 56
    assert len(of.x) <= 200
    drawn_values = dict(zip(of.x, of.y, strict=True))
    assert (drawn_values[3211], drawn_values[4445]) == (9.0, -9.0)


def test_a_part_is_read_more_finely(store: Store) -> None:
    run = Run(store)
    run.report(0, [{"accuracy": (n * 7919) % 1000} for n in range(4000)])
    whole = store.metrics.curves(run.made.id, "accuracy", points=100)
    part = store.metrics.curves(run.made.id, "accuracy", points=100, low=1000, high=1080)
    assert (whole.width, part.width) == (88, 1)
    assert list(part.curves[0].segments[0].x) == list(range(999, 1082))
    by_time = store.metrics.curves(run.made.id, "accuracy", x="time", points=100, low=500.0, high=540.0)
    xs = by_time.curves[0].segments[0].x
    assert (by_time.width <= 2, min(xs) <= 500 <= min(xs) + 10, max(xs) - 10 <= 540 <= max(xs)) == (True, True, True)
    assert store.metrics.curves(run.made.id, "accuracy", low=9000, high=9001).curves == ()
    assert store.metrics.curves(run.made.id, "accuracy", x="time", low=-20, high=-10).curves == ()


@pytest.mark.parametrize("x", ["time", "trial_time"])
@pytest.mark.parametrize("count", [10, 3000])
def test_a_line_between_two_reports_is_seen_if_neither_of_them_is(store: Store, count: int, x: Across) -> None:
    run = Run(store)
    run.report(0, [{"accuracy": n / count} for n in range(count)], ends=True)
    times = store.metrics.curves(run.made.id, "accuracy", x=x, points=2 * count).curves[0].segments[0].x
    assert len(times) == count

    def seen(low: float, high: float) -> list[list[float]]:
        found = store.metrics.curves(run.made.id, "accuracy", x=x, low=low, high=high).curves
        return [list(segment.x) for curve in found for segment in curve.segments]

    for at in (1, 5, 8, 64, 512, 2000):
        if at + 2 < count:
            before, left, right, behind = times[at - 1 : at + 3]
            assert seen(left + 0.1, right - 0.1) == [[left, right]], "the range is between two reports"
            assert seen(left - 0.1, right + 0.1) == [[before, left, right, behind]], "lines reach both edges"
    assert seen(times[0] - 0.2, times[0] - 0.1) == seen(times[-1] + 0.1, times[-1] + 0.2) == []


def test_time_of_the_trial_stands_still_while_the_clock_of_the_driver_jumps(store: Store) -> None:
    run = Run(store)
    run.report(0, [{"accuracy": 0.1}, {"accuracy": 0.2}])  # 1.0 s
    begun = run.time
    run.time += 3600
    with store._database.engine.begin() as connection:
        pauses = {"pauses": f"[[{begun},{run.time}]]", "id": run.made.id}
        connection.execute(text("UPDATE experiment SET pauses = :pauses WHERE id = :id"), pauses)
    run.report(0, [{"accuracy": 0.3}], ends=True)
    run.go_on(0, 3)
    run.report(0, [{"accuracy": 0.4}])
    curve = store.metrics.curves(run.made.id, "accuracy", x="trial_time").curves[0]
    assert [list(part.x) for part in curve.segments] == [[0.5, 1.0, 1.5], [2.0]]
    [part] = store.metrics.curves(run.made.id, "accuracy", x="trial_time", low=1.9, high=2.1).curves[0].segments
    assert list(part.x) == [2.0]


def test_time_of_the_trial_stands_still_between_its_segments(store: Store) -> None:
    run = Run(store)
    run.report(0, [{"accuracy": 0.1, "loss": 1.0}, {"accuracy": 0.2}], ends=True)  # 1.0 s
    run.report(1, [{"accuracy": 0.5}] * 20)
    run.go_on(0, 1)
    run.report(0, [{"accuracy": 0.3, "loss": 0.5}])
    for trials in (None, [0]):
        curve = store.metrics.curves(run.made.id, "accuracy", x="trial_time", trials=trials).curves[0]
        assert [(part.x, part.last_iteration) for part in curve.segments] == [([0.5, 1.0], 2), ([1.5], 2)]
        # The clock is that of the trial: the loss, which the last report of the first segment lacks, has the same one.
        curve = store.metrics.curves(run.made.id, "loss", x="trial_time", trials=trials).curves[0]
        assert [(part.x, part.last_iteration) for part in curve.segments] == [([0.5], 1), ([1.5], 2)]
    part = store.metrics.curves(run.made.id, "accuracy", x="trial_time", low=1.4, high=1.6).curves
    assert [(curve.trial, [list(segment.x) for segment in curve.segments]) for curve in part] == [
        (0, [[1.5]]),
        (1, [[1.5, 2.0]]),  # the line goes on to the edge of the chart
    ]


def test_the_last_report_of_a_segment_that_has_ended_is_looked_up_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a page that followed 16 trials of 300 segments each, all of these were looked up again for every message."""
    run = Run(store)
    run.report(0, [{"accuracy": 0.1}, {"accuracy": 0.2}], ends=True)
    run.go_on(0, 2)
    run.report(0, [{"accuracy": 0.3}])
    across = partial(store.metrics.curves, run.made.id, "accuracy", x="trial_time")
    before = across()
    with monkeypatch.context() as patched:
        patched.setattr(clocks, "_LAST_REPORTS", None)
        assert across() == before
    run.report(0, [{"accuracy": 0.4}], ends=True)
    run.go_on(0, 4)
    run.report(0, [{"accuracy": 0.5}])
    assert [list(part.x) for part in across().curves[0].segments] == [[0.5, 1.0], [1.5, 2.0], [2.5]]


def test_a_part_over_another_metric_is_read_more_finely(store: Store) -> None:
    run = Run(store)
    run.report(0, [{"accuracy": (n * 7919) % 1000, "epoch": n / 8} for n in range(4000)])
    run.report(
        1, [{"accuracy": 0.5}, {"epoch": 3.0}, {"accuracy": 0.7, "epoch": math.nan}, {"accuracy": 1, "epoch": 2}]
    )
    over = {"x": "metric", "x_metric": "epoch", "points": 100}
    whole = store.metrics.curves(run.made.id, "accuracy", **over)  # type: ignore[arg-type]
    steps = store.metrics.curves(run.made.id, "accuracy", points=100)
    [long, short] = [curve.segments[0] for curve in whole.curves]
    assert list(long.x) == [(step - 1) / 8 for step in steps.curves[0].segments[0].x]
    assert (list(short.x), list(short.y), short.last_iteration) == ([2.0], [1.0], 4)
    part = store.metrics.curves(run.made.id, "accuracy", low=125.0, high=127.0, **over)  # type: ignore[arg-type]
    [curve] = part.curves
    xs = list(curve.segments[0].x)
    assert (part.width, len(curve.segments), curve.trial) == (1, 1, 0)
    assert xs == [min(xs) + n / 8 for n in range(len(xs))]  # every report
    assert 114 < min(xs) <= 125 < 127 <= max(xs) < 138
    assert store.metrics.curves(run.made.id, "accuracy", low=9000, high=9001, **over).curves == ()  # type: ignore[arg-type]
    assert store.metrics.curves(run.made.id, "accuracy", x="metric", x_metric="nothing").curves == ()


@pytest.mark.parametrize("limit", [0, 10**9])
def test_only_reports_with_a_place_on_the_axis_are_thinned(
    store: Store, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.store.series.metrics.curves.MAX_ROWS", limit)
    run = Run(store)
    made = [{"loss": float((n * 7919) % 1000), **({"epoch": n / 100} if n % 100 == 0 else {})} for n in range(3000)]
    made[1500]["loss"] = 5000.0  # this spike has a place, and the next one does not
    made[1510]["loss"] = 9000.0
    run.report(0, made)
    over = {"x": "metric", "x_metric": "epoch"}
    whole = store.metrics.curves(run.made.id, "loss", points=200, **over)  # type: ignore[arg-type]
    [part] = whole.curves[0].segments
    assert (whole.width, list(part.x)) == (1, list(range(30)))
    assert list(part.y) == [made[100 * n]["loss"] for n in range(30)]
    few = store.metrics.curves(run.made.id, "loss", points=12, **over)  # type: ignore[arg-type]
    [part] = few.curves[0].segments
    assert few.width == 6
    assert (part.x[0], part.x[-1], max(v for v in part.y if v is not None)) == (0.0, 29.0, 5000.0)
    assert 10 <= len(part.x) <= 12
    zoomed = store.metrics.curves(run.made.id, "loss", points=12, low=10.0, high=14.0, **over)  # type: ignore[arg-type]
    assert (zoomed.width, list(zoomed.curves[0].segments[0].x)) == (1, [float(n) for n in range(9, 16)])
    itself = store.metrics.curves(run.made.id, "epoch", points=200, **over)  # type: ignore[arg-type]
    assert list(itself.curves[0].segments[0].y) == list(range(30))
    with store._database.engine.begin() as connection:
        connection.execute(text("UPDATE metric_point SET user_step = report_no * 2 WHERE report_no % 100 = 1"))
    steps = store.metrics.curves(run.made.id, "loss", x="user_step", points=200)
    assert list(steps.curves[0].segments[0].x) == [200 * n + 2 for n in range(30)]
    with store._database.engine.begin() as connection:
        connection.execute(text("UPDATE metric_point SET user_step = report_no * 2"))
    steps = store.metrics.curves(run.made.id, "loss", x="user_step", points=200)
    assert (steps.curves[0].segments[0].x[0], steps.curves[0].segments[0].x[-1]) == (2, 6000)


def test_only_some_trials(store: Store) -> None:
    run = Run(store)
    for trial in (0, 1):
        run.report(trial, [{"accuracy": 0.5}])
    assert [c.trial for c in store.metrics.curves(run.made.id, "accuracy", trials=[1, 7]).curves] == [1]
    assert store.metrics.curves(run.made.id, "accuracy", trials=[]).curves == ()


def test_the_training_of_all_trials_together(store: Store) -> None:
    """Trial 0 trains from 1 to 4, trial 1 from 2 on and still, and trial 2 has not started."""
    made, _, _ = begin(store, 3)
    with store._database.engine.begin() as connection:
        connection.execute(text("UPDATE segment SET started_at = NULL, ended_at = NULL"))
        for number, (started, ended) in enumerate([(1.0, 4.0), (2.0, None)]):
            connection.execute(
                text(
                    "UPDATE segment SET started_at = :a, ended_at = :b WHERE trial_id ="
                    " (SELECT id FROM trial WHERE experiment_id = :e AND number = :n)"
                ),
                {"a": T0 + started, "b": None if ended is None else T0 + ended, "e": made.id, "n": number},
            )
    start = store.experiments.by_id(made.id).started_at
    assert start is not None
    times = [T0 + one - start for one in (0.5, 1.0, 1.5, 3.0, 4.0, 6.0, 9.0)]
    assert store.metrics.trained(made.id, times, T0 + 6.0) == pytest.approx([0.0, 0.0, 0.5, 3.0, 5.0, 7.0, 7.0])
    other = store.experiments.create(a_spec("empty"), now=T0)
    assert store.metrics.trained(other.id, times, T0 + 6.0) == [0.0] * 7


def test_improvements_are_kept_by_the_writer(store: Store) -> None:
    run = Run(store)
    for trial, value in [(0, 0.1), (1, math.nan), (1, 0.1), (0, 0.3), (1, math.inf), (1, 0.2), (0, 0.4)]:
        run.report(trial, [{"accuracy": value, "loss": -value}], twice=True)
        # A new writer continues from what the old one has stored.
        run.epoch = store.drivers.claim(run.made.id, "driver", 60.0, run.time)
    with store._database.engine.begin() as connection:
        assert connection.execute(text("SELECT COUNT(*) FROM best_point")).scalar() == 3
    x, y = store.metrics.best_so_far(run.made.id, "accuracy", "max")
    assert (x, y) == ([0.5, 2.0, 3.5], [0.1, 0.3, 0.4])
    assert store.metrics.best_so_far(run.made.id, "loss", "min") == ([0.5, 2.0, 3.5], [-0.1, -0.3, -0.4])
    with store._database.engine.begin() as connection:
        connection.execute(text("DELETE FROM metric_point"))
    assert store.metrics.best_so_far(run.made.id, "accuracy", "max") == (x, y)


@pytest.mark.parametrize("ends", [False, True])
def test_a_database_of_before_gets_its_buckets(store: Store, ends: bool) -> None:
    run = Run(store)
    run.report(0, [{"accuracy": math.sin(n), "loss": n} for n in range(700)])
    run.report(0, [{"accuracy": math.nan}], ends=ends)
    run.report(1, [{"loss": 1.0}])
    before = run.rows()
    with store._database.engine.begin() as connection:
        connection.execute(text("DELETE FROM metric_bucket"))
    with store._database.write() as cursor:
        pyramid.fill(cursor)
    after = run.rows()
    assert after.keys() == before.keys()
    assert all(all(map(same, after[key], before[key])) for key in before)
    run.trials[0] = dataclasses.replace(run.trials[0])
    if not ends:
        run.report(0, [{"accuracy": 0.5}] * 64)
        assert sum(bucket[0] for bucket in run.rows()[0, 1, "accuracy", 1]) == 700 + 1 + 64 - (765 % 64)


def test_a_row_knows_its_newest_report(store: Store) -> None:
    run = Run(store)
    run.report(0, [{"loss": 1.0 / n} for n in range(1, 601)], ends=True)
    with store._database.read() as connection:
        query = "SELECT level, MAX(last_no) FROM metric_bucket GROUP BY level ORDER BY level"
        assert [tuple(row) for row in connection.execute(text(query))] == [(1, 600), (2, 600), (3, 600)]
