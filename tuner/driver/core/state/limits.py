"""The limits that end the whole experiment, and what each of them counts.

A limit counts from the start of the experiment, or from the user's last `continue`: otherwise a continued experiment would
end again at once. Other limits are elsewhere. Searchers and schedulers apply `num_samples` and `budget`. A timer of the
driver watches the time budget and the GPU hours, because they may be used up between two events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.domain.decisions import Finish
from tuner.domain.events import BudgetSpent, GpuHoursSpent
from tuner.domain.states import ExperimentState, TrialState
from tuner.plurals import counted

if TYPE_CHECKING:
    from tuner.driver.core.state.state import State

GIVE_UP_AFTER = 10
"""The experiment fails once this many trials have failed and none has ever reported."""

_ROUNDING = 1 + 1e-9
"""Sums of times that are equal, apart from rounding errors, differ by less than this factor."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on something that only grows.

    count: returns the total since the start of the experiment.
    reached: called with the amount since the user's last `continue`. It returns the decision that ends the search, or None.
    stops_trials: whether running trials then stop at their next report. Otherwise they train to their end, and the scheduler
        continues to decide about them.
    """

    count: Callable[[State], float]
    reached: Callable[[State, float], Finish | None]
    stops_trials: bool = True


def counts(experiment: State) -> Sequence[float]:
    """Return what each limit has counted since the start of the experiment."""
    return tuple(limit.count(experiment) for limit in LIMITS)


def reached(experiment: State) -> tuple[Limit, Finish] | None:
    """Return the first limit that is reached, and its decision. What was counted before the last `continue` does not count."""
    for limit, before in zip(LIMITS, experiment.counted, strict=True):
        if (finish := limit.reached(experiment, limit.count(experiment) - before)) is not None:
            return limit, finish
    return None


def used_up(experiment: State) -> bool:
    """Return whether the time budget or the GPU hours are used up, so that the driver's timer ends the search at once.

    In virtual time, the timer waits for the first event after the limit. So this must be False if the limit is just reached:
    if no trial started then, there might be no further event.
    """
    seconds, hours = experiment.spec.limits.time_budget_s, experiment.spec.limits.gpu_hours
    if seconds is not None and experiment.running_s > seconds * _ROUNDING:
        return True
    return hours is not None and experiment.usage.gpu_hours(experiment.ran) > hours * _ROUNDING


def end_search(experiment: State) -> bool:
    """Return whether the driver's timer is about to end the search, because the time or the GPU hours are used up."""
    return experiment.state is ExperimentState.RUNNING and experiment.finishing is None and used_up(experiment)


def spent(event: BudgetSpent | GpuHoursSpent) -> str:
    """Return the reason for stopping trials because a limit of the driver's timer is used up."""
    if isinstance(event, BudgetSpent):
        return f"the time budget of {event.seconds:g} s is spent"
    return f"the limit of {counted(event.gpu_hours, 'GPU hour', 'g')} is used up"


def _failed(experiment: State) -> int:
    """Count the failed trials of the search. A repeat that fails does not make a finished search a failed one."""
    return experiment.trials.searched.count(TrialState.FAILED)


def _only_failures(experiment: State, failed: float) -> Finish | None:
    if failed < GIVE_UP_AFTER or experiment.progress.reports:
        return None
    last = experiment.trials[max(experiment.trials.in_state(TrialState.FAILED))]
    why = f"{round(failed)} trials failed and none has ever reported; the last one: {last.reason}"
    return Finish(reason=why, failed=True, fatal=last.number)


def _too_many_failures(experiment: State, failed: float) -> Finish | None:
    most = experiment.spec.limits.max_failed_trials
    if most is None or failed < most:
        return None
    return Finish(reason=f"{counted(round(failed), 'trial')} failed, and max_failed_trials is {most}", failed=True)


LIMITS = (
    Limit(_failed, _only_failures, stops_trials=False),
    Limit(_failed, _too_many_failures),
)
