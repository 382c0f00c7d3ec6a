"""First in, first out: every trial runs to its end."""

from __future__ import annotations

from typing import Any

from tuner.schedulers.base import Scheduler


class FIFOScheduler(Scheduler):
    """Starts a new trial whenever a worker group is free, and lets every trial run to `max_t` or until its function returns.

    This is the baseline for comparisons. Use it when you want the final value of every trial.
    """

    TYPE = "fifo"
    SEVERAL_OBJECTIVES = True

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE}
