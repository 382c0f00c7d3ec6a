"""Test the benchmark that needs a GPU, as far as a CPU goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from benchmarks import gpu


def test_without_a_device_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu, "devices", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert gpu.main() == 0
    assert json.loads(capsys.readouterr().out) == {"benchmark": "gpu", "left_out": "needs a GPU"}


def test_a_case_that_fails_names_its_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu, "_in_process", lambda name, gpus, limit_s, logs: (None, "CUDA error: out of memory"))
    monkeypatch.setattr(sys, "argv", ["gpu", "--cpu", "--only", "fsdp2", "compiled"])
    assert gpu.main() == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [(row["case"], row["error"]) for row in rows] == [
        ("fsdp2", "CUDA error: out of memory"),
        ("compiled", "CUDA error: out of memory"),
    ]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
def test_every_case_runs_on_a_cpu() -> None:
    """`test_a_case_that_fails_names_its_error` is the short form; it runs no case."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--cpu"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [row["case"] for row in rows] == list(gpu.CASES)
    assert not any("error" in row for row in rows)
