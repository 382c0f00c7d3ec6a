"""Functions of the user's that a scheduler or a stopper calls: by name, or pickled. Neither is loaded until it is called.

So an experiment can be checked, put together and folded in a process that must not run user code.
"""

from __future__ import annotations

import importlib
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tuner.errors import SpecError

_NAME = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")
_met: ContextVar[set[str] | None] = ContextVar("names of functions that were met", default=None)


@dataclass(frozen=True)
class NamedFunction:
    """A function that ``"module:qualified.name"`` names; its module is imported at the first call."""

    text: str

    @property
    def name(self) -> str:
        return self.text.partition(":")[2]

    def load(self) -> Callable[..., Any]:
        return imported("function", self.text)

    def __call__(self, *args: Any) -> Any:
        return self.load()(*args)


@dataclass(frozen=True)
class PickledFunction:
    """A function that has travelled by value; it is unpickled at the first call."""

    blob: bytes
    name: str

    def load(self) -> Callable[..., Any]:
        function: Callable[..., Any] = pickle.loads(self.blob)
        return function

    def __call__(self, *args: Any) -> Any:
        return self.load()(*args)


Unloaded = NamedFunction | PickledFunction


@contextmanager
def functions_by_name() -> Iterator[set[str]]:
    """Import nothing within this block: ``"module:name"`` becomes a `NamedFunction`. Yields the names that come up."""
    names: set[str] = set()
    token = _met.set(names)
    try:
        yield names
    finally:
        _met.reset(token)


def import_function(name: str, text: str) -> Callable[..., Any]:
    """Return the function behind ``"module:qualified.name"``; SpecError if there is none.

    Within `functions_by_name` only the form of the name is checked.
    """
    names = _met.get()
    if names is None:
        return imported(name, text)
    if not _NAME.fullmatch(text):
        raise SpecError(f'expected "module:name", got {text!r}', f"/{name}")
    names.add(text)
    return NamedFunction(text)


def imported(name: str, text: str) -> Callable[..., Any]:
    """Import the function behind ``"module:qualified.name"`` here and now; SpecError if that fails."""
    module, _, qualname = text.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError(f"{text!r} cannot be imported: {error}", f"/{name}") from error
    if not callable(found):
        raise SpecError(f"{text!r} is no function", f"/{name}")
    return found  # type: ignore[no-any-return]


def function_name(name: str, function: Any) -> str:
    """``"module:qualified.name"`` of a function that a fresh process can import; SpecError for any other."""
    if isinstance(function, NamedFunction):
        return function.text
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module and qualname and module != "__main__" and not isinstance(function, PickledFunction):
        try:
            if imported(name, f"{module}:{qualname}") is function:
                return f"{module}:{qualname}"
        except SpecError:
            pass
    raise SpecError(
        f"{function!r} cannot be imported by another process; put it at the top level of a module", f"/{name}"
    )


def sealed(function: Callable[..., Any]) -> Unloaded:
    """Return the function in a form that is pickled without what it refers to, and loaded only when it is called."""
    if isinstance(function, NamedFunction | PickledFunction):
        return function
    from tuner.usercode.pickling import dumps

    return PickledFunction(dumps(function), name_of(function))


def name_of(function: Callable[..., Any]) -> str:
    """Return what people call it; the name of its class if it has none of its own."""
    if isinstance(function, NamedFunction | PickledFunction):
        return function.name
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return name
