"""Test the contract of the store for experiments, what readers see of them, and commands, on SQLite and on PostgreSQL."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import string
import threading
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.event import listen, remove

from tests.driver.bench import Bench
from tests.driver.stored import stored
from tests.store.examples import T0, a_report, a_spec, begin, run_all, until_blocked
from tuner.domain.batch import Batch, Entry
from tuner.domain.decisions import Finish, Note, Pause, Stop
from tuner.domain.events import (
    CheckpointDeleted,
    CheckpointInfo,
    CheckpointSaved,
    Commanded,
    Drawn,
    DriverStarted,
    Failure,
    Reported,
)
from tuner.domain.keys import checkpoint_id, keyed_random, segment_id, trial_id
from tuner.domain.states import ExperimentState, SegmentState, TrialState
from tuner.domain.trial import Segment
from tuner.errors import Conflict, NewerLog, NotFound, Retryable, SpecError, StoreError
from tuner.experiment.specs.stored import check_driven
from tuner.store import CodeRecord, Store, commands
from tuner.store.experiments import SORTED_BY
from tuner.trials.training.metrics import LONGEST_NAME


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

    @pytest.mark.parametrize("sort", [sign + name for name in SORTED_BY for sign in ("", "-")])
    def test_lists_in_the_order_of_a_column_in_pages(self, store: Store, sort: str) -> None:
        values: list[tuple[str, float | None, int]] = [("b", 0.5, 3), ("A", None, 0), ("c", 0.9, 3), ("d", -1e-9, 12)]
        for at, (name, best, completed) in enumerate(values):
            resolved = {"search": {"type": "tpe"}, "scheduler": {"type": "asha"}}
            methods: list[dict[str, Any]] = [
                {"resolved": resolved},
                {"search": {"type": "random"}, "scheduler": {"type": "pbt"}},
                {"resolved": {"search": None, "scheduler": {"type": "hyperband"}}},
                {"resolved": resolved},
            ]
            made = store.experiments.create(a_spec(name, **methods[at]), now=T0)
            epoch = store.drivers.claim(made.id, "test", 60.0, T0)
            running = Batch(log=[(1, DriverStarted(time=T0 + 10 - at, epoch=epoch))], state=ExperimentState.RUNNING)
            store.drivers.commit(made.id, epoch, running, T0 + 10 - at)
            summary: dict[str, Any] = {"counts": {"completed": completed, "stopped": 1, "running": 50 - at}}
            summary["best"] = (
                {"why": "nothing yet"} if best is None else {"trial_number": 0, "value": best, "params": {}}
            )
            state = ExperimentState.RUNNING if at == 2 else ExperimentState.COMPLETED
            log = [(2, Note(reason="still here"))]
            store.drivers.commit(made.id, epoch, Batch(log=log, state=state, summary=summary), T0 + 20 + 20 * at)
        seen, token = [], None
        while True:
            page = store.experiments.page(page_size=1, sort=sort, page_token=token)
            seen += [item.name for item in page.items]
            if (token := page.next_token) is None:
                break
        assert seen == [item.name for item in store.experiments.page(sort=sort).items]
        ascending = {
            "name": "A b c d",
            "state": "d A b c",
            "trials": "A c b d",
            "best": "d b c A",
            "method": "c A d b",
            "started": "d c A b",
            "duration": "b A d c",
        }
        descending = {  # not the reverse: of equal ones, the newest comes first, and what has no value is last
            "name": "d c b A",
            "state": "c d A b",
            "trials": "d c b A",
            "best": "c b d A",
            "method": "d b A c",
            "started": "b A c d",
            "duration": "d A b c",
        }
        orders = descending if sort.startswith("-") else ascending
        assert seen == orders[sort.removeprefix("-")].split()

    def test_a_damaged_row_breaks_no_order(self, store: Store) -> None:
        for name in "ab":
            store.experiments.create(a_spec(name))
        with store._database.write() as cursor:
            cursor.execute("UPDATE experiment SET spec = '{', counts = '{', best = '{' WHERE name = 'a'", ())
        for sort in SORTED_BY:
            assert {item.spec.name for item in store.experiments.page(sort=sort).items} == {"?", "b"}, sort

    @pytest.mark.parametrize("sort", SORTED_BY)
    def test_an_order_parses_no_spec_again_and_again(self, store: Store, sort: str) -> None:
        """To sort 10,000 experiments by a method that was parsed dozens of times took 13 s."""
        for name in "ab":
            store.experiments.create(a_spec(name, search={"type": "random"}))
        token = store.experiments.page(sort=sort, page_size=1).next_token
        sent: list[str] = []
        engine = store._database.engine
        listen(engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
        store.experiments.page(sort=sort, page_size=1, page_token=token)
        [statement] = [one for one in sent if "SELECT" in one]
        assert statement.count("experiment.spec") <= 1 + 4, "the column itself, and each type that makes up the method"

    @pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, "\0", "\ud800", "\\u0000 NaN"])
    def test_a_parameter_that_a_database_does_not_take_as_json_breaks_no_order(self, store: Store, value: Any) -> None:
        for name, best, params in (("a", 0.5, {"clip": value}), ("b", 0.25, {"clip": 1.0})):
            resolved = {"search": {"type": "tpe"}, "scheduler": {"type": "asha"}, "seen": [params, value]}
            record, epoch, trials = begin(store, spec=a_spec(name, resolved=resolved))
            summary = {"best": {"trial_number": 0, "value": best, "iteration": 1, "params": params}}
            batch = Batch(log=[(4, a_report(0, 1))], trials=trials, state=ExperimentState.RUNNING, summary=summary)
            store.drivers.commit(record.id, epoch, batch, T0 + 2)
        orders = {sort: [item.name for item in store.experiments.page(sort=sort).items] for sort in SORTED_BY}
        assert (orders["best"], orders["method"]) == (["b", "a"], ["b", "a"])
        read = store.experiments.page(sort="-best").items[0].best
        assert read is not None
        assert repr(read["params"]) == repr({"clip": value}), "it comes back as it was stored"

    def test_a_column_or_a_token_that_does_not_fit_is_an_error(self, store: Store) -> None:
        for name in "ab":
            store.experiments.create(a_spec(name))
        with pytest.raises(SpecError, match="unknown column 'nam'; did you mean name"):
            store.experiments.page(sort="-nam")
        with pytest.raises(SpecError, match="unknown column 'xyzzy'; expected one of name, state, trials, best"):
            store.experiments.page(sort="xyzzy")
        token = store.experiments.page(sort="name", page_size=1).next_token
        with pytest.raises(SpecError, match="not a page token for this sort order"):
            store.experiments.page(sort="-name", page_token=token)

    @pytest.mark.parametrize("sort", SORTED_BY)
    def test_a_forged_page_token_is_an_error_or_a_page(self, store: Store, sort: str) -> None:
        fits: list[Any] = {"name": ["a"], "state": ["a"], "method": ["a"], "trials": [3]}.get(sort, [3, 0.5, 2**80])
        for last in (2**80, 3, True, "a", "\0", "\ud800", 0.5, math.nan, 10**400, [], None):
            for number in (1, -1, 2**62, True, 0.5, None):
                token = base64.urlsafe_b64encode(json.dumps([sort, last, number]).encode()).decode()
                if number is not True and number == 1 and last is not True and last in [*fits, None]:
                    store.experiments.page(sort=sort, page_token=token)
                else:
                    with pytest.raises(SpecError, match="not a page token for this sort order"):
                        store.experiments.page(sort=sort, page_token=token)

    def test_the_token_of_the_longest_name_fits_into_an_address(self, store: Store) -> None:
        for character in "😀\x01":
            for _ in range(2):
                store.experiments.create(a_spec(character * 200))
            token = store.experiments.page(sort="name", name=character, page_size=1).next_token
            assert token is not None
            assert len(token) <= 2000, "the longest that the API takes"
            assert len(store.experiments.page(sort="name", name=character, page_token=token).items) == 1

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

    def test_states_of_another_version_are_read_as_paused(self, store: Store) -> None:
        """One such trial made the page of its experiment fail, and one such experiment made the list of all fail."""
        made, _, _ = begin(store, 2)
        with store._database.write() as cursor:
            cursor.execute("UPDATE trial SET state = 'resting' WHERE number = 1 AND experiment_id = ?", (made.id,))
            cursor.execute("""UPDATE experiment SET state = 'resting', counts = '{"resting": 1, "paused": 2}'""", ())
        trial = store.trials.get(trial_id(made.public_id, 1))
        assert trial.state is TrialState.PAUSED
        assert trial.reason.startswith("in a state that this version of tuner does not know (resting): ")
        assert [one.state for one in store.trials.page(made.id).items] == ["running", "paused"]
        assert [one.state for one in store.trials.sorted_page(made.id, sort="state")[0].items] == ["paused", "running"]
        [found] = store.experiments.page().items
        assert (found.state, found.unknown_state, found.counts) == (ExperimentState.PAUSED, "resting", {"paused": 3})
        assert store.experiments.progress(made.id).state is ExperimentState.PAUSED
        tally = store.experiments.tally()
        assert (tally.experiments, tally.trials) == ({("default", "paused"): 1}, {("default", "paused"): 3})
        assert store.drivers.claimable(T0 + 1000) == []
        with pytest.raises(Conflict, match="is driven by"):
            store.drivers.claim(made.id, "another", 60, T0)
        with pytest.raises(NewerLog, match=r"in a state that this version of tuner does not know \(resting\), since"):
            check_driven(found)

    def test_trials_by_number_in_pages(self, store: Store) -> None:
        made, epoch, trials = begin(store, 5)
        trials[3].state = TrialState.STOPPED
        store.drivers.commit(made.id, epoch, Batch(log=[(12, Stop(reason="bad", trial=3))], trials=[trials[3]]), T0 + 3)
        page = store.trials.page(made.id, page_size=3)
        rest = store.trials.page(made.id, page_size=3, page_token=page.next_token)
        assert [t.number for t in page.items + rest.items] == [0, 1, 2, 3, 4]
        assert rest.next_token is None
        assert [t.number for t in store.trials.page(made.id, state="stopped").items] == [3]
        assert store.trials.ended(made.id) == [3]
        assert store.trials.page(made.id).items[3].ended_at == T0 + 3

    def test_the_draws_of_a_trial_are_those_of_its_last_event(self, store: Store) -> None:
        made, epoch, _ = begin(store, 2)
        order = [
            (0, {"a": 1}),
            (1, {"a": 2}),
            (0, {"a": 1, "b": 3}),
            (1, {"a": 2, "b": 4}),
            (0, {"a": 1, "b": 3, "c": 5}),
        ]
        log: list[Entry] = [
            (seq, Drawn(time=T0 + 2, trial=trial, segment=1, name="x", value=0, state=state))
            for seq, (trial, state) in enumerate(order, 6)
        ]
        store.drivers.commit(made.id, epoch, Batch(log=log), T0 + 2)
        assert store.trials.draws(made.id) == [{"a": 2, "b": 4}, {"a": 1, "b": 3, "c": 5}]
        assert store.trials.draws(made.id, most=1) == [{"a": 1, "b": 3, "c": 5}]

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

    def test_an_experiment_ends_no_earlier_than_its_trials_if_the_clock_is_set_back(self, store: Store) -> None:
        made, epoch, [trial] = begin(store)
        trial.state, trial.ended_at = TrialState.COMPLETED, T0 + 9
        log: list[Entry] = [(4, replace(a_report(0, 1), time=T0 - 3600.0))]
        batch = Batch(log=log, trials=[trial], state=ExperimentState.COMPLETED, time=T0 + 9)
        store.drivers.commit(made.id, epoch, batch, T0 - 3600.0)
        found = store.experiments.get(made.public_id)
        assert found.ended_at == store.trials.page(made.id).items[0].ended_at == T0 + 9

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
        store.drivers.commit(made.id, epoch, Batch(log=[], state=ExperimentState.CANCELLED), T0)
        ended = {d.seq: d.state for d in store.log.decisions(made.id).items}
        assert ended == {8: "superseded", 7: "superseded", 6: "done", 4: "superseded", 2: "superseded"}

    def test_the_log_newest_first_with_decisions_among_events(self, store: Store) -> None:
        made, epoch, trials = begin(store, 2)
        log = [
            (6, a_report(0, 1, loss=math.nan, accuracy=0.5)),
            (7, Stop(reason="bad", trial=0)),
            (8, a_report(1, 1, accuracy=0.25)),
            (9, Commanded(time=T0 + 3, command="stop", trial=1)),
            (10, Finish(reason="all done")),
        ]
        store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0)
        whole = store.log.entries(made.id)
        assert whole.next_token is None
        assert whole.items == tuple(reversed(store.log.events_after(made.id, 0)))
        assert [one.seq for one in whole.items] == list(range(10, 0, -1))
        found: list[int] = []
        token = None
        while token is not None or not found:
            page = store.log.entries(made.id, page_size=3, page_token=token)
            assert len(page.items) <= 3
            found += [one.seq for one in page.items]
            token = page.next_token
        assert found == list(range(10, 0, -1))
        reports = store.log.entries(made.id, kinds=["reported"], page_size=1)
        assert [(one.seq, one.trial, one.data["metrics"]) for one in reports.items] == [(8, 1, {"accuracy": 0.25})]
        older = store.log.entries(made.id, kinds=["reported"], page_token=reports.next_token)
        assert [one.seq for one in older.items] == [6]
        assert math.isnan(older.items[0].data["metrics"]["loss"])
        assert [one.seq for one in store.log.entries(made.id, kinds=["decision", "commanded"], trial=1).items] == [9, 4]
        assert store.log.entries(made.id, kinds=["pinned"]).items == ()
        twice = store.log.entries(made.id, kinds=["reported", "reported"])
        assert [one.seq for one in twice.items] == [
            one.seq for one in store.log.entries(made.id, kinds=["reported"]).items
        ]

    def test_events_of_rare_kinds_are_found_without_a_look_at_all_reports(self, sqlite_store: Store) -> None:
        asked: list[tuple[str, Any]] = []

        def note(connection: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
            if "FROM event" in statement:
                asked.append((statement, parameters))

        made, _, _ = begin(sqlite_store)
        with sqlite_store._database.read() as connection:
            listen(connection.engine, "before_cursor_execute", note)
            try:
                sqlite_store.log.entries(made.id, kinds=["pinned", "segment_ended"])
            finally:
                remove(connection.engine, "before_cursor_execute", note)
            plans = [connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {one}", given).all() for one, given in asked]
        assert len(plans) == 2
        for plan in plans:
            found = [step.detail for step in plan]
            assert any("COVERING INDEX ix_event_kind (experiment_id=? AND kind=? AND event_seq<?)" in d for d in found)
            assert not any("PRIMARY KEY (experiment_id=? AND event_seq<?)" in d or "TEMP" in d for d in found), found

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

    def test_a_name_that_no_index_takes_is_not_worth_another_try(self, store: Store) -> None:
        """Reports are checked before, so that only text that a report cannot have gets here."""
        record, epoch, trials = begin(store)
        random = "".join(
            keyed_random(1, "name").choices(string.ascii_letters, k=6000)
        )  # does not get shorter if compressed
        batch = Batch(log=[(4, a_report(0, 1, **{random: 1.0}))], trials=trials)
        if store.backend == "sqlite":
            store.drivers.commit(record.id, epoch, batch, T0 + 2)
            return
        with pytest.raises(StoreError, match="exceeds btree") as caught:
            store.drivers.commit(record.id, epoch, batch, T0 + 2)
        assert not isinstance(caught.value, Retryable)

    def test_a_name_of_the_longest_length_is_stored(self, store: Store) -> None:
        record, epoch, trials = begin(store)
        name = "".join(chr(keyed_random(1, "name", n).randrange(0x1F300, 0x1F5FF)) for n in range(LONGEST_NAME))
        batch = Batch(log=[(4, a_report(0, 1, **{name: 1.0}))], trials=trials)
        store.drivers.commit(record.id, epoch, batch, T0 + 2)
        assert store.metrics.names_of([record.id]) == {record.id: [name]}

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
        for wrong in ({"x": "steps"}, {"x": "metric"}, {"x": "time", "x_metric": "loss"}):
            with pytest.raises(SpecError):
                store.metrics.curves(made.id, "accuracy", **wrong)  # type: ignore[arg-type]

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

    def test_best_so_far_leaves_out_reports_that_violate_the_constraints(self, store: Store) -> None:
        made, epoch, trials = begin(store, 1)
        log = [
            (4 + at, dataclasses.replace(a_report(0, 1 + at, accuracy=value), time=T0 + 2 + at))
            for at, value in enumerate((0.9, 0.5, 0.95, 0.6))
        ]
        best = {5: {"accuracy": 0.5}, 7: {"accuracy": 0.6}}
        store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials, best=best), T0)
        assert store.metrics.best_so_far(made.id, "accuracy", "max") == ([2.0, 4.0], [0.5, 0.6])

    def test_best_so_far_has_a_value_whose_constraint_was_reported_later(self, store: Store) -> None:
        bench = Bench(search={"type": "tpe", "constraints": {"size": {"max": 0.25}}})
        bench.started(0)
        apart: list[dict[str, float]] = [{"loss": 0.5}, {"size": 0.1}, {"loss": 0.6}, {"loss": 0.4, "size": 1.0}]
        for count, metrics in enumerate([*apart, {"size": 0.2}], 1):
            bench.feed(
                Reported(time=bench.tick(), trial=0, segment=1, report_no=count, iteration=count, metrics=metrics)
            )
        made = stored(bench, store)
        assert store.metrics.best_so_far(made.id, "loss", "min")[1] == [0.5, 0.4]


class TestCommands:
    @pytest.mark.postgres
    def test_a_command_that_two_services_get_at_once_is_added_once(
        self, postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Store.open(postgres_url) as one, Store.open(postgres_url) as other:
            made, _, _ = begin(one)
            found: list[int] = []
            second = threading.Thread(target=lambda: found.append(other.commands.add(made.id, "retry", 0)))
            insert = commands.insert

            def meanwhile(*args: Any) -> int:
                added = insert(*args)
                if second.ident is None:
                    second.start()
                    until_blocked(postgres_url, second)
                return added

            monkeypatch.setattr(commands, "insert", meanwhile)
            found.append(one.commands.add(made.id, "retry", 0))
            second.join()
            assert found == [found[0]] * 2
            assert [command.id for command in one.commands.pending([made.id])] == found[:1]

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


def test_an_upload_that_was_complete_when_its_driver_died_is_ready_and_a_deleted_one_stays_deleted(
    store: Store,
) -> None:
    made, epoch, trials = begin(store)
    infos = [CheckpointInfo(id=f"ckpt_{n}", uri=f"s3://bucket/{n}", step=1, ready=False) for n in (1, 2)]
    log: list[Entry] = [
        (4 + n, CheckpointSaved(time=T0 + 2, trial=0, segment=1, checkpoint=info)) for n, info in enumerate(infos)
    ]
    log.append((6, CheckpointDeleted(time=T0 + 3, trial=0, checkpoint="ckpt_2")))
    uploaded = tuple(replace(info, ready=True) for info in infos)
    log.append((7, DriverStarted(time=T0 + 4, epoch=epoch, uploaded=uploaded)))
    store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0 + 4)
    assert {row.public_id: row.state for row in store.trials.checkpoints(made.id)} == {
        "ckpt_1": "ready",
        "ckpt_2": "deleted",
    }
    assert list(store.drivers.load(made.id))[-1][1] == log[-1][1]


def test_what_is_not_found_in_a_project_is_said_with_the_project(sqlite_store: Store) -> None:
    """A member of one project who has the id of another project's experiment may think that it was deleted."""
    made = sqlite_store.experiments.create(a_spec(project="theirs"))
    limited, where = sqlite_store.within("ours"), "in the project 'ours', to which your access is limited"
    with pytest.raises(NotFound, match=rf"^no experiment {made.public_id} {where}"):
        limited.experiments.get(made.public_id)
    with pytest.raises(NotFound, match=rf"^no trial trl_x {where}"):
        limited.trials.get("trl_x")
    with pytest.raises(NotFound, match=rf"^no checkpoint ckp_x {where}"):
        limited.trials.checkpoint("ckp_x")
    with pytest.raises(NotFound, match=r"(?m)^no trial trl_x$"):
        sqlite_store.trials.get("trl_x")
