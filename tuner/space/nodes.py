"""The tree of a checked space."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tuner.space.parameter import Parameter


@dataclass(frozen=True, slots=True)
class Const:
    value: Any


@dataclass(frozen=True, slots=True)
class Dict:
    items: dict[str, Node]


@dataclass(frozen=True, slots=True)
class List:
    items: list[Node]
    make: type


@dataclass(frozen=True, slots=True)
class Leaf:
    parameter: Parameter
    branches: tuple[Node, ...] = ()  # for a choice: the tree of each category


@dataclass(frozen=True, slots=True)
class Function:
    path: str
    func: Any
    takes_config: bool


Node = Const | Dict | List | Leaf | Function


@dataclass(frozen=True, slots=True)
class Opaque:
    """A placeholder for a Python object whose pickle was not loaded. A space with placeholders can be shown but not run."""

    index: int
    text: str

    def __repr__(self) -> str:
        return self.text


def has_leaf(node: Node) -> bool:
    match node:
        case Leaf() | Function():
            return True
        case Dict(items):
            return any(has_leaf(item) for item in items.values())
        case List(items):
            return any(has_leaf(item) for item in items)
        case Const():
            return False


def has_function(node: Node) -> bool:
    """Return whether a tree contains a `sample_from`."""
    match node:
        case Function():
            return True
        case Dict(items):
            return any(map(has_function, items.values()))
        case List(items):
            return any(map(has_function, items))
        case Leaf(_, branches):
            return any(map(has_function, branches))
        case Const():
            return False


def constants(node: Node) -> Any:
    """Return the values that all configurations of a tree share. A list that varies is left out as a whole."""
    match node:
        case Const(value):
            return value
        case Dict(items):
            return {
                name: constants(item) for name, item in items.items() if isinstance(item, Dict) or not has_leaf(item)
            }
        case List(items, make):
            return make(constants(item) for item in items)
        case Leaf() | Function():
            raise AssertionError(f"{node} varies")


def count(node: Node) -> int | None:
    """Return the number of different configurations of a tree, or None if there is no limit."""
    match node:
        case Const() | Function():
            return 1
        case Dict(items):
            return _product(items.values())
        case List(items):
            return _product(items)
        case Leaf(parameter, branches):
            if parameter.kind != "choice":
                return parameter.size
            sizes = [count(branch) for branch in branches]
            return None if None in sizes else sum(size for size in sizes if size is not None)


def _product(nodes: Iterable[Node]) -> int | None:
    total = 1
    for node in nodes:
        size = count(node)
        if size is None:
            return None
        total *= size
    return total
