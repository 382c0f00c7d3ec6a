"""Traces of a thread that allocates, by memray."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tuner.trials.messages.profiling import ProfileRequest
from tuner.trials.runtime.measures import allocations
from tuner.trials.runtime.measures.profiler import ENDED_EARLY, Subject, traced

memray = pytest.importorskip("memray", reason="needs memray")


class Training:
    """A thread that keeps a tensor and an object of Python in each step, and drops two others."""

    def __init__(self) -> None:
        self.told, self.ended = threading.Event(), threading.Event()
        self.kept: list[Any] = []
        self.steps = 0
        self.thread = threading.Thread(target=self._train)
        self.thread.start()

    def _train(self) -> None:
        while not self.told.wait(0.001):
            self.kept.append(torch.zeros(1000))
            self.kept.append(bytes(100))
            torch.zeros(1000), bytes(100)
            self.steps += 1

    @property
    def subject(self) -> Subject:
        return Subject("seg", "trial 0, rank 0", self.thread.ident, self.ended)


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    begun = Training()
    yield begun
    begun.told.set()
    begun.thread.join()
    assert list(tmp_path.iterdir()) == [], "nothing is left of the trace"
    assert threading.getprofile() is None


def test_tensors_and_objects_of_python_are_shown(training: Training) -> None:
    found = traced(training.subject, ProfileRequest(kind="memory", duration_s=0.5))
    memory = found["memory"]
    lines = {line["code"]: line for line in memory["lines"]}
    tensors, objects = lines["self.kept.append(torch.zeros(1000))"], lines["self.kept.append(bytes(100))"]
    assert tensors["file"] == objects["file"] == __file__
    assert 0 < 4000 * 10 <= tensors["bytes"] < 6000 * training.steps
    assert 100 * 10 <= objects["bytes"] < tensors["bytes"]
    assert "torch.zeros(1000), bytes(100)" not in lines, "what it allocated was freed"
    assert tensors["bytes"] <= memory["traced_bytes"] <= memory["traced_peak_bytes"]
    assert (memory["tracer"], memory["tracer_bytes"]) == ("memray", None)
    assert allocations.MEMRAY_NOTE in found["notes"]
    frames = found["speedscope"]["shared"]["frames"]
    [profile] = found["speedscope"]["profiles"]
    largest = profile["samples"][max(range(len(profile["weights"])), key=profile["weights"].__getitem__)]
    assert frames[largest[-1]]["name"].endswith("_train")
    assert not any(frame["file"] == allocations.__file__ for frame in frames)


def test_a_trace_that_nobody_wants_is_not_read(training: Training) -> None:
    subject = training.subject
    subject.told.set()
    assert traced(subject, ProfileRequest(kind="memory", duration_s=60)) == ENDED_EARLY


def test_training_that_uses_memray_itself(training: Training, tmp_path_factory: pytest.TempPathFactory) -> None:
    with memray.Tracker(tmp_path_factory.mktemp("own") / "own.bin"):
        found = traced(training.subject, ProfileRequest(kind="memory", duration_s=0.2))
    assert found["memory"]["tracer"] == "tracemalloc"
    assert allocations.OTHER_TRACKER in found["notes"]
    assert "self.kept.append(bytes(100))" in {line["code"] for line in found["memory"]["lines"]}


def test_a_child_process_is_not_slowed_down(training: Training) -> None:
    tracer = allocations.started()
    try:
        assert threading.getprofile() is not None
        child = os.fork()
        if not child:
            os._exit(threading.getprofile() is not None)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        tracer.close()


FORKS = """
import os, sys
from tuner.trials.runtime.measures import allocations
tracer = allocations.started()
kept = bytearray(10_000_000)
if not (child := os.fork()):
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
tracer.read()
tracer.stop()
assert max(one.size for one in tracer.found()) >= 10_000_000
tracer.close()
"""


def test_a_child_process_that_ends_leaves_the_trace(tmp_path: Path) -> None:
    """A child process that ends in the ordinary way cleans up what it believes to be its own."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", FORKS], env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads a deleted file through /proc")
def test_a_killed_process_leaves_no_file(tmp_path: Path) -> None:
    code = "import os; from tuner.trials.runtime.measures import allocations as a; a.started(); os.kill(os.getpid(), 9)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == -9, done.stderr
    assert list(tmp_path.iterdir()) == []
