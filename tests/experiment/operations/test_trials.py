"""Requests for more trials of an experiment that ends before its driver reads them, and pins, on a real database."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.store.examples import T0, a_spec, begin
from tuner.domain.batch import Batch
from tuner.domain.events import CheckpointInfo, CheckpointSaved, Commanded, Pinned
from tuner.domain.states import ExperimentState, TrialState
from tuner.driver.commands import as_event
from tuner.errors import Conflict, StoreError
from tuner.experiment.operations.trials import enqueue, pin
from tuner.experiment.operations.usecases import continue_experiment
from tuner.experiment.operations.verbs import act_on_trial
from tuner.store import ExperimentRecord, Store
from tuner.store.commands import Commands, Request


def retry(store: Store, record: ExperimentRecord) -> None:
    act_on_trial(store, "retry", store.trials.page(record.id).items[0].public_id)


def more_samples(store: Store, record: ExperimentRecord) -> None:
    continue_experiment(store, record.public_id, 3, adopt=True)


def a_configuration(store: Store, record: ExperimentRecord) -> None:
    enqueue(store, record.public_id, [{"lr": 0.01}])


def test_an_experiment_that_is_being_cancelled_is_given_no_more_samples(sqlite_store: Store) -> None:
    made, epoch, _ = begin(sqlite_store)
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], state=ExperimentState.CANCELLING), T0 + 8)
    with pytest.raises(Conflict, match="is cancelling and cannot be continued"):
        more_samples(sqlite_store, made)
    assert sqlite_store.commands.pending([made.id]) == []


@pytest.mark.parametrize("ask", [a_configuration, retry, more_samples])
@pytest.mark.parametrize("ended_first", [False, True])
def test_what_is_asked_for_at_the_very_end_is_done_by_the_next_driver(
    store: Store, ask: Callable[[Store, ExperimentRecord], None], ended_first: bool
) -> None:
    made, epoch, trials = begin(store, 2, spec=a_spec(num_samples=2))
    trials[0].state, trials[1].state = TrialState.FAILED, TrialState.COMPLETED
    store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials), T0 + 8)
    end = Batch(log=[], state=ExperimentState.COMPLETED)
    if ended_first:
        store.drivers.commit(made.id, epoch, end, T0 + 9)
    ask(store, store.experiments.get(made.public_id))
    if not ended_first:  # the driver has not read the command
        store.drivers.commit(made.id, epoch, end, T0 + 9)
    store.drivers.release(made.id, epoch)
    record = store.experiments.get(made.public_id)
    assert record.source == ("adopted" if ended_first else "python"), "a script that is there goes on by itself"
    assert [found.id for found in store.drivers.claimable(time.time())] == [made.id]
    assert store.commands.pending([made.id])[-1].command == "continue", "it follows what was asked for"


def test_a_request_for_trials_that_is_repeated_with_its_key_adds_none(store: Store) -> None:
    made, epoch, _ = begin(store, spec=a_spec(num_samples=4))
    other = store.experiments.create(a_spec(name="other", num_samples=4))
    name = made.public_id
    for _ in range(2):
        assert continue_experiment(store, name, 3, idempotency_key="more").spec.num_samples == 7
        enqueue(store, name, [{"lr": 0.01}], idempotency_key="mine")
    sent = [one.command for one in store.commands.pending([made.id])]
    assert sent == ["amend", "continue", "enqueue", "continue"]
    assert continue_experiment(store, other.public_id, 3, idempotency_key="more").spec.num_samples == 7
    for again in (
        lambda: continue_experiment(store, name, 4, idempotency_key="more"),
        lambda: continue_experiment(store, name, 3, idempotency_key="mine"),
        lambda: enqueue(store, name, [{"lr": 0.02}], idempotency_key="mine"),
    ):
        with pytest.raises(Conflict, match="the idempotency key '(more|mine)' was used before, with another request"):
            again()
    store.drivers.commit(made.id, epoch, Batch(log=[], state=ExperimentState.CANCELLING), T0 + 9)
    assert continue_experiment(store, name, 3, idempotency_key="more").state is ExperimentState.CANCELLING
    enqueue(store, name, [{"lr": 0.01}], idempotency_key="mine")
    with pytest.raises(Conflict, match="is cancelling"):
        enqueue(store, name, [{"lr": 0.01}], idempotency_key="new")
    assert [one.command for one in store.commands.pending([made.id])] == sent


def test_a_request_that_is_sent_twice_at_once_is_carried_out_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _, _ = begin(store, spec=a_spec(num_samples=4))
    asks = {
        "more": lambda: continue_experiment(store, made.public_id, 3, idempotency_key="more"),
        "mine": lambda: enqueue(store, made.public_id, [{"lr": 0.01}], idempotency_key="mine"),
    }
    look, between = Commands.sent_with, list(asks)

    def sent_with(self: Commands, experiment_id: int, request: Request | None) -> bool:
        found = look(self, experiment_id, request)
        if request is not None and request.key in between:
            between.remove(request.key)
            asks[request.key]()
        return found

    monkeypatch.setattr(Commands, "sent_with", sent_with)
    for ask in asks.values():
        ask()
    assert store.experiments.get(made.public_id).spec.num_samples == 7
    sent = [one.command for one in store.commands.pending([made.id])]
    assert sent == ["amend", "continue", "enqueue", "continue"]


def test_a_pin_is_stored_only_together_with_its_command(sqlite_store: Store) -> None:
    made, epoch, _ = begin(sqlite_store)
    info = CheckpointInfo(id="ckp_1", uri="/c/1", step=1, ready=True)
    saved = CheckpointSaved(time=T0, trial=0, segment=1, checkpoint=info)
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[(4, saved)]), T0)
    with sqlite_store._database.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER full BEFORE INSERT ON command BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
        )
    with pytest.raises(StoreError):
        pin(sqlite_store, "ckp_1", True)
    assert not sqlite_store.trials.checkpoint("ckp_1").pinned, "its driver was not told"
    with sqlite_store._database.engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER full")
    for _ in range(2):
        assert pin(sqlite_store, "ckp_1", True).pinned
    [command] = sqlite_store.commands.pending([made.id])
    assert (command.command, command.payload) == ("pin", {"checkpoint": "ckp_1", "pinned": True})
    event = as_event(command)
    assert isinstance(event, Pinned)
    assert (event.checkpoint, event.pinned) == ("ckp_1", True)
    pin(sqlite_store, "ckp_1", False)
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], deletes=["ckp_1"]), T0)
    with pytest.raises(Conflict, match="ckp_1 has been deleted"):
        pin(sqlite_store, "ckp_1", True)


@pytest.mark.parametrize(("ask", "for_trials"), [(retry, True), (a_configuration, True), (more_samples, False)])
def test_only_a_continue_that_comes_with_trials_leaves_the_counts_of_limits_alone(
    sqlite_store: Store, ask: Callable[[Store, ExperimentRecord], None], for_trials: bool
) -> None:
    made, epoch, [trial] = begin(sqlite_store)
    trial.state = TrialState.FAILED
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], trials=[trial]), T0 + 1)
    ask(sqlite_store, made)
    event = as_event(sqlite_store.commands.pending([made.id])[-1])
    assert isinstance(event, Commanded)
    assert (event.command, event.for_trials) == ("continue", for_trials)
