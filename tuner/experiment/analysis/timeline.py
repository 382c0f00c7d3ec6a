"""The timeline of an experiment: when each trial waited, started and ran, and how nodes and devices were used."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from tuner.domain.keys import trial_id
from tuner.domain.states import TrialState
from tuner.store import ExperimentRecord, SegmentRecord, Store, TrialSegment

Phase = Literal["waiting", "starting", "restarting", "exploiting", "running", "checkpointing", "paused", "idle"]
"""The activity of a trial or a device in a span of time.

waiting: a trial does not have its resources yet. starting: the trial's processes start and load the code. restarting: the
processes start again after a failure or a pause, or with another number of ranks, or new processes start after an exploit.
exploiting: under PBT, running processes take over another trial's weights and a changed copy of its configuration.
checkpointing: the training waits until the content of a checkpoint has been copied. paused: the trial has a checkpoint, and has
released its resources: it waits for its turn, for other trials, or for a user. idle: no trial of this experiment holds the
device.
"""

Saves = Mapping[tuple[int, int], Sequence[tuple[float, float]]]
"""(trial, ordinal of a segment) -> (start, end) of each of the segment's waits for a checkpoint to be saved, in order."""

MAX_SAVES = 2000
"""The maximum number of waits for checkpoints that are shown. The longest are chosen; `Timeline.totals` counts all of them."""

_AFTER: Mapping[str, Phase] = {
    "retry": "restarting",
    "resume": "restarting",
    "resize": "restarting",
    "exploit": "exploiting",
}
"""Cause of a segment -> the phase in which it starts, if that is not "starting"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One activity of a trial or device. `start` and `end` are Unix timestamps, minus the experiment's pauses until then."""

    phase: Phase
    start: float
    end: float
    trial: int | None
    segment: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    number: int
    public_id: str
    state: TrialState
    spans: Sequence[Span]
    failed_at: Sequence[float] = ()  # the ends of its segments that failed, as in `Span`


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """A GPU, or the slot of a rank without a GPU. busy: the share of the time during which a trial held the GPU or slot."""

    host: str
    name: str
    busy: float
    spans: Sequence[Span]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The timeline of an experiment.

    start, end: the time range, as in `Span`.
    pauses: for each pause of the experiment, its start, as in `Span`, and its length in seconds.
    totals: the seconds in each activity, summed over trials.
    of: the total number of trials.
    """

    start: float
    end: float
    trials: Sequence[TrialRow]
    devices: Sequence[DeviceRow]
    totals: Mapping[str, float]
    of: int
    pauses: Sequence[tuple[float, float]] = ()


def timeline(store: Store, record: ExperimentRecord, *, first: int, most: int, now: float) -> Timeline:
    """Return the timeline of up to `most` trials, starting with number `first`, and of the devices that they used."""
    numbers = list(range(first, min(first + most, sum(record.counts.values()))))
    found = store.trials.numbered(record.id, numbers)
    ended = record.ended_at if record.state.ended else None
    clock = record.clock

    def running(time: float) -> float:
        return clock.start + float(clock.seconds(time)) if clock.pauses else time

    end = running(now if ended is None else ended)
    by_trial: dict[int, list[SegmentRecord]] = {trial.number: [] for trial in found}
    segments = [_moved(item, running) for item in store.trials.segments_of(record.id, list(by_trial))]
    for item in segments:
        by_trial[item.trial].append(item.segment)
    saves: dict[tuple[int, int], list[tuple[float, float]]] = {}
    longest, saving_s = store.trials.saves(record.id, list(by_trial), MAX_SAVES)
    for number, ordinal, start, stop in longest:
        saves.setdefault((number, ordinal), []).append((running(start), running(stop)))
    rows = [
        TrialRow(
            number=trial.number,
            public_id=trial_id(record.public_id, trial.number),
            state=trial.state,
            spans=trial_spans(
                trial.number,
                by_trial[trial.number],
                end,
                end if trial.state is TrialState.PAUSED else trial.ended_at and running(trial.ended_at),
                saves,
            ),
            failed_at=[one.ended_at for one in by_trial[trial.number] if one.outcome == "failed" and one.ended_at],
        )
        for trial in found
    ]
    start = min((row.spans[0].start for row in rows if row.spans), default=record.started_at or record.created_at)
    end = max([end, start, *(span.end for row in rows for span in row.spans)])
    totals: dict[str, float] = {}
    for row in rows:
        for span in row.spans:
            totals[span.phase] = totals.get(span.phase, 0.0) + span.end - span.start
    short = min(saving_s - totals.get("checkpointing", 0.0), totals.get("running", 0.0))
    if short > 0:  # many short waits, which are not shown one by one
        totals["checkpointing"] = totals.get("checkpointing", 0.0) + short
        totals["running"] -= short
    devices = device_rows(segments, start, end, saves)
    pauses = [
        (running(begin), (now if stop is None else stop) - begin)
        for begin, stop in clock.pauses
        if stop is not None or ended is None
    ]
    of = sum(record.counts.values())
    return Timeline(start=start, end=end, trials=rows, devices=devices, totals=totals, of=of, pauses=pauses)


def _moved(item: TrialSegment, running: Callable[[float], float]) -> TrialSegment:
    """Return the segment with its times changed by this function."""
    of = item.segment
    started_at, ended_at = (None if time is None else running(time) for time in (of.started_at, of.ended_at))
    moved = dataclasses.replace(of, created_at=running(of.created_at), started_at=started_at, ended_at=ended_at)
    return dataclasses.replace(item, segment=moved)


def trial_spans(
    number: int,
    segments: Sequence[SegmentRecord],
    now: float,
    until: float | None,
    saves: Saves = MappingProxyType({}),
) -> list[Span]:
    """Return the spans of a trial, given its segments in order, without gaps.

    Between two segments, a trial is paused; before a retry or a resize, it waits.

    until: the end of the pause after the last segment; None if the trial was not paused then.
    """
    spans: list[Span] = []
    for at, segment in enumerate(segments):
        spans += _spans(number, segment, now, saves)
        if segment.ended_at is None:
            continue
        following = segments[at + 1] if at + 1 < len(segments) else None
        if following is not None:
            phase: Phase = "waiting" if following.cause in ("retry", "resize") else "paused"
            spans += _span(phase, segment.ended_at, following.created_at, number, segment.ordinal)
        elif until is not None and segment.outcome not in ("returned", "failed"):
            spans += _span("paused", segment.ended_at, until, number, segment.ordinal)
    return spans


def _spans(number: int, segment: SegmentRecord, now: float, saves: Saves) -> list[Span]:
    end = now if segment.ended_at is None else segment.ended_at
    if segment.started_at is None:
        return _span("waiting", segment.created_at, end, number, segment.ordinal)
    room = room_at(segment)
    return [
        *_span("waiting", segment.created_at, room, number, segment.ordinal),
        *_span(_start_of(segment), room, segment.started_at, number, segment.ordinal),
        *_training(number, segment.ordinal, segment.started_at, end, saves.get((number, segment.ordinal), ())),
    ]


def _start_of(segment: SegmentRecord) -> Phase:
    """Return the phase of a segment between getting its resources and starting to train."""
    phase = _AFTER.get(segment.cause, "starting")
    if phase == "exploiting" and segment.warm is False:
        return "restarting"  # starting the processes takes far longer than taking over the weights
    return phase


def _training(
    number: int, ordinal: int, start: float, end: float, saves: Sequence[tuple[float, float]]
) -> Iterator[Span]:
    """Yield the spans of a segment's training, interrupted by its checkpoints."""
    for begin, stop in saves:
        begin, stop = max(begin, start), min(stop, end)
        if stop > begin:
            yield from _span("running", start, begin, number, ordinal)
            yield from _span("checkpointing", begin, stop, number, ordinal)
            start = stop
    yield from _span("running", start, end, number, ordinal)


def _span(phase: Phase, start: float, end: float, trial: int | None, segment: int | None) -> list[Span]:
    """Return a list with the span, or an empty list if the span has no length."""
    return [Span(phase=phase, start=start, end=end, trial=trial, segment=segment)] if end > start else []


def room_at(segment: SegmentRecord) -> float:
    """Return the time at which a segment that has started got its resources.

    Older versions did not record this time. For their segments, the whole time from the launch counts as starting, including
    the wait.
    """
    assert segment.started_at is not None
    held = segment.startup_s if segment.held_s is None else segment.held_s
    return max(segment.created_at, segment.started_at - (held or 0.0))


def device_rows(
    segments: Iterable[TrialSegment], start: float, end: float, saves: Saves = MappingProxyType({})
) -> list[DeviceRow]:
    """Return the GPUs, and the slots of ranks without GPUs, with their spans, ordered by node.

    A rank without a GPU takes the first free slot of its node.
    """
    lanes: dict[tuple[str, bool, int, str], list[Span]] = {}
    places: dict[str, list[float]] = {}
    started = [item for item in segments if item.segment.started_at is not None]
    for item in sorted(started, key=lambda one: room_at(one.segment)):
        held = [span for span in _spans(item.trial, item.segment, end, saves) if span.phase != "waiting"]
        if not held:
            continue
        seen = set()
        for host, gpu in _devices(item.segment.placement):
            if gpu is None:
                place = _take(places.setdefault(host, []), held[0].start, held[-1].end)
                key = (host, False, place, f"slot {place + 1}")
            else:
                key = (host, True, len(gpu), f"GPU {gpu}")
            if key not in seen:  # ranks of a segment that share a GPU are counted once
                lanes.setdefault(key, []).extend(held)
                seen.add(key)
    return [
        DeviceRow(host=host, name=name, busy=_busy(spans, start, end), spans=_with_idle(spans, start, end))
        for (host, _, _, name), spans in sorted(lanes.items(), key=lambda lane: lane[0])
    ]


def _devices(placement: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Return (node, GPU) for each GPU of each rank, and (node, None) for a rank without a GPU."""
    found: list[tuple[str, str | None]] = []
    for rank in placement.get("ranks") or ():
        host = str(rank.get("host") or rank.get("node") or "this machine")
        gpus = [str(gpu) for gpu in rank.get("gpus") or ()]
        found += [(host, gpu) for gpu in gpus] or [(host, None)]
    return found


def _take(free_at: list[float], start: float, end: float) -> int:
    """Return the first slot that is free at `start`, and take it until `end`."""
    for place, free in enumerate(free_at):
        if free <= start:
            free_at[place] = end
            return place
    free_at.append(end)
    return len(free_at) - 1


def _with_idle(spans: Sequence[Span], start: float, end: float) -> list[Span]:
    """Return the spans of a device in order, with idle spans between them."""
    found: list[Span] = []
    reached = start
    for span in sorted(spans, key=lambda one: one.start):
        found += _span("idle", reached, span.start, None, None)
        found.append(span)
        reached = max(reached, span.end)
    return [*found, *_span("idle", reached, end, None, None)]


def _busy(spans: Sequence[Span], start: float, end: float) -> float:
    if end <= start:
        return 0.0
    idle = sum(span.end - span.start for span in _with_idle(spans, start, end) if span.phase == "idle")
    return min(1.0, max(0.0, 1.0 - idle / (end - start)))
