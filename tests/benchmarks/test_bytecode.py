"""Test that the processes of benchmarks need not compile what they import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_processes_of_a_benchmark_keep_the_bytecode_of_their_imports(tmp_path: Path) -> None:
    (tmp_path / "imported_here.py").write_text("")
    (tmp_path / "imported_by_child.py").write_text("")
    code = """
import subprocess, sys
import benchmarks.intervals
import imported_here
subprocess.run([sys.executable, "-c", "import imported_by_child"], check=True)
"""
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": path}
    environment.pop("PYTHONPYCACHEPREFIX", None)
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    kept = sorted(one.name.split(".")[0] for one in (tmp_path / "__pycache__").iterdir())
    assert kept == ["imported_by_child", "imported_here"]
