"""Curves of a metric: of all trials, of one trial, and the best value so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from tuner.api.schemas.forms import Model, Number
from tuner.domain.keys import trial_id
from tuner.domain.states import TrialState
from tuner.domain.trial import Cause
from tuner.store import (
    Curve,
    ExperimentRecord,
)
from tuner.store import Curves as CurvesRecord
from tuner.store import CurveSegment as CurveSegmentRecord


class CurveSegment(Model):
    ordinal: int
    cause: Cause
    x: Annotated[list[float], Field(description="iterations, steps or seconds, as requested")]
    y: Annotated[list[Number], Field(description="the values; null for values that are not finite")]


class MetricCurve(Model):
    metric: str
    segments: list[CurveSegment]


class TrialCurves(Model):
    """The curves of one trial, one for each metric that it has reported."""

    x: Literal["step", "time"]
    items: Annotated[
        list[MetricCurve], Field(description="the curves, in the order in which the metrics were first reported")
    ]

    @classmethod
    def of(cls, x: Literal["step", "time"], found: list[tuple[str, list[CurveSegmentRecord]]]) -> TrialCurves:
        return cls(x=x, items=[MetricCurve(metric=name, segments=_pieces(segments)) for name, segments in found])


class Series(Model):
    trial_id: str
    number: int
    state: TrialState
    best_value: Number
    segments: list[CurveSegment]


class BestSoFar(Model):
    x: Annotated[list[float], Field(description="seconds since the experiment's start")]
    y: Annotated[list[float], Field(description="the best value up to this time")]


class BestSoFarOf(BestSoFar):
    metric: str
    mode: Literal["min", "max"]


class Curves(Model):
    metric: str
    mode: Literal["min", "max"]
    x: Literal["step", "user_step", "time"]
    width: Annotated[
        int,
        Field(
            description=(
                "number of reports per bucket, of which the lowest and the highest are returned; 1: all reports are "
                "returned"
            )
        ),
    ]
    left_out: Annotated[int, Field(description="number of trials of the experiment that have no curve here")]
    series: Annotated[list[Series], Field(description="one curve for each trial")]
    best_so_far: Annotated[BestSoFar, Field(description="the best value over time")]

    @classmethod
    def of(
        cls,
        experiment: ExperimentRecord,
        metric: str,
        x: Literal["step", "user_step", "time"],
        found: CurvesRecord,
        left_out: int,
        best: tuple[list[float], list[float]],
    ) -> Curves:
        return cls(
            metric=metric,
            mode=mode_of(experiment, metric),
            x=x,
            width=found.width,
            left_out=left_out,
            series=[_series(experiment, curve) for curve in found.curves],
            best_so_far=BestSoFar(x=best[0], y=best[1]),
        )


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
    return [CurveSegment(ordinal=s.ordinal, cause=s.cause, x=list(s.x), y=list(s.y)) for s in segments]  # type: ignore[arg-type]
