"""Small jobs on a rank's machine after the rank: what it left behind, and seeing that it is gone.

Each is a plain function that the group manager runs itself on its own node, and as a Ray task without resources on others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence

from tuner.trials.groups.failures import Findings
from tuner.trials.runtime import logs
from tuner.trials.runtime.process_stats import oom_kills

_GONE_S = 30.0  # a process with much memory takes a while to go
_POLL_S = 0.02


def inspect(log_path: str) -> Findings:
    return Findings(log_tail=logs.tail(log_path, 50), oom_kills=oom_kills())


def reap(pids: Sequence[int]) -> list[int]:
    """Wait until these processes are gone, help after a moment, and end what they started; the pids that are still there.

    Ranks lead process groups of their own, so what they started can be told by that.
    """
    deadline = time.monotonic() + _GONE_S
    hard = time.monotonic() + 0.5
    left = list(pids)
    while left:
        left = [pid for pid in left if _alive(pid)]
        if not left or time.monotonic() > deadline:
            break
        if time.monotonic() > hard:
            for pid in left:
                _signal(pid)
        time.sleep(_POLL_S)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    return left


def read_log(path: str, offset: int, limit: int) -> bytes:
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        file.seek(offset)
        return file.read(limit)
    return b""


def _alive(pid: int) -> bool:
    """A zombie counts as gone once its last thread is: then it holds nothing any more."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
        return state not in ("Z", "X") or len(os.listdir(f"/proc/{pid}/task")) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def _signal(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
