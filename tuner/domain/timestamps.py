"""Times as text, in the form that the API and the command line print."""

from __future__ import annotations

import math
from datetime import UTC, datetime


def rfc3339(time: float) -> str:
    """Return a Unix timestamp as ``2026-01-31T12:00:00.123456Z``. Times out of range become 1970-01-01."""
    if not math.isfinite(time) or not 0 <= time < 253_402_300_800:
        time = 0.0
    return f"{datetime.fromtimestamp(time, UTC).isoformat(timespec='microseconds').removesuffix('+00:00')}Z"


def rfc3339_or_none(time: float | None) -> str | None:
    return None if time is None else rfc3339(time)
