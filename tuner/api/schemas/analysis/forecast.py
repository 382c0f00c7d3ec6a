"""The forecast of an experiment: its end, its best value then, and the gain from more training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tuner.api.schemas.forms import Model, Timestamp
from tuner.domain.timestamps import rfc3339_or_none
from tuner.experiment.analysis import forecast as forecasts


class ForecastRange(Model):
    """An expected value with an 80 % prediction interval."""

    expected: Annotated[float, Field(description="the expected value")]
    low: Annotated[float, Field(description="the lower end of the prediction interval")]
    high: Annotated[float, Field(description="the upper end of the prediction interval")]

    @classmethod
    def of(cls, found: forecasts.Range) -> ForecastRange:
        return cls(expected=found.expected, low=found.low, high=found.high)


class ForecastEnd(Model):
    limit: Annotated[
        Literal["num_samples", "budget", "time_budget_s", "gpu_hours"],
        Field(description="the limit that is expected to end the experiment"),
    ]
    reason: Annotated[str, Field(description="why the experiment is expected to end then, in words")]
    seconds: Annotated[
        ForecastRange, Field(description="seconds until the end, including `starting` and not counting pauses")
    ]
    starting: Annotated[
        float,
        Field(
            description="seconds until trials train again, if none has started since the search was continued or its driver was "
            "restarted; otherwise 0"
        ),
    ]


class ForecastMore(Model):
    gpu_hours: Annotated[
        float | None, Field(description="the GPU hours of the additional training; null if trials use no GPUs")
    ]
    seconds: Annotated[float, Field(description="seconds that the additional training takes at the current pace")]
    improvement: Annotated[
        float, Field(description="the expected improvement of the best value, as a positive number in either mode")
    ]
    low: Annotated[float, Field(description="the improvement is at least this with a probability of 90 %")]
    high: Annotated[float, Field(description="the improvement is at most this with a probability of 90 %")]
    chance: Annotated[float, Field(description="the probability that the best value improves at all")]


class Forecast(Model):
    """A forecast of an experiment from its newest event to its end.

    It is based on how much recorded searches still improved after the same stage.
    """

    metric: Annotated[str, Field(description="the first objective")]
    time: Annotated[Timestamp | None, Field(description="the time of the newest event; null before the first event")]
    end: Annotated[
        ForecastEnd | None,
        Field(
            description="the expected end of the experiment; null if it has ended already, or if it is too early to tell"
        ),
    ]
    best: Annotated[
        ForecastRange | None,
        Field(
            description="the best value at the end of the experiment, never worse than the current one; null if it is too early "
            "to tell"
        ),
    ]
    best_is_open: Annotated[
        bool,
        Field(
            description="true if the interval of `best` reaches the end of the scale, such as 0 for a loss, so that it does not "
            "say how much the best value may improve"
        ),
    ]
    more: Annotated[
        ForecastMore | None, Field(description="the effect of more training; null if it is too early to tell")
    ]
    summary: Annotated[str, Field(description="the forecast in sentences, or why there is none")]
    budget_spent: Annotated[
        float | None,
        Field(
            description="the share of the budget of full trainings that is spent, including training that restarted trials "
            "repeated; null without such a budget, if the experiment has ended, or if it is too early to tell"
        ),
    ]

    @classmethod
    def of(cls, found: forecasts.Forecast) -> Forecast:
        end, best, more = found.end, found.best, found.more
        return cls(
            metric=found.metric,
            time=rfc3339_or_none(found.time),
            end=None
            if end is None
            else ForecastEnd(
                limit=end.limit,
                reason=forecasts.ENDED_BY[end.limit],
                seconds=ForecastRange.of(end.seconds),
                starting=end.starting,
            ),
            best=None if best is None else ForecastRange.of(best),
            best_is_open=found.best_is_open,
            more=None
            if more is None
            else ForecastMore(
                gpu_hours=more.gpu_hours,
                seconds=more.seconds,
                improvement=more.gain.mean,
                low=more.gain.low,
                high=more.gain.high,
                chance=more.gain.chance,
            ),
            summary=found.summary,
            budget_spent=found.budget_spent,
        )
