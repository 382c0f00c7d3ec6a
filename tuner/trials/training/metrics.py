"""Convert the metrics that are passed to `tuner.report` to flat names and floats, and check the step."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from tuner.errors import WrongArgument

LONGEST_NAME = 500
"""The maximum number of characters of a metric's name. PostgreSQL's index takes 2,700 bytes, and a character has up to 4."""


@dataclass(slots=True)
class MetricWarnings:
    """Prints warnings about unusual values of metrics to stderr, once for each metric.

    objective: the metric that is reported as NaN if its value is None. said: the metrics with a warning so far.
    """

    objective: str | None = None
    said: set[str] = field(default_factory=set)

    def say(self, name: str, what: str) -> None:
        if name not in self.said:
            self.said.add(name)
            print(what, file=sys.stderr)


def flatten(metrics: Mapping[str, Any], warnings: MetricWarnings | None = None) -> dict[str, float]:
    """Convert metrics to flat names and floats, such as ``{"val": {"loss": tensor(0.5)}}`` to ``{"val/loss": 0.5}``.

    Values are numbers, NumPy scalars, or arrays and tensors with one element. A metric whose value is None is left out,
    except that the objective of `warnings` becomes NaN. Any other value raises a WrongArgument that names the metric.
    warnings: if given, prints warnings about metrics whose value is None or an array with dimensions.
    """
    flat: dict[str, float] = {}
    if type(metrics) is dict:
        for key, value in metrics.items():
            if type(value) is float and type(key) is str and 0 < len(key) <= LONGEST_NAME and key not in flat:
                flat[key] = value
            else:
                _add(flat, "", key, value, warnings)
    elif isinstance(metrics, Mapping):
        for key, value in metrics.items():
            _add(flat, "", key, value, warnings)
    else:
        raise WrongArgument(f"metrics must be a dict of numbers, not {describe(metrics)}")
    return flat


def numbers(metrics: Mapping[str, Any], named: set[str], needed: str | None, prefix: str = "") -> dict[str, float]:
    """Convert metrics to flat names and floats, like `flatten`, but leave out values that are not numbers.

    The name of a metric that is left out is printed to stderr once, and added to `named`. Raise WrongArgument if the metric
    `needed` is not a number. prefix: prepended to all names, because `metrics` may be nested in another dict.
    """
    found: dict[str, float] = {}
    warnings = MetricWarnings(needed, named)
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found.update(numbers(value, named, needed, f"{name}/"))
            continue
        try:
            found.update(flatten({name: value}, warnings))
        except TypeError as error:
            if name == needed:
                raise
            warnings.say(name, f"left out of the report: {error}")
    return found


def own_step(step: Any) -> int | None:
    """Convert the user's `step` to an int for the database. Raise WrongArgument if that is impossible."""
    if step is None:
        return None
    try:
        number = int(step)
    except (TypeError, ValueError, OverflowError):
        raise WrongArgument(f"step must be a whole number, not {step!r}") from None
    if isinstance(step, str) or number != step:
        raise WrongArgument(f"step must be a whole number, not {step!r}")
    if abs(number) >= 2**63:
        raise WrongArgument(f"step must be below 2**63, not {number}")
    return number


def _add(flat: dict[str, float], prefix: str, key: object, value: Any, warnings: MetricWarnings | None) -> None:
    if not isinstance(key, str) or not key:
        raise WrongArgument(
            f"metric names are non-empty strings, not {key!r}" + (f" (in {prefix[:-1]!r})" if prefix else "")
        )
    name = prefix + key
    if isinstance(value, Mapping):
        for inner, item in value.items():
            _add(flat, name + "/", inner, item, warnings)
        return
    if len(name) > LONGEST_NAME:
        raise WrongArgument(
            f"expected a metric name of at most {LONGEST_NAME} characters, got {len(name)}: {name[:40]!r}..."
        )
    if name in flat:
        raise WrongArgument(f"metric {name!r} is reported twice in one call")
    if value is not None:
        flat[name] = _number(name, value, warnings)
    elif warnings is not None and name == warnings.objective:
        flat[name] = math.nan
        warnings.say(name, f"the objective {name!r} is None in a report, which counts as NaN")
    elif warnings is not None:
        warnings.say(name, f"left out of the report: metric {name!r}, which is None")


def _number(name: str, value: Any, warnings: MetricWarnings | None) -> float:
    if isinstance(value, Real):
        return _float(name, value)
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "item") and all(length == 1 for length in shape):
        item = value.item()
        if isinstance(item, Real):
            if shape and warnings is not None:
                warnings.say(name, f"metric {name!r} is {describe(value)}: its only element is reported")
            return _float(name, item)
        value = item
    raise WrongArgument(
        f"metric {name!r} must be a number, or an array or tensor of one element, not {describe(value)}"
    )


def _float(name: str, value: Real) -> float:
    try:
        return float(value)
    except OverflowError:
        raise WrongArgument(
            f"metric {name!r} is too large for a float, which is at most {sys.float_info.max:.1e}"
        ) from None


def describe(value: object) -> str:
    """Describe a value by its type and its shape, or by its type and its text, cut if that is long."""
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{name} of shape {tuple(shape)}"
    text = repr(value)
    return f"{name} {text if len(text) <= 40 else text[:37] + '...'}"
