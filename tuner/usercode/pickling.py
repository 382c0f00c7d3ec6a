"""Pickle functions and objects of users, and find the parts that cannot be pickled."""

from __future__ import annotations

import importlib
import inspect
import io
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

SCRIPT = ("__main__", "__mp_main__")
"""The names of a script's module: the second one in a process that multiprocessing has started without a fork."""


def dumps(value: Any, protocol: int | None = None) -> bytes:
    """Pickle a value with cloudpickle, except for three kinds of objects that cloudpickle does not handle.

    References to objects in Ray's object store are pickled with Ray, because `ray.get` would otherwise wait forever in the
    other process. Such a reference is valid while the process that created it is alive. A lazy module, such as
    `optuna.integration`, has a module class of its own; the process that unpickles it imports it again by name. What a script
    defines is pickled by value, even in a process that multiprocessing has spawned, since others cannot import its module there.
    """
    import cloudpickle

    script = sys.modules.get("__mp_main__")  # in other processes than spawned ones, another name of `__main__`
    if script is not None and script.__name__ == "__mp_main__":
        cloudpickle.register_pickle_by_value(script)

    ray: Any = sys.modules.get("ray")
    reference: Any = getattr(ray, "ObjectRef", None)  # None even while another thread is importing Ray

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, part: Any) -> Any:
            if reference is not None and isinstance(part, reference):
                return ray.cloudpickle.loads, (ray.cloudpickle.dumps(part),)
            if isinstance(part, ModuleType) and type(part) is not ModuleType and sys.modules.get(part.__name__) is part:
                return importlib.import_module, (part.__name__,)
            return super().reducer_override(part)

    out = io.BytesIO()
    Pickler(out, protocol).dump(value)
    return out.getvalue()


def holds_functions(blob: bytes | None) -> bool:
    """Return whether a pickle has the bytecode of functions, which only the Python version that pickled it can run."""
    return blob is not None and b"CodeType" in blob  # cloudpickle writes this name for each code object


def culprits(function: Any) -> list[str]:
    """Return descriptions of the innermost objects that a function refers to and that cannot be pickled.

    An example is "the closure variable 'lock' (lock)".
    """
    while hasattr(function, "inner"):
        function = function.inner
    found: list[str] = []
    _search(function, "", set(), found)
    return found


def _search(value: Any, path: str, seen: set[int], found: list[str]) -> None:
    """Find the innermost objects within `value` that cannot be pickled, and add their descriptions to `found`.

    Search the variables that functions refer to, the attributes of classes and objects, and the items of containers.
    """
    if id(value) in seen or len(seen) > 1000 or _picklable(value):
        return
    seen.add(id(value))
    before = len(found)
    for name, part in _parts(value, path):
        _search(part, name, seen, found)
    if len(found) == before and path:
        found.append(f"{path} ({type(value).__name__})")


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    of = f" of {path}" if path else ""
    if inspect.isroutine(value):
        try:
            outside = inspect.getclosurevars(value)
        except (TypeError, ValueError):
            return
        yield from ((f"the closure variable {name!r}{of}", part) for name, part in outside.nonlocals.items())
        yield from ((f"the global variable {name!r}{of}", part) for name, part in outside.globals.items())
        for parameter in inspect.signature(value).parameters.values():
            if parameter.default is not parameter.empty:
                yield f"the default of {parameter.name!r}{of}", parameter.default
        if (bound := getattr(value, "__self__", None)) is not None:
            yield "the object to which the method belongs", bound
    elif isinstance(value, type):
        whole = of or f" of {value.__name__}"
        own = ((name, part) for name, part in vars(value).items() if name not in ("__dict__", "__weakref__"))
        yield from ((f"the attribute {name!r}{whole}", part) for name, part in own)
    elif isinstance(value, Mapping):
        yield from ((f"the item {key!r}{of}", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"item {i}{of}", part) for i, part in enumerate(value))
    elif hasattr(value, "__dict__"):
        whole = of or f" of {type(value).__name__}"
        yield from ((f"the attribute {name!r}{whole}", part) for name, part in vars(value).items())


def _picklable(value: Any) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True
