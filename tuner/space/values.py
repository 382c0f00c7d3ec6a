"""What is a number, a scalar, a JSON value."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any


def listed(values: Any) -> Any:
    """A list that may be gone over twice; what is no series of values is left for the check to refuse."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        return values
    return list(values)


def is_scalar(value: Any) -> bool:
    if value is None or type(value) in (str, bool, int):
        return True
    return isinstance(value, float) and math.isfinite(value)


def plain_value(value: Any) -> Any:
    """A float of a subclass, such as numpy's, as a plain one."""
    return float(value) if isinstance(value, float) else value


def is_number(value: Any) -> bool:
    """A finite real number, True and False not counted."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def is_whole(value: Any) -> bool:
    """A number without a fraction: 3 and 3.0."""
    return is_number(value) and (isinstance(value, Integral) or float(value).is_integer())


def same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if a is b:
        return True
    try:
        return type(a == b) is bool and a == b
    except Exception:  # the comparison is the user's code
        return False


def is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
