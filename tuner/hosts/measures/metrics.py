"""Measure a driver host, for `GET /metrics`.

The host is a separate process, possibly on another machine. The service requests its metrics once a second, over the
connection that it has anyway.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of a histogram, in seconds. A last bucket, without a bound, follows."""


@dataclass(slots=True)
class Histogram:
    """A histogram of durations."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        """Add a duration to the histogram."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def shown(self) -> dict[str, Any]:
        """Return the histogram as JSON: the number of durations in each bucket, and the sum of all durations."""
        return {"counts": list(self.counts), "sum": self.total}


@dataclass(slots=True)
class HostMetrics:
    """The metrics of one host since it started.

    reports: seconds between a report's arrival at the host and its commit.
    verdicts: the same for reports whose verdict the ranks wait for; this includes the time to decide.
    writes: seconds that one write to the database takes, excluding the time in the queue.
    """

    reports: Histogram = field(default_factory=Histogram)
    verdicts: Histogram = field(default_factory=Histogram)
    writes: Histogram = field(default_factory=Histogram)
    gpu_seconds: float = 0.0
    rank_seconds: float = 0.0
    _counted_at: float | None = None

    def count_use(self, gpus: float, ranks: int, now: float) -> None:
        """Add the GPU seconds and rank seconds since the last call.

        `gpus` and `ranks` are the numbers of GPUs and ranks that are training at the moment.
        """
        if self._counted_at is not None:
            self.gpu_seconds += gpus * (now - self._counted_at)
            self.rank_seconds += ranks * (now - self._counted_at)
        self._counted_at = now

    def shown(self) -> dict[str, Any]:
        """Return all metrics of the host as JSON."""
        return {
            "reports": self.reports.shown(),
            "verdicts": self.verdicts.shown(),
            "writes": self.writes.shown(),
            "gpu_seconds": self.gpu_seconds,
            "rank_seconds": self.rank_seconds,
        }
