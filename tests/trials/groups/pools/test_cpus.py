"""Test how many CPUs are counted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tuner.trials.groups.pools import cpus


@pytest.mark.parametrize(
    ("files", "count"),
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
    files: dict[str, str], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cpus, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert cpus.cpus_here() == count
