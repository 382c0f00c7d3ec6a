"""Say what is wrong in a spec: an error of pydantic in words, and the JSON pointer to it."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tuner.domain.experiment import PRINTABLE, PROJECT, PROJECT_IN_WORDS
from tuner.experiment.specs.model import OPTIONS
from tuner.names import elsewhere, option_meant
from tuner.space.words import escape

Errors = list[tuple[str, str]]

_OF_SEVERAL_TYPES: Mapping[tuple[str, ...], str] = {
    ("metric",): "expected the name of a metric, or a list of names",
    ("mode",): 'expected "min" or "max", or a list with one of them for each metric',
    ("warm_start",): 'expected "auto", or a list of ids or names of experiments',
    ("limits", "repeats"): 'expected a number of repeats, 0 or more, or "auto"',
    ("checkpoint", "interval_s"): 'expected a number of seconds above 0, "auto" or null',
}
"""The messages for fields that take several types. If a value has none of them, pydantic has an error for each type."""


def errors_in_words(errors: Iterable[Any], data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the pointer and the message of each error of pydantic, but only one of a field that takes several types.

    data: the JSON in which the errors are.
    """
    said = set()
    for error in errors:
        where = error["loc"]
        field = next((path for path in _OF_SEVERAL_TYPES if where[: len(path)] == path), None)
        if field is None or error["type"] == "missing":
            yield pointer_to(where), in_words(error)
        elif field not in said:
            said.add(field)
            given = functools.reduce(operator.getitem, field, data)
            yield pointer_to(field), f"{_OF_SEVERAL_TYPES[field]}, got {shown(given)}"


def in_words(error: Any) -> str:
    where, given, context = error["loc"], error.get("input"), error.get("ctx", {})
    match error["type"]:
        case "missing":
            return "is required"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"unknown field{_near(str(where[-1]), '.'.join(str(part) for part in where[:-1]))}"
        case "int_type" | "int_from_float" | "int_parsing" | "int_parsing_size":
            return f"expected an integer, got {shown(given)}"
        case "float_type" | "finite_number":
            return f"expected a number, got {shown(given)}"
        case "bool_type":
            return f"expected true or false, got {shown(given)}"
        case "string_type":
            return f"expected a string, got {shown(given)}"
        case "dict_type" | "mapping_type" | "model_type" | "dataclass_type":
            return f"expected an object, got {shown(given)}"
        case "list_type":
            return f"expected a list, got {shown(given)}"
        case "string_pattern_mismatch" if context["pattern"] == PROJECT:
            return f"expected {PROJECT_IN_WORDS}, got {shown(given)}"
        case "string_pattern_mismatch":
            return "has control characters" if context["pattern"] == PRINTABLE else 'has control characters or "="'
        case "string_unicode":
            return "has characters that cannot be stored"
        case "string_too_short":
            return "must not be empty"
        case "string_too_long":
            return f"is longer than {context['max_length']} characters"
        case "greater_than":
            return f"expected a number above {context['gt']:.15g}, got {shown(given)}"
        case "greater_than_equal":
            return f"expected at least {context['ge']:.15g}, got {shown(given)}"
        case "less_than_equal":
            return f"expected at most {context['le']}, got {shown(given)}"
        case "literal_error":
            return f"expected {context['expected']}, got {shown(given)}"
        case _:
            return f"{error['msg'][:1].lower()}{error['msg'][1:]}, got {shown(given)}"


def _near(name: str, section: str) -> str:
    known = list(OPTIONS.get(section, []))
    if section == "":
        inner = [f"{other}.{option}" for other, options in OPTIONS.items() if other for option in options]
        if found := next((path for path in inner if path.endswith(f".{name}")), None) or elsewhere(
            name, [*known, *inner]
        ):
            return f"; did you mean {found}?"
    if meant := option_meant(name, known):
        return meant
    if name in OPTIONS[""]:
        return "; it belongs to the top level"
    return f"; there are {', '.join(known)}" if known else ""


def field_of(pointer: str) -> str:
    """Return the top-level field that a pointer is in, or "" for a pointer to the whole document."""
    return pointer.split("/")[1] if pointer else ""


def pointer_to(parts: Iterable[Any]) -> str:
    return "".join(f"/{escape(part)}" for part in parts if part != "[key]")


def shown(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
