"""What a scheduler is: a pure state machine that spends the budget on trials.

A scheduler has no clock, no I/O, no threads and no generator of its own. Its methods fall in three kinds, and keeping them
apart is what lets a search survive its driver:

* `record` and `enacted` take facts in and change `state`. They are cheap.
* `decide` and `choose` read `state` and the population and return decisions. They may be expensive and change *nothing*.
* `fit` is a pure function of `fit_request()`'s payload that runs in a process of its own; its result comes back as
  `ModelFitted` through `record`.

Live, the core calls ``record(event)``, then ``decisions = decide(event)``, then ``enacted(d)`` for each d that took effect.
After a restart it calls ``record(event)`` and ``enacted(recorded decision)`` only. Both leave the same state, bit for bit.
Silence means continue. A decision about a *running* trial is possible only at that trial's own milestone report; paused
trials may be decided on at any time.

Config (the constructor's arguments) and state (one dataclass that is JSON-able through `dataclasses.asdict`) are apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tuner.domain.decisions import Decision, Exploit, Resume, Start
from tuner.domain.experiment import Objective
from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.errors import SpecError
from tuner.names import keywords_explained
from tuner.schedulers.state import restore

if TYPE_CHECKING:
    from tuner.space import Space


@dataclass(frozen=True, slots=True)
class Setting:
    """What the experiment tells its scheduler, once, before anything else."""

    objective: Objective
    time_attr: str
    max_t: int | None
    num_samples: int | None
    seed: int
    space: Space
    slots: int | None = None  # max_concurrent_trials, where it is known
    checkpoints: bool = True  # False where the trainable is known to save none
    time_budget_s: float | None = None  # of running time, where the experiment has one
    scope: str = "all"  # which of a trial's values counts: "all", its best one, or "last"
    budget: float | None = None  # of the experiment, in full trainings, where it has one
    given_points: int = 0  # how many points_to_evaluate there are; the searcher suggests them first


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """The trial was created; its params and tags are in the population."""

    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReported:
    """A report with a finite objective. `score` is the objective turned so that higher is better."""

    trial: int
    iteration: int  # training_iteration
    t: float  # value of time_attr
    score: float
    metrics: Mapping[str, float]
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded:
    """The trial came into a final state. A NaN ends a trial as `stopped` with `diverged` set, without a TrialReported."""

    trial: int
    state: TrialState
    diverged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRestarted:
    """A segment begins: after a retry the iteration may have gone back. It comes before the segment's first report."""

    trial: int
    cause: str  # start | retry | resume | exploit
    iteration: int  # continues from here
    t: float  # value of time_attr that it begins with


@dataclass(frozen=True, slots=True, kw_only=True)
class StartMeasured:
    """How long the start of a segment took. It may come after the segment's first reports."""

    trial: int
    startup_s: float  # seconds from the decision to the first step


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What `fit` returned, committed."""

    payload: Mapping[str, Any]


Fact = TrialStarted | TrialReported | TrialEnded | TrialRestarted | StartMeasured | Fitted


Choice = Start | Resume | Exploit
"""What a free worker group may be given to."""


def can_resume(trial: Trial) -> bool:
    """Whether a scheduler may resume this trial now: it is paused, not held by a user, and its worker group is gone."""
    return trial.state is TrialState.PAUSED and not trial.held and not trial.holds_resources


class Scheduler(ABC):
    """Base class; the default is FIFO. Subclasses override what they need."""

    #: value of "type" in a spec
    TYPE: ClassVar[str]
    #: bumped when `state` changes its form
    VERSION: ClassVar[int] = 1
    #: whether it proposes configurations itself, so that no searcher is asked
    PROPOSES: ClassVar[bool] = False
    #: whether it pauses or copies trials, so that a checkpoint is wanted at every milestone
    NEEDS_CHECKPOINTS: ClassVar[bool] = False
    #: whether other trials may copy a trial that goes on, so that it saves at every milestone and not only when it pauses
    SAVES_AT_MILESTONES: ClassVar[bool] = False

    #: whether it ends the search after `budget` full trainings' worth, all trials together
    COUNTS_BUDGET: ClassVar[bool] = False

    state: Any = None
    setting: Setting

    def __init_subclass__(cls) -> None:
        if own := cls.__dict__.get("__init__"):
            cls.__init__ = keywords_explained(own, cls.__name__)  # type: ignore[method-assign]

    def setup(self, setting: Setting) -> None:
        """Take the experiment's setting and check the own options against it; SpecError says what does not fit."""
        self.setting = setting

    def inherited_max_t(self, max_t: float | None, time_attr: str | None) -> float | None:
        """The scheduler's own max_t, or the experiment's; SpecError for a time_attr that is not the experiment's."""
        if time_attr is not None and time_attr != self.setting.time_attr:
            message = f"the experiment counts in {self.setting.time_attr!r}, not in {time_attr!r}; set it there"
            raise SpecError(message, "/scheduler/time_attr")
        return self.setting.max_t if max_t is None else max_t

    def save(self) -> dict[str, Any]:
        """`state` as JSON, for a snapshot."""
        return {"version": self.VERSION, "state": None if self.state is None else asdict(self.state)}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Take what `save` gave back; ValueError where another version wrote it (fold the events instead)."""
        if saved["version"] != self.VERSION:
            raise ValueError(f"saved by version {saved['version']} of {self.TYPE}, this is version {self.VERSION}")
        if self.state is not None:
            self.state = restore(type(self.state), saved["state"])

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """``{"type": ..., option: value, ...}``, from which `tuner.schedulers.from_json` builds an equal scheduler."""

    def resolved(self) -> dict[str, Any]:
        """`to_json` as it works out in this experiment: with what it inherits in the place of None. Call `setup` before."""
        inherited = {"max_t": self.setting.max_t, "time_attr": self.setting.time_attr}
        return {name: inherited.get(name) if value is None else value for name, value in self.to_json().items()}

    def budget_words(self) -> str | None:
        """Say what the search may spend and which argument raises it; None if this scheduler sets no end of its own."""
        return None

    def milestone(self, trial: Trial, trials: Population) -> float | None:
        """The smallest value of time_attr above the trial's present one at which `decide` must be asked; None: never."""
        return None

    def record(self, fact: Fact, trials: Population) -> None:  # noqa: B027
        """Fold a fact into `state`."""

    def enacted(self, decision: Decision, trials: Population) -> None:  # noqa: B027
        """A decision, of this scheduler, a user or the core, has been committed."""

    def decide(self, fact: Fact, trials: Population) -> Sequence[Decision]:
        """What to do after a fact. Empty means: go on."""
        return ()

    def choose(self, trials: Population, may_start: bool) -> Choice | None:
        """A worker group is free: what shall run on it? `may_start`: whether another new trial is allowed.

        An Exploit resumes a paused trial from a donor. None leaves it free; the core asks again after the next event.
        """
        if may_start:
            return Start(reason="a worker group is free")
        return None

    def fit_request(self, trials: Population) -> Mapping[str, Any] | None:
        """The payload for `fit`, when a new fit is due and none is under way (the core sees to the latter)."""
        return None

    @staticmethod
    def fit(payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Pure, runs elsewhere; JSON in, JSON out."""
        raise TypeError("this scheduler asks for no fits")

    def finished(self, trials: Population, may_start: bool) -> str | None:
        """A reason in words when nothing useful is left to do although trials are paused or could be started."""
        return None
