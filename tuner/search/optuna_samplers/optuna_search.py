"""A searcher that uses any Optuna sampler, even a user's own."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import optuna.samplers
from optuna.samplers import BaseSampler, BruteForceSampler, QMCSampler

from tuner.domain.keys import keyed_seed
from tuner.domain.trial import Population
from tuner.errors import SpecError
from tuner.names import did_you_mean
from tuner.options import build
from tuner.search.base import SearcherContext
from tuner.search.optuna_samplers.model_based import ModelBased
from tuner.search.optuna_samplers.silence import quiet
from tuner.search.optuna_samplers.study import by_index, to_optuna
from tuner.space import Space
from tuner.space.points import describe
from tuner.space.words import show


class OptunaSearch(ModelBased):
    """Uses any Optuna sampler: ``OptunaSearch(sampler)``, or in JSON ``{"type": "optuna", "sampler": "NSGAIIISampler"}``.

    Each proposal comes from a copy of the given sampler. The copy's random generators are seeded for the trial that is
    proposed. So a sampler must keep what it learns in the study's attributes, as all of Optuna's own samplers do, and not
    in itself. The sampler runs in another process, because a proposal can take a long time. The values of a `GridSampler` or a
    `PartialFixedSampler` are values of the search space. A sampler's `constraints_func` is refused, since it would read what only
    Optuna's own trials have; use `constraints`.

    Args:
        sampler: a sampler object, or the name of an Optuna sampler.
        options: the arguments of a sampler that is given by name.
        constraints: bounds on reported metrics.
        warm_start: results of earlier experiments.
    """

    TYPE = "optuna"
    HEAVY = True

    def __init__(
        self,
        sampler: str | BaseSampler,
        options: Mapping[str, Any] | None = None,
        constraints: Mapping[str, Any] | None = None,
        warm_start: Sequence[Any] = (),
    ) -> None:
        super().__init__(constraints, warm_start)
        if options is not None and not isinstance(options, Mapping):
            raise SpecError(f"expected the sampler's options, got {show(options)}", "/options")
        self.options = options
        self._by_name = isinstance(sampler, str)
        if isinstance(sampler, BaseSampler):
            if options:
                raise SpecError("options are only allowed for a sampler that is given by name", "/options")
            self._sampler, self.sampler_name = sampler, type(sampler).__name__
        elif isinstance(sampler, str):
            self._sampler, self.sampler_name = _named(sampler, options or {}), sampler
        else:
            raise SpecError(f"expected an Optuna sampler or its name, got {show(sampler)}", "/sampler")
        if _has_constraints_func(self._sampler):
            message = (
                "its constraints_func would not be called; name the bounds on metrics instead, as in "
                'OptunaSearch(sampler, constraints={"size": {"max": 5}})'
            )
            raise SpecError(message, "/sampler")

    def setup(self, context: SearcherContext) -> None:
        super().setup(context)
        floats = [p.path for p in context.space.parameters if not by_index(p)]
        try:
            if floats and isinstance(self._sampler, BruteForceSampler):
                # A proposal would find this only if it chooses the branch of such a parameter.
                raise ValueError(
                    f"it gets {', '.join(floats)} as floats, and cannot try them all; the searcher grid tries all choices"
                )
            self.ask(0, Population(), 0)
        except Exception as error:  # the sampler can be the user's code
            message = (
                f"{self.sampler_name} does not support this space: {error}; random, qmc, tpe, gp and nsgaii support any"
            )
            raise SpecError(message, "/search") from error

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form.

        Raises:
            SpecError: the sampler is an object. It is pickled with the experiment's code instead.
        """
        if not self._by_name:
            raise SpecError(f"the {self.sampler_name} is a Python object and has no JSON form", "/sampler")
        options = {"options": self.options, "constraints": self.constraints, "warm_start": self.warm_start}
        return {"type": self.TYPE, "sampler": self.sampler_name} | options

    def __repr__(self) -> str:
        return f"OptunaSearch({self.sampler_name})"

    def sampler(self, seed: int) -> BaseSampler:
        return self.seeded(seed, self.context.seed)

    def seeded(self, seed: int, of_experiment: int) -> BaseSampler:
        """Return a copy of the sampler that is seeded for one proposal of an experiment with the seed `of_experiment`."""
        sampler = copy.deepcopy(self._sampler)
        _seed(sampler, seed, keyed_seed(of_experiment, "qmc"))
        return sampler

    def sampler_for(self, seed: int, trials: Population) -> BaseSampler:
        sampler = self.sampler(seed)
        _convert_values(sampler, self.context.space)
        return sampler


def _named(name: str, options: Mapping[str, Any]) -> BaseSampler:
    known = {n: c for n in optuna.samplers.__all__ if isinstance(c := getattr(optuna.samplers, n), type)}
    known = {n: c for n, c in known.items() if issubclass(c, BaseSampler) and not n.startswith("Base")}
    if name not in known:
        hint = did_you_mean(name, known) or f"; choose from {', '.join(sorted(known))}"
        raise SpecError(f"Optuna has no sampler {name!r}{hint}", "/sampler")
    with quiet():
        try:
            sampler: BaseSampler = build(known[name], options, "/options")
        except (ValueError, AssertionError) as error:
            if isinstance(error, SpecError):
                raise
            raise SpecError(str(error) or f"{name} does not accept these options", "/options") from error
    return sampler


def _has_constraints_func(thing: Any, depth: int = 0) -> bool:
    """Return whether a sampler of Optuna, or a part of it, has a constraints_func. Optuna calls it after a trial of its own."""
    if not type(thing).__module__.startswith("optuna.samplers"):
        return False
    parts = vars(thing)
    return parts.get("_constraints_func") is not None or (
        depth < 5
        and any(_has_constraints_func(part, depth + 1) for part in parts.values() if hasattr(part, "__dict__"))
    )


def _seed(thing: Any, seed: int, of_sequence: int, depth: int = 0) -> None:
    """Seed every random generator of a sampler and of the samplers inside it.

    `of_sequence` seeds a sequence of which each proposal is one point, so it is the same for all proposals.
    """
    if isinstance(thing, QMCSampler):
        thing._seed = of_sequence
    for value in list(vars(thing).values()):
        if isinstance(value, numpy.random.RandomState):
            value.seed(seed)
        elif isinstance(value, numpy.random.Generator):
            value.bit_generator.state = numpy.random.default_rng(seed).bit_generator.state
        elif type(value).__name__ == "LazyRandomState":
            value.rng.seed(seed)
        elif isinstance(value, BaseSampler) and depth < 5:
            _seed(value, seed, of_sequence, depth + 1)


def _convert_values(sampler: BaseSampler, space: Space) -> None:
    """Replace the values of the search space that a sampler was given by those that Optuna sees, as in `to_optuna`."""
    if isinstance(sampler, optuna.samplers.GridSampler):
        grids, names = sampler._all_grids, sampler._param_names
        sampler._all_grids = [tuple(map(functools.partial(_seen, space), names, values)) for values in grids]
        sampler._search_space = {
            name: [_seen(space, name, value) for value in values] for name, values in sampler._search_space.items()
        }
    if isinstance(sampler, optuna.samplers.PartialFixedSampler):
        fixed = sampler._fixed_params
        sampler._fixed_params = {name: _seen(space, name, value) for name, value in fixed.items()}
        _convert_values(sampler._base_sampler, space)


def _seen(space: Space, name: str, value: Any) -> Any:
    """Return what Optuna sees for the value of a parameter. A name that the space lacks keeps its value."""
    if name not in space:
        return value
    if not space[name].contains(value):
        raise ValueError(f"{value!r} is not in {describe(space[name])}")
    return to_optuna(space[name], value)
