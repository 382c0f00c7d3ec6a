"""Run scripts to their end, however slow the machine is."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any


def run_to_end(
    command: list[str], silence_s: float = 150.0, env: Mapping[str, str] = os.environ, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end. Kill it, and fail, once it has printed nothing for `silence_s` seconds.

    A busy machine makes a script slow, but not silent.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        options |= {"stdout": out, "stderr": err, "env": {**env, "PYTHONUNBUFFERED": "1"}}
        files = (out.fileno(), err.fileno())

        def printed() -> list[str]:
            # The script shares the positions in these files, so they are read without a seek.
            return [os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace") for file in files]

        with subprocess.Popen(command, **options) as process:
            before = ["", ""]
            try:
                while process.returncode is None:
                    try:
                        process.wait(silence_s)
                    except subprocess.TimeoutExpired:
                        now = printed()
                        assert now != before, f"{command} printed nothing for {silence_s:g} s after {now}"
                        before = now
            finally:
                process.kill()
        return subprocess.CompletedProcess(command, process.returncode, *printed())
