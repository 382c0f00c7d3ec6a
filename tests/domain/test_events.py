"""Events and decisions as they are read from a log, which a newer version may have written."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.domain import decisions, events
from tuner.errors import NewerLog

FAILURE = {"kind": "user", "message": "why", "moon": "full"}
CHECKPOINT = {"id": "ckp_1", "uri": "memory:", "step": 1, "moon": "full"}


@pytest.mark.parametrize(
    ("module", "kind", "data"),
    [
        (events, "moon_rose", {"time": 1.0}),
        (events, "waiting", {"time": 1.0, "moon": "full"}),
        (events, "segment_ended", {"time": 1.0, "trial": 0, "segment": 1, "outcome": "failed", "failure": FAILURE}),
        (events, "checkpoint_saved", {"time": 1.0, "trial": 0, "segment": 1, "checkpoint": CHECKPOINT}),
        (events, "driver_started", {"time": 1.0, "epoch": 1, "uploaded": [CHECKPOINT]}),
        (decisions, "bless", {"reason": "why"}),
        (decisions, "pause", {"reason": "why", "trial": 0, "moon": "full"}),
        (decisions, "fail", {"reason": "why", "trial": 0, "failure": FAILURE}),
    ],
    ids=[
        "event",
        "field of an event",
        "field of an event's failure",
        "field of an event's checkpoint",
        "field of one of an event's checkpoints",
        "decision",
        "field of a decision",
        "field of a decision's failure",
    ],
)
def test_an_entry_of_a_newer_version_is_refused_with_advice(module: Any, kind: str, data: dict[str, Any]) -> None:
    with pytest.raises(
        NewerLog, match=f"{kind}.*another version has written it. Nothing is lost: use a version that knows it"
    ):
        module.from_json(kind, data)
