"""Profiles of a trial's ranks: where their time goes, or what they allocate."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field

from tuner.api.schemas.forms import Body, Model
from tuner.trials.messages import profiling


class ProfileRequest(Body):
    """The body of a request to profile a rank."""

    rank: Annotated[int, Field(ge=0, le=2**31 - 1, description="which rank")] = 0
    kind: Annotated[
        Literal["cpu", "memory"],
        Field(description="cpu: sample the Python stacks of the rank's threads; memory: trace what it allocates"),
    ] = "cpu"
    duration_s: Annotated[
        float,
        Field(
            ge=0.1,
            le=profiling.LONGEST_S,
            description="how many seconds to observe the rank; the response comes after this time",
        ),
    ] = 5.0
    rate_hz: Annotated[
        float, Field(ge=1, le=profiling.MOST_HZ, description="samples per second; it has no effect on memory profiles")
    ] = 100.0


class SpeedscopeFrame(Model):
    """A line of code that was being executed."""

    name: Annotated[str, Field(description="the function; in a memory profile by tracemalloc, the line of code")]
    file: Annotated[str, Field(description="the path of its file on the rank's machine")]
    line: Annotated[int, Field(description="the line that was being executed; 0 if it is not known")]


class SpeedscopeProfile(Model):
    """The stacks of one thread, or the stacks that allocated memory."""

    type: Annotated[Literal["sampled"], Field(description="always sampled")] = "sampled"
    name: Annotated[str, Field(description="the thread, or the kind of memory")]
    unit: Annotated[Literal["seconds", "bytes"], Field(description="the unit of the weights")]
    start_value: Annotated[float, Field(alias="startValue", description="always 0")] = 0.0
    end_value: Annotated[float, Field(alias="endValue", description="the sum of the weights")]
    samples: Annotated[
        list[list[int]], Field(description="each stack once, the outermost frame first, as indices into the frames")
    ]
    weights: Annotated[list[float], Field(description="the weight of each stack, the largest first")]


class SpeedscopeShared(Model):
    frames: Annotated[list[SpeedscopeFrame], Field(description="the frames of all profiles")]


class Speedscope(Model):
    """A file that https://www.speedscope.app opens."""

    schema_url: Annotated[str, Field(alias="$schema", description="the URL of the format's schema")]
    name: Annotated[str, Field(description="the trial and the rank")]
    exporter: Annotated[str, Field(description="the version of tuner that wrote it")]
    active_profile_index: Annotated[int, Field(alias="activeProfileIndex", description="the profile to show first")] = 0
    shared: Annotated[SpeedscopeShared, Field(description="what the profiles share")]
    profiles: Annotated[
        list[SpeedscopeProfile], Field(description="one item for each thread; the training thread comes first")
    ]


class ProfiledThread(Model):
    name: Annotated[str, Field(description="the name of the thread; the function runs in the thread `train`")]
    cpu_s: Annotated[float | None, Field(description="CPU seconds that it used during the profile; null if it ended")]


class CpuProfile(Model):
    """The results of a profile of the kind `cpu`."""

    samples: Annotated[
        int, Field(description="number of samples that were taken; fewer than requested if a C call held the GIL")
    ]
    rate_hz: Annotated[float, Field(description="samples per second that were requested")]
    cpu_s: Annotated[float, Field(description="CPU seconds that the process and its children used during the profile")]
    sampler_cpu_s: Annotated[float, Field(description="CPU seconds that the sampling itself used")]
    threads: Annotated[list[ProfiledThread], Field(description="the threads, in the order of the profiles")]


class AllocatingLine(Model):
    file: Annotated[str, Field(description="the path of its file on the rank's machine")]
    line: Annotated[int, Field(description="its number in the file")]
    code: Annotated[str, Field(description="its text, or its location if the file cannot be read")]
    bytes: Annotated[
        int,
        Field(description="memory that the line allocated during the profile and that had not been freed by its end"),
    ]
    blocks: Annotated[int, Field(description="number of blocks of this memory")]


class MemoryProfile(Model):
    """The results of a profile of the kind `memory`."""

    tracer: Annotated[
        Literal["memray", "tracemalloc"],
        Field(
            description="memray traces what C and C++ code allocates as well; tracemalloc only what Python allocates"
        ),
    ]
    lines: Annotated[
        list[AllocatingLine], Field(description="the lines of code with the most memory, the largest first")
    ]
    traced_bytes: Annotated[
        int, Field(description="memory that was allocated during the profile and that had not been freed by its end")
    ]
    traced_peak_bytes: Annotated[
        int | None, Field(description="the peak of this memory; null if the training code had started tracemalloc")
    ]
    tracer_bytes: Annotated[
        int | None,
        Field(description="memory that the tracing itself needed; null if memray traced, which does not say it"),
    ]
    rss_start_bytes: Annotated[int, Field(description="resident memory of the process at the start")]
    rss_end_bytes: Annotated[int, Field(description="resident memory of the process at the end")]
    rss_peak_bytes: Annotated[int, Field(description="the peak of the resident memory that was observed")]
    gpu_start_bytes: Annotated[int | None, Field(description="GPU memory that torch had allocated at the start")]
    gpu_end_bytes: Annotated[int | None, Field(description="GPU memory that torch had allocated at the end")]
    gpu_summary: Annotated[str | None, Field(description="torch.cuda.memory_summary of each GPU that the rank uses")]


class Profile(Model):
    """The activity of a rank during a few seconds."""

    segment: int
    rank: int
    kind: Annotated[Literal["cpu", "memory"], Field(description="what was observed")]
    duration_s: Annotated[float, Field(description="how many seconds the rank was observed")]
    complete: Annotated[bool, Field(description="false if the segment ended before the time was up")]
    notes: Annotated[list[str], Field(description="what the profile cannot show")]
    cpu: Annotated[CpuProfile | None, Field(description="the results of a profile of the kind cpu")]
    memory: Annotated[MemoryProfile | None, Field(description="the results of a profile of the kind memory")]
    speedscope: Annotated[Speedscope, Field(description="the stacks, as a file for https://www.speedscope.app")]

    def speedscope_json(self) -> str:
        """Return the file that https://www.speedscope.app opens."""
        return self.speedscope.model_dump_json(by_alias=True)

    def collapsed(self) -> str:
        """Return the stacks as `flamegraph.pl` and similar tools read them: ``thread;function (file:line);... weight``.

        The weights are microseconds or bytes.
        """
        frames = [_label(frame) for frame in self.speedscope.shared.frames]
        return "".join(
            f"{';'.join([_plain(part.name), *(frames[index] for index in stack)])} "
            f"{round(weight * (1e6 if part.unit == 'seconds' else 1))}\n"
            for part in self.speedscope.profiles
            for stack, weight in zip(part.samples, part.weights, strict=True)
        )


def _label(frame: SpeedscopeFrame) -> str:
    place = f" ({os.path.basename(frame.file)}:{frame.line})" if frame.file else ""
    return _plain(frame.name) + place


def _plain(name: str) -> str:
    """Return a name without the character that separates frames."""
    return name.replace(";", ",").replace("\n", " ")
