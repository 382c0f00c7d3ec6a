"""What a searcher is: it proposes configurations; the scheduler spends the budget on them.

A searcher keeps no state of its own that matters: `suggest` is a function of (seed, number, the trials so far), so the same
order of reports gives the same suggestions, also over a restart. What it caches (an in-memory study) it can rebuild.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from tuner.domain.experiment import Objective
from tuner.domain.trial import Population
from tuner.names import keywords_explained

if TYPE_CHECKING:
    from tuner.search.constraints import Constraint
    from tuner.space import Space


@dataclass(frozen=True, slots=True)
class SearcherContext:
    """What the experiment tells its searcher, once."""

    space: Space
    objectives: tuple[Objective, ...]
    seed: int
    num_samples: int | None = None
    scope: str = "all"  # "all": best value of a trial counts; "last": its last
    points_to_evaluate: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Suggestion:
    """`params` is flat ("optimizer/lr" -> JSON value); `state` is stored with the trial and handed back in
    `Trial.searcher_state`."""

    params: dict[str, Any]
    state: dict[str, Any] = field(default_factory=dict)
    note: str = ""  # e.g. "repeats trial 12"


class Searcher(ABC):
    TYPE: ClassVar[str]
    #: run in a process of its own: one ask may take longer than a few tens of milliseconds
    HEAVY: ClassVar[bool] = False

    context: SearcherContext

    @property
    def task(self) -> SearcherContext:
        """Return `context`. Searchers written for earlier versions use this name."""
        return self.context

    def __init_subclass__(cls) -> None:
        if own := cls.__dict__.get("__init__"):
            cls.__init__ = keywords_explained(own, cls.__name__)  # type: ignore[method-assign]

    def setup(self, context: SearcherContext) -> None:
        """Take the context and check that this searcher can handle its space; SpecError says which ones can."""
        self.context = context

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """``{"type": ..., option: value, ...}``, from which `tuner.search.from_json` builds an equal searcher."""

    @abstractmethod
    def suggest(self, number: int, trials: Population) -> Suggestion | None:
        """The configuration of trial `number`, or None when the space is exhausted (grid).

        Called once per number, in order. Deterministic in (context.seed, number, trials).
        """

    def metric_constraints(self) -> Sequence[Constraint]:
        """What reported metrics must satisfy for a trial to count as the best one. None unless there is an option for them."""
        return ()

    def total(self) -> int | None:
        """How many trials there will be where that is known (grid × samples); None: as many as num_samples says."""
        return self.context.num_samples


Task = SearcherContext
"""The former name of `SearcherContext`, for searchers written for earlier versions."""
