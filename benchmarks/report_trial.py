"""The search that the benchmarks of `tuner.report` run: a single trial."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tuner.sdk.result import Result

MILESTONES = {"type": "median", "grace_period": 1, "min_samples_required": 10}
"""A scheduler that judges every report, and lets the only trial continue."""


def trial(config: dict[str, Any]) -> None:
    """Report with a little work in between, as training does. The last report contains the durations of the others."""
    import tuner

    took = []
    for step in range(config["reports"]):
        until = time.perf_counter() + config["work_s"]
        while time.perf_counter() < until:
            pass
        metrics = {"loss": 1.0 / (step + 1), "accuracy": 0.5, "lr": 0.1, "norm": 2.0, "epoch": step}
        begun = time.perf_counter()
        tuner.report(metrics)
        took.append(time.perf_counter() - begun)
    cuts = statistics.quantiles(took, n=1000)
    tuner.report({"loss": 0.0, "p50": statistics.median(took), "p99": cuts[989], "p999": cuts[998]})


def search(
    function: Callable[[dict[str, Any]], None],
    config: Mapping[str, Any],
    executor: Literal["ray", "local"],
    scheduler: str | Mapping[str, Any] = MILESTONES,
) -> Result:
    """Run a search with a single trial of this configuration, without output."""
    import tuner

    return tuner.run(
        function,
        dict(config),
        metric="loss",
        mode="min",
        num_samples=1,
        scheduler=scheduler,
        search_alg="random",
        executor=executor,
        verbose=0,
    )
