"""The base class of our own searchers. It handles points to evaluate, repeated configurations, and options in JSON."""

from __future__ import annotations

import hashlib
import json
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from tuner.domain.keys import keyed_random
from tuner.domain.trial import Population
from tuner.errors import SpecError
from tuner.options import option_names
from tuner.search import constraints as constraint_option
from tuner.search.base import Searcher, SearcherContext, Suggestion
from tuner.search.constraints import Constraint


class Proposer(Searcher):
    """Base class of our own searchers. A subclass implements `propose` and keeps each option in an attribute of that name."""

    #: how often a proposal that repeats an earlier trial is drawn again, at most
    REDRAWS: ClassVar[int] = 0
    #: True if the searcher supports a space with `grid_search`
    GRIDS: ClassVar[bool] = False
    REVISES: ClassVar[bool] = True
    #: the bounds on metrics, for the searchers that have this option
    constraints: Mapping[str, Any] | None = None

    def setup(self, context: SearcherContext) -> None:
        super().setup(context)
        errors = []
        self._points: list[dict[str, Any]] = []
        for i, point in enumerate(context.points_to_evaluate):
            try:
                self._points.append(context.space.check(point, f"/points_to_evaluate/{i}"))
            except SpecError as error:
                errors += error.errors
        if errors:
            raise SpecError(errors)
        grids = [p.path for p in context.space.parameters if p.grid]
        if grids and not self.GRIDS:
            message = (
                f"{self.TYPE} cannot run a grid ({', '.join(grids)}): use choice instead of grid_search, or the "
                "random or grid searcher"
            )
            raise SpecError(message, "/search")
        self._cardinality = context.space.cardinality()
        self._seen = _Seen(context)

    def amend(self, context: SearcherContext) -> None:
        """Adapt to a changed num_samples or space. Points to evaluate keep the values that lie in the new space."""
        if context.revisions is self.context.revisions or context.revisions is None:
            super().amend(context)
            return
        before = self.context.revisions.newest if self.context.revisions is not None else 0
        points = [context.revisions.carried(point, before).params for point in self._points]
        self.setup(replace(context, points_to_evaluate=tuple(points)))

    def to_json(self) -> dict[str, Any]:
        options = {name: getattr(self, name) for name in option_names(type(self))}
        if self.constraints is None:
            options.pop("constraints", None)
        return {"type": self.TYPE} | options

    def metric_constraints(self) -> Sequence[Constraint]:
        return constraint_option.read(self.constraints)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={getattr(self, name)!r}" for name in option_names(type(self)))
        return f"{type(self).__name__}({options})"

    def suggest(self, number: int, trials: Population) -> Suggestion | None:
        if number < len(self._points):
            rng = keyed_random(self.context.seed, "point", number)
            suggestion: Suggestion | None = Suggestion(self.context.space.sample(rng, self._points[number]))
        else:
            suggestion = self.propose(number, trials, 0)
        if suggestion is None:
            return None
        return self._unrepeated(suggestion, number, trials)

    def _unrepeated(self, suggestion: Suggestion, number: int, trials: Population) -> Suggestion:
        """Draw again if the suggestion repeats an earlier trial, up to REDRAWS times. Add a note if all draws are repeats."""
        self._seen.sync(trials)
        first = self._seen.first(suggestion.params)
        exhausted = self._cardinality is not None and len(self._seen) >= self._cardinality
        if first is not None and not exhausted and number >= len(self._points):
            for attempt in range(1, self.REDRAWS + 1):
                other = self.propose(number, trials, attempt)
                if other is not None and self._seen.first(other.params) is None:
                    return other
        if first is None or self.context.space.has_functions:  # functions of `sample_from` may draw other values
            return suggestion
        every = (
            "the only configuration has" if self._cardinality == 1 else f"all {self._cardinality} configurations have"
        )
        why = f"; {every} been tried" if exhausted else ""
        return replace(suggestion, note="; ".join(filter(None, [suggestion.note, f"repeats trial {first}{why}"])))

    @abstractmethod
    def propose(self, number: int, trials: Population, attempt: int) -> Suggestion | None:
        """Return the configuration of trial `number`, or None if no configuration is left.

        Each `attempt` should return a different configuration, if possible.
        """

    def __getstate__(self) -> dict[str, Any]:
        """Leave caches out of the pickle. The process that unpickles the searcher rebuilds them."""
        return {k: v for k, v in self.__dict__.items() if not isinstance(v, Cache)} | {"_cold": True}

    def __setstate__(self, state: dict[str, Any]) -> None:
        cold = state.pop("_cold", False)
        self.__dict__.update(state)
        if cold and hasattr(self, "context"):
            self.setup(self.context)


class Cache(ABC):
    """Base class of caches that are computed from a population. A cache is rebuilt if it is given a different population."""

    def __init__(self) -> None:
        self._of: weakref.ref[Population] | None = None

    def sync(self, trials: Population) -> None:
        """Update the cache with `trials`."""
        if self._of is None or self._of() is not trials:
            self._of = weakref.ref(trials)
            self.clear()
        self.fold(trials)

    @abstractmethod
    def clear(self) -> None:
        """Empty the cache."""

    @abstractmethod
    def fold(self, trials: Population) -> None:
        """Bring the cache up to date with the population's changes since the last call."""


class _Seen(Cache):
    """The configurations proposed so far, and the first trial with each."""

    def __init__(self, context: SearcherContext) -> None:
        super().__init__()
        self._context = context

    def clear(self) -> None:
        self._first: dict[int, int] = {}
        self._next = 0

    def fold(self, trials: Population) -> None:
        while self._next in trials:
            params = self._context.first_params_of(trials[self._next])
            if params is not None:
                self._first.setdefault(_key(params), self._next)
            self._next += 1

    def first(self, params: Mapping[str, Any]) -> int | None:
        return self._first.get(_key(params))

    def __len__(self) -> int:
        return len(self._first)


def _key(params: Mapping[str, Any]) -> int:
    """Return a hash of a configuration. It takes less memory than the text, and is the same in all processes."""
    text = json.dumps(params, sort_keys=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
