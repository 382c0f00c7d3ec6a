"""The changes of an experiment, as its event streams send them."""

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

    seq: Annotated[int, Field(description="its event_seq, the position in the log")]
    trial_number: int
    segment: int
    cause: Annotated[Cause, Field(description="the cause of that segment")]
    iteration: int
    step: Annotated[int | None, Field(description="the step count of the training code, if it passed one")]
    time: Annotated[str, Field(description="when it was reported")]
    seconds: Annotated[float, Field(description="seconds since the experiment's start")]
    trial_seconds: Annotated[float, Field(description="seconds for which the trial has trained, over all its segments")]
    metrics: Annotated[
        dict[str, Number], Field(description="the values by metric name; null for values that are not finite")
    ]


class Improvement(Model):
    """A new best value of an objective."""

    seq: Annotated[int, Field(description="event_seq of its report")]
    metric: str
    seconds: Annotated[float, Field(description="seconds since the experiment's start")]
    value: Annotated[float, Field(description="the new best value")]


class Changes(Model):
    """The changes since an entry of an experiment's log: changed rows in their current state, and points of new reports.

    A row replaces the earlier row with the same id (decisions: the same `seq`; segments: the same trial and ordinal).
    """

    since: Annotated[int, Field(description="the message has the changes after this event_seq")]
    seq: Annotated[
        int, Field(description="the message has the changes up to this event_seq; also the id of the message")
    ]
    reset: Annotated[
        bool,
        Field(description="true if too much has changed: the lists are empty, and you have to read everything again"),
    ]
    experiment: Annotated[Experiment | None, Field(description="null if only its last_event_seq has changed")]
    trials: Annotated[list[Trial], Field(description="new and changed trials")]
    segments: Annotated[list[SegmentItem], Field(description="new and changed segments")]
    decisions: Annotated[list[Decision], Field(description="new decisions, and earlier ones with a new state")]
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
        """Return changes that have only the experiment's row, or tell the client to read everything again (`reset`)."""
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
    """Return the data of one server-sent event: a decision as `Decision`, another entry with its own fields."""
    data = {} if item.event == "model_fitted" else dict(item.data)  # a model is not readable, and may be large
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
        trial_seconds=point.trial_seconds,
        metrics=dict(point.metrics),
    )
