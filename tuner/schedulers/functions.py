"""Refer to the user's functions that a scheduler or a stopper calls, by name or as pickles.

A function in either form is loaded only when it is called. So a process that must not run user code can still check, assemble
and fold an experiment.
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
from tuner.usercode.pickling import SCRIPT, dumps

_NAME = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")
_met: ContextVar[set[str] | None] = ContextVar(
    "names of the functions that were read in `functions_by_name`", default=None
)


@dataclass(frozen=True)
class NamedFunction:
    """A function named as ``"module:qualified.name"``. Its module is imported at the first call."""

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
    """A function that was pickled by value. It is unpickled at each call."""

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
    """Within this block, read ``"module:name"`` as a `NamedFunction`, and import nothing.

    Yields:
        The set of names that have been read so far.
    """
    names: set[str] = set()
    token = _met.set(names)
    try:
        yield names
    finally:
        _met.reset(token)


def import_function(name: str, text: str) -> Callable[..., Any]:
    """Return the function named as ``"module:qualified.name"``.

    Within `functions_by_name`, check only the form of the name.

    Raises:
        SpecError: the name is malformed, or there is no such function. The error's pointer is ``/{name}``.
    """
    names = _met.get()
    if names is None:
        return imported(name, text)
    if not _NAME.fullmatch(text):
        raise SpecError(f'expected "module:name", got {text!r}', f"/{name}")
    names.add(text)
    return NamedFunction(text)


def imported(name: str, text: str) -> Callable[..., Any]:
    """Import the function named as ``"module:qualified.name"`` now.

    Raises:
        SpecError: the name cannot be imported, or is not a function. The error's pointer is ``/{name}``.
    """
    module, _, qualname = text.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError(f"{text!r} cannot be imported: {error}", f"/{name}") from error
    if not callable(found):
        raise SpecError(f"{text!r} is not a function", f"/{name}")
    return found  # type: ignore[no-any-return]


def function_name(name: str, function: Any) -> str:
    """Return ``"module:qualified.name"`` of a function that another process can import.

    Raises:
        SpecError: another process cannot import the function. The error's pointer is ``/{name}``.
    """
    if isinstance(function, NamedFunction):
        return function.text
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module and qualname and module not in SCRIPT and not isinstance(function, PickledFunction):
        try:
            if imported(name, f"{module}:{qualname}") is function:
                return f"{module}:{qualname}"
        except SpecError:
            pass
    raise SpecError(
        f"{function!r} cannot be imported by another process; define it at the top level of a module", f"/{name}"
    )


def sealed(function: Callable[..., Any]) -> Unloaded:
    """Wrap a function so that it, and the objects it refers to, are unpickled only when it is called."""
    if isinstance(function, NamedFunction | PickledFunction):
        return function
    return PickledFunction(dumps(function), name_of(function))


def name_of(function: Callable[..., Any]) -> str:
    """Return the function's name, or the name of its class if it has none."""
    if isinstance(function, NamedFunction | PickledFunction):
        return function.name
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return name
