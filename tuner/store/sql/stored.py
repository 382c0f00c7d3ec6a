"""Read JSON text that another version may have written in another form, or that is damaged."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from tuner.domain.experiment import Spec, fits
from tuner.store.sql.cursor import Cursor


class _Values(TypedDict, total=False):
    value: float | None
    iteration: int | None
    params: Mapping[str, Any] | None
    checkpoint_id: str | None


class _Finished(_Values):
    trial_number: int


class _OfObjective(TypedDict):
    metric: str
    value: float | None
    trial_number: int


class _Repeated(TypedDict):
    trials: Sequence[int]
    mean: float | None
    expected: float | None


class _Single(TypedDict):
    middle: float | None
    weight: float | None


class _OfBest(TypedDict):
    trials: Sequence[int]
    values: Sequence[float | None]
    mean: float | None
    error: float | None
    noise: float | None
    pairs: int


class _Runs(_OfBest, total=False):
    repeated: Sequence[_Repeated]
    single: _Single | None
    dropped: Sequence[int]


class _Best(_Values, total=False):
    trial_number: int
    why: str | None
    finished: _Finished | None
    objectives: Sequence[_OfObjective] | None
    runs: _Runs | None


JSON_TYPES: Mapping[str, Any] = {
    "changes": Mapping[str, Any],
    "best": _Best,
    "counts": Mapping[str, int],
    "pauses": Sequence[tuple[float, float | None]],
    "spec": Mapping[str, Any],
}
"""The types of the columns of an experiment that have JSON text."""


def readable(text: str | None, column: str) -> Any:
    """Return the value of a column of JSON text. Return None for NULL, for a null, and if the text is not of its type."""
    return json.loads(text) if text is not None and _is_readable(text, column) else None


@functools.lru_cache(
    maxsize=4000
)  # the check takes several times as long as parsing, and lists are read again and again
def _is_readable(text: str, column: str) -> bool:
    try:
        return fits(json.loads(text), JSON_TYPES[column])
    except (ValueError, RecursionError):
        return False


def stored_objectives(cursor: Cursor, experiment: int) -> list[tuple[str, str]]:
    """Return the metric and the mode of each objective of an experiment, as far as this version can read its spec."""
    spec = readable(cursor.value("SELECT spec FROM experiment WHERE id = ?", (experiment,)), "spec") or {}
    return [(each.metric, each.mode) for each in Spec.read(spec)[0].objectives]
