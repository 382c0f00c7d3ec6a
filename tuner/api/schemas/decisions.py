"""Decisions of an experiment."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field

from tuner.api.schemas.forms import PageOf, shown, values
from tuner.domain.keys import trial_id
from tuner.domain.timestamps import rfc3339
from tuner.store import (
    DecisionRecord,
)

DecisionKind = Literal[
    "start", "resume", "pause", "stop", "complete", "exploit", "resize", "retry", "fail", "cancel", "finish", "note"
]


class Decision(shown(DecisionRecord)):  # type: ignore[misc]
    # These fields differ from those of `DecisionRecord`, which declares the rest.
    time: Annotated[str, Field(description="when the decision was made")]
    kind: Annotated[DecisionKind, Field(description="the kind of decision")]
    trial_id: Annotated[
        str | None,
        Field(description="the trial that the decision is about, trl_...; null if it is about the whole experiment"),
    ]
    state: Annotated[
        Literal["pending", "done", "superseded"],
        Field(
            description="pending: not carried out yet; done: carried out by the driver; superseded: replaced by another decision "
            "before it was carried out"
        ),
    ]

    @classmethod
    def of(cls, experiment: str, record: DecisionRecord) -> Self:
        about = None if record.trial is None else trial_id(experiment, record.trial)
        return cls(**values(record), time=rfc3339(record.time), kind=record.kind, state=record.state, trial_id=about)


class DecisionPage(PageOf[Decision]):
    pass
