"""Metrics: their names and their curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, func, select

from tuner.errors import SpecError
from tuner.store.records import Across, Curves, CurveSegment
from tuner.store.series import curves, thinning
from tuner.store.series.clocks import clock
from tuner.store.series.curves import Columns as CurveColumns
from tuner.store.sql.database import Database, at
from tuner.store.sql.tables import metric_key, segment, trial


class Metrics:
    def __init__(self, database: Database) -> None:
        self._database = database

    def names(self, experiment_id: int) -> list[str]:
        """Return the names of an experiment's metrics, in the order in which they were first reported."""
        return self.names_of([experiment_id])[experiment_id]

    def names_of(self, experiment_ids: Sequence[int]) -> dict[int, list[str]]:
        """Return each experiment's metric names, for several experiments with one query."""
        with self._database.read() as connection:
            return names_of(connection, experiment_ids)

    def curves(
        self,
        experiment_id: int,
        metric: str,
        *,
        x: str = "step",
        x_metric: str | None = None,
        points: int = 1000,
        low: float | None = None,
        high: float | None = None,
        trials: Sequence[int] | None = None,
    ) -> Curves:
        """Return the curve of a metric for each of these trials, by number.

        Args:
            experiment_id: the internal id.
            metric: the name of the metric.
            x: the horizontal axis: "step" (training_iteration), "user_step" (the step that the training code reported), "time"
                (seconds that the experiment had been running, without pauses), "trial_time" (seconds that the trial had been
                training, over all its segments) or "metric" (another metric of the same reports, such as an epoch). Reports
                without a value on this axis are left out.
            x_metric: the name of that metric.
            points: the approximate number of points in the longest curve. Shorter curves have proportionally fewer points. A
                curve contains the minimum and maximum of every few reports, and the first and last report of every segment.
            low: the start of the range, on the axis `x`.
            high: the end of the range.
            trials: the numbers of the trials; None for all trials.
        """
        wanted = {"x": x, "x_metric": x_metric, "points": points, "low": low, "high": high, "trials": trials}
        return self.curve_columns(experiment_id, metric, **wanted).as_curves()  # type: ignore[arg-type]

    def curve_columns(
        self,
        experiment_id: int,
        metric: str,
        *,
        x: str = "step",
        x_metric: str | None = None,
        points: int = 1000,
        low: float | None = None,
        high: float | None = None,
        trials: Sequence[int] | None = None,
    ) -> CurveColumns:
        """Return the same curves as `curves`, but with all points in two arrays, which is quicker."""
        if x not in get_args(Across):
            raise SpecError(f"expected one of {', '.join(get_args(Across))}, got {x!r}", "/x")
        if (x == "metric") != (x_metric is not None):
            raise SpecError("x_metric must name a metric if x is metric, and must be absent otherwise", "/x_metric")
        with self._database.cursor() as (cursor, connection):
            running = clock(connection, experiment_id)
            if x == "time":
                low, high = (None if end is None else float(running.times(end)) for end in (low, high))
            span = curves.Span(x, x_metric, low, high)  # type: ignore[arg-type]
            found = curves.read(cursor, experiment_id, metric, span, points, trials)
            return replace(found, x=running.seconds(found.x)) if x == "time" else found

    def curves_of_trial(
        self, experiment_id: int, trial: int, *, x: str = "step", x_metric: str | None = None, points: int = 1000
    ) -> list[tuple[str, list[CurveSegment]]]:
        """Return the curve of every metric that a trial has reported, in the order in which the metrics were first reported.

        `x`, `x_metric` and `points` are the same as for `curves`.
        """
        found = []
        for name in self.names(experiment_id):
            wanted = {"x": x, "x_metric": x_metric, "points": points, "trials": [trial]}
            for curve in self.curves(experiment_id, name, **wanted).curves:  # type: ignore[arg-type]
                found.append((name, list(curve.segments)))
        return found

    def best_so_far(self, experiment_id: int, metric: str, mode: str) -> tuple[list[float], list[float]]:
        """Return two lists with an item per improvement: how many seconds the experiment had been running, and the best value.

        Some improvements may be missing if there are very many points and the metric is not an objective with this `mode`.
        """
        with self._database.cursor() as (cursor, connection):
            times, values = curves.best_so_far(cursor, experiment_id, metric, mode)
            return clock(connection, experiment_id).seconds(times).tolist(), values

    def trained(self, experiment_id: int, seconds: Sequence[float], now: float) -> list[float]:
        """Return the seconds that all trials together had trained by each of these times.

        Args:
            experiment_id: the internal id.
            seconds: the times, as seconds that the experiment had been running.
            now: the current time, up to which running segments count.
        """
        query = (
            select(segment.c.started_at, func.coalesce(segment.c.ended_at, now))
            .join(trial, trial.c.id == segment.c.trial_id)
            .where(trial.c.experiment_id == experiment_id, segment.c.started_at.is_not(None))
        )
        with self._database.read() as connection:
            times = clock(connection, experiment_id).times(seconds)
            spans = np.array([tuple(row) for row in connection.execute(query)]).reshape(-1, 2)
        found: list[float] = (_before(spans[:, 0], times) - _before(spans[:, 1], times)).tolist()
        return found

    def thin(self, before: float, now: float | None = None) -> int:
        """Delete most points of the experiments that ended before this time. Return how many experiments were thinned.

        At the resolution of a screen, their curves look the same as before. Their logs can no longer be folded.
        """
        return thinning.thin(self._database, before, at(now))


def _before(marks: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for each of `times`, the sum of its distances to all earlier `marks`."""
    marks = np.sort(marks)
    count = np.searchsorted(marks, times, side="right")
    before: NDArray[np.float64] = count * times - np.r_[0.0, np.cumsum(marks)][count]
    return before


def names_of(connection: Connection, experiment_ids: Sequence[int]) -> dict[int, list[str]]:
    """Return the names of the metrics of these experiments, in the order in which they were first reported."""
    found: dict[int, list[str]] = {experiment_id: [] for experiment_id in experiment_ids}
    columns = select(metric_key.c.experiment_id, metric_key.c.name)
    query = columns.where(metric_key.c.experiment_id.in_(experiment_ids)).order_by(metric_key.c.id)
    for row in connection.execute(query):
        found[row.experiment_id].append(row.name)
    return found
