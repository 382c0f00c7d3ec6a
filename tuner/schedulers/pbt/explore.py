"""Change a configuration for population based training: choose parameters, and move each one inside its domain."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.errors import SpecError
from tuner.names import option_meant
from tuner.options import nearest
from tuner.schedulers.functions import function_name, import_function
from tuner.schedulers.shared.wording import shown
from tuner.space import Parameter, Space, choice
from tuner.space.resolve import seeded
from tuner.space.values import same
from tuner.space.words import show, unescape

AT = "hyperparam_mutations"


@dataclass(frozen=True, slots=True)
class Mutation:
    """The source of new values for one parameter. Exactly one field is set."""

    values: Sequence[Any] | None = None  # ordered so that neighbors are similar
    domain: Mapping[str, Any] | None = None  # the JSON form of a space's primitive
    function: Callable[[], Any] | None = None  # draws a value; "module:name" in JSON


def read_mutations(given: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mutation]]:
    """Yield (path, mutation) from a dict of lists, domains and functions, as in Ray Tune, or from the dict's JSON form."""
    if not isinstance(given, Mapping):
        raise SpecError(f"expected an object: parameter -> values or domain, got {given!r}", f"/{AT}")
    for key, value in given.items():
        path = f"{prefix}/{key}" if prefix else str(key)
        if isinstance(value, Mapping) and isinstance(value.get("function"), str) and len(value) == 1:
            yield path, Mutation(function=import_function(f"{AT}/{path}/function", value["function"]))
        elif isinstance(value, Mapping) and not isinstance(value.get("type"), str):
            yield from read_mutations(value, path)
        elif isinstance(value, Mapping):
            yield path, Mutation(domain=_domain(path, value, json=True))
        elif isinstance(value, (list, tuple, range)):
            if not value:
                raise SpecError("the list of values is empty", f"/{AT}/{path}")
            yield path, Mutation(values=list(value))
        elif callable(value) and not hasattr(value, "sample"):
            yield path, Mutation(function=value)
        else:
            yield path, Mutation(domain=_domain(path, value))


def mutations_to_json(mutations: Mapping[str, Mutation]) -> dict[str, Any]:
    """Return a dict from path to a list, a domain, or ``{"function": "module:name"}``.

    Raises:
        SpecError: a function cannot be imported by another process.
    """
    return {
        path: {"function": function_name(f"{AT}/{path}", mutation.function)}
        if mutation.function is not None
        else (mutation.values if mutation.values is not None else mutation.domain)
        for path, mutation in mutations.items()
    }


def _domain(path: str, value: Any, json: bool = False) -> Mapping[str, Any]:
    """Return the JSON form of a domain. Raise SpecError if nothing can be drawn from it, as from a constant."""
    space = _space(path, value, json)
    if not len(space):
        raise SpecError(f"expected a list of values, a domain or a function, got {value!r}", f"/{AT}/{path}")
    if not json and space.blob() is not None:
        message = "categories that are Python objects are named by their indices, as in [0, 1]"
        raise SpecError(message, f"/{AT}/{path}")
    domain: Mapping[str, Any] = space.to_json()["it"]
    return domain


def _space(path: str, value: Any, json: bool = False) -> Space:
    try:
        return Space.from_json({"it": value}) if json else Space.from_python({"it": value})
    except SpecError as error:
        raise SpecError(
            [(f"/{AT}/{path}" + at.removeprefix("/space/it"), message) for at, message in error.errors]
        ) from error


@dataclass(frozen=True, slots=True)
class _Move:
    """A parameter of the space, and the source of its new values."""

    target: Parameter
    source: Parameter | None  # None: the target's own domain, or `draw`
    draw: Callable[[], Any] | None = None

    def drawn(self, rng: random.Random) -> Any:
        if self.draw is None:
            return (self.source or self.target).resample(rng)
        with seeded(rng.getrandbits(64)):
            return self.draw()


class Explorer:
    """Changes the configuration of a donor for the trial that copies it.

    Each mutated parameter is drawn anew with probability `resample_probability`. Otherwise a number is multiplied by
    one of the `perturbation_factors`, a list of values or an ordered choice moves to a neighbor, and an unordered
    choice does not change. The result is clipped to the parameter's domain. Parameters of a newly chosen branch are
    drawn at random. While a function of the user runs, `random` and `numpy.random` are seeded.
    """

    def __init__(
        self,
        space: Space,
        mutations: Mapping[str, Mutation],
        resample_probability: float,
        perturbation_factors: Sequence[float],
        custom: Callable[[dict[str, Any]], dict[str, Any]] | None,
    ) -> None:
        self._space = space
        self._moves = [_move(space, path, mutation) for path, mutation in mutations.items()]
        if not mutations:
            self._moves = [_Move(parameter, None) for parameter in space.parameters]
        self._resample = resample_probability
        self._factors = perturbation_factors
        self._custom = custom

    def __call__(self, donor: Mapping[str, Any], rng: random.Random) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the new params, and a dict from path to a description of how the parameter changed."""
        params = dict(donor)
        how: dict[str, str] = {}
        for move in self._moves:
            path = move.target.path
            if path in params:
                params[path], how[path] = self._moved(move, params[path], rng)
        return self.settled(donor, params, how, rng)

    def settled(
        self, donor: Mapping[str, Any], params: dict[str, Any], how: dict[str, str], rng: random.Random
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Apply `custom` to changed params, and move the values into their domains.

        Return the params, and a dict from path to a description of the difference from the donor's value. `how` maps a path to
        the cause of its change so far.
        """
        if self._custom is not None:
            with seeded(rng.getrandbits(64)):
                changed = self._custom(dict(params))
            params = self._checked(changed, donor)
            how |= {p: "custom" for p in params if p in self._space and p not in how and params[p] != donor.get(p)}
        # define-by-run parameters, which are copied
        drawn = {path: value for path, value in params.items() if path not in self._space}
        kept = {p: _inside(self._space[p], value, donor.get(p)) for p, value in params.items() if p not in drawn}
        known = {p: value for p, value in kept.items() if self._space[p].contains(value)}
        result = self._space.sample(rng, given=known) | drawn
        return result, {
            path: f"{self._shown(path, donor.get(path))} → {self._shown(path, value)} ({how.get(path) or self._why_new(path)})"
            for path, value in result.items()
            if value != donor.get(path)
        }

    def _checked(self, changed: Any, donor: Mapping[str, Any]) -> dict[str, Any]:
        """Return the params that `custom` has returned, or raise an error that says what is wrong with them."""
        if not isinstance(changed, Mapping):
            raise TypeError(
                f'custom_explore_fn must return the changed params, such as {{"lr": 0.1}}, but returned {show(changed)}'
            )
        known = {parameter.path for parameter in self._space.parameters} | set(donor)
        for path in changed:
            if path not in known:
                raise ValueError(f"custom_explore_fn returned {path!r}, which is not a parameter{nearest(path, known)}")
        return dict(changed)

    def _why_new(self, path: str) -> str:
        return "new branch" if self._space[path].condition is not None else "new parameter"

    def _shown(self, path: str, value: Any) -> str:
        return _words(self._space[path].readable(value) if path in self._space and value is not None else value)

    def _moved(self, move: _Move, value: Any, rng: random.Random) -> tuple[Any, str]:
        source = move.source or move.target
        if rng.random() < self._resample or not source.contains(value):
            return move.drawn(rng), "drawn anew"
        factor = rng.choice(self._factors)
        if source.kind == "choice" and source.ordered:
            return source.perturb(value, factor), f"{'next' if factor > 1 else 'previous'} value"
        return source.perturb(value, factor), f"× {shown(factor)}"


def path_of(space: Space, name: str) -> str:
    """Return the path of the parameter that a user has named: by its path or, if there is none, by a name with slashes."""
    if name in space:
        return name
    return next((parameter.path for parameter in space.parameters if unescape(parameter.path) == name), name)


def missing(space: Space, path: str, known: Sequence[str]) -> str:
    """Return the error for an option that names something other than a parameter of the space. known: the possible names."""
    at: Any = space.constants()
    for name in path.split("/"):
        if not (isinstance(at, Mapping) and name in at):
            break
        at = at[name]
    else:
        return f"a constant of the search space ({show(at)}); to let {path} change, give it a range there"
    more = "" if option_meant(path, known) else f"; to let {path} change, add it there with its range"
    return f"not in the search space{nearest(path, known)}{more}"


def _move(space: Space, name: str, mutation: Mutation) -> _Move:
    path, at = path_of(space, name), f"/scheduler/{AT}/{name}"
    if path not in space:
        known = [parameter.path for parameter in space.parameters]
        raise SpecError(missing(space, path, known), at)
    target = space[path]
    if mutation.values is not None:
        return _Move(target, _choice_of(target, mutation.values, True, at))
    if mutation.domain is not None:
        source = Space.from_json({"it": mutation.domain})["it"]
        if source.kind == "choice":
            same_choice = not target.plain and source.categories == target.categories
            return _Move(target, source if same_choice else _choice_of(target, source.categories, source.ordered, at))
        if target.kind == "choice":
            raise SpecError("a range of numbers does not fit a parameter that is a choice", at)
        return _Move(target, source)
    return _Move(target, None, mutation.function)


def _choice_of(target: Parameter, given: Sequence[Any], ordered: bool, at: str) -> Parameter:
    """Return a choice among those values of a parameter that a user has given. Raise SpecError if it cannot have one of them.

    A category that is no JSON scalar may be given as it is or, as in the params of a trial, by its index.
    """
    values = []
    for value in given:
        index = next((i for i, own in enumerate(target.categories) if same(_as_json(own), _as_json(value))), None)
        if index is not None and not target.plain:
            values.append(index)
        elif target.contains(value):
            values.append(target.normal_form(value))
        else:
            raise SpecError(f"{value!r} is outside the parameter's domain", at)
    return Space({"it": choice(values, ordered=ordered)})["it"]


def _as_json(value: Any) -> Any:
    """Return a value with its tuples as lists, as they are in a stored option."""
    if isinstance(value, Mapping):
        return {name: _as_json(part) for name, part in value.items()}
    return [_as_json(part) for part in value] if isinstance(value, list | tuple) else value


def _inside(parameter: Parameter, value: Any, fallback: Any) -> Any:
    """Clip a value to the domain. For a choice, replace a value that is not a category with `fallback`."""
    if parameter.contains(value):
        return parameter.normal_form(value)
    if parameter.kind == "choice" or isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        return fallback
    return parameter.clip(value)


def _words(value: Any) -> str:
    return shown(value) if isinstance(value, float) else "nothing" if value is None else str(value)
