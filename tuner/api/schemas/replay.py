"""The replay of an experiment under another scheduler: its cost and result, compared with what happened."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from tuner.api.schemas.forms import Json, Model, Number
from tuner.domain.states import TrialState
from tuner.driver import replay as replays
from tuner.errors import SpecError
from tuner.names import did_you_mean


class ReplayRequest(Model):
    """The scheduler to replay the experiment with, and its options."""

    model_config = ConfigDict(extra="forbid")

    scheduler: Annotated[
        str | Json | None, Field(description="a type or its JSON form, as in a spec; null: the experiment's own")
    ] = None
    search: Annotated[
        str | Json | None,
        Field(description="a type or its JSON form; null: the recorded configurations, in their original order"),
    ] = None
    max_concurrent_trials: Annotated[
        int | None,
        Field(
            ge=1,
            le=100_000,
            description="trials that train at once; null: as many as trained at once in the experiment",
        ),
    ] = None

    @classmethod
    def read(cls, data: Any) -> ReplayRequest:
        """Return the request in a body. Raise SpecError with all its mistakes."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise SpecError([_mistake(dict(item)) for item in error.errors()]) from error


def _mistake(item: dict[str, Any]) -> tuple[str, str]:
    place = [str(part) for part in item["loc"]][:1]  # the rest of the location names a member of a union
    message = str(item["msg"])
    if item["type"] == "extra_forbidden":
        message = f"unknown field{did_you_mean(place[0], list(ReplayRequest.model_fields))}"
    return "".join(f"/{part}" for part in place), message


class TrialOutcome(Model):
    state: Annotated[
        TrialState | Literal["censored"],
        Field(description="censored: it would have trained for longer than was recorded, with unknown cost and result"),
    ]
    iterations: Annotated[int, Field(description="number of reports")]
    value: Annotated[
        Number,
        Field(description="its value of the first objective; null if no report satisfies the constraints"),
    ]
    reason: str


class ReplayedTrial(Model):
    number: int
    params: Json
    recorded: Annotated[TrialOutcome, Field(description="what happened")]
    replayed: Annotated[
        TrialOutcome | None, Field(description="the outcome in the replay; null: it would not have been started")
    ]


class ReplayTotals(Model):
    trials: Annotated[int, Field(description="trials that were started")]
    reports: Annotated[int, Field(description="reports of all trials together")]
    training_s: Annotated[float, Field(description="seconds of training of all trials together, without their starts")]
    duration_s: Annotated[float, Field(description="seconds from the first start to the end")]
    best_trial: Annotated[int | None, Field(description="number of the best trial")]
    best_value: Number


class Replay(Model):
    """The outcome of a replay, compared with what happened. Nothing is estimated: values that were not recorded are censored."""

    summary: Annotated[str, Field(description="the outcome in one sentence")]
    method: Annotated[str, Field(description='the scheduler in a few words: "asha(reduction_factor=3)"')]
    scheduler: Annotated[Json, Field(description="with all options")]
    search: Annotated[
        Json | None,
        Field(description="null: the recorded order, or the scheduler proposes configurations itself"),
    ]
    saved: Annotated[
        float,
        Field(description="share of the reports that would have been saved; an upper bound if trials are censored"),
    ]
    censored: Annotated[int, Field(description="number of trials that would have trained for longer than was recorded")]
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
