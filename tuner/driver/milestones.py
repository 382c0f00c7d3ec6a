"""At which report the ranks of a segment wait next: for the scheduler, a stopper, max_t, or a checkpoint: one that
is due by time, or one of what may be the best value yet."""

from __future__ import annotations

import math

from tuner.domain.experiment import Spec
from tuner.domain.trial import Segment, Trial


def next_milestone(
    spec: Spec, trial: Trial, segment: Segment, wanted: list[float | None], now: float, offer: int | None = None
) -> int | None:
    """report_no within the segment; None: never.

    wanted: values of time_attr that somebody waits for. offer: where the ranks could next save a checkpoint.
    """
    soon = segment.report_no + 1
    due = [w for w in wanted if w is not None and not math.isinf(w)]
    by_iteration = spec.time_attr == "training_iteration"
    at = [max(soon, math.ceil(min(due)) - segment.start_iteration) if by_iteration else soon] if due else []
    saves = (_next_save(spec, trial, segment, now), _next_best(spec, segment, offer))
    return min([*at, *(save for save in saves if save is not None)], default=None)


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


def _next_best(spec: Spec, segment: Segment, offer: int | None) -> int | None:
    """Where a new best value could be saved: wherever there may be a checkpoint, and until one was offered, ever more seldom."""
    if spec.checkpoint.keep_best == 0 or len(spec.objectives) > 1:
        return None
    return offer if offer is not None else max(1, 2 * segment.report_no)
