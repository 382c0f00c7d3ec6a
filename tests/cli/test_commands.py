"""`tuner list` and `tuner explain` on a real store."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import tuner
import tuner.examples
from tests.driver.bench import Bench
from tuner.cli import commands
from tuner.cli.commands import app
from tuner.cli.commands.several import with_numbers
from tuner.cli.home.explain import _has_the_log, failed
from tuner.cli.late_garbage import FIRST
from tuner.domain.batch import Batch
from tuner.domain.events import Failure
from tuner.errors import Conflict, NotFound, TunerError
from tuner.settings import Settings
from tuner.store import Store


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> str:
    """Write a search whose trial 0 failed into the database of this home."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    monkeypatch.setenv("TUNER_DATABASE_URL", sqlite_url)
    bench = Bench(num_samples=2)
    bench.started(0)
    bench.reported(0)
    trace = "Traceback (most recent call last):\n  train.py, line 3\nKeyError: 'width'"
    bench.ended(
        0,
        "failed",
        Failure(kind="user", message="KeyError: 'width'", rank=1, node="n1", traceback=trace, log_tail="step 7"),
    )
    with Store.open(sqlite_url) as store:
        record = store.experiments.create(bench.spec)
        epoch = store.drivers.claim(record.id, "test", 60.0, time.time())
        batch = Batch(
            log=bench.log, trials=list(bench.core.trials), state=bench.core.state, summary=bench.core.summary()
        )
        store.drivers.commit(record.id, epoch, batch, time.time())
        return record.public_id


def output(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output


def test_a_misspelled_setting_is_warned_of(experiment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_LEASES_S", "5")
    done = CliRunner().invoke(app, ["list"])
    assert done.exit_code == 0
    assert done.stderr.count("did you mean TUNER_LEASE_S?") == 1
    assert experiment in done.stdout


def test_a_warning_about_arguments_is_a_line_without_a_place(tmp_path: Path) -> None:
    """It had named a file of typer, with a line of its code."""
    (tmp_path / "train.py").write_text("")
    command = [sys.executable, "-m", "tuner", "run", "--param", "lr=[0.1,0.2]", "--scheduler", "none", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    lines = [line for line in done.stderr.splitlines() if line.startswith("warning: lr has the fixed value [0.1, 0.2]")]
    assert len(lines) == 1
    assert "typer" not in done.stderr


def test_list_names_the_experiment(experiment: str) -> None:
    (line,) = output("list").strip().splitlines()
    assert experiment in line
    assert "running" in line
    assert "random + fifo" in line


def test_explain_takes_an_experiment_and_a_number_and_shows_the_traceback(experiment: str) -> None:
    text = output("explain", experiment, "0")
    assert "fail" in text
    assert "rank 1 on n1: KeyError: 'width'" in text
    assert "train.py, line 3" in text
    assert "log tail of rank 1:\nstep 7" in text


def test_explain_shows_the_last_lines_once_where_they_stand_for_a_traceback() -> None:
    assert _has_the_log({"traceback": "no traceback: rank 1 raised nothing; the last lines of its log:\n  step 7"})
    assert not _has_the_log({"traceback": "Traceback (most recent call last):"})
    assert not _has_the_log({})


def test_explain_shows_the_stacks_of_ranks_that_hung() -> None:
    lines = list(
        failed({"cause": "hang", "stacks": {"0": "thread train:\n  in wait\n", "1": "thread train:\n  in load"}})
    )
    assert lines[:2] == [
        "\nstack of rank 0:\nthread train:\n  in wait",
        "\nstack of rank 1:\nthread train:\n  in load",
    ]


def test_explain_of_a_whole_experiment_names_its_trials(experiment: str) -> None:
    text = output("explain", experiment)
    assert "trial 0" in text
    assert "trial 1" in text
    assert "train.py" not in text


def test_an_experiments_name_does_as_well_as_its_id(experiment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert output("explain", "bench") == output("explain", experiment)
    assert output("explain", "bench", "0") == output("explain", experiment, "0")
    assert output("schedule", "bench") == output("schedule", experiment)
    resumed: list[str] = []

    def drive(store: Store, settings: Settings, called: str, *more: Any, **options: Any) -> Any:
        resumed.append(called)
        return SimpleNamespace(state="completed", best_trial=object())

    monkeypatch.setattr("tuner.sdk.run._drive", drive)
    output("resume", "bench")
    assert resumed == [experiment]


def test_no_password_is_printed(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Store.open
    monkeypatch.setattr(Store, "open", lambda url, **more: real(sqlite_url))
    given = CliRunner().invoke(app, ["migrate", "--database-url", "postgresql://me:hunter2@host/db"])
    assert given.stdout == "postgresql://me:***@host/db is up to date\n"
    assert "set TUNER_DATABASE_URL instead" in given.stderr  # other users see arguments in the list of processes
    assert "hunter2" not in given.stderr
    without = CliRunner().invoke(app, ["migrate", "--database-url", "postgresql://me@host/db"])
    assert (without.stdout, without.stderr) == ("postgresql://me@host/db is up to date\n", "")


def test_why_there_is_no_best_trial_is_said(experiment: str, sqlite_url: str) -> None:
    with Store.open(sqlite_url) as store:
        empty = store.experiments.create(replace(store.experiments.get(experiment).spec, name="empty")).public_id
    given = CliRunner().invoke(app, ["best", empty])
    assert (given.exit_code, given.stdout, given.stderr) == (1, "", "no best trial: no trial has reported yet\n")


@pytest.mark.parametrize("command", ["explain", "schedule", "resume"])
def test_a_name_that_several_have_is_answered_with_their_ids(experiment: str, sqlite_url: str, command: str) -> None:
    with Store.open(sqlite_url) as store:
        other = store.experiments.create(store.experiments.get(experiment).spec).public_id
    refused = CliRunner().invoke(app, [command, "bench"]).exception
    assert isinstance(refused, Conflict)
    assert str(refused).startswith(
        f"2 experiments have the name 'bench'; use an id (newest first): {other} (pending, of 20"
    )
    assert f"{experiment} (running, of 20" in str(refused)
    missing = CliRunner().invoke(app, [command, "bnch"]).exception
    assert isinstance(missing, NotFound)
    assert str(missing) == "no experiment 'bnch'; did you mean 'bench'?"
    assert "no trial 'trl_x'" in str(CliRunner().invoke(app, [command, "trl_x"]).exception)


@pytest.mark.parametrize(
    "command", [["explain"], ["logs"], ["schedule"], ["replay"], ["pause"], ["show"]], ids=lambda command: command[0]
)
def test_a_new_home_has_no_experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    """A misspelled TUNER_HOME is a home without a database."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "new"))
    missing = CliRunner().invoke(app, [*command, "nothing"]).exception
    assert isinstance(missing, NotFound)
    assert str(missing).startswith("no experiment 'nothing'; the database has no experiments (see TUNER_HOME)")


def test_declaring_the_commands_loads_only_what_they_are_declared_with() -> None:
    names = ("sqlalchemy", "numpy", "httpx", "fastapi", "ray")
    code = f"import sys, tuner.cli.commands; print([n for n in {names} if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_only_the_command_that_is_asked_for_is_built_and_as_among_the_others() -> None:
    def described(command: Any) -> Any:
        options = [(one.opts, one.help, one.default, one.required) for one in command.params]
        return type(command), command.name, command.help, options

    whole: Any = get_command(app)
    for name, command in whole.commands.items():
        asked: Any = get_command(commands._app_for([name, "--help"]))
        assert described(asked) == described(whole)
        assert described(asked.commands[name]) == described(command)
        assert len(asked.commands) == (len(whole.commands) if hasattr(command, "commands") else 1), name
    for words in ([], ["--address", "list"], ["lst"]):
        assert commands._app_for(words) is app


def test_ctrl_c_while_modules_are_imported_ends_the_command_without_a_traceback() -> None:
    """Garbage is not looked for meanwhile, since all that is imported stays."""
    code = """
import gc, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "tuner.cli.commands":
            print(gc.get_threshold()[0])
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from tuner.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, f"{FIRST}\n", "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_text_that_the_encoding_of_the_output_lacks_is_escaped(encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tuner", "docs", "semantics"],
        capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u" in done.stdout


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "not buffered"])
def test_output_that_cannot_be_written_is_an_error_without_a_traceback(buffered: bool) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tuner", "docs", "semantics"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment,
        )  # fmt: skip
    written = "error: the output, or a file, cannot be written: [Errno 28] No space left on device\n"
    assert (done.returncode, done.stderr) == (1, written)


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_what_was_printed_before_a_file_could_not_be_written_is_not_lost(closed: bool) -> None:
    code = f"""
import errno, sys
from tuner.cli import commands
def app(**options):
    print("all that came before")
    raise OSError(errno.ENOSPC, "no space", "model.bin")
if {closed}:
    sys.stdout = None  # as Python does if the command was started with >&-
commands.app = app
commands.main()
"""
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (1, "" if closed else "all that came before\n")
    assert done.stderr.startswith("error: the output, or a file, cannot be written: ")


def test_output_that_nobody_reads_ends_a_command_silently() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "tuner", "--version"]
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_number_names_a_trial_of_the_experiment_before_it() -> None:
    assert with_numbers(["a", "3", "5", "b"]) == [("a", 3), ("a", 5), ("b", None)]
    assert with_numbers(["trl_1", "7x", "exp_1", "0"]) == [("trl_1", None), ("7x", None), ("exp_1", 0)]
    assert with_numbers(["7", "a", "a", "1"]) == [("7", None), ("a", None), ("a", 1)]


def test_the_version_is_printed() -> None:
    assert output("--version") == f"{tuner.__version__}\n"
    done = subprocess.run([sys.executable, "-m", "tuner", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{tuner.__version__}\n"


class NoTorch:
    """Refuses to import torch, as in an environment without it."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'")


def test_the_demo_without_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [NoTorch(), *sys.meta_path])
    for name in ("torch", "tuner.examples.digits"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr(tuner.examples, "digits", raising=False)
    failed = CliRunner().invoke(app, ["demo"])
    assert isinstance(failed.exception, TunerError), failed.exception
    assert "pip install 'tuner-hpo[torch]'" in str(failed.exception)


def test_an_argument_that_is_not_in_the_encoding_of_the_locale_is_an_error(tmp_path: Path) -> None:
    """It names an experiment as bytes that cannot be looked up."""
    command = [sys.executable, "-X", "utf8=1", "-m", "tuner", "explain", b"s\xfcche"]
    environment = {**os.environ, "TUNER_HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(r"error: 's\udcfcche' has bytes that are not utf-8")
    assert "set LC_ALL to a locale with the encoding of this argument" in done.stderr, "that of UTF-8 is set already"
    assert done.stderr.count("\n") == 1
