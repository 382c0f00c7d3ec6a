"""Find constants of a space that were most likely meant as parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tuner.space.primitives import OPTIONS
from tuner.space.values import is_number
from tuner.space.words import show

_KINDS = [kind for kind in OPTIONS if kind not in ("const", "tuple", "python", "sample_from")]
_CALL = re.compile(rf"(?:tuner?\.)?({'|'.join(_KINDS)})\(.*\)")
_IN_SWEEPS = ({"values"}, {"min", "max"}, {"mu", "sigma"})


def meant_as_parameters(space: Mapping[str, Any], searched: bool) -> Iterator[str]:
    """Yield a note for each constant, in a space's JSON form, that has the look of a parameter.

    searched: whether configurations can differ. If they cannot, lists and the forms of W&B sweeps count, too.
    """
    for name, value in space.items():
        if (form := _form(value, searched)) is not None:
            yield f"{name} has the same value in all trials, {show(value)}. If you mean a parameter, write {form}"
        elif isinstance(value, Mapping) and "type" not in value:
            yield from (f"{name}/{note}" for note in meant_as_parameters(value, searched))


def _form(value: Any, searched: bool) -> str | None:
    """Return how to write the parameter that was probably meant by a constant, or None if none was."""
    choice = '{"type": "choice", "categories": [...]} (in Python tuner.choice([...]))'
    between = '{"type": "uniform", "lower": ..., "upper": ...} (in Python tuner.uniform(lower, upper))'
    if isinstance(value, str) and (kind := domain_in(value)) is not None:
        parts = [f'"type": "{kind}"', *(f'"{option}": ...' for option in OPTIONS[kind][0])]
        return f"{{{', '.join(parts)}}} (in Python tuner.{kind}(...))"
    if isinstance(value, Mapping):
        if domain_in(value) is not None:
            return between
        if not searched and any(form <= value.keys() <= form | {"distribution", "q"} for form in _IN_SWEEPS):
            return choice if "values" in value else between
    return choice if isinstance(value, list) and not searched else None


def domain_in(value: Any) -> str | None:
    """Return the type of the domain that a constant describes: "uniform" for "uniform(0, 1)" or {"lower": 0, "upper": 1}."""
    if isinstance(value, str) and (call := _CALL.fullmatch(value.strip())):
        return call[1]
    if not isinstance(value, Mapping) or not {"lower", "upper"} <= value.keys() <= {"lower", "upper", "q"}:
        return None
    return "uniform" if is_number(value["lower"]) and is_number(value["upper"]) else None
