"""The request to profile a rank, and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ProfileKind = Literal["cpu", "memory"]

LONGEST_S = 60.0
"""The longest profile, in seconds."""
MOST_HZ = 250.0
"""The maximum number of samples per second. A higher rate would slow the training down and reveal little more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """A request to profile a rank for a while.

    Attributes:
        kind: "cpu": sample the Python stacks of the rank's threads. "memory": trace memory allocations.
        duration_s: seconds to observe the rank.
        rate_hz: samples per second, for "cpu".
    """

    kind: ProfileKind = "cpu"
    duration_s: float = 5.0
    rate_hz: float = 100.0
