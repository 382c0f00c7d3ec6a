"""Read metrics from lines that a script prints."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from typing import Any

from tuner.errors import WrongArgument
from tuner.names import without_colors
from tuner.trials.training.metrics import flatten

_PAIR = re.compile(r"(?<![^\s,;({\[|])([A-Za-z_][\w./-]*)\s*=\s*([^\s,;)}\]|]+)")
_NOT_FINITE = re.compile(r"(?<=: )(-?)(nan|inf)(?=[,}])")
LONGEST = 1 << 20
"""The maximum length of a line. A longer line is read in pieces."""


class MetricLines:
    """Finds metrics in the lines that a script prints.

    Without a pattern, a line is a report if it is a JSON object with the objective as a key, or a dict as Python prints it, or
    if it contains ``objective=number``. All numbers in such an object, and all pairs ``name=number`` in such a line, are then
    metrics. A pattern is a regular expression with a named group for each metric, or a single unnamed group for the
    objective. ANSI escape sequences in a line, such as those for colors or to erase a progress bar, are ignored.
    """

    def __init__(self, objective: str, pattern: str | None = None) -> None:
        """Compile the pattern. Raise WrongArgument if it is malformed, or has no group for the objective."""
        self._objective = objective
        self._pattern = compiled(pattern, objective) if pattern is not None else None

    def read(self, line: str) -> dict[str, float] | None:
        """Return the metrics in a line, or None if the objective is not among them."""
        if self._pattern is None and self._objective not in line and "{" not in line:
            return None
        plain = without_colors(line)
        if self._pattern is not None:
            found = self._by_pattern(plain)
            if not found and plain != line:  # the pattern itself may have the escape sequences
                found = self._by_pattern(line)
        else:
            found = _of_object(plain) or _of_pairs(plain)
        return found if self._objective in found else None

    def _by_pattern(self, line: str) -> dict[str, float]:
        assert self._pattern is not None
        if (match := self._pattern.search(line)) is None:
            return {}
        named = match.groupdict() or {self._objective: match.group(1)}
        return _numbers(named)


def compiled(pattern: str, objective: str) -> re.Pattern[str]:
    """Compile a pattern for metrics. Raise WrongArgument if it is malformed, or has no group for the objective."""
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise WrongArgument(f"{pattern!r} is not a regular expression: {error}") from error
    if found.groupindex and objective not in found.groupindex:
        raise WrongArgument(f"expected a group (?P<{objective}>...) for the objective in {pattern!r}")
    if not found.groupindex and found.groups != 1:
        raise WrongArgument(
            f"expected named groups such as (?P<{objective}>...), or a single group for the objective, in {pattern!r}"
        )
    return found


def _of_object(line: str) -> dict[str, float]:
    text = line.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return {}
    for read in (json.loads, _python):
        with contextlib.suppress(ValueError, SyntaxError, TypeError, AttributeError, RecursionError, MemoryError):
            return _numbers(read(text))
    return {}


def _python(text: str) -> Any:
    """Return the dict that Python has printed as this text. NaN and infinities, which are no literals, become strings."""
    return ast.literal_eval(_NOT_FINITE.sub(r"'\1\2'", text))


def _of_pairs(line: str) -> dict[str, float]:
    return _numbers(dict(_PAIR.findall(line)))


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """Return the metrics that are numbers, or strings that contain one number. Names in nested dicts are joined by "/"."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, dict):
            found.update({f"{name}/{inner}": number for inner, number in _numbers(value).items()})
            continue
        try:
            found.update(flatten({name: float(value) if isinstance(value, str) else value}))
        except (TypeError, ValueError):
            continue
    return found
