"""Decisions of an experiment."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tuner.api.schemas.forms import Json, Model, PageOf, rfc3339
from tuner.domain.keys import trial_id
from tuner.store import (
    DecisionRecord,
)

DecisionKind = Literal[
    "start", "resume", "pause", "stop", "complete", "exploit", "retry", "fail", "cancel", "finish", "note"
]


class Decision(Model):
    seq: Annotated[int, Field(description="its place in the log")]
    time: Annotated[str, Field(description="when it was made")]
    kind: Annotated[DecisionKind, Field(description="what was decided")]
    trial_number: Annotated[int | None, Field(description="the number of that trial")]
    trial_id: Annotated[str | None, Field(description="the trial that it is about; null: the experiment")]
    reason: str
    state: Annotated[
        Literal["pending", "done", "superseded"], Field(description="whether the driver has carried it out")
    ]
    payload: Annotated[Json, Field(description="its details, by kind")]

    @classmethod
    def of(cls, experiment: str, record: DecisionRecord) -> Decision:
        return cls(
            seq=record.seq,
            time=rfc3339(record.time),
            kind=record.kind,  # type: ignore[arg-type]
            trial_number=record.trial,
            trial_id=None if record.trial is None else trial_id(experiment, record.trial),
            reason=record.reason,
            state=record.state,  # type: ignore[arg-type]
            payload=dict(record.payload),
        )


class DecisionPage(PageOf[Decision]):
    pass
