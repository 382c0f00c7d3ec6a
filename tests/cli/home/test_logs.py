"""`tuner logs`: what the processes of a trial have written."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.store.examples import T0, a_spec, begin
from tuner.cli.commands import app
from tuner.cli.home.explain import failed
from tuner.cli.home.logs import with_line_feeds
from tuner.domain.keys import trial_id
from tuner.domain.logs import LogChunk
from tuner.errors import NotFound, SpecError
from tuner.settings import Settings
from tuner.store import Store


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the id of a trial of the experiment `digits` with two segments and two ranks."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    with Store.open(Settings.from_env().database_url) as store:
        store.migrate()
        made, _, _ = begin(store, segments=2, spec=a_spec("digits"))
        store.logs.add(made.id, {(0, 1): [LogChunk.of(0, 0, b"an earlier run\n", T0)]})
        for rank in (0, 1):
            content = f"epoch 1\n10%\r100%\r\nlast of {rank}".encode()
            end = LogChunk.of(rank, len(content), b"", T0)
            store.logs.add(made.id, {(0, 2): [LogChunk.of(rank, 0, content, T0), end]})
    return trial_id(made.public_id, 0)


def output(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["logs", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_newest_segment_is_printed_rank_by_rank(trial: str) -> None:
    log = "epoch 1\n10%\n100%\nlast of {}\n"
    assert output(trial) == "--- rank 0\n" + log.format(0) + "--- rank 1\n" + log.format(1)
    assert output("digits", "0", "--rank", "1") == log.format(1)


def test_it_is_printed_without_the_codes_of_its_colors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal showed "[31mred[0m" after a placeholder, and the page showed "red"."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    content = b"\x1b[1;31mValueError\x1b[0m: \x1b[35mno\x1b[0m\n"
    with Store.open(Settings.from_env().database_url) as store:
        store.migrate()
        made, _, _ = begin(store, spec=a_spec("colored"))
        end = LogChunk.of(0, len(content), b"", T0)
        store.logs.add(made.id, {(0, 1): [LogChunk.of(0, 0, content, T0), end]})
    assert output("colored", "0", "--rank", "0") == "ValueError: no\n"
    told = "\n".join(failed({"rank": 0, "traceback": "no traceback", "log_tail": content.decode()}))
    assert "log tail of rank 0:\nValueError: no\n" in told


def test_a_part_of_it_is_printed(trial: str) -> None:
    assert output(trial, "--segment", "1") == "an earlier run\n"
    assert output(trial, "--segment", "2", "--rank", "1") == output(trial, "--rank", "1")
    assert output(trial, "--rank", "0", "--tail", "1") == "last of 0\n"
    assert output(trial, "--rank", "0", "--search", "EPOCH") == "epoch 1\n"


def test_a_rank_that_printed_nothing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    with Store.open(Settings.from_env().database_url) as store:
        store.migrate()
        made, _, _ = begin(store, spec=a_spec("digits"))
        written = LogChunk.of(0, 0, b"epoch 1\n", T0)
        store.logs.add(made.id, {(0, 1): [written, LogChunk.of(0, 8, b"", T0), LogChunk.of(1, 0, b"", T0)]})
    trial = trial_id(made.public_id, 0)
    assert output(trial) == "--- rank 0\nepoch 1\n--- rank 1\n(no output)\n"
    assert output(trial, "--search", "loss") == "--- rank 0\n(no such line)\n--- rank 1\n(no such line)\n"


def test_an_output_that_was_deleted_is_not_called_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After TUNER_LOG_DAYS, the trial was said to have printed nothing."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    with Store.open(Settings.from_env().database_url) as store:
        store.migrate()
        made, _, _ = begin(store, segments=2, spec=a_spec("digits"))
        with store._database.write() as cursor:
            cursor.execute("UPDATE segment SET started_at = ?, ended_at = ? WHERE ordinal = 1", (T0, T0 + 1))
            cursor.execute("UPDATE segment SET started_at = ? WHERE ordinal = 2", (T0,))
    trial = trial_id(made.public_id, 0)
    said = output(trial, "--segment", "1")
    assert said.startswith("[no output of segment 1 is stored: it was deleted after TUNER_LOG_DAYS, or never stored")
    absent = CliRunner().invoke(app, ["logs", trial, "--segment", "1", "--rank", "5"])
    assert (absent.stdout, absent.stderr) == ("", "no output to show\n")
    running = CliRunner().invoke(app, ["logs", trial])
    assert (running.stdout, running.stderr) == ("", "this trial has printed nothing\n")


def test_a_long_output_says_what_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    line = b"x" * 999 + b"\n"
    with Store.open(Settings.from_env().database_url) as store:
        store.migrate()
        made, _, _ = begin(store, spec=a_spec("digits"))
        written = [LogChunk.of(0, 1000 * i, line, T0) for i in range(1500)]
        store.logs.add(made.id, {(0, 1): [*written, LogChunk.of(0, 1_500_000, b"", T0)]})
    trial = trial_id(made.public_id, 0)
    first, *lines = output(trial).splitlines()
    assert first == "[500,000 earlier bytes are not shown; to see the whole output, add --rank 0 --follow]"
    assert len(lines) == 1000
    assert output(trial, "--rank", "0", "--follow") == line.decode() * 1500
    assert output(trial, "--tail", "2") == line.decode() * 2
    assert output(trial, "--search", "x").startswith("x")


def test_a_log_that_is_followed_ends_with_its_rank(trial: str) -> None:
    assert output(trial, "--follow").endswith("last of 0")
    assert output(trial, "--rank", "1", "--follow").endswith("last of 1")


def test_a_line_break_that_is_divided_between_two_pieces_is_one() -> None:
    assert "".join(with_line_feeds(["10%\r", "100%\r", "\n", "epoch 1\r"])) == "10%\n100%\nepoch 1\n"


def test_an_experiment_alone_says_too_little(trial: str) -> None:
    with pytest.raises(SpecError, match="digits is an experiment: also give the number of one of its trials"):
        output("digits")


def test_a_segment_or_rank_that_the_trial_does_not_have_is_not_called_silent(trial: str) -> None:
    missing = CliRunner().invoke(app, ["logs", trial, "--segment", "9"])
    assert isinstance(missing.exception, NotFound)
    assert str(missing.exception) == "the trial has no segment 9; its newest is 2"
    silent = CliRunner().invoke(app, ["logs", trial, "--rank", "5"])
    assert (silent.exit_code, silent.stdout, silent.stderr) == (0, "", "no output to show\n")
