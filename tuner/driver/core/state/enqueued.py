"""The trials that users have enqueued."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedTrial:
    """A trial that a user has enqueued.

    `params` are the parameters that the user has set; the others are drawn at random. `checkpoint` is the id of the
    checkpoint to start from, which trial `parent` saved, or "".
    """

    params: Mapping[str, Any]
    checkpoint: str = ""
    parent: int | None = None
    reason: str = ""
    key: str = ""  # identifies the request; stored as a tag of the trial, so that the request can find it
    # The revision of the search space to which `params` belong; None: the newest at the time of the request.
    space_revision: int | None = None
