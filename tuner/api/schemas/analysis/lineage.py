"""The lineage of a trial: the segments that led to its weights, and the schedule of configurations."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from tuner.api.schemas.forms import Json, Model
from tuner.domain.keys import trial_id
from tuner.domain.trial import Cause
from tuner.experiment.analysis.lineage import Link, schedule
from tuner.store import (
    TrialRecord,
)


class Change(Model):
    before: Annotated[Any, Field(description="the value in the previous segment")]
    after: Annotated[Any, Field(description="the value in this segment")]


class LineageSegment(Model):
    """One of the segments that led to a trial's weights. It may belong to another trial, from which the weights came."""

    id: Annotated[str, Field(description="seg_...")]
    trial_id: str
    trial_number: int
    ordinal: int
    cause: Cause
    start_iteration: int
    end_iteration: Annotated[
        int,
        Field(
            description=(
                "the training_iteration from which the next segment continued; for the last segment, the training_iteration "
                "that it has reached so far"
            )
        ),
    ]
    source_checkpoint_id: str | None
    source_trial_number: int | None
    params: Json
    changes: Annotated[
        dict[str, Change], Field(description="the parameters whose values differ from the previous segment")
    ]


class ScheduleEntry(Model):
    iteration: Annotated[int, Field(description="the training_iteration after which this configuration applies")]
    trial_number: int
    params: Json


class Lineage(Model):
    trial_id: str
    trial_number: int
    items: list[LineageSegment]
    schedule: Annotated[
        list[ScheduleEntry],
        Field(description="the configurations in order; training with one after the other reproduces the result"),
    ]

    @classmethod
    def of(cls, record: TrialRecord, links: list[Link]) -> Lineage:
        return cls(
            trial_id=record.public_id,
            trial_number=record.number,
            items=[_link(record.experiment, link) for link in links],
            schedule=[
                ScheduleEntry(iteration=entry["iteration"], trial_number=entry["trial"], params=entry["params"])
                for entry in (schedule(links) if links else [])
            ],
        )


def _link(experiment: str, link: Link) -> LineageSegment:
    segment = link.segment
    return LineageSegment(
        id=segment.public_id,
        trial_id=trial_id(experiment, link.trial),
        trial_number=link.trial,
        ordinal=segment.ordinal,
        cause=segment.cause,
        start_iteration=segment.start_iteration,
        end_iteration=link.end_iteration,
        source_checkpoint_id=segment.source_checkpoint,
        source_trial_number=segment.source_trial,
        params=dict(segment.params),
        changes={name: Change(before=old, after=new) for name, (old, new) in link.changes.items()},
    )
