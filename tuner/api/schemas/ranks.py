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
    """The output of one rank in one segment, or a part of this output."""

    segment: Annotated[int, Field(description="the ordinal of the segment within the trial")]
    rank: Annotated[int, Field(description="the rank that printed the text")]
    stream: Annotated[
        str, Field(description="always 'output': stdout and stderr, in the order in which they were written")
    ]
    text: Annotated[
        str, Field(description="what the rank has printed; a separate line marks each place where bytes are missing")
    ]
    start: Annotated[int, Field(description="the byte offset in the rank's log at which the text begins")]
    end: Annotated[
        int, Field(description="the byte offset at which the text ends; pass it as `offset` to get what follows")
    ]
    left_out: Annotated[
        int,
        Field(
            description="the number of bytes between start and end that are missing, because the database keeps only part of a "
            "long output"
        ),
    ]
    complete: Annotated[bool, Field(description="true if the rank has ended, and the text includes the end of its log")]


class Logs(Model):
    items: list[LogItem]

    @classmethod
    def of(cls, logs: list[RankLog]) -> Logs:
        names = ("segment", "rank", "text", "start", "end", "left_out", "complete")
        return cls(items=[LogItem(stream="output", **{name: getattr(log, name) for name in names}) for log in logs])


class UsageSeries(shown(UsageRecord)):  # type: ignore[misc]
    """The resource usage of one rank during one segment, as lists of equal length with the oldest sample first."""


class Usage(Model):
    items: list[UsageSeries]

    @classmethod
    def of(cls, found: list[UsageRecord]) -> Usage:
        return cls(items=[UsageSeries.model_validate(series, from_attributes=True) for series in found])


class LiveRank(Model):
    """The current Python stack and resource usage of a rank.

    Values are null if the rank does not answer; those about GPUs are also null if it uses none.
    """

    rank: int
    stack: Annotated[str, Field(description="the Python stack of the rank's training thread")]
    cpu_s: Annotated[
        float | None, Field(description="CPU time in seconds since the segment's start, including child processes")
    ] = None
    rss_bytes: Annotated[int | None, Field(description="the resident memory of the rank's process")] = None
    threads: Annotated[int | None, Field(description="the number of threads of the rank's process")] = None
    gpu_bytes: Annotated[int | None, Field(description="GPU memory allocated by torch")] = None
    gpu_reserved_bytes: Annotated[int | None, Field(description="GPU memory reserved by torch")] = None
    gpu_percent: Annotated[
        float | None, Field(description="the utilization of the rank's GPUs by all processes that use them")
    ] = None


class DataOperator(Model):
    """An operator of a data set of Ray Data, such as a read or a `map_batches`."""

    name: Annotated[str, Field(description="its name in Ray Data")]
    state: Annotated[str, Field(description="pending, running, finished or failed")]
    blocks: Annotated[int, Field(description="the number of tasks of this operator that have ended")]
    total_blocks: Annotated[int | None, Field(description="Ray Data's estimate of the number of blocks at the end")]
    total_rows: Annotated[int | None, Field(description="Ray Data's estimate of the number of rows at the end")]
    queued_blocks: Annotated[int, Field(description="blocks that wait for this operator")]


class DataSet(Model):
    """A data set of Ray Data that rank 0 reads with `get_dataset_shard`. Values are null until it is executed."""

    name: Annotated[str, Field(description="its name in the trainer's `datasets`")]
    executions: Annotated[int, Field(description="how often this segment has executed the data set: once per epoch")]
    state: Annotated[str | None, Field(description="the state of the newest execution")]
    seconds: Annotated[float | None, Field(description="the duration of the newest execution so far, in seconds")]
    blocks_per_s: Annotated[float | None, Field(description="the mean throughput of the newest execution, in blocks")]
    rows_per_s: Annotated[float | None, Field(description="the mean throughput in rows, as Ray Data estimates it")]
    operators: Annotated[list[DataOperator], Field(description="the operators of the newest execution, in order")]
    stats: Annotated[str | None, Field(description="the text that `stats()` returns for rank 0's part of the data set")]


class Live(Model):
    segment: int
    ranks: Annotated[list[LiveRank], Field(description="one item for each rank")]
    data_sets: Annotated[
        list[DataSet], Field(description="the data sets of Ray Data that the trial reads with `get_dataset_shard`")
    ]

    @classmethod
    def of(cls, segment: int, found: Mapping[str, Mapping[str, Any]]) -> Live:
        ranks = [LiveRank(rank=int(rank), **_known(values)) for rank, values in found.items()]
        data = found.get("0", {}).get("data_sets", [])
        return cls(segment=segment, ranks=sorted(ranks, key=lambda rank: rank.rank), data_sets=data)


class DriverLog(Model):
    """The newest lines of the driver host's log of an experiment."""

    path: Annotated[str, Field(description="the log file, on the machine of the service or of the driver host")]
    text: Annotated[str, Field(description="the lines, oldest first, with their times, levels and loggers")]
    left_out: Annotated[int, Field(description="the number of earlier lines that are not in the text")]


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in LiveRank.model_fields}
