"""Remove placement groups, but not while Ray is placing them.

Ray (seen with 2.60) first reserves the resources on the nodes, and then commits them. If the placement group is removed
in between, they stay reserved until the raylet exits.

What Ray says of a group does not show that it tries again to place it, until the resources are reserved. So a group that waits
is removed only if there has been no room for it for a moment.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

PLACED_WITHIN_S = 10.0
"""The maximum number of seconds that a removal waits while Ray is placing the group."""
LOOK_S = 0.02
"""Seconds between two checks of whether Ray is still placing the group."""
FULL_S = 0.25
"""Seconds for which there must have been no room for a group that waits. Ray takes less time to reserve and commit resources."""
TRIED_WITHIN_S = 2.0
"""Ray places a group that waits within this many seconds if there is room for it: it tries at least once a second."""
_BEING_PLACED = ("QUEUED", "SCHEDULING_STARTED")


def remove(*placements: PlacementGroup) -> None:
    """Remove each placement group once Ray is no longer placing it, or after `PLACED_WITHIN_S`. This blocks."""
    left = [Removal(placement) for placement in placements]
    while left := [removal for removal in left if not removal.step()]:
        time.sleep(LOOK_S)


class Removal:
    """The removal of a placement group, in steps."""

    def __init__(self, placement: PlacementGroup) -> None:
        self._placement = placement
        self._begun = time.monotonic()
        self._full_since: float | None = None  # since when there is no room for the group

    def step(self) -> bool:
        """Remove the group unless Ray is placing it or may begin to. Return whether it was removed. This blocks.

        Call this every `LOOK_S` seconds until it returns True. The removal follows the check at once, because Ray may begin to
        place the group at any moment.
        """
        with contextlib.suppress(Exception):  # if Ray does not report the group's state, the group is removed at once
            if time.monotonic() < self._begun + PLACED_WITHIN_S and self._is_being_placed():
                return False
        remove_placement_group(self._placement)
        return True

    def _is_being_placed(self) -> bool:
        """Return whether Ray may be giving resources to the placement group at this moment."""
        found = placement_group_table(self._placement)
        now = time.monotonic()
        if found["stats"]["scheduling_state"] in _BEING_PLACED or found["state"] == "PREPARED":
            return True
        if found["state"] != "PENDING":
            return False
        if _has_room(found["bundles"].values()):
            self._full_since = None
            return now < self._begun + TRIED_WITHIN_S
        self._full_since = now if self._full_since is None else self._full_since
        return now < self._full_since + FULL_S


def _has_room(bundles: Iterable[Mapping[str, float]]) -> bool:
    """Return whether the free resources of all nodes together are enough for these bundles."""
    free, wanted = ray.available_resources(), Counter[str]()
    for bundle in bundles:
        wanted.update(bundle)
    return all(free.get(name, 0.0) >= amount for name, amount in wanted.items())
