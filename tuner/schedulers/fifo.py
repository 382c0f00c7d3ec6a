"""First in, first out: every trial runs to its end."""

from __future__ import annotations

from typing import Any

from tuner.schedulers.base import Scheduler


class FIFOScheduler(Scheduler):
    """Starts a new trial whenever one more concurrent trial is allowed, and lets every trial run to its end.

    A trial ends at `max_t`, or when its function returns.

    This is the baseline for comparisons. Use it when you want the final value of every trial.
    """

    TYPE = "fifo"
    SEVERAL_OBJECTIVES = True

    def to_json(self) -> dict[str, Any]:
        return {"type": self.TYPE}
