"""Test that the migrations that `tuner.store.sql.revise` writes can be applied to SQLite, which can change little of a table."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Column, Integer, MetaData, Text, UniqueConstraint

from tests.store.examples import a_spec
from tuner.store import Store
from tuner.store.sql import migrate, revise, tables

migrations_of = migrate.scripts


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MetaData:
    """Return a copy of the tables that may be changed. New migrations are written to a copy of the folder."""
    shutil.copytree(migrations_of(), tmp_path / "migrations", ignore=shutil.ignore_patterns("__pycache__"))
    copied = MetaData()
    for table in tables.metadata.sorted_tables:
        table.to_metadata(copied)
    monkeypatch.setattr(tables, "metadata", copied)
    for module in (migrate, revise):
        monkeypatch.setattr(module, "scripts", lambda: tmp_path / "migrations")
    monkeypatch.setattr(migrate, "head", migrate.head.__wrapped__)
    return copied


def check_revision(store: Store, changed: MetaData) -> str:
    """Write the migration, apply it to a database with a row, and return its text."""
    made = store.experiments.create(a_spec())
    revise.main("a change")
    store.migrate()
    assert store.experiments.get(made.public_id).name == made.name
    with store._database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), changed) == []
    [path] = (migrate.scripts() / "versions").glob("*a_change.py")
    return path.read_text()


@pytest.mark.parametrize("arguments", [["--help"], ["a", "change"]])
def test_arguments_that_are_no_subject_write_nothing(changed: MetaData, arguments: list[str]) -> None:
    before = sorted((migrate.scripts() / "versions").iterdir())
    with pytest.raises(SystemExit, match="python -m tuner.store.sql.revise"):
        revise.command_line(arguments)
    assert sorted((migrate.scripts() / "versions").iterdir()) == before


def test_a_changed_column_and_a_constraint_copy_the_table_in_sqlite(sqlite_store: Store, changed: MetaData) -> None:
    changed.tables["experiment"].c.source.nullable = True
    changed.tables["project"].append_constraint(UniqueConstraint("warm_start", "changed_at", name="both"))
    assert "batch_alter_table" in check_revision(sqlite_store, changed)


def test_a_new_column_copies_nothing(sqlite_store: Store, changed: MetaData) -> None:
    changed.tables["experiment"].append_column(Column("colour", Text))
    changed.tables["trial"].append_column(Column("size", Integer))
    assert "batch_alter_table" not in check_revision(sqlite_store, changed)
