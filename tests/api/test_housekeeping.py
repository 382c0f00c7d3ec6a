"""Test that the service deletes old entries of the audit trail, logs, and deliveries of webhooks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.store.examples import T0, a_spec, begin
from tuner.api import create_app, housekeeping
from tuner.api.housekeeping import DAY_S, clean_up
from tuner.domain.batch import Batch
from tuner.domain.keys import trial_id
from tuner.domain.logs import LogChunk
from tuner.domain.states import ExperimentState
from tuner.errors import StoreError
from tuner.experiment.logs import trial_logs
from tuner.settings import Settings
from tuner.store import Store
from tuner.store.service.access import AuditRecord


def call(time: float) -> AuditRecord:
    return AuditRecord(
        time=time, actor="me", token_id=None, method="POST", path="/api/v1/x", status=202, address="10.0.0.1"
    )


def test_old_entries_of_the_trail_are_deleted(store: Store, tmp_path: Path) -> None:
    for age in (3, 2, 1):
        store.access.note(call(T0 - age * DAY_S))
    assert clean_up(store, Settings(home=tmp_path, audit_days=0), T0) == {}
    assert clean_up(store, Settings(home=tmp_path, audit_days=1.5), T0) == {"entries of the audit trail": 2}
    assert [entry.time for _, entry in store.access.trail()] == [T0 - DAY_S]


def test_one_kind_that_fails_does_not_keep_the_others(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sqlite_store.access.note(call(T0 - 3 * DAY_S))

    def fails(*args: object) -> int:
        raise ValueError("not the error of a database")

    def locked() -> None:
        raise StoreError("the database is locked")

    monkeypatch.setattr(sqlite_store.webhooks, "prune", fails)
    monkeypatch.setattr(sqlite_store.logs, "prune", fails)
    monkeypatch.setattr(sqlite_store, "shrink", locked)
    found = clean_up(sqlite_store, Settings(home=tmp_path, audit_days=1, log_days=1), T0)
    assert found == {"entries of the audit trail": 1}
    assert "could not delete old deliveries of webhooks" in caplog.text
    assert "could not release the disk space of deleted data: the database is locked" in caplog.text


def test_logs_of_experiments_that_ended_long_ago_are_deleted(store: Store, tmp_path: Path) -> None:
    found = []
    for name in ("old", "new", "running"):
        made, epoch, trials = begin(store, spec=a_spec(name))
        store.logs.add(made.id, {(0, 1): [LogChunk.of(0, 0, b"printed\n", T0)]})
        if name != "running":
            at = T0 - (3 if name == "old" else 1) * DAY_S
            ended = Batch(log=[], trials=trials, state=ExperimentState.COMPLETED, summary={"reason": "done"})
            store.drivers.commit(made.id, epoch, ended, at)
        found.append(trial_id(made.public_id, 0))
    assert clean_up(store, Settings(home=tmp_path), T0) == {}
    assert clean_up(store, Settings(home=tmp_path, log_days=2), T0) == {"experiments' logs": 1}
    assert [len(store.logs.of_trial(trial)) for trial in found] == [0, 1, 1]
    assert clean_up(store, Settings(home=tmp_path, log_days=2), T0) == {}


def test_files_with_the_output_of_ranks_are_deleted_with_the_logs(store: Store, tmp_path: Path) -> None:
    """The API reads these files when the database has no log, so a deleted log would still be shown."""
    found = {}
    for name in ("old", "new", "running"):
        made, epoch, trials = begin(store, spec=a_spec(name))
        if name != "running":
            at = T0 - (3 if name == "old" else 1) * DAY_S
            ended = Batch(log=[], trials=trials, state=ExperimentState.COMPLETED, summary={"reason": "done"})
            store.drivers.commit(made.id, epoch, ended, at)
        trial = trial_id(made.public_id, 0)
        folder = tmp_path / "logs" / made.public_id / store.trials.get(trial).segments[0].public_id
        folder.mkdir(parents=True)
        (folder / "rank0.log").write_text(f"{name}\n")
        (folder.parent / "driver.log").write_text("driven\n")
        for rank in ("rank0", "rank1"):
            (folder.parent / "trial_00000" / rank).mkdir(parents=True)
        (folder.parent / "trial_00001" / "rank0").mkdir(parents=True)
        (folder.parent / "trial_00000" / "rank1" / "plot.png").touch()
        found[name] = trial
    (tmp_path / "logs" / "exp_of_another_database" / "seg_1").mkdir(parents=True)
    (tmp_path / "logs" / "exp_of_another_database" / "seg_1" / "rank0.log").write_text("other\n")
    settings = Settings(home=tmp_path, log_days=2)
    assert [log.text for log in trial_logs(store, tmp_path, found["old"])] == ["old\n"]
    assert clean_up(store, settings, T0) == {"experiments' logs": 1}
    assert trial_logs(store, tmp_path, found["old"]) == []
    assert [log.text for name in ("new", "running") for log in trial_logs(store, tmp_path, found[name])] == [
        "new\n",
        "running\n",
    ]
    assert len(list(tmp_path.glob("logs/*/driver.log"))) == 3
    assert len(list(tmp_path.glob("logs/*/seg_*"))) == 3, "the empty folder is gone, and that of another database stays"
    old = tmp_path / "logs" / store.trials.get(found["old"]).experiment
    left = {str(path.relative_to(old)) for path in old.rglob("*")}
    assert left == {"driver.log", "trial_00000", "trial_00000/rank1", "trial_00000/rank1/plot.png"}
    assert len(list(tmp_path.glob("logs/*/trial_*/rank*"))) == 1 + 3 + 3, "those of the others stay"
    assert clean_up(store, settings, T0) == {}


def test_a_folder_of_logs_that_is_empty_after_the_deletion_is_removed(store: Store, tmp_path: Path) -> None:
    made, epoch, trials = begin(store, spec=a_spec("old"))
    ended = Batch(log=[], trials=trials, state=ExperimentState.COMPLETED, summary={"reason": "done"})
    store.drivers.commit(made.id, epoch, ended, T0 - 3 * DAY_S)
    folder = tmp_path / "logs" / made.public_id
    (folder / "seg_1").mkdir(parents=True)
    (folder / "seg_1" / "rank0.log").write_text("printed\n")
    assert clean_up(store, Settings(home=tmp_path, log_days=2), T0) == {"experiments' logs": 1}
    assert list((tmp_path / "logs").iterdir()) == []


def test_deliveries_of_webhooks_are_deleted_after_a_month(store: Store, tmp_path: Path) -> None:
    hook = store.webhooks.create("https://example.com/hook", ["experiment.started"]).public_id
    begin(store)
    store.webhooks.collect()
    [due] = store.webhooks.claim(1, 60)
    store.webhooks.delivered(due, 200, now=T0 - 29 * DAY_S)
    assert clean_up(store, Settings(home=tmp_path), T0) == {}
    assert clean_up(store, Settings(home=tmp_path), T0 + 2 * DAY_S) == {"deliveries of webhooks": 1}
    assert store.webhooks.deliveries(hook) == []


async def test_a_running_service_cleans_up(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "EVERY_S", 0.01)
    app = create_app(Settings(home=tmp_path), sqlite_store)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=httpx.ASGITransport(app)):
        for _ in range(2):
            sqlite_store.access.note(call(T0))
            while sqlite_store.access.trail():
                await asyncio.sleep(0.01)
