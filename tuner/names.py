"""Names that are nearly right: what was most likely meant, and functions that say so when they are called with one."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

ELSEWHERE = {  # what arguments of `tuner.run` are called in Ray Tune, in Optuna, and in a spec
    "catch": "max_failures",
    "config": "space",
    "direction": "mode",
    "directions": "mode",
    "entrypoint": "trainable",
    "func": "trainable",
    "n_jobs": "max_concurrent_trials",
    "n_trials": "num_samples",
    "objective": "metric",
    "param_space": "space",
    "pruner": "scheduler",
    "resources_per_trial": "resources_per_worker",
    "run_or_experiment": "trainable",
    "sampler": "search_alg",
    "search": "search_alg",
    "search_space": "space",
    "searcher": "search_alg",
    "storage_path": "storage",
    "timeout": "time_budget_s",
}


def nearest(name: Any, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, whatever its capitals; None where none is near."""
    names = list(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    if not close:
        lower = {other.lower(): other for other in reversed(names)}
        close = [lower[found] for found in difflib.get_close_matches(str(name).lower(), lower, n=1)]
    return close[0] if close else None


def did_you_mean(name: Any, known: Iterable[str], quote: str = "") -> str:
    """``"; did you mean max_t?"``, to be put behind a message; empty where nothing is near."""
    found = nearest(name, known)
    return f"; did you mean {quote}{found}{quote}?" if found is not None else ""


def resource_meant(name: str) -> str | None:
    """Ray's own resource that this nearly is: other capitals, a plural, "num_gpus". None for that itself, and for custom ones."""
    plain = name.lower().removeprefix("num_").removeprefix("n_").rstrip("s")
    meant = {"cpu": "CPU", "gpu": "GPU", "memory": "memory", "mem": "memory"}.get(plain)
    return None if meant == name else meant


def keywords_explained(function: Callable[P, R], called: str | None = None) -> Callable[P, R]:
    """Lets a function that is called with an unknown keyword name the one that was most likely meant, in its TypeError.

    called: what it is known by, if not by its own name.
    """
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return function
    known = [name for name in parameters if name != "self"]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if unknown := [name for name in kwargs if name not in known]:
            raise TypeError("; ".join(_unknown(called or function.__name__, name, known) for name in unknown))
        return function(*args, **kwargs)

    return checked


def _unknown(function: str, name: str, known: list[str]) -> str:
    other = ELSEWHERE.get(name)
    meant = f"; did you mean {other!r}?" if other in known else did_you_mean(name, known, "'")
    return f"{function}() has no parameter {name!r}{meant}"
