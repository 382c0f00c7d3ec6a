"""Convert the arguments `scheduler`, `search_alg` and `stop` of a Python call to a scheduler, a searcher and a stopper."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from tuner.driver.assemble import Parts
from tuner.errors import ErrorCollector
from tuner.names import keywords_explained
from tuner.options import option_names
from tuner.schedulers.base import Scheduler
from tuner.schedulers.stoppers import CombinedStopper, Stopper
from tuner.search.base import Searcher

_FIRST = "_first_state"
"""The attribute of a scheduler or stopper with the state that it had before its first search."""

P = ParamSpec("P")
R = TypeVar("R")

LONGEST_SHOWN = 100
"""The maximum length of a value that an error message repeats."""


def scheduler_part(scheduler: Any) -> Scheduler | None:
    """Convert the `scheduler` argument of a Python call to a scheduler. Return None if it is None or "auto".

    In these two cases, `assemble` chooses the scheduler.
    """
    if scheduler is None or scheduler == "auto":
        return None
    from tuner.schedulers import from_argument

    return from_argument(scheduler)


def searcher_part(search_alg: Any) -> Searcher | None:
    """Convert the `search_alg` argument of a Python call to a searcher. Return None if it is None or "auto".

    In these two cases, `assemble` chooses the searcher.
    """
    if search_alg is None or search_alg == "auto":
        return None
    from tuner.search import from_argument

    return from_argument(search_alg)


def parts_of(scheduler: Any, search_alg: Any, stop: Any, mistakes: ErrorCollector) -> Parts:
    """Convert arguments of a Python call to a scheduler, a searcher and a stopper. Collect errors in `mistakes`.

    An object that an earlier search in this process has used begins with the state that it had before.
    """
    parts: dict[str, Any] = {}
    with mistakes:
        parts["scheduler"] = scheduler_part(scheduler)
    with mistakes:
        parts["searcher"] = searcher_part(search_alg)
    with mistakes:
        parts["stopper"] = stopper_part(stop)
    for part in (parts.get("scheduler"), parts.get("stopper")):
        _begin_anew(part)
    _forget_search(parts.get("searcher"))
    return Parts(**parts)


def _forget_search(searcher: Searcher | None) -> None:
    """Remove the context of an earlier search, with which a pickled searcher would be set up again."""
    if searcher is None:
        return
    vars(searcher).pop("context", None)
    inner = getattr(searcher, "search", None)
    if isinstance(inner, Searcher):
        _forget_search(inner)


def _begin_anew(part: Scheduler | Stopper | None) -> None:
    """Give the part the state that it had at the first call. An earlier search may have changed it."""
    if part is None:
        return
    if isinstance(part, CombinedStopper):
        for stopper in part.stoppers:
            _begin_anew(stopper)
    part.state = copy.deepcopy(vars(part).setdefault(_FIRST, copy.deepcopy(part.state)))


def stopper_part(stop: Any) -> Stopper | None:
    if not stop:
        return None
    from tuner.schedulers.stoppers import from_argument

    return from_argument(stop)


def parts_explained(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function like `keywords_explained`. If an unknown keyword is an option of a part, the message says so."""
    return keywords_explained(function, instead=_option_of_a_part)


def _option_of_a_part(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a hint on how to pass `name` if it is an option of the scheduler or searcher in `arguments`; otherwise ""."""
    from tuner.schedulers import class_of as scheduler_class
    from tuner.search import class_of as searcher_class

    kinds = (("scheduler", "scheduler", scheduler_class), ("search_alg", "searcher", searcher_class))
    for argument, what, class_of in kinds:
        given = arguments.get(argument)
        form = {"type": given} if isinstance(given, str) else given
        if isinstance(form, Mapping):
            found = class_of(form) if isinstance(form.get("type"), str) else None
        else:
            found = type(given) if isinstance(given, Scheduler | Searcher) else None
        if found is None or name not in option_names(found):
            continue
        value = shown if len(shown := repr(arguments[name])) <= LONGEST_SHOWN else "..."
        if isinstance(form, Mapping):
            options = ", ".join([*(f"{key!r}: {form[key]!r}" for key in form), f"{name!r}: {value}"])
            return f"; it is an option of the {what}: {argument}={{{options}}}"
        return f"; it is an option of the {what}: {argument}={found.__name__}({name}={value})"
    return ""
