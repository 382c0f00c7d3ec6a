"""At which report the ranks of a segment wait next: for the scheduler, a stopper, max_t, or a checkpoint that is due by time."""

from __future__ import annotations

import math

from tuner.domain.experiment import Spec
from tuner.domain.trial import Segment, Trial


def next_milestone(spec: Spec, trial: Trial, segment: Segment, wanted: list[float | None], now: float) -> int | None:
    """report_no within the segment; None: never. `wanted` are values of time_attr that somebody waits for."""
    soon = segment.report_no + 1
    due = [w for w in wanted if w is not None and not math.isinf(w)]
    to_save = _next_save(spec, trial, segment, now)
    if not due:
        return to_save
    by_iteration = spec.time_attr == "training_iteration"
    at = max(soon, math.ceil(min(due)) - segment.start_iteration) if by_iteration else soon
    return at if to_save is None else min(at, to_save)


def save_is_due(spec: Spec, segment: Segment, now: float) -> bool:
    """Whether the newest checkpoint of the segment is older than the policy wants."""
    interval = spec.checkpoint.interval_s
    return interval is not None and now - segment.saved_at >= interval


def _next_save(spec: Spec, trial: Trial, segment: Segment, now: float) -> int | None:
    """Where a checkpoint will be due by time, from the pace of the reports so far."""
    interval = spec.checkpoint.interval_s
    if interval is None:
        return None
    if not trial.reports:
        return segment.report_no + 1
    pace = trial.running_s / trial.reports
    left = segment.saved_at + interval - now
    return segment.report_no + max(1, math.ceil(left / pace) if pace > 0 else 10_000)
