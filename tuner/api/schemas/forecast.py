"""The forecast of an experiment: when it will end, what it will have found by then, and what more training would bring."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tuner.api.schemas.forms import Model, Timestamp, rfc3339_or_none
from tuner.experiment import forecast as forecasts


class ForecastRange(Model):
    """An expected value with an interval that is meant to hold in eight of ten cases."""

    expected: Annotated[float, Field(description="the middle of what is to be expected")]
    low: Annotated[float, Field(description="where the interval begins")]
    high: Annotated[float, Field(description="where the interval ends")]

    @classmethod
    def of(cls, found: forecasts.Range) -> ForecastRange:
        return cls(expected=found.expected, low=found.low, high=found.high)


class ForecastEnd(Model):
    limit: Annotated[
        Literal["num_samples", "budget", "time_budget_s", "gpu_hours"],
        Field(description="the limit that is expected to end the experiment"),
    ]
    reason: Annotated[str, Field(description="what ends it, in words")]
    seconds: Annotated[
        ForecastRange, Field(description="seconds that it will still run, without the time for which it is paused")
    ]


class ForecastMore(Model):
    gpu_hours: Annotated[
        float | None, Field(description="the GPU hours that this is about; null if trials use no GPUs")
    ]
    seconds: Annotated[float, Field(description="how long they take at the present pace")]
    improvement: Annotated[
        float, Field(description="by how much the best value will improve on average; above 0 whatever the mode")
    ]
    low: Annotated[float, Field(description="it will improve by at least this in nine of ten cases")]
    high: Annotated[float, Field(description="it will improve by at most this in nine of ten cases")]
    chance: Annotated[float, Field(description="the probability of any improvement")]


class Forecast(Model):
    """A forecast as of the newest event, from how much recorded searches still found when they were as far as this one."""

    metric: Annotated[str, Field(description="the first objective")]
    time: Annotated[Timestamp | None, Field(description="when the newest event was; null before the first")]
    end: Annotated[ForecastEnd | None, Field(description="null: it has ended, or it is too early to tell")]
    best: Annotated[
        ForecastRange | None,
        Field(description="its best value at the end, never worse than the present one; null: it is too early to tell"),
    ]
    more: Annotated[
        ForecastMore | None, Field(description="what more training would bring; null: it is too early to tell")
    ]
    summary: Annotated[str, Field(description="all of it, or why there is none, in sentences")]

    @classmethod
    def of(cls, found: forecasts.Forecast) -> Forecast:
        end, best, more = found.end, found.best, found.more
        return cls(
            metric=found.metric,
            time=rfc3339_or_none(found.time),
            end=None
            if end is None
            else ForecastEnd(
                limit=end.limit, reason=forecasts.ENDED_BY[end.limit], seconds=ForecastRange.of(end.seconds)
            ),
            best=None if best is None else ForecastRange.of(best),
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
        )
