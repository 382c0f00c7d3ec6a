"""The neighbors of a trial: the trials whose configurations are closest to its own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tuner.api.schemas.analysis.lineage import Change
from tuner.api.schemas.forms import Model, Number
from tuner.domain.states import TrialState
from tuner.experiment.analysis import neighbors
from tuner.store import TrialRecord


class Neighbor(Model):
    """A trial whose configuration is similar to that of the trial in the request."""

    trial_id: str
    trial_number: int
    state: TrialState
    distance: Annotated[
        float,
        Field(
            description="the distance between the configurations in the unit cube: 0 if they are equal, 1 for opposite corners"
        ),
    ]
    best_value: Annotated[Number | None, Field(description="the neighbor's best value of the first objective")]
    iteration: Annotated[int, Field(description="the training_iteration of the neighbor's newest report")]
    changes: Annotated[
        dict[str, Change],
        Field(
            description="the parameters that differ, largest difference first; `before` is the requested trial's value, "
            "`after` the neighbor's"
        ),
    ]


class Neighbors(Model):
    trial_id: str
    trial_number: int
    items: Annotated[list[Neighbor], Field(description="the neighbors, nearest first")]
    left_out: Annotated[
        int, Field(description="the number of trials that were left out, because at most 10,000 are compared")
    ]

    @classmethod
    def of(cls, record: TrialRecord, found: neighbors.Neighbors) -> Neighbors:
        return cls(
            trial_id=record.public_id,
            trial_number=record.number,
            items=[
                Neighbor(
                    trial_id=one.trial.public_id,
                    trial_number=one.trial.number,
                    state=one.trial.state,
                    distance=round(one.distance, 6),
                    best_value=one.trial.best_value,
                    iteration=one.trial.iteration,
                    changes={path: Change(before=own, after=other) for path, (own, other) in one.changes.items()},
                )
                for one in found.items
            ],
            left_out=found.left_out,
        )
