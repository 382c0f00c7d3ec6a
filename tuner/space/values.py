"""Tell numbers, scalars and JSON values apart."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any


def listed(values: Any) -> Any:
    """Return an iterable of values as a list, so that it can be read twice. Return any other object unchanged."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        return values
    return list(values)


def is_scalar(value: Any) -> bool:
    """Return True for a JSON scalar."""
    if value is None or type(value) in (str, bool, int):
        return True
    return isinstance(value, float) and math.isfinite(value)


def plain_value(value: Any) -> Any:
    """Convert an instance of a subclass of float, such as numpy's, to a plain float."""
    return float(value) if isinstance(value, float) else value


def is_number(value: Any) -> bool:
    """Return True for a finite real number other than True and False."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def is_whole(value: Any) -> bool:
    """Return True for a number without a fraction: 3 and 3.0."""
    return is_number(value) and (isinstance(value, Integral) or float(value).is_integer())


def same(a: Any, b: Any) -> bool:
    """Return True if `a` and `b` are equal. A bool never equals a number."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if a is b:
        return True
    try:
        return type(a == b) is bool and a == b
    except Exception:  # the comparison is the user's code
        return False


def is_json(value: Any) -> bool:
    """Return True if the value can be written as JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
