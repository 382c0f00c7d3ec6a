"""Compute the next report at which a segment's ranks wait.

They wait if the scheduler, a stopper or max_t may end the segment there. They also wait if a checkpoint may be due:
because the last one is old, or because the report may have a new best value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tuner.domain.experiment import Spec
from tuner.domain.trial import Segment, Trial


def next_milestone(
    spec: Spec, trial: Trial, segment: Segment, wanted: Iterable[float | None], interval_s: float | None, now: float
) -> int | None:
    """Return the report_no of the next report at which the ranks of the segment wait; None if they never wait.

    Args:
        spec: the specification of the experiment.
        trial: the trial of the segment.
        segment: the segment.
        wanted: the values of time_attr at which decisions are due; None stands for a decision that is never due.
        interval_s: the seconds between periodic checkpoints; None if there are none.
        now: the time.
    """
    found: int | None = None
    due = math.inf
    for time in wanted:
        if time is not None and -math.inf < time < due:
            due = time
    if due < math.inf:
        found = segment.report_no + 1
        if spec.time_attr == "training_iteration":
            found = max(found, math.ceil(due) - segment.start_iteration)
    for save in (_next_save(trial, segment, interval_s, now), _next_best(spec, segment)):
        if save is not None and (found is None or save < found):
            found = save
    return found


def save_is_due(segment: Segment, interval_s: float | None, now: float) -> bool:
    """Return whether `interval_s` seconds have passed since the segment's start or newest checkpoint."""
    return interval_s is not None and now - segment.saved_at >= interval_s


def _next_save(trial: Trial, segment: Segment, interval_s: float | None, now: float) -> int | None:
    """Return the report at which `interval_s` seconds will have passed, estimated from the pace of the reports so far.

    A first report may take no time, such as that of an evaluation before the training. So the ranks wait at the latest once the
    trial has made twice as many reports as it has now.
    """
    if interval_s is None:
        return None
    if not trial.reports:
        return segment.report_no + 1
    pace = trial.running_s / trial.reports
    left = segment.saved_at + interval_s - now
    expected = math.ceil(left / pace) if pace > 0 else trial.reports
    return segment.report_no + max(1, min(expected, trial.reports))


def _next_best(spec: Spec, segment: Segment) -> int | None:
    """Return the next report at which the training code can save a checkpoint (`segment.offer`).

    The ranks wait there because the checkpoint may be the best yet, and because an elastic trial may be resized there. As long as
    `segment.offer` is unknown, they wait at intervals that double.
    """
    if (spec.checkpoint.keep_best == 0 or len(spec.objectives) > 1) and not spec.scaling.elastic:
        return None
    return segment.offer if segment.offer is not None else max(1, 2 * segment.report_no)
