"""Thinned curves keep their shape on both databases; running experiments lose nothing; what needs every point refuses."""

from __future__ import annotations

import math
import random
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.store.examples import T0, a_spec, begin, run_all
from tuner.api.housekeeping import DAY_S, clean_up
from tuner.domain.batch import Batch, Entry
from tuner.domain.events import Reported, SegmentEnded
from tuner.domain.states import ExperimentState
from tuner.errors import Conflict, SpecError
from tuner.experiment.analysis.replay import replay
from tuner.experiment.operations import earlier, verbs
from tuner.sdk.result import Result
from tuner.settings import Settings
from tuner.store import ExperimentRecord, Store
from tuner.store.series import thinning

LONG, SHORT = 2500, 200
DAY = T0 + DAY_S
LATER = T0 + 2 * DAY_S


def searched(
    store: Store,
    name: str = "old",
    *,
    state: ExperimentState | None = ExperimentState.COMPLETED,
    released: bool = True,
    sealed: bool = True,
) -> ExperimentRecord:
    """Create an experiment with a trial of LONG reports and one of SHORT ones. `rare` is in every tenth report only."""
    made, epoch, trials = begin(store, 2, spec=a_spec(name))
    draw, seq = random.Random(1), 5
    for trial, count in zip(trials, (LONG, SHORT), strict=True):
        log: list[Entry] = []
        for number in range(1, count + 1):
            seq += 1
            metrics = {"accuracy": draw.random(), "loss": math.nan if number == 77 else draw.random()}
            if number % 10 == 0:
                metrics["rare"] = draw.random()
            log.append((seq, Reported(time=T0 + seq, trial=trial.number, segment=1, report_no=number, iteration=number, metrics=metrics, step=3 * number)))  # fmt: skip  # noqa: E501
        if sealed:
            seq += 1
            trial.segments[0].ended_at = T0 + seq
            log.append((seq, SegmentEnded(time=T0 + seq, trial=trial.number, segment=1, outcome="returned")))
        store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0 + seq)
    if state is not None:
        store.drivers.commit(
            made.id, epoch, Batch(log=[], trials=trials, state=state, summary={"reason": "done"}), T0 + seq
        )
    if released:
        store.drivers.release(made.id, epoch)
    return store.experiments.get(made.public_id)


def points(store: Store, record: ExperimentRecord, table: str = "metric_point") -> int:
    query = (
        f"SELECT COUNT(*) FROM {table} WHERE key_id IN (SELECT id FROM metric_key WHERE experiment_id = {record.id})"
    )
    with store._database.read() as connection:
        return int(connection.execute(text(query)).scalar_one())


def curves(store: Store, record: ExperimentRecord, count: int, **part: object) -> object:
    names = store.metrics.names(record.id)
    return [store.metrics.curves(record.id, name, points=count, **part) for name in names]  # type: ignore[arg-type]


@pytest.mark.parametrize("sealed", [True, False])
def test_curves_at_the_resolution_of_a_screen_do_not_change(store: Store, tmp_path: Path, sealed: bool) -> None:
    record = searched(store, sealed=sealed)  # unsealed: its driver was killed, and a user ended it
    # 42 points of 2500 reports are two of every 128 reports, which is a multiple of what is kept.
    shown = ("step", "time", "user_step")
    before = [curves(store, record, 42, x=x) for x in shown]
    zoomed = store.metrics.curves(record.id, "accuracy", x="time", points=5000, low=900, high=1900, trials=[0])
    best = [store.metrics.best_so_far(record.id, name, "max") for name in ("accuracy", "loss")]
    assert clean_up(store, Settings(home=tmp_path), T0 + 9 * DAY_S) == {}
    many = points(store, record)
    assert clean_up(store, Settings(home=tmp_path, point_days=2), T0 + 9 * DAY_S) == {"experiments' points": 1}
    assert [curves(store, record, 42, x=x) for x in shown] == before
    fewer = store.metrics.curves(record.id, "accuracy", x="time", points=5000, low=900, high=1900, trials=[0])
    every, some = ({*zip(c.curves[0].segments[0].x, c.curves[0].segments[0].y, strict=True)} for c in (zoomed, fewer))
    assert 30 < len(some) < len(every)
    assert some <= every
    # 2500 reports are 40 buckets of level 2, and 313 of level 1, which are more than 256; the other trial keeps every point.
    assert points(store, record) < 2 * SHORT + SHORT // 10 + 2 * 4 * 40 + LONG // 10 < many / 3
    assert store.metrics.best_so_far(record.id, "accuracy", "max") == best[0]
    assert max(store.metrics.best_so_far(record.id, "loss", "max")[1]) == max(best[1][1])
    assert store.metrics.curves(record.id, "accuracy", points=5000).width == 64  # 1 would mean every report
    assert len(store.metrics.curves(record.id, "accuracy", points=5000).curves[1].segments[0].x) == SHORT
    assert store.experiments.get(record.public_id).thinned_at == T0 + 9 * DAY_S
    left = points(store, record), points(store, record, "metric_bucket")
    assert clean_up(store, Settings(home=tmp_path, point_days=2), T0 + 10 * DAY_S) == {}
    assert (points(store, record), points(store, record, "metric_bucket")) == left


def test_only_experiments_that_are_over_are_thinned(store: Store) -> None:
    kept = [
        searched(store, "running", state=None, released=False),
        searched(store, "interrupted", state=None),
        searched(store, "paused", state=ExperimentState.PAUSED),
        searched(store, "new"),
        searched(store, "unreleased", released=False),
        searched(store, "imported"),
        searched(store, "continued"),
    ]
    verbs.act(store, "continue", kept[-1].public_id)
    with store._database.write() as cursor:
        cursor.execute("UPDATE experiment SET ended_at = ? WHERE id = ?", (LATER, kept[3].id))
        cursor.execute("UPDATE experiment SET source = 'import' WHERE id = ?", (kept[5].id,))
    before = [points(store, record) for record in kept]
    assert store.metrics.thin(DAY, LATER + 1) == 0
    assert [points(store, record) for record in kept] == before
    for record in kept:
        assert len(list(store.drivers.load(record.id))) == record.last_event_seq


def test_a_metric_with_few_points_is_kept_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinning, "MOST_BUCKETS", 400)
    record = searched(store, "old")
    rare = "SELECT COUNT(*) FROM metric_point p JOIN metric_key k ON k.id = p.key_id WHERE k.name = 'rare'"
    with store._database.read() as connection:
        before = int(connection.execute(text(rare)).scalar_one())
    everything = points(store, record)
    assert store.metrics.thin(LATER, LATER) == 1
    assert points(store, record) < everything
    with store._database.read() as connection:
        assert int(connection.execute(text(rare)).scalar_one()) == before


def test_an_interrupted_thinning_goes_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    record, other = searched(store), searched(store, "other")
    assert store.metrics.thin(DAY, LATER) == 2
    calls = 0
    whole = thinning._thin_curve

    def dies(*args: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        whole(*args)  # type: ignore[arg-type]

    again = searched(store, "again")
    monkeypatch.setattr(thinning, "_thin_curve", dies)
    with pytest.raises(KeyboardInterrupt):
        store.metrics.thin(DAY, LATER)
    assert store.experiments.get(again.public_id).thinned_at is not None
    with pytest.raises(Conflict, match="TUNER_POINT_DAYS"):
        list(store.drivers.load(again.id))
    run_all([threading.Thread(target=store.metrics.thin, args=(DAY, LATER + 1)) for _ in range(3)])
    assert store.experiments.get(again.public_id).thinned_at == LATER
    assert {points(store, one) for one in (again, record, other)} == {points(store, record)}
    assert curves(store, again, 80) == curves(store, record, 80)
    assert store.metrics.thin(DAY, LATER + 1) == 0


def test_what_needs_every_point_refuses_in_words(store: Store) -> None:
    record = searched(store)
    whole = Result.load(store, record.public_id)
    store.metrics.thin(DAY, LATER)
    record = store.experiments.get(record.public_id)
    why = r"most points of the experiment's curves were deleted on 2023-11-16, because .* TUNER_POINT_DAYS allows; .* needs all"
    with pytest.raises(Conflict, match=why):
        list(store.drivers.load(record.id))
    with pytest.raises(Conflict, match=f"cannot be continued: {why}"):
        verbs.act(store, "continue", record.public_id)
    with pytest.raises(Conflict, match=why):
        store.commands.add(record.id, "retry", 0, reopen=True)
    with pytest.raises(SpecError, match=why):
        replay(store, record)
    spec = a_spec("next", warm_start=("old",))
    with pytest.raises(SpecError, match=why):
        earlier.with_earlier(store, spec)
    assert not {"continue", "enqueue"} & set(verbs.actions(record, abandoned=False))
    assert {"archive", "delete", "fork"} <= set(verbs.actions(record, abandoned=False))
    assert store.commands.pending([record.id]) == []

    result = Result.load(store, record.public_id)
    assert len(result.dataframe()) == 2
    with pytest.warns(UserWarning, match=why):
        frame = result.dataframe(history=True)
    assert SHORT < len(frame) < LONG
    rows = {(row["training_iteration"], row.get("accuracy")) for row in whole.trials[0].history}
    assert {(r["training_iteration"], r["accuracy"]) for r in result.trials[0].history if "accuracy" in r} <= rows
    assert result.trials[1].history == whole.trials[1].history
    with pytest.raises(Conflict, match=why):
        result.hypervolume({"accuracy": 0.0})


def go_on(store: Store, record: ExperimentRecord, ready: threading.Barrier, refused: list[Conflict]) -> None:
    ready.wait()
    try:
        store.commands.add(record.id, "continue")
    except Conflict as error:
        refused.append(error)


def thin(store: Store, record: ExperimentRecord, ready: threading.Barrier, refused: list[Conflict]) -> None:
    ready.wait()
    store.metrics.thin(DAY, LATER)


def test_a_user_who_continues_and_the_thinning_exclude_each_other(store: Store) -> None:
    """Whichever is first wins: an experiment is never both thinned and about to be continued."""
    for number in range(4):
        record = searched(store, f"race {number}")
        ready = threading.Barrier(2)
        refused: list[Conflict] = []
        threads = [threading.Thread(target=act, args=(store, record, ready, refused)) for act in (go_on, thin)]
        run_all(threads)
        thinned = store.experiments.get(record.public_id).thinned_at is not None
        assert thinned == bool(refused)
        assert thinned != bool(store.commands.pending([record.id]))


def test_callbacks_are_told_of_what_is_left(sqlite_store: Store, caplog: pytest.LogCaptureFixture) -> None:
    from tuner.sdk.callbacks.observers import Reader, StoredLog

    record = searched(sqlite_store)
    sqlite_store.metrics.thin(DAY, LATER)
    source = StoredLog(sqlite_store, record.public_id)
    reader, seen, at = Reader(source.experiment()), [], 0
    while entries := source.entries(at, 1000):
        for entry in entries:
            at = entry.seq
            seen += [call.keywords["result"] for call in reader.read(entry) if call.method == "on_trial_result"]
    assert SHORT < len(seen) < LONG
    assert all({"accuracy", "loss", "rare"} & result.keys() for result in seen)
