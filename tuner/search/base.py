"""The interface of a searcher, which proposes configurations. The scheduler decides how long each configuration trains.

A searcher keeps no state: `suggest` is a function of the seed, the trial's number and the trials so far. So the same
order of reports leads to the same suggestions, even after a restart. A searcher may have caches that can be rebuilt, such as
an in-memory study.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from tuner.domain.experiment import Objective
from tuner.domain.trial import Population, Trial
from tuner.names import keywords_explained

if TYPE_CHECKING:
    from tuner.search.constraints import Constraint
    from tuner.space import Space
    from tuner.space.revisions import Revisions


@dataclass(frozen=True, slots=True)
class SearcherContext:
    """The experiment as its searcher sees it. It is passed to `Searcher.setup` once."""

    space: Space
    objectives: tuple[Objective, ...]
    seed: int
    num_samples: int | None = None
    scope: str = "all"  # "all" if the best value of a trial counts, "last" if its last value counts
    points_to_evaluate: tuple[Mapping[str, Any], ...] = ()
    revisions: Revisions | None = None  # the spaces so far, if a user has changed the space

    def params_of(self, trial: Trial) -> Mapping[str, Any] | None:
        """Return the trial's configuration, converted to the current space, or None if it does not lie in that space.

        A trial keeps its configuration in the form that it had in the space from which it was proposed; see
        `tuner.space.revisions`.
        """
        return trial.params if self.revisions is None else self.revisions.inside(trial.params, trial.space_revision)

    def first_params_of(self, trial: Trial) -> Mapping[str, Any] | None:
        """Return `params_of` for the configuration with which the trial began. An exploit may have changed it since."""
        if not trial.segments:
            return self.params_of(trial)
        first = trial.segments[0]
        return first.params if self.revisions is None else self.revisions.inside(first.params, first.space_revision)

    def state_of(self, trial: Trial) -> Mapping[str, Any]:
        """Return the state that the searcher has stored with a trial, or {} if the state is for an earlier space."""
        current = self.revisions is None or trial.space_revision == self.revisions.newest
        return trial.searcher_state if current else {}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A proposed configuration.

    Attributes:
        params: flat params ("optimizer/lr" -> JSON value).
        state: the state to store with the trial, where it is later available as `Trial.searcher_state`.
        note: a note to add to the reason in the decision log, for example "repeats trial 12".
    """

    params: dict[str, Any]
    state: dict[str, Any] = field(default_factory=dict)
    note: str = ""


class Searcher(ABC):
    """Base class of all searchers."""

    TYPE: ClassVar[str]
    #: True if a single proposal can take seconds, even with few trials
    HEAVY: ClassVar[bool] = False
    #: True if the searcher can continue after a user has changed the search space, see `amend`
    REVISES: ClassVar[bool] = False
    #: for tuner's own searchers: True if it reads `Trial.values` of trials that have ended, which a driver otherwise discards
    READS_VALUES: ClassVar[bool] = False

    context: SearcherContext

    def __init_subclass__(cls) -> None:
        if cls.__init__ is not object.__init__:  # its own or an inherited one
            cls.__init__ = keywords_explained(cls.__init__, cls.__name__)  # type: ignore[method-assign]

    def setup(self, context: SearcherContext) -> None:
        """Set the experiment's context, and check that the searcher supports the space.

        Raises:
            SpecError: the searcher does not support the space. The message names searchers that support it.
        """
        self.context = context

    def amend(self, context: SearcherContext) -> None:
        """Adapt to a user's change of num_samples or the search space. The rest of the context is as in `setup`.

        The space changes only if `REVISES` is True. From then on the searcher proposes configurations in the new space, and
        reads the configurations of all trials with `SearcherContext.params_of`.
        """
        self.context = context

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return ``{"type": ..., option: value, ...}``, from which `tuner.search.from_json` builds an equal searcher."""

    @abstractmethod
    def suggest(self, number: int, trials: Population) -> Suggestion | None:
        """Return the configuration of trial `number`, or None if no configuration is left.

        The method is called once for each number, in order. The result depends only on (context.seed, number, trials).
        """

    def is_heavy(self, trials: Population) -> bool:
        """Return True if the next proposal can take longer than a few milliseconds and must be made in another process."""
        return self.HEAVY

    def waits(self) -> bool:
        """Return True if `suggest`, which has just returned None, may return a configuration once another trial has ended.

        It is then asked again. A searcher that is heavy cannot wait.
        """
        return False

    def metric_constraints(self) -> Sequence[Constraint]:
        """Return the constraints that the metrics of a trial must satisfy before the trial can be the best one."""
        return ()

    def not_asked_for(self, trial: Trial) -> Sequence[tuple[str, str]]:
        """Return the given values for which the training code of a trial has not asked, as (where the value is given, name).

        Only training code that asks for its parameters while it runs can leave some out.
        """
        return ()

    def total(self) -> int | None:
        """Return the total number of trials if the searcher knows it, as it does for a grid. Otherwise return `num_samples`."""
        return self.context.num_samples
