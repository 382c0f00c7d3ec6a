"""The contract of the store, on SQLite and on PostgreSQL."""

from __future__ import annotations

import dataclasses
import math
import threading
from typing import Any

import pytest

from tests.store.examples import T0, a_report, a_spec, begin
from tuner.domain.batch import Batch
from tuner.domain.decisions import Exploit, Finish, Note, Pause, Stop
from tuner.domain.events import (
    CheckpointDeleted,
    CheckpointInfo,
    CheckpointSaved,
    Commanded,
    Failure,
    Reported,
    SegmentEnded,
    Waiting,
)
from tuner.domain.keys import checkpoint_id, segment_id, trial_id
from tuner.domain.states import ExperimentState, SegmentState, TrialState
from tuner.domain.trial import Segment
from tuner.errors import Conflict, LostLease, NotFound, SpecError, StoreError
from tuner.store import CodeRecord, Store, UsageSample
from tuner.store.writing import history


def run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class TestExperiments:
    def test_comes_back_as_it_was_created(self, store: Store) -> None:
        spec = a_spec(points_to_evaluate=({"lr": 0.01},), runtime_env={"env_vars": {"Ü": "ß"}}, seed=2**63 - 1)
        made = store.experiments.create(spec, source="api", now=T0)
        found = store.experiments.get(made.public_id)
        assert found == made
        assert found.spec == spec
        assert (found.state, found.source, found.created_at, found.last_event_seq) == (
            ExperimentState.PENDING,
            "api",
            T0,
            0,
        )
        assert found.public_id.startswith("exp_")
        assert store.experiments.by_id(made.id) == made

    def test_an_unknown_one_is_not_found(self, store: Store) -> None:
        with pytest.raises(NotFound, match="exp_nothing"):
            store.experiments.get("exp_nothing")

    def test_the_same_idempotency_key_creates_once(self, store: Store) -> None:
        first = store.experiments.create(a_spec(), idempotency_key="key")
        assert store.experiments.create(a_spec(), idempotency_key="key") == first
        with pytest.raises(Conflict, match="another spec"):
            store.experiments.create(a_spec("other"), idempotency_key="key")
        assert store.experiments.create(a_spec()).public_id != first.public_id
        assert len(store.experiments.page().items) == 2

    def test_of_many_creations_with_one_key_one_counts(self, store: Store, database_url: str) -> None:
        made: list[str] = []
        barrier = threading.Barrier(4)

        def create() -> None:
            with Store.open(database_url) as own:
                barrier.wait()
                made.append(own.experiments.create(a_spec(), idempotency_key="key").public_id)

        run_all([threading.Thread(target=create) for _ in range(4)])
        assert made == [store.experiments.page().items[0].public_id] * 4
        assert len(store.experiments.page().items) == 1

    def test_how_far_it_has_got(self, store: Store) -> None:
        made, epoch, trials = begin(store)
        store.drivers.commit(
            made.id, epoch, Batch(log=[(4, a_report(0, 1))], trials=trials, summary={"error": "oh"}), T0
        )
        found = store.experiments.progress(made.id)
        assert (found.last_event_seq, found.state, found.reason, found.error) == (
            4,
            ExperimentState.RUNNING,
            "started",
            "oh",
        )
        other = store.experiments.create(a_spec())
        assert store.metrics.names_of([made.id, other.id]) == {made.id: ["accuracy", "loss"], other.id: []}
        with pytest.raises(NotFound):
            store.experiments.progress(99)

    def test_lists_newest_first_in_pages(self, store: Store) -> None:
        made = [store.experiments.create(a_spec(f"name {n} 100%_")).public_id for n in range(5)]
        seen, token = [], None
        while True:
            page = store.experiments.page(page_size=2, page_token=token)
            assert len(page.items) <= 2
            seen += [item.public_id for item in page.items]
            if (token := page.next_token) is None:
                break
        assert seen == made[::-1]
        assert [e.name for e in store.experiments.page(name="E 3").items] == ["name 3 100%_"]
        assert store.experiments.page(name="%3").items == ()
        assert len(store.experiments.page(state="pending").items) == 5
        assert store.experiments.page(state="running").items == ()

    @pytest.mark.parametrize("token", ["", "x", "-1", "9" * 40])
    def test_a_wrong_page_token_is_an_error(self, store: Store, token: str) -> None:
        with pytest.raises(SpecError, match="page token"):
            store.experiments.page(page_token=token)

    def test_code_is_kept_by_its_hash(self, store: Store) -> None:
        code = CodeRecord(
            hash="abc",
            blob=b"\0\x80",
            space_blob=None,
            python="3.11.7",
            packages={"torch": "2.13"},
            sys_path=["/a"],
            working_dir="/w",
        )
        made = store.experiments.create(a_spec(entrypoint=None), code=code)
        assert made.code_hash == made.spec.code == "abc"
        assert store.code.get("abc") == code
        store.code.put(dataclasses.replace(code, blob=b"other"))
        assert store.code.get("abc") == code
        with pytest.raises(NotFound):
            store.code.get("abd")


class TestLeases:
    def test_a_new_experiment_is_claimable_until_claimed(self, store: Store) -> None:
        made = store.experiments.create(a_spec())
        assert [e.id for e in store.drivers.claimable(T0)] == [made.id]
        assert store.drivers.claim(made.id, "one", 10, T0) == 1
        assert store.drivers.claimable(T0 + 9) == []
        assert [e.id for e in store.drivers.claimable(T0 + 10)] == [made.id]

    def test_a_living_lease_keeps_others_out(self, store: Store) -> None:
        made = store.experiments.create(a_spec())
        store.drivers.claim(made.id, "one", 10, T0)
        with pytest.raises(Conflict, match="driven by one"):
            store.drivers.claim(made.id, "two", 10, T0 + 9)
        assert store.drivers.claim(made.id, "one", 10, T0 + 9) == 2  # its own, after a fall
        assert store.drivers.claim(made.id, "two", 10, T0 + 20) == 3

    def test_whoever_lost_the_lease_writes_nothing(self, store: Store) -> None:
        made, epoch, trials = begin(store)
        store.drivers.claim(made.id, "other", 10, T0 + 1000)
        before = list(store.drivers.load(made.id))
        batch = Batch(log=[(4, a_report(0, 1))], trials=trials, state=ExperimentState.COMPLETED)
        with pytest.raises(LostLease):
            store.drivers.commit(made.id, epoch, batch, T0)
        with pytest.raises(LostLease):
            store.drivers.renew(made.id, epoch, 10, T0)
        store.drivers.release(made.id, epoch)  # not its own any more: nothing happens
        assert list(store.drivers.load(made.id)) == before
        assert store.metrics.names(made.id) == []
        after = store.experiments.get(made.public_id)
        assert (after.state, after.driver_owner, after.driver_epoch) == (ExperimentState.RUNNING, "other", 2)

    def test_a_batch_without_a_log_checks_the_lease_too(self, store: Store) -> None:
        made, epoch, _ = begin(store)
        store.drivers.commit(made.id, epoch, Batch(log=[], carried_out=[2]), T0)
        store.drivers.claim(made.id, "other", 10, T0 + 1000)
        with pytest.raises(LostLease):
            store.drivers.commit(made.id, epoch, Batch(log=[], carried_out=[2]), T0)

    def test_renewing_and_releasing(self, store: Store) -> None:
        made = store.experiments.create(a_spec())
        epoch = store.drivers.claim(made.id, "one", 10, T0)
        store.drivers.renew(made.id, epoch, 10, T0 + 8)
        assert store.drivers.claimable(T0 + 17) == []
        store.drivers.release(made.id, epoch)
        assert [e.id for e in store.drivers.claimable(T0 + 9)] == [made.id]

    def test_an_ended_experiment_is_not_claimed(self, store: Store) -> None:
        made, epoch, _ = begin(store)
        store.drivers.commit(
            made.id, epoch, Batch(log=[(4, Finish(reason="done"))], state=ExperimentState.COMPLETED), T0 + 5
        )
        store.drivers.release(made.id, epoch)
        assert store.drivers.claimable(T0 + 1000) == []
        with pytest.raises(Conflict, match="completed"):
            store.drivers.claim(made.id, "two", 10, T0 + 1000)
        with pytest.raises(NotFound):
            store.drivers.claim(made.id + 1, "two", 10, T0)

    def test_a_paused_one_wants_a_driver_when_somebody_wants_it_resumed(self, store: Store) -> None:
        made, epoch, _ = begin(store)
        store.drivers.commit(made.id, epoch, Batch(log=[], state=ExperimentState.PAUSED), T0 + 5)
        store.drivers.release(made.id, epoch)
        assert store.drivers.claimable(T0 + 1000) == []
        store.commands.add(made.id, "pause")
        assert store.drivers.claimable(T0 + 1000) == []
        store.commands.add(made.id, "resume")
        assert [e.id for e in store.drivers.claimable(T0 + 1000)] == [made.id]

    def test_of_many_that_claim_at_once_one_wins(self, store: Store, database_url: str) -> None:
        made = store.experiments.create(a_spec())
        won: list[str] = []
        barrier = threading.Barrier(4)

        def compete(name: str) -> None:
            with Store.open(database_url) as own:
                barrier.wait()
                try:
                    own.drivers.claim(made.id, name, 60, T0)
                    won.append(name)
                except Conflict:
                    pass

        run_all([threading.Thread(target=compete, args=(f"driver {n}",)) for n in range(4)])
        assert won == [store.experiments.get(made.public_id).driver_owner]


class TestLog:
    def test_the_log_comes_back_in_order(self, store: Store) -> None:
        made, epoch, trials = begin(store, 2, segments=2)
        checkpoint = CheckpointInfo(id="ckp_1", uri="/c/1", step=3, bytes=10, ready=False)
        log = [
            (6, Waiting(time=T0 + 1, trial=0, segment=2, reason="waits for 2 GPUs")),
            (7, a_report(0, 1)),
            (8, Stop(reason="stopped at iteration 1: 0.01 is below the cut 0.5, rank 6 of 9", trial=0)),
            (9, dataclasses.replace(a_report(1, 3), checkpoint=checkpoint)),
            (
                10,
                CheckpointSaved(
                    time=T0 + 5,
                    trial=1,
                    segment=1,
                    checkpoint=dataclasses.replace(checkpoint, ready=True, uri="s3://b/1"),
                ),
            ),
            (
                11,
                Exploit(
                    reason="worst", trial=0, donor=1, params={"lr": 0.5}, checkpoint="ckp_1", mutations={"lr": "× 1.2"}
                ),
            ),
            (12, Pause(reason="rest", trial=1, held=True)),
            (13, Commanded(time=T0 + 6, command="pause", trial=None, reason="a person")),
            (14, Reported(time=T0 + 7, trial=1, segment=2, report_no=1, iteration=4, metrics={}, step=2**40)),
            (
                15,
                SegmentEnded(
                    time=T0 + 8,
                    trial=1,
                    segment=2,
                    outcome="failed",
                    failure=Failure(
                        kind="user", message="boom \0 \ud800", rank=1, traceback="Traceback…", stacks={"0": "main"}
                    ),
                ),
            ),
        ]
        store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0 + 8)
        assert list(store.drivers.load(made.id, after=5)) == log
        assert [seq for seq, _ in store.drivers.load(made.id)] == list(range(1, 16))
        assert store.experiments.get(made.public_id).last_event_seq == 15

    @pytest.mark.parametrize("chunk", [1, 2, 7, 8, 9])
    def test_it_is_read_in_chunks(self, store: Store, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
        monkeypatch.setattr(history, "CHUNK", chunk)
        made, epoch, trials = begin(store)
        log = [(3 + n, a_report(0, n)) for n in range(1, 6)]
        store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0)
        assert [seq for seq, _ in store.drivers.load(made.id)] == [1, 2, 3, 4, 5, 6, 7, 8]
        assert list(store.drivers.load(made.id, after=3)) == log

    def test_writing_a_batch_again_changes_nothing(self, store: Store, database_url: str) -> None:
        made, epoch, trials = begin(store)
        info = CheckpointInfo(id="ckp_1", uri="/c/1", step=1)
        log = [(4, dataclasses.replace(a_report(0, 1), checkpoint=info)), (5, Stop(reason="enough", trial=0))]
        trials[0].segments.append(Segment(2, "resume", {}, 1, info))
        batch = Batch(log=log, trials=trials, carried_out=[5])
        store.drivers.commit(made.id, epoch, batch, T0)
        before = (
            list(store.drivers.load(made.id)),
            store.trials.get(trial_id(made.public_id, 0)),
            store.log.decisions(made.id),
        )
        store.drivers.commit(made.id, epoch, batch, T0)
        with Store.open(database_url) as other:
            other.drivers.commit(made.id, epoch, batch, T0)
        assert (
            list(store.drivers.load(made.id)),
            store.trials.get(trial_id(made.public_id, 0)),
            store.log.decisions(made.id),
        ) == before

    def test_numbers_that_are_none_come_back(self, store: Store) -> None:
        made, epoch, trials = begin(store)
        metrics: dict[str, Any] = {
            "nan": math.nan,
            "up": math.inf,
            "down": -math.inf,
            "tiny": 5e-324,
            "third": 1 / 3,
            "big": 10**400,
        }
        store.drivers.commit(made.id, epoch, Batch(log=[(4, a_report(0, 1, **metrics))], trials=trials), T0)
        [(_, report)] = store.drivers.load(made.id, after=3)
        assert isinstance(report, Reported)
        assert math.isnan(report.metrics["nan"])
        assert [report.metrics[name] for name in ("up", "down", "tiny", "third", "big")] == [
            math.inf,
            -math.inf,
            5e-324,
            1 / 3,
            math.inf,
        ]
        [curve] = store.metrics.curves(made.id, "nan").curves
        assert curve.segments[0].y == [None]

    def test_a_report_of_a_segment_that_nobody_opened_is_refused_whole(self, store: Store) -> None:
        made, epoch, trials = begin(store)
        with pytest.raises(StoreError, match="trial 0 has no segment 7"):
            store.drivers.commit(
                made.id, epoch, Batch(log=[(4, a_report(0, 1)), (5, a_report(0, 1, segment=7))], trials=trials), T0
            )
        assert len(list(store.drivers.load(made.id))) == 3
        store.drivers.commit(made.id, epoch, Batch(log=[(4, a_report(0, 1))], trials=trials), T0)
        assert len(list(store.drivers.load(made.id))) == 4

    def test_a_log_with_a_gap_or_a_second_entry_of_a_number_is_refused(self, store: Store) -> None:
        made, epoch, trials = begin(store)
        store.drivers.commit(made.id, epoch, Batch(log=[(4, a_report(0, 1)), (5, a_report(0, 2))], trials=trials), T0)
        before = list(store.drivers.load(made.id))
        for first in (7, 3):
            with pytest.raises(StoreError, match=f"the log ends at 5 and this batch begins at {first}") as caught:
                store.drivers.commit(
                    made.id, epoch, Batch(log=[(first, Stop(reason="no", trial=0))], summary={"reason": "no"}), T0
                )
            assert not isinstance(caught.value, LostLease)
        assert list(store.drivers.load(made.id)) == before
        merged = [(4, a_report(0, 1)), (5, a_report(0, 2)), (6, Finish(reason="done"))]
        store.drivers.commit(
            made.id, epoch, Batch(log=merged, trials=trials), T0
        )  # an answer was lost, and more has come since
        assert list(store.drivers.load(made.id)) == [*before, merged[2]]

    def test_experiments_do_not_mix(self, store: Store) -> None:
        one, epoch_one, trials_one = begin(store)
        two, epoch_two, trials_two = begin(store)
        store.drivers.commit(one.id, epoch_one, Batch(log=[(4, a_report(0, 1, accuracy=0.1))], trials=trials_one), T0)
        store.drivers.commit(two.id, epoch_two, Batch(log=[(4, a_report(0, 1, accuracy=0.2))], trials=trials_two), T0)
        values = [
            [entry.metrics for _, entry in store.drivers.load(e.id, after=3) if isinstance(entry, Reported)]
            for e in (one, two)
        ]
        assert values == [[{"accuracy": 0.1}], [{"accuracy": 0.2}]]

    def test_readers_see_whole_batches_only(self, store: Store, database_url: str) -> None:
        made, epoch, trials = begin(store)
        done = threading.Event()
        torn: list[int] = []

        def read() -> None:
            with Store.open(database_url) as own:
                while not done.is_set():
                    reports = [entry for _, entry in own.drivers.load(made.id, after=3)]
                    if len(reports) % 10 or any(len(r.metrics) != 2 for r in reports if isinstance(r, Reported)):
                        torn.append(len(reports))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for batch in range(30):
                log = [(4 + batch * 10 + n, a_report(0, 1 + batch * 10 + n)) for n in range(10)]
                store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0)
        finally:
            done.set()
            reader.join()
        assert torn == []


class TestViews:
    def test_a_trial_with_its_segments(self, store: Store) -> None:
        made, epoch, (donor, trial) = begin(store, 2)
        checkpoint = CheckpointInfo(id=checkpoint_id("seg", 1), uri="/c/1", step=1, bytes=100)
        trial.state, trial.iteration, trial.last_value, trial.best_value, trial.best_iteration = (
            TrialState.FAILED,
            4,
            math.nan,
            0.5,
            2,
        )
        trial.failure = Failure(kind="user", message="boom", rank=1)
        trial.reason, trial.waiting, trial.ended_at, trial.checkpoint = "gave up", "waits", T0 + 9, checkpoint
        trial.tags, trial.searcher_state, trial.last = {"bracket": 1}, {"x": [1]}, {"accuracy": math.nan}
        trial.segments[0].ended_at, trial.segments[0].state = T0 + 6, SegmentState.LEFT
        trial.segments.append(
            Segment(
                2,
                "exploit",
                {"lr": 0.5},
                1,
                checkpoint,
                opened_at=T0 + 7,
                placement={"nodes": ["a"]},
                started_at=T0 + 8,
                warm=True,
                startup_s=0.1,
            )
        )
        log = [(6, dataclasses.replace(a_report(0, 1), checkpoint=checkpoint)), (7, a_report(1, 1, segment=2))]
        store.drivers.commit(made.id, epoch, Batch(log=log, trials=[donor, trial]), T0 + 9)

        found = store.trials.get(trial_id(made.public_id, 1))
        assert (
            found.number,
            found.state,
            found.iteration,
            found.last_value,
            found.best_value,
            found.best_iteration,
        ) == (1, TrialState.FAILED, 4, None, 0.5, 2)
        assert found.failure is not None
        assert (found.failure["message"], found.failure["rank"]) == ("boom", 1)
        assert (found.reason, found.waiting, found.created_at, found.started_at, found.ended_at) == (
            "gave up",
            "waits",
            T0,
            T0 + 1,
            T0 + 9,
        )
        assert (found.tags, found.searcher, found.checkpoint) == (
            {"bracket": 1},
            {"x": [1]},
            dataclasses.asdict(checkpoint),
        )
        first, second = found.segments
        assert (first.public_id, first.cause, first.outcome, first.ended_at) == (
            segment_id(made.public_id, 1, 1),
            "start",
            "left",
            T0 + 6,
        )
        assert (second.ordinal, second.cause, second.params, second.start_iteration) == (2, "exploit", {"lr": 0.5}, 1)
        assert (second.source_checkpoint, second.source_trial) == (checkpoint.id, 0)
        assert (second.warm, second.startup_s, second.placement, second.created_at) == (
            True,
            0.1,
            {"nodes": ["a"]},
            T0 + 7,
        )
        with pytest.raises(NotFound):
            store.trials.get("trl_nothing")

    def test_trials_by_number_in_pages(self, store: Store) -> None:
        made, epoch, trials = begin(store, 5)
        trials[3].state = TrialState.STOPPED
        store.drivers.commit(made.id, epoch, Batch(log=[(12, Stop(reason="bad", trial=3))], trials=[trials[3]]), T0 + 3)
        page = store.trials.page(made.id, page_size=3)
        rest = store.trials.page(made.id, page_size=3, page_token=page.next_token)
        assert [t.number for t in page.items + rest.items] == [0, 1, 2, 3, 4]
        assert rest.next_token is None
        assert [t.number for t in store.trials.page(made.id, state="stopped").items] == [3]
        assert store.trials.page(made.id).items[3].ended_at == T0 + 3

    def test_experiment_follows_its_batches(self, store: Store) -> None:
        made, epoch, _ = begin(store)
        assert (made.state, made.started_at, made.counts, made.reason) == (
            ExperimentState.RUNNING,
            T0 + 1,
            {"running": 1},
            "started",
        )
        best = {"trial_number": 0, "value": 0.5}
        store.drivers.commit(made.id, epoch, Batch(log=[], summary={"best": best, "counts": {"running": 0}}), T0 + 2)
        store.drivers.commit(
            made.id, epoch, Batch(log=[], state=ExperimentState.PAUSED, summary={"best": None}), T0 + 3
        )
        store.drivers.commit(made.id, epoch, Batch(log=[], state=ExperimentState.RUNNING), T0 + 4)
        store.drivers.commit(
            made.id, epoch, Batch(log=[], state=ExperimentState.FAILED, summary={"error": "trial 0: boom"}), T0 + 5
        )
        found = store.experiments.get(made.public_id)
        assert (found.state, found.best, found.counts, found.error) == (
            ExperimentState.FAILED,
            best,
            {"running": 0},
            "trial 0: boom",
        )
        assert (found.started_at, found.ended_at, found.reason) == (T0 + 1, T0 + 5, "started")

    def test_decisions_newest_first_and_done_when_carried_out(self, store: Store) -> None:
        made, epoch, trials = begin(store, 2)
        log = [(6, Stop(reason="bad", trial=0)), (7, Pause(reason="rest", trial=1)), (8, Finish(reason="all done"))]
        store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials, carried_out=[6]), T0)
        page = store.log.decisions(made.id, page_size=3)
        assert [(d.seq, d.kind, d.trial, d.reason, d.state) for d in page.items] == [
            (8, "finish", None, "all done", "pending"),
            (7, "pause", 1, "rest", "pending"),
            (6, "stop", 0, "bad", "done"),
        ]
        rest = store.log.decisions(made.id, page_token=page.next_token)
        assert [(d.seq, d.kind, d.trial) for d in rest.items] == [(4, "start", 1), (2, "start", 0)]
        assert [d.seq for d in store.log.decisions(made.id, trial=1).items] == [7, 4]
        assert page.items[1].payload["trial"] == 1
        assert [d.seq for d in store.log.decisions(made.id, kinds=["stop", "finish"]).items] == [8, 6]
        assert [d.seq for d in store.log.decisions(made.id, text="ALL d").items] == [8]
        assert [d.seq for d in store.log.decisions(made.id, kinds=["stop"], text="rest").items] == []
        assert [d.seq for d in store.log.decisions(made.id, text="%").items] == []

    def test_warnings_are_notes_that_say_so(self, store: Store) -> None:
        made, epoch, trials = begin(store)
        log = [
            (4, Note(reason="for the log")),
            (5, Note(reason="a slip", warning=True)),
            (6, Finish(reason="done")),
            (7, Note(reason="another", trial=0, warning=True)),
        ]
        store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0)
        assert [(note.seq, note.reason) for note in store.log.warnings(made.id)] == [(5, "a slip"), (7, "another")]
        assert [note.seq for note in store.log.warnings(made.id, after=5)] == [7]
        assert [note.seq for note in store.log.decisions(made.id, trial=0).items if note.kind == "note"] == [7]

    def test_segments_of_all_trials_with_where_they_go_on_from(self, store: Store) -> None:
        made, epoch, trials = begin(store, 2)
        info = CheckpointInfo(id=f"ckp_{made.public_id}", uri="/c/1", step=3)
        saved = dataclasses.replace(a_report(0, 3), checkpoint=info)
        trials[1].segments.append(Segment(2, "exploit", {"lr": 0.5}, 3, info, opened_at=T0))
        store.drivers.commit(made.id, epoch, Batch(log=[(6, saved)], trials=trials), T0)
        found = store.trials.segments(made.id)
        assert sorted(found) == [0, 1]
        assert [(s.ordinal, s.cause, s.source_trial, s.source_ordinal) for s in found[1]] == [
            (1, "start", None, None),
            (2, "exploit", 0, 1),
        ]
        assert found[1] == store.trials.get(trial_id(made.public_id, 1)).segments

    def test_checkpoints_have_the_state_they_are_in(self, store: Store) -> None:
        made, epoch, trials = begin(store)
        infos = [
            CheckpointInfo(id=f"ckp_{made.public_id}_{n}", uri=f"/c/{n}", step=n, bytes=n, ready=n != 2, node="5f" * 28)
            for n in (1, 2, 3)
        ]
        log = [(3 + n, dataclasses.replace(a_report(0, n), checkpoint=infos[n - 1])) for n in (1, 2, 3)]
        deleted = CheckpointDeleted(time=T0, trial=0, checkpoint=infos[0].id)
        store.drivers.commit(made.id, epoch, Batch(log=[*log, (7, deleted)], trials=trials), T0)
        assert [(c.state, c.node) for c in store.trials.checkpoints(made.id)] == [
            (state, "5f" * 28) for state in ("deleted", "uploading", "ready")
        ]
        uploaded = [dataclasses.replace(info, ready=True, uri="s3://b", node=None) for info in infos[:2]]
        saved = [CheckpointSaved(time=T0, trial=0, segment=1, checkpoint=info) for info in uploaded]
        store.drivers.commit(made.id, epoch, Batch(log=[(8, saved[0]), (9, saved[1])], trials=trials), T0)
        assert [(c.state, c.uri, c.node) for c in store.trials.checkpoints(made.id, trial_number=0)] == [
            ("deleted", "/c/1", "5f" * 28),
            ("ready", "s3://b", None),
            ("ready", "/c/3", "5f" * 28),
        ]
        assert store.trials.checkpoint(infos[2].id).segment == 1
        with pytest.raises(NotFound):
            store.trials.checkpoint("ckp_nothing")

    def test_the_stream_has_everything_in_order(self, store: Store) -> None:
        made, epoch, trials = begin(store)
        info = CheckpointInfo(id="ckp_1", uri="/c/1", step=1)
        log = [
            (4, dataclasses.replace(a_report(0, 1, accuracy=math.nan), checkpoint=info)),
            (5, Stop(reason="bad", trial=0)),
            (6, dataclasses.replace(a_report(0, 2), step=640)),
        ]
        store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0)
        items = store.log.events_after(made.id, 0)
        assert [(i.seq, i.event, i.trial) for i in items] == [
            (1, "driver_started", None),
            (2, "decision", 0),
            (3, "segment_started", 0),
            (4, "reported", 0),
            (5, "decision", 0),
            (6, "reported", 0),
        ]
        assert items[3].data["checkpoint"]["id"] == "ckp_1"
        assert math.isnan(items[3].data["metrics"]["accuracy"])
        assert items[5].data == {
            "segment": 1,
            "report_no": 2,
            "iteration": 2,
            "metrics": {"accuracy": 0.02, "loss": 0.5},
            "checkpoint": None,
            "step": 640,
        }
        assert items[3].data["step"] is None
        assert items[4].data["reason"] == "bad"
        assert [i.seq for i in store.log.events_after(made.id, 2, limit=2)] == [3, 4]
        assert store.log.events_after(made.id, 6) == []

    def test_curves_break_between_segments(self, store: Store) -> None:
        made, epoch, (trial, other) = begin(store, 2)
        trial.segments.append(Segment(2, "resume", {}, 2, None))
        log = [
            (6, a_report(0, 1)),
            (7, a_report(0, 2)),
            (8, dataclasses.replace(a_report(0, 1, segment=2, accuracy=0.9), iteration=3)),
        ]
        store.drivers.commit(made.id, epoch, Batch(log=log, trials=[trial, other]), T0)
        [curve] = store.metrics.curves(made.id, "accuracy").curves
        assert curve.trial == 0
        assert [(s.ordinal, s.cause, s.x, s.y) for s in curve.segments] == [
            (1, "start", [1, 2], [0.01, 0.02]),
            (2, "resume", [3], [0.9]),
        ]
        [curve] = store.metrics.curves(made.id, "accuracy", x="time").curves
        assert curve.segments[0].x == [1.0, 2.0]
        assert store.metrics.curves(made.id, "nothing").curves == ()
        assert store.metrics.names(made.id) == ["accuracy", "loss"]
        with pytest.raises(SpecError):
            store.metrics.curves(made.id, "accuracy", x="steps")

    def test_curves_by_the_training_codes_own_step_leave_reports_without_one_out(self, store: Store) -> None:
        made, epoch, trials = begin(store)
        steps = (None, 2**40, 0, -7)
        reports = [dataclasses.replace(a_report(0, n), step=step) for n, step in enumerate(steps, 1)]
        store.drivers.commit(
            made.id, epoch, Batch(log=[(3 + n, r) for n, r in enumerate(reports, 1)], trials=trials), T0
        )
        assert [entry for _, entry in store.drivers.load(made.id, after=3)] == reports
        [curve] = store.metrics.curves(made.id, "accuracy", x="user_step").curves
        assert [(part.x, part.y) for part in curve.segments] == [([2**40, 0, -7], [0.02, 0.03, 0.04])]
        [curve] = store.metrics.curves(made.id, "accuracy").curves
        assert curve.segments[0].x == [1, 2, 3, 4]

    def test_best_so_far_has_the_improvements(self, store: Store) -> None:
        made, epoch, trials = begin(store, 2)
        values = [(0, 0.3), (1, 0.2), (0, math.nan), (1, 0.5), (0, 0.5), (1, 0.4), (0, 0.6)]
        log = [
            (6 + at, dataclasses.replace(a_report(trial, 1 + at, accuracy=value), time=T0 + 2 + at))
            for at, (trial, value) in enumerate(values)
        ]
        store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0)
        assert store.metrics.best_so_far(made.id, "accuracy", "max") == ([1.0, 4.0, 7.0], [0.3, 0.5, 0.6])
        assert store.metrics.best_so_far(made.id, "accuracy", "min") == ([1.0, 2.0], [0.3, 0.2])
        assert store.metrics.best_so_far(made.id, "nothing", "min") == ([], [])


class TestCommands:
    def test_pending_until_carried_out(self, store: Store) -> None:
        made, epoch, _ = begin(store)
        first = store.commands.add(made.id, "pause", None, "a person")
        second = store.commands.add(made.id, "stop", 0)
        assert [(c.id, c.command, c.trial, c.reason) for c in store.commands.pending([made.id])] == [
            (first, "pause", None, "a person"),
            (second, "stop", 0, ""),
        ]
        store.drivers.commit(
            made.id, epoch, Batch(log=[(4, Commanded(time=T0, command="pause"))], commands=[first]), T0
        )
        assert [c.id for c in store.commands.pending([made.id])] == [second]
        assert store.commands.pending([]) == []

    def test_asking_twice_is_asking_once(self, store: Store) -> None:
        made, _, _ = begin(store)
        first = store.commands.add(made.id, "pause")
        assert store.commands.add(made.id, "pause") == first
        resume = store.commands.add(made.id, "resume")
        assert store.commands.add(made.id, "pause") not in (first, resume)  # it comes after the resume
        assert store.commands.add(made.id, "stop", 1) != store.commands.add(made.id, "stop", 2)


class TestUsage:
    @staticmethod
    def sample(number: int, rank: int = 0, segment: int = 1, **more: Any) -> UsageSample:
        """Return one of a rank's samples, which come every ten seconds; half a core is in use. The segment began at T0 + 1."""
        values = {"time": T0 + 1 + 10 * number, "cpu_s": 5.0 * number, "rss_bytes": 2**33 + number, **more}
        return UsageSample(trial=0, segment=segment, rank=rank, sample_no=number, **values)

    def test_comes_back_by_segment_and_rank(self, store: Store) -> None:
        made, *_ = begin(store, segments=2)
        gpu = {"gpu_bytes": 2**40, "gpu_reserved_bytes": 2**41, "gpu_percent": 12.5}
        store.ranks.add_usage(made.id, [self.sample(1, rank=1), self.sample(1), self.sample(1, segment=2)])
        store.ranks.add_usage(made.id, [self.sample(2, rank=1, **gpu), self.sample(2), self.sample(2)])
        found = store.ranks.usage(trial_id(made.public_id, 0))
        assert [(s.segment, s.rank, len(s.x)) for s in found] == [(1, 0, 2), (1, 1, 2), (2, 0, 1)]
        second = found[1]
        start = store.experiments.get(made.public_id).started_at or 0.0
        assert second.x == [T0 + 11 - start, T0 + 21 - start]
        assert (second.rss_bytes, second.gpu_bytes) == ([2**33 + 1, 2**33 + 2], [None, 2**40])
        assert (second.gpu_reserved_bytes, second.gpu_percent) == ([None, 2**41], [None, 12.5])

    def test_cpu_is_told_as_percent_since_the_sample_before(self, store: Store) -> None:
        made, *_ = begin(store, segments=2)
        busy = self.sample(2, cpu_s=25.0)
        store.ranks.add_usage(made.id, [self.sample(1), busy, self.sample(1, segment=2), self.sample(2, segment=2)])
        first, second = store.ranks.usage(trial_id(made.public_id, 0))
        assert first.cpu_percent == pytest.approx([50.0, 200.0])
        assert second.cpu_percent == [None, pytest.approx(50.0)]  # this segment's start is not known yet

    def test_a_choice_of_rank_and_segment(self, store: Store) -> None:
        made, *_ = begin(store, segments=2)
        store.ranks.add_usage(made.id, [self.sample(1, rank, segment) for rank in (0, 1) for segment in (1, 2)])
        trial = trial_id(made.public_id, 0)
        assert [(s.segment, s.rank) for s in store.ranks.usage(trial, rank=1)] == [(1, 1), (2, 1)]
        assert [(s.segment, s.rank) for s in store.ranks.usage(trial, rank=0, segment=2)] == [(2, 0)]
        with pytest.raises(NotFound, match="trl_nothing"):
            store.ranks.usage("trl_nothing")

    def test_thinning_leaves_evenly_spaced_samples_of_that_segment(self, store: Store) -> None:
        made, *_ = begin(store, segments=2)
        trial = trial_id(made.public_id, 0)
        store.ranks.add_usage(made.id, [self.sample(n, segment=s) for n in range(1, 9) for s in (1, 2)])
        store.ranks.add_usage(made.id, [self.sample(9, segment=2)], keep={(0, 1): 4})
        start = store.experiments.get(made.public_id).started_at or 0.0
        thinned, whole = store.ranks.usage(trial)
        assert thinned.x == [T0 + 41 - start, T0 + 81 - start]
        assert thinned.cpu_percent == pytest.approx([50.0, 50.0])
        assert len(whole.x) == 9

    def test_a_sample_of_a_segment_that_is_not_there_is_left_out(self, store: Store) -> None:
        made, *_ = begin(store)
        store.ranks.add_usage(made.id, [self.sample(1, segment=7), self.sample(1)], keep={(3, 1): 2})
        assert [s.segment for s in store.ranks.usage(trial_id(made.public_id, 0))] == [1]
