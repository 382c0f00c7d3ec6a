"""The primitives of a space, with Ray Tune's names and bounds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec

from tuner.errors import WrongArgument
from tuner.names import keywords_explained
from tuner.space.values import listed

P = ParamSpec("P")


@dataclass(frozen=True, slots=True, repr=False)
class Domain:
    """A primitive: a type and its options. The options are checked when a `Space` is built from the primitive."""

    type: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.type}({', '.join(f'{k}={v!r}' for k, v in self.options.items())})"


def _excluded(keyword: str, _given: Mapping[str, Any]) -> str:
    """Return what to write for a keyword that may stand for the largest integer, since our upper bound is excluded."""
    return "; did you mean 'upper'? The largest integer is upper - 1" if keyword in ("high", "max") else ""


def _takes_one_list(function: Callable[P, Domain]) -> Callable[P, Domain]:
    """Decorate a function so that its TypeError for several positional arguments says that it takes one list."""

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> Domain:
        if len(args) > 1:
            name = function.__name__
            raise WrongArgument(
                f"{name}() takes one list, as in {name}([16, 32]), but {len(args)} arguments were given"
            )
        return function(*args, **kwargs)

    return checked


@keywords_explained
def uniform(lower: float, upper: float) -> Domain:
    """Return the domain of floats in [lower, upper], drawn uniformly."""
    return Domain("uniform", {"lower": lower, "upper": upper})


@keywords_explained
def loguniform(lower: float, upper: float) -> Domain:
    """Return the domain of floats in [lower, upper], drawn uniformly on the logarithmic scale. Both bounds are positive."""
    return Domain("loguniform", {"lower": lower, "upper": upper})


@keywords_explained
def quniform(lower: float, upper: float, q: float) -> Domain:
    """Return the domain of multiples of q in [lower, upper], all equally likely. The bounds are multiples of q."""
    return Domain("quniform", {"lower": lower, "upper": upper, "q": q})


@keywords_explained
def qloguniform(lower: float, upper: float, q: float) -> Domain:
    """Return the domain of multiples of q in [lower, upper], drawn uniformly on the logarithmic scale.

    The bounds are multiples of q.
    """
    return Domain("qloguniform", {"lower": lower, "upper": upper, "q": q})


@functools.partial(keywords_explained, instead=_excluded)
def randint(lower: int, upper: int) -> Domain:
    """Return the domain of integers from lower to upper - 1, as in Ray Tune and numpy."""
    return Domain("randint", {"lower": lower, "upper": upper})


@functools.partial(keywords_explained, instead=_excluded)
def lograndint(lower: int, upper: int) -> Domain:
    """Return the domain of integers from lower to upper - 1, drawn uniformly on the logarithmic scale."""
    return Domain("lograndint", {"lower": lower, "upper": upper})


@keywords_explained
def qrandint(lower: int, upper: int, q: int = 1) -> Domain:
    """Return the domain of multiples of q from lower to upper, inclusive. With q = 1, upper is excluded, as in Ray Tune."""
    return Domain("qrandint", {"lower": lower, "upper": upper, "q": q})


@keywords_explained
def qlograndint(lower: int, upper: int, q: int) -> Domain:
    """Return the domain of `qrandint`, drawn uniformly on the logarithmic scale."""
    return Domain("qlograndint", {"lower": lower, "upper": upper, "q": q})


@keywords_explained
def randn(mean: float = 0.0, sd: float = 1.0) -> Domain:
    """Return the domain of normally distributed floats."""
    return Domain("randn", {"mean": mean, "sd": sd})


@keywords_explained
def qrandn(mean: float, sd: float, q: float) -> Domain:
    """Return the domain of normally distributed floats, rounded to multiples of q."""
    return Domain("qrandn", {"mean": mean, "sd": sd, "q": q})


@_takes_one_list
def choice(categories: Sequence[Any], *, ordered: bool | None = None) -> Domain:
    """Return the domain of a set of categories. A category may itself be a space.

    Args:
        categories: the categories, at least one.
        ordered: True if neighboring categories are similar; PBT and models make use of this. None: True if all categories
            are numbers in ascending order.
    """
    return Domain("choice", {"categories": listed(categories)} | ({} if ordered is None else {"ordered": ordered}))


@_takes_one_list
def grid_search(values: Iterable[Any]) -> Domain:
    """Return a grid parameter. Every combination of the values of a space's grids is run `num_samples` times."""
    return Domain("grid_search", {"values": listed(values)})


def sample_from(func: Callable[..., Any]) -> Domain:
    """Return a parameter that is computed from the other values of the configuration.

    `func` takes no argument, or the configuration: a dict whose keys are also attributes (``spec.config.width`` works as in
    Ray Tune). While `func` runs, `random` and `numpy.random` are seeded for the trial, so a repeated call for this trial
    returns the same value.
    """
    return Domain("sample_from", {"func": func})


OPTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # type -> needed, optional
    "uniform": (("lower", "upper"), ()),
    "loguniform": (("lower", "upper"), ()),
    "quniform": (("lower", "upper", "q"), ()),
    "qloguniform": (("lower", "upper", "q"), ()),
    "randint": (("lower", "upper"), ()),
    "lograndint": (("lower", "upper"), ()),
    "qrandint": (("lower", "upper"), ("q",)),
    "qlograndint": (("lower", "upper", "q"), ()),
    "randn": ((), ("mean", "sd")),
    "qrandn": (("mean", "sd", "q"), ()),
    "choice": (("categories",), ("ordered",)),
    "grid_search": (("values",), ()),
    "const": (("value",), ()),
    "tuple": (("items",), ()),
    "python": (("index",), ("repr",)),
    "sample_from": (("index",), ("repr",)),
}


def domain_of(value: Any) -> Any:
    """Convert a value of Ray Tune or numpy to our form.

    A domain of Ray Tune, or its ``{"grid_search": [...]}``, becomes a `Domain`. A numpy scalar becomes a Python scalar. Any
    other value is returned unchanged.
    """
    if isinstance(value, Domain):
        return value
    if isinstance(value, Mapping):
        if len(value) == 1 and "grid_search" in value and isinstance(value["grid_search"], list | tuple):
            return grid_search(value["grid_search"])
        return value
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return value.item()
    if any(c.__module__ == "ray.tune.search.sample" and c.__name__ == "Domain" for c in type(value).__mro__):
        return _from_ray(value)
    return value


def _from_ray(domain: Any) -> Domain:
    names = {c.__name__ for c in type(domain).__mro__}
    if "Function" in names:
        return sample_from(domain.func)
    sampler, q = domain.get_sampler(), None
    if type(sampler).__name__ == "Quantized":
        sampler, q = sampler.get_sampler(), sampler.q
    kinds = {c.__name__ for c in type(sampler).__mro__}
    if "Categorical" in names:
        return grid_search(domain.categories) if "Grid" in kinds else choice(domain.categories)
    step = {} if q is None else {"q": q}
    prefix = "" if q is None else "q"
    if "Normal" in kinds:
        return Domain(prefix + "randn", {"mean": sampler.mean, "sd": sampler.sd, **step})
    log = "log" if "LogUniform" in kinds else ""
    name = "randint" if "Integer" in names else "uniform"
    return Domain(prefix + log + name, {"lower": domain.lower, "upper": domain.upper, **step})
