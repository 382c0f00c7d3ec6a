"""Options of schedulers and stoppers: built from JSON, checked, with errors that point at the field and name what is
near.

A constructor raises SpecError with pointers relative to itself (``/grace_period``); `build` puts the place in the
spec before them (``/scheduler/grace_period``).
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from tuner.errors import SpecError
from tuner.names import of_the_experiment, option_meant

T = TypeVar("T")


def nearest(name: str, known: Iterable[str]) -> str:
    """``"; did you mean max_t?"``, or the list of what is known where nothing is near."""
    names = sorted(known)
    return option_meant(name, names) or f"; there are {', '.join(names) or 'none'}"


@functools.cache
def option_names(build: Callable[..., Any]) -> list[str]:
    """The keyword arguments that a class or a function takes."""
    return [name for name in inspect.signature(build).parameters if name not in ("self", "args", "kwargs")]


def build(make: Callable[..., T], data: Mapping[str, Any], pointer: str) -> T:
    """``make(**data)`` without its "type"; unknown options and wrong values are SpecErrors below `pointer`."""
    options = {name: value for name, value in data.items() if name != "type"}
    known = option_names(make)
    errors = []
    for name in options:
        if name not in known:
            hint = of_the_experiment(name, known) or nearest(name, known)
            errors.append((f"{pointer}/{name}", f"unknown option{hint}"))
    if errors:
        raise SpecError(errors)
    try:
        return make(**options)
    except SpecError as error:
        raise SpecError([(pointer + inner, message) for inner, message in error.errors]) from error
    except TypeError as error:
        raise SpecError(str(error), pointer) from error


def pick(kind: Any, table: Mapping[str, T], what: str, pointer: str) -> T:
    """The entry of a registry, or a SpecError that names what is near."""
    if not isinstance(kind, str) or kind not in table:
        raise SpecError(f"there is no {what} {kind!r}{nearest(str(kind), table)}", f"{pointer}/type")
    return table[kind]


def check_number(
    name: str, value: Any, *, above: float | None = None, at_least: float | None = None, at_most: float | None = None
) -> None:
    """SpecError unless `value` is a finite number within the bounds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise SpecError(f"expected a number, got {value!r}", f"/{name}")
    if above is not None and not value > above:
        raise SpecError(f"expected a number above {above:g}, got {value:g}", f"/{name}")
    if at_least is not None and not value >= at_least:
        raise SpecError(f"expected at least {at_least:g}, got {value:g}", f"/{name}")
    if at_most is not None and not value <= at_most:
        raise SpecError(f"expected at most {at_most:g}, got {value:g}", f"/{name}")


def check_whole(name: str, value: Any, *, at_least: int) -> None:
    """SpecError unless `value` is an integer and not below `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(f"expected an integer, got {value!r}", f"/{name}")
    check_number(name, value, at_least=at_least)


def check_boolean(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise SpecError(f"expected true or false, got {value!r}", f"/{name}")


def options_of(thing: object, make: Callable[..., Any]) -> dict[str, Any]:
    """Every option of `thing`, from its attributes; the defaults too, since those may change with a version."""
    return {name: getattr(thing, name) for name in option_names(make)}
