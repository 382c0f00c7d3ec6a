"""The logs, resource usage and stacks of a trial's ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from tuner.api.schemas.forms import Model, shown
from tuner.store import (
    RankLog,
)
from tuner.store import UsageSeries as UsageRecord


class LogItem(Model):
    """The output of one rank in one segment, or a part of it."""

    segment: Annotated[int, Field(description="ordinal of the segment within the trial")]
    rank: Annotated[int, Field(description="the rank that printed it")]
    stream: Annotated[
        str, Field(description="always 'output': stdout and stderr, in the order in which they were written")
    ]
    text: Annotated[str, Field(description="the text that it printed; a separate line marks where bytes are missing")]
    start: Annotated[int, Field(description="offset of the text in the rank's log, in bytes")]
    end: Annotated[
        int, Field(description="offset of the end of the text, in bytes; pass it as `offset` to get what follows")
    ]
    left_out: Annotated[
        int,
        Field(
            description="number of bytes between start and end that were not kept; a line in the text marks the place"
        ),
    ]
    complete: Annotated[
        bool, Field(description="true if the text includes the end of the log and the rank prints no more")
    ]


class Logs(Model):
    items: list[LogItem]

    @classmethod
    def of(cls, logs: list[RankLog]) -> Logs:
        names = ("segment", "rank", "text", "start", "end", "left_out", "complete")
        return cls(items=[LogItem(stream="output", **{name: getattr(log, name) for name in names}) for log in logs])


class UsageSeries(shown(UsageRecord)):  # type: ignore[misc]
    """The resource usage of one rank during one segment: lists of equal length, oldest sample first."""


class Usage(Model):
    items: list[UsageSeries]

    @classmethod
    def of(cls, found: list[UsageRecord]) -> Usage:
        return cls(items=[UsageSeries.model_validate(series, from_attributes=True) for series in found])


class LiveRank(Model):
    """The current stack and resource usage of a rank. Values are null if it does not answer or uses no GPU."""

    rank: int
    stack: Annotated[str, Field(description="the Python stack of its training thread")]
    cpu_s: Annotated[
        float | None, Field(description="CPU time since the segment's start, child processes included")
    ] = None
    rss_bytes: Annotated[int | None, Field(description="resident memory of the process")] = None
    threads: Annotated[int | None, Field(description="threads of the process")] = None
    gpu_bytes: Annotated[int | None, Field(description="GPU memory allocated by torch")] = None
    gpu_reserved_bytes: Annotated[int | None, Field(description="GPU memory reserved by torch")] = None
    gpu_percent: Annotated[
        float | None, Field(description="utilization of its GPUs, by all processes that use them")
    ] = None


class Live(Model):
    segment: int
    ranks: Annotated[list[LiveRank], Field(description="one item for each rank")]

    @classmethod
    def of(cls, segment: int, found: Mapping[str, Mapping[str, Any]]) -> Live:
        ranks = [LiveRank(rank=int(rank), **_known(figures)) for rank, figures in found.items()]
        return cls(segment=segment, ranks=sorted(ranks, key=lambda rank: rank.rank))


def _known(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if name in LiveRank.model_fields}
