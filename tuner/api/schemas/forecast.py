"""The forecast of an experiment: its end, its best value then, and the gain from more training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tuner.api.schemas.forms import Model, Timestamp, rfc3339_or_none
from tuner.experiment import forecast as forecasts


class ForecastRange(Model):
    """An expected value with an 80 % prediction interval."""

    expected: Annotated[float, Field(description="the expected value")]
    low: Annotated[float, Field(description="lower end of the interval")]
    high: Annotated[float, Field(description="upper end of the interval")]

    @classmethod
    def of(cls, found: forecasts.Range) -> ForecastRange:
        return cls(expected=found.expected, low=found.low, high=found.high)


class ForecastEnd(Model):
    limit: Annotated[
        Literal["num_samples", "budget", "time_budget_s", "gpu_hours"],
        Field(description="the limit that is expected to end the experiment"),
    ]
    reason: Annotated[str, Field(description="the cause of the end, in words")]
    seconds: Annotated[ForecastRange, Field(description="the remaining running time in seconds, without pauses")]


class ForecastMore(Model):
    gpu_hours: Annotated[float | None, Field(description="the additional GPU hours; null if trials use no GPUs")]
    seconds: Annotated[float, Field(description="seconds that the additional training takes at the current pace")]
    improvement: Annotated[
        float, Field(description="the expected improvement of the best value; positive for both modes")
    ]
    low: Annotated[float, Field(description="the improvement is at least this with a probability of 90 %")]
    high: Annotated[float, Field(description="the improvement is at most this with a probability of 90 %")]
    chance: Annotated[float, Field(description="the probability of any improvement")]


class Forecast(Model):
    """A forecast as of the newest event. It is based on how much recorded searches still improved at the same stage."""

    metric: Annotated[str, Field(description="the first objective")]
    time: Annotated[Timestamp | None, Field(description="the time of the newest event; null before the first")]
    end: Annotated[
        ForecastEnd | None, Field(description="its expected end; null if it has ended or it is too early to tell")
    ]
    best: Annotated[
        ForecastRange | None,
        Field(
            description="its best value at the end, never worse than the current one; null if it is too early to tell"
        ),
    ]
    more: Annotated[
        ForecastMore | None, Field(description="the effect of more training; null if it is too early to tell")
    ]
    summary: Annotated[str, Field(description="the forecast in sentences, or why there is none")]

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
