"""The limits that end the whole experiment, and what each of them counts.

A limit counts from the start of the experiment, or from the user's last `continue`: otherwise a continued experiment would
end again at once. The time budget and the GPU hours are not here, because they are used up between two events, so that a
timer of the driver watches them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tuner.domain.decisions import Finish
from tuner.domain.experiment import Spec
from tuner.domain.states import TrialState
from tuner.domain.trial import Population
from tuner.driver.core.state.progress import Progress
from tuner.driver.core.state.usage import Usage


class Counted(Protocol):
    """The part of the state of an experiment that limits may count."""

    spec: Spec
    trials: Population
    progress: Progress
    usage: Usage
    now: float


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on something that only grows.

    count: returns how much there has been since the start of the experiment.
    reached: called with how much of it counts; returns the decision that ends the search, or None. If the decision says that
        the experiment failed, its running trials go on; otherwise they are stopped.
    """

    count: Callable[[Counted], float]
    reached: Callable[[Counted, float], Finish | None]


GIVE_UP_AFTER = 10
"""The experiment fails once this many trials have failed and none has ever reported."""


def _only_failures(experiment: Counted, failed: float) -> Finish | None:
    if failed < GIVE_UP_AFTER or experiment.progress.reports:
        return None
    last = experiment.trials[max(experiment.trials.in_state(TrialState.FAILED))]
    why = f"{failed:g} trials failed and none has ever reported; the last one: {last.reason}"
    return Finish(reason=why, failed=True, fatal=last.number)


LIMITS: Mapping[str, Limit] = {
    "failures without a report": Limit(lambda experiment: experiment.trials.count(TrialState.FAILED), _only_failures),
}
"""The limits. Nobody but this module needs their names."""


def counts(experiment: Counted) -> dict[str, float]:
    """Return what each limit has counted since the start of the experiment."""
    return {name: limit.count(experiment) for name, limit in LIMITS.items()}


def reached(experiment: Counted, before: Mapping[str, float]) -> Finish | None:
    """Return the decision of the first limit that is reached.

    before: what `counts` returned when the experiment was last continued; it no longer counts.
    """
    for name, limit in LIMITS.items():
        if (finish := limit.reached(experiment, limit.count(experiment) - before.get(name, 0.0))) is not None:
            return finish
    return None
