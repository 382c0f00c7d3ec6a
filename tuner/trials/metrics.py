"""From what people pass to `tuner.report` to flat names and floats."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from numbers import Real
from typing import Any


def flatten(metrics: Mapping[str, Any]) -> dict[str, float]:
    """``{"val": {"loss": tensor(0.5)}}`` -> ``{"val/loss": 0.5}``.

    Values are numbers, NumPy scalars, or 0-d arrays and tensors. Anything else is a TypeError that names the key.
    """
    flat: dict[str, float] = {}
    if type(metrics) is dict:
        for key, value in metrics.items():
            if type(value) is float and type(key) is str:
                flat[key] = value
            else:
                _add(flat, "", key, value)
    elif isinstance(metrics, Mapping):
        for key, value in metrics.items():
            _add(flat, "", key, value)
    else:
        raise TypeError(f"metrics must be a dict of numbers, not {_describe(metrics)}")
    return flat


def numbers(metrics: Mapping[str, Any], named: set[str], needed: str | None, prefix: str = "") -> dict[str, float]:
    """As `flatten`, but what is no number is left out and named on stderr, unless it is among those `named` before.

    TypeError where the `needed` metric is no number. prefix: of all names, where `metrics` are within others.
    """
    found: dict[str, float] = {}
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found.update(numbers(value, named, needed, f"{name}/"))
            continue
        try:
            found.update(flatten({name: value}))
        except TypeError as error:
            if name == needed:
                raise
            if name not in named:
                named.add(name)
                print(f"left out of the report: {error}", file=sys.stderr)
    return found


def _add(flat: dict[str, float], prefix: str, key: object, value: Any) -> None:
    if not isinstance(key, str) or not key:
        raise TypeError(
            f"metric names are non-empty strings, not {key!r}" + (f" (in {prefix[:-1]!r})" if prefix else "")
        )
    name = prefix + key
    if isinstance(value, Mapping):
        for inner, item in value.items():
            _add(flat, name + "/", inner, item)
        return
    if name in flat:
        raise TypeError(f"metric {name!r} is reported twice in one call")
    flat[name] = _number(name, value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, Real):
        return float(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
        if isinstance(value, Real):
            return float(value)
    raise TypeError(f"metric {name!r} must be a number or a 0-d array or tensor, not {_describe(value)}")


def _describe(value: object) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{name} of shape {tuple(shape)}"
    text = repr(value)
    return f"{name} {text if len(text) <= 40 else text[:37] + '...'}"
