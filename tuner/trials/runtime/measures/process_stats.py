"""Measure the resource usage of a rank's process."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_s() -> float:
    """Return the CPU seconds that this process and its descendants, dead or alive, have used so far."""
    own = sum(os.times()[:4])
    return own + _children_cpu_s(os.getpid()) if has_children() else own


def has_children() -> bool:
    """Return whether this process has child processes, alive or dead. One system call is faster than reading /proc."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def usage(since_cpu_s: float = 0.0) -> dict[str, float]:
    """Return the current resource usage of this process, as a dict with these keys.

    - time: the time of the measurement, in seconds since the epoch
    - cpu_s: the CPU seconds of this process and its child processes, minus `since_cpu_s`
    - rss_bytes, threads: the memory and the number of threads of this process alone
    - gpu_bytes: the GPU memory in PyTorch's tensors
    - gpu_reserved_bytes: the GPU memory that PyTorch's allocator holds
    - gpu_percent: the utilization of this process's GPUs by all processes; only if nvidia-ml-py is installed

    The GPU values are absent if the process uses no GPU.
    """
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    found = {
        "time": time.time(),
        "cpu_s": cpu_s() - since_cpu_s,
        "rss_bytes": float(int(fields[21]) * _PAGE),
        "threads": float(fields[17]),
    }
    return found | gpu_usage()


def rss_bytes() -> int:
    """Return the resident memory of this process, without its children."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * _PAGE


def cuda() -> Any | None:
    """Return `torch.cuda` if this process uses a GPU with torch; else None."""
    torch = sys.modules.get("torch")
    found = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
    return torch.cuda if found and torch is not None else None


def gpu_usage() -> dict[str, float]:
    """Return the GPU values of `usage`."""
    used = cuda()
    return _gpu_usage(used) if used is not None else {}


def _children_cpu_s(pid: int) -> float:
    """Return the CPU seconds of all live descendants of a process, such as the workers of a data loader."""
    total = 0.0
    try:
        children = [
            child
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text(encoding="utf-8").split()
        ]
    except OSError:  # the process has just exited, or this kernel does not list children
        return 0.0
    for child in children:
        with contextlib.suppress(OSError):
            fields = (
                Path(f"/proc/{child}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            )
            total += sum(map(int, fields[11:15])) / _TICKS + _children_cpu_s(int(child))
    return total


def _gpu_usage(cuda: Any) -> dict[str, float]:
    devices = [device for device in range(cuda.device_count()) if cuda.memory_reserved(device)]
    if not devices:
        return {}
    found = {
        "gpu_bytes": float(sum(cuda.memory_allocated(device) for device in devices)),
        "gpu_reserved_bytes": float(sum(cuda.memory_reserved(device) for device in devices)),
    }
    with contextlib.suppress(Exception):  # nvidia-ml-py or the GPU driver does not support it
        found["gpu_percent"] = sum(cuda.utilization(device) for device in devices) / len(devices)
    return found


def memory_used() -> float:
    """Return the fraction of memory that is in use, from 0 to 1.

    In a container with a memory limit, return the larger of the container's and the machine's fraction.
    """
    memory = psutil.virtual_memory()
    part = 1.0 - float(memory.available) / float(memory.total)
    with contextlib.suppress(OSError, ValueError, KeyError, ZeroDivisionError):  # there is no limit, or no cgroups v2
        limit = int((_CGROUP / "memory.max").read_text(encoding="utf-8"))
        lines = (_CGROUP / "memory.stat").read_text(encoding="utf-8").splitlines()
        cached = int(dict(line.split() for line in lines)["inactive_file"])
        part = max(part, (int((_CGROUP / "memory.current").read_text(encoding="utf-8")) - cached) / limit)
    return part


_CGROUP = Path("/sys/fs/cgroup")
