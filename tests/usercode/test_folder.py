"""Processes that are started in the user's current folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tuner.usercode.folder import python_without_folder


def test_a_process_runs_this_tuner_although_another_one_is_installed(tmp_path: Path) -> None:
    """A service that was started in a checkout had processes of the installed tuner."""
    other = tmp_path / "tuner" / "__init__.py"
    other.parent.mkdir()
    other.write_text("raise ImportError('the wrong one')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run(python_without_folder("tuner.plurals"), env=environment, check=True)
