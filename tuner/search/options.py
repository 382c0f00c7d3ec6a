"""Options of searchers: from JSON, checked, with errors that point at the field and name what is near."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from tuner.errors import SpecError
from tuner.names import of_the_experiment, option_meant
from tuner.space.words import show

T = TypeVar("T")


@functools.cache
def names(make: Callable[..., Any]) -> list[str]:
    """The options that a class takes."""
    return [name for name in inspect.signature(make).parameters if name != "self"]


def build(make: Callable[..., T], data: Mapping[str, Any], pointer: str) -> T:
    """``make(**data)`` without its "type"; unknown options and wrong values are a SpecError below `pointer`."""
    options = {name: value for name, value in data.items() if name != "type"}
    known = names(make)
    errors = []
    for name in options:
        if name not in known:
            hint = of_the_experiment(name, known) or option_meant(name, known) or _all(known)
            errors.append((f"{pointer}/{name}", f"unknown option{hint}"))
    if errors:
        raise SpecError(errors)
    try:
        return make(**options)
    except SpecError as error:
        raise SpecError([(pointer + inner, message) for inner, message in error.errors]) from error
    except TypeError as error:
        raise SpecError(str(error), pointer) from error


def pick(kind: Any, known: Iterable[str], pointer: str) -> str:
    """`kind` where it is a known type of searcher."""
    known = sorted(known)
    if not isinstance(kind, str) or kind not in known:
        raise SpecError(f"there is no searcher {kind!r}{option_meant(kind, known) or _all(known)}", f"{pointer}/type")
    return kind


def whole(name: str, value: Any, *, at_least: int = 0) -> None:
    """SpecError unless `value` is an integer and not below `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(f"expected an integer, not {show(value)}", f"/{name}")
    if value < at_least:
        raise SpecError(f"expected at least {at_least}, not {value}", f"/{name}")


def number(
    name: str, value: Any, *, above: float = -math.inf, at_least: float = -math.inf, at_most: float = math.inf
) -> None:
    """SpecError unless `value` is a finite number within the bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SpecError(f"expected a number, not {show(value)}", f"/{name}")
    if not value > above:
        raise SpecError(f"expected a number above {above:g}, not {value:g}", f"/{name}")
    if not at_least <= value <= at_most:
        wanted = f"from {at_least:g} to {at_most:g}" if math.isfinite(at_most) else f"of at least {at_least:g}"
        raise SpecError(f"expected a number {wanted}, not {value:g}", f"/{name}")


def boolean(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise SpecError(f"expected true or false, not {show(value)}", f"/{name}")


def _all(known: Iterable[str]) -> str:
    return f"; there are {', '.join(known)}" if known else "; it takes none"
