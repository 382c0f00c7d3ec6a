"""Define the interface of a scheduler, a pure state machine that decides which trials train.

A scheduler has no clock, no I/O, no threads and no random generator. It has three kinds of methods. Because they are
kept apart, a search survives the death of its driver.

* `record` and `enacted` apply facts to `state`. They are cheap.
* `decide` and `choose` read `state` and the population and return decisions. They may be expensive, and change *nothing*.
* `fit` is a pure function of the payload that `fit_request` returns. It runs in a separate process. Its result comes
  back through `record`, as a `Fitted` fact.

A live core calls ``record(fact)``, then ``decisions = decide(fact)``, then ``enacted(d)`` for each d that took effect.
After a restart the core calls only ``record(fact)`` and ``enacted(recorded decision)``. Both ways lead to the same
state, bit for bit. Returning no decision means that the trial continues. A decision about a *running* trial is possible
only at a report of that trial at one of its milestones; decisions about paused trials are possible at any time.

Configuration (the constructor's arguments) and state (one dataclass) are kept apart.

The population `trials` that the methods get is without repeats: trials that evaluate the best configurations again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from tuner.domain.decisions import Decision, Exploit, Resume, Start
from tuner.domain.experiment import Objective, Scope
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.names import keywords_explained

if TYPE_CHECKING:
    from tuner.space import Space
    from tuner.space.revisions import Revisions

ALLOWED = "the limit on concurrent trials allows one more"
"""The reason for a new trial if there is no more specific one. Whether there are resources for it is known only later."""

HAS_ROOM = "there are resources for one more trial"
"""The reason if the experiment has no limit on concurrent trials, so that as many run as there are resources for."""


class MetricConstraint(Protocol):
    """A bound on a metric that trials report; see `tuner.search.constraints`."""

    def excess(self, metrics: Mapping[str, float]) -> float:
        """Return how far the metric is beyond its bound. The result is zero or negative if the constraint is satisfied."""


@dataclass(frozen=True, slots=True)
class SchedulerContext:
    """The experiment as its scheduler sees it. It is passed to `Scheduler.setup` once, before any other call."""

    objective: Objective
    time_attr: str
    max_t: int | None
    num_samples: int | None
    seed: int
    space: Space
    slots: int | None = None  # max_concurrent_trials, if it is known
    checkpoints: bool = True  # False if the trainable is known to save no checkpoints
    time_budget_s: float | None = None  # seconds of running time, if the experiment has such a limit
    scope: Scope = "all"  # which of a trial's values counts: "all" for the best one, "last" for the last one
    budget: float | None = None  # limit on the training of all trials together, in full trainings; None: no limit
    given_points: int = 0  # number of points_to_evaluate; the searcher suggests them first
    objectives: tuple[Objective, ...] = ()  # all objectives; empty if there is only `objective`
    constraints: tuple[MetricConstraint, ...] = ()  # bounds that results must satisfy
    gpus: float = 0.0  # the resources of a trial, all ranks together
    earlier: Mapping[str, Any] | None = None  # what was learned from earlier experiments; see `Spec.earlier`
    revisions: Revisions | None = None  # the spaces so far, if a user has changed the space

    @property
    def all_objectives(self) -> tuple[Objective, ...]:
        """Return all objectives, beginning with `objective`."""
        return self.objectives or (self.objective,)

    def params_of(self, trial: Trial) -> Mapping[str, Any] | None:
        """Return the trial's configuration in the current space, or None if it does not lie in that space.

        A trial keeps the configuration of the space from which it was proposed; see `tuner.space.revisions`.
        """
        return trial.params if self.revisions is None else self.revisions.inside(trial.params, trial.space_revision)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A trial was created. The population has the trial's params and tags."""

    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReported:
    """A trial made a report with a finite objective. `score` is the objective, with its sign changed if lower is better."""

    trial: int
    iteration: int  # training_iteration
    t: float  # value of time_attr
    score: float
    metrics: Mapping[str, float]
    time: float
    running_s: float = 0.0  # running time of the search so far, without pauses and the time without a driver


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded:
    """A trial reached a final state.

    A trial that reports NaN ends as `stopped` with `diverged` set, without a TrialReported.
    """

    trial: int
    state: TrialState
    diverged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRestarted:
    """A segment of a trial begins. After a retry, it may begin at an iteration before the last reported one.

    This fact comes before the segment's first report.
    """

    trial: int
    cause: str  # start | retry | resume | exploit | fork | resize
    iteration: int  # training_iteration at which the segment begins
    t: float  # value of time_attr at which the segment begins


@dataclass(frozen=True, slots=True, kw_only=True)
class StartMeasured:
    """The start-up time of a segment was measured. This fact may arrive after the segment's first reports."""

    trial: int
    startup_s: float  # seconds from the decision to the first step


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The result of `fit` was committed."""

    payload: Mapping[str, Any]


Fact = TrialStarted | TrialReported | TrialEnded | TrialRestarted | StartMeasured | Fitted


Choice = Start | Resume | Exploit
"""A choice that a scheduler makes for a free worker group."""


def can_resume(trial: Trial) -> bool:
    """Return True if a scheduler may resume this trial now.

    The trial must be paused but not held by a user, and its last segment must have ended.
    """
    return trial.state is TrialState.PAUSED and not trial.held and not trial.holds_resources


class Scheduler(ABC):
    """Base class of all schedulers. It behaves like FIFO; subclasses override what they need."""

    #: the value of "type" in a spec
    TYPE: ClassVar[str]
    #: True if the scheduler proposes configurations itself, so that no searcher is used
    PROPOSES: ClassVar[bool] = False
    #: True if a search without `num_samples` and without a time budget has one trial
    ONE_TRIAL: ClassVar[bool] = False
    #: True if trials may copy a running trial, so that every trial saves a checkpoint at each of its milestones
    SAVES_AT_MILESTONES: ClassVar[bool] = False
    #: True if the scheduler ends the search when all trials together have trained for `budget` full trainings
    COUNTS_BUDGET: ClassVar[bool] = False
    #: True if the scheduler can continue in a search space that a user has changed; see `amend`
    REVISES: ClassVar[bool] = True
    #: True if the scheduler uses all objectives, not only the first
    SEVERAL_OBJECTIVES: ClassVar[bool] = False

    state: Any = None
    context: SchedulerContext

    def __init_subclass__(cls) -> None:
        if cls.__init__ is not object.__init__:  # its own `__init__`, or an inherited one
            cls.__init__ = keywords_explained(cls.__init__, cls.__name__)  # type: ignore[method-assign]

    def setup(self, context: SchedulerContext) -> None:
        """Set the experiment's context, and check the scheduler's options against it.

        This is the place for checks against max_t, time_attr and the space. max_t and time_attr never change later; `amend`
        gets what does.

        Raises:
            SpecError: the options do not fit the experiment. Pointers are absolute, such as ``/scheduler/grace_period``, while
                those of the constructor are relative; see `tuner.options`. One error may have several pointers.
        """
        self.context = context

    def amend(self, context: SchedulerContext) -> None:
        """Adapt to a user's changes of num_samples, limits or the search space. The rest of the context is as in `setup`.

        A scheduler that reads configurations must get them from `SchedulerContext.params_of`.
        """
        self.context = context

    def default_space(self) -> Mapping[str, Any]:
        """Return the search space to use if a Python call passes none. Most schedulers do not provide one."""
        return {}

    def inherited_max_t(self, max_t: float | None, time_attr: str | None) -> float | None:
        """Return `max_t`, the scheduler's own option, or the experiment's max_t if that option is None.

        Raises:
            SpecError: `time_attr` differs from the experiment's time_attr.
        """
        if time_attr is not None and time_attr != self.context.time_attr:
            message = (
                f"the experiment's time_attr is {self.context.time_attr!r}, not {time_attr!r}; set it in the experiment"
            )
            raise SpecError(message, "/scheduler/time_attr")
        return self.context.max_t if max_t is None else max_t

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return ``{"type": ..., option: value, ...}``, from which `tuner.schedulers.from_json` builds an equal scheduler.

        The result must survive a JSON round trip. JSON makes the keys of a mapping strings and a tuple a list, so the constructor
        must take these forms, too. A scheduler outside `tuner.schedulers.REGISTRY` is pickled instead of built from this.
        """

    def resolved(self) -> dict[str, Any]:
        """Return the result of `to_json` with inherited values in place of None. Call `setup` first."""
        inherited = {"max_t": self.context.max_t, "time_attr": self.context.time_attr}
        return {name: inherited.get(name) if value is None else value for name, value in self.to_json().items()}

    def budget_words(self) -> str | None:
        """Return, in words, the scheduler's limit on the training and the argument that raises it; None if it has no limit."""
        return None

    def budget_spent(self) -> float | None:
        """Return the share of the limit on the training that is spent, at most 1; None without a limit or any training."""
        return None

    def milestone(self, trial: Trial, trials: Population) -> float | None:
        """Return the value of time_attr at which `decide` is next called for this trial, or None for never.

        `decide` is called at the first report at or above this value that has the objective. A value at or below the trial's
        current one means its next report. A value lower than necessary is allowed, if `decide` checks whether the time has come.
        """
        return None

    def record(self, fact: Fact, trials: Population) -> None:  # noqa: B027
        """Fold a fact into `state`."""

    def enacted(self, decision: Decision, trials: Population) -> None:  # noqa: B027
        """Fold a committed decision into `state`. The decision may have been made by this scheduler, a user or the core."""

    def decide(self, fact: Fact, trials: Population) -> Sequence[Decision]:
        """Return what to do after a fact. An empty sequence means that the trial continues.

        The core leaves out a decision that no longer applies, for example because the trial's segment is already ending.
        `enacted` is not called for it. So keep the judgment in the state, and decide again at the trial's next milestone.
        """
        return ()

    def choose(self, trials: Population, may_start: bool) -> Choice | None:
        """Choose what to run on a free worker group.

        Args:
            trials: all trials so far.
            may_start: True if another new trial is allowed.

        Returns:
            A Start, a Resume, or an Exploit, which resumes a paused trial from a donor's checkpoint. None: the worker group
            stays free, and the core calls `choose` again after the next event.
        """
        if may_start:
            return Start(reason=ALLOWED)
        return None

    def fit_request(self, trials: Population) -> Mapping[str, Any] | None:
        """Return the payload for `fit` if a new fit is due, else None. The core runs one fit at a time."""
        return None

    @staticmethod
    def fit(payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fit the model. This is a pure function from JSON to JSON, and runs in another process."""
        raise TypeError("this scheduler fits no model")

    def finished(self, trials: Population, may_start: bool) -> str | None:
        """Return why the search is over although trials are paused or could be started; None if it is not over."""
        return None
