"""The metrics that `GET /metrics` returns in Prometheus's format.

They have three sources: this process (requests), the database (experiments and trials by state), and the driver host
(`tuner.hosts.measures.metrics`), which is another process. Requests are counted when they are answered; the numbers from the
database and the driver host are read at each scrape.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from tuner import __version__
from tuner.errors import StoreError
from tuner.hosts.measures.metrics import BOUNDS
from tuner.store import Store

COUNTED_S = 5.0
"""Seconds for which the numbers from the database are cached, so that several scrapers cause no more queries than one."""

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Metrics:
    """Collects the metrics of one service."""

    def __init__(self, store: Store, host_metrics: Callable[[], Mapping[str, Any] | None]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "tuner_http_requests",
            "Requests by route and status.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "tuner_http_request_seconds",
            "Seconds from a request to the end of its response. Event streams last until their client disconnects.",
            ["method", "route"],
            registry=self._registry,
        )
        self._registry.register(_Stored(store))
        self._registry.register(_OfHost(host_metrics))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that has been answered."""
        method = method if method in _METHODS else "other"  # so that clients cannot create label values
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format. This queries the database."""
        return generate_latest(self._registry)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class _Stored(Collector):
    """Exports metrics from the database, such as the number of experiments and trials by state.

    While the database does not answer, the only metric is ``tuner_database_up 0``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._found: list[Family] = []

    def collect(self) -> Iterator[Family]:
        """Yield the metrics from the database. They are at most `COUNTED_S` seconds old."""
        with self._lock:
            if time.monotonic() > self._read_at + COUNTED_S:
                self._found = self._read()
                self._read_at = time.monotonic()
            yield from self._found

    def _read(self) -> list[Family]:
        up = GaugeMetricFamily("tuner_database_up", "1 if the database answers, else 0.")
        try:
            found = self._store.experiments.tally()
        except StoreError:
            up.add_metric([], 0)
            return [up]
        up.add_metric([], 1)
        experiments = GaugeMetricFamily("tuner_experiments", "Experiments by state.", labels=["project", "state"])
        for (project, state), count in found.experiments.items():
            experiments.add_metric([project, state], count)
        trials = GaugeMetricFamily("tuner_trials", "Trials by state.", labels=["project", "state"])
        for (project, state), count in found.trials.items():
            trials.add_metric([project, state], count)
        used = GaugeMetricFamily(
            "tuner_experiments_gpu_seconds",
            "GPU seconds that the trials of the experiments in the database have used.",
            labels=["project"],
        )
        saved = GaugeMetricFamily(
            "tuner_experiments_gpu_seconds_saved",
            "GPU seconds saved by stopping trials before max_t, estimated from the pace of each trial.",
            labels=["project"],
        )
        for family, seconds in ((used, found.gpu_seconds), (saved, found.gpu_seconds_saved)):
            for project, value in seconds.items():
                family.add_metric([project], value)
        return [up, experiments, trials, used, saved]

    def describe(self) -> list[Family]:
        """Return an empty list, so that registering this collector does not query the database."""
        return []


class _OfHost(Collector):
    """Exports the metrics of the driver host, and the version of the service."""

    def __init__(self, host_metrics: Callable[[], Mapping[str, Any] | None]) -> None:
        self._host_metrics = host_metrics

    def collect(self) -> Iterator[Family]:
        """Yield the metrics of the driver host. If there is no host, yield only the version and ``tuner_driver_up 0``."""
        info = GaugeMetricFamily("tuner_info", "The version of the service.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        found = self._host_metrics()
        yield GaugeMetricFamily("tuner_driver_up", "1 if the driver host answers, else 0.", value=found is not None)
        if found is None:
            return
        for name, about, value in (
            ("tuner_driver_experiments", "Experiments that the driver host drives now.", found["experiments"]),
            ("tuner_running_groups", "Worker groups that are running a trial.", found["groups"].get("running", 0)),
            (
                "tuner_waiting_groups",
                "Worker groups that are waiting for resources or starting.",
                found["groups"].get("waiting", 0),
            ),
            ("tuner_idle_groups", "Warm worker groups that wait for a trial.", found["groups"].get("idle", 0)),
            ("tuner_writer_queue", "Database writes that wait for the host's writer thread.", found["writer_queue"]),
        ):
            yield GaugeMetricFamily(name, about, value=value)
        yield CounterMetricFamily(
            "tuner_gpu_seconds", "GPU seconds of training since the driver host started.", found["gpu_seconds"]
        )
        yield CounterMetricFamily(
            "tuner_rank_seconds",
            "Seconds of training since the driver host started, summed over ranks.",
            found["rank_seconds"],
        )
        for name, key, about in (
            (
                "tuner_report_seconds",
                "reports",
                "Seconds from the arrival of a report at the driver host to its commit.",
            ),
            (
                "tuner_verdict_seconds",
                "verdicts",
                "Seconds from the arrival of a report to its commit, for reports at which ranks wait for a verdict.",
            ),
            ("tuner_commit_seconds", "writes", "Seconds that the driver host takes for one write to the database."),
        ):
            yield _histogram(name, about, found[key])

    def describe(self) -> list[Family]:
        """Return an empty list, so that registering this collector does not ask for the driver host's metrics."""
        return []


def _histogram(name: str, about: str, found: Mapping[str, Any]) -> HistogramMetricFamily:
    bounds = [*map(str, BOUNDS), "+Inf"]
    buckets = list(zip(bounds, itertools.accumulate(found["counts"]), strict=True))
    return HistogramMetricFamily(name, about, buckets=buckets, sum_value=found["sum"])
