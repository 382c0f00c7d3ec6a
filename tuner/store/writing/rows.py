"""Make rows of the table `trial` from the trials of a driver.

A column has the value of the attribute with the same name. `_derived` computes the columns that have no such attribute.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from sqlalchemy import Boolean, Column, Integer

from tuner.domain.experiment import Scope
from tuner.domain.trial import Trial
from tuner.store.sql.tables import Choice, JsonText, dumps
from tuner.store.sql.tables import trial as table

IDENTITY = ("public_id", "experiment_id", "number", "created_at")
"""The columns that are written only once, when the row is inserted."""


def clean(text: str | None) -> str | None:
    """Replace NUL and unpaired surrogates in a text, because PostgreSQL or SQLite rejects them."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _json(value: Any) -> str | None:
    return None if value is None else dumps(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _encoder(column: Column[Any]) -> Callable[[Any], Any] | None:
    """Return the function that turns an attribute's value into the column's value, or None if the two values are the same."""
    match column.type:
        case Choice():
            return str
        case JsonText():
            return _json
        case Boolean() | Integer():
            return None
        case kind:
            return clean if kind.python_type is str else _finite


_DERIVED = ("searcher", "best_value", "best_iteration", "best_params", "waiting", "ended_at")
_ATTRIBUTES = sorted(set(table.c.keys()) - {"id", *IDENTITY, *_DERIVED}, key=lambda name: (name != "state", name))
_ENCODERS = [_encoder(table.c[name]) for name in _ATTRIBUTES]
_attributes = attrgetter(*_ATTRIBUTES)

CHANGING = (*_ATTRIBUTES, *_DERIVED)
"""The columns that can change, starting with the state."""


def trial_row(trial: Trial, scope: Scope, time: float) -> tuple[Any, ...]:
    """Return the values of the columns `CHANGING`.

    `scope` is the spec's. `time` is stored as the end of an ended trial that has no end time.
    """
    values = zip(_ENCODERS, _attributes(trial), strict=True)
    return (*[value if encode is None else encode(value) for encode, value in values], *_derived(trial, scope, time))


def _derived(trial: Trial, scope: Scope, time: float) -> tuple[Any, ...]:
    """Return the values of the columns that are named in `_DERIVED`, in the same order."""
    best = trial.mark(scope)
    held = None if best is None else trial.params_at(best)
    return (
        dumps(trial.searcher_state),
        None if best is None else _finite(best.value),
        None if best is None else best.iteration,
        None if held is None or held == trial.params else dumps(held),
        clean(trial.waiting) or None,
        time if trial.ended_at is None and trial.state.ended else trial.ended_at,
    )
