"""Options of schedulers, stoppers and searchers: build an object from JSON, check values, and report mistakes.

The constructor of a scheduler raises SpecError with pointers to its own options, such as ``/grace_period``. `build`
prepends the pointer to the scheduler in the spec: ``/scheduler/grace_period``. `Scheduler.setup` is not called by `build`, so
it raises errors with the whole pointer. ``SpecError([(pointer, message), ...])`` reports several mistakes at once.

An option may be a mapping or a list. `build` then gets what JSON has made of it: the keys of a mapping are strings, so the
constructor must convert them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from tuner.errors import SpecError
from tuner.names import of_the_experiment, option_meant
from tuner.space.words import escape, show

T = TypeVar("T")
_LARGEST = sys.float_info.max
_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def nearest(name: Any, known: Iterable[str]) -> str:
    """Return text to append to a message: ``"; did you mean max_t?"``, or all known names if none is similar."""
    names = sorted(known)
    return option_meant(name, names) or (f"; choose from {', '.join(names)}" if names else "; there are none")


@functools.cache
def option_names(make: Callable[..., Any]) -> list[str]:
    """Return the names of the keyword arguments that a class or a function takes."""
    return [name for name in inspect.signature(make).parameters if name not in ("self", "args", "kwargs")]


def options_of(thing: Any) -> dict[str, Any]:
    """Return every option of a scheduler, stopper or searcher, read from its attributes.

    Options that have their default value are included, since defaults may differ in a later version.
    """
    make: Callable[..., Any] = type(thing)
    return {name: getattr(thing, name) for name in option_names(make)}


def build(make: Callable[..., T], data: Mapping[str, Any], pointer: str) -> T:
    """Return the object that ``make(**data)`` builds. The key "type" of `data` is not passed.

    Raises:
        SpecError: an option is unknown or has a wrong value. `pointer` is prepended to the pointer of the error.
    """
    options = {name: value for name, value in data.items() if name != "type"}
    known = option_names(make)
    errors = []
    for name in options:
        if name not in known:
            hint = of_the_experiment(name, known) or nearest(name, known)
            errors.append((f"{pointer}/{name}", f"unknown option{hint}"))
    if too_large := [(pointer + where, "is too large") for where in _too_large(options)]:
        raise SpecError([*errors, *too_large])
    try:
        made = make(**{name: value for name, value in options.items() if name in known})
    except SpecError as error:
        raise SpecError([*errors, *((pointer + inner, message) for inner, message in error.errors)]) from error
    except TypeError as error:
        needed = [
            p.name for p in inspect.signature(make).parameters.values() if p.default is p.empty and p.kind not in _REST
        ]
        how = f"; pass {_form(data['type'], needed)}" if not options and "type" in data else ""
        missing = [
            (f"{pointer}/{name}", f"needed: an option without a default{how}") for name in needed if name not in options
        ]
        raise SpecError(errors or missing or [(pointer, str(error))]) from error
    if errors:
        raise SpecError(errors)
    return made


def _too_large(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the pointers to the integers in a JSON object that no float can hold, with which no scheduler could compute."""
    stack: list[tuple[str, Any]] = [("", options)]
    while stack:
        pointer, value = stack.pop()
        if isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
            yield pointer
        elif isinstance(value, Mapping):
            stack.extend((f"{pointer}/{escape(key)}", inner) for key, inner in value.items())
        elif isinstance(value, list | tuple):
            stack.extend((f"{pointer}/{at}", inner) for at, inner in enumerate(value))


def _form(kind: str, needed: Iterable[str]) -> str:
    """Return the JSON form of a part of this type with its required options, for a user who passed only the name of the type."""
    return "{" + ", ".join([f'"type": "{kind}"', *(f'"{name}": ...' for name in needed)]) + "}"


def pick(kind: Any, table: Mapping[str, T], what: str, pointer: str) -> T:
    """Return the entry `kind` of a registry.

    Raises:
        SpecError: there is no such entry. `what` says in the message what the registry contains, such as "scheduler".
    """
    if not isinstance(kind, str) or kind not in table:
        raise SpecError(f"unknown {what} {kind!r}{nearest(kind, table)}", f"{pointer}/type")
    return table[kind]


def check_number(
    name: str, value: Any, *, above: float | None = None, at_least: float | None = None, at_most: float | None = None
) -> None:
    """Raise SpecError unless `value` is a finite number within the bounds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_LARGEST <= value <= _LARGEST:
        raise SpecError(f"expected a number, got {show(value)}", f"/{name}")
    if above is not None and not value > above:
        raise SpecError(f"expected a number above {above:.15g}, got {value:.15g}", f"/{name}")
    low, high = at_least is None or value >= at_least, at_most is None or value <= at_most
    if low and high:
        return
    if at_least is not None and at_most is not None:
        raise SpecError(f"expected a number from {at_least:.15g} to {at_most:.15g}, got {value:.15g}", f"/{name}")
    bound = f"at most {at_most:.15g}" if at_least is None else f"at least {at_least:.15g}"
    raise SpecError(f"expected {bound}, got {value:.15g}", f"/{name}")


def check_integer(name: str, value: Any, *, at_least: int = 0, at_most: int | None = None) -> None:
    """Raise SpecError unless `value` is an integer within the bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(f"expected an integer, got {show(value)}", f"/{name}")
    check_number(name, value, at_least=at_least, at_most=at_most)


def check_boolean(name: str, value: Any) -> None:
    """Raise SpecError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise SpecError(f"expected true or false, got {show(value)}", f"/{name}")
