"""Curves: one metric of all trials, all metrics of one trial, and the best value so far."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_core import to_json

from tuner.api.schemas.forms import Model, Number
from tuner.domain.keys import trial_id
from tuner.domain.states import TrialState
from tuner.domain.trial import Cause
from tuner.store import (
    Across,
    Curve,
    CurveColumns,
    ExperimentRecord,
)
from tuner.store import Curves as CurvesRecord
from tuner.store import CurveSegment as CurveSegmentRecord


class CurveSegment(Model):
    ordinal: int
    cause: Cause
    last_iteration: Annotated[
        int, Field(description="the iteration of the newest report of this segment, even if that report is left out")
    ]
    x: Annotated[
        list[float],
        Field(
            description="the positions on the x axis: iterations, steps, seconds or values of x_metric, as requested"
        ),
    ]
    y: Annotated[list[Number], Field(description="the values of the metric; null for values that are not finite")]


class MetricCurve(Model):
    metric: str
    segments: list[CurveSegment]


class TrialCurves(Model):
    """The curves of one trial, one for each metric that it has reported."""

    x: Across
    x_metric: Annotated[str | None, Field(description="the metric on the horizontal axis if x is metric")]
    items: Annotated[
        list[MetricCurve], Field(description="the curves, in the order in which the metrics were first reported")
    ]

    @classmethod
    def of(cls, x: Across, x_metric: str | None, found: list[tuple[str, list[CurveSegmentRecord]]]) -> TrialCurves:
        return cls(
            x=x,
            x_metric=x_metric,
            items=[MetricCurve(metric=name, segments=_pieces(segments)) for name, segments in found],
        )


class Series(Model):
    trial_id: str
    number: int
    state: TrialState
    best_value: Number
    segments: list[CurveSegment]


class BestSoFar(Model):
    x: Annotated[
        list[float], Field(description="the times, as seconds that the experiment had been running, without pauses")
    ]
    y: Annotated[list[float], Field(description="the best value up to each of these times")]


class BestSoFarOf(BestSoFar):
    metric: str
    mode: Literal["min", "max"]
    until: Annotated[
        float, Field(description="the x of the experiment's end, or of the current time if it has not ended")
    ]


class Curves(Model):
    metric: str
    mode: Literal["min", "max"]
    x: Across
    x_metric: Annotated[str | None, Field(description="the metric on the horizontal axis if x is metric")]
    width: Annotated[
        int,
        Field(
            description=(
                "the number of reports in each bucket; only the lowest and highest report of each bucket are returned; 1: all "
                "reports are returned"
            )
        ),
    ]
    left_out: Annotated[
        int, Field(description="the number of trials of the experiment whose curves are not in this response")
    ]
    series: Annotated[list[Series], Field(description="one curve for each trial")]
    best_so_far: Annotated[BestSoFar, Field(description="the best value so far as a function of time")]

    @classmethod
    def of(
        cls,
        experiment: ExperimentRecord,
        metric: str,
        x: Across,
        x_metric: str | None,
        found: CurvesRecord,
        left_out: int,
        best: tuple[list[float], list[float]],
    ) -> Curves:
        return cls(
            metric=metric,
            mode=mode_of(experiment, metric),
            x=x,
            x_metric=x_metric,
            width=found.width,
            left_out=left_out,
            series=[_series(experiment, curve) for curve in found.curves],
            best_so_far=BestSoFar(x=best[0], y=best[1]),
        )


COLUMNS = "application/vnd.tuner.curves"
"""The media type of the bytes that `as_columns` returns."""

COLUMNS_WORDS = (
    "a binary form of the JSON response, faster to write and to read; it is sent if Accept names this media type, as the web UI "
    "does. It has four parts: the length of the head (uint32); the head; the y of all points (float64; NaN: not finite); "
    "the x of all points (int32 or float64, as `x_type` in the head says). The head is the JSON response, padded with spaces; in "
    "place of x and y, each segment has `count`, the number of its points. The points are in the order of the segments in the "
    "head. All numbers are little-endian"
)


def as_columns(
    experiment: ExperimentRecord,
    metric: str,
    x: Across,
    x_metric: str | None,
    found: CurveColumns,
    left_out: int,
    best: tuple[list[float], list[float]],
) -> bytes:
    """Return the content of a `Curves` in the binary form that `COLUMNS_WORDS` describes."""
    series: list[dict[str, Any]] = []
    for (number, state, value), parts in groupby(found.parts, lambda part: (part.trial, part.state, part.best_value)):
        segments = [
            {"ordinal": part.ordinal, "cause": part.cause, "last_iteration": part.last_iteration, "count": part.count}
            for part in parts
        ]
        one = {
            "trial_id": trial_id(experiment.public_id, number),
            "number": number,
            "state": state,
            "best_value": value,
        }
        series.append({**one, "segments": segments})
    x_type = "int32" if x == "step" else "float64"
    whole = {"metric": metric, "mode": mode_of(experiment, metric), "x": x, "x_metric": x_metric, "x_type": x_type}
    rest = {"width": found.width, "left_out": left_out, "series": series, "best_so_far": {"x": best[0], "y": best[1]}}
    head = to_json({**whole, **rest}, inf_nan_mode="null")
    head += b" " * (-(4 + len(head)) % 8)  # so that the numbers after the head are aligned to 8 bytes
    across = found.x.astype("<i4" if x_type == "int32" else "<f8")
    return b"".join([struct.pack("<I", len(head)), head, found.y.astype("<f8").data, across.data])


def mode_of(experiment: ExperimentRecord, metric: str) -> Literal["min", "max"]:
    """Return the mode of a metric. A metric that is not an objective has the mode of the first objective."""
    objectives = {objective.metric: objective.mode for objective in experiment.spec.objectives}
    return objectives.get(metric, experiment.spec.objective.mode)


def _series(experiment: ExperimentRecord, curve: Curve) -> Series:
    return Series(
        trial_id=trial_id(experiment.public_id, curve.trial),
        number=curve.trial,
        state=curve.state,  # type: ignore[arg-type]
        best_value=curve.best_value,
        segments=_pieces(curve.segments),
    )


def _pieces(segments: Sequence[CurveSegmentRecord]) -> list[CurveSegment]:
    return [
        CurveSegment(
            ordinal=s.ordinal,
            cause=s.cause,  # type: ignore[arg-type]
            last_iteration=s.last_iteration,
            x=list(s.x),
            y=list(s.y),
        )
        for s in segments
    ]
