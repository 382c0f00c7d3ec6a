"""`tuner submit`, `ls`, `show`, `best`, `export` and the verbs, on a service and on the database of this home."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

import tuner
from tests.api.conftest import SPEC, app, poked, server
from tests.experiment.analysis.test_lineage import population
from tests.store.examples import T0, a_spec, begin
from tests.web.searches import Search, digits
from tuner.cli import commands
from tuner.cli.service.experiments import _spec, best, lines, listed
from tuner.client.synchronous import Client, TrialHandle
from tuner.domain.batch import Batch
from tuner.domain.logs import LogChunk
from tuner.errors import NotFound, SpecError
from tuner.sdk.result import Result
from tuner.store import Store
from tuner.store.drivers import Drivers
from tuner.store.log import Log

__all__ = ["app", "poked", "server"]

ROW = {"id": "exp_1", "state": "completed", "reason": "", "error": None, "next_step": None, "notes": "", "trials": []}


@pytest.fixture(params=["here", "there"])
def search(
    request: pytest.FixtureRequest, sqlite_store: Store, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> Search:
    """Run a search to its end, in this home or on a service."""
    if request.param == "there":
        monkeypatch.setenv("TUNER_ADDRESS", request.getfixturevalue("server"))
    else:
        monkeypatch.setenv("TUNER_DATABASE_URL", sqlite_url)
    search = Search(sqlite_store, digits("halved", 6), start=T0)
    search.advance(at_once=20)
    return search


def output(*arguments: str) -> str:
    done = CliRunner().invoke(commands.app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


def status(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tuner", *arguments])
    with pytest.raises(SystemExit) as caught:
        commands.main()
    return int(caught.value.code or 0)


def test_an_experiment_in_a_state_of_a_newer_service_is_listed() -> None:
    names = ("id", "trials", "metric", "best", "method", "project", "name", "abandoned")
    newer: Any = SimpleNamespace(**dict.fromkeys(names), created_at="2026-12-01T00:00:00Z", state="resting")
    client: Any = SimpleNamespace(experiments=lambda **_: [newer])
    wanted: Any = {}
    assert [one.state for one in listed(client, wanted, 9)] == ["paused"]


def test_ls_show_and_best(search: Search, sqlite_store: Store) -> None:
    result = Result.load(sqlite_store, search.public_id)
    assert "halved" in output("ls")
    [row] = [json.loads(line) for line in output("list", "--json").splitlines()]
    assert (row["id"], row["state"], row["trials"]) == (search.public_id, "completed", 6)
    assert row["best_value"] == result.best_value
    shown = json.loads(output("show", "halved", "--json"))
    assert [trial["best_value"] for trial in shown["trials"]] == [trial.best_value for trial in result.trials]
    assert shown["best"] == json.loads(output("best", search.public_id))
    assert shown["best"]["config"] == result.best_config
    assert result.best_checkpoint is not None
    assert shown["best"]["checkpoint"] == result.best_checkpoint.path
    assert result.best_checkpoint.info is not None
    assert shown["best"]["checkpoint_id"] == result.best_checkpoint.info.id
    assert shown["notes"] == ""
    output("change", "halved", "--set", "notes=# Why\n\nsee the ticket")
    text = output("show", "halved")
    assert len(text.splitlines()) >= 8
    assert "\nnotes:\n  # Why\n  \n  see the ticket\n    0  " in text
    assert f"by trial {shown['best']['trial']}" in text


def test_commands_that_show_only_trials_read_neither_the_reports_nor_the_decisions(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read the rows of the trials only; `tuner best` read all 400,000 reports of 20,000 trials to print one."""
    best, schedule = output("best", "halved"), output("schedule", "halved")
    monkeypatch.setattr(Drivers, "load", None)
    monkeypatch.setattr(Log, "decisions", None)
    monkeypatch.setattr(Client, "_events", None)
    assert output("best", "halved") == best
    assert output("schedule", "halved") == schedule
    assert json.loads(output("show", "halved", "--json"))["best"] == json.loads(best)
    assert len(output("export", "halved", "-", "--format", "csv").splitlines()) == 7


def test_times_are_in_the_zone_of_this_machine(
    search: Search, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = sqlite_store.experiments.get(search.public_id)
    *_, first = sqlite_store.log.decisions(record.id).items
    monkeypatch.setenv("TZ", "EST5")
    time.tzset()
    try:
        listed, told = output("ls"), output("explain", "halved")
    finally:
        monkeypatch.undo()
        time.tzset()
    zone = timezone(timedelta(hours=-5))
    assert listed.startswith(f"{datetime.fromtimestamp(record.created_at, zone):%Y-%m-%d %H:%M:%S}  exp_")
    assert told.startswith(f"{datetime.fromtimestamp(first.time, zone):%Y-%m-%d %H:%M:%S}  ")


def test_show_says_why_a_trial_has_not_started(search: Search, sqlite_url: str) -> None:
    """It had shown only why the trial was created: there were resources for one more."""
    why = "cannot start: it needs 2 CPU, and the quota of the project 'vision' is 1 CPU"
    with contextlib.closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as database:
        database.execute("update trial set state = 'pending', waiting = ? where number = 5", [why])
        database.commit()
    assert output("show", "halved").splitlines()[-1].endswith(f"  {why}")
    assert [trial["waiting"] for trial in json.loads(output("show", "halved", "--json"))["trials"]] == [None] * 5 + [
        why
    ]


def test_the_best_value_after_repeats_is_called_a_mean() -> None:
    top = {"trial": 5, "metric": "loss", "value": 0.25, "runs": [5, 10], "config": {"lr": 0.5}, "schedule": None}
    row = {**ROW, "name": "noisy"}
    assert list(lines({**row, "best": top}))[1] == 'best loss 0.25 by trial 5 (the mean of 2 runs): {"lr": 0.5}'
    assert list(lines({**row, "best": {**top, "runs": [5]}}))[1] == 'best loss 0.25 by trial 5: {"lr": 0.5}'


def test_configurations_that_changed_during_the_training_of_the_best_are_counted(sqlite_store: Store) -> None:
    made, _, _ = population(sqlite_store)
    result = Result.load(sqlite_store, made.public_id)
    count = len(result.schedule())
    assert count > 1
    found = best(result)
    assert found is not None
    assert [one["config"] for one in found["schedule"]][-1] == found["config"] == result.best_config
    assert [one["iteration"] for one in found["schedule"]] == [one["iteration"] for one in result.schedule()]
    row = {**ROW, "name": "bred"}
    told = list(lines({**row, "best": found}))[1]
    assert told.endswith(f"}}, the last of {count} configurations: see `tuner schedule`")
    assert f", the last of {count} configurations: see schedule()" in repr(result)
    assert f", the last of {count} configurations: see schedule()" in result._repr_html_()


def test_a_search_whose_script_was_killed_is_shown_as_abandoned(
    sqlite_store: Store, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_DATABASE_URL", sqlite_url)
    search = Search(sqlite_store, digits("killed", 6), start=T0)
    search.advance(3)
    lines = output("list").splitlines()
    assert " abandoned " in lines[0]
    assert lines[-1].startswith("abandoned: ")
    assert f"`tuner resume {search.public_id}` continues it" in output("show", "killed")
    assert json.loads(output("show", "killed", "--json"))["state"] == "running"
    assert status(monkeypatch, "pause", "killed") == 5


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_export(search: Search, sqlite_store: Store, tmp_path: Path, form: str) -> None:
    read: dict[str, Any] = {"csv": pd.read_csv, "json": pd.read_json, "parquet": pd.read_parquet}
    expected = Result.load(sqlite_store, search.public_id).dataframe(history=True)
    output("export", "halved", str(tmp_path / f"out.{form}"), "--history")
    found = read[form](tmp_path / f"out.{form}")
    assert list(found.columns) == list(expected.columns)
    assert len(found) == len(expected)
    assert found["accuracy"].tolist() == pytest.approx(expected["accuracy"].tolist(), nan_ok=True)


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_a_dash_exports_to_standard_output(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    output("export", "halved", str(tmp_path / f"out.{form}"), "--history")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(commands.app, ["export", "halved", "-", "--format", form, "--history"])
    assert done.stdout_bytes == (tmp_path / f"out.{form}").read_bytes()
    assert not (tmp_path / "-").exists()
    refused = CliRunner().invoke(commands.app, ["export", "halved", "-"])
    assert str(refused.exception).startswith("format: standard output has no file extension: pass --format")


def test_an_export_writes_an_earlier_file_in_place(search: Search, tmp_path: Path) -> None:
    """It put another file in its place: without its owner and links, and not at all for a mounted file or a very long name."""
    table, link, symlink = tmp_path / f"{'a' * 251}.csv", tmp_path / "link.csv", tmp_path / "symlink.csv"
    table.write_text("yesterday" * 10_000)
    table.chmod(0o640)
    link.hardlink_to(table)
    symlink.symlink_to(table)
    before = table.stat()
    output("export", "halved", str(symlink))
    after = table.stat()
    assert [(one.st_ino, one.st_mode, one.st_nlink) for one in (before, after)] == [
        (before.st_ino, before.st_mode, 2)
    ] * 2
    assert link.read_text().startswith("trial,")
    assert "yesterday" not in link.read_text()
    assert symlink.is_symlink()


def test_a_dash_submits_standard_input(server: str, monkeypatch: pytest.MonkeyPatch, sqlite_store: Store) -> None:
    monkeypatch.setenv("TUNER_ADDRESS", server)
    done = CliRunner().invoke(commands.app, ["submit", "-"], input=yaml.safe_dump(SPEC))
    assert sqlite_store.experiments.get(done.stdout.strip()).name == SPEC["name"]


def test_numbers_are_exported_to_json_with_all_their_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    space = {"lr": tuner.grid_search([1.5e-11, 0.1])}
    with tuner.create_study(space, metric="loss", mode="min", name="small") as study:
        while (trial := study.ask()) is not None:
            trial.tell({"loss": trial.config["lr"] / 3, "far": math.inf})
    output("export", "small", str(tmp_path / "out.json"))
    rows = json.loads((tmp_path / "out.json").read_text(), parse_constant=pytest.fail)
    assert [(row["config/lr"], row["loss"], row["far"]) for row in rows] == [
        (lr, lr / 3, None) for lr in (1.5e-11, 0.1)
    ]


class Act:
    pass


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a search whose parameters are Python objects, in a home of its own."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TUNER_DATABASE_URL", raising=False)
    space = {
        "act": tuner.choice([Act]),
        "mixed": tuner.grid_search([3, "three", None]),
        "layers": [1, 2],
        "batch": tuner.sample_from(lambda: np.int64(32)),
    }
    with tuner.create_study(space, metric="loss", mode="min", num_samples=1, name="objects") as study:
        while (trial := study.ask()) is not None:
            trial.tell({"loss": 0.5})


@pytest.mark.usefixtures("objects")
def test_python_objects_in_configurations_are_named() -> None:
    found = json.loads(output("best", "objects"))["config"]
    assert (found["act"], found["layers"], found["batch"]) == ("Act", [1, 2], 32)
    shown = json.loads(output("show", "objects", "--json"))
    assert [trial["config"]["act"] for trial in shown["trials"]] == ["Act"] * 3
    assert '"act": "Act"' in output("show", "objects")


def test_lists_of_several_types_and_huge_integers_are_exported_to_parquet_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    space = {"layer": tuner.grid_search([[64, "relu"], [32, "tanh"]]), "shape": [3, 3], "id": 2**70, "heads": [{}, {}]}
    with tuner.create_study(space, metric="loss", mode="min", name="nets") as study:
        while (trial := study.ask()) is not None:
            trial.tell({"loss": 0.5})
    output("export", "nets", str(tmp_path / "out.parquet"))
    found = pd.read_parquet(tmp_path / "out.parquet")
    assert found["config/layer"].tolist() == ["[64, 'relu']", "[32, 'tanh']"]
    assert [list(shape) for shape in found["config/shape"]] == [[3, 3], [3, 3]]
    assert found["config/id"].tolist() == [str(2**70)] * 2
    assert found["config/heads"].tolist() == ["[{}, {}]"] * 2


def test_what_is_not_finite_is_null_in_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    space = {"lr": 0.5, "clip": math.inf, "more": {"list": [math.nan]}}
    with tuner.create_study(space, metric="loss", mode="min", num_samples=1, name="far") as study:
        while (trial := study.ask()) is not None:
            trial.tell({"loss": 0.5})
    config = {"lr": 0.5, "clip": None, "more": {"list": [None]}}
    assert json.loads(output("best", "far"), parse_constant=pytest.fail)["config"] == config
    shown = json.loads(output("show", "far", "--json"), parse_constant=pytest.fail)
    assert [shown["best"]["config"], *(trial["config"] for trial in shown["trials"])] == [config, config]
    for command in (["schedule", "far"], ["replay", "far", "--json"], ["ls", "--json"]):
        json.loads(output(*command), parse_constant=pytest.fail)
    for line in output("explain", "far", "--json").splitlines():
        json.loads(line, parse_constant=pytest.fail)


@pytest.mark.usefixtures("objects")
@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
@pytest.mark.parametrize("history", [[], ["--history"]])
def test_python_objects_are_exported_by_name(tmp_path: Path, form: str, history: list[str]) -> None:
    read: dict[str, Any] = {"csv": pd.read_csv, "json": pd.read_json, "parquet": pd.read_parquet}
    output("export", "objects", str(tmp_path / f"out.{form}"), *history)
    found = read[form](tmp_path / f"out.{form}")
    assert found["config/act"].tolist() == ["Act"] * 3
    assert {str(value) for value in found["config/mixed"].dropna()} == {"3", "three"}


@pytest.mark.parametrize("name", ["missing/out.csv", "missing/out.json", "missing/out.parquet"])
def test_a_file_that_cannot_be_written_is_named(search: Search, tmp_path: Path, name: str) -> None:
    refused = CliRunner().invoke(commands.app, ["export", "halved", str(tmp_path / name)])
    assert isinstance(refused.exception, SpecError)
    assert refused.exception.errors[0][0] == "/file"
    assert f"cannot write {tmp_path / name}" in str(refused.exception)


def test_submit_and_verbs(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_store: Store) -> None:
    monkeypatch.setenv("TUNER_ADDRESS", server)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    made = output("submit", str(tmp_path / "spec.yaml"), "--idempotency-key", "once").strip()
    assert output("submit", str(tmp_path / "spec.json"), "--idempotency-key", "once").strip() == made
    assert sqlite_store.experiments.get(made).spec.num_samples == 16
    assert output("pause", "digits") == f"asked to pause digits ({made}), which is pending\n"
    assert [one.command for one in sqlite_store.commands.pending([sqlite_store.experiments.get(made).id])] == ["pause"]
    assert output("resume", made) == f"asked to resume {made}, which is pending\n"


@pytest.mark.parametrize("indent", [None, "\t"])
def test_submit_reads_numbers_with_an_exponent(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_store: Store, indent: str | None
) -> None:
    monkeypatch.setenv("TUNER_ADDRESS", server)
    spec = SPEC | {"name": "\U0001f600", "space": {"lr": {"type": "loguniform", "lower": 1e-5, "upper": 1e-2}}}
    (tmp_path / "spec.json").write_text(json.dumps(spec, indent=indent))
    assert "1e-05" in (tmp_path / "spec.json").read_text()
    record = sqlite_store.experiments.get(output("submit", str(tmp_path / "spec.json")).strip())
    assert (record.name, record.spec.space["lr"]["lower"]) == ("\U0001f600", 1e-5)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5), ("-1E3", -1000.0), ("1.5e+3", 1500.0), (".5e1", 5.0), ("2.e2", 200.0),
        ("2026-01-31", "2026-01-31"), ("12", 12), ("0.5", 0.5), ("e5", "e5"), ("1e", "1e"), ("true", True),
        ("on", "on"), ("No", "No"), ("1:30", "1:30"), ("1_000", "1_000"), ("010", 10), ("089", 89), ("0o17", 15), ("0xfF", 255),
        ("-0x1", "-0x1"), ("0b1", "0b1"), ("[off, y]", ["off", "y"]), ("+3", 3), ("~", None), ("", None), ("-.INF", -math.inf),
        ("\n  <<: {a: 1}\n  b: 2", {"a": 1, "b": 2}),
    ],
)  # fmt: skip
def test_a_spec_in_yaml_is_read_as_the_page_reads_it(tmp_path: Path, text: str, value: object) -> None:
    (tmp_path / "spec.yaml").write_text(f"name: é\nvalue: {text}\n", encoding="utf-8")
    assert _spec(tmp_path / "spec.yaml") == {"name": "é", "value": value}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n\t"seed": 1,\n}', "(Expecting property name|Illegal trailing comma)"),  # the second from Python 3.13 on
        ('{\n\t"seed": NaN\n}', "NaN is not a number in JSON"),
    ],
)
def test_mistakes_in_json_are_not_blamed_on_its_tabs(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "spec.json").write_text(text)
    with pytest.raises(SpecError, match=f"spec.json is not JSON: .*{message}"):
        _spec(tmp_path / "spec.json")


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 3000])
def test_a_spec_that_is_nested_too_deeply_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "spec").write_text(text)
    with pytest.raises(SpecError, match="spec is nested too deeply"):
        _spec(tmp_path / "spec")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("spec.json", '{"limits": {"budget": 4}, "seed": 1, "limits": {"max_failures": 1}}'),
        ("spec.yaml", '{"limits": {"budget": 4}, "seed": 1, "limits": {"max_failures": 1}}'),
        ("spec.yaml", "limits:\n  budget: 4\nlimits:\n  max_failures: 1\n"),
    ],
)
def test_a_key_that_occurs_twice_is_refused(tmp_path: Path, name: str, text: str) -> None:
    """The first of two sections had been ignored."""
    (tmp_path / name).write_text(text)
    with pytest.raises(SpecError, match=f"{name} is .*: the key 'limits' occurs twice"):
        _spec(tmp_path / name)


@pytest.mark.parametrize(
    ("one", "two"),
    [("1", "0x1"), ("1", "1.0"), ("0.5", ".5"), ("1", "true"), ("true", "True"), ("~", "null"), ("0o7", "7")],
)
def test_keys_that_are_equal_are_refused(tmp_path: Path, one: str, two: str) -> None:
    """The value of the first of them had been lost."""
    (tmp_path / "spec.yaml").write_text(f"space:\n  {one}: a\n  {two}: b\n")
    with pytest.raises(SpecError, match=f"the keys {one!r} and {two!r} are the same"):
        _spec(tmp_path / "spec.yaml")


def test_a_number_and_its_text_are_the_same_key_in_json(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("space: {1: a, '1': b}\n")
    with pytest.raises(SpecError, match="the key '1' occurs twice"):
        _spec(tmp_path / "spec.yaml")


def test_a_merged_key_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("a: &a {x: 1, y: 1}\nb: &b\n  <<: *a\n  x: 2\nc: {<<: *b, y: 3}\n")
    assert _spec(tmp_path / "spec.yaml")["c"] == {"x": 2, "y": 3}


def test_several_mappings_may_be_merged(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("a: &a {x: 1}\nb: &b {y: 2}\nc:\n  <<: *a\n  <<: *b\n  z: 3\n")
    assert _spec(tmp_path / "spec.yaml")["c"] == {"x": 1, "y": 2, "z": 3}


def test_fork(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_store: Store) -> None:
    monkeypatch.setenv("TUNER_ADDRESS", server)
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    made = output("submit", str(tmp_path / "spec.json")).strip()
    sets = ("space.lr.upper=0.5", "name=wider", "num_samples=4", "limits.time_budget_s=null", "notes=NaN")
    options = [part for change in sets for part in ("--set", change)]
    fork = output("fork", "digits", *options, "--idempotency-key", "once").strip()
    assert output("fork", made, *options, "--idempotency-key", "once").strip() == fork
    spec = sqlite_store.experiments.get(fork).spec
    assert (spec.forked_from, spec.name, spec.num_samples, spec.notes) == (made, "wider", 4, "NaN")
    assert (spec.space["lr"]["upper"], spec.limits.time_budget_s) == (0.5, None)
    lost = (["space=1", "space.lr=2"], ["space.lr.upper=1", "space=null"], ["num_samples=1", "num_samples=2"])
    for wrong in (["num_samples"], ["a..b=1"], *lost):
        assert status(monkeypatch, "fork", made, *(part for one in wrong for part in ("--set", one))) == 2


def test_exit_codes(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(monkeypatch, "ls") == 0
    assert status(monkeypatch, "ls", "--frobnicate") == 2
    assert status(monkeypatch, "export", "halved", str(tmp_path / "out.xls")) == 2
    assert status(monkeypatch, "show", "halve") == 3
    assert "did you mean 'halved'" in capsys.readouterr().err
    assert status(monkeypatch, "cancel", "halved") == 5
    (tmp_path / "spec.yaml").write_text("- a list")
    assert status(monkeypatch, "submit", str(tmp_path / "spec.yaml")) == 2
    assert status(monkeypatch, "submit", str(tmp_path / "none.yaml")) == 2
    (tmp_path / "spec.yaml").write_text("a: [")
    assert status(monkeypatch, "submit", str(tmp_path / "spec.yaml")) == 2
    monkeypatch.delenv("TUNER_ADDRESS", raising=False)
    monkeypatch.setenv("TUNER_DATABASE_URL", "postgresql://me@127.0.0.1:9/db")
    assert status(monkeypatch, "ls") == 6
    monkeypatch.setenv("TUNER_ADDRESS", "http://127.0.0.1:9")
    assert status(monkeypatch, "ls") == 6


# -- several experiments or trials in one command


@pytest.fixture(params=["here", "there"])
def place(request: pytest.FixtureRequest, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let commands work on the database of this home, or on a service."""
    monkeypatch.setenv("TUNER_DATABASE_URL", sqlite_url)
    if request.param == "there":
        monkeypatch.setenv("TUNER_ADDRESS", request.getfixturevalue("server"))
    return str(request.param)


def made(store: Store, *names: str, **fields: Any) -> list[str]:
    return [store.experiments.create(a_spec(name, **fields), source="api").public_id for name in names]


def asked(store: Store, *experiments: str) -> list[list[tuple[str, int | None]]]:
    """Return the commands that wait for the driver of each experiment."""
    ids = [store.experiments.get(one).id for one in experiments]
    return [[(one.command, one.trial) for one in store.commands.pending([number])] for number in ids]


def test_ls_names_the_projects_if_there_are_several(place: str, sqlite_store: Store) -> None:
    for project in ("speech", "text"):
        made(sqlite_store, "same", project=project)
        if project == "speech":
            assert "speech" not in output("ls")
    assert [line.split()[-2:] for line in output("ls").splitlines()] == [["text", "same"], ["speech", "same"]]
    rows = [json.loads(line) for line in output("ls", "--json").splitlines()]
    assert [row["project"] for row in rows] == ["text", "speech"]


def test_ls_shows_the_same_lines_of_a_service(search: Search, sqlite_store: Store, server: str) -> None:
    method = sqlite_store.experiments.get(search.public_id).spec.method
    made(sqlite_store, "new", project="speech")
    here = output("ls")
    assert method in here
    assert output("--address", server, "ls") == here
    assert output("--address", server, "ls", "--json") == output("ls", "--json")


def test_a_verb_on_several_experiments_reports_each_outcome(
    place: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c = made(sqlite_store, "a", "b", "c")
    assert output("pause", "a", b) == "".join(f"asked to pause {one}, which is pending\n" for one in (f"a ({a})", b))
    assert status(monkeypatch, "cancel", "a", "none", c) == 3
    out, err = capsys.readouterr()
    assert out == "".join(f"asked to cancel {one}, which is pending\n" for one in (f"a ({a})", c))
    assert err.splitlines()[0].startswith("error: none: no experiment 'none'")
    assert err.splitlines()[-1] == "1 of 3 was refused"
    assert asked(sqlite_store, a, b, c) == [[("pause", None), ("cancel", None)], [("pause", None)], [("cancel", None)]]


def test_the_exit_status_is_1_if_several_are_refused_for_different_reasons(
    place: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    Search(sqlite_store, digits("halved", 6), start=T0).advance()
    made(sqlite_store, "a")
    assert status(monkeypatch, "cancel", "halved", "a", "halved") == 5
    assert status(monkeypatch, "cancel", "halved", "a", "none") == 1


def test_a_verb_on_several_trials(
    place: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    search = Search(sqlite_store, digits("halved", 6), start=T0)
    search.advance(12)
    running = [one for one in sqlite_store.trials.page(search.id).items if not one.state.ended]
    first, second = running[:2]
    third = made(sqlite_store, "other")[0]
    said = output("kill", "halved", str(first.number), str(second.number), "other")
    assert [line.partition(",")[0] for line in said.splitlines()] == [
        f"asked to kill trial {first.number} of halved ({first.public_id})",
        f"asked to kill trial {second.number} of halved ({second.public_id})",
        f"asked to kill other ({third})",
    ]
    assert asked(sqlite_store, third) == [[("kill", None)]]
    assert asked(sqlite_store, search.public_id) == [[("kill", first.number), ("kill", second.number)]]
    said = output("stop", first.public_id, "halved", str(second.number))
    assert [line.partition(",")[0] for line in said.splitlines()] == [
        f"asked to stop {first.public_id}",
        f"asked to stop trial {second.number} of halved ({second.public_id})",
    ]
    assert status(monkeypatch, "stop", "halved") == 2, "a number is missing"
    assert status(monkeypatch, "stop", "halved", "99", str(first.number)) == 3
    assert "error: halved 99: the experiment 'halved' has no trial 99; its trials are 0 to " in capsys.readouterr().err


def test_several_are_deleted_or_archived(
    place: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    for name in ("one", "two", "three"):
        Search(sqlite_store, digits(name, 6), start=T0).advance()
    made(sqlite_store, "new")
    assert status(monkeypatch, "archive", "one", "new", "two") == 5, "one of them has not ended"
    assert set(output("ls", "--ids", "--archived").split()) == {
        sqlite_store.experiments.named(name)[0].public_id for name in ("one", "two")
    }
    assert output("unarchive", "two").startswith("unarchived exp_")
    assert "two" in output("ls")
    assert status(monkeypatch, "delete", "one", "new", "three") == 5
    assert output("delete", "--force", "new", "two").count("deleted exp_") == 2
    assert (output("ls", "--ids"), output("ls", "--ids", "--archived")) == ("", "")


def test_several_are_resumed_by_a_service_only(
    place: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = made(sqlite_store, "a", "b")
    output("pause", "a", "b")
    if place == "here":
        assert status(monkeypatch, "resume", "a", "b") == 2
        monkeypatch.setattr("tuner.sdk.driving.connected", lambda: False)
        for verb in ("resume", "continue"):
            refused = CliRunner().invoke(commands.app, [verb, "a", "--ray-address", "ray://head:10001"])
            assert "Ray Client" in str(refused.exception)
        assert asked(sqlite_store, a, b) == [[("pause", None)]] * 2
    else:
        for verb in ("resume", "continue"):
            assert status(monkeypatch, verb, "a", "--ray-address", "head:6379") == 2, "the service has its own Ray"
        assert output("resume", "a", "b").count("asked to resume ") == 2
        assert asked(sqlite_store, a, b) == [[("pause", None), ("resume", None)]] * 2


def test_ls_takes_the_filters_of_the_service(place: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tags = {"team": "vision", "sweep": "a"}
    (a,) = made(sqlite_store, "lr a", tags=tags)
    (b,) = made(sqlite_store, "lr b", tags={"team": "vision"}, project="p")
    (c,) = made(sqlite_store, "width c")
    Search(sqlite_store, digits("done", 6), start=T0).advance()

    def ids(*options: str) -> list[str]:
        return output("ls", "--ids", *options).split()

    assert ids("--name", "lr") == [b, a]
    assert ids("--tag", "team=vision") == [b, a]
    assert ids("--tag", "team", "--tag", "sweep=a") == [a]
    assert ids("--project", "p") == [b]
    assert ids("--state", "pending") == [c, b, a]
    assert ids("--state", "pending", "--limit", "2") == [c, b]
    assert [json.loads(line)["id"] for line in output("ls", "--json", "--name", "lr").splitlines()] == [b, a]
    assert len(output("ls", "--state", "completed").splitlines()) == 1
    assert output("ls", "--tag", "none") == ""
    assert status(monkeypatch, "ls", "--state", "sleeping") == 2
    assert status(monkeypatch, "ls", "--ids", "--json") == 2


def test_the_ids_of_all_are_listed_by_default(place: str, sqlite_store: Store) -> None:
    made(sqlite_store, *(f"number {number}" for number in range(25)))
    assert len(output("ls", "--ids").split()) == 25
    assert len(output("ls").splitlines()) == 20


def test_a_service_that_cannot_be_reached_ends_a_command_on_several(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tuner.cli.service.experiments.PATIENCE_S", 0.0)
    monkeypatch.setenv("TUNER_ADDRESS", "http://127.0.0.1:9")
    assert status(monkeypatch, "archive", "a", "b", "c") == 6
    assert capsys.readouterr().err.splitlines()[-1] == "nothing was done about b, c"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("command", [["tuner"], [sys.executable, "-m", "tuner"]], ids=["tuner", "python -m tuner"])
def test_the_completion_script_completes_the_command_tuner(tmp_path: Path, command: list[str]) -> None:
    """Let bash complete `tuner resu` with the script that either form of the command prints."""
    tool = tmp_path / "tuner"
    main = "import sys; from tuner.cli import main; sys.argv[0] = 'tuner'; main()"
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{main}" "$@"\n')
    tool.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    asked = [*command, "--show-completion", "bash"]
    script = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stdout
    words = "COMP_WORDS=(tuner resu); COMP_CWORD=1; _tuner_completion tuner; echo ${COMPREPLY[@]}"
    completed = subprocess.run(
        ["bash", "-c", f"{script}\n{words}"], env=environment, capture_output=True, text=True, check=True
    )
    assert (completed.stdout, completed.stderr) == ("resume\n", "")


def test_completion_is_refused_if_there_is_no_command_to_complete(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert status(monkeypatch, "--show-completion") == 1
    assert "which is not on the PATH" in capsys.readouterr().err


def test_a_service_gives_the_same_as_the_database(
    server: str, sqlite_store: Store, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare what the commands that explain a search print here and there."""
    monkeypatch.setenv("TUNER_DATABASE_URL", sqlite_url)
    search = Search(sqlite_store, digits("halved", 6), start=T0)
    search.advance()
    search.write_logs(1)
    failed = next(trial.public_id for trial in sqlite_store.trials.page(search.id).items if trial.state == "failed")
    space = {"layers": {"type": "choice", "categories": [[32], [64]]}}
    lists, epoch, _ = begin(sqlite_store, spec=a_spec("lists", space=space))
    found = {"trial_number": 0, "value": 0.5, "iteration": 1, "params": {"layers": 1}, "checkpoint_id": None}
    sqlite_store.drivers.commit(lists.id, epoch, Batch(log=[], summary={"best": found}), T0)
    assert [json.loads(line)["best_params"] for line in output("ls", "--json", "--name", "lists").splitlines()] == [
        {"layers": "[64]"}
    ]
    for arguments in (
        ["ls", "--json"], ["replay", "halved", "fifo", "--json"],
        ["explain", "halved"], ["explain", "halved", "1"], ["explain", failed], ["explain", "halved", "1", "--json"],
        ["logs", "halved", "1"], ["logs", "halved", "1", "--rank", "1", "--tail", "2"], ["logs", "halved", "1", "-f"],
        ["schedule", "halved"], ["schedule", "halved", "2"], ["schedule", failed],
        ["replay", "halved", "fifo"], ["replay", "halved", "asha", "reduction_factor=2"],
    ):  # fmt: skip
        here = output(*arguments)
        assert len(here) > 2
        assert output("--address", server, *arguments) == here, arguments
    for arguments in (["explain", "halved", "99"], ["logs", "halved", "99"], ["schedule", "halved", "99"]):
        assert [status(monkeypatch, *where, *arguments) for where in ([], ["--address", server])] == [3, 3]


def test_all_decisions_are_explained_however_many_a_page_has(
    sqlite_store: Store, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_DATABASE_URL", sqlite_url)
    Search(sqlite_store, digits("halved", 6), start=T0).advance()
    whole = output("explain", "halved")
    decisions = Log.decisions

    def short(*where: Any, page_size: int, **more: Any) -> Any:
        return decisions(*where, page_size=5, **more)

    monkeypatch.setattr(Log, "decisions", short)
    assert output("explain", "halved") == whole
    assert whole.count("\n") > 10


def test_a_progress_bar_that_is_followed_on_a_service_has_a_line_for_each_state(
    server: str, sqlite_store: Store
) -> None:
    """The carriage returns had been replaced with placeholders."""
    made, _, _ = begin(sqlite_store, spec=a_spec("digits"))
    content = b"epoch 1\n10%\r100%\r\ndone\n"
    end = LogChunk.of(0, len(content), b"", T0)
    sqlite_store.logs.add(made.id, {(0, 1): [LogChunk.of(0, 0, content, T0), end]})
    assert output("--address", server, "logs", "digits", "0", "-f") == "epoch 1\n10%\n100%\ndone\n"


def test_a_log_that_is_followed_waits_for_a_service_that_is_started_again(
    server: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 5 seconds, it ended with an error."""
    made, _, _ = begin(sqlite_store, spec=a_spec("digits"))
    sqlite_store.logs.add(made.id, {(0, 1): [LogChunk.of(0, 0, b"done\n", T0), LogChunk.of(0, 5, b"", T0)]})
    follow_log, patience = TrialHandle.follow_log, []

    def noted(self: TrialHandle, *where: int) -> Iterator[str]:
        patience.append(self.client._patience_s)
        return follow_log(self, *where)

    monkeypatch.setattr(TrialHandle, "follow_log", noted)
    assert output("--address", server, "logs", "digits", "0", "-f") == "done\n"
    assert patience == [30.0]


def test_tokens_of_a_service(server: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_DATABASE_URL", sqlite_url)
    there = ["--address", server, "token"]
    assert output(*there, "create", "ci", "--role", "Viewer").startswith("tnr_")
    [here], [row] = (
        [json.loads(line) for line in output(*where, "list", "--json").splitlines()] for where in (["token"], there)
    )
    assert here == row
    assert (row["name"], row["role"], row["revoked_at"]) == ("ci", "viewer", None)
    assert output(*there, "list").split()[:2] == [row["id"], "viewer"]
    assert output(*there, "revoke", row["id"]) == f"revoked {row['id']} (ci)\n"
    assert "revoked" in output("token", "list")
    for where in (["token"], there):
        wrong = CliRunner().invoke(commands.app, [*where, "revoke", "a name/with a slash"]).exception
        assert isinstance(wrong, NotFound)
        assert "`tuner token list` shows the ids of all tokens" in str(wrong)


def test_change(search: Search, sqlite_store: Store) -> None:
    said = output("change", "halved", "--set", "notes=why", "--set", "space.lr.upper=0.5")
    assert said == f"changed notes, space of halved ({search.public_id}); this is its revision 1\n"
    record = sqlite_store.experiments.get(search.public_id)
    assert (record.spec.notes, record.spec.space["lr"]["upper"]) == ("why", 0.5)
    new = 'space.beta={"type": "uniform", "lower": 0, "upper": 1}'
    refused = CliRunner().invoke(commands.app, ["change", "halved", "--set", new]).exception
    assert isinstance(refused, SpecError)
    assert "beta is new; pass the value that it had in the trials so far" in str(refused)
    assert "revision 2" in output("change", "halved", "--set", new, "--set", "assume.beta=null")


def test_fields_that_hold_text_take_what_looks_like_json(search: Search, sqlite_store: Store) -> None:
    """The error was "expected a string, got 123", for what was typed without quotes."""
    output(
        "change",
        "halved",
        "--set",
        "notes=123",
        "--set",
        "tags.run=7",
        "--set",
        "tags.debug=true",
        "--set",
        'name="2024"',
    )
    spec = sqlite_store.experiments.get(search.public_id).spec
    assert (spec.notes, spec.name, spec.tags["run"], spec.tags["debug"]) == ("123", "2024", "7", "true")
    output("change", "2024", "--set", "name=1e3", "--set", "tags.run=null")
    spec = sqlite_store.experiments.get(search.public_id).spec
    assert (spec.name, "run" in spec.tags) == ("1e3", False)


@pytest.mark.parametrize("there", [False, True])
def test_delete(
    there: bool, server: str, sqlite_store: Store, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("TUNER_HOME", str(home))
    monkeypatch.setenv("TUNER_DATABASE_URL", sqlite_url)
    search = Search(sqlite_store, digits("halved", 6), start=T0)
    (home / "checkpoints" / search.public_id).mkdir(parents=True)
    address = ["--address", server] if there else []
    assert status(monkeypatch, *address, "delete", "halved") == 5, "it has not ended"
    assert output(*address, "delete", "halved", "--force").startswith(f"deleted {search.public_id},")
    assert status(monkeypatch, *address, "show", "halved") == 3
    if not there:
        assert not (home / "checkpoints" / search.public_id).exists()


def test_checkpoints_are_pinned(search: Search, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = json.loads(output("best", "halved"))["checkpoint_id"]
    assert output("pin", checkpoint).startswith(f"pinned {checkpoint} of trial ")
    assert sqlite_store.trials.checkpoint(checkpoint).pinned
    done = CliRunner().invoke(commands.app, ["unpin", "ckp_x", checkpoint])
    assert "no checkpoint ckp_x" in done.stderr
    assert f"unpinned {checkpoint}" in done.stdout
    assert not sqlite_store.trials.checkpoint(checkpoint).pinned
    assert status(monkeypatch, "pin", "ckp_x") == 3


def test_checkpoints_are_listed_newest_first(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    best = json.loads(output("best", "halved"))
    output("pin", best["checkpoint_id"])
    rows = [json.loads(line) for line in output("checkpoints", "halved", "--state", "all", "--json").splitlines()]
    assert len(rows) > 4
    [kept] = [row for row in rows if row["id"] == best["checkpoint_id"]]
    assert (kept["trial_number"], kept["state"], kept["pinned"]) == (best["trial"], "ready", True)
    lines = output("checkpoints", "halved").splitlines()
    assert [line.split()[0] for line in lines] == [row["id"] for row in rows if row["state"] == "ready"]
    assert any(line.startswith(f"{kept['id']}  trial {best['trial']} ") and "ready, pinned" in line for line in lines)
    of_trial = output("checkpoints", "halved", str(best["trial"]), "--limit", "1").splitlines()
    assert of_trial == [line for line in lines if f"trial {best['trial']} " in line][:1]
    assert status(monkeypatch, "checkpoints", "halved", "99") == 3


def test_projects_are_listed_and_changed(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    [line] = output("project", "list").splitlines()
    assert line.startswith("default      1 experiment     0 running")
    assert output("project", "change", "vision", "--warm-start", "auto").rstrip().endswith("warm_start auto")
    rows = [json.loads(line) for line in output("project", "list", "--json").splitlines()]
    assert [(row["name"], row["experiments"], row["warm_start"]) for row in rows] == [
        ("default", 1, None),
        ("vision", 0, "auto"),
    ]
    output("project", "change", "vision", "--warm-start", "none")
    assert len(output("project", "list").splitlines()) == 1
    assert status(monkeypatch, "project", "change", "no/name", "--warm-start", "auto") == 3


def test_the_audit_trail_is_the_same_in_this_home(
    server: str, sqlite_url: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(sqlite_store)
    monkeypatch.setenv("TUNER_ADDRESS", server)
    output("project", "change", "vision", "--warm-start", "auto")
    output("cancel", "digits")
    there = output("audit"), output("audit", "--limit", "1"), output("audit", "--json")
    monkeypatch.delenv("TUNER_ADDRESS")
    monkeypatch.setenv("TUNER_DATABASE_URL", sqlite_url)
    assert (output("audit"), output("audit", "--limit", "1"), output("audit", "--json")) == there
    newest, oldest = there[0].splitlines()
    assert (newest.endswith("/cancel"), oldest.endswith("/projects/vision")) == (True, True)
    assert there[1].splitlines() == [newest]
    assert [json.loads(line)["method"] for line in there[2].splitlines()] == ["POST", "PATCH"]


def test_a_configuration_is_enqueued_and_a_trial_is_forked(
    server: str, sqlite_url: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Search(sqlite_store, digits("halved", 6), start=T0)
    search.advance(60)
    [saved, *_] = [one for one in sqlite_store.trials.page(search.id).items if one.checkpoint is not None]
    monkeypatch.setenv("TUNER_DATABASE_URL", sqlite_url)
    for address in (server, None):  # on the service, and then on the database of this home
        if address is None:
            monkeypatch.delenv("TUNER_ADDRESS")
        else:
            monkeypatch.setenv("TUNER_ADDRESS", address)
        asked = output("enqueue", "halved", "--set", "lr=0.01", "--set", "width=32")
        assert asked == f"enqueued a trial of halved ({search.public_id}), which is running\n"
        [point] = sqlite_store.commands.pending([search.id])[0].payload["points"]
        assert point["params"] == {"lr": 0.01, "width": 32}
        search.obey()
        assert status(monkeypatch, "enqueue", "halved", "--set", "lr=low") == 2
        assert status(monkeypatch, "enqueue", "halved", "--set", "lr") == 2
        assert status(monkeypatch, "enqueue", "halved", "--set", "lr=0.01", "--set", "lr=0.02") == 2
    monkeypatch.setenv("TUNER_ADDRESS", server)
    for named in (("halved", str(saved.number)), (saved.public_id,)):
        done = CliRunner().invoke(commands.app, ["fork", *named, "--set", "lr=0.02"])
        assert (done.exit_code, done.stdout) == (0, "")
        assert "the new trial has not started yet" in done.stderr
        [point] = sqlite_store.commands.pending([search.id])[0].payload["points"]
        assert (point["params"]["lr"], point["parent"]) == (0.02, saved.number)
        search.obey()
    for wrong in (("halved", "0", "--learn"), ("halved", "--checkpoint", "ckp_x"), ("halved", "0", "--set", "lr")):
        assert status(monkeypatch, "fork", *wrong) == 2
    assert status(monkeypatch, "fork", "halved", "0", "--checkpoint", "ckp_x") == 3
