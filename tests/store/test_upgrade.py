"""A database that an older version wrote, opened by this one. `tests/fixtures/make_old_database.py` says how it was made."""

from __future__ import annotations

import gzip
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import MetaData, insert, make_url, text

import tuner
from tests import invariants
from tests.web.searches import Search
from tuner.domain.states import ExperimentState, TrialState
from tuner.driver.assemble import assemble
from tuner.driver.core import Core
from tuner.space import Space
from tuner.store import ExperimentRecord, Store
from tuner.store.sql.connect import connect
from tuner.store.sql.migrate import head, revision, scripts

OLD = Path(__file__).parents[1] / "fixtures" / "old_database.sqlite.gz"

WRITTEN_AT = "0003"
"""The revision of the tables in that file."""

ADVANCE_ID = "SELECT setval(pg_get_serial_sequence('{table}', 'id'), (SELECT coalesce(max(id), 1) FROM {table}))"

EXPECTED = {
    "asha finished": "completed",
    "pbt finished": "completed",
    "freeze-thaw finished": "completed",
    "hyperband cancelled": "cancelled",
    "median failed": "failed",
    "pbt paused": "paused",
    "freeze-thaw paused": "paused",
    "pbt interrupted": "running",
    "freeze-thaw interrupted": "running",
    "tpe interrupted": "running",
    "asha interrupted": "running",
    "never started": "pending",
}
UNFINISHED = [name for name, state in EXPECTED.items() if state in ("paused", "running")]


@pytest.fixture
def old_url(tmp_path: Path) -> str:
    """Return the URL of a copy of the old database, with the tables that it was written with."""
    return unpacked(tmp_path)


def unpacked(folder: Path) -> str:
    path = folder / "tuner.db"
    path.write_bytes(gzip.decompress(OLD.read_bytes()))
    return f"sqlite:///{path}"


def copied_to_postgres(old_url: str, url: str) -> None:
    """Copy the rows of the old database into PostgreSQL, into the tables of their revision."""
    source, target = connect(old_url), connect(url)
    config = Config()
    config.set_main_option("script_location", str(scripts()))
    with source.connect() as rows, target.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, WRITTEN_AT)
        tables = MetaData()
        tables.reflect(connection)
        for table in tables.sorted_tables:
            if table.name != "alembic_version":
                found = [dict(row) for row in rows.execute(text(f"SELECT * FROM {table.name}")).mappings()]
                if found:
                    connection.execute(insert(table), found)
                for column in table.primary_key.columns:
                    if column.name == "id":
                        connection.execute(text(ADVANCE_ID.format(table=table.name)))
    source.dispose()
    target.dispose()


@pytest.fixture(scope="module")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of the old database after the migration. Each test gets a copy."""
    folder = tmp_path_factory.mktemp("migrated")
    with Store.open(unpacked(folder)) as store:
        store.migrate()
    return folder / "tuner.db"


@pytest.fixture(scope="module")
def migrated_postgres(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Migrate the old database in PostgreSQL, and yield the name of the database. Each test gets a copy."""
    import psycopg

    name = "written_before"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            url = make_url(postgres_server).set(database=name).render_as_string(hide_password=False)
            copied_to_postgres(unpacked(tmp_path_factory.mktemp("old")), url)
            with Store.open(url) as store:
                store.migrate()
            yield name
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def upgraded_sqlite(migrated_sqlite: Path, tmp_path: Path) -> str:
    path = tmp_path / "tuner.db"
    shutil.copy(migrated_sqlite, path)
    return f"sqlite:///{path}"


@pytest.fixture
def upgraded_postgres(migrated_postgres: str, postgres_server: str) -> Iterator[str]:
    import psycopg

    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE upgraded TEMPLATE {migrated_postgres}")
        try:
            yield make_url(postgres_server).set(database="upgraded").render_as_string(hide_password=False)
        finally:
            connection.execute("DROP DATABASE upgraded WITH (FORCE)")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def upgraded(request: pytest.FixtureRequest) -> Iterator[Store]:
    with Store.open(request.getfixturevalue(f"upgraded_{request.param}")) as store:
        yield store


def named(store: Store, name: str) -> ExperimentRecord:
    (record,) = store.experiments.named(name)
    return record


def folded(store: Store, record: ExperimentRecord) -> Core:
    core = assemble(record.spec, Space.from_json(record.spec.space))
    for seq, entry in store.drivers.load(record.id):
        core.fold(seq, entry)
    return core


def test_the_old_database_is_migrated(old_url: str) -> None:
    with Store.open(old_url) as store:
        assert revision(store._database.engine) == WRITTEN_AT
        with pytest.raises(tuner.TunerError, match="run `tuner migrate`"):
            store.check()
        store.migrate()
        store.check()
        assert revision(store._database.engine) == head()


def test_every_old_experiment_is_listed_in_its_state(upgraded: Store) -> None:
    page = upgraded.experiments.page()
    assert {record.name: str(record.state) for record in page.items} == EXPECTED


def test_curves_and_decisions_of_old_experiments_can_be_read(upgraded: Store) -> None:
    for record in upgraded.experiments.page().items:
        reports = sum(trial.reports for trial in upgraded.trials.newest(record.id, 1000))
        if record.name == "never started":
            assert upgraded.log.decisions(record.id).items == ()
            continue
        decisions = upgraded.log.decisions(record.id, page_size=1000).items
        assert decisions
        assert all(decision.reason for decision in decisions)
        for x in ("step", "time"):
            curves = upgraded.metrics.curves(record.id, "accuracy", x=x).curves
            assert sum(len(part.y) for curve in curves for part in curve.segments) == reports, (record.name, x)
        if reports:
            _, best = upgraded.metrics.best_so_far(record.id, "accuracy", "max")
            assert best == sorted(best)
            assert best[-1] == pytest.approx(max(t.best_value for t in folded(upgraded, record).trials if t.best_value))
        for trial in upgraded.trials.newest(record.id, 1000):
            assert upgraded.trials.get(trial.public_id).segments
        upgraded.trials.checkpoints(record.id)
    assert upgraded.ranks.usage(upgraded.trials.newest(named(upgraded, "asha finished").id, 27)[0].public_id)


def test_old_logs_fold_to_what_the_rows_say(upgraded: Store) -> None:
    for record in upgraded.experiments.page().items:
        if record.name == "never started":
            continue
        assert list(invariants.broken(upgraded, record)) == []
        core = folded(upgraded, record)
        assert core.state is record.state, record.name
        best = core.best_trial()
        assert (record.best or {}).get("trial_number") == (best.number if best else None)
        if best is not None and record.best is not None:
            assert record.best["value"] == best.best_value


def taken_up(store: Store, record: ExperimentRecord) -> Search:
    """Return a driver of this version that continues an old experiment. The training is still a formula."""
    return Search(store, record.spec, start=2_000_000_000.0, record=record, core=folded(store, record))


@pytest.mark.parametrize("name", UNFINISHED)
def test_an_old_experiment_goes_on_to_its_end(upgraded: Store, name: str) -> None:
    record = named(upgraded, name)
    before = {trial.number: trial for trial in upgraded.trials.newest(record.id, 1000)}
    if record.state is ExperimentState.PAUSED:
        upgraded.commands.add(record.id, "resume", reason="by a user")
    search = taken_up(upgraded, record)
    search.obey()
    search.advance()

    after = upgraded.experiments.get(record.public_id)
    assert after.state is ExperimentState.COMPLETED, after.error
    assert list(invariants.broken(upgraded, after)) == []
    trials = {trial.number: trial for trial in upgraded.trials.newest(record.id, 1000)}
    for number, trial in before.items():
        if trial.state.ended:
            assert trials[number].state is trial.state
        assert trials[number].reports >= trial.reports
        if trial.best_value is not None and math.isfinite(trial.best_value):
            assert trials[number].best_value >= trial.best_value  # type: ignore[operator]
    assert sum(trial.reports for trial in trials.values()) > sum(trial.reports for trial in before.values())


def test_an_old_experiment_that_never_started_runs(upgraded: Store) -> None:
    record = named(upgraded, "never started")
    taken_up(upgraded, record).advance()
    assert upgraded.experiments.get(record.public_id).state is ExperimentState.COMPLETED


@pytest.mark.ray
@pytest.mark.usefixtures("private_ray")
def test_an_interrupted_old_experiment_is_resumed_by_a_script(old_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_DATABASE_URL", old_url)
    with Store.open(old_url) as store:
        store.migrate()
        record = named(store, "asha interrupted")
    result: Any = tuner.resume(record.public_id, verbose=0)
    assert result.state == "completed"
    with Store.open(old_url) as store:
        states = {trial.state for trial in store.trials.newest(record.id, 100)}
        assert all(state.ended for state in states)
        assert TrialState.COMPLETED in states
        assert any(len(found) > 1 for found in store.trials.segments(record.id).values()), (
            "what ran was started once more"
        )
