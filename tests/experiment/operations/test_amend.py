"""Changes by users, continue, archive and delete, on a real database."""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.store.examples import T0, a_report, a_spec, a_trial, begin
from tuner.domain.batch import Batch, Entry
from tuner.domain.decisions import Start
from tuner.domain.events import CheckpointInfo
from tuner.domain.experiment import Spec
from tuner.domain.states import ExperimentState, TrialState
from tuner.errors import CheckpointUnreachable, Conflict, NotFound, SpecError, Stale
from tuner.experiment.operations import removal, usecases
from tuner.experiment.operations.removal import delete_experiment
from tuner.experiment.operations.trials import enqueue
from tuner.experiment.operations.usecases import amend_experiment, archive_experiment, continue_experiment
from tuner.experiment.operations.verbs import act
from tuner.store import ExperimentRecord, Store
from tuner.store import experiments as experiments_of
from tuner.store import removal as tables_of
from tuner.store.commands import DELETION
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.database import Database
from tuner.store.sql.tables import metadata
from tuner.trials.checkpoints.storage import Place

APART = {"bundle", "package", "code", "token", "session", "audit", "webhook", "webhook_delivery", "project"}
"""Tables that do not belong to experiments. Code goes with its last experiment."""


def ended(store: Store, **options: Any) -> ExperimentRecord:
    """Make an experiment with two trials, a report and a log, that has ended."""
    made, epoch, trials = begin(store, 2, spec=a_spec(num_samples=2, **options))
    for trial in trials:
        trial.state = TrialState.COMPLETED
    batch = Batch(
        log=[(6, a_report(0, 1))],
        trials=trials,
        state=ExperimentState.COMPLETED,
        summary={"counts": {"completed": 2}, "reason": "all 2 trials ended"},
    )
    store.drivers.commit(made.id, epoch, batch, T0 + 9)
    store.drivers.release(made.id, epoch)
    return store.experiments.get(made.public_id)


def commands(store: Store, record: ExperimentRecord) -> list[tuple[str, dict[str, Any]]]:
    return [(one.command, dict(one.payload)) for one in store.commands.pending([record.id])]


def test_changes_are_stored_at_once_and_only_the_drivers_part_is_a_command(store: Store) -> None:
    made, _, _ = begin(store, 1, spec=a_spec(num_samples=4, tags={"team": "vision", "old": "x"}))
    record = amend_experiment(
        store,
        made.public_id,
        {
            "name": "wider",
            "notes": "# Why\n",
            "tags": {"old": None, "year": "2026"},
            "num_samples": 9,
            "limits": {"max_concurrent_trials": 3, "stop_grace_s": 10.0},
        },
    )
    assert (record.name, record.spec.notes, record.revision) == ("wider", "# Why\n", 1)
    assert record.spec.tags == {"team": "vision", "year": "2026"}
    assert record.spec.num_samples == 9
    assert record.spec.limits.max_concurrent_trials == 3
    assert record.first_spec == made.spec
    told = {"num_samples": 9, "limits": {"max_concurrent_trials": 3}}  # stop_grace_s is as it was
    assert commands(store, made) == [("amend", told)]
    [command] = store.commands.pending([made.id])
    assert command.reason == "a user changed num_samples from 4 to 9, limits.max_concurrent_trials from None to 3"
    assert [found.public_id for found in store.experiments.named("wider")] == [made.public_id]
    again = amend_experiment(store, made.public_id, {"name": "wider", "num_samples": 9})
    assert (again.revision, len(commands(store, made))) == (1, 1)
    assert amend_experiment(store, made.public_id, {"tags": {"team": None, "year": None}}).spec.tags == {}


def test_a_change_of_another_state_is_refused(sqlite_store: Store) -> None:
    made, _, _ = begin(sqlite_store)
    amend_experiment(sqlite_store, made.public_id, {"notes": "first"}, revision=0)
    with pytest.raises(Stale, match="it is at revision 1, not 0"):
        amend_experiment(sqlite_store, made.public_id, {"notes": "second"}, revision=0)
    assert sqlite_store.experiments.get(made.public_id).spec.notes == "first"


@pytest.mark.parametrize(
    ("changes", "pointer", "message"),
    [
        (
            {"seed": 3},
            "/seed",
            "cannot be changed; only these fields can: name, notes, tags, num_samples, priority, weight, limits, space, assume",
        ),
        ({"limits": {"stop_grace": 3}}, "/limits/stop_grace", "unknown field; did you mean stop_grace_s?"),
        ({"limits": {"stop_grace_s": -3}}, "/limits/stop_grace_s", "expected a number above 0, got -3"),
        ({"limits": {"budget": 3}}, "/limits/budget", "only the freeze_thaw scheduler uses a budget"),
        ({"limits": {"repeats": -1}}, "/limits/repeats", 'expected a number of repeats, 0 or more, or "auto", got -1'),
        ({"num_samples": 0}, "/num_samples", "expected at least 1, got 0"),
        (
            {"num_samples": None},
            "/num_samples",
            ("null needs limits.time_budget_s, because the experiment would never end without it"),
        ),
        ({"name": None}, "/name", "must not be null"),
        ({"name": " "}, "/name", "has no character that can be seen: choose another name"),
        (
            {"name": "exp_0123456789abcdef0123"},
            "/name",
            "has the form of an experiment's id, so it would be taken for one: choose another name",
        ),
        ({"tags": {"a=b": "c"}}, "/tags/a=b", 'has control characters or "="'),
        ({"tags": {str(n): "" for n in range(51)}}, "/tags", "an experiment has at most 50 tags"),
        ({"notes": "a\0b"}, "/notes", "has characters that cannot be stored"),
        ({"notes": "a\ud800b"}, "/notes", "has characters that cannot be stored"),
        ({"tags": {"a": "\ud800"}}, "/tags/a", "has characters that cannot be stored"),
        (
            {"space": {"a": {"type": "choice", "categories": ["\0"]}}},
            "/space/a/categories/0",
            "has characters that cannot be stored",
        ),
    ],
)
def test_mistakes_in_changes(sqlite_store: Store, changes: dict[str, Any], pointer: str, message: str) -> None:
    made, _, _ = begin(sqlite_store, spec=a_spec(num_samples=3))
    with pytest.raises(SpecError) as caught:
        amend_experiment(sqlite_store, made.public_id, changes)
    assert caught.value.errors == [(pointer, message)]


def test_a_time_budget_that_was_added_later_can_be_removed(sqlite_store: Store) -> None:
    """The driver has set the number of trials of a search that was created without any limit, so the search still ends."""
    made, _, _ = begin(sqlite_store, spec=a_spec())
    amend_experiment(sqlite_store, made.public_id, {"limits": {"time_budget_s": 60}})
    assert amend_experiment(sqlite_store, made.public_id, {"limits": {"time_budget_s": None}}).spec == made.spec
    amend_experiment(sqlite_store, made.public_id, {"num_samples": 5, "limits": {"time_budget_s": 60}})
    amend_experiment(sqlite_store, made.public_id, {"num_samples": None})
    with pytest.raises(SpecError, match="null needs num_samples"):
        amend_experiment(sqlite_store, made.public_id, {"limits": {"time_budget_s": None}})


def test_an_ended_experiment_is_continued_by_the_next_driver(store: Store) -> None:
    made = ended(store)
    assert store.drivers.claimable(time.time()) == []
    record = continue_experiment(store, made.public_id, 3, adopt=True)
    assert (record.spec.num_samples, record.source) == (5, "adopted")
    assert commands(store, made) == [("amend", {"num_samples": 5}), ("continue", {})]
    assert [found.id for found in store.drivers.claimable(time.time())] == [made.id]
    epoch = store.drivers.claim(made.id, "next", 60.0, time.time())
    waiting = [one.id for one in store.commands.pending([made.id])]
    batch = Batch(log=[], state=ExperimentState.RUNNING, summary={"error": None, "reason": ""}, commands=waiting)
    store.drivers.commit(made.id, epoch, batch, T0 + 20)
    running = store.experiments.get(made.public_id)
    assert (running.state, running.ended_at, running.error, running.reason) == ("running", None, None, "")
    assert continue_experiment(store, made.public_id, 1).spec.num_samples == 6
    assert commands(store, made) == [("amend", {"num_samples": 6}), ("continue", {})]


def test_more_of_a_grid_without_num_samples_is_another_pass(sqlite_store: Store) -> None:
    made = ended(sqlite_store, space={"x": {"type": "grid", "values": [1, 2]}}, search={"type": "grid"})
    sqlite_store.experiments.change(made.id, {"num_samples": None})
    assert continue_experiment(sqlite_store, made.public_id, 1).spec.num_samples == 2


def test_only_trials_that_the_search_started_count_as_samples_so_far(store: Store) -> None:
    made, epoch, (trial,) = begin(store, 1, spec=a_spec())
    more = [
        Start(reason="enqueued by a user", params={"lr": 0.02}, number=1, asked=True),
        Start(reason="retry of trial 0", params={"lr": 0.01}, number=2, asked=True),
        Start(reason="a repeat", params={"lr": 0.01}, number=3, repeat_of=0),
        Start(reason="one more", params={"lr": 0.03}, number=4),
    ]
    trials = [trial, *(a_trial(number) for number in range(1, 5))]
    for one in trials:
        one.state = TrialState.COMPLETED
    log: list[Entry] = list(enumerate(more, start=4))
    summary = {"counts": {"completed": 5}, "reason": "by a user"}
    batch = Batch(log=log, trials=trials, state=ExperimentState.CANCELLED, summary=summary)
    store.drivers.commit(made.id, epoch, batch, T0 + 9)
    assert continue_experiment(store, made.public_id, 5).spec.num_samples == 2 + 5


def test_changes_at_the_same_time_are_all_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second request changes the experiment after the first one has read it."""
    made, _, _ = begin(store, 1, spec=a_spec(num_samples=4))
    really, between = usecases.parse_changes, [{"tags": {"b": "2"}, "num_samples": 9}]  # type: ignore[attr-defined]

    def parse_changes(spec: Spec, data: Any, **more: Any) -> dict[str, Any]:
        found = really(spec, data, **more)
        if between:
            amend_experiment(store, made.public_id, between.pop())
        return found

    monkeypatch.setattr(usecases, "parse_changes", parse_changes)
    record = amend_experiment(store, made.public_id, {"tags": {"a": "1"}})
    assert (record.spec.tags, record.spec.num_samples, record.revision) == ({"a": "1", "b": "2"}, 9, 2)
    assert commands(store, made) == [("amend", {"num_samples": 9})]
    between.append({"notes": "meanwhile"})
    with pytest.raises(Stale):
        amend_experiment(store, made.public_id, {"notes": "mine"}, revision=2)
    assert store.experiments.get(made.public_id).spec.notes == "meanwhile"


def test_samples_that_are_added_at_the_same_time_add_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ended(store)
    really, between = usecases._samples_so_far, [5]

    def samples_so_far(store: Store, record: ExperimentRecord) -> int:
        found = really(store, record)
        if between:
            continue_experiment(store, made.public_id, between.pop())
        return found

    monkeypatch.setattr(usecases, "_samples_so_far", samples_so_far)
    assert continue_experiment(store, made.public_id, 3).spec.num_samples == 2 + 5 + 3


@pytest.mark.postgres
def test_a_change_that_another_process_overtakes_is_not_lost(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process commits after this one has read the row and before it writes it."""
    with Store.open(postgres_url) as store, Store.open(postgres_url) as other:
        made, _, _ = begin(store, 1, spec=a_spec(num_samples=4))
        really, between = experiments_of.clean, [{"tags": {"b": "2"}, "num_samples": 7}]  # type: ignore[attr-defined]

        def clean(text: str) -> str | None:
            if between:
                other.experiments.change(made.id, between.pop(0))
            return really(text)

        monkeypatch.setattr(experiments_of, "clean", clean)
        with pytest.raises(Stale):
            store.experiments.change(made.id, {"tags": {"a": "1"}}, commands=[("amend", "by a test", {})])
        assert not store.commands.pending([made.id])
        between[:] = [{"tags": {"c": "3"}}]
        record = amend_experiment(store, made.public_id, {"tags": {"a": "1"}, "limits": {"max_concurrent_trials": 3}})
        assert (record.spec.tags, record.spec.num_samples) == ({"a": "1", "c": "3"}, 7)
        assert commands(store, made) == [("amend", {"limits": {"max_concurrent_trials": 3}})]


def test_archived_experiments_are_hidden_and_kept(sqlite_store: Store) -> None:
    running, _, _ = begin(sqlite_store)
    made = ended(sqlite_store)
    with pytest.raises(Conflict, match="is running and cannot be archived before it has ended"):
        archive_experiment(sqlite_store, running.public_id, True)
    archived = archive_experiment(sqlite_store, made.public_id, True)
    assert archive_experiment(sqlite_store, made.public_id, True).archived_at == archived.archived_at is not None

    def listed(archived: bool | None) -> list[str]:
        return [one.public_id for one in sqlite_store.experiments.page(archived=archived).items]

    assert listed(False) == [running.public_id]
    assert listed(True) == [made.public_id]
    assert listed(None) == [made.public_id, running.public_id]
    archive_experiment(sqlite_store, made.public_id, False)
    assert listed(False) == [made.public_id, running.public_id]


@pytest.mark.parametrize("how", ["continue", "enqueue"])
def test_an_archived_experiment_that_runs_again_is_listed(sqlite_store: Store, how: str) -> None:
    """`tuner ls --state running` and the page did not show it, so that nobody saw what used the machine."""
    made = ended(sqlite_store)
    archive_experiment(sqlite_store, made.public_id, True)
    if how == "continue":
        continue_experiment(sqlite_store, made.public_id, 2)
    else:
        enqueue(sqlite_store, made.public_id, [{"lr": 0.01}])
    assert [one.public_id for one in sqlite_store.experiments.page(archived=False).items] == [made.public_id]


@pytest.mark.parametrize("how", ["continue", "enqueue"])
def test_an_experiment_that_is_about_to_run_again_cannot_be_archived(store: Store, how: str) -> None:
    """Its driver started later, and then it ran without being listed."""
    made = ended(store)
    if how == "continue":
        continue_experiment(store, made.public_id, 2)
    else:
        enqueue(store, made.public_id, [{"lr": 0.01}])
    with pytest.raises(Conflict, match=f"{made.public_id} is about to run again and cannot be archived"):
        archive_experiment(store, made.public_id, True)
    assert [one.public_id for one in store.experiments.page(archived=False).items] == [made.public_id]


def test_tags_find_experiments(store: Store) -> None:
    one = store.experiments.create(a_spec(tags={"team": "vision", "Größe": 'a "b"'}))
    two = store.experiments.create(a_spec(tags={"team": "audio", "note": '"team":"vision"'}))

    def found(*tags: str) -> list[str]:
        return [record.public_id for record in store.experiments.page(tags=tags).items]

    assert found("team") == [two.public_id, one.public_id]
    assert found("team=vision") == found("team", 'Größe=a "b"') == [one.public_id]
    assert found("TEAM") == found("team=vis") == found("team", "x") == []


def test_deleting_leaves_nothing_behind_and_takes_short_transactions(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other writers waited until a single transaction had deleted the whole log: with millions of reports, for a minute."""
    monkeypatch.setattr(tables_of, "AT_ONCE", 1)
    monkeypatch.setattr(tables_of, "ROWS_AT_ONCE", 2)
    kept, gone = ended(store), ended(store)
    for name in (kept.public_id, gone.public_id):
        for folder in ("checkpoints", "logs", "callbacks"):
            (tmp_path / folder / name / "seg").mkdir(parents=True)
            (tmp_path / folder / name / "seg" / "file").write_text("x")
    before = counted(store)
    counts = [before]
    write = Database.write

    @contextlib.contextmanager
    def noted(database: Database) -> Iterator[Cursor]:
        with write(database) as cursor:
            yield cursor
        counts.append(counted(store))

    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", noted)
        delete_experiment(store, gone.public_id, storage=str(tmp_path / "checkpoints"), home=tmp_path)
    deleted = {name: max(one[name] - then[name] for one, then in itertools.pairwise(counts)) for name in before}
    assert (deleted["segment"], deleted["event"]) == (1, 2)
    with pytest.raises(NotFound):
        store.experiments.get(gone.public_id)
    assert [path.parent.name for path in tmp_path.glob("*/exp_*/seg")] == [kept.public_id] * 3
    assert counted(store) == {table: count / 2 for table, count in before.items()}
    assert len(store.trials.page(kept.id).items) == 2


def test_webhooks_are_told_of_the_end_of_an_experiment_that_is_deleted_by_force(store: Store, tmp_path: Path) -> None:
    """The service looks once a second, and did not find the experiment any more."""
    hook = store.webhooks.create("https://example.com/hook", ["experiment.cancelled"])
    made, _, _ = begin(store)
    delete_experiment(store, made.public_id, storage=str(tmp_path), home=tmp_path, force=True)
    [told] = store.webhooks.deliveries(hook.public_id)
    assert (told.event, told.experiment, told.state) == ("experiment.cancelled", made.public_id, "pending")
    store.webhooks.prune(time.time())
    [due] = store.webhooks.claim(10, 60)
    assert due.data["experiment"]["state"] == "cancelled"


def test_webhooks_are_not_told_of_the_end_of_an_experiment_whose_storage_refuses_the_deletion(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that looked meanwhile said that the experiment was cancelled, which then was paused as before."""
    hook = store.webhooks.create("https://example.com/hook", ["experiment.cancelled"])
    made, _, _ = begin(store)

    def remove(self: Place) -> None:
        store.webhooks.collect()
        raise OSError("the bucket does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Place, "remove", remove)
        with pytest.raises(Conflict, match="does not answer"):
            delete_experiment(store, made.public_id, storage=str(tmp_path), home=tmp_path, force=True)
    store.webhooks.collect()
    assert store.webhooks.deliveries(hook.public_id) == []
    delete_experiment(store, made.public_id, storage=str(tmp_path), home=tmp_path, force=True)
    assert [one.event for one in store.webhooks.deliveries(hook.public_id)] == ["experiment.cancelled"]


def test_a_deletion_that_was_interrupted_can_be_repeated_at_once(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ended(sqlite_store)
    places: dict[str, Any] = {"storage": str(tmp_path), "home": tmp_path, "wait_s": 0.0}
    with monkeypatch.context() as patch:

        def remove(self: Place) -> None:
            raise KeyboardInterrupt

        patch.setattr(Place, "remove", remove)
        with pytest.raises(KeyboardInterrupt):
            delete_experiment(sqlite_store, made.public_id, **places)
    assert sqlite_store.experiments.get(made.public_id).driver_owner == DELETION
    with pytest.raises(Conflict):
        sqlite_store.drivers.claim(made.id, "a driver", 60.0, time.time())
    monkeypatch.setattr(removal, "QUIET_S", 0.2)
    with monkeypatch.context() as patch:

        def refuse(self: Place) -> None:
            raise OSError("the bucket does not answer")

        patch.setattr(Place, "remove", refuse)
        with pytest.raises(Conflict, match="does not answer"):
            delete_experiment(sqlite_store, made.public_id, **places)
    act(sqlite_store, "continue", made.public_id)  # no deletion holds it any more
    monkeypatch.setattr(removal, "QUIET_S", math.inf)
    delete_experiment(sqlite_store, made.public_id, **places)
    assert sqlite_store.experiments.page(archived=None).items == ()


def test_a_deletion_that_the_storage_refuses_leaves_the_experiment_as_it_was(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For ten minutes, no command was taken, and an experiment that was paused counted as cancelled from then on."""

    def remove(self: Place) -> None:
        raise OSError("When listing objects: the bucket does not answer")

    paused, epoch, trials = begin(store)
    for state in (ExperimentState.PAUSING, ExperimentState.PAUSED):
        store.drivers.commit(paused.id, epoch, Batch(log=[], trials=trials, state=state), T0)
    store.drivers.release(paused.id, epoch)
    killed = ended(store)  # its driver was killed before it had deleted the checkpoints that it had decided to delete
    act(store, "continue", killed.public_id)
    store.drivers.claim(killed.id, "a dead driver", 60.0, T0)
    before = [store.experiments.get(made.public_id) for made in (paused, killed)]
    monkeypatch.setattr(Place, "remove", remove)
    for record in before:
        with pytest.raises(Conflict, match=r"cannot be deleted: .* does not answer; try again later"):
            delete_experiment(store, record.public_id, storage=str(tmp_path), home=tmp_path, force=True)
        after = store.experiments.get(record.public_id)
        assert after == replace(record, driver_epoch=record.driver_epoch + 1)
    assert refused_twice(store, paused, tmp_path, monkeypatch) == [ExperimentState.PAUSED] * 2
    act(store, "resume", paused.public_id)
    continue_experiment(store, killed.public_id, 4)
    assert {record.id for record in store.drivers.claimable(time.time())} == {paused.id, killed.id}


def test_a_refused_deletion_says_that_it_has_killed_the_experiment(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _, trials = begin(sqlite_store)
    epoch = sqlite_store.drivers.claim(made.id, "a driver", 600.0, time.time())

    def drive() -> None:
        for state in (ExperimentState.CANCELLING, ExperimentState.CANCELLED):
            sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials, state=state), time.time())
        sqlite_store.drivers.release(made.id, epoch)

    def remove(self: Place) -> None:
        raise OSError("the bucket does not answer")

    monkeypatch.setattr(Place, "remove", remove)
    expected = rf"{made.public_id} has been killed and is cancelled now, but the checkpoints in .* cannot be deleted: the bucket"
    with pytest.raises(Conflict, match=expected):
        delete_experiment(sqlite_store, made.public_id, storage=str(tmp_path), home=tmp_path, force=True, poke=drive)
    assert sqlite_store.experiments.get(made.public_id).state == ExperimentState.CANCELLED


def refused_twice(
    store: Store, made: ExperimentRecord, home: Path, monkeypatch: pytest.MonkeyPatch
) -> list[ExperimentState]:
    """Force two deletions at once that the storage refuses, and return the state of the experiment after each refusal."""
    states: list[ExperimentState] = []

    def delete() -> None:
        with pytest.raises(Conflict, match="does not answer"):
            delete_experiment(store, made.public_id, storage=str(home), home=home, force=True)
        states.append(store.experiments.get(made.public_id).state)

    def remove(self: Place) -> None:
        if not second:
            second.append(pool.submit(delete))
            until_renewed(store, made)
        raise OSError("When listing objects: the bucket does not answer")

    second: list[Future[None]] = []
    monkeypatch.setattr(Place, "remove", remove)
    monkeypatch.setattr(removal, "RENEW_S", 0.02)
    with ThreadPoolExecutor(1) as pool:
        delete()
        second[0].result()
    return states


def until_renewed(store: Store, made: ExperimentRecord) -> None:
    """Wait until the deletion of an experiment has renewed its lease often, while another call saw that."""
    leases = set()
    end = time.monotonic() + 30
    while len(leases) < 20:
        assert time.monotonic() < end
        leases.add(store.experiments.get(made.public_id).lease_until)
        time.sleep(0.005)


def test_a_deletion_that_takes_longer_than_its_lease_goes_on_alone(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user continued the experiment, and the rows of its new trials were deleted while they ran."""
    made = ended(sqlite_store)
    monkeypatch.setattr(removal, "RENEW_S", 0.01)
    removed: list[str] = []
    places: dict[str, Any] = {"storage": str(tmp_path), "home": tmp_path}
    now, late_s = time.time, 2 * tables_of.LEASE_S

    def remove(self: Place) -> None:
        removed.append(self.uri)
        if again:
            return  # the first one has begun to delete rows, which the second one may do, too
        again.append(pool.submit(delete_experiment, sqlite_store, made.public_id, **places))
        monkeypatch.setattr(time, "time", lambda: now() + late_s)
        until_renewed(sqlite_store, made)
        with pytest.raises(Conflict, match="is being deleted"):
            act(sqlite_store, "continue", made.public_id)
        assert len(removed) == 1

    again: list[Future[None]] = []
    monkeypatch.setattr(Place, "remove", remove)
    with ThreadPoolExecutor(1) as pool:
        delete_experiment(sqlite_store, made.public_id, **places)
        again[0].result()
    with pytest.raises(NotFound):
        sqlite_store.experiments.get(made.public_id)


def test_a_second_deletion_is_refused_while_the_first_one_takes_long(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ended(sqlite_store)
    assert sqlite_store.experiments.seize(made.id)
    sleep = time.sleep

    def renewing(seconds: float) -> None:
        sleep(seconds)
        assert sqlite_store.experiments.keep_seized(made.id)

    monkeypatch.setattr(removal, "QUIET_S", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", renewing)
        with pytest.raises(Conflict, match=f"another call is still deleting {made.public_id}"):
            delete_experiment(sqlite_store, made.public_id, storage=str(tmp_path), home=tmp_path, wait_s=0.0)
    assert sqlite_store.experiments.get(made.public_id).driver_epoch == made.driver_epoch + 1


def test_a_deletion_whose_lease_has_ended_deletes_no_rows(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine was suspended while it deleted files, and a user continued the experiment."""
    made = ended(sqlite_store)
    later = time.time() + 2 * tables_of.LEASE_S

    def remove(self: Place) -> None:
        sqlite_store.commands.add(made.id, "continue", now=later)
        sqlite_store.drivers.claim(made.id, "a driver", 60.0, later)

    monkeypatch.setattr(Place, "remove", remove)
    with pytest.raises(Conflict, match="was continued while its checkpoints were being deleted"):
        delete_experiment(sqlite_store, made.public_id, storage=str(tmp_path), home=tmp_path)
    assert sqlite_store.experiments.get(made.public_id).driver_owner == "a driver"
    assert sqlite_store.log.events_after(made.id, 0)


def test_an_experiment_that_is_being_deleted_takes_no_commands(store: Store) -> None:
    """`tuner continue` waited for ten minutes for a driver that it took for another one."""
    made = ended(store)
    store.experiments.seize(made.id, made.driver_epoch)  # the deletion is killed just after this
    refused: list[Callable[[], object]] = [
        lambda: continue_experiment(store, made.public_id, 4),
        lambda: act(store, "continue", made.public_id),
        lambda: enqueue(store, made.public_id, [{"lr": 0.01}]),
    ]
    for request in refused:
        with pytest.raises(Conflict, match="is being deleted; if the deletion was interrupted, delete it again"):
            request()
    assert commands(store, made) == []


def test_checkpoints_that_were_stored_where_the_setting_no_longer_points_are_deleted_too(
    sqlite_store: Store, tmp_path: Path
) -> None:
    made, epoch, trials = begin(sqlite_store)
    saved = tmp_path / "before" / made.public_id / "trial_00000" / "iteration_00000001_ab"
    other = tmp_path / "before" / "exp_other" / "trial_00000" / "iteration_00000001_cd"
    for folder in (saved, other):
        folder.mkdir(parents=True)
        (folder / "model.pt").write_text("x")
    report = replace(a_report(0, 1), checkpoint=CheckpointInfo(id="ckp_1", uri=str(saved), step=1, bytes=1))
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[(4, report)], trials=trials), T0)
    sqlite_store.drivers.release(made.id, epoch)
    delete_experiment(sqlite_store, made.public_id, storage=str(tmp_path / "now"), home=tmp_path, force=True)
    assert [path.name for path in (tmp_path / "before").iterdir()] == ["exp_other"]
    assert (other / "model.pt").exists()


def test_a_deletion_in_a_copy_of_a_home_leaves_the_checkpoints_of_the_home(sqlite_store: Store, tmp_path: Path) -> None:
    made, epoch, trials = begin(sqlite_store)
    home, copy = tmp_path / "home", tmp_path / "copy"
    below = Path("checkpoints", made.public_id, "trial_00000", "iteration_00000001_ab")
    for each in (home, copy):
        (each / below).mkdir(parents=True)
        (each / "tuner.db").touch()
    report = replace(a_report(0, 1), checkpoint=CheckpointInfo(id="ckp_1", uri=str(home / below), step=1, bytes=1))
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[(4, report)], trials=trials), T0)
    sqlite_store.drivers.release(made.id, epoch)
    delete_experiment(sqlite_store, made.public_id, storage=str(copy / "checkpoints"), home=copy, force=True)
    assert (home / below).exists()
    assert list((copy / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("dangling", [False, True])
def test_a_deletion_follows_a_link_to_another_disk(sqlite_store: Store, tmp_path: Path, dangling: bool) -> None:
    made = ended(sqlite_store)
    folder, moved = tmp_path / "checkpoints", tmp_path / "large" / made.public_id
    folder.mkdir()
    if not dangling:
        (moved / "trial_00000").mkdir(parents=True)
    (folder / made.public_id).symlink_to(moved)
    delete_experiment(sqlite_store, made.public_id, storage=str(folder), home=tmp_path)
    assert list(folder.iterdir()) == []
    assert not moved.exists()


def test_a_deletion_in_a_copy_of_a_storage_leaves_the_checkpoints_of_the_original(
    sqlite_store: Store, tmp_path: Path
) -> None:
    made, epoch, trials = begin(sqlite_store)
    original, copied = (
        tmp_path / home / made.public_id / "trial_00000" / "iteration_00000001_ab" for home in ("before", "copy")
    )
    for folder in (original, copied):
        folder.mkdir(parents=True)
    report = replace(a_report(0, 1), checkpoint=CheckpointInfo(id="ckp_1", uri=str(original), step=1, bytes=1))
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[(4, report)], trials=trials), T0)
    sqlite_store.drivers.release(made.id, epoch)
    delete_experiment(sqlite_store, made.public_id, storage=str(tmp_path / "copy"), home=tmp_path, force=True)
    assert original.exists()
    assert not copied.exists()


def test_an_experiment_whose_storage_does_not_respond_is_not_deleted_but_can_be_hidden(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was deleted if the storage did not even tell its region, and the checkpoints stayed."""
    made = ended(sqlite_store)

    def place(uri: str) -> None:
        raise CheckpointUnreachable(f"{uri} does not respond")

    monkeypatch.setattr("tuner.experiment.operations.removal.place", place)
    with pytest.raises(
        Conflict, match=r"does not respond; try again later, .* hide the experiment with `tuner archive`"
    ):
        delete_experiment(sqlite_store, made.public_id, storage="s3://bucket", home=tmp_path)
    archive_experiment(sqlite_store, made.public_id, True)
    assert sqlite_store.experiments.page(archived=False).items == ()


def test_an_experiment_with_a_mistyped_storage_can_be_deleted(sqlite_store: Store, tmp_path: Path) -> None:
    made = ended(sqlite_store)
    delete_experiment(sqlite_store, made.public_id, storage="s4://bucket", home=tmp_path)
    assert sqlite_store.experiments.page(archived=None).items == ()


def test_checkpoints_on_a_share_that_is_not_mounted_are_not_said_to_be_deleted(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stayed on the share, and nothing referred to them any more."""
    share = tmp_path / "share"
    share.mkdir()
    made, epoch, trials = begin(sqlite_store)
    uri = str(share / made.public_id / "trial_00000" / "iteration_00000001_ab")
    report = replace(a_report(0, 1), checkpoint=CheckpointInfo(id="ckp_1", uri=uri, step=1, bytes=1))
    end = Batch(log=[(4, report)], trials=trials, state=ExperimentState.COMPLETED)
    sqlite_store.drivers.commit(made.id, epoch, end, T0)
    sqlite_store.drivers.release(made.id, epoch)
    places: dict[str, Any] = {"storage": str(share), "home": tmp_path / "home"}
    for _ in range(2):
        with pytest.raises(Conflict, match=f"there is nothing in {share}: mount its disk or share, or create"):
            delete_experiment(sqlite_store, made.public_id, **places)
        share.rmdir() if share.exists() else None
    (share / made.public_id).mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_store.experiments, "remove", lambda _: 1 / 0)  # it is killed before it deletes the rows
        with pytest.raises(ZeroDivisionError):
            delete_experiment(sqlite_store, made.public_id, **places)
    assert list(share.iterdir()) == []
    delete_experiment(sqlite_store, made.public_id, **places)
    assert sqlite_store.experiments.page(archived=None).items == ()


@pytest.mark.parametrize(("code", "is_deleted"), [(errno.EACCES, True), (errno.ENOTCONN, False)])
def test_a_former_storage_that_cannot_be_looked_into_is_of_another_user_or_does_not_respond(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_deleted: bool
) -> None:
    """The deletion ended with a traceback: nobody could delete an experiment in a copy of the home of another user."""
    uri, made = saved_at(sqlite_store, tmp_path / "other" / "checkpoints")
    stat = os.stat

    def look(path: Any, **options: Any) -> os.stat_result:
        if str(path) == str(tmp_path / "other" / "tuner.db"):
            raise OSError(code, os.strerror(code), str(path))
        return stat(path, **options)

    refused = contextlib.nullcontext() if is_deleted else pytest.raises(Conflict, match="cannot be deleted: .*endpoint")
    with monkeypatch.context() as patch, refused:
        patch.setattr(os, "stat", look)
        delete_experiment(sqlite_store, made.public_id, storage=str(tmp_path / "checkpoints"), home=tmp_path)
    assert bool(sqlite_store.experiments.page().items) is not is_deleted
    assert uri.exists(), "its owner still needs it" if is_deleted else "the deletion was refused"


def test_a_share_whose_connection_is_lost_refuses_the_deletion(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion ended with a traceback."""
    share = tmp_path / "share"
    uri, made = saved_at(sqlite_store, share)
    shutil.rmtree(share)

    def listdir(path: str) -> list[str]:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected", path)

    monkeypatch.setattr(os, "listdir", listdir)
    with pytest.raises(Conflict, match=f"in {share}/{made.public_id} cannot be deleted: .*endpoint is not connected"):
        delete_experiment(sqlite_store, made.public_id, storage=str(share), home=tmp_path / "home")
    assert not uri.exists()
    assert sqlite_store.experiments.get(made.public_id).driver_owner is None, "it can still be continued"


def test_checkpoints_on_the_disk_of_an_agent_do_not_keep_an_experiment_from_being_deleted(
    sqlite_store: Store, tmp_path: Path
) -> None:
    """The deletion was refused until somebody made a folder on the machine of the service, whose storage nobody had used."""
    _, made = saved_at(sqlite_store, tmp_path / "agent", executor="agents")
    shutil.rmtree(tmp_path / "agent")
    delete_experiment(sqlite_store, made.public_id, storage=str(tmp_path / "unused"), home=tmp_path / "home")
    assert sqlite_store.experiments.page().items == ()
    _, made = saved_at(sqlite_store, tmp_path / "share", executor="agents")
    shutil.rmtree(tmp_path / "share")
    with pytest.raises(Conflict, match="mount its disk or share"):
        delete_experiment(sqlite_store, made.public_id, storage=str(tmp_path / "share"), home=tmp_path / "home")


def test_a_deletion_calls_no_host_that_an_agent_has_named(sqlite_store: Store, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as host:
        made, epoch, trials = begin(sqlite_store, spec=a_spec(executor="agents"))
        query = f"?region=eu-1&scheme=http&endpoint_override=127.0.0.1:{host.getsockname()[1]}"
        info = CheckpointInfo(id="ckp_1", uri=f"s3://b/{made.public_id}/trial_00000/one{query}", step=1, bytes=1)
        batch = Batch(log=[(4, replace(a_report(0, 1), checkpoint=info))], trials=trials)
        sqlite_store.drivers.commit(made.id, epoch, batch, T0)
        sqlite_store.drivers.release(made.id, epoch)
        host.setblocking(False)
        with ThreadPoolExecutor(1) as threads:
            deleted = threads.submit(
                delete_experiment, sqlite_store, made.public_id, storage=str(tmp_path), home=tmp_path, force=True
            )
            while not deleted.done():
                with contextlib.suppress(BlockingIOError):
                    with host.accept()[0] as caller:
                        caller.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    pytest.fail("it was called")
                wait([deleted], timeout=0.01)
        deleted.result()


def saved_at(store: Store, storage: Path, **options: Any) -> tuple[Path, ExperimentRecord]:
    """Create an experiment that has ended, with one checkpoint in this storage."""
    made, epoch, trials = begin(store, spec=a_spec(**options))
    uri = storage / made.public_id / "trial_00000" / "iteration_00000001_ab"
    uri.mkdir(parents=True)
    report = replace(a_report(0, 1), checkpoint=CheckpointInfo(id="ckp_1", uri=str(uri), step=1, bytes=1))
    end = Batch(log=[(4, report)], trials=trials, state=ExperimentState.COMPLETED)
    store.drivers.commit(made.id, epoch, end, T0)
    store.drivers.release(made.id, epoch)
    return uri, store.experiments.get(made.public_id)


def test_checkpoints_that_cannot_be_deleted_are_not_said_to_be(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ended(sqlite_store)
    folder = tmp_path / "checkpoints" / made.public_id
    folder.mkdir(parents=True)
    places: dict[str, Any] = {"storage": str(tmp_path / "checkpoints"), "home": tmp_path}

    def rmtree(path: str, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(13, "Permission denied", "model.pt")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", rmtree)
        with pytest.raises(Conflict, match=r"cannot be deleted: .*Permission denied: 'model.pt'; try again later"):
            delete_experiment(sqlite_store, made.public_id, **places)
    assert sqlite_store.experiments.get(made.public_id).public_id == made.public_id
    delete_experiment(sqlite_store, made.public_id, **places)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("error", "is_deleted"),
    [
        (
            OSError("When resolving region for bucket 'b': AWS Error NETWORK_CONNECTION during HeadBucket operation"),
            False,
        ),
        (ModuleNotFoundError("No module named 's3fs'"), False),
        (OSError("Bucket 'b' not found"), True),
    ],
)
def test_checkpoints_in_a_storage_that_cannot_be_used_now_are_not_said_to_be_deleted(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, is_deleted: bool
) -> None:
    """They stayed in the bucket, and nothing referred to them any more."""
    from pyarrow import fs

    class Unusable:
        @staticmethod
        def from_uri(uri: str) -> None:
            raise error

    made = ended(sqlite_store)
    monkeypatch.setattr(fs, "FileSystem", Unusable)
    refused = (
        contextlib.nullcontext() if is_deleted else pytest.raises(Conflict, match="cannot be deleted: .*; try again")
    )
    with refused:
        delete_experiment(sqlite_store, made.public_id, storage="s3://b/unusable", home=tmp_path)
    assert bool(sqlite_store.experiments.page().items) is not is_deleted


def counted(store: Store) -> dict[str, float]:
    with store._database.read() as connection:
        return {
            name: float(connection.exec_driver_sql(f"SELECT COUNT(*) FROM {name}").scalar() or 0)
            for name in metadata.tables
            if name not in APART
        }


def test_every_table_with_rows_of_an_experiment_is_known_to_the_deletion() -> None:
    """A new table that belongs to experiments has to be deleted with them."""
    known = {*tables_of.OF_SEGMENTS, *tables_of.OF_KEYS, *tables_of.OF_EXPERIMENTS, "segment", "experiment"}
    assert known | APART == set(metadata.tables)


def test_a_running_experiment_is_deleted_only_by_force(sqlite_store: Store, tmp_path: Path) -> None:
    made, epoch, _ = begin(sqlite_store)
    places: dict[str, Any] = {"storage": str(tmp_path), "home": tmp_path}
    with pytest.raises(Conflict, match="is running; end it before you delete it, or force the deletion"):
        delete_experiment(sqlite_store, made.public_id, **places)
    sqlite_store.drivers.renew(made.id, epoch, 60.0, time.time())
    poked: list[str] = []
    with pytest.raises(Conflict, match="has not released it yet"):
        delete_experiment(
            sqlite_store, made.public_id, force=True, poke=lambda: poked.append("poke"), wait_s=0.0, **places
        )
    assert (poked, commands(sqlite_store, made)) == (["poke"], [("kill", {})])
    sqlite_store.drivers.release(made.id, epoch)
    with pytest.raises(Stale):
        delete_experiment(sqlite_store, made.public_id, force=True, revision=7, **places)
    delete_experiment(sqlite_store, made.public_id, force=True, **places)
    assert sqlite_store.experiments.page(archived=None).items == ()


def test_an_experiment_that_a_driver_claims_during_its_deletion_is_killed(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion waited for the driver, which had not been told of it, and the experiment ran on."""
    made = sqlite_store.experiments.create(a_spec())
    get, epochs = sqlite_store.experiments.get, [0]

    def claimed_afterwards(public_id: str) -> ExperimentRecord:
        found = get(public_id)
        if len(epochs) == 1:
            epochs.append(sqlite_store.drivers.claim(made.id, "a driver", 60.0, time.time()))
        return found

    def end() -> None:
        poked.append("poke")
        assert commands(sqlite_store, made) == [("kill", {})]
        batch = Batch(log=[], state=ExperimentState.CANCELLED, summary={"reason": "killed"})
        sqlite_store.drivers.commit(made.id, epochs[-1], batch, time.time())
        sqlite_store.drivers.release(made.id, epochs[-1])

    poked: list[str] = []
    monkeypatch.setattr(sqlite_store.experiments, "get", claimed_afterwards)
    delete_experiment(
        sqlite_store, made.public_id, storage=str(tmp_path), home=tmp_path, force=True, poke=end, wait_s=30.0
    )
    assert poked == ["poke"]
    assert sqlite_store.experiments.page(archived=None).items == ()
