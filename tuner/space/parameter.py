"""One parameter of a search space: its values, their map to the unit interval, and moves within the domain.

Every value is mapped to a point of [0, 1], and a discrete value v stands for an interval around its point. If v is an integer
or a multiple of q, the interval corresponds to [v - q/2, v + q/2), on the logarithmic scale if the domain is logarithmic. All
categories of a choice have intervals of equal length. So a value is drawn by drawing a uniform number, and
`value(unit(v)) == v` for every discrete value.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from numbers import Integral, Real
from statistics import NormalDist
from typing import Any, Literal

from tuner.space.values import is_number, is_whole

Kind = Literal["float", "int", "normal", "choice"]

_NORMAL = NormalDist()
_NAMED = re.compile(r"<(?:function|class|built-in function) '?([\w.<>]+)'?>")
_TAIL = 1e-15  # a normal is cut off where the probability of its tail is this: 7.9 standard deviations from the mean


@dataclass(frozen=True, slots=True)
class Branch:
    """A category that has parameters of its own."""

    label: str

    def __repr__(self) -> str:
        return self.label


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a space.

    Attributes:
        path: the path of the parameter, such as ``optimizer/lr``.
        kind: "float", "int", "normal" or "choice".
        type: the primitive as declared, such as "loguniform".
        lower: the lowest value, inclusive.
        upper: the highest value, inclusive, even if the primitive is declared with an exclusive bound.
        log: True if values are drawn uniformly on the logarithmic scale.
        step: q if it was given, otherwise 1 for integers. The bounds are multiples of the step.
        mean: the mean of a normal distribution.
        sd: the standard deviation of a normal distribution.
        categories: the categories of a choice; a category with parameters of its own is a `Branch`.
        ordered: True if neighboring categories are similar.
        plain: True if the value of a choice is the category itself, a JSON scalar. Otherwise it is the category's
            index.
        grid: True for `grid_search`.
        condition: (path, index) of the choice that makes this parameter active; None if it is always active.
    """

    path: str
    kind: Kind
    type: str
    lower: float = -math.inf
    upper: float = math.inf
    log: bool = False
    step: float | None = None
    mean: float = 0.0
    sd: float = 1.0
    categories: tuple[Any, ...] = ()
    ordered: bool = False
    plain: bool = True
    grid: bool = False
    condition: tuple[str, int] | None = None
    _places: dict[tuple[Any, Any], int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the categories. True and 1 are different categories; so are 1 and 1.0, but only if the choice has both."""
        places: dict[tuple[Any, Any], int] = {}
        if self.plain:
            for i, category in enumerate(self.categories):
                places.setdefault((type(category), category), i)
            for i, category in enumerate(self.categories):
                if is_number(category):
                    places.setdefault((float, float(category)), i)
        object.__setattr__(self, "_places", places)

    @property
    def numeric(self) -> bool:
        return self.kind != "choice"

    @property
    def labels(self) -> list[Any]:
        """Return the categories for display: JSON scalars as they are, and other objects in words."""
        return list(self.categories) if self.plain else [worded(category) for category in self.categories]

    def readable(self, value: Any) -> Any:
        """Return a value for display, with a label instead of a category index."""
        if self.kind != "choice" or self.plain or not self.contains(value):
            return value
        return self.labels[self.index(value)]

    def describe(self) -> dict[str, Any]:
        """Return, as JSON, the data from which the web UI draws this parameter's axis."""
        about: dict[str, Any] = {"path": self.path, "type": self.type, "kind": self.kind}
        match self.kind:
            case "choice":
                about |= {"categories": self.labels, "ordered": self.ordered}
            case "normal":
                about |= {"mean": self.mean, "sd": self.sd, "step": self.step}
            case "float" | "int":
                about |= {"lower": self.lower, "upper": self.upper, "log": self.log, "step": self.step}
        if self.condition is not None:
            about["condition"] = {"path": self.condition[0], "index": self.condition[1]}
        return about

    @property
    def size(self) -> int | None:
        """Return the number of values, or None for a continuous or normal parameter."""
        if self.kind == "choice":
            return len(self.categories)
        if self.step is None or self.kind == "normal":
            return None
        return round((self.upper - self.lower) / self.step) + 1

    def contains(self, value: Any) -> bool:
        """Return True if the parameter can have this value."""
        match self.kind:
            case "choice":
                return self._find(value) is not None
            case "int":
                if not is_whole(value):
                    return False
                return self.lower <= value <= self.upper and int(value) % int(self.step or 1) == 0
            case "float" | "normal":
                if not is_number(value):
                    return False
                if self.step is None:
                    return bool(self.lower <= value <= self.upper)
                if math.isinf(float(value) / self.step):
                    return False
                return bool(abs(value - self._snap(value)) <= min(1e-9 * max(self.step, abs(value)), self.step / 2))

    def normal_form(self, value: Any) -> Any:
        """Return a valid value in the form that `sample` produces: a plain int, float or category."""
        match self.kind:
            case "choice":
                index = self.index(value)
                return self.categories[index] if self.plain else index
            case "int":
                return int(value)
            case "float" | "normal":
                return float(value) if self.step is None else self._snap(float(value))

    def index(self, value: Any) -> int:
        """Return the index of a choice's value.

        Raises:
            ValueError: the value is not one of the categories.
        """
        found = self._find(value)
        if found is None:
            raise ValueError(f"{value!r} is not one of {self.path}'s categories")
        return found

    def at(self, index: int) -> Any:
        """Return the value that represents the category at this index."""
        return self.categories[index] if self.plain else index

    def clip(self, value: Any) -> Any:
        """Return the value of the domain that is nearest to a number. For a choice, `value` must already be valid."""
        if self.kind == "choice":
            return self.normal_form(value)
        number = float(value)
        if math.isnan(number):
            raise ValueError(f"{self.path} cannot be NaN")
        if self.kind == "normal":
            if math.isinf(number):
                number = self.mean + math.copysign(8 * self.sd, number)
        else:
            number = min(max(number, self.lower), self.upper)
        return number if self.step is None else self._snap(number)

    def resample(self, rng: random.Random) -> Any:
        """Return a value drawn from the parameter's distribution."""
        return self.value(rng.random())

    def perturb(self, value: Any, factor: float) -> Any:
        """Return `value` times `factor`, inside the domain.

        A discrete value moves by at least one step, so 2 × 1.2 gives 3, not 2. From 0 it moves one step up if the factor is
        above 1, and one step down if it is below 1. The value of an ordered choice moves to the next category if the factor
        is above 1, and to the previous category if it is below 1. Neither kind of value moves beyond the edge of the domain.
        The value of an unordered choice never changes.
        """
        if factor == 1:
            return self.clip(value)
        if self.kind == "choice":
            if not self.ordered:
                return self.normal_form(value)
            at = self.index(value) + (1 if factor > 1 else -1)
            return self.at(min(max(at, 0), len(self.categories) - 1))
        raw = value * factor
        moved = self.clip(raw)
        if self.step is not None and moved == value:
            moved = self.clip(value + math.copysign(self.step, raw - value or factor - 1))
        return moved

    def unit(self, value: Any) -> float:
        """Return the position of a value in [0, 1]. For a discrete value, this is the middle of its interval."""
        match self.kind:
            case "choice":
                return (self.index(value) + 0.5) / len(self.categories)
            case "normal":
                return min(max(_NORMAL.cdf((value - self.mean) / self.sd), _TAIL), 1 - _TAIL)
            case "int" | "float":
                low, high = _edges(self.lower, self.upper, self.step, self.log)
                place = math.log(value) if self.log else float(value)
                return min(max((place - low) / (high - low), 0.0), 1.0)

    def value(self, unit: float) -> Any:
        """Return the value at a position in [0, 1]."""
        unit = min(max(unit, 0.0), 1.0)
        match self.kind:
            case "choice":
                return self.at(min(int(unit * len(self.categories)), len(self.categories) - 1))
            case "normal":
                return self.clip(self.mean + self.sd * _NORMAL.inv_cdf(min(max(unit, _TAIL), 1 - _TAIL)))
            case "int" | "float":
                low, high = _edges(self.lower, self.upper, self.step, self.log)
                place = low + unit * (high - low)
                return self.clip(math.exp(place) if self.log else place)

    def _find(self, value: Any) -> int | None:
        if not self.plain:
            return int(value) if is_whole(value) and 0 <= value < len(self.categories) else None
        try:
            found = self._places.get((type(value), value))
            return self._places.get((float, float(value))) if found is None and is_number(value) else found
        except TypeError:  # a list or a dict
            return None

    def _snap(self, number: float) -> Any:
        """Return the nearest multiple of the step within the domain, as a clean decimal: 0.3, not 3 * 0.1."""
        assert self.step is not None
        if self.kind == "int":
            step = int(self.step)
            multiple = math.floor(number / step + 0.5) * step
            return int(min(max(multiple, int(self.lower)), int(self.upper)))
        value = multiple_of(self.step, math.floor(number / self.step + 0.5))
        return min(max(value, self.lower), self.upper)


def multiple_of(step: float, count: int) -> float:
    """Return `count` times `step` as the shorter decimal: 3 times 0.1 is 0.3, and 3 times 1/3 is 1."""
    return min(float(Decimal(repr(float(step))) * count), float(step) * count, key=lambda product: len(repr(product)))


@lru_cache(maxsize=4096)
def _edges(lower: float, upper: float, step: float | None, log: bool) -> tuple[float, float]:
    """Return the ends of the interval that is mapped to [0, 1]. With a step, each end is half a step outside its bound."""
    half = (step or 0.0) / 2
    low, high = lower - half, upper + half
    return (math.log(low), math.log(high)) if log else (low, high)


def worded(category: Any) -> Any:
    """Return a JSON scalar as it is, and another object in words."""
    if category is None or isinstance(category, str | bool | int) or is_number(category):
        return category
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(category))
    if named := _NAMED.fullmatch(text):  # for a function or a class, the name is enough
        return named[1].rpartition(".<locals>.")[2] if named[0].startswith("<function") else named[1].rpartition(".")[2]
    return text[:200]


def config_as_json(value: Any) -> Any:
    """Return a configuration as JSON values. Python objects become words, which are the same in every process."""
    match value:
        case Mapping():
            return {str(name): config_as_json(part) for name, part in value.items()}
        case list() | tuple():
            return [config_as_json(part) for part in value]
        case bool():
            return value
        case Integral():  # also a number of NumPy that a function of `sample_from` has returned
            return int(value)
        case Real():
            return float(value)
        case _ if getattr(value, "shape", None) == () and hasattr(value, "item"):  # such as NumPy's bool, or a tensor
            return worded(value.item())
        case _:
            return worded(value)
