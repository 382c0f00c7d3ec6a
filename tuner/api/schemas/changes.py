"""Changes of an experiment, as its streams send them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from tuner.api.schemas.decisions import Decision
from tuner.api.schemas.experiments import Experiment
from tuner.api.schemas.forms import Model, Number, rfc3339
from tuner.api.schemas.trials import SegmentItem, Trial
from tuner.domain.keys import trial_id
from tuner.domain.trial import Cause
from tuner.store import Changes as ChangesRecord
from tuner.store import (
    ReportPoint,
    StreamItem,
)


class Point(Model):
    """One report: a point on the curve of each of its metrics."""

    seq: Annotated[int, Field(description="its place in the log")]
    trial_number: int
    segment: int
    cause: Annotated[Cause, Field(description="why that segment was started")]
    iteration: int
    step: Annotated[int | None, Field(description="the training code's own count, if it gives one")]
    time: Annotated[str, Field(description="when it was reported")]
    seconds: Annotated[float, Field(description="since the experiment's start")]
    metrics: Annotated[dict[str, Number], Field(description="the values by name; null where one is not finite")]


class Improvement(Model):
    """A new best value of an objective."""

    seq: Annotated[int, Field(description="the place of its report in the log")]
    metric: str
    seconds: Annotated[float, Field(description="since the experiment's start")]
    value: Annotated[float, Field(description="the new best value")]


class Changes(Model):
    """The changes after one entry of an experiment's log: rows as they are now, and the points of new reports.

    A row replaces the one with the same id (decisions: the same `seq`; segments: the same trial and ordinal).
    """

    since: Annotated[int, Field(description="the event_seq after which this changed")]
    seq: Annotated[int, Field(description="the event_seq up to which the log is covered; also the id of the message")]
    reset: Annotated[bool, Field(description="too much has changed: read everything again; the lists are empty")]
    experiment: Annotated[Experiment | None, Field(description="null while only its last_event_seq changes")]
    trials: Annotated[list[Trial], Field(description="new and changed trials")]
    segments: Annotated[list[SegmentItem], Field(description="new and changed segments")]
    decisions: Annotated[list[Decision], Field(description="new ones, and earlier ones with a new state")]
    points: Annotated[list[Point], Field(description="new reports, in the order of the log")]
    best: Annotated[list[Improvement], Field(description="new best values, in the order of the log")]

    @classmethod
    def of(cls, found: ChangesRecord, experiment: Experiment | None) -> Changes:
        public = found.experiment.public_id
        return cls(
            since=found.since,
            seq=found.bookmark.seq,
            reset=False,
            experiment=experiment,
            trials=[Trial.of(record, found.experiment) for record in found.trials],
            segments=[SegmentItem.of(item) for item in found.segments],
            decisions=[Decision.of(public, record) for record in found.decisions],
            points=[_point(point) for point in found.points],
            best=[Improvement.model_validate(one, from_attributes=True) for one in found.best],
        )

    @classmethod
    def bare(cls, seq: int, experiment: Experiment | None = None, *, reset: bool = False) -> Changes:
        """Return changes with only the experiment's row, or with the request to read everything again."""
        return cls(
            since=seq,
            seq=seq,
            reset=reset,
            experiment=experiment,
            trials=[],
            segments=[],
            decisions=[],
            points=[],
            best=[],
        )


def stream_data(experiment: str, item: StreamItem) -> dict[str, Any]:
    """Return the data of one server-sent event: a decision as `Decision`, others with their own fields."""
    data = {} if item.event == "model_fitted" else dict(item.data)  # nobody can read a model, and it may be large
    head: dict[str, Any] = {"seq": item.seq, "time": rfc3339(item.time), "kind": item.event}
    if item.event == "decision":
        head["kind"] = data.pop("kind")
        head |= {"trial_number": None, "trial_id": None}
    if item.trial is not None:
        head |= {"trial_number": item.trial, "trial_id": trial_id(experiment, item.trial)}
    return {**head, **data}


def _point(point: ReportPoint) -> Point:
    return Point(
        seq=point.seq,
        trial_number=point.trial,
        segment=point.segment,
        cause=point.cause,
        iteration=point.iteration,
        step=point.step,
        time=rfc3339(point.time),
        seconds=point.seconds,
        metrics=dict(point.metrics),
    )
