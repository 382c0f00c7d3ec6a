"""Read JSON text that another version may have written in another form, or that is damaged."""

from __future__ import annotations

import contextlib
import json
from typing import TypeVar

from tuner.domain.experiment import Spec
from tuner.store.sql.cursor import Cursor

T = TypeVar("T")


def readable(text: str | None, kind: type[T]) -> T | None:
    """Return the value of a column of JSON text. Return None for NULL, for a null, and if this is not JSON of that type."""
    with contextlib.suppress(ValueError, RecursionError):
        if text is not None and isinstance(value := json.loads(text), kind):
            return value
    return None


def stored_objectives(cursor: Cursor, experiment: int) -> list[tuple[str, str]]:
    """Return the metric and the mode of each objective of an experiment, as far as this version can read its spec."""
    spec = readable(cursor.value("SELECT spec FROM experiment WHERE id = ?", (experiment,)), dict) or {}
    return [(each.metric, each.mode) for each in Spec.read(spec)[0].objectives]
