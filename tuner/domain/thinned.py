"""Define the message that refuses an operation because most points of an old experiment were deleted."""

from __future__ import annotations

from datetime import UTC, datetime


def why_thinned(thinned_at: float, needs: str) -> str:
    """Return the reason to refuse an operation on a thinned experiment. `needs` names the operation, such as "a replay"."""
    day = datetime.fromtimestamp(thinned_at, UTC).date()
    return (
        f"most points of the experiment's curves were deleted on {day}, because it had ended longer ago than "
        f"TUNER_POINT_DAYS allows; {needs} needs all points"
    )
