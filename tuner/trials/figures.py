"""What a rank's process uses of its machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def usage() -> dict[str, float]:
    """`cpu_s` (used so far, to take differences of), `rss_bytes`, and per visible GPU in use `gpu{i}_bytes`."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    found = {
        "cpu_s": (int(fields[11]) + int(fields[12])) / _TICKS,
        "rss_bytes": float(int(fields[21]) * _PAGE),
        "threads": float(fields[17]),
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            if torch.cuda.memory_reserved(device):
                found[f"gpu{device}_bytes"] = float(torch.cuda.memory_allocated(device))
                found[f"gpu{device}_reserved_bytes"] = float(torch.cuda.memory_reserved(device))
    return found


def oom_kills() -> int:
    """How many processes the kernel of this machine has killed for want of memory so far, this container's own included."""
    total = 0
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                total += int(line.split()[1])
        for line in Path("/sys/fs/cgroup/memory.events").read_text().splitlines():
            if line.startswith("oom_kill "):
                total += int(line.split()[1])
    except OSError:
        pass
    return total
