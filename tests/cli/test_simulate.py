"""`tuner simulate`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner.cli.commands import app
from tuner.errors import EntrypointError

FUNCTION = """
import warnings

import tuner

def evaluate(config, checkpoint):
    for step in range(1, 10):
        warnings.warn("divide by zero")
        yield tuner.Step(metrics={"loss": config["lr"] / step}, seconds=2.0, checkpoint=step)

def silent(config, checkpoint):
    return iter(())
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "curves.py").write_text(FUNCTION)
    return str(tmp_path / "curves.py")


def test_a_search_in_virtual_time(file: str) -> None:
    search = ["simulate", f"{file}:evaluate", "--param", "lr=choice(1, 2, 4)", "--num-samples", "6", "--max-t", "9"]
    search += ["--scheduler", "asha", "--search-alg", "random"]
    done = CliRunner().invoke(app, [*search, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["state"], sum(found["trials"].values()), found["best"]["config"]["lr"]) == ("completed", 6, 1)
    assert found["best"]["value"] == pytest.approx(1 / 9)
    assert 0 < found["seconds"] < 6 * 9 * 2.0
    shown = CliRunner().invoke(app, search).output
    assert re.search(r"completed after \d+ virtual seconds with [\d,]+ reports", shown)
    assert "best loss 0.111111 by trial" in shown
    assert shown.count("warning: divide by zero\n") == 1, "however many reports have warned"


def test_a_search_without_a_result_has_status_1(file: str) -> None:
    search = ["simulate", f"{file}:silent", "--param", "lr=uniform(0,1)", "--num-samples", "1", "--scheduler", "fifo"]
    done = CliRunner().invoke(app, search)
    assert done.exit_code == 1
    assert "trials: 1 failed\nerror: " in done.stdout


@pytest.mark.parametrize("target", ["nowhere", "tuner:nothing", "no_such_module:f"])
def test_what_cannot_be_imported_is_said(target: str) -> None:
    done = CliRunner().invoke(app, ["simulate", target, "--param", "lr=uniform(0,1)"])
    assert isinstance(done.exception, EntrypointError)
