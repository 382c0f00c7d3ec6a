"""Define the interface of a stopper.

A stopper is pure, like a scheduler, but simpler. `record` folds facts into `state`, and the other methods only read the
state.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from tuner.domain.trial import Population, Trial
from tuner.options import options_of
from tuner.schedulers.base import Fact, SchedulerContext

ITERATION = "training_iteration"
TIME = "time_total_s"


def next_report(trial: Trial) -> float:
    """Return a milestone that the trial's next report reaches, whatever its value of time_attr is."""
    return math.nextafter(trial.t, math.inf)


class CallsFunction(Protocol):
    """The part of a stopper that calls a user's function, as the driver sees it; see `FunctionStopper`."""

    function: Any
    outside: bool

    def arguments(self, trial: Trial) -> dict[str, float]: ...
    def answered(self, number: int, segment: int, iteration: int, answer: Mapping[str, Any]) -> None: ...


class Stopper(ABC):
    """Base class of all stoppers."""

    #: the value of "type" in a spec
    TYPE: ClassVar[str]

    state: Any = None
    context: SchedulerContext

    def setup(self, context: SchedulerContext) -> None:
        """Set the experiment's context. Called once, before any other method."""
        self.context = context

    def to_json(self) -> dict[str, Any]:
        """Return ``{"type": ..., option: value, ...}``, from which `from_json` builds an equal stopper."""
        return {"type": self.TYPE, **options_of(self)}

    def metrics(self) -> frozenset[str]:
        """Return the names of the reported metrics that this stopper reads.

        If one of these metrics is never reported, the decision log says so.
        """
        return frozenset()

    @abstractmethod
    def milestone(self, trial: Trial) -> float | None:
        """Return the value of time_attr at which `decide` is called next, or None for never.

        The milestone is above the trial's current value of time_attr. So a stopper that waits for iteration 27 costs nothing
        until then.
        """

    def record(self, fact: Fact, trials: Population) -> None:  # noqa: B027 - most stoppers have nothing to remember
        """Fold a fact into `state`."""

    def record_report_without(self, trial: Trial, metrics: Mapping[str, float], running_s: float) -> None:
        """Fold a report that lacks the objective into `state`. `record` is not called for such a report."""
        if self.knows_objective(trial):
            self.record_without(trial)

    def record_without(self, trial: Trial) -> None:  # noqa: B027 - stoppers of users may have it
        """Fold a report that lacks the objective into `state`, of a trial that has reported the objective before."""

    def knows_objective(self, trial: Trial) -> bool:
        """Return whether the trial has reported the objective, or all of them. A trial that ends before that fails."""
        return all(objective.metric in trial.last for objective in self.context.all_objectives)

    def decide(self, number: int, trials: Population) -> str | None:
        """Return why this trial, which has just reported, is complete; None to let it continue."""
        return None

    def finished(self, trials: Population) -> str | None:
        """Return why the whole search is over, or None to let it continue. The core calls this after every event."""
        return None

    def functions(self) -> list[CallsFunction]:
        """Return the parts of this stopper that call a user's function, always in the same order."""
        return []
