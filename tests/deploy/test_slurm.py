"""The batch script for SLURM, with programs that stand for SLURM's own and for Ray: what it starts, and how it ends."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services import until

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {
    "scontrol": r"printf 'node1\nnode2\n'",
    "srun": 'echo "srun $*" >>"$CALLS"; while [[ $1 == -* ]]; do [[ $1 == -w ]] && shift; shift; done; exec "$@"',
    "hostname": "echo 10.0.0.1 fe80::1",
    "ray": "exit 0",
    "python": f'exec "{sys.executable}" "$@"',
}
SCRIPT = """
import os, signal, sqlite3, sys, time

def pause(number, frame):
    with sqlite3.connect(os.environ["TUNER_DATABASE_URL"].removeprefix("sqlite:///")) as database:
        database.execute("CREATE TABLE IF NOT EXISTS run (arguments)")
        database.execute("INSERT INTO run VALUES (?)", (" ".join([*sys.argv[1:], os.environ["RAY_ADDRESS"]]),))
    sys.exit()

signal.signal(signal.SIGINT, pause)
open("started", "w").close()
time.sleep(60)
"""

START = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
"""Starts a program that receives SIGINT, even if pytest runs in the background of a shell, where the signal is ignored."""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_it_starts_ray_on_all_nodes_pauses_the_search_and_keeps_its_database(tmp_path: Path) -> None:
    """The second job, whose own disk is empty, goes on with the database of the first."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "search.py").write_text(SCRIPT)
    for job, argument in (("7", "first"), ("8", "again")):
        disk = tmp_path / f"disk{job}"
        disk.mkdir()
        (tmp_path / "started").unlink(missing_ok=True)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TUNER_")},
            "PATH": f"{programs}:{os.environ['PATH']}", "CALLS": str(tmp_path / f"calls{job}"), "TMPDIR": str(disk),
            "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "node[1-2]",
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-c", START, "bash", str(ROOT / "deploy/slurm/tuner.sbatch"), "search.py", argument],
            cwd=tmp_path, env=environment, start_new_session=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            until("the script", (tmp_path / "started").exists)
            process.send_signal(signal.SIGINT)  # as `--signal=B:INT@300` does: to the batch script alone
            assert process.wait(timeout=30) == 0
        finally:
            # SLURM kills the processes that a job leaves behind: here the one that copies the database.
            os.killpg(process.pid, signal.SIGKILL)
        port = 20000 + int(job)
        calls = (tmp_path / f"calls{job}").read_text()
        assert f"-w node1 ray start --head --port={port} --node-ip-address=10.0.0.1 " in calls
        assert f"-w node2 ray start --address=10.0.0.1:{port} --block" in calls
    with sqlite3.connect(tmp_path / "tuner-home" / "saved.db") as saved:
        rows = saved.execute("SELECT arguments FROM run").fetchall()
    assert rows == [("first 10.0.0.1:20007",), ("again 10.0.0.1:20008",)]
