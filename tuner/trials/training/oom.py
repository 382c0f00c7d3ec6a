"""Find out whether the kernel has killed a process on this machine because memory ran out."""

from __future__ import annotations

from pathlib import Path

KILLED = "killed by the kernel because memory ran out (SIGKILL, and the kernel's count of OOM kills went up)"


def oom_kills() -> int:
    """Return how many processes this machine's kernel has killed so far because memory ran out.

    The result is the sum of the kernel's own count and the count of this container's cgroup.
    """
    total = 0
    try:
        for line in Path("/proc/vmstat").read_text(encoding="utf-8").splitlines():
            if line.startswith("oom_kill "):
                total += int(line.split()[1])
        for line in Path("/sys/fs/cgroup/memory.events").read_text(encoding="utf-8").splitlines():
            if line.startswith("oom_kill "):
                total += int(line.split()[1])
    except OSError:
        pass
    return total
