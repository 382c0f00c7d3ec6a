"""Name the processes that drive experiments, so that a name shows whether the process is still alive."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil

ATTENDED_S = 10.0
"""Seconds without a call from a host's own service after which a service of an older version, or of changed code, may stop it."""

PROC = Path("/proc")


def owner_name(pid: int | None = None) -> str:
    """Return the name of a process on this machine, by default this process: ``host:pid:start``.

    On Linux, `start` consists of the clock ticks from the machine's boot to the start of the process, and the boot's id.
    So it does not depend on the machine's clock. On other systems, it is a time.
    """
    number = os.getpid() if pid is None else pid
    ticks, boot = _start_ticks(number), _boot_id()
    if ticks is not None and boot is not None:
        started = f"{ticks}@{boot}"
    else:
        started = f"{psutil.Process(number).create_time():.2f}"
    return f"{socket.gethostname()}:{number}:{started}"


def owner_is_dead(owner: str | None) -> bool:
    """Return True if the owner is a process of this machine that has exited; False if it is alive, or if that is unknown.

    That is unknown for a name from another boot, since another machine may have the same host name.
    """
    try:
        host, pid, started = (owner or "").rsplit(":", 2)
        if host != socket.gethostname():
            return False
        if "@" not in started:  # the name was written by an earlier version of tuner, or on a machine without /proc
            return bool(abs(psutil.Process(int(pid)).create_time() - float(started)) > 1.0)
        ticks, boot = started.split("@")
        if boot != _boot_id():
            return False
        return _start_ticks(int(pid)) != int(ticks)
    except psutil.NoSuchProcess:
        return True
    except ValueError:
        return False


def _start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the boot; None if there is no such process, or no /proc."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name of the program, in parentheses, may contain anything
    return None if fields[0] == "Z" else int(fields[19])


def _boot_id() -> str | None:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return None
