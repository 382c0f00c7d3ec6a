"""The timeline of an experiment: its trials and devices over time."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tuner.api.schemas.forms import Model, Timestamp
from tuner.domain.states import TrialState
from tuner.experiment import timeline as timelines
from tuner.experiment.timeline import Phase


class TimelineSpan(Model):
    phase: Annotated[
        Phase,
        Field(
            description="waiting: the trial waits for room on the cluster; starting: processes start and load the code; "
            "restarting: they do so again after a failure or a pause; checkpointing: training waits until a checkpoint is "
            "taken over; paused: the trial gave its room back; idle: no trial of this experiment holds the device"
        ),
    ]
    start: Annotated[float, Field(description="seconds since started_at")]
    end: Annotated[float, Field(description="seconds since started_at; equal to duration_s if it has not ended")]
    trial_number: Annotated[int | None, Field(description="null if a device is idle")]
    segment: Annotated[int | None, Field(description="the ordinal of the trial's segment; null if a device is idle")]


class TimelineTrial(Model):
    trial_number: Annotated[int, Field(description="the trial's number")]
    trial_id: Annotated[str, Field(description="trl_...")]
    state: TrialState
    spans: Annotated[list[TimelineSpan], Field(description="in time")]


class TimelineDevice(Model):
    """A GPU or, on a node without GPUs, the slot of one rank."""

    host: Annotated[str, Field(description="the node")]
    name: Annotated[str, Field(description='"GPU 0", or "rank 1" for the first slot of a rank')]
    busy: Annotated[
        float, Field(description="share of the time during which these trials held the device, from 0 to 1")
    ]
    spans: Annotated[list[TimelineSpan], Field(description="its spans in order, including the idle ones")]


class Timeline(Model):
    """A page of the timeline: some of the trials, and the devices that they held."""

    started_at: Annotated[Timestamp, Field(description="where the timeline begins")]
    duration_s: Annotated[float, Field(description="its length in seconds, up to now or the end of the experiment")]
    trials: Annotated[list[TimelineTrial], Field(description="by number")]
    devices: Annotated[list[TimelineDevice], Field(description="the devices that these trials held, by node")]
    totals: Annotated[dict[str, float], Field(description="seconds in each phase, summed over these trials")]
    total: Annotated[int, Field(description="number of trials of the experiment")]

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
                TimelineTrial(trial_number=row.number, trial_id=row.public_id, state=row.state, spans=spans(row))
                for row in found.trials
            ],
            devices=[
                TimelineDevice(host=row.host, name=row.name, busy=row.busy, spans=spans(row)) for row in found.devices
            ],
            totals={phase: round(seconds, 3) for phase, seconds in found.totals.items()},
            total=found.of,
        )
