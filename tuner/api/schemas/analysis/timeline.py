"""The timeline of an experiment: its trials and devices over time."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tuner.api.schemas.forms import Model, Timestamp
from tuner.domain.states import TrialState
from tuner.experiment.analysis import timeline as timelines
from tuner.experiment.analysis.timeline import Phase


class TimelineSpan(Model):
    phase: Annotated[
        Phase,
        Field(
            description="waiting: the trial waits for resources; starting: its processes start and load the code; "
            "restarting: its processes start again after a failure or a pause, or new ones after an exploit; exploiting: "
            "processes that already run take over the weights and a changed configuration of another trial; checkpointing: "
            "training waits until a checkpoint has been handed over; paused: the trial has released its resources, and waits "
            "for its turn, for other trials or for a user; "
            "idle: no trial of this experiment holds the device"
        ),
    ]
    start: Annotated[float, Field(description="seconds since started_at, without the experiment's pauses")]
    end: Annotated[float, Field(description="seconds since started_at; equal to duration_s if the span has not ended")]
    trial_number: Annotated[int | None, Field(description="the trial's number; null if the device is idle")]
    segment: Annotated[int | None, Field(description="the ordinal of the trial's segment; null if the device is idle")]


class TimelineTrial(Model):
    trial_number: int
    trial_id: str
    state: TrialState
    spans: Annotated[list[TimelineSpan], Field(description="the phases of the trial, in order of time")]
    failed_at: Annotated[
        list[float], Field(description="when segments of the trial failed, in seconds since started_at")
    ]


class TimelineDevice(Model):
    """A GPU or, on a node without GPUs, a slot in which one rank at a time runs."""

    host: Annotated[str, Field(description="the host name of the node")]
    name: Annotated[str, Field(description='"GPU 0" for a GPU; "slot 1" for the first slot of a node without GPUs')]
    busy: Annotated[
        float, Field(description="the share of the time, from 0 to 1, during which trials on this page held the device")
    ]
    spans: Annotated[
        list[TimelineSpan], Field(description="when trials held the device and when it was idle, in order of time")
    ]


class TimelinePause(Model):
    at: Annotated[float, Field(description="where the pause is on the timeline, in seconds since started_at")]
    seconds: Annotated[float, Field(description="how long the pause was")]


class Timeline(Model):
    """A page of the timeline of an experiment: some of its trials, and the devices that these trials held."""

    started_at: Annotated[Timestamp, Field(description="where the timeline begins")]
    duration_s: Annotated[
        float, Field(description="the length in seconds: up to now or to the end of the experiment, without pauses")
    ]
    trials: Annotated[list[TimelineTrial], Field(description="the trials on this page, by number")]
    devices: Annotated[
        list[TimelineDevice], Field(description="the devices that the trials on this page held, by node")
    ]
    pauses: Annotated[
        list[TimelinePause],
        Field(description="when the experiment was not running; all other times exclude these pauses"),
    ]
    totals: Annotated[dict[str, float], Field(description="phase -> seconds, summed over the trials on this page")]
    total: Annotated[int, Field(description="the total number of trials of the experiment")]

    @classmethod
    def of(cls, found: timelines.Timeline) -> Timeline:
        def spans(of: timelines.TrialRow | timelines.DeviceRow) -> list[TimelineSpan]:
            return [
                TimelineSpan(
                    phase=span.phase,
                    start=round(span.start - found.start, 3),
                    end=round(span.end - found.start, 3),
                    trial_number=span.trial,
                    segment=span.segment,
                )
                for span in of.spans
            ]

        return cls(
            started_at=found.start,  # type: ignore[arg-type]
            duration_s=round(found.end - found.start, 3),
            trials=[
                TimelineTrial(
                    trial_number=row.number,
                    trial_id=row.public_id,
                    state=row.state,
                    spans=spans(row),
                    failed_at=[round(at - found.start, 3) for at in row.failed_at],
                )
                for row in found.trials
            ],
            devices=[
                TimelineDevice(host=row.host, name=row.name, busy=row.busy, spans=spans(row)) for row in found.devices
            ],
            pauses=[TimelinePause(at=round(at - found.start, 3), seconds=round(s, 3)) for at, s in found.pauses],
            totals={phase: round(seconds, 3) for phase, seconds in found.totals.items()},
            total=found.of,
        )
