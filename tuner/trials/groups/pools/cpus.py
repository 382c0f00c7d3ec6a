"""Count the CPUs of this machine."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def cpus_here() -> int:
    """Return how many CPUs this process may use, given its affinity and the quota of its container."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # this function exists only on Linux
        count = os.cpu_count() or 1
    return max(1, min(count, _quota()))


def _quota() -> int:
    """Return the number of CPUs that this container's cgroup may use, rounded down; a large number if there is no limit."""
    with contextlib.suppress(OSError, ValueError):  # version 2
        quota, period = (CGROUP / "cpu.max").read_text(encoding="utf-8").split()
        return max(1, int(quota) // int(period))
    with contextlib.suppress(OSError, ValueError):  # version 1
        quota_us = int((CGROUP / "cpu" / "cpu.cfs_quota_us").read_text(encoding="utf-8"))
        if quota_us > 0:
            return max(1, quota_us // int((CGROUP / "cpu" / "cpu.cfs_period_us").read_text(encoding="utf-8")))
    return sys.maxsize
