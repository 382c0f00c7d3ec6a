"""Check a point, that is, values of parameters that a user has given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.names import did_you_mean
from tuner.plurals import counted
from tuner.space.nodes import Const, Dict, Function, Leaf, List, Node
from tuner.space.parameter import Branch, Parameter
from tuner.space.values import same
from tuner.space.words import escape, show


class Checker:
    """Collects the flat params of a point, and all errors in the point."""

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self.parameters = parameters
        self.errors: list[tuple[str, str]] = []
        self.found: dict[str, Any] = {}

    def node(self, node: Node, value: Any, pointer: str) -> None:
        match node:
            case Leaf(parameter, branches):
                self.parameter(parameter, branches, value, pointer)
            case Dict(items):
                if not isinstance(value, Mapping):
                    self.errors.append((pointer, f"expected a dict, got {show(value)}"))
                    return
                for key, item in value.items():
                    where = f"{pointer}/{escape(key)}"
                    if key in items:
                        self.node(items[key], item, where)
                    else:
                        self.errors.append(
                            (where, f"not in the search space{did_you_mean(key, [*items, *self.parameters])}")
                        )
            case List(items):
                if not isinstance(value, list | tuple) or len(value) != len(items):
                    self.errors.append((pointer, f"expected a list of {counted(len(items), 'value')}"))
                    return
                for i, (part, item) in enumerate(zip(items, value, strict=True)):
                    self.node(part, item, f"{pointer}/{i}")
            case Const(constant):
                if not same(constant, value):
                    self.errors.append((pointer, f"this is the constant {constant!r} in the search space"))
            case Function():
                self.errors.append((pointer, "this is computed by sample_from and cannot be given a value"))

    def parameter(self, p: Parameter, branches: tuple[Node, ...] | None, value: Any, pointer: str) -> None:
        if p.kind == "choice" and not p.plain:
            index = self._category(p, branches, value, pointer)
            if index is not None:
                self.found[p.path] = index
        elif p.contains(value):
            self.found[p.path] = p.normal_form(value)
        else:
            self.errors.append((pointer, f"{value!r} is not in {describe(p)}"))

    def _category(self, p: Parameter, branches: tuple[Node, ...] | None, value: Any, pointer: str) -> int | None:
        own = [(i, category) for i, category in enumerate(p.categories) if not isinstance(category, Branch)]
        found = [i for i, category in own if same(category, value)]
        # JSON has lists in place of tuples.
        found = found or [i for i, category in own if same(_listed(category), _listed(value))]
        if found:
            return found[0]
        for i, branch in enumerate(branches or ()):
            if isinstance(p.categories[i], Branch):
                trial = Checker(self.parameters)
                trial.node(branch, value, pointer)
                if not trial.errors:
                    self.found.update(trial.found)
                    return i
        if p.contains(value):
            return int(value)
        self.errors.append((pointer, f"{value!r} is not in {describe(p)}"))
        return None

    def conditions(self, pointer: str) -> None:
        for path in list(self.found):
            condition = self.parameters[path].condition
            if condition is None:
                continue
            parent, index = condition
            if parent not in self.found:
                message = f"{path} is active only if {parent} has index {index}: give {parent} too"
            elif self.parameters[parent].index(self.found[parent]) != index:
                message = f"{path} is active only if {parent} has index {index}"
            else:
                continue
            self.errors.append((f"{pointer}/{escape(path)}", message))


def _listed(value: Any) -> Any:
    """Return a value with lists in place of tuples."""
    match value:
        case Mapping():
            return {key: _listed(item) for key, item in value.items()}
        case list() | tuple():
            return [_listed(item) for item in value]
        case _:
            return value


def describe(p: Parameter) -> str:
    """Return the path and the domain of a parameter, in words."""
    if p.kind == "choice":
        return f"{p.path}: one of {list(p.categories)!r}"
    if p.kind == "normal":
        return f"{p.path}: a finite number" + (f", a multiple of {p.step:.15g}" if p.step else "")
    steps = f", multiples of {p.step:.15g}" if p.step and p.step != 1 else ""
    whole = "integers " if p.kind == "int" else ""
    return f"{p.path}: {whole}from {p.lower:.15g} to {p.upper:.15g}{steps}"
