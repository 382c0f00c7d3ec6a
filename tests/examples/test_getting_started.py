"""docs/getting_started.md: each of its code blocks runs; in the long test unchanged, in the short one with less training."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner.cli.commands import app

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "getting_started.md").read_text()
FEWER = {
    # one process, which stays warm, imports scikit-learn in half the time of two
    "second.py": {"EPOCHS = 9": "EPOCHS = 3", "num_samples=16": "num_samples=4, max_concurrent_trials=1"},
    "third.py": {"num_samples=8": "num_samples=2, max_concurrent_trials=1"},
}
BLOCKS: dict[str, str] = dict(re.findall(r"<!-- runs: ([^\n]*) -->\n```\w+\n(.*?)```", TEXT, re.DOTALL))


def test_every_block_is_one_that_is_run() -> None:
    assert list(BLOCKS) == ["first.py", "second.py", "third.py", "shell", "fourth.py"]
    assert TEXT.count("```") == 2 * len(BLOCKS)


@pytest.mark.ray
@pytest.mark.slow
def test_the_code_of_the_page(
    private_ray: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Run the scripts and the commands in this process, with the Ray of the tests."""
    monkeypatch.chdir(private_ray)
    monkeypatch.delitem(sys.modules, "second", raising=False)
    said = {}
    for name, code in BLOCKS.items():
        if name.endswith(".py"):
            for theirs, ours in FEWER.get(name, {}).items():
                assert theirs in code
                code = code.replace(theirs, ours)
            (private_ray / name).write_text(code)
            runpy.run_path(name, run_name="__main__")
            said[name] = "".join(capfd.readouterr())
        else:
            commands = [shlex.split(line)[1:] for line in code.splitlines()]
            results = [CliRunner().invoke(app, command) for command in commands]
            assert [result.exit_code for result in results] == [0] * len(results), results
            said[name] = "".join(result.output for result in results)
    check(said)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
def test_the_page_as_it_stands(tmp_path: Path) -> None:
    """Run the scripts one after the other, and the commands that show what they did."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    settings = {"HOME": str(tmp_path), "TUNER_HOME": str(tmp_path / "home"), "PATH": path}
    said = {}
    for name, code in BLOCKS.items():
        script = tmp_path / name
        script.write_text(code)
        command = [sys.executable, name] if name.endswith(".py") else ["bash", "-e", name]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, **settings, "RAY_OVERRIDE_RESOURCES": '{"CPU": 2}'},
            capture_output=True,
            text=True,
            timeout=280,
        )
        said[name] = done.stdout + done.stderr
        assert done.returncode == 0, said[name][-6000:]
    check(said)


def check(said: dict[str, str]) -> None:
    """Check what the scripts and the commands of the page have printed."""
    assert "3 full trainings" in said["first.py"]
    assert re.search(r"\{'lr': .*, 'width': \d+\} (0\.\d+)\naccuracy of the loaded model: \1\n", said["second.py"])
    assert "Checkpoint(" in said["third.py"]
    [accuracy] = re.findall(r"accuracy of the loaded model: (.*)", said["second.py"])
    assert f"accuracy of the best model: {accuracy}" in said["fourth.py"]
    assert said["shell"].count("epoch 0: accuracy 0.") >= 2  # in the log, and in what was searched in it
    assert all(name in said["shell"] for name in ("first", "second", "third"))
