"""Errors about worker processes that could not be started, have died, or were briefly unreachable.

A call to a rank on Ray raises Ray's errors, and a call to a rank of the local executor raises the errors of this module.
The functions of this module return the errors of both kinds for `except` clauses, without importing Ray.
"""

from __future__ import annotations

import sys
from typing import Any

from tuner.errors import PlacementError


class NoRoom(PlacementError):
    """The group would fit on the cluster, but other work held on to the resources for too long. Another attempt may succeed."""


class LostAtStart(PlacementError):
    """Worker processes or their node died while the processes were being started. Another attempt may succeed."""


CUT_OFF = 199
"""The exit status of a worker process of the local executor whose training code has closed the connection to the driver."""


class RankLost(Exception):
    """A worker process of the local executor has exited, or could not be started.

    Attributes:
        status: the exit code, or the negative number of the signal that killed the process; None if unknown.
        killed_for: "memory" if the executor killed the process to free memory, else "".
    """

    def __init__(self, status: int | None, killed_for: str = "", refused: str = "") -> None:
        """Create the error. refused: why the process could not be started; empty if it was started."""
        super().__init__(refused or f"the process has ended with status {status}")
        self.status, self.killed_for = status, killed_for


def lost_errors() -> tuple[type[BaseException], ...]:
    """Return the classes of errors that a call to a rank raises if its process has exited or cannot be reached."""
    exceptions = _of_ray()
    return (RankLost,) if exceptions is None else (RankLost, exceptions.RayError)


def unavailable_errors() -> tuple[type[BaseException], ...]:
    """Return the classes of errors that a call to a rank raises if its process is alive but could not be reached."""
    exceptions = _of_ray()
    return () if exceptions is None else (exceptions.ActorUnavailableError,)


def _of_ray() -> Any:
    """Return the module with Ray's errors; None if Ray is not loaded, or while another thread is importing it."""
    return getattr(sys.modules.get("ray"), "exceptions", None)
