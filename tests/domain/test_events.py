"""Events and decisions as they are read from a log, which a newer version may have written."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.domain import decisions, events
from tuner.errors import StoreError


@pytest.mark.parametrize(
    ("module", "kind", "data"),
    [
        (events, "moon_rose", {"time": 1.0}),
        (events, "waiting", {"time": 1.0, "moon": "full"}),
        (decisions, "bless", {"reason": "why"}),
        (decisions, "pause", {"reason": "why", "trial": 0, "moon": "full"}),
    ],
    ids=["event", "field of an event", "decision", "field of a decision"],
)
def test_an_entry_of_a_newer_version_is_refused_with_advice(module: Any, kind: str, data: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match=f"{kind}.*a newer version has written it. Nothing is lost: use that version"):
        module.from_json(kind, data)
