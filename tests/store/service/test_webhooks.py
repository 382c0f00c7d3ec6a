"""Webhooks in the database: what is collected from the log, who may send it, what becomes of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.store.examples import T0, a_report, a_spec, begin, until_blocked
from tuner.api.webhooks.deliver import MAX_RETRY_S, RETRY_S
from tuner.domain.batch import Batch, Entry
from tuner.domain.decisions import Fail
from tuner.domain.events import CheckpointDeleted
from tuner.domain.keys import trial_id
from tuner.domain.states import ExperimentState, TrialState
from tuner.domain.trial import Trial
from tuner.errors import NotFound, SpecError
from tuner.store import ExperimentRecord, Store
from tuner.store.service import webhooks
from tuner.store.service.webhooks import EVENTS, MAX_WEBHOOKS, DeliveryRecord
from tuner.store.sql.database import Database

URL = "https://example.com/hook"
Made = tuple[ExperimentRecord, int, list[Trial]]


def commit(store: Store, made: Made, entries: list[Entry], state: ExperimentState | None = None) -> None:
    record, epoch, trials = made
    summary = {"reason": f"it is {state}"} if state else {}
    store.drivers.commit(record.id, epoch, Batch(log=entries, trials=trials, state=state, summary=summary), T0 + 9)


def told(store: Store, hook: str) -> list[str]:
    """Return the events of the deliveries of a webhook, oldest first."""
    return [one.event for one in reversed(store.webhooks.deliveries(hook))]


def test_each_event_is_told_once(store: Store) -> None:
    hook = store.webhooks.create(URL, EVENTS, threshold=0.5).public_id
    store.webhooks.collect()
    assert told(store, hook) == []
    made = begin(store, 2)
    store.webhooks.collect()
    assert told(store, hook) == ["experiment.started"]
    commit(store, made, [(6, a_report(0, 1, accuracy=0.4))])
    store.webhooks.collect()
    assert told(store, hook) == ["experiment.started"], "the threshold is not reached"
    commit(store, made, [(7, a_report(0, 2, accuracy=0.6)), (8, a_report(0, 3, accuracy=0.7))])
    made[2][1].state = TrialState.FAILED
    commit(store, made, [(9, Fail(reason="rank 0 was killed", trial=1))], ExperimentState.PAUSED)
    for _ in range(2):
        store.webhooks.collect()
    assert told(store, hook)[1:] == ["experiment.paused", "trial.failed", "objective.reached"]
    commit(store, made, [(10, a_report(0, 4, accuracy=0.9))], ExperimentState.RUNNING)
    store.webhooks.collect()
    commit(store, made, [(11, a_report(0, 5, accuracy=0.9))], ExperimentState.COMPLETED)
    for _ in range(2):
        store.webhooks.collect()
    assert told(store, hook)[4:] == ["experiment.completed"]
    due = {one.event: one.data for one in store.webhooks.claim(10, 60)}
    assert due["trial.failed"]["trial"] == {
        "id": trial_id(made[0].public_id, 1),
        "number": 1,
        "reason": "rank 0 was killed",
    }
    assert due["objective.reached"]["objective"] == {
        "metric": "accuracy",
        "mode": "max",
        "value": 0.6,
        "threshold": 0.5,
    }
    assert due["experiment.completed"]["experiment"]["reason"] == "it is completed"
    commit(store, made, [(12, CheckpointDeleted(time=T0, trial=0, checkpoint="ckp_1"))])
    store.webhooks.collect()
    assert store.webhooks._collect(T0) == [], (
        "an ended experiment was read every second, for as long as the service ran"
    )


@pytest.mark.parametrize("state", ["failed", "cancelled", "completed"])
def test_an_end_that_no_service_saw_is_told_after_a_restart(sqlite_store: Store, sqlite_url: str, state: str) -> None:
    hook = sqlite_store.webhooks.create(URL, [f"experiment.{state}", "trial.failed"]).public_id
    made = begin(sqlite_store)
    sqlite_store.webhooks.collect()
    commit(sqlite_store, made, [(4, Fail(reason="out of memory", trial=0))], ExperimentState(state))
    with Store.open(sqlite_url) as other:
        other.webhooks.collect()
        sqlite_store.webhooks.collect()
        assert told(other, hook) == [f"experiment.{state}", "trial.failed"]


def test_an_experiment_that_is_continued_ends_again(store: Store) -> None:
    hook = store.webhooks.create(URL, ["experiment.completed"]).public_id
    made = begin(store)
    for seq in (4, 6):
        commit(store, made, [(seq, a_report(0, seq))], ExperimentState.COMPLETED)
        store.webhooks.collect()
        commit(store, made, [(seq + 1, a_report(0, seq + 1))], ExperimentState.RUNNING)
    assert told(store, hook) == ["experiment.completed"] * 2


def test_two_services_do_not_add_the_same_delivery(store: Store, database_url: str) -> None:
    hook = store.webhooks.create(URL, ["trial.failed"]).public_id
    made = begin(store)
    store.webhooks.collect()
    with Store.open(database_url) as other:
        for number in range(6):
            commit(store, made, [(4 + number, Fail(reason="killed", trial=0))])
            for one in (store, other) if number % 2 else (other, store):
                one.webhooks.collect()
        assert told(store, hook) == ["trial.failed"] * 6


def test_many_failures_are_collected_in_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.store.service.webhooks.FAILURES_AT_ONCE", 3)
    hook = store.webhooks.create(URL, ["trial.failed"]).public_id
    made = begin(store)
    commit(store, made, [(4 + number, Fail(reason="killed", trial=0)) for number in range(8)])
    for count in (3, 6, 8, 8):
        store.webhooks.collect()
        assert len(told(store, hook)) == count


def test_a_new_webhook_is_not_told_of_the_past(store: Store) -> None:
    made = begin(store)
    commit(store, made, [(4, Fail(reason="killed", trial=0))], ExperimentState.PAUSED)
    first = store.webhooks.create(URL, EVENTS, threshold=0.0)
    store.webhooks.collect()
    assert told(store, first.public_id) == []
    store.webhooks.delete(first.public_id)
    commit(store, made, [(5, Fail(reason="killed", trial=0))], ExperimentState.COMPLETED)
    store.webhooks.collect()
    second = store.webhooks.create(URL, EVENTS, threshold=0.0).public_id
    store.webhooks.collect()
    assert told(store, second) == [], "nobody was told while there was no webhook"


def test_a_restart_tells_a_new_webhook_and_a_changed_one_nothing_of_the_past(
    sqlite_store: Store, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.store.service.webhooks.FAILURES_AT_ONCE", 2)
    old = sqlite_store.webhooks.create(URL, ["experiment.paused"]).public_id
    made = begin(sqlite_store)
    sqlite_store.webhooks.collect()
    killed: list[Entry] = [(seq, Fail(reason="killed", trial=0)) for seq in range(4, 9)]
    commit(sqlite_store, made, [*killed, (9, a_report(0, 2, accuracy=0.9))])
    sqlite_store.webhooks.collect()  # nobody has subscribed to this
    with Store.open(sqlite_url) as other:
        new = other.webhooks.create(URL, ["trial.failed", "objective.reached"], threshold=0.5).public_id
        other.webhooks.change(old, events=EVENTS, threshold=0.5)
        other.webhooks.collect()
        commit(other, made, [(10, a_report(0, 3, accuracy=0.1))])
        other.webhooks.collect()
        assert (told(other, new), told(other, old)) == ([], [])
        commit(other, made, [(11, a_report(0, 4, accuracy=0.95)), (12, Fail(reason="killed", trial=0))])
        other.webhooks.collect()
        assert told(other, new) == told(other, old) == ["trial.failed", "objective.reached"]


def test_a_changed_webhook_is_told_nothing_of_what_it_did_not_ask_for(sqlite_store: Store, sqlite_url: str) -> None:
    hook = sqlite_store.webhooks.create(URL, ["experiment.paused"]).public_id
    made = begin(sqlite_store)
    sqlite_store.webhooks.collect()
    commit(sqlite_store, made, [(4, Fail(reason="killed", trial=0))])
    with Store.open(sqlite_url) as other:
        other.webhooks.change(hook, events=["trial.failed"])
        other.webhooks.collect()
        assert told(other, hook) == []


def test_two_changes_of_a_webhook_at_once_both_count(
    store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later one wrote back what it had read, so the earlier one was lost."""
    hook = store.webhooks.create(URL, ["objective.reached"], threshold=0.5).public_id
    read, meanwhile = webhooks.Webhooks.get, [{"format": "slack", "threshold": 0.7}]

    def get(self: webhooks.Webhooks, public_id: str) -> webhooks.WebhookRecord:
        found = read(self, public_id)
        if meanwhile:
            with Store.open(database_url) as other:
                other.webhooks.change(public_id, **meanwhile.pop())  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(webhooks.Webhooks, "get", get)
    changed = store.webhooks.change(hook, url="https://example.com/other", events=["objective.reached", "trial.failed"])
    assert (changed.url, changed.format, changed.threshold) == ("https://example.com/other", "slack", 0.7)
    assert changed.events == ("objective.reached", "trial.failed")


def test_a_webhook_that_is_created_during_a_collection_misses_nothing(
    store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.webhooks.create(URL, ["trial.failed"])
    made = begin(store)
    created: list[str] = []
    transaction = Database.cursor

    def cursor(database: Database) -> Any:
        if database is store._database and not created:
            with Store.open(database_url) as other:
                created.append(other.webhooks.create(URL, ["experiment.completed"]).public_id)
                commit(other, made, [(4, a_report(0, 1))], ExperimentState.COMPLETED)
        return transaction(database)

    monkeypatch.setattr(Database, "cursor", cursor)
    for _ in range(2):
        store.webhooks.collect()
    assert told(store, created[0]) == ["experiment.completed"]


def test_a_new_webhook_hides_no_event_from_the_others(store: Store) -> None:
    first = store.webhooks.create(URL, ["experiment.started", "trial.failed"]).public_id
    made = begin(store)
    commit(store, made, [(4, Fail(reason="killed", trial=0))])
    second = store.webhooks.create(URL, EVENTS, threshold=0.5).public_id
    store.webhooks.collect()
    assert (told(store, first), told(store, second)) == (["experiment.started", "trial.failed"], [])


def test_a_webhook_is_told_of_its_project_and_its_experiment_only(store: Store) -> None:
    def hook(**scope: str) -> str:
        return store.webhooks.create(URL, ["experiment.started"], **scope).public_id  # type: ignore[arg-type]

    everything, ours = hook(), hook(project="ours")
    first, _, _ = begin(store, spec=a_spec("a", project="ours"))
    store.webhooks.collect()
    one = hook(project="ours", experiment=first.public_id)
    begin(store, spec=a_spec("b", project="theirs"))
    begin(store, spec=a_spec("c", project="ours"))
    store.webhooks.collect()
    assert [len(told(store, found)) for found in (everything, ours, one)] == [3, 2, 0]


def test_a_delivery_belongs_to_one_sender_until_its_claim_ends(store: Store, database_url: str) -> None:
    hook = store.webhooks.create(URL, ["experiment.started"], now=T0)
    begin(store)
    store.webhooks.collect(T0)
    with Store.open(database_url) as other:
        [due] = store.webhooks.claim(5, 60, now=T0)
        assert (due.attempts, due.secret, due.url) == (1, hook.secret, URL)
        assert other.webhooks.claim(5, 60, now=T0 + 59) == []
        assert other.webhooks.claim(5, 60, now=T0 + 61, busy=[hook.id]) == []
        [again] = other.webhooks.claim(5, 60, now=T0 + 61)
        assert (again.public_id, again.attempts) == (due.public_id, 2)
        store.webhooks.failed(due, "too late to matter", wait_s=None)
        other.webhooks.failed(again, "no answer", status=500, wait_s=100, now=T0 + 62)
        assert store.webhooks.claim(5, 60, now=T0 + 161) == []
        [last] = store.webhooks.claim(5, 60, now=T0 + 162)
        store.webhooks.delivered(last, 204, now=T0 + 163)
    [found] = store.webhooks.deliveries(hook.public_id)
    assert (found.state, found.attempts, found.last_status, found.last_error) == ("delivered", 3, 204, None)
    assert store.webhooks.claim(5, 60, now=T0 + 9999) == []


@pytest.mark.parametrize("back", [3600, 86_400])
def test_a_clock_that_was_put_back_delays_no_delivery(store: Store, back: float) -> None:
    """Each of them waited for up to two hours, although it was to be sent at once or a few seconds later."""
    store.webhooks.create(URL, ["experiment.started"], now=T0)
    begin(store)
    store.webhooks.collect(T0)
    assert store.webhooks.claim(5, 60, now=T0 - 600) == [], "as by the clock of another service"
    [due] = store.webhooks.claim(5, 60, now=T0 - back)
    assert store.webhooks.claim(5, 60, now=T0 - back + 59) == []
    store.webhooks.failed(due, "no answer", wait_s=5.5, now=T0 - back)
    assert store.webhooks.claim(5, 60, now=T0 - back + 5) == []
    [again] = store.webhooks.claim(5, 60, now=T0 - 2 * back)
    store.webhooks.delivered(again, 204)


@pytest.mark.parametrize("attempts", [1, 2, 7, 8, 9, 10, 11, 19])
def test_no_pause_between_attempts_is_taken_for_a_clock_that_was_put_back(store: Store, attempts: int) -> None:
    store.webhooks.create(URL, ["experiment.started"], now=T0)
    begin(store)
    store.webhooks.collect(T0)
    for _ in range(attempts):
        [due] = store.webhooks.claim(5, 60, now=T0)
        store.webhooks.failed(due, "no answer", wait_s=0, now=T0)
    longest = min(RETRY_S * 2.0 ** (attempts - 1), MAX_RETRY_S) * 1.1
    [due] = store.webhooks.claim(5, 60, now=T0)
    store.webhooks.failed(due, "no answer", wait_s=longest, now=T0 + 600)
    assert store.webhooks.claim(5, 60, now=T0) == []


def test_a_failed_delivery_says_why(store: Store) -> None:
    hook = store.webhooks.create(URL, ["experiment.started"]).public_id
    begin(store)
    store.webhooks.collect()
    [due] = store.webhooks.claim(5, 60)
    store.webhooks.failed(due, "no\0answer", wait_s=None, now=T0)
    [found] = store.webhooks.deliveries(hook)
    assert (found.state, found.last_error, found.ended_at) == ("failed", "no\ufffdanswer", T0)


def test_webhooks_are_changed_and_deleted_within_their_project(store: Store) -> None:
    ours = store.within("ours").webhooks.create(URL, ["trial.failed"], project="ours")
    theirs = store.within("theirs").webhooks
    assert theirs.all() == []
    for refused in (theirs.get, theirs.change, theirs.delete, theirs.deliveries):
        with pytest.raises(NotFound):
            refused(ours.public_id)
    with pytest.raises(SpecError, match="limited to the project"):
        theirs.create(URL, ["trial.failed"])
    with pytest.raises(SpecError, match="threshold|reached"):
        store.webhooks.change(ours.public_id, events=["objective.reached"])
    changed = store.webhooks.change(ours.public_id, events=["objective.reached"], threshold=0.0)
    assert (changed.url, changed.events, changed.threshold, changed.secret) == (
        URL,
        ("objective.reached",),
        0.0,
        ours.secret,
    )
    assert ours.secret not in repr(ours)
    store.webhooks.delete(ours.public_id)
    assert store.webhooks.all() == []


def test_the_deliveries_of_a_deleted_webhook_are_deleted(store: Store) -> None:
    hook = store.webhooks.create(URL, EVENTS, threshold=0.5).public_id
    commit(store, begin(store), [(4, Fail(reason="killed", trial=0))])
    store.webhooks.collect()
    assert told(store, hook)
    store.webhooks.delete(hook)
    assert store.webhooks.prune(before=0.0) == 0, "the clean-up finds none that are left"


def test_old_deliveries_are_deleted(store: Store) -> None:
    hook = store.webhooks.create(URL, EVENTS, threshold=0.5).public_id
    made = begin(store)
    commit(store, made, [(4, a_report(0, 1, accuracy=0.9)), (5, Fail(reason="killed", trial=0))])
    store.webhooks.collect()
    for due in store.webhooks.claim(10, 60):
        if due.event != "trial.failed":
            store.webhooks.delivered(due, 200, now=T0)
    assert store.webhooks.prune(T0) == 0
    assert store.webhooks.prune(T0 + 1) == 1
    left: list[DeliveryRecord] = store.webhooks.deliveries(hook)
    assert {one.event for one in left} == {"trial.failed", "objective.reached"}, "one is pending, one must not repeat"


@pytest.mark.postgres
def test_two_services_create_the_first_webhooks_at_once(postgres_url: str) -> None:
    with Store.open(postgres_url) as one, Store.open(postgres_url) as other:
        begin(one)
        found: list[str] = []
        second = threading.Thread(target=lambda: found.append(other.webhooks.create(URL, EVENTS, threshold=1.0).url))
        with one._database.write() as cursor:
            cursor.execute(webhooks._BASELINE)  # as the first of the two does
            second.start()
            until_blocked(postgres_url, second)
        second.join()
    assert found == [URL]


def test_a_test_of_a_webhook_that_is_deleted_meanwhile_is_not_found(
    sqlite_store: Store, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = sqlite_store.webhooks.create(URL, ["trial.failed"]).public_id
    write = Database.write

    def delete_first(database: Database) -> Any:
        monkeypatch.setattr(Database, "write", write)
        with Store.open(sqlite_url) as other:
            other.webhooks.delete(hook)
        return write(database)

    monkeypatch.setattr(Database, "write", delete_first)
    with pytest.raises(NotFound):
        sqlite_store.webhooks.test(hook)
    assert sqlite_store.webhooks.prune(before=0.0) == 0, "no delivery is left"


def test_a_test_of_a_webhook_that_is_deleted_right_afterwards_is_answered(
    sqlite_store: Store, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = sqlite_store.webhooks.create(URL, ["trial.failed"]).public_id
    write = Database.write

    @contextmanager
    def delete_afterwards(database: Database) -> Iterator[Any]:
        monkeypatch.setattr(Database, "write", write)
        with write(database) as cursor:
            yield cursor
        with Store.open(sqlite_url) as other:
            other.webhooks.delete(hook)

    monkeypatch.setattr(Database, "write", delete_afterwards)
    assert sqlite_store.webhooks.test(hook).state == "pending"


def test_there_is_a_limit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_WEBHOOKS > 100
    monkeypatch.setattr("tuner.store.service.webhooks.MAX_WEBHOOKS", 1)
    store.webhooks.create(URL, ["trial.failed"])
    with pytest.raises(SpecError, match="there are already 1 webhooks"):
        store.webhooks.create(URL, ["trial.failed"])


def test_the_webhooks_of_an_experiment_are_deleted_with_it(store: Store) -> None:
    """They had stayed, and counted towards the limit, although nothing could happen to them any more."""
    made, other = begin(store), begin(store)
    bound, elsewhere = (
        store.webhooks.create(URL, ["experiment.completed"], experiment=one.public_id) for one in (made[0], other[0])
    )
    general = store.webhooks.create(URL, ["experiment.completed"])
    commit(store, made, [], ExperimentState.COMPLETED)
    store.webhooks.collect()
    assert told(store, bound.public_id) == ["experiment.completed"]
    store.experiments.remove(made[0].id)
    assert [hook.public_id for hook in store.webhooks.all()] == [general.public_id, elsewhere.public_id]
    assert told(store, general.public_id) == ["experiment.completed"]
    assert [due.webhook for due in store.webhooks.claim(10, 60)] == [general.id]
    assert store.webhooks.prune(0.0) == 0, "no delivery is left behind"


def test_the_webhooks_that_deleted_experiments_left_behind_are_deleted(store: Store) -> None:
    made, _, _ = begin(store)
    kept = [
        store.webhooks.create(URL, ["trial.failed"], experiment=experiment).public_id
        for experiment in (None, made.public_id)
    ]
    left = store.webhooks.create(URL, ["trial.failed"], experiment="exp_0123456789abcdef0123").public_id
    store.webhooks.test(left)
    assert store.webhooks.prune(0.0) == 1
    assert {hook.public_id for hook in store.webhooks.all()} == set(kept)
