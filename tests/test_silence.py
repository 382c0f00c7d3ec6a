"""Test how long scripts may run in tests."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.silence import run_to_end


def test_a_script_runs_to_its_end() -> None:
    done = run_to_end([sys.executable, "-c", "import sys; print('ü'); sys.exit('over')"], env={"PYTHONUTF8": "1"})
    assert (done.returncode, done.stdout, done.stderr) == (1, "ü\n", "over\n")


def test_a_script_that_prints_nothing_is_ended() -> None:
    with pytest.raises(AssertionError, match=r"printed nothing for 0\.5 s after \['', ''\]"):
        run_to_end([sys.executable, "-c", "import sys; sys.stdin.read()"], silence_s=0.5, stdin=subprocess.PIPE)
