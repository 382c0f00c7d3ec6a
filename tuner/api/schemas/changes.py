"""The changes of an experiment, as its event streams send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from tuner.api.schemas.decisions import Decision
from tuner.api.schemas.experiments import Experiment
from tuner.api.schemas.forms import Json, Model, Number, PageOf
from tuner.api.schemas.trials import SegmentItem, Trial
from tuner.domain.keys import trial_id
from tuner.domain.timestamps import rfc3339
from tuner.domain.trial import Cause
from tuner.store import Changes as ChangesRecord
from tuner.store import (
    ReportPoint,
    StreamItem,
)


class Point(Model):
    """One report: a point on the curve of each of its metrics."""

    seq: Annotated[int, Field(description="the report's event_seq, its position in the log")]
    trial_number: int
    segment: int
    cause: Cause
    iteration: int
    step: Annotated[
        int | None, Field(description="the step count that the training code passed; null if it passed none")
    ]
    time: Annotated[str, Field(description="when the report was made")]
    seconds: Annotated[float, Field(description="how long the experiment had been running, in seconds")]
    trial_seconds: Annotated[
        float, Field(description="how long the trial had been training, in seconds, over all its segments")
    ]
    metrics: Annotated[
        dict[str, Number], Field(description="the values of the metrics by name; null for values that are not finite")
    ]


class Improvement(Model):
    """A new best value of an objective."""

    seq: Annotated[int, Field(description="the event_seq of the report with the new best value")]
    metric: str
    seconds: Annotated[float, Field(description="how long the experiment had been running, in seconds")]
    value: Annotated[float, Field(description="the new best value")]


class Changes(Model):
    """The changes of an experiment since an entry of its log: the current state of changed rows, and the new reports.

    Each row replaces the row with the same id that the client already has. Decisions are identified by their `seq`, and
    segments by their trial and ordinal.
    """

    since: Annotated[int, Field(description="the event_seq after which the changes in this message begin")]
    seq: Annotated[
        int,
        Field(
            description="the event_seq of the newest entry whose changes this message contains; also the id of the message"
        ),
    ]
    reset: Annotated[
        bool,
        Field(
            description="true if too much has changed: the lists are empty, and the client must read everything again"
        ),
    ]
    experiment: Annotated[
        Experiment | None, Field(description="the experiment; null if only its last_event_seq has changed")
    ]
    trials: Annotated[list[Trial], Field(description="new and changed trials")]
    segments: Annotated[list[SegmentItem], Field(description="new and changed segments")]
    decisions: Annotated[
        list[Decision], Field(description="new decisions, and earlier decisions whose state has changed")
    ]
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
        """Return a message without trials, segments, decisions and reports.

        It contains the experiment if one is given. With `reset`, it tells the client to read everything again.
        """
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


LogKind = Literal[
    "reported",
    "decision",
    "driver_started",
    "waiting",
    "segment_started",
    "segment_ended",
    "stop_judged",
    "checkpoint_saved",
    "checkpoint_deleted",
    "upload_failed",
    "suggested",
    "drawn",
    "noted",
    "model_fitted",
    "commanded",
    "amended",
    "enqueued",
    "pinned",
    "room_wanted",
    "budget_spent",
    "gpu_hours_spent",
    "slots_changed",
    "workers_changed",
    "clock_jumped",
]
"""The kinds of log entries; a test compares them with `tuner.domain.events`."""


class LogEntry(Model):
    """An entry of an experiment's log: something that happened, or a decision."""

    seq: Annotated[int, Field(description="the event_seq, its position in the log")]
    time: Annotated[str, Field(description="when it happened")]
    kind: Annotated[LogKind, Field(description="what happened; the kind of every decision is `decision`")]
    trial_number: Annotated[
        int | None, Field(description="the trial that it is about; null if it is about all of them")
    ]
    trial_id: Annotated[str | None, Field(description="the same trial, trl_...")]
    data: Annotated[
        Json,
        Field(
            description="the fields of this kind of entry, such as the outcome of a segment; fitted models are left out"
        ),
    ]

    @classmethod
    def of(cls, experiment: str, item: StreamItem) -> LogEntry:
        return cls(
            seq=item.seq,
            time=rfc3339(item.time),
            kind=item.event,  # type: ignore[arg-type]
            trial_number=item.trial,
            trial_id=None if item.trial is None else trial_id(experiment, item.trial),
            data={} if item.event == "model_fitted" else dict(item.data),
        )


class LogPage(PageOf[LogEntry]):
    pass


def stream_data(experiment: str, item: StreamItem) -> dict[str, Any]:
    """Return an entry of the log in the JSON form that server-sent events have.

    A decision has the fields of `Decision`. All other entries have a number, a time, a kind, and fields that depend on the kind.
    """
    # A fitted model is of no use to clients, and may be large.
    data = {} if item.event == "model_fitted" else dict(item.data)
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
