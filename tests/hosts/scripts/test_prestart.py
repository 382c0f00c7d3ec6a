"""Test how many CPUs are counted, and processes that are started before they are needed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from tuner.hosts.scripts import prestart


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
    ],
)
def test_a_container_has_only_the_cpus_of_its_quota(
    files: dict[str, str], cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(prestart, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert prestart.cpus_here() == cpus


def test_what_was_started_early_is_taken_once_and_only_if_it_inherited_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prestart.drop()
    prestart.start(1)
    prestart.start(1)
    first = prestart.take()
    assert prestart._early is None
    prestart.start(1)
    monkeypatch.setattr(sys, "path", [*sys.path, "/another"])
    assert prestart._early is not None
    stale = prestart._early[0]
    second = prestart.take()
    assert second is not stale
    assert not psutil.pid_exists(stale.pid)
    for server in (first, second):
        server.kill()
        assert not psutil.pid_exists(server.pid)
