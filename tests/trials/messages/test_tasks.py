"""Test the tasks that run on a given node of a Ray cluster."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import ray

from tuner.trials.messages import tasks

pytestmark = pytest.mark.ray


def _dies_once(mark: str) -> str:
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def test_a_task_whose_process_is_killed_runs_again(local_ray: None, tmp_path: Path) -> None:
    """A trial that was out of memory was said to have lost its node, if the task that looked for the reason was killed, too."""
    here = ray.get_runtime_context().get_node_id()
    assert ray.get(tasks.on_node(here, _dies_once, str(tmp_path / "mark")), timeout=60) == "done"
