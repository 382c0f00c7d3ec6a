"""Measure what a process uses."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from tuner.trials.runtime.measures import process_stats

BUSY = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass\nprint('done', flush=True); input()"


def test_a_process_tells_its_memory_threads_and_time() -> None:
    before = time.time()
    found = process_stats.usage()
    assert before <= found["time"] <= time.time()
    assert found["rss_bytes"] > 1e7
    assert found["threads"] >= 1
    assert not any(name.startswith("gpu") for name in found)


def test_cpu_time_counts_from_where_it_is_told_and_includes_children_dead_or_alive() -> None:
    before = process_stats.cpu_s()
    assert process_stats.usage(before)["cpu_s"] < 0.3
    child = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        child.stdout.readline()
        alive = process_stats.usage(before)["cpu_s"]
    finally:
        child.communicate(b"\n")
    assert alive >= 0.45
    assert process_stats.usage(before)["cpu_s"] >= alive - 0.05


def test_a_process_without_children_does_not_search_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many short trials asks for the CPU time when it begins."""
    monkeypatch.setattr(process_stats, "_children_cpu_s", lambda pid: 1e9)
    monkeypatch.setattr(process_stats, "has_children", lambda: False)
    assert process_stats.cpu_s() < 1e9
    monkeypatch.setattr(process_stats, "has_children", lambda: True)
    assert process_stats.cpu_s() >= 1e9


def test_a_process_knows_whether_it_has_children() -> None:
    code = """if True:
        import subprocess
        import sys

        from tuner.trials.runtime.measures.process_stats import has_children

        assert not has_children()
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        assert has_children()
        child.kill()
        child.wait()
        assert not has_children()
    """
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("told", [True, False])
def test_gpus_in_use_are_told_together(monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    def utilization(device: int) -> int:
        if not told:
            raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed or it can't be imported.")
        return [90, 50, 7][device]

    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 3,
        memory_reserved=[100, 60, 0].__getitem__,
        memory_allocated=[70, 30, 0].__getitem__,
        utilization=utilization,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    found = process_stats.usage()
    assert (found["gpu_bytes"], found["gpu_reserved_bytes"]) == (100.0, 160.0), "the third GPU is not used"
    assert found.get("gpu_percent") == (70.0 if told else None)


def test_a_process_that_has_ended_has_no_children() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert process_stats._children_cpu_s(gone.pid) == 0.0
    assert process_stats._children_cpu_s(os.getpid()) >= 0.0
