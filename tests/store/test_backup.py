"""Backups of SQLite databases: made in use, put back, and refused if they would destroy something."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.store.examples import T0, a_report, a_spec, begin
from tuner.cli.commands import app
from tuner.domain.batch import Batch
from tuner.errors import Conflict, SpecError, StoreError
from tuner.store import Store
from tuner.store.access import Role
from tuner.store.backup import backup, restore


@pytest.fixture
def other_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'other' / 'tuner.db'}"


def test_a_database_in_use_comes_back_as_it_was(
    sqlite_store: Store, sqlite_url: str, other_url: str, tmp_path: Path
) -> None:
    made, epoch, trials = begin(sqlite_store)
    secret, token = sqlite_store.access.create_token("ci", Role.ADMIN)
    assert backup(sqlite_url, tmp_path / "copy") > 0
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[(4, a_report(0, 1))], trials=trials), T0 + 2)
    later = sqlite_store.experiments.create(a_spec("later"))
    assert [path.name for path in tmp_path.glob("*copy*")] == ["copy"], "one file, and no partial one"
    restore(other_url, tmp_path / "copy")
    with Store.open(other_url) as store:
        store.migrate()
        assert [one.public_id for one in store.experiments.page().items] == [made.public_id]
        assert store.experiments.get(made.public_id).last_event_seq == 3
        assert store.trials.page(made.id).items[0].params == {"lr": 0.01}
        assert store.access.token_of(secret) == token
    assert sqlite_store.experiments.get(later.public_id).name == "later", "the source is as before"


def test_nothing_is_replaced_by_mistake(sqlite_store: Store, sqlite_url: str, tmp_path: Path) -> None:
    begin(sqlite_store)
    copy = tmp_path / "copy"
    backup(sqlite_url, copy)
    with pytest.raises(Conflict, match="exists already"):
        backup(sqlite_url, copy)
    later = sqlite_store.experiments.create(a_spec("later"))
    with pytest.raises(Conflict, match="--force"):
        restore(sqlite_url, copy)
    assert sqlite_store.experiments.get(later.public_id).name == "later"
    sqlite_store.close()
    restore(sqlite_url, copy, force=True)
    with Store.open(sqlite_url) as store:
        assert [one.name for one in store.experiments.page().items] == ["digits"]


@pytest.mark.parametrize("content", [b"", b"not a database", b"SQLite format 3\0" + b"x" * 5000])
def test_a_file_that_is_no_backup_is_refused(other_url: str, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "copy").write_bytes(content)
    with pytest.raises(StoreError):
        restore(other_url, tmp_path / "copy")
    assert not Path(other_url.removeprefix("sqlite:///")).exists()


def test_a_torn_backup_is_refused(sqlite_store: Store, sqlite_url: str, other_url: str, tmp_path: Path) -> None:
    begin(sqlite_store)
    backup(sqlite_url, tmp_path / "copy")
    whole = (tmp_path / "copy").read_bytes()
    (tmp_path / "copy").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError):
        restore(other_url, tmp_path / "copy")


def test_postgresql_has_its_own_tools(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="pg_dump"):
        backup("postgresql://box/tuner", tmp_path / "copy")
    with pytest.raises(StoreError, match="no database"):
        backup(f"sqlite:///{tmp_path / 'none.db'}", tmp_path / "copy")


def test_the_commands(sqlite_store: Store, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(sqlite_store)
    monkeypatch.setenv("TUNER_DATABASE_URL", sqlite_url)
    made = CliRunner().invoke(app, ["backup", str(tmp_path / "copy")])
    assert (made.exit_code, str(tmp_path / "copy") in made.output) == (0, True)
    monkeypatch.setenv("TUNER_DATABASE_URL", f"sqlite:///{tmp_path / 'new.db'}")
    assert CliRunner().invoke(app, ["restore", str(tmp_path / "copy")]).exit_code == 0
    with Store.open(f"sqlite:///{tmp_path / 'new.db'}") as store:
        store.check()
        assert [one.name for one in store.experiments.page().items] == ["digits"]
