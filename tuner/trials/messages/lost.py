"""Errors of worker processes that could not be started, died, or could not be reached for a moment.

Calls of ranks on Ray raise Ray's errors, and calls of the local executor's ranks raise the errors of this module. For
`except` clauses, the functions below return the errors of both kinds, without importing Ray.
"""

from __future__ import annotations

import sys

from tuner.errors import PlacementError


class NoRoom(PlacementError):
    """The group would fit on the cluster, but other work held the resources for too long. Another attempt may succeed."""


class LostAtStart(PlacementError):
    """Workers, or their node, died while they were being started. Another attempt may succeed."""


class RankLost(Exception):
    """A worker process of the local executor has ended.

    Attributes:
        status: its exit code, or the negative number of the signal that ended it; None if that is not known.
        killed_for: "memory" if the executor killed the process to free memory, else "".
    """

    def __init__(self, status: int | None, killed_for: str = "") -> None:
        super().__init__(f"the process has ended with status {status}")
        self.status, self.killed_for = status, killed_for


def lost_errors() -> tuple[type[BaseException], ...]:
    """Return the errors of a call to a rank whose process has ended or cannot be reached."""
    ray = sys.modules.get("ray")
    return (RankLost,) if ray is None else (RankLost, ray.exceptions.RayError)


def unavailable_errors() -> tuple[type[BaseException], ...]:
    """Return the errors of a call to a process that is alive but could not be reached for a moment."""
    ray = sys.modules.get("ray")
    return () if ray is None else (ray.exceptions.ActorUnavailableError,)
