"""Every command has a command class, which says where it works; with an address, it works nowhere else."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperCommand, TyperGroup
from typer.testing import CliRunner

from tests.store.examples import a_spec
from tuner.cli.command_classes import OnNeither, OnService, OnThisMachine
from tuner.cli.commands import app
from tuner.cli.commands.status import exit_code
from tuner.errors import SpecError, TunerError
from tuner.store import Store
from tuner.store.backups.backup import backup

NOBODY = "http://127.0.0.1:9"  # nothing listens there

WORDS = {
    "target": "math:sqrt",
    "predictor": "math:sqrt",
    "url": "https://example.com/hook",
    "events": "experiment.completed",
    "param": "lr=uniform(0,1)",
    "changes": "notes=x",
    "trial": "trl_1",
    "warm_start": "auto",
    "trials": "trl_1",
}
"""A value for each required parameter of such a name. Others get a word."""


def commands(group: Any, *above: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, *above, name)
        else:
            yield (*above, name), command


ALL = dict(commands(typer.main.get_command(app)))


def of(kind: type[TyperCommand]) -> list[tuple[str, ...]]:
    return [path for path, command in ALL.items() if isinstance(command, kind)]


def words(path: tuple[str, ...], folder: Path) -> list[str]:
    """Return a command line of this command in which nothing is missing."""
    found = list(path)
    (folder / "spec.yaml").write_text("name: x")
    for parameter in ALL[path].params:
        if not parameter.required:
            continue
        value = WORDS.get(parameter.name or "", "x")
        if parameter.name == "spec":
            value = str(folder / "spec.yaml")
        if parameter.name == "file":
            value = str(folder / "file.csv")
        found += [parameter.opts[0], value] if parameter.param_type_name == "option" else [value]
    return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a home that does not exist: a command that uses it would make it."""
    home = tmp_path / "home"
    monkeypatch.setenv("TUNER_HOME", str(home))
    monkeypatch.delenv("TUNER_DATABASE_URL", raising=False)
    return home


def test_every_command_says_where_it_works() -> None:
    missing = [path for path, command in ALL.items() if not isinstance(command, OnService | OnThisMachine | OnNeither)]
    assert not missing, "give it cls=OnService, OnThisMachine or OnNeither, see tuner/cli/command_classes.py"
    assert ("restore",) in of(OnThisMachine)


@pytest.mark.parametrize("by", ["option", "variable"])
@pytest.mark.parametrize("path", of(OnThisMachine), ids=" ".join)
def test_a_command_of_this_machine_refuses_an_address_and_does_nothing(
    path: tuple[str, ...], by: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["--address", NOBODY] if by == "option" else []
    if by == "variable":
        monkeypatch.setenv("TUNER_ADDRESS", NOBODY)
    refused = CliRunner().invoke(app, [*given, *words(path, tmp_path)])
    assert isinstance(refused.exception, SpecError), refused.output
    assert exit_code(refused.exception) == 2
    said = str(refused.exception)
    assert f"`tuner {path[-1]}` works only on this machine, not on the service at {NOBODY}; nothing was done" in said
    assert ("leave --address out" if by == "option" else "unset TUNER_ADDRESS") in said
    assert not home.exists()
    assert not (tmp_path / "file.csv").exists()


@pytest.fixture
def _sigterm() -> Iterator[None]:
    """Restore the handler of SIGTERM, which `serve-model` sets for the rest of its process."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_sigterm")
@pytest.mark.parametrize("path", of(OnService), ids=" ".join)
def test_a_command_of_the_service_does_not_use_this_home_instead(
    path: tuple[str, ...], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.cli.service.experiments.PATIENCE_S", 0.0)
    monkeypatch.setattr("tuner.client.protocol.FIRST_CONTACT_S", 0.0)
    failed = CliRunner().invoke(app, ["--address", NOBODY, *words(path, tmp_path)])
    assert isinstance(failed.exception, TunerError), failed.output
    assert exit_code(failed.exception) == 6, failed.exception
    assert not home.exists()


def test_restore_leaves_the_database_of_this_machine(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    url = f"sqlite:///{home / 'tuner.db'}"
    with Store.open(url) as store:
        store.migrate()
        backup(url, tmp_path / "empty.db")
        store.experiments.create(a_spec())
    command = ["restore", "--force", str(tmp_path / "empty.db")]
    assert CliRunner().invoke(app, ["--address", NOBODY, *command]).exit_code != 0
    with sqlite3.connect(home / "tuner.db") as database:
        assert database.execute("select count(*) from experiment").fetchone() == (1,)
    assert CliRunner().invoke(app, command).exit_code == 0
    with sqlite3.connect(home / "tuner.db") as database:
        assert database.execute("select count(*) from experiment").fetchone() == (0,)
    assert os.listdir(home)
