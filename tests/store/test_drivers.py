"""Test leases and the log, on SQLite and on PostgreSQL."""

from __future__ import annotations

import dataclasses
import math
import threading
from typing import Any

import pytest

from tests.store.examples import T0, a_report, a_spec, a_trial, begin, run_all
from tuner.domain.batch import Batch
from tuner.domain.decisions import Exploit, Finish, Note, Pause, Stop
from tuner.domain.events import (
    CheckpointInfo,
    CheckpointSaved,
    Commanded,
    Failure,
    Reported,
    SegmentEnded,
    Waiting,
)
from tuner.domain.keys import trial_id
from tuner.domain.states import ExperimentState
from tuner.domain.trial import Segment
from tuner.errors import Conflict, LostLease, NewerLog, NotFound, StoreError
from tuner.store import Store
from tuner.store.writing import history, writer


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewerInfo(CheckpointInfo):
    """A checkpoint as a newer version might describe it."""

    moon: str = "full"


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

    def test_a_checkpoint_is_either_pinned_or_deleted(self, store: Store) -> None:
        made, epoch, _ = begin(store)
        names = ["ckp_1", "ckp_2"]
        found = [CheckpointInfo(id=name, uri=f"/c/{name}", step=1, ready=True) for name in names]
        log = [(4 + at, CheckpointSaved(time=T0, trial=0, segment=1, checkpoint=info)) for at, info in enumerate(found)]
        assert not store.drivers.commit(made.id, epoch, Batch(log=log), T0)
        store.trials.pin(made.id, "ckp_1", True)
        for _ in range(2):  # a commit whose answer was lost is repeated
            assert store.drivers.commit(made.id, epoch, Batch(log=[], deletes=names), T0) == {"ckp_1"}
        store.trials.pin(made.id, "ckp_2", True)
        pinned, deleted = (store.trials.checkpoint(name) for name in names)
        assert (pinned.state, pinned.pinned) == ("ready", True)
        assert (deleted.state, deleted.pinned) == ("deleted", False)
        assert [command.payload["checkpoint"] for command in store.commands.pending([made.id])] == ["ckp_1"]
        store.trials.pin(made.id, "ckp_1", False)
        assert not store.drivers.commit(made.id, epoch, Batch(log=[], deletes=names), T0)
        assert store.trials.checkpoint("ckp_1").state == "deleted"

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

    def test_the_driver_of_a_deleted_experiment_has_lost_its_lease(self, store: Store) -> None:
        """Any other error is tried again, and then logged as a failure of the driver."""
        made, epoch, trials = begin(store)
        store.drivers.commit(made.id, epoch, Batch(log=[(4, a_report(0, 1))], trials=trials), T0)
        store.experiments.remove(made.id)
        batch = Batch(log=[(5, Note(reason="still here"))])
        for _ in range(2):  # the second one looks the experiment up again, like one after an error of the database
            with pytest.raises(LostLease):
                store.drivers.commit(made.id, epoch, batch, T0)

    def test_a_batch_that_follows_one_that_failed_writes_its_trials(self, store: Store) -> None:
        made, epoch, _ = begin(store)
        trial = a_trial(1)
        with pytest.raises(StoreError, match="no segment 7"):
            store.drivers.commit(made.id, epoch, Batch(log=[(4, a_report(0, 1, segment=7))], trials=[trial]), T0)
        store.drivers.commit(made.id, epoch, Batch(log=[(4, a_report(1, 1))], trials=[trial]), T0)
        assert [segment.ordinal for segment in store.trials.get(trial_id(made.public_id, 1)).segments] == [1]

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

    def test_a_report_with_a_checkpoint_of_a_newer_version_is_refused_with_advice(self, store: Store) -> None:
        """It ended the experiment as failed, with TypeError."""
        made, epoch, trials = begin(store)
        report = dataclasses.replace(a_report(0, 1), checkpoint=NewerInfo(id="ckp_1", uri="/c/1", step=1))
        store.drivers.commit(made.id, epoch, Batch(log=[(4, report)], trials=trials), T0)
        with pytest.raises(NewerLog, match="'reported'.* another version has written it"):
            list(store.drivers.load(made.id))

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
            with pytest.raises(
                StoreError, match=f"the log ends at event 5, but the batch begins at event {first}"
            ) as caught:
                store.drivers.commit(
                    made.id, epoch, Batch(log=[(first, Stop(reason="no", trial=0))], summary={"reason": "no"}), T0
                )
            assert not isinstance(caught.value, LostLease)
        assert list(store.drivers.load(made.id)) == before
        merged = [(4, a_report(0, 1)), (5, a_report(0, 2)), (6, Finish(reason="done"))]
        # The answer to the first commit was lost, and more entries have come since.
        store.drivers.commit(made.id, epoch, Batch(log=merged, trials=trials), T0)
        assert list(store.drivers.load(made.id)) == [*before, merged[2]]

    def test_the_share_of_the_budget_is_forgotten_once_there_is_no_budget(self, store: Store) -> None:
        made, epoch, trials = begin(store)
        for number, share in enumerate((0.3, None, 0.2, None), 1):
            log, summary = [(3 + number, a_report(0, number))], {"budget_spent": share}
            batch = Batch(log=log, trials=trials, state=ExperimentState.RUNNING, summary=summary)
            store.drivers.commit(made.id, epoch, batch, T0)
            assert store.experiments.get(made.public_id).budget_spent == share
        store.drivers.commit(made.id, epoch, Batch(log=[], summary={"budget_spent": 0.4}), T0)
        store.drivers.commit(made.id, epoch, Batch(log=[], summary={"reason": "paused by a user"}), T0)
        assert store.experiments.get(made.public_id).budget_spent == 0.4, "a summary that does not mention it keeps it"

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


def test_superseding_the_decisions_of_a_trial_reads_no_decision_of_another_trial(sqlite_url: str) -> None:
    """Otherwise each start or end of a trial would cost more, the more trials have ended."""
    with Store.open(sqlite_url) as store, store._database.cursor() as (cursor, _):
        plan = [row[3] for row in cursor.rows(f"EXPLAIN QUERY PLAN {writer._SUPERSEDED}", (1, 1, 2, 5))]
    assert "SEARCH decision USING PRIMARY KEY (experiment_id=? AND event_seq=?)" in plan
    assert any("ix_decision_trial (experiment_id=? AND trial_number=?" in step for step in plan)
