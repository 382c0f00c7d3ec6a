"""Schedulers, searchers and stoppers that a Python caller passed as objects and that have no JSON form.

In the spec, ``{"type": "python", "name": "halfway", "repr": "..."}`` stands for such an object. The object itself is pickled
and stored with the experiment's code.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tuner.domain.experiment import Spec
from tuner.driver.assemble import Parts
from tuner.errors import SpecError
from tuner.usercode.pickling import dumps

NAMES = ("scheduler", "searcher", "stopper")
_FUNCTION = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


def plain_json(part: Any) -> dict[str, Any]:
    """Return the JSON that stands for this part in the spec: its JSON form, or a placeholder if it has none.

    Return {"type": "auto"} if the part is None.
    """
    if part is None:
        return {"type": "auto"}
    return _json(part) or {"type": "python", "name": _name(part), "repr": repr(part)[:200]}


def _name(part: Any) -> str:
    """Return the TYPE that the part's own class defines, or else the name of this class. Lists of experiments show it."""
    cls = type(part)
    return str(vars(cls).get("TYPE", cls.__name__))[:200]


def resolved_json(part: Any, *, given: bool = True) -> dict[str, Any]:
    """Return `plain_json` of a scheduler or searcher that has been set up, with the options that it took from the spec.

    given: False if the part was built from a spec, and is therefore known to have a JSON form.
    """
    if given and (data := plain_json(part))["type"] == "python":
        return data
    resolved = getattr(part, "resolved", None)
    return dict(part.to_json() if resolved is None else resolved())


def dump_parts(parts: Parts) -> bytes | None:
    """Pickle the parts that have no JSON form. Return None if there are none; raise SpecError if one cannot be pickled."""
    kept = {name: part for name in NAMES if (part := getattr(parts, name)) is not None and _json(part) is None}
    if not kept:
        return None
    try:
        return dumps(kept)
    except Exception as error:
        raise SpecError(f"cannot be stored: {type(error).__name__}: {error}", f"/{next(iter(kept))}") from error


def load_parts(blob: bytes | None) -> Parts:
    """Return the objects that `dump_parts` pickled. The blob must come from a trusted source."""
    return Parts(**pickle.loads(blob)) if blob else Parts()


def without_parts(spec: Spec) -> Spec:
    """Return the spec with built-in parts in place of those that are objects.

    A core with this spec can fold the experiment's log, pause or cancel the experiment, and nothing else: it would not make the
    decisions of the objects.
    """
    stand_ins: dict[str, Any] = {"scheduler": {"type": "fifo"}, "search": {"type": "random"}, "stop": {}}
    own = {name: part for name, part in stand_ins.items() if getattr(spec, name).get("type") == "python"}
    if "scheduler" in own:
        own["limits"] = replace(spec.limits, budget=None, repeats=0)
    return replace(spec, **own)


def names_code(options: Any) -> bool:
    """Return whether a part's options may name functions as ``"module:name"``, so that the part would import these modules."""
    left = [options]
    while left:  # no recursion, since options may be nested deeply
        part = left.pop()
        if isinstance(part, str):
            if _FUNCTION.fullmatch(part):
                return True
        elif isinstance(part, Mapping):
            left.extend(part.values())
        elif isinstance(part, Sequence):
            left.extend(part)
    return False


def _json(part: Any) -> dict[str, Any] | None:
    """Return the part's JSON form, or None if an equal part cannot be built from it."""
    from tuner import schedulers, search
    from tuner.schedulers import stoppers
    from tuner.schedulers.base import Scheduler
    from tuner.search.base import Searcher

    registry: Any = schedulers if isinstance(part, Scheduler) else search if isinstance(part, Searcher) else stoppers
    try:
        data: dict[str, Any] = part.to_json()
        again = registry.from_json(data)
        return data if type(again) is type(part) else None
    except (SpecError, TypeError, ValueError):
        return None


def plain_names(names: Any) -> Any:
    """Return the names of metrics, or modes, as a spec has them: one, or a list. Other values are left to the spec's checks."""
    return list(names) if isinstance(names, Iterable) and not isinstance(names, str | Mapping) else names


def plain_points(points: Any) -> Any:
    """Return `points_to_evaluate` as a list of dicts. Return anything else unchanged, for the check of the spec to report."""
    if points is None:
        return []
    if isinstance(points, str | Mapping) or not isinstance(points, Iterable):
        return dict(points) if isinstance(points, Mapping) else points
    return [dict(point) if isinstance(point, Mapping) else point for point in points]
