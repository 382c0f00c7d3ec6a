"""State from JSON: the way back from ``dataclasses.asdict`` and ``json.dumps``, led by the types of the fields.

JSON turns tuples into lists and the keys of dicts into strings; both are turned back here. Known are dataclasses,
also generic ones, lists, tuples, dicts, unions with None, and plain values.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


def restore(form: type[T], data: Any) -> T:
    """The value of type `form` that was saved as `data`."""
    return typing.cast(T, _restore(form, data, {}))


def _restore(form: Any, data: Any, bound: dict[Any, Any]) -> Any:
    form = bound.get(form, form) if isinstance(form, TypeVar) else form
    origin, args = typing.get_origin(form), typing.get_args(form)
    if origin in (types.UnionType, typing.Union):
        if data is None:
            return None
        return _restore(next(arg for arg in args if arg is not type(None)), data, bound)
    if origin is list:
        return [_restore(args[0], item, bound) for item in data]
    if origin is tuple:
        inner = args[:1] * len(data) if args[-1] is Ellipsis else args
        return tuple(_restore(arg, item, bound) for arg, item in zip(inner, data, strict=True))
    if origin is dict:
        key, value = args
        return {_key(key, k): _restore(value, v, bound) for k, v in data.items()}
    kind = origin or form
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        names = dict(zip(getattr(kind, "__parameters__", ()), (bound.get(a, a) for a in args), strict=False))
        hints = typing.get_type_hints(kind)
        return kind(**{name: _restore(hints[name], value, names) for name, value in data.items()})
    return data


def _key(form: Any, key: Any) -> Any:
    return form(key) if form in (int, float) else key
