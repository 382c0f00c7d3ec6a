"""Build a checked tree from primitives and constants."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from inspect import signature
from numbers import Real
from typing import Any

from tuner.space.nodes import Const, Dict, Function, Leaf, List, Node, Opaque, has_leaf
from tuner.space.parameter import Branch, Parameter, multiple_of
from tuner.space.primitives import Domain, domain_of
from tuner.space.values import is_number, is_scalar, plain_value
from tuner.space.words import escape, join, show

MAX_DEPTH = 40
_MAX_EXACT = 2**53  # above this limit, neighboring integers can become equal when they are converted to float


class Builder:
    """Turns primitives and constants into nodes, and collects all errors."""

    def __init__(self) -> None:
        self.errors: list[tuple[str, str]] = []
        self.parameters: list[Parameter] = []

    def node(self, value: Any, path: str, pointer: str, condition: tuple[str, int] | None, depth: int) -> Node:
        if depth > MAX_DEPTH:
            self.errors.append((pointer, f"nested more than {MAX_DEPTH} deep"))
            return Const(None)
        value = domain_of(value)
        match value:
            case Domain():
                return self._domain(value, path, pointer, condition, depth)
            case Mapping():
                items: dict[str, Node] = {}
                for key, item in value.items():
                    if not isinstance(key, str):
                        self.errors.append((pointer, f"the key {key!r} is not a string"))
                        continue
                    items[key] = self.node(item, join(path, key), f"{pointer}/{escape(key)}", condition, depth + 1)
                return Dict(items)
            case list() | tuple():
                if type(value) not in (list, tuple):  # a named tuple is a value
                    return Const(value)
                nodes = [
                    self.node(item, join(path, str(i)), f"{pointer}/{i}", condition, depth + 1)
                    for i, item in enumerate(value)
                ]
                return List(nodes, type(value))
            case _:
                return Const(value)

    def _domain(self, d: Domain, path: str, pointer: str, condition: tuple[str, int] | None, depth: int) -> Node:
        match d.type:
            case "choice" | "grid_search":
                return self._choice(d, path, pointer, condition, depth)
            case "sample_from":
                return self._function(d, path, pointer)
            case "const":
                return Const(d.options["value"])
            case "randn" | "qrandn":
                bounds = self._normal(d, pointer)
            case _:
                bounds = self._bounds(d, pointer)
        if bounds is None:
            return Const(None)
        parameter = Parameter(path=path, type=d.type, condition=condition, **bounds)
        self.parameters.append(parameter)
        return Leaf(parameter)

    def _function(self, d: Domain, path: str, pointer: str) -> Node:
        func = d.options["func"]
        takes = True
        if not isinstance(func, Opaque):
            if not callable(func):
                self.errors.append((pointer, f"sample_from takes a function, got {show(func)}"))
                return Const(None)
            accepts = accepts_config(func)
            if accepts is None:
                self.errors.append(
                    (pointer, "the function passed to sample_from must take no argument, or one: the configuration")
                )
                return Const(None)
            takes = accepts
        return Function(path, func, takes)

    def _choice(self, d: Domain, path: str, pointer: str, condition: tuple[str, int] | None, depth: int) -> Node:
        name = "categories" if d.type == "choice" else "values"
        given = d.options[name]
        if not isinstance(given, list | tuple):
            self.errors.append((f"{pointer}/{name}", f"expected a list, got {show(given)}"))
            return Const(None)
        items = [plain_value(domain_of(item)) for item in given]
        if not items:
            self.errors.append((f"{pointer}/{name}", f"the {d.type} is empty; give at least one value"))
            return Const(None)
        ordered = d.options.get("ordered")
        if ordered is not None and not isinstance(ordered, bool):
            self.errors.append((f"{pointer}/ordered", f"expected true or false, got {ordered!r}"))
            return Const(None)
        at = len(self.parameters)
        branches = [
            self.node(item, join(path, str(i)), f"{pointer}/{name}/{i}", (path, i), depth + 1)
            for i, item in enumerate(items)
        ]
        nested = [has_leaf(node) for node in branches]
        plain = not any(nested) and all(is_scalar(item) for item in items)
        if ordered is None:
            numbers = [x for x in items if is_number(x)]
            ordered = len(numbers) == len(items) and all(a < b for a, b in itertools.pairwise(numbers))
        parameter = Parameter(
            path=path,
            kind="choice",
            type=d.type,
            categories=tuple(
                Branch(_label(value, i)) if nested[i] else value for i, value in enumerate(map(_constant, items))
            ),
            ordered=ordered,
            plain=plain,
            grid=d.type == "grid_search",
            condition=condition,
        )
        self.parameters.insert(at, parameter)
        return Leaf(parameter, tuple(branches))

    def _normal(self, d: Domain, pointer: str) -> dict[str, Any] | None:
        before = len(self.errors)
        mean = self._number(d, "mean", pointer, 0.0)
        sd = self._number(d, "sd", pointer, 1.0)
        q = self._number(d, "q", pointer) if d.type == "qrandn" else None
        if len(self.errors) > before or mean is None or sd is None:
            return None
        if sd <= 0:
            self.errors.append((f"{pointer}/sd", f"the standard deviation must be above zero, got {sd:.15g}"))
        elif not math.isfinite(abs(mean) + 10 * sd):
            self.errors.append((f"{pointer}/sd", "the distribution is too wide for floats"))
        elif q is not None and (q <= 0 or (abs(mean) + 10 * sd) / q > _MAX_EXACT):
            self.errors.append((f"{pointer}/q", f"q must be above zero and not tiny compared with sd, got {q:.15g}"))
        else:
            return {"kind": "normal", "mean": mean, "sd": sd, "step": q}
        return None

    def _bounds(self, d: Domain, pointer: str) -> dict[str, Any] | None:
        """Check a bounded numeric domain, and return its inclusive bounds and step. Return None if there were errors."""
        before = len(self.errors)
        whole, log, stepped = d.type.endswith("randint"), "log" in d.type, d.type.startswith("q")
        lower = self._number(d, "lower", pointer, whole=whole)
        upper = self._number(d, "upper", pointer, whole=whole)
        q = self._number(d, "q", pointer, 1 if whole else None, whole=whole) if stepped else None
        if len(self.errors) > before or lower is None or upper is None:
            return None
        if log and lower <= 0:
            message = f"a logarithmic domain needs a lower bound above zero, got {lower:.15g}"
            if upper < 0:
                message += "; pass the bounds themselves, not their logarithms"
            self.errors.append((f"{pointer}/lower", message))
        elif lower > upper:
            self.errors.append(
                (f"{pointer}/lower", f"the bounds are reversed: lower ({lower:.15g}) is above upper ({upper:.15g})")
            )
        elif lower == upper:
            empty = whole and (q is None or q == 1)
            message = f"lower equals upper, {upper:.15g}" + (
                ", which is exclusive, so no value is left" if empty else ""
            )
            self.errors.append((f"{pointer}/upper", f"{message}; write a value that does not vary as a constant"))
        elif not math.isfinite(upper - lower):
            self.errors.append((f"{pointer}/upper", "the bounds are too far apart for a float"))
        elif q is not None and (q <= 0 or max(abs(lower), abs(upper)) / q > _MAX_EXACT):
            self.errors.append(
                (f"{pointer}/q", f"q must be above zero and not tiny compared with the bounds, got {q:.15g}")
            )
        if len(self.errors) > before:
            return None
        if whole:
            step = int(q or 1)
            inclusive = stepped and step != 1
            first, last = -(-int(lower) // step) * step, (int(upper) if inclusive else int(upper) - 1) // step * step
            if first > last:
                self.errors.append(
                    (f"{pointer}/q", f"no multiple of {step} lies between {lower:.15g} and {upper:.15g}")
                )
                return None
            return {"kind": "int", "lower": first, "upper": last, "step": step, "log": log}
        if q is None:
            return {"kind": "float", "lower": float(lower), "upper": float(upper), "log": log}
        for name, bound in (("lower", lower), ("upper", upper)):
            if not math.isclose(bound / q, round(bound / q)):
                self.errors.append((f"{pointer}/{name}", f"{bound:.15g} is not a multiple of q, {q:.15g}"))
        if len(self.errors) > before:
            return None
        first_q, last_q = multiple_of(q, round(lower / q)), multiple_of(q, round(upper / q))
        return {"kind": "float", "lower": first_q, "upper": last_q, "step": float(q), "log": log}

    def _number(
        self, d: Domain, name: str, pointer: str, default: float | None = None, *, whole: bool = False
    ) -> float | None:
        value = d.options.get(name, default)
        where = f"{pointer}/{name}"
        if not is_number(value):
            finite = isinstance(value, Real) and not isinstance(value, bool)
            wanted = "a finite number" if finite else "an integer" if whole else "a number"
            self.errors.append((where, f"expected {wanted}, got {show(value)}"))
            return None
        number = float(value)
        if not whole:
            return number
        if not number.is_integer():
            self.errors.append((where, f"expected an integer, got {number:.15g}"))
            return None
        if abs(number) > _MAX_EXACT:
            self.errors.append((where, "integers beyond 2**53 are not supported"))
            return None
        return int(number)


def _constant(value: Any) -> Any:
    """Return a category with the values of its constants, which the JSON form of a space may wrap."""
    match value:
        case Domain(type="const", options=options):
            return options["value"]
        case dict() if type(value) is dict:
            return {key: _constant(item) for key, item in value.items()}
        case list() | tuple() if type(value) in (list, tuple):
            return type(value)(_constant(item) for item in value)
        case _:
            return value


def _label(value: Any, index: int) -> str:
    """Return the label of a branch: its first constant string, or its index."""
    if isinstance(value, Mapping):
        for item in value.values():
            if isinstance(item, str):
                return item
    if isinstance(value, Domain):
        return repr(value)
    return f"branch {index}"


def accepts_config(func: Callable[..., Any]) -> bool | None:
    """Return True if the function takes the configuration, False if it takes no argument, or None if neither call works."""
    try:
        shape = signature(func)
    except (TypeError, ValueError):
        return True
    for takes in (True, False):
        try:
            shape.bind(*([{}] if takes else []))
        except TypeError:
            continue
        return takes
    return None
