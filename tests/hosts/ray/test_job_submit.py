"""A script with a search that is sent to a cluster by `ray job submit`."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tuner.store import Store

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("opencensus") is None, reason="needs `pip install 'ray[default]'`"),
]

ROOT = Path(__file__).parents[3]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
ENVIRONMENT = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
MODULE = """
import tuner

def train(config):
    context = tuner.get_context()
    for epoch in range(3):
        tuner.report({"loss": config["x"] / (epoch + 1), "ranks": context.get_world_size()})
"""
SEARCH = """
import tuner
from mine import train

if __name__ == "__main__":
    result = tuner.run(
        train, {"x": tuner.uniform(0, 1)}, metric="loss", mode="min", max_t=3, num_samples=2, num_workers=NUMBER,
        search_alg="random", scheduler="fifo", name="submitted", verbose=0,
    )
    print("ended:", result.state, result.error, [trial.iterations for trial in result.trials])
"""


@pytest.fixture(scope="module")
def dashboard() -> Iterator[str]:
    """Start a head with a dashboard, and yield the address to which jobs are submitted."""
    folder = Path(tempfile.mkdtemp(prefix="tj"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = [f"--dashboard-port={port}", "--dashboard-agent-listen-port=0", f"--temp-dir={folder}"]
    try:
        done = subprocess.run(
            [*RAY, "start", "--head", "--port=0", "--num-cpus=2", "--include-dashboard=true", *places],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        yield f"http://127.0.0.1:{port}"
    finally:
        for process in psutil.process_iter():
            try:
                if str(folder) in " ".join(process.cmdline()):
                    process.kill()
            except psutil.Error:
                pass


def submitted(dashboard: str, folder: Path, workers: int) -> subprocess.Popen[str]:
    folder.mkdir()
    (folder / "mine.py").write_text(MODULE)
    (folder / "search.py").write_text(SEARCH.replace("NUMBER", str(workers)))
    environment = f'{{"env_vars": {{"TUNER_HOME": "{folder}_home", "PYTHONPATH": "{ROOT}"}}}}'
    return subprocess.Popen(
        [*RAY, "job", "submit", "--address", dashboard, "--working-dir", str(folder), "--runtime-env-json", environment]
        + ["--", sys.executable, "search.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRONMENT,
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_a_search_runs_as_a_job(dashboard: str, tmp_path: Path, workers: int) -> None:
    """The ranks import a module of the directory that is sent with the job."""
    job = submitted(dashboard, tmp_path / "code", workers)
    said, _ = job.communicate(timeout=300)
    assert job.returncode == 0, said
    assert "ended: completed None [3, 3]" in said, said
    with Store.open(f"sqlite:///{tmp_path}/code_home/tuner.db") as store:
        [record] = store.experiments.page().items
        segments = [found for each in store.trials.segments(record.id).values() for found in each]
    assert [len(segment.placement["ranks"]) for segment in segments] == [workers] * 2
