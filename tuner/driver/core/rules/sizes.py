"""Decide how many ranks an elastic trial starts with, and whether that number changes at a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tuner.domain import decisions as d
from tuner.domain.trial import Trial
from tuner.driver.core.state.state import State
from tuner.plurals import counted

TRAINS_FOR = 4.0
"""A trial that was resized trains for at least this multiple of the cost of a restart before it grows again."""


def first_size(experiment: State, start: d.Start) -> d.Start:
    """Return the start of an elastic trial with its number of ranks filled in.

    A trial starts with the smallest number, unless the cluster holds more trials than are left. Then it starts with its share
    of all ranks.
    """
    sizes, (_, room) = experiment.sizes, experiment.workers
    if sizes.waiting():
        return start
    others = sizes.count()
    more = min(experiment.startable - 1, experiment.slots - others - 1)
    share = room // (others + 1 + max(0, more))
    workers = min(sizes.most, share, room - sizes.committed())
    if workers <= sizes.least:
        return start
    free = f"it starts with {counted(workers, 'worker')}, because no trial waits"
    return replace(start, workers=workers, reason=f"{start.reason}; {free}")


def resized(experiment: State, trial: Trial, *, idle: bool) -> d.Resize | None:
    """Return the decision to continue a trial with a different number of ranks; None if it keeps its number.

    Call this while the trial's ranks wait at a report at which they save a checkpoint, and only if nothing else has been
    decided about the trial.

    idle: whether the scheduler has just been asked and has no use for the free workers.
    """
    segment = trial.segments[-1]
    if not segment.open or segment.leaving or trial.next is not None or not segment.offers:
        return None
    if segment.workers > experiment.sizes.least and (why := _room_wanted(experiment)) is not None:
        return _gives_way(experiment, trial, why)
    return _shrinks(experiment, trial) or (_grows(experiment, trial) if idle else None)


def waiting_resized(experiment: State) -> Iterator[d.Resize]:
    """Yield the decisions to plan fewer ranks for trials whose groups wait for workers that other work is using."""
    sizes, (_, room) = experiment.sizes, experiment.workers
    for number in list(experiment.segments.holding):
        trial = experiment.trials[number]
        segment, more = trial.segments[-1], sizes.expected() - room
        stays = segment.started or segment.leaving or not trial.waiting or trial.next is not None
        if more > 0 and segment.workers > sizes.least and not stays:
            new = max(sizes.least, segment.workers - more)
            why = (
                f"starts with {counted(new, 'worker')} instead of {segment.workers}, because other work holds the rest"
            )
            yield d.Resize(trial=number, workers=new, reason=why)


def _room_wanted(experiment: State) -> str | None:
    """Return who needs the workers of trials that have grown; None if nobody does or enough trials are giving way already."""
    sizes, (_, room) = experiment.sizes, experiment.workers
    if sizes.expected() <= room:
        return None
    waiting = sizes.waiting()
    if waiting:
        return f"trial {waiting[0]} waits" if len(waiting) == 1 else f"{len(waiting)} trials wait"
    return "other work on the cluster needs workers"


def _gives_way(experiment: State, trial: Trial, why: str) -> d.Resize | None:
    """Return the decision to give workers back; None if the trial will end before a restart could free them."""
    sizes, (_, room) = experiment.sizes, experiment.workers
    present = trial.segments[-1].workers
    soon = min(experiment.startable, experiment.slots - sizes.count())
    new = sizes.target(trial, room, max(0, soon))
    left = sizes.left_s(trial, experiment.spec.max_t, experiment.start_t(trial))
    if new >= present or left <= sizes.cost_s(trial):
        return None
    what = f"gives way at iteration {trial.iteration}, from {present} to {counted(new, 'worker')}: {why}"
    return d.Resize(trial=trial.number, workers=new, reason=what + _batches(experiment))


def _shrinks(experiment: State, trial: Trial) -> d.Resize | None:
    """Return the decision to undo the trial's last growth, if it made the trial slower by more than a restart costs."""
    sizes, segment = experiment.sizes, trial.segments[-1]
    lost, cost = sizes.slower(trial), sizes.cost_s(trial)
    left = sizes.left_s(trial, experiment.spec.max_t, experiment.start_t(trial))
    if lost is None or left * lost <= cost or segment.trained_s < TRAINS_FOR * cost:
        return None
    new = trial.segments[-2].workers
    what = f"shrinks at iteration {trial.iteration}, from {segment.workers} to {counted(new, 'worker')}"
    why = f"growing made it slower; this saves {left * lost:.3g} of the {left:.3g} s that are left"
    return d.Resize(
        trial=trial.number,
        workers=new,
        reason=f"{what}: {why}, and a restart costs {cost:.2g} s" + _batches(experiment),
    )


def _grows(experiment: State, trial: Trial) -> d.Resize | None:
    """Return the decision to grow into free workers, if that saves more of the remaining time than the restart costs."""
    sizes, (_, room) = experiment.sizes, experiment.workers
    segment = trial.segments[-1]
    free = room - sizes.committed()
    if free <= 0 or segment.workers >= sizes.most or sizes.waiting():
        return None
    new = min(sizes.target(trial, room), segment.workers + free)
    if new <= segment.workers:
        return None
    cost = sizes.cost_s(trial)
    left = sizes.left_s(trial, experiment.spec.max_t, experiment.start_t(trial))
    gain = left * sizes.gain(segment.workers, new)
    if gain <= cost or (segment.cause == "resize" and segment.trained_s < TRAINS_FOR * cost):
        return None
    what = f"grows at iteration {trial.iteration}, from {segment.workers} to {counted(new, 'worker')}"
    why = f"{free} of {room} are free and no trial waits; this saves up to {gain:.3g} of the {left:.3g} s that are left"
    return d.Resize(
        trial=trial.number,
        workers=new,
        reason=f"{what}: {why}, and a restart costs {cost:.2g} s" + _batches(experiment),
    )


def _batches(experiment: State) -> str:
    """Return the end of a reason, which says whether a resize changes the batch size."""
    return "" if experiment.spec.scaling.keep_global_batch_size else "; the global batch size changes with it"
