"""Convert flat params to the configuration that the user's function gets."""

from __future__ import annotations

import contextlib
import copy
import random
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tuner.errors import SpecError
from tuner.space.nodes import Const, Dict, Function, Leaf, List, Node, Opaque
from tuner.space.points import describe
from tuner.space.words import escape

_SEEDED = threading.RLock()
"""Held while `random` and `numpy.random` have the seed of a function: callbacks compute configurations in their own threads."""


class Unresolved(Exception):
    """A function passed to `sample_from` read a value that has not been computed yet."""


class View(dict[str, Any]):
    """The configuration that a function passed to `sample_from` gets. Keys are also attributes; ``config`` is the view itself."""

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, Function):
            raise Unresolved
        return value

    def __missing__(self, key: str) -> Any:
        if key == "config":  # as in `spec["config"]["width"]`, which Ray Tune takes too
            return self
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name == "config":
            return self
        raise AttributeError(name)


def resolve(node: Node, params: Mapping[str, Any]) -> Any:
    match node:
        case Const(value):
            return copy.deepcopy(value) if isinstance(value, dict | list) else value
        case Dict(items):
            return View({key: resolve(item, params) for key, item in items.items()})
        case List(items, make):
            return Items((resolve(item, params) for item in items), make)
        case Function():
            return node
        case Leaf(parameter, branches):
            if parameter.path not in params:
                raise SpecError(f"{parameter.path} has no value", f"/params/{escape(parameter.path)}")
            value = params[parameter.path]
            if not parameter.contains(value):
                raise SpecError(f"{value!r} is not in {describe(parameter)}", f"/params/{escape(parameter.path)}")
            if parameter.kind == "choice":
                return resolve(branches[parameter.index(value)], params)
            return parameter.normal_form(value)


class Items(list[Any]):
    """A list or tuple in a configuration that is not complete yet."""

    def __init__(self, items: Iterable[Any], make: type) -> None:
        super().__init__(items)
        self.make = make


def pending_functions(value: Any, where: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Function]]:
    if isinstance(value, Function):
        yield where, value
    elif isinstance(value, View):
        for key, item in dict.items(value):
            yield from pending_functions(item, (*where, key))
    elif isinstance(value, Items):
        for i, item in enumerate(value):
            yield from pending_functions(item, (*where, i))


def put(root: Any, where: tuple[Any, ...], value: Any) -> None:
    for key in where[:-1]:
        root = dict.__getitem__(root, key) if isinstance(root, View) else root[key]
    root[where[-1]] = value


def thaw(value: Any) -> Any:
    if isinstance(value, View):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, Items):
        return value.make(thaw(item) for item in value)
    return value


def call(function: Function, config: Any, seed: int) -> Any:
    """Call the function with `random` and `numpy.random` seeded, and restore their states afterwards.

    In a space that was read for display, return the placeholder of the function instead.
    """
    if isinstance(function.func, Opaque):
        return function.func
    with seeded(seed):
        try:
            return thaw(function.func(config) if function.takes_config else function.func())
        except Unresolved:
            raise
        except Exception as error:
            raise SpecError(
                f"the function passed to sample_from raised {error!r}", f"/space/{function.path}"
            ) from error


def placeholder(function: Function) -> Opaque:
    """Return what stands in a configuration for the value of a function that fails: the function's name."""
    return Opaque(0, re.sub(r" at 0x[0-9a-f]+", "", repr(function.func)))


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed `random` and `numpy.random` for the duration of the block. Other threads wait for its end before they enter theirs."""
    import numpy

    with _SEEDED:
        state, numpy_state = random.getstate(), numpy.random.get_state()
        random.seed(seed)
        numpy.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(state)
            numpy.random.set_state(numpy_state)
