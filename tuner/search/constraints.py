"""Constraints on reported metrics: ``{"latency_ms": {"max": 5}, "recall": {"min": 0.8}}``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tuner.errors import SpecError
from tuner.names import did_you_mean
from tuner.options import check_number
from tuner.space.words import escape, show

_UNKNOWN = 1e9  # the excess of a trial that did not report the metric


@dataclass(frozen=True, slots=True)
class Constraint:
    """A bound on a metric that trials report."""

    metric: str
    side: Literal["min", "max"]
    bound: float

    @property
    def attr(self) -> str:
        """Return the name of the Optuna trial attribute that holds the constraint's excess."""
        return f"constraints:{self.metric}:{self.side}"

    def excess(self, metrics: Mapping[str, float]) -> float:
        """Return how far the metric is beyond its bound. The result is zero or negative if the constraint is satisfied."""
        value = metrics.get(self.metric, math.nan)
        if not math.isfinite(value):
            return _UNKNOWN
        return value - self.bound if self.side == "max" else self.bound - value


def in_words(constraint: Constraint) -> str:
    """Return a constraint in words, such as ``size at most 0.25``."""
    return f"{constraint.metric} at {'most' if constraint.side == 'max' else 'least'} {constraint.bound:.15g}"


def as_option(constraints: Sequence[Constraint]) -> dict[str, dict[str, float]]:
    """Return the constraints in the form of the option, which `read` reads."""
    found: dict[str, dict[str, float]] = {}
    for one in constraints:
        found.setdefault(one.metric, {})[one.side] = one.bound
    return found


def read(option: Any) -> list[Constraint]:
    """Return the constraints that the option describes.

    Raises:
        SpecError: the option is wrong. The error's pointer begins with ``/constraints``.
    """
    if option is None:
        return []
    if not isinstance(option, Mapping):
        raise SpecError(f'expected {{metric: {{"max": bound}}}}, got {show(option)}', "/constraints")
    found = []
    for metric, sides in option.items():
        where = f"constraints/{escape(metric)}"
        if not isinstance(sides, Mapping) or not sides:
            raise SpecError(f'expected {{"min": bound}} or {{"max": bound}}, got {show(sides)}', f"/{where}")
        for side, bound in sides.items():
            if side not in ("min", "max"):
                hint = did_you_mean(side, ["min", "max"]) or "; expected min or max"
                raise SpecError(f"unknown{hint}", f"/{where}/{escape(side)}")
            check_number(f"{where}/{side}", bound)
            found.append(Constraint(str(metric), side, float(bound)))
    return found
