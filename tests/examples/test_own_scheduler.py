"""docs/own_scheduler.md: the example runs, in virtual time and on a cluster."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_scheduler.py"


@pytest.mark.ray
@pytest.mark.usefixtures("private_ray")
def test_a_scheduler_of_ones_own_is_simulated_and_run(capfd: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    check(capfd.readouterr().out)


@pytest.mark.ray
@pytest.mark.long
def test_the_example_is_a_script() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    check(done.stdout)


def check(output: str) -> None:
    lines = output.splitlines()
    assert any(line.startswith("Stop stopped half-way, at 5") for line in lines)
    assert lines[-1].startswith("completed: ")
    stopped = int(lines[-1].split()[1])
    assert 0 < stopped < 12
