"""Test that scripts find the service of their home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from tuner.cli.commands import app
from tuner.service_url import NAME, announced, service_url
from tuner.settings import Settings
from tuner.store import shown_url


def test_a_service_is_found_while_it_runs(tmp_path: Path) -> None:
    assert service_url(tmp_path, "sqlite:///a") is None
    with announced(tmp_path, "127.0.0.1", 8123, "sqlite:///a"):
        assert service_url(tmp_path, "sqlite:///a") == "http://127.0.0.1:8123"
        assert service_url(tmp_path, "sqlite:///b") is None, "a service of another database does not have the search"
        with announced(tmp_path, "0.0.0.0", 8124, "sqlite:///a"):
            assert service_url(tmp_path, "sqlite:///a") == "http://127.0.0.1:8123"
        assert service_url(tmp_path, "sqlite:///a") == "http://127.0.0.1:8123", "the later service is not the one"
    assert service_url(tmp_path, "sqlite:///a") is None
    assert not list(tmp_path.iterdir())


def test_a_service_is_found_after_a_step_of_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with announced(tmp_path, "localhost", 8123, "d"):
        began = psutil.Process().create_time()
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: began + 3600)
        assert service_url(tmp_path, "d") == "http://localhost:8123"


def test_a_service_that_lives_on_is_named_when_its_ray_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    with announced(tmp_path, "localhost", 8123, shown_url(Settings.from_env().database_url)):
        told = CliRunner().invoke(app, ["serve", "--stop"])
    assert told.stdout == "there was nothing to stop\n"
    assert "the service at http://localhost:8123 is still running" in told.stderr
    assert f"kill {os.getpid()}" in told.stderr
    assert CliRunner().invoke(app, ["serve", "--stop"]).stderr == ""


def test_the_end_of_a_service_leaves_that_of_another_database(tmp_path: Path) -> None:
    earlier = announced(tmp_path, "0.0.0.0", 1, "a")
    earlier.__enter__()
    assert service_url(tmp_path, "a") == "http://localhost:1"
    with announced(tmp_path, "::1", 2, "b"):
        earlier.__exit__(None, None, None)
        assert service_url(tmp_path, "b") == "http://[::1]:2"


def test_a_service_that_was_killed_is_not_found(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, sys; from tuner.service_url import announced\n"
        "with announced(pathlib.Path(sys.argv[1]), 'localhost', 8000, 'd'): os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    assert json.loads((tmp_path / NAME).read_text())["url"] == "http://localhost:8000"
    assert service_url(tmp_path, "d") is None


def test_a_service_serves_even_if_it_cannot_write_its_url(tmp_path: Path) -> None:
    with announced(tmp_path / "missing", "localhost", 8000, "d"):
        assert service_url(tmp_path / "missing", "d") is None


def test_a_broken_file_is_no_service(tmp_path: Path) -> None:
    for content in ("", "[]", "{", '{"pid": "x"}'):
        (tmp_path / NAME).write_text(content)
        assert service_url(tmp_path, "d") is None
