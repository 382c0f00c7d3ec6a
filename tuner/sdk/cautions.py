"""Warn of arguments of `tuner.run` that are probably mistakes: large data, and values that look like domains."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tuner.names import did_you_mean, nearest, printable
from tuner.plurals import counted
from tuner.sdk.arguments import above_this_package
from tuner.sdk.callbacks.observers import METHODS, checked, never_called
from tuner.space.meant import domain_in
from tuner.space.primitives import OPTIONS as KINDS
from tuner.store import CodeRecord

LARGE_BYTES = 50_000_000
"""The size in bytes above which a pickled training function gets a warning."""


def warn_of_size(function: Any, code: CodeRecord) -> None:
    """Warn if large data are pickled with the function, since they are stored in the database once per experiment."""
    size = len(code.blob or b"")
    if size <= LARGE_BYTES:
        return
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    large = [name for name, value in zip(names, cells, strict=False) if getattr(value, "nbytes", 0) > LARGE_BYTES]
    found = getattr(function, "__globals__", {})
    used = getattr(getattr(function, "__code__", None), "co_names", ())
    large += [name for name in used if getattr(found.get(name), "nbytes", 0) > LARGE_BYTES]
    which = f" (most of it is {', '.join(large)})" if large else ""
    warnings.warn(
        f"the training function is {size / 1e6:.0f} MB when pickled{which}, and is stored in the database; pass large "
        "objects with tuner.with_parameters(train, data=...) instead, which stores them once and shares them "
        "among ranks",
        UserWarning,
        stacklevel=above_this_package(),
    )


def warn_of_first_argument(function: Any, space: Any) -> None:
    """Warn of a function whose first argument has the name of a parameter: it gets the whole configuration there."""
    if not inspect.isfunction(function) or not isinstance(space, Mapping):
        return
    first = next(iter(inspect.signature(function, follow_wrapped=False).parameters.values()), None)
    if first is None or first.name not in space or first.name == "config" or isinstance(space[first.name], Mapping):
        return
    if re.search("dict|mapping", str(first.annotation), re.IGNORECASE):
        return
    if first.name in function.__code__.co_consts:  # as in lr["lr"]
        return
    warnings.warn(
        f"{function.__name__} gets the whole configuration, a dict, as its first argument, which has the name of a parameter, "
        f'{first.name}: write def {function.__name__}(config), and config["{first.name}"] for the value',
        UserWarning,
        stacklevel=above_this_package(),
    )


LARGE_SPACE_BYTES = 1_000_000
"""The size in bytes above which a pickled search space gets a warning. A list of this size delays a search by seconds."""


def warn_of_large_space(space: Any) -> None:
    """Warn of large constants and choices, such as arrays and models: the space is sent whenever a trial starts."""
    if not isinstance(space, Mapping):
        return  # a mistake, which is reported with the others
    sizes = {name: _pickled_bytes(value) for name, value in space.items()}
    size = sum(sizes.values())
    if size <= LARGE_SPACE_BYTES:
        return
    large = sorted((name for name in sizes if sizes[name] > size / 10), key=lambda name: -sizes[name])
    which = f" (most of it is {', '.join(map(printable, large))})" if large else ""
    warnings.warn(
        f"the search space is {size / 1e6:.1f} MB{which}: it is stored in the database, and sent to every rank whenever a "
        "trial starts. Pass large objects with tuner.with_parameters(train, data=...) instead, which stores them once and "
        "shares them among ranks; or search over names, and load the objects in the training function",
        UserWarning,
        stacklevel=above_this_package(),
    )


def _pickled_bytes(value: Any) -> int:
    """Return the size of a value when pickled, or 0 if it cannot be pickled. Another check reports that."""
    import cloudpickle  # type: ignore[import-untyped, unused-ignore]

    try:
        return len(cloudpickle.dumps(value))
    except Exception:
        return 0


def warn_of_lists(space: Mapping[str, Any]) -> None:
    """Warn of plain lists in a space that has no domains: they were most likely meant as choices."""
    constants = list(_constants(space))
    lists = [
        f"{name} has the fixed value {value!r}" for name, value in constants if isinstance(value, list | tuple | range)
    ]
    if lists:
        advice = "tuner.choice([...]) draws from a list, tuner.grid_search([...]) tries every item"
        if any(isinstance(value, tuple) and len(value) == 2 for _, value in constants):
            advice += ", tuner.uniform(lower, upper) draws from a range"
        warnings.warn(f"{', '.join(lists)} in all trials: {advice}", UserWarning, stacklevel=above_this_package())


def warn_of_sweeps(space: Mapping[str, Any]) -> None:
    """Warn of a space that has no domains, but dicts that describe parameters as W&B sweeps do."""
    for name, value in _constants(space):
        if _is_of_sweep(value):
            warnings.warn(
                f"{name} has the same value in all trials, the dict {dict(value)!r}. If you mean a parameter of a W&B sweep, "
                "write tuner.choice([...]), tuner.uniform(min, max) or tuner.loguniform(min, max): tuner docs from_wandb_sweeps",
                UserWarning,
                stacklevel=above_this_package(),
            )


def warn_of_json_forms(space: Mapping[str, Any]) -> None:
    """Warn of dicts that look like the JSON form of a domain: in Python, a dict is a group of parameters or constants."""
    for name, value in _constants(space):
        if (meant := _of_json_form(value)) is None:
            continue
        warnings.warn(
            f"{name} has the same value in all trials, the dict {dict(value)!r}. If you mean a domain, write "
            f"tuner.{meant}(...): its JSON form is for specs only",
            UserWarning,
            stacklevel=above_this_package(),
        )


def warn_of_descriptions(space: Mapping[str, Any]) -> None:
    """Warn of constants that describe a domain: texts such as "uniform(0, 1)", and dicts with only a lower and an upper bound."""
    for name, value in _constants(space):
        if (meant := domain_in(value)) is not None:
            warnings.warn(
                f"{name} has the same value in all trials, {value!r}. If you mean a domain, write tuner.{meant}(...)",
                UserWarning,
                stacklevel=above_this_package(),
            )


def _constants(space: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each entry of a space and of the groups in it."""
    for name, value in space.items():
        described = _is_of_sweep(value) or _of_json_form(value) is not None or domain_in(value) is not None
        if isinstance(value, Mapping) and not described:
            yield from _constants(value, f"{path}{name}/")
        else:
            yield f"{path}{name}", value


def _is_of_sweep(value: Any) -> bool:
    """Return whether a value describes a parameter as W&B sweeps do."""
    forms = (("values",), ("min", "max"), ("distribution", "min", "max"), ("distribution", "mu", "sigma"))
    return isinstance(value, Mapping) and any(
        set(form) <= value.keys() <= {*form, "q", "distribution"} for form in forms
    )


def _of_json_form(value: Any) -> str | None:
    """Return the type of the domain whose JSON form a value has, or probably has; else None."""
    if not isinstance(value, Mapping) or not isinstance(kind := value.get("type"), str):
        return None
    meant = kind if kind in KINDS else nearest(kind, KINDS)
    found = meant is not None and any(option in value for options in KINDS[meant] for option in options)
    return meant if found else None


def warn_of_distributions(space: Mapping[str, Any], path: str = "") -> None:
    """Warn of distributions of SciPy and Optuna, as scikit-learn's and Optuna's searches take them: here they are constants."""
    for name, value in space.items():
        if isinstance(value, Mapping):
            warn_of_distributions(value, f"{path}{name}/")
            continue
        library = type(value).__module__.partition(".")[0]
        if library == "scipy" and callable(getattr(value, "rvs", None)):
            meant = f"a distribution of SciPy, {getattr(getattr(value, 'dist', None), 'name', type(value).__name__)}"
        elif type(value).__module__ == "optuna.distributions":
            meant = f"Optuna's {value!r}"
        else:
            continue
        warnings.warn(
            f"{path}{name} has the same value in all trials, {meant}. If you mean a parameter, write "
            "tuner.uniform(lower, upper), tuner.loguniform(lower, upper), tuner.randint(lower, upper) or tuner.choice([...])",
            UserWarning,
            stacklevel=above_this_package(),
        )


def warn_of_unused_points(points: Any, num_samples: Any) -> None:
    """Warn of points for which the search has no trials left."""
    if not isinstance(points, Sequence) or not isinstance(num_samples, int) or num_samples < 1:
        return
    if (left := len(points) - num_samples) > 0:
        warnings.warn(
            f"num_samples is {num_samples}, so {counted(left, 'point')} of the {len(points)} in points_to_evaluate will not be "
            f"run: pass num_samples={len(points)} or more",
            UserWarning,
            stacklevel=above_this_package(),
        )


def checked_callbacks(callbacks: Any) -> list[Any]:
    """Return the callbacks as a list, as `checked` does, and warn of methods that are never called."""
    several = checked(callbacks)
    for callback in several:
        for name in never_called(type(callback)):
            warnings.warn(
                f"{type(callback).__name__}.{name} is never called{did_you_mean(name, METHODS)}; a callback has the methods "
                f"{', '.join(METHODS)}",
                UserWarning,
                stacklevel=above_this_package(),
            )
    return several


def warn_of_thresholds(stop: Any, metric: Any, mode: Any) -> None:
    """Warn of a threshold for a metric that is minimized: trials end at or above it, so the bad ones at their first report."""
    if not isinstance(stop, Mapping) or not isinstance(metric, str) or mode != "min" or metric not in stop:
        return
    at = stop[metric]
    warnings.warn(
        f"stop={{{metric!r}: {at!r}}} ends each trial whose {metric} is at or above {at!r}, though {metric} is minimized. To end "
        f"trials that reach {at!r}, pass stop=lambda number, metrics: metrics[{metric!r}] <= {at!r}. To end trials that diverge, "
        f"pass stop=tuner.stoppers.ThresholdStopper({dict(stop)!r}), which does the same as now without this warning",
        UserWarning,
        stacklevel=above_this_package(),
    )
