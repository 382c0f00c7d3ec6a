"""Rows of the table `trial` from the trials of a driver.

Every column is filled from the attribute of the same name. `_derived` has the columns that are not attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sqlalchemy import Boolean, Column, Integer

from tuner.domain.trial import Trial
from tuner.store.sql.tables import Choice, JsonText, dumps
from tuner.store.sql.tables import trial as table

IDENTITY = ("public_id", "experiment_id", "number", "created_at")
"""Columns that are written once, when the row is inserted."""


def clean(text: str | None) -> str | None:
    """Return text that both databases take: without NUL and without unpaired surrogates."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _json(value: Any) -> str | None:
    return None if value is None else dumps(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _encoder(column: Column[Any]) -> Callable[[Any], Any]:
    match column.type:
        case Choice():
            return str
        case JsonText():
            return _json
        case Boolean() | Integer():
            return lambda value: value
        case kind:
            return clean if kind.python_type is str else _finite


_CHANGING = sorted((c for c in table.c if c.name not in ("id", *IDENTITY)), key=lambda c: c.name != "state")
_ENCODERS = [(column.name, _encoder(column)) for column in _CHANGING]

CHANGING = [column.name for column in _CHANGING]
"""Columns that change, the state first."""


def trial_row(trial: Trial, time: float) -> tuple[Any, ...]:
    """Return the values of the columns `CHANGING`. `time` is when the trial ended, if it does not say so itself."""
    derived = _derived(trial, time)
    return tuple([
        encode(derived[name] if name in derived else getattr(trial, name)) for name, encode in _ENCODERS
    ])  # fmt: skip


def _derived(trial: Trial, time: float) -> dict[str, Any]:
    best = trial.best_mark
    held = None if best is None else trial.params_at(best)
    return {
        "searcher": trial.searcher_state,
        "best_value": None if best is None else best.value,
        "best_iteration": None if best is None else best.iteration,
        "best_params": None if held == trial.params else held,
        "waiting": trial.waiting or None,
        "ended_at": time if trial.ended_at is None and trial.state.ended else trial.ended_at,
    }
