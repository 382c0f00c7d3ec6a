"""A replay: the cost and the results that an experiment would have had under another scheduler, compared with the real ones."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from tuner.api.schemas.forms import Json, Model, Number
from tuner.domain.states import TrialState
from tuner.driver import replay as replays
from tuner.errors import SpecError
from tuner.names import did_you_mean


class ReplayRequest(Model):
    """The body of a request to replay an experiment: the scheduler and the searcher to use."""

    model_config = ConfigDict(extra="forbid")

    scheduler: Annotated[
        str | Json | None,
        Field(
            description="the scheduler, as in a spec: a type, or an object with a type and options; null: the experiment's"
        ),
    ] = None
    search: Annotated[
        str | Json | None,
        Field(
            description="the searcher, as in a spec; for each configuration that it proposes, the nearest recorded trial is "
            "used; null: the recorded trials in their recorded order"
        ),
    ] = None
    max_concurrent_trials: Annotated[
        int | None,
        Field(
            ge=1,
            le=100_000,
            description="how many trials train at the same time; null: as many as in the experiment",
        ),
    ] = None

    @classmethod
    def read(cls, data: Any) -> ReplayRequest:
        """Return the body of a request as this model. Raise SpecError with all mistakes if it does not fit."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise SpecError([_mistake(dict(item)) for item in error.errors()]) from error


def _mistake(item: dict[str, Any]) -> tuple[str, str]:
    place = [str(part) for part in item["loc"]][:1]  # the rest of the location says which type of a union was tried
    message = str(item["msg"])
    if item["type"] == "extra_forbidden":
        message = f"unknown field{did_you_mean(place[0], list(ReplayRequest.model_fields))}"
    return "".join(f"/{part}" for part in place), message


class TrialOutcome(Model):
    state: Annotated[
        TrialState | Literal["censored"],
        Field(
            description="censored: the trial would have continued after the end of its record, with unknown cost and result"
        ),
    ]
    iterations: Annotated[int, Field(description="the number of reports that the trial makes")]
    value: Annotated[
        Number,
        Field(description="the trial's value of the first objective; null if no report satisfies the constraints"),
    ]
    reason: str


class ReplayedTrial(Model):
    number: int
    params: Json
    recorded: Annotated[TrialOutcome, Field(description="what happened")]
    replayed: Annotated[
        TrialOutcome | None, Field(description="the outcome in the replay; null: the trial would not have been started")
    ]


class ReplayTotals(Model):
    trials: Annotated[int, Field(description="the number of trials that were started")]
    reports: Annotated[int, Field(description="the number of reports of all trials together")]
    training_s: Annotated[
        float, Field(description="seconds of training, summed over all trials, not counting the time to start them")
    ]
    duration_s: Annotated[
        float, Field(description="seconds from the start of the first trial to the end of the experiment")
    ]
    best_trial: Annotated[int | None, Field(description="the number of the best trial; null if no trial has a value")]
    best_value: Number


class Replay(Model):
    """The outcome of a replay, compared with the outcome of the experiment.

    Nothing is estimated: a trial whose record is too short for the replay is censored.
    """

    summary: Annotated[str, Field(description="the outcome in one sentence")]
    method: Annotated[str, Field(description='the scheduler in a few words, such as "asha(reduction_factor=3)"')]
    scheduler: Annotated[Json, Field(description="the scheduler of the replay, with all its options")]
    search: Annotated[
        Json | None,
        Field(
            description="the searcher; null: trials start in the recorded order, or the scheduler proposes configurations"
        ),
    ]
    saved: Annotated[
        float,
        Field(
            description="the share of the experiment's reports that the replay saves; an upper bound if trials are censored"
        ),
    ]
    censored: Annotated[
        int, Field(description="the number of trials that would have continued after the end of their record")
    ]
    recorded: Annotated[ReplayTotals, Field(description="the cost and the result of the experiment")]
    replayed: Annotated[
        ReplayTotals,
        Field(description="the cost and the result of the replay; the cost is a lower bound if trials are censored"),
    ]
    notes: Annotated[list[str], Field(description="notes on how to read the outcome")]
    trials: Annotated[list[ReplayedTrial], Field(description="the recorded trials, by number")]

    @classmethod
    def of(cls, found: replays.Replay) -> Replay:
        return cls(
            summary=found.summary,
            method=found.method,
            scheduler=dict(found.scheduler),
            search=None if found.search is None else dict(found.search),
            saved=found.saved,
            censored=found.censored,
            recorded=_totals(found.recorded),
            replayed=_totals(found.replayed),
            notes=list(found.notes),
            trials=[
                ReplayedTrial(
                    number=trial.number,
                    params=dict(trial.params),
                    recorded=_outcome(trial.recorded),
                    replayed=None if trial.replayed is None else _outcome(trial.replayed),
                )
                for trial in found.trials
            ],
        )


def _totals(of: replays.Totals) -> ReplayTotals:
    return ReplayTotals(
        trials=of.trials,
        reports=of.reports,
        training_s=of.training_s,
        duration_s=of.duration_s,
        best_trial=of.best_trial,
        best_value=of.best_value,
    )


def _outcome(of: replays.Outcome) -> TrialOutcome:
    return TrialOutcome(state=of.state, iterations=of.iterations, value=of.value, reason=of.reason)
